"""One function that loads any data set, by name or by folder."""

from dataclasses import replace
from pathlib import Path

from semmix._errors import unknown_name
from semmix.datasets.dataset import Dataset
from semmix.datasets.digits import load_digits
from semmix.datasets.splitting import PROTOCOLS, long_tail

NAMES = ("digits",)


def list_datasets() -> list[str]:
    """Return the names `load_dataset` knows; it also takes the path of any image folder."""
    return sorted(NAMES)


def load_dataset(
    name: str,
    root: str | Path | None = None,
    protocol: str = "code",
    seed: int = 0,
    train_size: int | None = None,
    imbalance: float | None = None,
) -> Dataset:
    """Return a data set, split by `protocol` and `seed`.

    Args:
        name: one of `list_datasets()`.
        root: where imported data sets live; $SEMMIX_DATA or ~/.cache/semmix/datasets if None.
        protocol: `code` holds out a tenth of the training images as val, `paper` half of the test
            images.
        seed: of the split.
        train_size: number of training images, drawn evenly from the classes; all if None.
        imbalance: size of the largest class over that of the smallest, for a long tail.
    """
    if protocol not in PROTOCOLS:
        raise unknown_name("protocol", protocol, PROTOCOLS)
    if name not in NAMES:
        raise unknown_name("data set", name, list_datasets())
    dataset = load_digits(seed, train_size)
    if imbalance is not None:
        tail = long_tail(dataset.train, dataset.num_classes, imbalance, seed)
        dataset = replace(dataset, train=tail)
    return dataset
