"""Images of other data sets: what a finished run answers to them, and whether it notices.

A foreign image should leave a classifier in doubt. The entropy of its answer is the score by which
foreign images are told from test images.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from semmix.calibration import METRICS, Interval, mean_interval, ood_auroc, ood_fpr
from semmix.core.device import pick_device, to_device
from semmix.core.errors import SemmixError
from semmix.core.files import read_json, write_tensors
from semmix.core.progress import progress
from semmix.data import Split, load_dataset
from semmix.networks.saved import load_classifier, saved_image_shape
from semmix.report.tables import Row
from semmix.runs import Run, Strangeness, foreign_file

FOREIGN_METRICS = {"auroc": METRICS["auroc"], "auroc_after": METRICS["auroc"], "let_in": METRICS["let_in"]}
"""How each number of `Noticed` is shown."""
FALSE_ALARMS = np.linspace(0, 1, 101)
"""Shares of test images called foreign at which curves are read off."""
BATCH_SIZE = 500


def predict_foreign(run: str | Path, dataset: str, device: str = "auto") -> Path:
    """Write the logits of a finished run on the test images of another data set; return the file.

    Images are scaled to the size the network knows. Logits that are there are not made again;
    those on other images of the same name are refused.
    """
    run = Path(run)
    channels, size, _ = saved_image_shape(run)
    name, split = _load_test(dataset, size)
    _refuse_own_images(run, name, split.digest)
    path = run / foreign_file(name)
    if path.exists():
        _refuse_other_images(path, split.digest)
        return path
    network = to_device(load_classifier(run)[0], pick_device(device))
    logits = _predict(network, _with_channels(split.images, channels, name), name)
    write_tensors(path, {"logits": logits, "labels": split.labels}, {"images": split.digest})
    return path


def _refuse_own_images(run: Path, name: str, digest: str) -> None:
    """Raise if these are the images a run is tested on, however they were named.

    The name counts too: under another seed, its data set has another test split.
    """
    inputs = read_json(run / "config.json")["inputs"]
    if digest == inputs.get("test"):
        fix = "name a data set it was not trained for"
        raise SemmixError("its own data set is not foreign to a run", name, fix)
    if name == inputs["dataset"]:
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


@torch.inference_mode()
def _predict(network: torch.nn.Module, images: Tensor, name: str) -> Tensor:
    device, logits = next(network.parameters()).device, []
    with progress(f"predict {name}", len(images)) as bar:
        for batch in images.split(BATCH_SIZE):
            logits.append(network(batch.to(device)).float().cpu())
            bar.advance(len(batch))
    return torch.cat(logits)


@dataclass(frozen=True)
class Noticed:
    """How well one row tells one foreign data set from its test images, over its runs."""

    name: str
    place: int
    """The row's number, which decides its colour."""
    before: tuple[Strangeness, ...]
    after: tuple[Strangeness, ...]

    @cached_property
    def auroc(self) -> Interval:
        """The chance that a foreign image leaves more doubt than a test image, as trained."""
        return _auroc(self.before)

    @cached_property
    def auroc_after(self) -> Interval:
        """The same after temperature scaling."""
        return _auroc(self.after)

    @cached_property
    def let_in(self) -> Interval:
        """The share of foreign images that pass when 95 % of the test images must."""
        return mean_interval([ood_fpr(scores.known, scores.foreign) for scores in self.before])

    @cached_property
    def found(self) -> np.ndarray:
        """The share of foreign images found at each of `FALSE_ALARMS`, mean over runs."""
        curves = [roc_curve(scores) for scores in self.before]
        return np.mean([np.interp(FALSE_ALARMS, *curve) for curve in curves], axis=0)


def _auroc(runs: Sequence[Strangeness]) -> Interval:
    return mean_interval([ood_auroc(scores.known, scores.foreign) for scores in runs])


def roc_curve(scores: Strangeness) -> tuple[np.ndarray, np.ndarray]:
    """Return the shares of known and of foreign images above each threshold, both from 0 to 1."""
    thresholds = np.unique(np.concatenate([scores.known, scores.foreign]))[::-1]
    shares = [
        1 - np.searchsorted(np.sort(values), thresholds, "left") / len(values)
        for values in (scores.known, scores.foreign)
    ]
    return np.insert(shares[0], 0, 0.0), np.insert(shares[1], 0, 0.0)


def noticed(rows: Sequence[Row]) -> dict[str, list[Noticed]]:
    """Return by foreign data set the rows that have logits on it, from the runs that do."""
    names = sorted({name for row in rows for run in row.runs for name in run.foreign})
    return {name: [_notice(row, k, name) for k, row in enumerate(rows) if _runs_with(row, name)] for name in names}


def _notice(row: Row, place: int, name: str) -> Noticed:
    pairs = [run.foreign[name] for run in _runs_with(row, name)]
    before, after = zip(*pairs, strict=True)
    return Noticed(row.name, place, before, after)


def _runs_with(row: Row, name: str) -> list[Run]:
    return [run for run in row.runs if name in run.foreign]
