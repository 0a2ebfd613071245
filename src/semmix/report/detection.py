"""Out-of-distribution (OOD) images: what finished runs predict for them, and whether they are detected.

An OOD image shows none of the classes, so a prediction for it should have high entropy. The entropy is the
score by which OOD images are told from test images.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from torch import Tensor

from semmix.calibration import METRICS, Interval, mean_interval, ood_auroc, ood_fpr, ood_score
from semmix.core.device import pick_device, to_device
from semmix.core.errors import SemmixError
from semmix.core.files import write_tensors
from semmix.core.progress import progress
from semmix.data import Split, load_dataset
from semmix.networks.predicting import predict_logits
from semmix.networks.saved import load_classifier, saved_image_shape
from semmix.report.rows import Row
from semmix.runs import Run, logits_file

OOD_METRICS = {"auroc": METRICS["auroc"], "auroc_after": METRICS["auroc"], "fpr": METRICS["fpr"]}
"""How each number of `Detection` is shown."""
FALSE_ALARMS = np.linspace(0, 1, 101)
"""Shares of test images called OOD at which ROC curves are read off."""
BATCH_SIZE = 500


def predict_ood(run: Run | str | Path, dataset: str, device: str = "auto") -> Path:
    """Write the logits of a finished run on the test images of another data set; return the file.

    Images are scaled to the size the network takes. A file that is there already is not made again; one
    with logits on other images of the same name is refused.

    Args:
        run: A run with its weights, or its folder.
        dataset: Name of a data set, or a folder of images.
        device: auto, cpu or cuda.

    Raises:
        SemmixError: If these are the images the run was tested on.
    """
    run = Run.open(run)
    channels, size, _ = saved_image_shape(run.folder)
    name, split = _load_test(dataset, size)
    _refuse_own_images(run, name, split.digest)
    path = run.folder / logits_file(f"ood-{name}")
    if path.exists():
        _refuse_other_images(path, split.digest)
        return path
    network = to_device(load_classifier(run.folder)[0], pick_device(device))
    with progress(f"predict {name}", len(split)) as bar:
        logits = predict_logits(network, _with_channels(split.images, channels, name), BATCH_SIZE, bar=bar)
    write_tensors(path, {"logits": logits.cpu(), "labels": split.labels}, {"images": split.digest})
    return path


def _refuse_own_images(run: Run, name: str, digest: str) -> None:
    """Raise if these are the images a run is tested on, however they were named.

    The name counts too: under another seed, its data set has another test split.
    """
    if digest == run.inputs.get("test"):
        fix = "name a data set it was not trained for"
        raise SemmixError("its own data set is not out-of-distribution for a run", name, fix)
    if name == run.inputs["dataset"]:
        fix = "name a data set it was not trained for; if these are other images, rename the folder"
        raise SemmixError("the run's own data set has this name", name, fix)


def _refuse_other_images(path: Path, digest: str) -> None:
    """Raise if a file holds logits on other images; one that does not name them is trusted."""
    seen = _read_header(path).get("images", digest)
    if seen != digest:
        fix = "delete or rename that file, or rename the folder of images"
        seen = f"images {seen[:6]} in place of {digest[:6]}"
        raise SemmixError(f"{path} belongs to another data set of this name", seen, fix)


def _read_header(path: Path) -> dict[str, str]:
    """Return what `write_tensors` got as header; empty where it got none."""
    try:
        with safe_open(path, framework="pt") as file:
            return json.loads((file.metadata() or {}).get("semmix", "{}"))
    except (OSError, SafetensorError, ValueError) as error:
        fix = "delete it: it is made again"
        raise SemmixError(f"cannot read {path}", error, fix) from error


@lru_cache(maxsize=2)
def _load_test(dataset: str, size: int) -> tuple[str, Split]:
    """Return a data set's name and test images; the last ones are kept, for the next run."""
    data = load_dataset(dataset, size=size)
    return data.name, data.test


def _with_channels(images: Tensor, channels: int, name: str) -> Tensor:
    """Return the images with as many channels as the network takes; grey ones may be repeated."""
    if images.shape[1] not in (1, channels):
        seen = f"{name} has {images.shape[1]} channels, the network takes {channels}"
        raise SemmixError("these images do not fit the network", seen, "choose another data set")
    return images.expand(-1, channels, -1, -1)


class Scores(NamedTuple):
    """Entropies of one run's predictions."""

    test: np.ndarray  # [N], for its own test images
    ood: np.ndarray  # [M], for the OOD images


def ood_scores(run: Run, name: str, temperature: float = 1.0) -> Scores:
    """Return the scores of a run's test images and of the images of data set `name`."""
    logits = (part.logits.astype(np.float64) for part in (run.test, run.ood[name]))
    return Scores(*(ood_score(each / temperature) for each in logits))


@dataclass(frozen=True)
class Detection:
    """How well the runs of one row tell the images of one data set from their test images."""

    name: str
    place: int
    """The row's number, which decides its colour."""
    before: tuple[Scores, ...]
    """As trained, by run."""
    after: tuple[Scores, ...]
    """After temperature scaling."""

    @cached_property
    def auroc(self) -> Interval:
        """The chance that an OOD image has a higher score than a test image, as trained."""
        return _auroc(self.before)

    @cached_property
    def auroc_after(self) -> Interval:
        """The same after temperature scaling."""
        return _auroc(self.after)

    @cached_property
    def fpr(self) -> Interval:
        """The share of OOD images accepted where 95 % of the test images must be."""
        return mean_interval([ood_fpr(*scores) for scores in self.before])

    @cached_property
    def found(self) -> np.ndarray:
        """The share of OOD images found at each of `FALSE_ALARMS`, mean over runs."""
        curves = [roc_curve(scores) for scores in self.before]
        return np.mean([np.interp(FALSE_ALARMS, *curve) for curve in curves], axis=0)


def _auroc(runs: Sequence[Scores]) -> Interval:
    return mean_interval([ood_auroc(*scores) for scores in runs])


def roc_curve(scores: Scores) -> tuple[np.ndarray, np.ndarray]:
    """Return the shares of test and of OOD images at or above each threshold, both from 0 to 1."""
    thresholds = np.unique(np.concatenate(scores))[::-1]
    test, ood = (1 - np.searchsorted(np.sort(values), thresholds, "left") / len(values) for values in scores)
    return np.insert(test, 0, 0.0), np.insert(ood, 0, 0.0)


def detections(rows: Sequence[Row]) -> dict[str, list[Detection]]:
    """Return by OOD data set the rows with logits on it, each from those of its runs that have them."""
    names = sorted({name for row in rows for run in row.runs for name in run.ood})
    found = {name: [_detection(row, k, name) for k, row in enumerate(rows)] for name in names}
    return {name: [detection for detection in each if detection.before] for name, each in found.items()}


def _detection(row: Row, place: int, name: str) -> Detection:
    runs = [run for run in row.runs if name in run.ood]
    before = tuple(ood_scores(run, name) for run in runs)
    after = tuple(ood_scores(run, name, run.temperature) for run in runs)
    return Detection(row.name, place, before, after)
