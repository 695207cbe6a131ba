"""How a rollout is cut for its kernel: lanes a block, and which weights stay on chip."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Literal

from pallas_kernels.rollout_scan import Choice, Environment

Products = Literal["float32", "tf32", "bfloat16"]
_BYTES = {"float32": 6, "tf32": 4, "bfloat16": 2}  # of a weight as it is multiplied; float32 as three bfloat16 terms
_RESERVE = 4096  # bytes, for what the compiler lays out anew


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiles:
    """How the lanes are cut: lanes a block, warps a block, columns of the first layer a piece (lanes > 1).

    chunk: of a wide network, the inputs of a layer at a time; None is a small one, all of whose weights stay on chip.
    held: of a wide network's layers, how many stay on chip, the last ones first; the others are read in every step.
    stages: chunks on their way to the multiprocessor at once.
    """

    lanes: int
    warps: int
    columns: int = 128
    chunk: int | None = None
    held: int = 0
    stages: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Static:
    """What is compiled in."""

    environment: Environment
    choice: Choice
    negative_slope: float
    products: Products
    tiles: Tiles
    interpret: bool


def choose_tiles(n_lanes: int, products: Products, copies: int = 1) -> Tiles:
    """The fastest measured on an H200 (scripts/benchmark.py); every choice gives a right answer.

    copies: rollouts of n_lanes that run at once, each with weights of its own, so that no tile holds lanes of two.
    """
    total = n_lanes * copies
    if total <= 264:
        return Tiles(lanes=1, warps=4)
    if total <= 4224 or n_lanes < 16:
        return Tiles(lanes=8, warps=4, columns=64)
    if products == "float32":  # three terms of every weight in registers
        return Tiles(lanes=32, warps=4, columns=32)
    if total <= 8448 or n_lanes < 128:
        return Tiles(lanes=16, warps=4, columns=32)
    return Tiles(lanes=128, warps=4, columns=128) if products == "bfloat16" else Tiles(lanes=64, warps=4, columns=32)


def choose_wide_tiles(
    widths: Sequence[int], n_lanes: int, products: Products, copies: int = 1, *, shared: int
) -> Tiles:
    """For a wide network: the fastest measured on an H200 that do not spill, with as many layers on chip as there is room for.

    widths: padded, of the first layer and of those after it; copies: as of `choose_tiles`; shared: bytes a block may take.
    """
    total = n_lanes * copies
    layers = len(widths) - 1
    if products == "float32":
        lanes, chunk, stages, most = 16, 32, 3, layers
    elif total <= 132 * 16 or n_lanes < 32:
        lanes, chunk, stages, most = 16, 128 if products == "bfloat16" else 64, 2, layers
    elif products == "tf32" and total >= 132 * 32 and n_lanes >= 64:
        lanes, chunk, stages, most = 64, 32, 2, 1  # beside whose lanes a second layer spilled
    else:
        lanes, chunk, stages, most = 32, 64, 2, layers
    size = _BYTES[products]
    sizes = [a * b * size for a, b in itertools.pairwise(widths)]

    def needed(held: int) -> int:
        on_chip = sum(sizes[layers - held :]) + lanes * chunk * size + _RESERVE
        in_flight = (stages - 1) * chunk * (max(widths) * size + lanes * 4)  # weights, and the first layer's table
        return on_chip + (in_flight if held < layers else 0)

    held = max((k for k in range(min(most, layers) + 1) if needed(k) <= shared), default=0)
    return Tiles(lanes=lanes, warps=8, chunk=chunk, held=held, stages=stages if held < layers else 1)
