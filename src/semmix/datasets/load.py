"""One function that loads any data set, by name or by folder."""

import os
from dataclasses import replace
from pathlib import Path

from semmix._errors import SemmixError, unknown_name
from semmix._progress import say
from semmix.datasets.dataset import Dataset
from semmix.datasets.digits import load_digits
from semmix.datasets.folder import load_folder
from semmix.datasets.splitting import PROTOCOLS, long_tail, take

NAMES = ("digits",)


def list_datasets() -> list[str]:
    """Return the names `load_dataset` knows; it also takes the path of any image folder."""
    return sorted(NAMES)


def load_dataset(
    name: str | Path,
    root: str | Path | None = None,
    protocol: str = "code",
    seed: int = 0,
    train_size: int | None = None,
    imbalance: float | None = None,
    *,
    size: int | None = None,
    strict: bool = False,
) -> Dataset:
    """Return a data set, split by `protocol` and `seed`.

    Args:
        name: one of `list_datasets()`, or the path of an image folder.
        root: where imported data sets live; $SEMMIX_DATA or ~/.cache/semmix/datasets if None.
        protocol: `code` holds out a tenth of the training images as val, `paper` half of the test
            images.
        seed: of the split.
        train_size: number of training images, drawn evenly from the classes; all if None.
        imbalance: size of the largest class over that of the smallest, for a long tail.
        size: height and width to which an image folder's pictures are scaled and cropped.
        strict: refuse an image folder with unusable files instead of skipping them.
    """
    if protocol not in PROTOCOLS:
        raise unknown_name("protocol", protocol, PROTOCOLS)
    if name == "digits":
        dataset = load_digits(seed, train_size)
    elif Path(name).is_dir():
        dataset, report = load_folder(Path(name), size, protocol, seed, strict)
        if report.problems:
            say("\n".join(report.lines()))
        if train_size is not None:
            dataset = replace(dataset, train=take(dataset.train, train_size, seed))
    elif os.sep in str(name):
        raise SemmixError("no such folder", name, "check the path")
    else:
        raise unknown_name("data set", str(name), list_datasets())
    if imbalance is not None:
        tail = long_tail(dataset.train, dataset.num_classes, imbalance, seed)
        dataset = replace(dataset, train=tail)
    return dataset
