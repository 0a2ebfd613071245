"""Results: the numbers of a finished run, from its files alone, and runs small enough to commit."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tyro.conf import Positional

from semmix.calibration import (
    DensityRatioCalibrator,
    TemperatureScaler,
    ood_auroc,
    ood_score,
    piece,
    summary,
    weighted_oe,
    weighted_ue,
)
from semmix.core.artifact import open_artifact
from semmix.core.errors import SemmixError
from semmix.core.files import read_json, read_named_tensors, write_json, write_tensors
from semmix.core.progress import say
from semmix.core.settings import plain
from semmix.experiments.cells import Cell
from semmix.experiments.protocols import Protocol
from semmix.runs import foreign_file, load_run

PROXIMITY = "proximity.safetensors"
TTA = "logits-tta.safetensors"
SPEED = "speed.json"
_KEPT_AS_THEY_ARE = ("config.json", "env.json", "stats.jsonl", PROXIMITY, SPEED)


@dataclass(frozen=True, kw_only=True)
class KeepConfig:
    """Keep finished runs in a form small enough to commit."""

    runs: Positional[tuple[Path, ...]]
    """Folders of finished runs."""
    out: Path = Path("results")
    """Folder that gets one folder for each run, of the same name."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise SemmixError("nothing to keep", "no runs", "name at least one run folder")


def keep_runs(config: KeepConfig) -> None:
    """Copy what the numbers of the runs come from."""
    for run in config.runs:
        say(f"kept {keep_run(run, config.out)}")


def keep_run(run: str | Path, results: str | Path) -> Path:
    """Copy what the numbers of a finished run come from, logits in float16; return the copy.

    Its metrics.json is measured on the logits as stored, so that it can be had again from them.
    """
    run, kept = Path(run), Path(results) / Path(run).resolve().name
    artifact = open_artifact(run, "config.json", "run")
    if not artifact.finished:
        raise SemmixError(f"{run} is not finished", "half done", "run its command again first")
    if kept.resolve() == run.resolve():
        fix = "choose another --out: it would replace the run's own logits"
        raise SemmixError("a run cannot be kept in its own folder", run, fix)
    _refuse_other(kept, artifact.manifest)
    kept.mkdir(parents=True, exist_ok=True)
    for path in sorted(run.glob("logits-*.safetensors")):
        logits, labels = read_named_tensors(path, "logits", "labels")
        small = {"logits": small_logits(logits), "labels": labels.short()}
        write_tensors(kept / path.name, small)
    for name in _KEPT_AS_THEY_ARE:
        if (run / name).exists():
            shutil.copyfile(run / name, kept / name)
    write_json(kept / "metrics.json", metrics_from_logits(kept))
    return kept


def small_logits(logits: Tensor) -> Tensor:
    """Return logits as float16, less the largest of their row: softmax is the same.

    Near zero float16 is at its finest, so that rivals of the largest logit are told apart.
    """
    return (logits - logits.amax(1, keepdim=True)).half()


def _refuse_other(kept: Path, manifest: dict[str, Any]) -> None:
    """Raise if a run made from other inputs is kept under the same name."""
    if not (kept / "config.json").exists():
        return
    if open_artifact(kept, "config.json", "run").manifest["inputs"] != manifest["inputs"]:
        raise SemmixError("another run of this name is kept", kept, "choose another --out")


def metrics_from_logits(folder: str | Path) -> dict[str, Any]:
    """Return what metrics.json holds, computed again from the logits in `folder`."""
    run = load_run(Path(folder))
    return {"test": run.before.metrics, "temperature": run.temperature, "test_after_temperature": run.after.metrics}


def finished_runs(cell: Cell, folder: Path) -> list[Path]:
    """Return the finished runs of a cell among the run folders in `folder`, by seed.

    A copy that was put aside, such as `...-s0.bak`, is none of them.
    """
    start = cell.run_name(0).removesuffix("0")
    runs = [p for p in folder.glob(f"{start}*") if p.name.removeprefix(start).isdecimal()]
    trained = [path for path in runs if is_trained(cell, path)]
    return [path for path in sorted(trained, key=_seed) if has_extra(cell, path)]


def _seed(path: Path) -> int:
    return int(path.name.rpartition("-s")[2])


def is_trained(cell: Cell, path: Path) -> bool:
    """Return whether the run is trained; refuse one that is not what its folder's name says."""
    if not (path / "config.json").exists():
        return False
    run = open_artifact(path, "config.json", "run")
    config = {**plain(cell.train), "seed": _seed(path)}
    same = run.manifest["inputs"]["config"] == config and _has_labels_of(cell, run.manifest)
    if not same or _dataset(run.manifest) != cell.data.dataset:
        fix = "the folder was renamed or changed: take it away"
        raise SemmixError(f"{path} is no run of {cell.name}", run.manifest["inputs"], fix)
    return run.finished


def _has_labels_of(cell: Cell, manifest: dict[str, Any]) -> bool:
    """Return whether a run learned from labels of the cell's scheme and scale, or from none."""
    mixing, mixed = cell.mixing, manifest["inputs"].get("mixed")
    if mixing is None or mixed is None:
        return mixing is None and mixed is None
    scales = {mixing.scale, mixed["scale"]} - {None}  # chosen by a rule, or of no use
    return mixed["labels"] == mixing.labels and len(scales) < 2


def has_extra(cell: Cell, path: Path) -> bool:
    """Return whether the run's folder has all that the cell measures besides its logits."""
    return all((path / name).exists() for name in extra_files(cell))


def _dataset(manifest: dict[str, Any]) -> str:
    return manifest["inputs"]["dataset"]


def extra_files(cell: Cell) -> tuple[str, ...]:
    """Return the files a cell needs besides those every run has."""
    if cell.measure.startswith("ood:"):
        return (foreign_file(cell.measure.removeprefix("ood:")),)
    return {"plain": (), "hours": (SPEED,), "piece": (PROXIMITY,), "procal": (PROXIMITY,), "tta": (PROXIMITY, TTA)}[
        cell.measure
    ]


def measure_run(run: Path, cell: Cell, protocol: Protocol) -> dict[str, float]:
    """Return the cell's numbers for one run, by metric, from the files in its folder alone."""
    if cell.measure == "hours":
        return {"hours": read_json(run / SPEED)["hours"]}
    val_logits, val_labels = _logits(run / "logits-val.safetensors")
    logits, labels = _logits(run / "logits-test.safetensors")
    scaler = TemperatureScaler(search=protocol.temperature).fit(val_logits, val_labels)
    temperature = {"temperature": scaler.temperature}
    if cell.measure.startswith("ood:"):
        foreign, _ = _logits(run / extra_files(cell)[0])
        by = scaler.temperature if cell.scaled else 1.0
        return {"auroc": ood_auroc(ood_score(logits / by), ood_score(foreign / by)), **temperature}
    if cell.measure == "plain":
        after = _numbers(scaler.transform(logits), labels, protocol)
        later = {f"{key}_ts": value for key, value in after.items()}
        return {**_numbers(logits.softmax(1), labels, protocol), **later, **temperature}

    near_val, near_test = read_named_tensors(run / PROXIMITY, "val", "test")
    probs: Any = logits.softmax(1)
    if cell.measure == "tta":
        probs = _logits(run / TTA)[0].softmax(1)
    if cell.measure == "procal":
        calibrator = DensityRatioCalibrator().fit(val_logits, val_labels, near_val)
        probs = calibrator.transform(logits, near_test)
    return {**_numbers(probs, labels, protocol), "piece": piece(probs, labels, near_test)}


def _numbers(probs: Any, labels: Tensor, protocol: Protocol) -> dict[str, float]:
    numbers = summary(probs, labels)
    if protocol.overconfidence == "weighted":
        numbers |= {"oe": weighted_oe(probs, labels), "ue": weighted_ue(probs, labels)}
    return numbers


def _logits(path: Path) -> tuple[Tensor, Tensor]:
    """Return logits as float64 [N, K] and labels [N]."""
    logits, labels = read_named_tensors(path, "logits", "labels")
    return logits.to(torch.float64), labels.long()
