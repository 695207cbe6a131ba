"""The contract of every kernel: the same functions in plain jax.numpy, differentiable as often as one likes.

Shapes: B samples, H hidden units, A actions. Hidden rows h_v, h_a `[B, H]` (they may be one array); value head
w_v `[H]`, b_v `[]`; advantage head w_a `[H, A]`, b_a `[A]` (Wang et al. 2016, arXiv:1511.06581, equation 9).
Matrix products have JAX's current default precision: on Hopper GPUs that is TF32 unless one asks for more.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.heads import Array, DuelingGradients, Heads, as_heads
from pallas_kernels.mlp_inputs import Gathered, Products
from pallas_kernels.policy_outcome import PolicyLoss

UNROLL = 16  # steps of a scan per loop iteration


def dueling_q(h_v: Array, h_a: Array, w_v: Array, b_v: Array, w_a: Array, b_a: Array) -> Array:
    """Q-values `[B, A]`.

        V = h_v w_v + b_v,   A = h_a w_a + b_a,   Q[b, a] = V[b] + A[b, a] - mean_a A[b, a]

    The arithmetic and the result are float32 where the inputs are bfloat16.
    """
    h_v, h_a, w_v, b_v, w_a, b_a = map(_widen, (h_v, h_a, w_v, b_v, w_a, b_a))
    advantage = h_a @ w_a + b_a
    return (h_v @ w_v + b_v)[:, None] + advantage - jnp.mean(advantage, axis=1, keepdims=True)


def dueling_q_backward(h_v: Array, h_a: Array, w_v: Array, w_a: Array, grad_q: Array) -> DuelingGradients:
    """Gradients of sum(grad_q * Q), for any grad_q `[B, A]`, reduced over the batch.

        grad_V = sum_a grad_Q,   grad_A = grad_Q - mean_a grad_Q
        grad_w_v = sum_b grad_V h_v,   grad_w_a = sum_b h_a (x) grad_A,   grad_b_v, grad_b_a likewise
        grad_h_v = grad_V w_v,   grad_h_a = w_a grad_A

    Where h_v and h_a are one array, its gradient is the sum of the two.
    """
    grad_v, grad_a = _decompose(grad_q)
    h_v32, h_a32, w_v32, w_a32 = map(_widen, (h_v, h_a, w_v, w_a))
    return DuelingGradients(
        w_v=(grad_v @ h_v32).astype(w_v.dtype),
        b_v=jnp.sum(grad_v).astype(w_v.dtype),
        w_a=(h_a32.T @ grad_a).astype(w_a.dtype),
        b_a=jnp.sum(grad_a, axis=0).astype(w_a.dtype),
        h_v=(grad_v[:, None] * w_v32).astype(h_v.dtype),
        h_a=(grad_a @ w_a32.T).astype(h_a.dtype),
    )


def dueling_q_backward_per_sample(h_v: Array, h_a: Array, w_v: Array, w_a: Array, grad_q: Array) -> DuelingGradients:
    """`dueling_q_backward` before the sum over the batch: the weights' gradients are `[B, H]`, `[B]`, `[B, H, A]`, `[B, A]`.

    1.5 GB at B = 65,536 and A = 45, which is why no kernel forms them; a test sums them.
    """
    grad_v, grad_a = _decompose(grad_q)
    return DuelingGradients(
        w_v=grad_v[:, None] * h_v,
        b_v=grad_v,
        w_a=h_a[:, :, None] * grad_a[:, None, :],
        b_a=grad_a,
        h_v=grad_v[:, None] * w_v,
        h_a=grad_a @ w_a.T,
    )


def bellman_target(target_q: Array, rewards: Array, discounts: Array, online_q: Array | None = None) -> Array:
    """Targets `[B]`, without a gradient.

        y = r + discount max_a target_q[a],   or with online_q   y = r + discount target_q[argmax_a online_q[a]]

    The second is double Q-learning (van Hasselt et al. 2016, arXiv:1509.06461); of equal maxima the first counts.

    Args:
      target_q: `[B, A]`, the target network at the next observation.
      rewards: `[B]`, the bundled reward of m steps.
      discounts: `[B]`, gamma^m, 0 where the episode terminated.
      online_q: `[B, A]`, the online network at the next observation.
    """
    target_q, rewards, discounts = map(_widen, (target_q, rewards, discounts))
    if online_q is None:
        best = jnp.max(target_q, axis=1)
    else:
        best = jnp.take_along_axis(target_q, jnp.argmax(online_q, axis=1)[:, None], axis=1)[:, 0]
    return jax.lax.stop_gradient(rewards + discounts * best)


def huber_td_loss(
    q: Array, actions: Array, targets: Array, delta: float = 1.0, weights: Array | None = None
) -> tuple[Array, Array]:
    """Weighted Huber loss of the TD error, per sample; differentiable in q at the taken action alone.

        e = q[b, a_b] - y_b,   loss = w (e^2 / 2 if |e| <= delta else delta (|e| - delta / 2))

    Returns:
      loss `[B]`; td_error `[B]`, e without a gradient.
    """
    q, targets = _widen(q), jax.lax.stop_gradient(_widen(targets))
    actions = jnp.clip(actions, 0, q.shape[1] - 1)
    error = jnp.take_along_axis(q, actions[:, None], axis=1)[:, 0] - targets
    size = jnp.abs(error)
    quadratic = jnp.minimum(size, delta)  # quadratic + linear part: one gradient at the kink, not two
    loss = 0.5 * quadratic**2 + delta * (size - quadratic)
    if weights is not None:
        loss = loss * jax.lax.stop_gradient(_widen(weights))
    return loss, jax.lax.stop_gradient(error)


def dueling_q_td_loss(
    params: Any,
    target_params: Any,
    h_v: Array,
    h_a: Array,
    th_v: Array | None,
    th_a: Array | None,
    actions: Array,
    rewards: Array | None,
    discounts: Array | None,
    weights: Array | None = None,
    delta: float = 1.0,
    targets: Array | None = None,
) -> tuple[Array, Array]:
    """Mean weighted Huber loss `[]` and td_error `[B]` of the dueling heads; differentiable in params, h_v and h_a.

    The three functions above in a row. With `targets` given the target half is skipped, and target_params, th_v,
    th_a, rewards and discounts may be None.
    """
    q = dueling_q(h_v, h_a, *as_heads(params, "params"))
    if targets is None:
        heads = Heads(*as_heads(target_params, "target_params"))
        targets = bellman_target(dueling_q(th_v, th_a, *heads), rewards, discounts)  # type: ignore[arg-type]
    loss, error = huber_td_loss(q, actions, targets, delta, weights)
    return jnp.mean(loss), error


def mlp(
    layers: Sequence[tuple[Array, Array]], inputs: Array | Gathered, *, negative_slope: float, products: Products
) -> Array:
    """Outputs `[B, O]` of dense layers `(kernel [in, out], bias [out])` with leaky ReLU between them.

        z_l = a_l W_l + b_l,   a_{l+1} = z_l where z_l > 0, else negative_slope z_l;   y = z_{n-1}

    Both operands of every product are rounded to bfloat16 if products is "bfloat16"; sums are float32.
    """
    a = _widen(inputs.formed() if isinstance(inputs, Gathered) else inputs)
    for i, (kernel, bias) in enumerate(layers):
        a = a if i == 0 else jnp.where(a > 0, a, negative_slope * a)
        a = _rounded_product(a, kernel, products) + _widen(bias)
    return a


def _rounded_product(x: Array, w: Array, products: Products) -> Array:
    if products == "tf32":
        return x @ _widen(w)
    return jnp.dot(x.astype(jnp.bfloat16), w.astype(jnp.bfloat16), preferred_element_type=jnp.float32)


def _decompose(grad_q: Array) -> tuple[Array, Array]:
    grad_q = _widen(grad_q)
    return jnp.sum(grad_q, axis=1), grad_q - jnp.mean(grad_q, axis=1, keepdims=True)


def _widen(x: Array) -> Array:
    return jnp.asarray(x).astype(jnp.promote_types(x.dtype, jnp.float32))


def discounted_sums(x: Array, discounts: Array) -> Array:
    """Sums y `[L, N]`, y_t = x_t + discounts_t y_{t+1}, y_L = 0."""

    def backward(y: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        y = step[0] + step[1] * y
        return y, y

    return jax.lax.scan(backward, jnp.zeros_like(x[0]), (x, discounts), reverse=True, unroll=UNROLL)[1]


def windowed_entropy(history: Array, steps: Array, n_symbols: int, dtype: Any = jnp.float32) -> Array:
    """Entropy `[L, N]`, nats, of the latest n = min(steps + 1, W) symbols: -sum p ln p, p = counts / n.

    Args:
      history: `[W + L, N]` int32, the W symbols before the first step, then each step's own.
      steps: `[L, N]` int32, symbols of the lane's episode before this one.
      n_symbols: how many there are.
      dtype: of the result.
    """
    window = len(history) - len(steps)
    is_known = jnp.arange(window)[:, None] >= window - steps[0]
    counts = ((history[:window, :, None] == jnp.arange(n_symbols)) & is_known[..., None]).sum(0)

    def count(counts: Array, inputs: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        entering, leaving, step = inputs
        counts = jnp.where((step == 0)[:, None], 0, counts)
        counts = counts + (entering[:, None] == jnp.arange(n_symbols))
        counts = counts - ((leaving[:, None] == jnp.arange(n_symbols)) & (step >= window)[:, None])
        p = counts.astype(dtype) / jnp.minimum(step + 1, window)[:, None].astype(dtype)
        return counts, -jnp.sum(jnp.where(counts > 0, p * jnp.log(jnp.where(counts > 0, p, 1.0)), 0.0), axis=-1)

    return jax.lax.scan(count, counts, (history[window:], history[:-window], steps))[1]


def clipped_policy_loss(
    logits: Array,
    actions: Array,
    log_probs: Array,
    advantages: Array,
    clip: Array | float,
    entropy_coef: Array | float,
) -> PolicyLoss:
    """PPO's loss (Schulman et al. 2017, arXiv:1707.06347, equation 7) minus an entropy bonus.

        mean(-min(r A, clip(r, 1 - clip, 1 + clip) A)) - entropy_coef mean(H),   r = p[a] / p_old[a],  H = -sum p ln p

    Args:
      logits: `[B, A]`.
      actions, log_probs, advantages: `[B]`; log_probs are ln p_old[a].
      clip, entropy_coef: scalars.
    """
    log_p = jax.nn.log_softmax(logits)
    taken = actions[:, None] == jnp.arange(logits.shape[1])  # a gather's derivative would be a scatter
    log_ratio = jnp.sum(jnp.where(taken, log_p, 0.0), axis=-1) - log_probs
    ratio = jnp.exp(log_ratio)
    surrogate = jnp.minimum(ratio * advantages, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantages)
    entropy = -jnp.sum(jnp.exp(log_p) * log_p, axis=-1).mean()
    measures = (
        entropy,
        jnp.mean(ratio - 1.0 - log_ratio),
        jnp.mean(jnp.abs(ratio - 1.0) > clip, dtype=ratio.dtype),
        jnp.max(jnp.abs(ratio - 1.0)),
    )
    return PolicyLoss(-surrogate.mean() - entropy_coef * entropy, *jax.lax.stop_gradient(measures))
