"""Any folder of images, with a report of every file that could not be used.

The folder holds one folder per class (`cat/1.png`), or `train`, `val` and `test` folders of those.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch

from semmix._errors import SemmixError
from semmix._progress import progress
from semmix.datasets.dataset import Dataset, Parts, Split
from semmix.datasets.folder_report import LISTED_PER_KIND, FolderReport, Problem
from semmix.datasets.images import SUFFIXES, BadImageError, read_picture, read_pixels
from semmix.datasets.splitting import split_parts, stratified_order
from semmix.datasets.streamed import StreamedImages

PARTS = ("train", "val", "test")
HELD_OUT = 0.15  # of an undivided folder, for val and for test each
MAX_TOTAL_BYTES = 8 * 2**30


def looks_like_folder(name: str | Path) -> bool:
    """Return whether `name` is meant as a path rather than as the name of a data set."""
    return Path(name).is_dir() or os.sep in str(name)


@dataclass(frozen=True)
class _File:
    part: str  # "" where the folder is not divided
    class_name: str
    path: Path


def load_folder(
    folder: Path,
    size: int | None,
    protocol: str,
    seed: int,
    strict: bool,
    max_resident_gib: float | None = None,
) -> tuple[Dataset, FolderReport]:
    """Return the images under `folder` as a data set, and the report.

    Images that take more than `max_resident_gib` stay in their files; none of those may be damaged.
    """
    if max_resident_gib is None:
        parts, report = read_folder(folder, size, strict)
    elif _decoded_bytes(folder, size) <= max_resident_gib * 2**30:
        parts, report = read_folder(folder, size, strict, int(max_resident_gib * 2**30))
    else:
        parts, report = stream_folder(folder, size)
    if not parts.splits.keys() & {"", "train"}:
        raise SemmixError("no usable training image", folder, "run semmix data check on it")
    splits = _split_folder(parts.splits, protocol, seed)
    dataset = Dataset(folder.resolve().name, parts.class_names, *splits)
    _check_splits(dataset)
    return dataset, report


def _split_folder(parts: dict[str, Split], protocol: str, seed: int) -> tuple[Split, Split, Split]:
    """Use the folder's own parts; where there is only one beside train, it is the test part."""
    if all(name in parts for name in PARTS):
        return parts["train"], parts["val"], parts["test"]
    held_out = parts.get("test") or parts.get("val")
    if held_out is not None:
        return split_parts(parts["train"], held_out, protocol, seed, stratified=True)
    (every,) = parts.values()
    num_held = round(HELD_OUT * len(every))
    order = stratified_order(every, seed)
    val, test, train = order.tensor_split([num_held, 2 * num_held])
    return every.select(train), every.select(val), every.select(test)


def _check_splits(dataset: Dataset) -> None:
    for name, split in dataset.splits.items():
        if len(split) == 0:
            raise SemmixError(
                f"no images are left for the {name} split",
                f"{sum(map(len, dataset.splits.values()))} images",
                "add images, or divide them into train, val and test folders yourself",
            )
    counts = dataset.train.class_counts(dataset.num_classes)
    missing = [name for name, n in zip(dataset.class_names, counts, strict=True) if n == 0]
    if missing:
        raise SemmixError(
            "classes without a training image", ", ".join(missing), "add images or remove them"
        )


def read_folder(
    folder: Path, size: int | None = None, strict: bool = False, max_bytes: int | None = None
) -> tuple[Parts, FolderReport]:
    """Return the folder's parts (one named "" if undivided) and the report."""
    report = FolderReport(Path(folder))
    max_bytes = MAX_TOTAL_BYTES if max_bytes is None else max_bytes
    pixels: list[np.ndarray] = []
    files: list[_File] = []
    for file, image in _read_images(report, size):
        _check_fits(file, image, files, pixels, max_bytes)
        files.append(file)
        pixels.append(image)
    if strict and report.skipped:
        raise SemmixError(
            f"{len(report.skipped)} files cannot be used",
            "; ".join(f"{bad.path} ({bad.kind})" for bad in report.skipped[:LISTED_PER_KIND]),
            "mend or remove them, or leave out strict to skip them",
        )
    if not files:
        raise SemmixError(
            "no images found",
            "\n  ".join(report.lines()),
            f"it must hold one folder per class with {', '.join(SUFFIXES)} files",
        )
    class_names = tuple(sorted({file.class_name for file in files}))
    return Parts(_stack_parts(files, pixels, class_names), class_names), report


def stream_folder(folder: Path, size: int | None = None) -> tuple[Parts, FolderReport]:
    """Return the folder's parts with all images still in their files, and an empty report."""
    report = FolderReport(Path(folder))
    files = list(_list_files(report))
    images = StreamedImages([file.path for file in files], _common_shape(files, size), size)
    class_names = tuple(sorted({file.class_name for file in files}))
    # It offers what splits and training use of a tensor.
    return Parts(_divide(files, cast(torch.Tensor, images), class_names), class_names), report


def _decoded_bytes(folder: Path, size: int | None) -> int:
    """Return how much memory the images need if all are like the first one that can be read."""
    files = list(_list_files(FolderReport(Path(folder))))
    first = next(_readable(files, size), None)
    return 0 if first is None else len(files) * first.nbytes


def _common_shape(files: list[_File], size: int | None) -> tuple[int, int, int]:
    """Return channels, height and width; grey stays grey if all are."""
    channels = height = width = 0
    for image in _readable(files, size):
        height, width, channels = image.shape
        if channels == 3:
            break
    return channels, height, width


def _readable(files: list[_File], size: int | None) -> Iterator[np.ndarray]:
    for file in files:
        with contextlib.suppress(BadImageError):
            yield read_pixels(file.path, size)


def check_folder(folder: Path) -> FolderReport:
    """Return the report on every file under `folder`, keeping none of the pixels."""
    report = FolderReport(Path(folder))
    for _ in _read_images(report, size=None):
        pass
    return report


def _read_images(report: FolderReport, size: int | None) -> Iterator[tuple[_File, np.ndarray]]:
    files = list(_list_files(report))
    with progress(f"reading {report.folder.name}", len(files)) as bar:
        for file in files:
            bar.advance()
            name = _printable(file.path.relative_to(report.folder))
            try:
                picture = read_picture(file.path, size)
            except BadImageError as bad:
                report.problems.append(Problem(name, bad.kind, bad.detail))
                continue
            report.problems += [Problem(name, "warning", text) for text in picture.warnings]
            report.num_images[file.part, file.class_name] += 1
            report.sizes[picture.pixels.shape[1], picture.pixels.shape[0]] += 1
            yield file, picture.pixels


def _list_files(report: FolderReport) -> Iterator[_File]:
    if not report.folder.is_dir():
        raise SemmixError("no such folder", report.folder, "check the path")
    for part, base in _part_folders(report).items():
        for class_folder in _subfolders(report, base):
            for path in _entries(report, class_folder):
                if path.suffix.lower() in SUFFIXES:
                    yield _File(part, _printable(class_folder.name), path)
                elif not path.is_dir() and not path.name.startswith("."):
                    report.ignored.append(_printable(path.relative_to(report.folder)))


def _part_folders(report: FolderReport) -> dict[str, Path]:
    folder = report.folder
    # A class may be called "train" (ships, trains, ...): a part holds folders, a class holds files.
    if not (folder / "train").is_dir() or not _subfolders(report, folder / "train"):
        return {"": folder}
    return {part: folder / part for part in PARTS if (folder / part).is_dir()}


def _subfolders(report: FolderReport, folder: Path) -> list[Path]:
    entries = _entries(report, folder)
    return [path for path in entries if path.is_dir() and not path.name.startswith((".", "__"))]


def _entries(report: FolderReport, folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        name = _printable(folder.relative_to(report.folder))
        report.problems.append(Problem(name, "unreadable", error.strerror or str(error)))
        return []


def _printable(path: Path | str) -> str:
    """Return the path as valid text, even where its bytes are not."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _check_fits(
    file: _File, image: np.ndarray, files: list[_File], pixels: list[np.ndarray], max_bytes: int
) -> None:
    height, width = image.shape[:2]
    if pixels and pixels[0].shape[:2] != (height, width):
        first_height, first_width = pixels[0].shape[:2]
        raise SemmixError(
            "the images differ in size",
            f"{files[0].path.name} is {first_width} x {first_height}, "
            f"{file.path.name} is {width} x {height}",
            "give one size, such as 64: all images are then scaled and cropped to it",
        )
    if len(pixels) * image.nbytes > max_bytes:
        raise SemmixError(
            f"the images take more than {max_bytes / 2**30:.0f} GiB of memory",
            f"{width} x {height} pixels each",
            "give a smaller size",
        )


def _stack_parts(
    files: list[_File], pixels: list[np.ndarray], class_names: tuple[str, ...]
) -> dict[str, Split]:
    channels = max(image.shape[2] for image in pixels)  # grey stays grey if all are
    height, width = pixels[0].shape[:2]
    images = torch.empty(len(pixels), channels, height, width, dtype=torch.uint8)
    for row, image in enumerate(pixels):
        images[row] = torch.from_numpy(image.copy()).permute(2, 0, 1)  # one channel fills three
    return _divide(files, images, class_names)


def _divide(
    files: list[_File], images: torch.Tensor, class_names: tuple[str, ...]
) -> dict[str, Split]:
    label_of = {name: label for label, name in enumerate(class_names)}
    labels = torch.tensor([label_of[file.class_name] for file in files])
    names = [file.part for file in files]
    every = Split(images, labels)
    if len(set(names)) == 1:
        return {names[0]: every}
    belongs = {part: [name == part for name in names] for part in dict.fromkeys(names)}
    return {part: every.select(torch.tensor(mask)) for part, mask in belongs.items()}
