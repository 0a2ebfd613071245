"""One function that loads any data set, by name or by folder."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from semmix.core.artifact import open_artifact
from semmix.core.errors import SemmixError, require, unknown_name
from semmix.core.progress import say
from semmix.data.dataset import Dataset, Split
from semmix.data.image_folder import load_folder
from semmix.data.known import CATALOG, Entry
from semmix.data.library import KIND, MANIFEST, data_root, load_parts
from semmix.data.listing import PARTS, looks_like_path
from semmix.data.splitting import PROTOCOLS, long_tail, split_parts, stratified_order, take

NUM_DIGITS = 300  # to train, and for val: few, so that over-confidence is real
KEPT_FILES = (MANIFEST, *(f"{part}.safetensors" for part in PARTS))
"""What a folder holds in which `semmix fit` keeps the images it has read and split."""


def list_datasets() -> list[str]:
    """Return the names `load_dataset` knows; it also takes the path of any image folder."""
    return sorted(["digits", *CATALOG])


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
    max_resident_gib: float | None = None,
) -> Dataset:
    """Return a data set, split by `protocol` and `seed`.

    Args:
        name: One of `list_datasets()`, or the path of an image folder, or of a table of paths and labels.
        root: Where imported data sets live; $SEMMIX_DATA or ~/.cache/semmix/datasets if None.
        protocol: `code` holds out a tenth of the training images as val, `paper` half of the test images.
        seed: Of the split.
        train_size: Number of training images, the classes in their proportions; all if None, but 300 for digits.
        imbalance: Size of the largest class over that of the smallest, for a long tail.
        size: Height and width to which the images are scaled and cropped.
        strict: Refuse an image folder with unusable files instead of skipping them.
        max_resident_gib: Leave the images of a folder that needs more memory in their files
            (`StreamedImages`); training can use them so.

    Returns:
        The data set: `train`, `val` and `test` are splits with `images` (uint8 [N, C, H, W]) and `labels`.

    Raises:
        SemmixError: If there is no such data set or folder, if it was not imported, or if an option does not fit it.

    Example:
        >>> data = load_dataset("digits", train_size=100)
        >>> data
        Dataset('digits': 100 train, 300 val, 1397 test, 10 classes, 1 x 8 x 8)
        >>> data.train.images.shape, data.train.labels[:3]
        (torch.Size([100, 1, 8, 8]), tensor([1, 5, 6]))
    """
    if protocol not in PROTOCOLS:
        raise unknown_name("protocol", protocol, PROTOCOLS)
    require(size is None or size >= 1, "size must be at least 1", size, "32 or 64 are usual")
    if name == "digits":
        dataset = _load_digits(seed, train_size)
        train_size = None  # done: what digits does not train on, it tests on
    elif name in CATALOG:
        dataset = _load_stored(CATALOG[str(name)], data_root(root), protocol, seed)
    elif all((Path(name) / kept).exists() for kept in KEPT_FILES):
        draws = train_size is not None or imbalance is not None  # by the seed, from what was split
        dataset = _load_kept(Path(name), protocol, 0 if draws else seed)
    else:
        dataset = _load_folder(name, size, protocol, seed, strict, max_resident_gib)
    if train_size is not None:
        dataset = replace(dataset, train=take(dataset.train, train_size, seed))
    if imbalance is not None:
        tail = long_tail(dataset.train, dataset.num_classes, imbalance, seed)
        dataset = replace(dataset, train=tail)
    return dataset if size is None else dataset.resized(size)


def _load_digits(seed: int, train_size: int | None) -> Dataset:
    """Return scikit-learn's 1,797 digits: `train_size` (300) to train, 300 to choose, all others to test."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)  # grey values 0..16, [1797, 64]
    images = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    every = Split(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)))
    num_train = NUM_DIGITS if train_size is None else train_size
    most = len(every) - NUM_DIGITS - 1
    require(0 < num_train <= most, "train_size does not fit the digits", train_size, f"choose 1 to {most}")
    parts = stratified_order(every, seed).tensor_split([NUM_DIGITS, NUM_DIGITS + num_train])
    val, train, test = map(every.select, parts)
    return Dataset("digits", tuple(map(str, range(10))), train, val, test)


def _load_stored(entry: Entry, root: Path, protocol: str, seed: int) -> Dataset:
    parts = load_parts(entry.name, root)
    test = parts.splits["test"]
    if "train" not in parts.splits:  # a set to test on, such as images from elsewhere
        nothing = test.select(test.labels[:0])
        return Dataset(entry.name, parts.class_names, nothing, nothing, test)
    splits = split_parts(parts.splits["train"], test, protocol, seed, entry.stratified)
    return Dataset(entry.name, parts.class_names, *splits)


def _load_kept(folder: Path, protocol: str, seed: int) -> Dataset:
    """Return what `semmix fit` made of a folder of images: its splits are decided."""
    source = open_artifact(folder, MANIFEST, KIND).manifest["source"]
    seen = f"protocol {protocol}, split seed {seed}"
    fix = f"leave both out, or name the folder of {source}, which can be split anew"
    require((protocol, seed) == ("code", 0), f"the splits in {folder} are decided", seen, fix)
    parts = load_parts(folder.name, folder.parent)
    return Dataset(source, parts.class_names, **parts.splits)


def _load_folder(
    path: str | Path, size: int | None, protocol: str, seed: int, strict: bool, max_resident_gib: float | None
) -> Dataset:
    if not looks_like_path(path):
        wanted = "or the path of a folder of class folders, a .csv or a .jsonl file"
        unknown = unknown_name("data set", str(path), list_datasets())
        raise SemmixError(unknown.what, unknown.seen, f"{unknown.fix}; {wanted}")
    dataset, report = load_folder(Path(path), size, protocol, seed, strict, max_resident_gib)
    if report.problems:
        say("\n".join(report.lines()))
    return dataset
