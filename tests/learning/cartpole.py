"""CartPole as a pure function (Barto, Sutton, Anderson 1983; constants as in Gymnasium's CartPole-v1), batched over episodes."""

from __future__ import annotations

import jax
import jax.numpy as jnp

GRAVITY, CART, POLE, HALF_LENGTH, FORCE, STEP = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
MAX_POSITION, MAX_ANGLE, MAX_STEPS = 2.4, 12 * 2 * jnp.pi / 360, 500


def reset(key: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
    """States `[n, 4]` (position, speed, angle, angular speed) and steps `[n]`."""
    return jax.random.uniform(key, (n, 4), minval=-0.05, maxval=0.05), jnp.zeros(n, jnp.int32)


def step(state: jax.Array, steps: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """The next state and steps, terminated and truncated; the reward is always 1."""
    x, v, angle, spin = state.T
    force = jnp.where(action == 1, FORCE, -FORCE)
    total = CART + POLE
    pushed = (force + POLE * HALF_LENGTH * spin**2 * jnp.sin(angle)) / total
    inertia = HALF_LENGTH * (4.0 / 3.0 - POLE * jnp.cos(angle) ** 2 / total)
    angular = (GRAVITY * jnp.sin(angle) - jnp.cos(angle) * pushed) / inertia
    linear = pushed - POLE * HALF_LENGTH * angular * jnp.cos(angle) / total
    after = jnp.stack([x + STEP * v, v + STEP * linear, angle + STEP * spin, spin + STEP * angular], axis=1)
    terminated = (jnp.abs(after[:, 0]) > MAX_POSITION) | (jnp.abs(after[:, 2]) > MAX_ANGLE)
    return after, steps + 1, terminated, (steps + 1 >= MAX_STEPS) & ~terminated
