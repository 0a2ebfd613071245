"""Reading finished runs: every number of a report is computed again from the logits found here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from semmix.calibration import TemperatureScaler, ood_score, summary
from semmix.core.artifact import open_artifact
from semmix.core.errors import SemmixError
from semmix.core.files import read_json, read_named_tensors


@dataclass(frozen=True)
class Predictions:
    """Probabilities of one classifier on one split, and the truth."""

    probs: np.ndarray  # [N, K], float32 by `load_run`: many large runs are held at once
    labels: np.ndarray  # [N]

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The metrics of a usual table, by name."""
        return summary(self.probs, self.labels)

    @cached_property
    def confidence(self) -> np.ndarray:
        """The probability of the predicted class.  # [N]"""
        return self.probs.max(axis=1)

    @cached_property
    def predicted(self) -> np.ndarray:
        """The predicted class.  # [N]"""
        return self.probs.argmax(axis=1)

    @cached_property
    def correct(self) -> np.ndarray:
        """Whether the prediction is right.  # [N]"""
        return self.predicted == self.labels


class Strangeness(NamedTuple):
    """Entropies of a classifier's answers: to its own test images, and to foreign ones."""

    known: np.ndarray  # [N]
    foreign: np.ndarray  # [M]


@dataclass(frozen=True)
class Run:
    """One finished training run, as its folder tells it."""

    folder: Path
    manifest: dict[str, Any]
    env: dict[str, Any]
    stats: list[dict[str, Any]]
    before: Predictions
    """On the test split, as trained."""
    after: Predictions
    """On the test split, with the temperature fitted on the validation split."""
    temperature: float
    foreign: dict[str, tuple[Strangeness, Strangeness]]
    """By foreign data set: as trained, and after temperature scaling."""

    @property
    def seed(self) -> int:
        """The training seed."""
        return self.manifest["inputs"]["config"]["seed"]

    @property
    def leak(self) -> bool:
        """Whether what made its mixed sets may have seen images it is judged on."""
        return bool(self.manifest.get("leak"))

    @property
    def command(self) -> str:
        """The command that makes this run again."""
        return self.env.get("command", "")

    @property
    def settings(self) -> dict[str, Any]:
        """What sets this run's results apart from others, but for the seed; flat."""
        inputs = self.manifest["inputs"]
        config = {k: v for k, v in inputs["config"].items() if k not in ("seed", "options")}
        mixed = inputs.get("mixed") or {}
        labels = {k: mixed[k] for k in ("labels", "scale") if mixed.get(k) is not None}
        return {"dataset": inputs["dataset"], **config, **inputs["config"]["options"], **labels}

    @property
    def origins(self) -> dict[str, str]:
        """Digests of what it was made from and judged on, as far as known.

        Not those of mixed sets: the same ones, drawn on another machine, differ in rounding.
        """
        inputs = self.manifest["inputs"]
        found = {key: inputs.get(key) for key in ("train", "val", "test", "init")}
        if ":" in inputs["config"]["classifier"]:
            del found["init"]  # the user's code may draw weights anew for each seed
        found["excluded"] = (inputs.get("mixed") or {}).get("excluded")
        return {key: digest for key, digest in found.items() if digest is not None}


def load_run(folder: Path) -> Run:
    """Return the finished run in `folder`, with its temperature fitted anew."""
    folder = Path(folder)
    artifact = open_artifact(folder, "config.json", "run")
    if not artifact.finished:
        raise SemmixError(f"{folder} is not finished", "half done", "run its training command again")
    val_logits, val_labels = read_logits(folder / "logits-val.safetensors")
    logits, labels = read_logits(folder / "logits-test.safetensors")
    scaler = TemperatureScaler().fit(val_logits, val_labels)
    return Run(
        folder=folder,
        manifest=artifact.manifest,
        env=read_json(folder / "env.json"),
        stats=_read_stats(folder / "stats.jsonl"),
        before=Predictions(_softmax(logits), labels),
        after=Predictions(np.asarray(scaler.transform(logits), np.float32), labels),
        temperature=float(scaler.temperature),
        foreign=_read_foreign(folder, logits, float(scaler.temperature)),
    )


def foreign_file(dataset: str) -> str:
    """Return the name of the file with a run's logits on a foreign data set.

    >>> foreign_file("cifar100")
    'logits-ood-cifar100.safetensors'
    """
    return f"logits-ood-{dataset}.safetensors"


def _read_foreign(folder: Path, logits: np.ndarray, temperature: float) -> dict[str, tuple[Strangeness, Strangeness]]:
    found = {}
    for path in sorted(folder.glob(foreign_file("*"))):
        foreign, _ = read_logits(path)
        scores = [Strangeness(ood_score(logits / by), ood_score(foreign / by)) for by in (1, temperature)]
        found[path.stem.removeprefix("logits-ood-")] = (scores[0], scores[1])
    return found


def _read_stats(path: Path) -> list[dict[str, Any]]:
    """Return one dict per epoch; a run without a curve (logits from elsewhere) has none."""
    if not path.exists():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    except ValueError as error:
        raise SemmixError(f"cannot read {path}", error, "drop the line that is no JSON") from error


def read_logits(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return logits as float32 [N, K] and labels as int64 [N]."""
    logits, labels = read_named_tensors(path, "logits", "labels")
    return logits.float().numpy(), labels.long().numpy()


def _softmax(logits: np.ndarray) -> np.ndarray:
    return torch.from_numpy(logits).softmax(dim=1, dtype=torch.float64).float().numpy()
