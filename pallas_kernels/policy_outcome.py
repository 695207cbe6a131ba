"""What a policy loss gives."""

from typing import Any, NamedTuple


class PolicyLoss(NamedTuple):
    """Scalars of a batch: the loss, and what it measures on the way.

    entropy: mean, nats. kl: mean r - 1 - ln r, an estimate of KL(old || new), nats. clip_fraction: share of rows with
    |r - 1| > clip. ratio_deviation: largest |r - 1|.
    """

    loss: Any
    entropy: Any
    kl: Any
    clip_fraction: Any
    ratio_deviation: Any
