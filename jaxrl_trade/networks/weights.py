"""Weights as safetensors, one file per network, under the plan's names and in PyTorch's `[out, in]` layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np

Params = TypeVar("Params")
SUFFIX = ".safetensors"


def save_weights(folder: str | Path, params: Any) -> list[Path]:
    """Writes each network of `params` (a dataclass of networks: actor, critic, curiosity, dueling) to `folder/NAME.safetensors`.

    Raises:
      OSError: a file cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for field in dataclasses.fields(params):
        path = folder / (field.name + SUFFIX)
        try:
            save_file(to_tensors(getattr(params, field.name)), path)
        except SafetensorError as error:
            raise OSError(f"{path} cannot be written ({error})") from None
        paths.append(path)
    return paths


def load_weights(folder: str | Path, like: Params) -> Params:
    """The weights saved in `folder`, in the shape and dtype of `like` (from `init_ppo`, say).

    Raises:
      OSError: a network's file is missing or no safetensors file.
      ValueError: a tensor is missing, unknown or of another shape; the message names it.
    """
    networks = {
        field.name: _load(Path(folder) / (field.name + SUFFIX), getattr(like, field.name))
        for field in dataclasses.fields(like)  # type: ignore[arg-type]
    }
    return dataclasses.replace(like, **networks)  # type: ignore[type-var]


def to_tensors(network: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`{layer: {kernel [in, out], bias [out]}}` as `{layer.weight: [out, in], layer.bias: [out]}`.

    Layers within layers have names with more dots; a parameter that is no matrix called kernel keeps its name and its axes.
    """
    return {name: np.ascontiguousarray(_turned(path, np.asarray(value))) for path, name, value in _leaves(network)}


def from_tensors(tensors: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """The network of `to_tensors`, in the dtypes of `like`."""
    network: dict[str, Any] = {}
    for path, name, value in _leaves(like):
        inner = network
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
        inner[path[-1]] = jnp.asarray(_turned(path, tensors[name]), value.dtype)
    return network


def _leaves(network: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """Way through the tree, name of the tensor, and value of every parameter."""
    for key, value in network.items():
        path = (*above, key)
        if isinstance(value, Mapping):
            yield from _leaves(value, path)
        else:
            yield path, ".".join((*above, "weight" if key == "kernel" and value.ndim == 2 else key)), value


def _turned(path: tuple[str, ...], value: Any) -> Any:
    """A matrix called kernel between Flax's `[in, out]` and PyTorch's `[out, in]`, in either direction."""
    return value.T if path[-1] == "kernel" and value.ndim == 2 else value


def _load(path: Path, like: Mapping[str, Any]) -> dict[str, Any]:
    tensors = _read(path)
    expected = {name: value.shape for name, value in to_tensors(like).items()}
    if missing := sorted(set(expected) - set(tensors)):
        raise ValueError(f"{path} lacks {', '.join(missing)}; it holds {', '.join(sorted(tensors)) or 'nothing'}")
    if unknown := sorted(set(tensors) - set(expected)):
        raise ValueError(f"{path} holds {', '.join(unknown)}, which this network does not have")
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise ValueError(
                f"{name} in {path} has shape {tensors[name].shape}, this network wants {shape} ([out, in])"
            )
    return from_tensors(tensors, like)


def _read(path: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; save_weights writes one such file per network")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise OSError(f"{path} is no complete safetensors file ({error})") from None
