import dataclasses

import chex
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade.agents import Policy, actor_policy
from jaxrl_trade.backtesting import simulate as module
from jaxrl_trade.backtesting.ledger import book
from jaxrl_trade.backtesting.simulate import NOTHING, Relay, Simulator, replay, simulate
from jaxrl_trade.config import EnvConfig
from tests.backtesting.tracks import linear, random_track, scripted, simple_rules, table_of, track_of
from tests.reference import account as reference
from tests.reference import presets


def weights_of(seed, n_features=4, n_actions=45):
    return np.random.default_rng(seed).normal(size=(n_features + 3, n_actions))


@pytest.fixture(scope="module", params=["plan", "net"])
def run(request):
    """A restless policy over 700 bars with a renewal every 100: (config, track, trace)."""
    config = EnvConfig(episode_length=100) if request.param == "plan" else EnvConfig.net(episode_length=100)
    track = random_track(1, 700)
    return config, track, simulate(linear(weights_of(2)), track, config)


def test_the_ledgers_equity_is_the_simulated_accounts(run):
    config, track, trace = run
    equity = book(trace.fills, track.close, config.initial_capital).equity
    assert len(trace.fills) > 100
    # both are float64; the account rescales its currency 6 times, the ledger sums some hundred fills
    np.testing.assert_allclose(equity[1:], trace.equity, rtol=1e-9)
    assert equity[0] == config.initial_capital


def test_the_first_episode_is_the_reference_accounts(run):
    config, track, trace = run
    market = {name: getattr(track, name) for name in ("features", "open", "high", "low", "close")}
    rules = (presets.PLAN if config.fill == "close" else presets.NET) | {"episode_length": 100}
    steps, _ = reference.simulate(market, rules, 0, trace.action[:100], np.zeros(100, int))
    np.testing.assert_allclose(trace.position[:100], steps["position"], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(trace.equity[:100], steps["equity_after"], rtol=1e-9)
    np.testing.assert_allclose(trace.cost[:100], steps["cost"], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("sizing", ["units", "leverage"])
def test_every_episode_shows_the_policy_the_reference_capital_and_a_position_within_the_maximum(sizing):
    # a short of 10 units that loses: after 5 bars of +4 % the renewed maximum is smaller than the short
    table = table_of([-1.0, 0.0], fill_ratio=[1.0, 0.0])
    config = simple_rules(execution=table, sizing=sizing, max_position=10.0, episode_length=5)
    seen, turns = [], scripted([0] + [1] * 13, 2)

    def policy(obs):
        seen.append(np.array(obs)[0])
        return turns(obs)

    simulate(policy, track_of(100.0 * 1.04 ** np.arange(15)), config)
    equity, position = np.stack(seen).T[1:3]
    np.testing.assert_allclose(equity[::5], 1.0, rtol=1e-6)  # the policy sees float32
    assert equity.min() < 0.85
    np.testing.assert_array_equal(position, [0] + [-1] * 13)


def test_max_position_is_renewed_from_current_equity(run):
    config, track, trace = run
    equity = book(trace.fills, track.close, config.initial_capital).equity
    start = np.arange(699) // 100 * 100
    sized = np.ones(699) if config.sizing == "units" else equity[start] / track.close[start]
    np.testing.assert_allclose(trace.max_position, sized, rtol=1e-9)


@pytest.mark.parametrize("sizing", ["units", "leverage"])
def test_a_renewal_trades_nothing(sizing):
    table = table_of([1.0, 0.0], fill_ratio=[1.0, 0.0])  # buy, or do nothing
    config = simple_rules(execution=table, sizing=sizing, episode_length=10, initial_capital=1000.0)
    track = random_track(3, 60)
    trace = simulate(scripted([0] + [1] * 58, 2), track, config)
    assert np.flatnonzero(trace.units).tolist() == [0]
    np.testing.assert_allclose(trace.position, trace.position[0], rtol=1e-12)
    np.testing.assert_allclose(
        trace.equity, 1000.0 + trace.position[0] * (track.close[1:] - track.close[0]), rtol=1e-12
    )


def test_holding_all_of_a_constant_maximum_never_rebalances():
    config = simple_rules(sizing="units", max_position=2.0, episode_length=7)
    always_long = lambda obs: jnp.zeros((len(obs), 3)).at[:, 2].set(1.0)  # noqa: E731
    trace = simulate(always_long, random_track(4, 100, n_features=1), config)
    assert np.flatnonzero(trace.units).tolist() == [0]
    np.testing.assert_allclose(trace.max_position, 2.0, rtol=1e-12)


def test_greedy_takes_the_first_largest_logit():
    track = track_of(np.full(20, 100.0), features=np.random.default_rng(0).integers(-2, 3, (20, 3)))
    trace = simulate(lambda obs: obs[:, :3], track, simple_rules())  # integers: many ties
    np.testing.assert_array_equal(trace.action, np.argmax(track.features[:-1], axis=1))


def test_sampling_follows_the_key_and_the_probabilities():
    probabilities = np.array([0.2, 0.5, 0.3])
    policy = lambda obs: jnp.zeros((len(obs), 3)) + jnp.log(jnp.asarray(probabilities))  # noqa: E731
    track, config = track_of(np.full(4001, 100.0)), simple_rules(execution=table_of([-1.0, 0.0, 1.0]))
    first, again, other = (
        simulate(policy, track, config, greedy=False, key=jax.random.key(seed)).action for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    shares = np.bincount(first, minlength=3) / 4000
    np.testing.assert_allclose(shares, probabilities, atol=4 * np.sqrt(0.25 / 4000))  # 4 standard errors


def test_sampling_without_a_key_is_refused():
    with pytest.raises(ValueError, match=r"needs key=jax\.random\.key"):
        simulate(linear(np.zeros((4, 3))), track_of([1.0, 2.0]), simple_rules(), greedy=False)


def test_a_numpy_policy_trades_as_the_same_policy_in_jax(run):
    config, track, trace = run
    head = type(track)(*(x[:150] for x in track))
    weights = weights_of(2).astype(np.float32)
    called = simulate(lambda obs: np.asarray(obs) @ weights, head, config)
    for name, mine, theirs in zip(trace._fields, called, trace, strict=True):
        np.testing.assert_allclose(mine, theirs[:149], rtol=1e-9, atol=1e-9, err_msg=name)


def test_a_numpy_policy_is_called_once_a_bar_in_order():
    seen = []

    def policy(obs):
        seen.append(np.array(obs))
        return np.eye(3)[[len(seen) % 3]]

    track = random_track(5, 12)
    trace = simulate(policy, track, simple_rules())
    assert [obs.shape for obs in seen] == [(1, 7)] * 11
    np.testing.assert_array_equal(np.concatenate(seen)[:, :4], track.features[:-1])
    np.testing.assert_array_equal(trace.action, (np.arange(11) + 1) % 3)


def test_a_python_policy_may_use_jax_inside():
    compiled = jax.jit(linear(weights_of(6, n_actions=3)))
    track = random_track(6, 30)
    called = simulate(lambda obs: np.asarray(compiled(np.asarray(obs))), track, simple_rules())
    traced = simulate(compiled, track, simple_rules())
    np.testing.assert_array_equal(called.action, traced.action)


def test_ruin_closes_the_account_at_that_close_at_the_dearest_fee():
    # short 10 units of 100 with 1,000: at 191 the equity is 1,000 + 1,000 - 1,910 = 90, below a tenth of the capital
    table = table_of([-1.0, 0.0, 1.0], fee_rate=[0.0, 0.0, 0.01])
    config = simple_rules(execution=table, ruin_fraction=0.1)
    trace = simulate(scripted([0] * 4, 3), track_of([100.0, 150.0, 191.0, 100.0, 50.0]), config)
    books = book(trace.fills, np.array([100.0, 150.0, 191.0, 100.0, 50.0]), 1000.0)
    assert trace.is_ruined.tolist() == [False, True, False, False]
    assert trace.action.tolist() == [0, 0, NOTHING, NOTHING]
    left = 2000.0 - 10 * 191.0 - 0.01 * 10 * 191.0
    np.testing.assert_allclose(books.equity, [1000, 500, left, left, left], rtol=1e-12)
    np.testing.assert_array_equal(books.units, [0, -10, 0, 0, 0])


def test_ruin_is_measured_against_the_renewed_capital():
    # falls to 500 in the first episode of 2 bars; the second is ruined at 50, not at 100
    config = simple_rules(execution=table_of([1.0, 0.0], fill_ratio=[1.0, 0.0]), ruin_fraction=0.1, episode_length=2)
    trace = simulate(scripted([0, 1, 1, 1, 1], 2), track_of([100.0, 70.0, 50.0, 9.0, 4.9, 4.0]), config)
    assert trace.is_ruined.tolist() == [False, False, False, True, False]


def test_logits_of_another_width_are_refused():
    with pytest.raises(ValueError, match=r"shape \(1, 4\).*3 actions"):
        simulate(linear(np.zeros((4, 4))), track_of([1.0, 2.0]), simple_rules())
    with pytest.raises(ValueError, match=r"shape \(1, 4\).*3 actions"):
        simulate(lambda obs: np.zeros((1, 4)), track_of([1.0, 2.0]), simple_rules())


def test_logits_that_are_nan_are_refused_with_their_bar():
    features = np.zeros((9, 1))
    features[5] = np.nan
    with pytest.raises(ValueError, match="NaN at bar 5"):
        simulate(lambda obs: obs[:, :1] * jnp.ones(3), track_of(np.ones(9), features=features), simple_rules())


@pytest.mark.parametrize("policy", [None, 5, "buy"])
def test_what_is_no_function_is_no_policy(policy):
    with pytest.raises(ValueError, match=r"policy is a \w+; give a function of observations"):
        simulate(policy, track_of([1.0, 2.0]), simple_rules())


@pytest.mark.parametrize("logits", ["buy", {}])
def test_what_is_no_array_is_no_logits(logits):
    with pytest.raises(ValueError, match=rf"the policy gives {logits!r}, not an array of logits"):
        simulate(lambda obs: logits, track_of([1.0, 2.0]), simple_rules())


def test_a_policy_of_other_features_is_told_so():
    config = jt.PPOConfig(actor_hidden=(4,), env=simple_rules())
    policy = actor_policy(jt.init_ppo(jax.random.key(0), config, n_features=2).actor, config)
    with pytest.raises(
        ValueError, match="was not trained on observations of 4 values, which 1 features and the account"
    ):
        simulate(policy, track_of([1.0, 2.0]), simple_rules())


def test_an_error_inside_the_policy_reaches_the_caller_unchanged():
    def policy(obs):
        raise KeyError("my own")

    with pytest.raises(KeyError, match="my own"):
        simulate(policy, track_of([1.0, 2.0]), simple_rules())


@flax.struct.dataclass
class Constant:
    """Logits that are the weights, whatever is seen."""

    def __call__(self, params, obs):
        return jnp.zeros((len(obs), 1)) + params


def test_new_weights_of_a_policy_compile_nothing_new():
    track, config = random_track(7, 20), simple_rules()
    before = module._loop._cache_size()
    traces = [simulate(Policy(params=jnp.eye(3)[i], apply=Constant()), track, config) for i in (0, 1, 2)]
    assert module._loop._cache_size() == before + 1
    assert [t.action[0] for t in traces] == [0, 1, 2]


def test_a_plain_function_is_traced_anew_so_that_what_it_closes_over_may_change():
    weights = {"logits": np.array([1.0, 0.0, 0.0], np.float32)}
    policy = lambda obs: jnp.zeros((len(obs), 3)) + weights["logits"]  # noqa: E731
    track, config = track_of(np.ones(5)), simple_rules()
    assert simulate(policy, track, config).action[0] == 0
    weights["logits"] = np.array([0.0, 0.0, 1.0], np.float32)
    assert simulate(policy, track, config).action[0] == 2


def test_the_policy_sees_float32_and_the_account_keeps_float64():
    def policy(obs):
        chex.assert_type(obs, jnp.float32)
        return obs[:, :3]

    trace = simulate(policy, random_track(8, 10), simple_rules())
    assert trace.equity.dtype == np.float64
    assert not jax.config.jax_enable_x64


def test_a_multiple_of_the_costs_is_a_table_of_dearer_orders_and_shows_the_policy_the_same_spread():
    table = table_of([-1.0, 0.0, 1.0], fee_rate=[0.001, 0.002, 0.003], price_offset=[0.5, 1.0, -1.0])
    makers = dataclasses.replace(table, is_maker=[False, False, True])
    dearer = dataclasses.replace(makers, fee_rate=[0.003, 0.006, 0.009], price_offset=[1.5, 3.0, -1.0])
    config = simple_rules(execution=makers, spread=1e-3)
    seen, track, actions = [], random_track(9, 40), np.random.default_rng(0).integers(0, 3, 39)

    def policy(obs):
        seen.append(float(obs[0, -1]))
        return np.eye(3)[[actions[(len(seen) - 1) % 39]]]

    simulator = Simulator(policy, track, config)
    simulator.run()
    tripled = simulator.run(3.0)
    expected = simulate(scripted(actions, 3), track, dataclasses.replace(config, execution=dearer))
    for name, mine, theirs in zip(tripled._fields, tripled, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, err_msg=name)
    assert set(seen) == {float(np.float32(1e-3))}


def test_other_costs_compile_nothing_new():
    track, config = random_track(7, 21), simple_rules()
    simulator = Simulator(Policy(params=jnp.eye(3)[2], apply=Constant()), track, config)
    simulator.run()
    before = module._loop._cache_size()
    assert simulator.run(5.0).fee.sum() == pytest.approx(5 * simulator.run().fee.sum())
    assert module._loop._cache_size() == before


def test_a_relay_hands_one_account_on_without_a_trade(run):
    config, track, trace = run
    again = simulate(Relay([linear(weights_of(2))] * 3, [250, 149, 300]), track, config)
    for name, mine, theirs in zip(trace._fields, again, trace, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-9, err_msg=name)


def test_each_policy_of_a_relay_trades_its_own_bars():
    always = lambda action: lambda obs: np.eye(3)[[action]]  # noqa: E731
    trace = simulate(Relay([always(2), always(1), always(0)], [3, 4, 2]), random_track(3, 10), simple_rules())
    assert trace.action.tolist() == [2] * 3 + [1] * 4 + [0] * 2


def test_a_relay_that_does_not_fill_the_range_is_refused():
    with pytest.raises(ValueError, match=r"2 policies take turns of \[3, 5\] bars, but the range has 9 steps"):
        simulate(Relay([lambda obs: obs[:, :3]] * 2, [3, 5]), random_track(3, 10), simple_rules())


def test_a_replay_of_the_actions_is_the_run(run):
    config, track, trace = run
    for name, mine, theirs in zip(trace._fields, replay(trace.action, track, config), trace, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-9, err_msg=name)


def test_a_replay_leaves_the_position_where_there_is_no_action():
    trace = replay(np.array([2, NOTHING, NOTHING, 0]), random_track(3, 5), simple_rules())
    assert np.flatnonzero(trace.units).tolist() == [0, 3]
    assert trace.action.tolist() == [2, NOTHING, NOTHING, 0]


def test_a_barrier_goes_on_across_a_renewal():
    # bought at 100 on bar 0 and held: 3 bars later the barrier expires below its entry, though the episode began anew on bar 2
    rules = simple_rules(sizing="units", barrier_max_bars=3, episode_length=2)
    trace = replay(np.array([2, 2, 2, 2, 2]), track_of([100.0, 100.5, 99.0, 99.5, 99.0, 99.0]), rules)
    assert trace.barrier_label.tolist() == [0, 0, -1, 0, 0]


def test_the_base_of_the_reward_is_the_log_return_of_the_equity_after_costs():
    rules = simple_rules(reward_base="equity", episode_length=7)
    track = random_track(4, 30)
    trace = replay(np.random.default_rng(1).integers(0, 3, 29), track, rules)
    equity = book(trace.fills, track.close, 1000.0).equity
    np.testing.assert_allclose(trace.base, 1000 * np.diff(np.log(equity)), rtol=1e-9, atol=1e-9)
