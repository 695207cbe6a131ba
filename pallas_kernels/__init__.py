"""Fused GPU kernels for dueling Q-learning, each with a plain jax.numpy contract in `pallas_kernels.reference`.

Arrays in, arrays out: knows nothing of trading. Every function takes `backend`: "auto" (compiled on a GPU where that
was measured faster, else XLA), "pallas" (compiled; an error without a GPU), "interpret" (the same kernel, slowly,
anywhere) or "xla" (the contract itself, which alone has jvp and second derivatives).
"""

from pallas_kernels.dueling_q import dueling_q, dueling_q_backward
from pallas_kernels.dueling_td import dueling_q_td_loss
from pallas_kernels.heads import DuelingGradients, Heads
from pallas_kernels.mlp import mlp
from pallas_kernels.mlp_inputs import Gathered
from pallas_kernels.td import bellman_target, huber_td_loss

__all__ = [
    "DuelingGradients",
    "Gathered",
    "Heads",
    "bellman_target",
    "dueling_q",
    "dueling_q_backward",
    "dueling_q_td_loss",
    "huber_td_loss",
    "mlp",
]
