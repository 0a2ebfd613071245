"""Checkpoints: one safetensors file with everything a run needs to go on as if never stopped."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from semmix.core.errors import SemmixError
from semmix.core.files import write_tensors

Groups = Mapping[str, dict[str, Tensor]]


def save_checkpoint(path: Path, groups: Groups, header: Any) -> None:
    """Write named groups of tensors (network, optimizer, ...) and a JSON header, atomically."""
    flat = {f"{group}/{name}": t for group, tensors in groups.items() for name, t in tensors.items()}
    write_tensors(path, flat, header)


def load_checkpoint(path: Path) -> tuple[dict[str, dict[str, Tensor]], Any]:
    """Return the groups of tensors and the header that `save_checkpoint` wrote.

    Any group that is not there is empty: an empty one (SGD without momentum) leaves no trace in the file.
    """
    groups: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
    try:
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118  (a safetensors file is not a dict)
                group, name = key.split("/", 1)
                groups[group][name] = file.get_tensor(key)
            return groups, json.loads(file.metadata()["semmix"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        fix = "delete it and run the same command again; training starts over"
        raise SemmixError(f"cannot read checkpoint {path}", error, fix) from error


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's memory (momentum and the like) by parameter number and name."""
    state = optimizer.state_dict()["state"]
    return {f"{i}.{name}": t for i, slot in state.items() for name, t in slot.items() if t is not None}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back the memory that `optimizer_tensors` returned."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    for parameter, slot in optimizer.state.items():
        for name, tensor in slot.items():
            if tensor.shape == parameter.shape:  # fused kernels want both laid out alike
                slot[name] = torch.empty_like(parameter).copy_(tensor)
