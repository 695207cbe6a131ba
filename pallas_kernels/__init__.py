"""GPU kernels for rollouts, perceptrons, PPO's loss and dueling Q-learning, each beside a plain contract.

Contracts are in `pallas_kernels.reference`, that of `rollout` in `rollout_scan`.

Arrays in, arrays out: knows nothing of trading. Every function takes `backend`: "auto" (compiled on a GPU where that
was measured faster, else XLA), "pallas" (compiled; an error without a GPU), "interpret" (the same kernel, slowly,
anywhere) or "xla" (the contract itself, which alone has jvp and second derivatives).
"""

from pallas_kernels.backend import resolve
from pallas_kernels.dueling_q import dueling_q, dueling_q_backward
from pallas_kernels.dueling_td import dueling_q_td_loss
from pallas_kernels.entropy import windowed_entropy
from pallas_kernels.heads import DuelingGradients, Heads
from pallas_kernels.mlp import mlp, mlp_mode
from pallas_kernels.mlp_inputs import Gathered
from pallas_kernels.mlp_policy_loss import mlp_policy_loss, mlp_policy_loss_mode
from pallas_kernels.policy_loss import clipped_policy_loss
from pallas_kernels.policy_outcome import PolicyLoss
from pallas_kernels.recurrence import discounted_sums
from pallas_kernels.rollout import obstacle as rollout_obstacle
from pallas_kernels.rollout import rollout
from pallas_kernels.rollout_scan import Choice, Environment, Layer, SplitPolicy, Steps, scan_rollout
from pallas_kernels.sampling import forced, log_prob, sample
from pallas_kernels.td import bellman_target, huber_td_loss

__all__ = [
    "Choice",
    "DuelingGradients",
    "Environment",
    "Gathered",
    "Heads",
    "Layer",
    "PolicyLoss",
    "SplitPolicy",
    "Steps",
    "bellman_target",
    "clipped_policy_loss",
    "discounted_sums",
    "dueling_q",
    "dueling_q_backward",
    "dueling_q_td_loss",
    "forced",
    "huber_td_loss",
    "log_prob",
    "mlp",
    "mlp_mode",
    "mlp_policy_loss",
    "mlp_policy_loss_mode",
    "resolve",
    "rollout",
    "rollout_obstacle",
    "sample",
    "scan_rollout",
    "windowed_entropy",
]
