"""Finished runs: `Run` is the only reader of a run's files.

A run is opened once. Its logits, temperature and metrics are read or computed when they are first asked
for, always from the logits in the folder, and then kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np

from semmix.calibration import USUAL, TemperatureScaler, softmax, summary
from semmix.calibration.scaling import none_wrong
from semmix.core.artifact import Artifact, open_artifact
from semmix.core.errors import explaining, require
from semmix.core.files import read_json, read_named_tensors

MANIFEST = "config.json"
METRICS = "metrics.json"
Search = Literal["nll", "ece-grid"]
"""How a temperature is found on validation images: the least NLL, which is also what is shipped, or the
least ECE among 0.1, 0.2, …, 10, which is how the paper's numbers were found."""


def logits_file(split: str) -> str:
    """Return the name of the file with a run's logits on a split, or on another data set as `ood-NAME`.

    >>> logits_file("val"), logits_file("ood-cifar100")
    ('logits-val.safetensors', 'logits-ood-cifar100.safetensors')
    """
    return f"logits-{split}.safetensors"


@dataclass(frozen=True)
class Predictions:
    """Probabilities of one classifier on one split, and the true classes."""

    probs: np.ndarray  # [N, K], float32 where they come from a run: many large runs are held at once
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

    def __repr__(self) -> str:
        return "Predictions({:,} images, {} classes)".format(*self.probs.shape)


@dataclass(frozen=True)
class Logits:
    """Outputs of one network on one split before softmax, and the true classes."""

    logits: np.ndarray  # [N, K], float32
    labels: np.ndarray  # [N], int64

    @staticmethod
    def read(path: Path) -> Logits:
        """Return the logits in a file of a run."""
        logits, labels = read_named_tensors(path, "logits", "labels")
        return Logits(logits.float().numpy(), labels.long().numpy())

    def probs(self, temperature: float = 1.0) -> np.ndarray:
        """Return softmax(logits / temperature) in float64.  # [N, K]"""
        return softmax(self.logits.astype(np.float64) / temperature)

    def predictions(self, temperature: float = 1.0) -> Predictions:
        """Return the predictions at a temperature, with probabilities in float32."""
        return Predictions(self.probs(temperature).astype(np.float32), self.labels)

    def __repr__(self) -> str:
        return "Logits({:,} images, {} classes)".format(*self.logits.shape)


class Run:
    """One finished training run: its settings, its logits, and what follows from them.

    Nothing but the manifest is read when a run is opened; everything else is read when it is first asked
    for, and only once. A notebook shows a run as a table of its metrics.

    Example:
        >>> run = Run.open("results/demo/csm-0")
        >>> run
        Run('results/demo/csm-0': csm on digits, seed 0, accuracy 92.1 %, ECE 2.05 %)
        >>> run.test, round(run.temperature, 2), round(run.after.metrics["ece"], 4)
        (Logits(1,397 images, 10 classes), 0.88, 0.0171)
    """

    def __init__(self, artifact: Artifact):
        require(artifact.finished, f"{artifact.folder} is not finished", "half done", "run its training command again")
        self.folder: Path = artifact.folder
        self.manifest: dict[str, Any] = artifact.manifest
        self.inputs: dict[str, Any] = self.manifest["inputs"]  # settings of the training, digests of what it read
        self._temperatures: dict[str, float] = {}
        self._scaled: dict[str, Predictions] = {}

    @classmethod
    def open(cls, run: Run | str | Path) -> Run:
        """Return the finished run in a folder; a run that is open already is returned as it is.

        Args:
            run: Folder that training wrote or `semmix keep` filled.

        Returns:
            The run, of which nothing but the manifest is read yet.

        Raises:
            SemmixError: If there is no run, or its training is not finished.

        Example:
            >>> Run.open("results/demo/ce-0").method
            'ce'
        """
        return run if isinstance(run, Run) else cls(open_artifact(Path(run), MANIFEST, "run"))

    @cached_property
    def env(self) -> dict[str, Any]:
        """Versions, device, command and time of the training."""
        return read_json(self.folder / "env.json")

    @cached_property
    def stats(self) -> list[dict[str, Any]]:
        """One dict per epoch; empty for a run without a training curve (logits from elsewhere)."""
        path = self.folder / "stats.jsonl"
        if not path.exists():
            return []
        with explaining(f"cannot read {path}", "delete the line that is no JSON", ValueError):
            return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]

    @property
    def seed(self) -> int:
        """The training seed."""
        return self.inputs["config"]["seed"]

    @property
    def method(self) -> str:
        """The training-time method, such as `csm`."""
        return self.inputs["config"]["method"]

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
        """All settings that decide its results but the seed, in one flat dict."""
        config = {k: v for k, v in self.inputs["config"].items() if k not in ("seed", "options")}
        mixed = self.inputs.get("mixed") or {}
        labels = {k: mixed[k] for k in ("labels", "scale") if mixed.get(k) is not None}
        return {"dataset": self.inputs["dataset"], **config, **self.inputs["config"]["options"], **labels}

    @property
    def origins(self) -> dict[str, str]:
        """Digests of what it was made from and judged on, as far as known.

        Those of mixed sets are left out: the same sets, drawn on another machine, differ in rounding.
        """
        found = {key: self.inputs.get(key) for key in ("train", "val", "test", "init")}
        if ":" in self.inputs["config"]["classifier"]:
            del found["init"]  # the user's code may draw weights anew for each seed
        found["excluded"] = (self.inputs.get("mixed") or {}).get("excluded")
        return {key: value for key, value in found.items() if value is not None}

    @property
    def class_names(self) -> list[str]:
        """The names of the classes; their numbers where the run does not know them."""
        return list(self.manifest.get("class_names") or map(str, range(self.test.logits.shape[1])))

    @cached_property
    def val(self) -> Logits:
        """Logits on the validation split."""
        return Logits.read(self.folder / logits_file("val"))

    @cached_property
    def test(self) -> Logits:
        """Logits on the test split."""
        return Logits.read(self.folder / logits_file("test"))

    @cached_property
    def ood(self) -> Mapping[str, Logits]:
        """Logits on the test images of other data sets, by name; read when they are looked up."""
        return _Outside(self.folder)

    @property
    def temperature(self) -> float:
        """The temperature with the least NLL on the validation split."""
        return self.temperature_by("nll")

    def temperature_by(self, search: Search) -> float:
        """Return the temperature that another search finds on the validation split."""
        if search not in self._temperatures:
            self._temperatures[search] = TemperatureScaler(search).fit(self.val.logits, self.val.labels).temperature
        return self._temperatures[search]

    @property
    def temperature_is_fitted(self) -> bool:
        """Whether a validation image is wrong, without which no temperature can be fitted."""
        return not none_wrong(self.val.logits, self.val.labels)

    @cached_property
    def before(self) -> Predictions:
        """Predictions on the test split, as trained."""
        return self.test.predictions()

    @property
    def after(self) -> Predictions:
        """Predictions on the test split, after temperature scaling."""
        return self.scaled("nll")

    def scaled(self, search: Search) -> Predictions:
        """Return the predictions on the test split at the temperature that `search` finds."""
        if search not in self._scaled:
            self._scaled[search] = self.test.predictions(self.temperature_by(search))
        return self._scaled[search]

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """What `metrics.json` holds: test metrics as trained and after temperature scaling, and the temperature.

        Read from that file where there is one, so that no logits are needed.
        """
        path = self.folder / METRICS
        return read_json(path) if path.exists() else self.measure()

    def measure(self) -> dict[str, Any]:
        """Return what `metrics.json` holds, computed from the logits."""
        return {
            "test": self.before.metrics,
            "temperature": self.temperature,
            "test_after_temperature": self.after.metrics,
        }

    def release(self) -> None:
        """Drop logits and predictions, which are read again if they are asked for; temperatures stay."""
        self._scaled.clear()
        for name in ("val", "test", "ood", "before"):
            self.__dict__.pop(name, None)

    def __repr__(self) -> str:
        test = self.metrics["test"]
        return (
            f"Run({str(self.folder)!r}: {self.method} on {self.inputs['dataset']}, seed {self.seed}, "
            f"accuracy {100 * test['acc']:.1f} %, ECE {100 * test['ece']:.2f} %)"
        )

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{metric.title}</th>" for metric in USUAL)
        lines = []
        for name, values in (("as trained", self.before), (f"at temperature {self.temperature:.2f}", self.after)):
            cells = "".join(f"<td>{metric.show(values.metrics[metric.name])}</td>" for metric in USUAL)
            lines.append(f"<tr><th>{name}</th>{cells}</tr>")
        return f"<table><caption>{escape(repr(self))}</caption><tr><th></th>{head}</tr>{''.join(lines)}</table>"


class _Outside(Mapping[str, Logits]):
    """Logits on other data sets by name, each read once, when it is looked up."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._read: dict[str, Logits] = {}

    def __getitem__(self, name: str) -> Logits:
        if name not in self:
            raise KeyError(name)
        if name not in self._read:
            self._read[name] = Logits.read(self._folder / logits_file(f"ood-{name}"))
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        start, end = logits_file("ood-*").split("*")
        return iter(sorted(path.name[len(start) : -len(end)] for path in self._folder.glob(f"{start}*{end}")))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return (self._folder / logits_file(f"ood-{name}")).exists()
