"""The engine under both training loops: one run in its folder, which may be stopped and goes on at any step.

It keeps other processes out, saves checkpoints and writes the statistics. What a step computes stands in the loops.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from semmix.core.artifact import Artifact, begin_artifact, working_alone
from semmix.core.device import rank_and_world
from semmix.core.errors import explaining, require
from semmix.core.files import write_bytes, write_tensors
from semmix.core.progress import progress
from semmix.core.runtime import Runtime
from semmix.training.distributed import wait_for_all

Groups = Mapping[str, dict[str, Tensor]]
"""Tensors by group (network, optimizer, ...) and name."""
CHECKPOINT = "checkpoint.safetensors"
STATS = "stats.jsonl"


@contextmanager
def claim(
    folder: Path, manifest: str, kind: str, inputs: dict[str, Any], runtime: Runtime, rank: int, world_size: int
) -> Iterator[Engine | None]:
    """Lock a folder for one run and yield its engine; None if the run is finished."""
    artifact = begin_artifact(folder, manifest, kind, inputs)
    wait_for_all(world_size)  # none may finish before all have looked
    if artifact.finished:
        (folder / CHECKPOINT).unlink(missing_ok=True)  # killed just before
        yield None
        return
    with working_alone(artifact) if rank == 0 else nullcontext():
        yield Engine(artifact, runtime, rank, world_size)
        if rank == 0:
            (folder / CHECKPOINT).unlink(missing_ok=True)
        wait_for_all(world_size)


class Engine:
    """An unfinished run in its folder."""

    def __init__(self, artifact: Artifact, runtime: Runtime, rank: int, world_size: int):
        self.artifact, self.folder, self._runtime = artifact, artifact.folder, runtime
        self._world_size, self.is_first = world_size, rank == 0

    def resume(self, groups: Groups, optimizer: torch.optim.Optimizer, finite: Sequence[str] = ()) -> None:
        """Take over what changes during the run, in place, and put back what the last checkpoint holds, if any.

        Groups named `finite` are refused if they are not finite when a checkpoint is due.
        """
        self._groups, self._optimizer, self._finite, self.done = groups, optimizer, finite, 0
        if (self.folder / CHECKPOINT).exists():
            saved, header = load_checkpoint(self.folder / CHECKPOINT)
            copy_in_place(groups, saved)
            load_optimizer(optimizer, saved["optimizer"])
            self.done = header["step"]

    def steps(self, title: str, num_steps: int, images_per_step: int, curves: bool = False) -> Iterator[int]:
        """Yield the number of each step to do, from 0; after it, save a checkpoint if one is due or Ctrl-C stops."""
        seen = self.done * images_per_step
        if self.is_first:
            rewind_stats(self.folder / STATS, seen)
        saved_at = time.monotonic()
        with (
            progress(title, num_steps * images_per_step, seen) as bar,
            tensorboard(self.folder / "tensorboard", seen) if curves else nullcontext(lambda row: None) as track,
            ctrl_c_between_steps(self._world_size) as stop_wanted,
        ):
            self._bar, self._track = bar, track
            for step in range(self.done, num_steps):
                yield step
                stopping = stop_wanted()
                is_due = time.monotonic() - saved_at >= self._runtime.checkpoint_seconds
                if self.is_first and (is_due or stopping):
                    self._save(step + 1)
                    saved_at = time.monotonic()
                if stopping:
                    raise KeyboardInterrupt
                bar.advance(images_per_step)

    def _save(self, step: int) -> None:
        for tensor in (tensor for name in self._finite for tensor in self._groups[name].values()):
            self.finite(tensor)
        groups = {**self._groups, "optimizer": optimizer_tensors(self._optimizer)}
        save_checkpoint(self.folder / CHECKPOINT, groups, {"step": step})

    def record(self, row: dict[str, Any], note: str) -> None:
        """Add a row to the statistics, and a note to the progress bar."""
        if self.is_first:
            append_stats(self.folder / STATS, row)
        self._track(row)
        self._bar.advance(0, note)

    def finite(self, values: Tensor) -> Tensor:
        """Return the values; refuse any that are not finite, before metrics or files come of them."""
        bad = values[~values.isfinite()].flatten()[:1].tolist()
        fix = f"lower --lr, and choose another folder than {self.folder}"
        require(not bad, "training diverged: loss, logits or weights are not finite", bad and bad[0], fix)
        return values


def save_checkpoint(path: Path, groups: Groups, header: Any) -> None:
    """Write named groups of tensors (network, optimizer, ...) and a JSON header, atomically."""
    flat = {f"{group}/{name}": t for group, tensors in groups.items() for name, t in tensors.items()}
    write_tensors(path, flat, header)


def load_checkpoint(path: Path) -> tuple[dict[str, dict[str, Tensor]], Any]:
    """Return the groups of tensors and the header that `save_checkpoint` wrote."""
    # An empty group (SGD without momentum) leaves no trace in the file.
    groups: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
    fix = "delete it and run the same command again; training starts over"
    damaged = (OSError, SafetensorError, ValueError, KeyError, TypeError)
    with explaining(f"cannot read checkpoint {path}", fix, *damaged), safe_open(path, framework="pt") as file:
        for key in file.keys():  # noqa: SIM118  (a safetensors file is not a dict)
            group, name = key.split("/", 1)
            groups[group][name] = file.get_tensor(key)
        return groups, json.loads(file.metadata()["semmix"])


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


@torch.no_grad()
def copy_in_place(groups: Groups, values: Groups) -> None:
    """Copy values into tensors, whose memory a captured graph may hold on to; keep those that are not there yet."""
    for group, tensors in groups.items():
        for name, value in values[group].items():
            if name in tensors:
                tensors[name].copy_(value)
            else:
                tensors[name] = value


@contextmanager
def unchanged(groups: Groups) -> Iterator[None]:
    """Put back what tensors held before: warm-ups and speed tests leave no trace."""
    before = {group: {name: tensor.clone() for name, tensor in tensors.items()} for group, tensors in groups.items()}
    yield
    copy_in_place(groups, before)


def append_stats(path: Path, row: Mapping[str, Any]) -> None:
    """Add one line to a run's `stats.jsonl`."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def rewind_stats(path: Path, nimg: int) -> None:
    """Forget lines written after the checkpoint at `nimg` images; they will be written again."""
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if line.endswith("\n") and json.loads(line)["nimg"] <= nimg]
        write_bytes(path, "".join(kept).encode())


@contextmanager
def tensorboard(folder: Path, nimg: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a function by which the first process shows a row of statistics in TensorBoard, where that is installed.

    What an interrupted run showed after `nimg` images is forgotten; it will come again.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        SummaryWriter = None
    if SummaryWriter is None or rank_and_world()[0] != 0:
        yield lambda row: None
        return
    with SummaryWriter(str(folder), purge_step=nimg + 1) as writer:

        def track(row: dict[str, Any]) -> None:
            for name in row.keys() - {"epoch", "nimg"}:
                writer.add_scalar(name, row[name], row["nimg"])
            writer.flush()

        yield track


@contextmanager
def ctrl_c_between_steps(world_size: int = 1) -> Iterator[Callable[[], bool]]:
    """Yield a function that tells after each step whether Ctrl-C was pressed; after the last, raise KeyboardInterrupt.

    A second Ctrl-C stops at once. So does the first where somebody else handles it, for only the main thread may change
    that, and of several processes: one that finished its step would wait for others that are gone.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if world_size > 1 or not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: False
        return
    pressed = threading.Event()

    def remember(*_) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, remember)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if pressed.is_set():
        raise KeyboardInterrupt
