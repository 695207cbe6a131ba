"""The triple barrier: when it opens, what it answers, and when it is gone."""

import jax
import numpy as np
import pytest

from tests.env.harness import bars_from, play
from tests.reference import presets
from tests.reference.presets import MARKET, PATIENT, action_index

LENGTH = 12
LONG, HALF, FLAT, HALF_SHORT, SHORT = (action_index(e, MARKET, PATIENT) for e in (1.0, 0.5, 0.0, -0.5, -1.0))
SPEC = {
    **presets.NET,  # fills at the next open, and yet the barrier stands at the close
    "sizing": "units",
    "ruin_fraction": 0.0,
    "episode_length": LENGTH + 1,
    "barrier_max_bars": 4,
}


def held(close, actions, episode_length=LENGTH + 1):
    """Barrier states `[L + 1]` and labels `[L]` of one lane; the last close and the last action are repeated."""
    close = np.append(close, np.repeat(close[-1:], 2 * LENGTH - len(close)))
    actions = np.append(actions, np.repeat(actions[-1:], LENGTH - len(actions)))
    bars = bars_from(close, open=np.full(len(close), 101.0), low=close * 0 + 1, high=close * 0 + 999)
    spec = {**SPEC, "episode_length": episode_length}
    states, outcome = play(bars, spec, [0], actions[:, None])
    return jax.tree.map(lambda leaf: leaf[:, 0], (states.account.barrier, outcome.barrier_label))


@pytest.mark.parametrize(
    ("action", "after", "label"),
    [
        (LONG, [101, 102.5], 1),
        (LONG, [99, 97.5], -1),
        (SHORT, [99, 97.5], 1),
        (SHORT, [101, 102.5], -1),
    ],
)
def test_a_level_hit_gives_its_sign_once_and_switches_the_barrier_off(action, after, label):
    barrier, labels = held([100, *after, 100], [action])
    assert labels.tolist() == [0, label] + [0] * (LENGTH - 2)
    assert barrier.active.tolist() == [0, 1] + [0] * (LENGTH - 1)


def test_the_first_bar_can_already_hit():
    _, labels = held([100, 103], [LONG])
    assert labels.tolist() == [1] + [0] * (LENGTH - 1)


@pytest.mark.parametrize(
    ("action", "last", "label"),
    [(LONG, 101, 1), (LONG, 99, -1), (LONG, 100, 0), (SHORT, 101, -1), (SHORT, 99, 1), (SHORT, 100, 0)],
)
def test_at_expiry_the_label_is_the_sign_of_the_profit_possibly_zero(action, last, label):
    barrier, labels = held([100, 100.5, 99.5, 100.5, last, 100], [action])
    # opened at step 0: 1 bar held at the first check, max_bars = 4 at the fourth
    assert labels.tolist() == [0, 0, 0, label] + [0] * (LENGTH - 4)
    assert barrier.active.tolist() == [0, 1, 1, 1] + [0] * (LENGTH - 3)


def test_a_hit_on_the_bar_of_expiry_gives_one_label_and_an_earlier_hit_leaves_nothing_to_expire():
    # where both rules speak they agree: the levels lie on either side of the entry
    _, labels = held([100, 100, 100, 100, 97, 100], [LONG])
    assert labels.tolist() == [0, 0, 0, -1] + [0] * (LENGTH - 4)
    _, labels = held([100, 100, 100, 103, 97, 100], [LONG])
    assert labels.tolist() == [0, 0, 1] + [0] * (LENGTH - 3)


def test_going_flat_gives_no_label_and_switches_the_barrier_off():
    barrier, labels = held([100, 101, 110], [LONG, FLAT])
    assert labels.tolist() == [0] * LENGTH
    assert barrier.active.tolist() == [0, 1] + [0] * (LENGTH - 1)


def test_a_flip_opens_a_new_barrier_at_its_own_close_and_step():
    barrier, labels = held([100, 101.5, 99.4], [LONG, SHORT])
    assert barrier.entry[1] == 100
    assert barrier.entry[2] == np.float32(101.5)
    assert barrier.entry_step[1:3].tolist() == [0, 1]
    assert labels[:2].tolist() == [0, 1]  # 99.4 <= 0.98 x 101.5 = 99.47, and above 0.98 x 100


def test_adding_and_reducing_leave_the_barrier_where_it_stands():
    barrier, labels = held([100, 101, 100.5, 101.5], [HALF, LONG, HALF])
    assert barrier.entry[1:4].tolist() == [100] * 3
    assert barrier.entry_step[1:4].tolist() == [0] * 3
    assert labels[:3].tolist() == [0, 0, 0]


def test_a_position_held_on_after_its_label_gets_no_other():
    _, labels = held([100, 103, 110, 80, 120, 70, 130], [LONG, HALF, LONG])
    assert labels.tolist() == [1] + [0] * (LENGTH - 1)
    _, labels = held([100, 103, 110, 107], [LONG, LONG, SHORT])  # a flip is a new one
    assert labels[:3].tolist() == [1, 0, 1]


def test_a_short_in_mirrored_prices_gets_the_long_s_labels():
    rng = np.random.default_rng(4)
    for _ in range(5):
        moves = np.cumsum(rng.integers(-3, 4, 6)) / 2  # around an entry of 100 the levels 98 and 102 are a mirror image
        _, long = held([100, *(100 + moves)], [LONG])
        _, short = held([100, *(100 - moves)], [SHORT])
        np.testing.assert_array_equal(long, short)


def test_a_new_episode_starts_without_a_barrier():
    barrier, labels = held([100, 100.5, 101, 110], [LONG], episode_length=2)
    assert barrier.active[:5].tolist() == [0, 1, 0, 1, 0]  # restarts at bar 0 every two steps
    assert labels.tolist() == [0] * LENGTH
