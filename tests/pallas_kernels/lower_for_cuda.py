"""Lowers every kernel for CUDA on any machine: the Triton IR is built and verified, nothing runs.

`python -m tests.pallas_kernels.lower_for_cuda` prints one line a kernel. A process of its own, because a wrong shape
can end it. JAX 0.10 assumes compute capability 9.0 where no GPU is; from 0.11 on an abstract device has to say so.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp

from pallas_kernels import backend
from tests.pallas_kernels import cases, walk


def abstract_h200() -> contextlib.AbstractContextManager:
    from jax.sharding import AbstractMesh

    try:
        from jax.sharding import AbstractDevice, use_abstract_mesh
    except ImportError:  # JAX 0.10
        return contextlib.nullcontext()
    try:
        mesh = AbstractMesh((), (), abstract_device=AbstractDevice("NVIDIA H200", 1, "cuda"))
    except TypeError:
        return contextlib.nullcontext()
    return use_abstract_mesh(mesh)


def kernels() -> Iterator[tuple[str, Callable, tuple]]:
    """Name, function and arguments: the public functions with the backend taken for compiled."""
    import pallas_kernels as pk

    for actions, batch, hidden, one_array in ((11, 100, 128, True), (45, 70_000, 128, False), (64, 33, 96, False)):
        b = cases.random_batch(actions, batch, hidden=hidden)
        rest = (b.target_params, *b.th, b.actions, b.rewards, b.discounts, b.weights)

        def loss(params, h_v, h_a, tp, th_v, th_a, *vectors, one_array=one_array):
            th = (th_a, th_a) if one_array else (th_v, th_a)
            h = (h_a, h_a) if one_array else (h_v, h_a)
            return pk.dueling_q_td_loss(params, tp, *h, *th, *vectors, backend="pallas")

        name = f"A={actions} B={batch} H={hidden}"
        yield f"td_loss {name}", jax.value_and_grad(loss, (0, 1, 2), has_aux=True), (b.params, *b.h, *rest)
    b = cases.random_batch(45, 100)
    heads = [b.params[key] for key in ("w_v", "b_v", "w_a", "b_a")]
    q = jnp.zeros((100, 45))

    def given(params, h, actions, targets):
        return pk.dueling_q_td_loss(
            params, None, h, h, None, None, actions, None, None, targets=targets, backend="pallas"
        )

    yield "td_loss with targets", jax.grad(given, has_aux=True), (b.params, b.h[0], b.actions, b.rewards)
    batched = jax.vmap(jax.grad(given, has_aux=True), (None, 0, 0, 0))
    stacked = jax.tree.map(lambda x: jnp.stack([x, x]), (b.h[0], b.actions, b.rewards))
    yield "td_loss under vmap", batched, (b.params, *stacked)
    half = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), (b.params, b.h[0]))
    yield "td_loss in bfloat16", jax.grad(given, has_aux=True), (*half, b.actions, b.rewards)
    yield "dueling_q", lambda *args: pk.dueling_q(*args, backend="pallas"), (*b.h, *heads)
    yield (
        "dueling_q_backward",
        lambda *args: pk.dueling_q_backward(*args, backend="pallas"),
        (*b.h, heads[0], heads[2], q),
    )
    yield "bellman_target", lambda *args: pk.bellman_target(*args, backend="pallas"), (q, b.rewards, b.discounts, q)
    yield (
        "huber_td_loss",
        lambda *args: pk.huber_td_loss(*args, backend="pallas"),
        (q, b.actions, b.rewards),
    )
    yield from perceptrons()
    yield from collections()


def perceptrons() -> Iterator[tuple[str, Callable, tuple]]:
    """The critic and the actor: forward, and the gradients at the layers."""
    import pallas_kernels as pk

    table, values = jnp.zeros((1000, 51)), jnp.zeros((128_000, 3))
    row = jnp.zeros(128_000, jnp.int32)
    for name, sizes in (("critic", (54, 512, 384, 256, 128, 64, 1)), ("actor", (54, 128, 64, 45))):
        layers = [(jnp.zeros((a, b)), jnp.zeros(b)) for a, b in itertools.pairwise(sizes)]
        for products, batch in (("bfloat16", 128_000), ("bfloat16", 1_001), ("tf32", 128_000)):

            def total(layers, *inputs, products=products):
                return jnp.sum(pk.mlp(layers, pk.Gathered(*inputs), products=products, backend="pallas"))

            arguments = (layers, table, row[:batch], values[:batch])
            yield f"mlp {name} {products} B={batch}", total, arguments
            yield f"mlp {name} {products} B={batch} gradients", jax.grad(total), arguments
    stacked = jax.tree.map(lambda x: jnp.stack([x, x]), layers)
    gradient = jax.grad(functools.partial(total, products="bfloat16"))
    yield "mlp under vmap", jax.vmap(gradient, (0, None, None, None)), (stacked, table, row, values)


def hoppers() -> Iterator[tuple[str, Callable, tuple]]:
    """What goes other ways on a Hopper GPU."""
    for name, function, arguments in (*perceptrons(), *policy_losses()):
        if "bfloat16" in name or "vmap" in name or "policy" in name:
            yield f"{name} on Hopper", function, arguments


def collections() -> Iterator[tuple[str, Callable, tuple]]:
    """Rollouts of the account in the tiles that are in use, and the passes after them."""
    import pallas_kernels as pk

    for lanes, products in ((128, "float32"), *itertools.product((1000, 8192), ("float32", "tf32", "bfloat16"))):
        yield f"rollout net {products} N={lanes}", *account_rollout("net", lanes, products)
    for products in ("tf32", "bfloat16"):
        yield f"rollout net {products} N=32768", *account_rollout("net", 32768, products)
    yield "rollout plan float32 N=128", *account_rollout("plan", 128, "float32")
    yield "rollout plan bfloat16 N=1001", *account_rollout("plan", 1001, "bfloat16")
    dqn = {"hidden": (256, 256, 128), "choice": "greedy"}
    for preset, products, lanes in (
        ("plan", "float32", 1000),
        ("plan", "tf32", 1000),
        ("plan", "bfloat16", 1000),
        ("net", "tf32", 8192),
        ("net", "bfloat16", 8192),
    ):
        yield f"rollout dqn {preset} {products} N={lanes}", *account_rollout(preset, lanes, products, **dqn)
    function, (policy, *rest, draws, restarts) = account_rollout("net", 128, "float32")
    yield "rollout of forced actions", function, (policy, *rest, draws.astype(jnp.int32), restarts)
    stacked = jax.tree.map(lambda x: jnp.stack([x, x]), policy)
    over_seeds = jax.vmap(function, (0, *[None] * 5))
    yield "rollout under vmap", over_seeds, (stacked, *rest, draws, restarts)
    # odd widths, bools in tables and record; a tile of one lane and of eight
    for choice, lanes in itertools.product(("softmax", "greedy"), (2, 265)):
        one_walk = functools.partial(walk.run, backend="pallas", products="float32", choice=choice)
        arguments = walk.random_walk((40, 12, 5), lanes, 20, choice=choice).arguments()
        yield f"rollout of a {choice} walk N={lanes}", one_walk, arguments
    for lanes in (2, 265):
        arguments = walk.random_walk((16, 5), lanes, 20).arguments()
        yield f"rollout of an environment of constants N={lanes}", constant_walk, arguments
    steps = jnp.zeros((500, 128))
    history, ages = jnp.zeros((600, 128), jnp.int32), jnp.zeros((500, 128), jnp.int32)
    yield "windowed_entropy", lambda *args: pk.windowed_entropy(*args, 45, "pallas"), (history, ages)
    yield "discounted_sums", lambda *args: pk.discounted_sums(*args, "pallas"), (steps, steps)

    def policy_loss(logits, actions, log_probs, advantages):
        return pk.clipped_policy_loss(logits, actions, log_probs, advantages, 0.2, 0.01, backend="pallas").loss

    rows = jnp.zeros(1000)
    yield "clipped_policy_loss", jax.grad(policy_loss), (jnp.zeros((1000, 45)), rows.astype(jnp.int32), rows, rows)
    yield from policy_losses()


def constant_walk(*arguments):
    import pallas_kernels as pk

    settings = {"negative_slope": walk.SLOPE, "products": "float32", "backend": "pallas"}
    return pk.rollout(walk.OF_CONSTANTS, *arguments, **settings)


def with_64_bits() -> Iterator[tuple[str, Callable, tuple]]:
    """What had 64 bits under jax_enable_x64, where kernels keep 32."""
    import pallas_kernels as pk

    q, rows = jnp.zeros((100, 45), jnp.float32), jnp.zeros(100, jnp.float32)
    yield "bellman_target with x64", lambda *args: pk.bellman_target(*args, backend="pallas"), (q, rows, rows, q)
    one_walk = functools.partial(walk.run, backend="pallas", products="float32", choice="greedy")
    yield "rollout with x64", one_walk, walk.random_walk((16, 5), 2, 20, choice="greedy").arguments()
    *_, (name, function, arguments) = policy_losses()
    floats = jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.float64 else x, arguments)
    yield f"{name} with x64", function, floats


def policy_losses() -> Iterator[tuple[str, Callable, tuple]]:
    """The actor's loss and gradients in one pass."""
    import pallas_kernels as pk

    actor = [(jnp.zeros((a, b)), jnp.zeros(b)) for a, b in itertools.pairwise((54, 128, 64, 45))]

    def loss_of_actor(layers, table, actions, values, log_probs):
        inputs = pk.Gathered(table, actions, values)
        return pk.mlp_policy_loss(layers, inputs, actions, log_probs, log_probs, 0.2, 0.01, backend="pallas").loss

    for batch in (1000, 128_000):
        rows = jnp.zeros(batch)
        arguments = (actor, jnp.zeros((500, 51)), rows.astype(jnp.int32), jnp.zeros((batch, 3)), rows)
        yield f"mlp_policy_loss B={batch}", jax.grad(loss_of_actor), arguments


def account_rollout(
    preset: str, lanes: int, products: str, hidden: tuple[int, ...] = (128, 64), choice: str = "softmax"
) -> tuple[Callable, tuple]:
    """500 steps of a network on 1,000 bars; the account is the caller's, so the kernels do not import it."""
    import jaxrl_trade as jt
    import pallas_kernels as pk
    from jaxrl_trade.rollout import lanes as account

    config = jt.EnvConfig.net() if preset == "net" else jt.EnvConfig()
    bars, length = 1000, 500
    widths = (*hidden, config.n_actions)
    layers = tuple(pk.Layer(jnp.zeros((a, b)), jnp.zeros(b)) for a, b in itertools.pairwise(widths))
    policy = pk.SplitPolicy(jnp.zeros((bars, widths[0])), jnp.zeros((2, widths[0])), layers)
    prices = account.Prices(*[jnp.ones(bars)] * 4)
    start = jt.env.account.fresh(jnp.zeros(lanes, jnp.int32), jnp.ones(lanes), config)
    restarts = jnp.zeros((length, lanes), jnp.int32)
    draws = restarts if choice == "greedy" else jnp.zeros((length, lanes))
    settings = {"negative_slope": 0.01, "choice": choice, "products": products, "backend": "pallas"}

    def function(*arguments):
        return pk.rollout(account.environment(config), *arguments, **settings)

    return function, (policy, prices, config.execution.arrays(), start, draws, restarts)


def main() -> None:
    for capability, chosen in ((8.0, kernels), (9.0, hoppers)):
        backend.capability = lambda capability=capability: capability
        lower(chosen(), has_mosaic=capability == 9.0)
    with jax.enable_x64(True):
        lower(with_64_bits(), has_mosaic=True)


def lower(chosen: Iterator[tuple[str, Callable, tuple]], *, has_mosaic: bool) -> None:
    for name, function, arguments in chosen:
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), arguments)
        with abstract_h200():
            text = jax.jit(function).trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()
        triton, mosaic = (text.count(f"custom_call @{target}") for target in ("__gpu$xla.gpu.triton", "mosaic_gpu"))
        assert triton + mosaic > 0, name
        assert has_mosaic or not mosaic, name
        print(f"lowered {name}: {triton} launches" + (f" and {mosaic} of Hopper's" if mosaic else ""), flush=True)


if __name__ == "__main__":
    main()
