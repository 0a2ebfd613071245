"""Where the work runs, and a record of it."""

import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from typing import Any, TypeVar

import torch

from semmix.core.errors import explaining, require
from semmix.core.files import printable

N = TypeVar("N", bound=torch.nn.Module)


def pick_device(name: str = "auto") -> torch.device:
    """Return the device called `name`; `auto` is the GPU where there is one.

    Processes started by `torchrun` take one GPU each.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        name = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    with explaining("unknown device", "use auto, cpu, cuda or cuda:1", RuntimeError, seen=repr(name)):
        device = torch.device(name)
    fix = "use --device cpu or auto"
    if device.type == "cuda":
        require(torch.cuda.is_available(), "no CUDA device here", repr(name), fix)
        num = torch.cuda.device_count()
        require((device.index or 0) < num, "no such CUDA device here", f"{name!r}, there are {num}", fix)
    elif device.type != "cpu":  # torch knows names of devices it was not built for
        with explaining("this device cannot be used here", fix, Exception, seen=repr(name)):
            torch.zeros(1, device=device).item()
    return device


def to_device(network: N, device: torch.device) -> N:
    """Return the network on `device`, its weights laid out as the device likes them."""
    layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
    return network.to(device=device, memory_format=layout)  # pyright: ignore[reportCallIssue]


def rank_and_world() -> tuple[int, int]:
    """Return this process's place among those `torchrun` started: (0, 1) without it."""
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def describe_environment() -> dict[str, Any]:
    """Return versions, device, command and time, as written to `env.json`."""
    import numpy

    from semmix import __version__

    module = getattr(sys.modules["__main__"], "__spec__", None)
    is_ours = module is not None and module.name == "semmix.__main__"  # called by `python -m semmix`
    program = "semmix" if is_ours else os.path.basename(sys.argv[0])
    return {
        "semmix": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "cpu_threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "command": printable(shlex.join([program, *sys.argv[1:]])),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
