"""What the updates share: means over chunks of rows, and the order of minibatches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_trade.agents import optimisation


@pytest.mark.parametrize(("n_rows", "chunk"), [(12, 4), (12, 5), (13, 4), (3, 4)])  # 13 has no divisor: all at once
def test_a_mean_in_chunks_is_the_mean_of_all_rows(n_rows: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimisation, "CPU_ROWS", chunk)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    x = np.random.default_rng(0).normal(size=(n_rows, 2))
    seen = []

    def means(x: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
        seen.append(len(x))
        return {"x": x.mean(0), "product": (x[:, 0] * y).mean()}

    found = optimisation.mean_in_chunks(means, jnp.asarray(x), jnp.arange(n_rows))
    np.testing.assert_allclose(found["x"], x.mean(0), rtol=1e-5)
    np.testing.assert_allclose(found["product"], (x[:, 0] * np.arange(n_rows)).mean(), rtol=1e-5)
    assert seen[-1] < 2 * chunk or n_rows == 13


def test_rows_are_shuffled_alike_whatever_their_numbers() -> None:
    n, keys = 12, jax.random.split(jax.random.key(0), 4000)
    orders = np.asarray(jax.jit(jax.vmap(lambda key: optimisation.shuffle(key, n, 3)))(keys))
    assert (np.sort(orders.reshape(-1, n)) == np.arange(n)).all()
    batch = np.argsort(orders.reshape(-1, n)) // 4  # of every row
    deviations = 4.5  # of the mean of 4,000 draws: one in 10^5 for each of the 48 means below
    for k in range(3):
        np.testing.assert_allclose((batch == k).mean(0), 1 / 3, atol=deviations * (2 / 9 / len(keys)) ** 0.5)
    together = (batch[:, 1:] == batch[:, :-1]).mean(0)  # neighbours: 3 of the 11 others share a row's minibatch
    np.testing.assert_allclose(together, 3 / 11, atol=deviations * (24 / 121 / len(keys)) ** 0.5)


def test_many_rows_are_all_there_once_with_few_random_bits() -> None:
    n = 2**18 + 2  # 19 bits of the word are the row's number, 13 are random
    order = np.asarray(optimisation.shuffle(jax.random.key(0), n, 2))
    assert (np.sort(order.ravel()) == np.arange(n)).all()
    # the half a row is in has a mean of 1/2 over the rows of every stretch
    first = np.zeros(n)
    first[order[0]] = 1
    stretches = first[: 2**18].reshape(256, 1024).mean(1)
    np.testing.assert_allclose(stretches, 0.5, atol=4.5 * (0.25 / 1024) ** 0.5)
