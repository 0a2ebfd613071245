"""Out-of-distribution (OOD) images: what finished runs predict for them, and whether they are detected.

An OOD image shows none of the classes, so a prediction for it should have high entropy. The entropy is the
score by which OOD images are told from test images.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from semmix.calibration import METRICS, Interval, mean_interval, ood_auroc, ood_fpr, ood_score
from semmix.core.device import pick_device, to_device
from semmix.core.errors import explaining, require
from semmix.core.files import write_tensors
from semmix.core.progress import progress
from semmix.data import Split, load_dataset
from semmix.networks.predicting import predict_logits
from semmix.networks.saved import load_classifier, saved_image_shape
from semmix.report.rows import Row
from semmix.runs import Run, logits_file

OOD_METRICS = {"auroc": METRICS["auroc"], "auroc_after": METRICS["auroc"], "fpr": METRICS["fpr"]}
"""How each number of `Detection` is shown."""
FALSE_ALARMS = np.linspace(0, 1, 101)  # shares of test images called OOD at which ROC curves are read off
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
        SemmixError: If these are the images the run was tested on, or do not fit its network.
    """
    run = Run.open(run)
    channels, size, _ = saved_image_shape(run.folder)
    name, split = _load_test(dataset, size)
    fix = "name a data set it was not trained for"
    other = split.digest != run.inputs.get("test")
    require(other, "its own data set is not out-of-distribution for a run", name, fix)
    # The name counts too: under another seed, its data set has another test split.
    fix += "; if these are other images, rename the folder"
    require(name != run.inputs["dataset"], "the run's own data set has this name", name, fix)
    path = run.folder / logits_file(f"ood-{name}")
    if path.exists():
        errors = OSError, SafetensorError, ValueError
        with explaining(f"cannot read {path}", "delete it: it is made again", *errors), safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {}).get("semmix", "{}"))
        digest = header.get("images", split.digest)  # a file that does not name its images is trusted
        fix = "delete or rename that file, or rename the folder of images"
        seen = f"images {digest[:6]} in place of {split.digest[:6]}"
        require(digest == split.digest, f"{path} belongs to another data set of this name", seen, fix)
        return path
    seen = f"{name} has {split.images.shape[1]} channels, the network takes {channels}"
    fits = split.images.shape[1] in (1, channels)
    require(fits, "these images do not fit the network", seen, "choose another data set")
    images = split.images.expand(-1, channels, -1, -1)  # grey ones are repeated
    network = to_device(load_classifier(run.folder)[0], pick_device(device))
    with progress(f"predict {name}", len(split)) as bar:
        logits = predict_logits(network, images, BATCH_SIZE, bar=bar)
    write_tensors(path, {"logits": logits.cpu(), "labels": split.labels}, {"images": split.digest})
    return path


@lru_cache(maxsize=2)
def _load_test(dataset: str, size: int) -> tuple[str, Split]:
    """Return a data set's name and test images; the last ones are kept, for the next run."""
    data = load_dataset(dataset, size=size)
    return data.name, data.test


Scores = tuple[np.ndarray, np.ndarray]
"""Entropies of one run's predictions: for its own test images [N], and for the OOD images [M]."""


def ood_scores(run: Run, name: str, temperature: float = 1.0) -> Scores:
    """Return the scores of a run's test images and of the images of data set `name`."""
    test, ood = (ood_score(part.logits.astype(np.float64) / temperature) for part in (run.test, run.ood[name]))
    return test, ood


class Detection(NamedTuple):
    """How well the runs of one row tell the images of one data set from their test images."""

    name: str
    place: int  # the row's number, which decides its colour
    auroc: Interval  # the chance that an OOD image has a higher score than a test image, as trained
    auroc_after: Interval  # the same after temperature scaling
    fpr: Interval  # the share of OOD images accepted where 95 % of the test images must be
    found: np.ndarray  # the share of OOD images found at each of `FALSE_ALARMS`, mean over runs


def roc_curve(scores: Scores) -> tuple[np.ndarray, np.ndarray]:
    """Return the shares of test and of OOD images at or above each threshold, both from 0 to 1."""
    thresholds = np.unique(np.concatenate(scores))[::-1]
    test, ood = (1 - np.searchsorted(np.sort(values), thresholds, "left") / len(values) for values in scores)
    return np.insert(test, 0, 0.0), np.insert(ood, 0, 0.0)


def detections(rows: Sequence[Row]) -> dict[str, list[Detection]]:
    """Return by OOD data set the rows with logits on it, each from those of its runs that have them."""
    found: dict[str, list[Detection]] = {}
    for name in sorted({name for row in rows for run in row.runs for name in run.ood}):
        for place, row in enumerate(rows):
            if runs := [run for run in row.runs if name in run.ood]:
                before = [ood_scores(run, name) for run in runs]
                after = [ood_scores(run, name, run.temperature) for run in runs]
                areas, areas_after = ([ood_auroc(*scores) for scores in stage] for stage in (before, after))
                fpr = mean_interval([ood_fpr(*scores) for scores in before])
                curve = np.mean([np.interp(FALSE_ALARMS, *roc_curve(scores)) for scores in before], axis=0)
                measured = mean_interval(areas), mean_interval(areas_after), fpr, curve
                found.setdefault(name, []).append(Detection(row.name, place, *measured))
    return found
