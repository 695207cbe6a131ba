"""What a policy was trained on, as far as its use depends on it: the account's rules, the features and the bars' steps in time."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Self

import numpy as np

from jaxrl_trade.config import EnvConfig
from jaxrl_trade.market import Market

if TYPE_CHECKING:
    from jaxrl_trade.bars import FeatureFunction


@dataclasses.dataclass(frozen=True, kw_only=True)
class Origin:
    """Of one policy.

    Attributes:
      env: the account's rules.
      n_features: F.
      feature_names: F names, or none.
      features_by: the function of bars that made them; None is the package's own, where the names are.
      steps: minutes from bar to bar that occurred, the most frequent first (it is the bar size); empty where they are not known.
    """

    env: EnvConfig
    n_features: int
    feature_names: tuple[str, ...]
    steps: tuple[int, ...]
    features_by: FeatureFunction | None = None

    @classmethod
    def of_market(cls, market: Market, env: EnvConfig) -> Self:
        """The origin of a policy trained on a market."""
        return cls(
            env=env,
            n_features=market.n_features,
            feature_names=tuple(market.feature_names),
            steps=steps_of(market),
            features_by=market.features_by,
        )


def steps_of(market: Market) -> tuple[int, ...]:
    """Minutes from bar to bar, the most frequent first; none where the market knows no times, or bars shorter than a minute.

    Of a single instrument all bars count, those outside the split too: when a market closes is no secret of its future.
    """
    time, segments = np.asarray(market.time, np.int64), np.asarray(market.segments)
    parts = [time] if len(segments) == 1 else [time[first : last + 1] for first, last in segments]
    steps, counts = np.unique(np.concatenate([np.diff(part) for part in parts]), return_counts=True)
    if time.min() == 0 or not len(steps):  # bars numbered from 0, not times
        return ()
    ordered = steps[np.argsort(-counts, kind="stable")]
    return () if ordered[0] == 0 else tuple(int(step) for step in ordered)
