"""Results: the numbers of a finished run, from its files alone, and runs small enough to commit."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from semmix.calibration import DensityRatioCalibrator, ood_auroc, piece, summary, weighted_oe, weighted_ue
from semmix.core.artifact import open_artifact
from semmix.core.errors import require
from semmix.core.files import read_json, read_named_tensors, write_json, write_tensors
from semmix.core.settings import plain
from semmix.experiments.cells import Cell, Protocol
from semmix.report.detection import ood_scores
from semmix.runs import MANIFEST, METRICS, Logits, Run, logits_file

PROXIMITY = "proximity.safetensors"
TTA = logits_file("tta")
SPEED = "speed.json"
_KEPT_AS_THEY_ARE = (MANIFEST, "env.json", "stats.jsonl", PROXIMITY, SPEED)


def keep_run(run: Run | str | Path, results: str | Path) -> Path:
    """Copy what the numbers of a finished run come from, logits in float16; return the copy.

    Its metrics.json is measured on the logits as stored, so that it can be computed again from them.
    """
    run = Run.open(run)
    kept = Path(results) / run.folder.resolve().name
    fix = "choose another --out: it would replace the run's own logits"
    require(kept.resolve() != run.folder.resolve(), "a run cannot be kept in its own folder", run.folder, fix)
    same = not (kept / MANIFEST).exists() or open_artifact(kept, MANIFEST, "run").manifest["inputs"] == run.inputs
    require(same, "another run of this name is kept", kept, "choose another --out")
    kept.mkdir(parents=True, exist_ok=True)
    for path in sorted(run.folder.glob(logits_file("*"))):
        logits, labels = read_named_tensors(path, "logits", "labels")
        # Softmax is the same less the largest of a row; near zero float16 is finest and tells its rivals apart.
        small = (logits - logits.amax(1, keepdim=True)).half()
        write_tensors(kept / path.name, {"logits": small, "labels": labels.short()})
    for name in _KEPT_AS_THEY_ARE:
        if (run.folder / name).exists():
            shutil.copyfile(run.folder / name, kept / name)
    write_json(kept / METRICS, Run.open(kept).measure())
    return kept


class RunFolder:
    """A folder of runs, of which each finished one is opened once."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._opened: dict[Path, Run] = {}

    def finished(self, cell: Cell) -> list[Run]:
        """Return the finished runs of a cell that have all it measures, by seed.

        A copy that was put aside, such as `...-s0.bak`, is none of them.
        """
        start = cell.run_name(0).removesuffix("0")
        paths = [p for p in self.folder.glob(f"{start}*") if p.name.removeprefix(start).isdecimal()]
        runs = [self.run(cell, path) for path in sorted(paths, key=_seed)]
        return [run for run in runs if run is not None and has_extra(cell, run.folder)]

    def missing(self, cell: Cell) -> list[int]:
        """Return those of the seeds asked for that are not finished."""
        done = {run.folder.name for run in self.finished(cell)}
        return [seed for seed in range(cell.seeds) if cell.run_name(seed) not in done]

    def untrained(self, cell: Cell) -> int:
        """Return how many of the seeds asked for are still to be trained."""
        return sum(self.run(cell, self.folder / cell.run_name(seed)) is None for seed in range(cell.seeds))

    def run(self, cell: Cell, path: Path) -> Run | None:
        """Return the run in `path` if it is finished; refuse one that is not what its name says."""
        if path not in self._opened:
            run = trained_run(cell, path)
            if run is None:
                return None
            self._opened[path] = run
        _refuse_misnamed(cell, path, self._opened[path].manifest)
        return self._opened[path]


def trained_run(cell: Cell, path: Path) -> Run | None:
    """Return a cell's run in `path` if it is finished; refuse one that is not what its name says."""
    if not (path / MANIFEST).exists():
        return None
    artifact = open_artifact(path, MANIFEST, "run")
    _refuse_misnamed(cell, path, artifact.manifest)
    return Run(artifact) if artifact.finished else None


def _seed(path: Path) -> int:
    return int(path.name.rpartition("-s")[2])


def _refuse_misnamed(cell: Cell, path: Path, manifest: dict[str, Any]) -> None:
    """Raise if a run is not the one of the cell and seed that its folder is named by."""
    inputs, mixing = manifest["inputs"], cell.mixing
    mixed = inputs.get("mixed")
    if mixing is None or mixed is None:
        same_labels = mixing is None and mixed is None
    else:
        scales = {mixing.scale, mixed["scale"]} - {None}  # None: chosen on validation images, or unused
        same_labels = mixed["labels"] == mixing.labels and len(scales) < 2
    same_config = inputs["config"] == {**plain(cell.train), "seed": _seed(path)}
    same = same_labels and same_config and inputs["dataset"] == cell.data.dataset
    require(same, f"{path} is no run of {cell.name}", inputs, "the folder was renamed or changed: take it away")


def has_extra(cell: Cell, path: Path) -> bool:
    """Return whether the run's folder has all that the cell measures besides the usual logits."""
    if cell.measure.startswith("ood:"):
        return (path / logits_file(cell.measure.replace("ood:", "ood-"))).exists()
    needed = {"plain": (), "hours": (SPEED,), "piece": (PROXIMITY,), "procal": (PROXIMITY,), "tta": (PROXIMITY, TTA)}
    return all((path / name).exists() for name in needed[cell.measure])


def measure_run(run: Run, cell: Cell, protocol: Protocol) -> dict[str, float]:
    """Return the cell's numbers for one run, by metric, from the files in its folder alone."""
    if cell.measure == "hours":
        return {"hours": read_json(run.folder / SPEED)["hours"]}
    labels = run.test.labels
    if cell.measure.startswith("ood:"):
        temperature = run.temperature_by(protocol.temperature) if cell.scaled else 1.0
        return {"auroc": ood_auroc(*ood_scores(run, cell.measure.removeprefix("ood:"), temperature))}
    if cell.measure == "plain":
        temperature = run.temperature_by(protocol.temperature)
        after = _numbers(run.test.probs(temperature), labels, protocol)
        later = {f"{key}_ts": value for key, value in after.items()}
        return {**_numbers(run.test.probs(), labels, protocol), **later, "temperature": temperature}

    near_val, near_test = read_named_tensors(run.folder / PROXIMITY, "val", "test")
    probs: Any = run.test.probs()
    if cell.measure == "tta":
        probs = Logits.read(run.folder / TTA).probs()
    if cell.measure == "procal":
        calibrator = DensityRatioCalibrator().fit(run.val.logits, run.val.labels, near_val)
        probs = calibrator.transform(run.test.logits.astype(np.float64), near_test)
    return {**_numbers(probs, labels, protocol), "piece": piece(probs, labels, near_test)}


def _numbers(probs: Any, labels: Any, protocol: Protocol) -> dict[str, float]:
    numbers = summary(probs, labels)
    if protocol.overconfidence == "weighted":
        numbers |= {"oe": weighted_oe(probs, labels), "ue": weighted_ue(probs, labels)}
    return numbers
