"""Published weights, read as numbers: nothing in their files is run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from semmix.core.errors import explaining, require
from semmix.core.files import read_json

COUNTER = "num_batches_tracked"
"""A number batch norms keep while they are trained; not all formats have it."""


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a file torch saved."""
    fix = "name a state dict that torch saved; if this is one, download it again"
    with explaining("cannot read weights", fix, Exception, seen=path):  # torch's reader may break anywhere
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    are_tensors = isinstance(tensors, dict) and all(isinstance(t, Tensor) for t in tensors.values())
    require(are_tensors, "a file of other things than tensors", path, fix)
    return tensors


def read_tfjs(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a TensorFlow.js layers model, named by its `model.json`.

    The weights lie beside it, raw float32 in shards; its manifest says which, in order.
    """
    path = Path(path)
    fix = "name the model.json of a TensorFlow.js layers model"
    require(path.is_file(), "no file here", path, fix)
    with explaining(f"{path} is not understood", fix, KeyError, TypeError):
        groups = [_read_group(path.parent, **group) for group in read_json(path)["weightsManifest"]]
    return {name: tensor for group in groups for name, tensor in group.items()}


def _read_group(folder: Path, paths: list[str], weights: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Return the tensors of some shards, which lie in them end to end."""
    shapes = {entry["name"]: _read_shape(**entry) for entry in weights}
    sizes = [math.prod(shape) for shape in shapes.values()]
    shards = [_find_shard(folder, name) for name in paths]
    found = sum(path.stat().st_size for path in shards)  # checked before anything is read
    seen = f"{found} bytes in {len(shards)} shards, not {4 * sum(sizes)}"
    require(found == 4 * sum(sizes), "shards of the wrong length", seen, "unpack the whole package again")
    data = b"".join(path.read_bytes() for path in shards)
    parts = torch.from_numpy(np.frombuffer(data, "<f4").astype(np.float32)).split(sizes)
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def _read_shape(name: str, shape: list[int], dtype: str, **more: Any) -> tuple[int, ...]:
    seen = f"{name} is {dtype}, {more}" if more else f"{name} is {dtype}"
    plain = dtype == "float32" and not more
    require(plain, "only plain float32 weights are read", seen, "convert without quantising")
    if not all(isinstance(num, int) and num > 0 for num in shape):
        raise TypeError(f"{name} has shape {shape}")
    return tuple(shape)


def _find_shard(folder: Path, name: str) -> Path:
    """Return the path of a shard, which must lie beside its manifest: that comes from outside, and may lie."""
    fix = "shards lie in the folder of model.json; take the package's own files"
    require(Path(name).name == name, "a shard in another folder", name, fix)
    require((folder / name).is_file(), "a shard is missing", folder / name, "unpack the whole package again")
    return folder / name


def fill(network: nn.Module, tensors: Mapping[str, Tensor], fix: str) -> None:
    """Give `network` its weights; every name and shape must be its own, or `fix` says what to do."""
    wanted, found = _shapes(network.state_dict()), _shapes(tensors)
    for name in wanted | found:
        seen = f"{name} is {found.get(name, 'missing')}, not {wanted.get(name, 'expected')}"
        require(wanted.get(name) == found.get(name), "not the weights of this network", seen, fix)
    network.load_state_dict(tensors, strict=False)  # the counters may be missing


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(t.shape) for name, t in tensors.items() if not name.endswith(COUNTER)}
