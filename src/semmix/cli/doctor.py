"""`semmix doctor`: what is installed, where data lie, whether a small run of all works."""

import contextlib
import io
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from semmix import __version__
from semmix.core.errors import SemmixError, require
from semmix.core.progress import say
from semmix.data import list_data

CORE = ("torch", "numpy", "safetensors", "pillow", "scikit-learn", "scipy", "tyro", "rich", "matplotlib", "jinja2")
EXTRAS = {
    "clip": "transformers",
    "onnx": "onnxruntime",
    "serve": "h11",
    "diffusers": "diffusers",
    "timm": "timm",
    "track": "tensorboard",
    "parquet": "pyarrow",
    "hub": "huggingface_hub",
}


@dataclass(frozen=True, kw_only=True)
class DoctorCommand:
    """Show what is installed, and run a self-test."""

    quick: bool = False
    """Leave the self-test out."""
    root: Path | None = None
    """Where imported data sets live; $SEMMIX_DATA or ~/.cache/semmix/datasets by default."""

    def run(self) -> int:
        """Print the state of this installation; return 0 when all is well."""
        say(f"semmix {__version__}")
        sound = [_line(name, name, needed=True) for name in CORE]
        say("extras:")
        for extra, package in EXTRAS.items():
            _line(f"  [{extra}] {package}", package, needed=False)
        say(f"devices:\n  cpu, {torch.get_num_threads()} threads")
        for k in range(torch.cuda.device_count()):
            say(f"  cuda:{k} {torch.cuda.get_device_name(k)}")
        say("data:")
        list_data(self.root)
        if not self.quick:
            sound += [_try(name, check) for name, check in SELF_TESTS.items()]
        say("all is well" if all(sound) else "something is wrong: see the lines marked !!")
        return 0 if all(sound) else 1


def _line(name: str, package: str, needed: bool) -> bool:
    """Say which version of a package is installed; return whether that will do."""
    found = "!! missing: pip install semmix" if needed else "not installed"
    with contextlib.suppress(PackageNotFoundError):
        found, needed = version(package), False
    say(f"  {name:24} {found}")
    return not needed


def _try(name: str, check: Callable[[Path], str]) -> bool:
    try:
        with tempfile.TemporaryDirectory() as folder:
            say(f"  {name:24} {check(Path(folder))}")
        return True
    except (SemmixError, ArithmeticError, OSError, RuntimeError, ImportError) as error:
        say(f"  {name:24} !! {error}")
        return False


def _check_metrics(_: Path) -> str:
    """ECE of a worked example: 9 of 10 right at confidence 0.8 is 0.1 too modest."""
    from semmix import ece

    probs = torch.tensor([[0.8, 0.2]] * 10, dtype=torch.float64)
    value = ece(probs, torch.tensor([0] * 9 + [1]))
    require(abs(value - 0.1) <= 1e-12, "ECE of the worked example is wrong", value, "it should be 0.1")
    return "ok"


def _check_path(folder: Path) -> str:
    """Walk the whole path at toy size."""
    from semmix.fitting.fit import walk
    from semmix.fitting.recipes import smoke_demo

    with contextlib.redirect_stdout(io.StringIO()):  # what so short a run measures means nothing
        walk(replace(smoke_demo(), out=folder))
    require((folder / "report.html").exists(), "the path left no report", folder, "report this as a bug")
    return "ok: digits, generator to report"


SELF_TESTS = {"metrics": _check_metrics, "whole path": _check_path}
