"""Where the stretches of a walk-forward lie.

    fold 1   [ train ][gap][validation][gap][ test ]
    fold 2           [ train ][gap][validation][gap][ test ]
    fold 3                   [ train ][gap][validation][gap][ test ]

Every fold has the same lengths, so one compiled program serves all; the test stretches follow one another without a gap.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

VALIDATION = 0.15 / 0.7  # of the training bars, as in a run of its own


class Stretch(NamedTuple):
    """Bars [first, end); positions in `bars.frame` where nothing else is said."""

    first: int
    end: int

    def moved(self, bars: int) -> Stretch:
        """The same, so many bars later."""
        return Stretch(self.first + bars, self.end + bars)


@dataclasses.dataclass(frozen=True)
class Fold:
    """The stretches of one fold."""

    train: Stretch
    validation: Stretch
    test: Stretch  # decisions; the bar at its end marks the last of them


def plan_folds(n_bars: int, warmup: int, folds: int, out_of_sample: float, embargo: int) -> tuple[Fold, ...]:
    """The folds of a file.

    Args:
      n_bars: of the file.
      warmup: of them, which have no features yet.
      folds: test stretches, of one length.
      out_of_sample: fraction of the bars with features that all test stretches together take.
      embargo: bars between the stretches of a fold.
    Raises:
      ValueError: arguments out of range, or too few bars.
    """
    if not isinstance(folds, int) or isinstance(folds, bool) or folds < 1:
        raise ValueError(f"folds = {folds!r} must be a whole number of at least 1")
    if not 0 < out_of_sample < 1:
        raise ValueError(f"out_of_sample = {out_of_sample!r} must be a fraction of the bars, above 0 and below 1")
    if embargo < 0:
        raise ValueError(f"embargo = {embargo} must be 0 bars or more")
    n = n_bars - warmup
    test = int(n * out_of_sample) // folds
    before = n - folds * test - 2 * embargo - 1
    validation = round(before * VALIDATION / (1 + VALIDATION))
    if test < 2 or validation < 2:
        raise ValueError(
            f"{n_bars:,} bars are too few for {folds} folds: of {max(n, 0):,} with features, gaps of {embargo} and "
            f"{out_of_sample:.0%} to test on leave {max(before, 0):,} to train on; bring more bars, or ask for fewer folds"
        )
    first = Fold(
        train=Stretch(0, before - validation),
        validation=Stretch(before - validation + embargo, before + embargo),
        test=Stretch(before + 2 * embargo, before + 2 * embargo + test),
    )
    stretches = vars(first).items()
    return tuple(Fold(**{name: s.moved(warmup + k * test) for name, s in stretches}) for k in range(folds))
