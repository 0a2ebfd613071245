"""Any folder or table of images, with a report of every file that could not be used."""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch

from semmix.core.errors import SemmixError, require, some_of
from semmix.core.progress import harmless, progress
from semmix.data.dataset import Dataset, Parts, Split
from semmix.data.decoding import BadImageError, StreamedImages, read_picture, read_pixels, sizes_differ
from semmix.data.duplicates import Duplicates, find_duplicates
from semmix.data.listing import LISTED_PER_KIND, PARTS, FolderReport, ImageFile, Problem, list_files, name_of
from semmix.data.splitting import VAL_FRACTION, hold_out

HELD_OUT = 0.15  # of an undivided folder, for val and for test each
MAX_TOTAL_BYTES = 8 * 2**30


@dataclass(frozen=True, eq=False)
class Gathered:
    """All usable images of a folder, each with its file, and the report on the others."""

    images: Split
    files: list[ImageFile]
    class_names: tuple[str, ...]
    report: FolderReport

    def rows(self, part: str) -> torch.Tensor:
        """Return which images belong to a part of the folder's own."""
        return torch.tensor([file.part == part for file in self.files]).nonzero().squeeze(1)

    @property
    def parts(self) -> list[str]:
        """The parts the folder itself has; [""] where it is not divided."""
        return list(dict.fromkeys(file.part for file in self.files))


def load_folder(
    folder: Path, size: int | None, protocol: str, seed: int, strict: bool, max_resident_gib: float | None = None
) -> tuple[Dataset, FolderReport]:
    """Return the images under `folder` as a data set, and the report.

    Images that take more than `max_resident_gib` stay in their files; none of those may be damaged.
    """
    if max_resident_gib is None:
        found = gather(folder, size, strict)
    elif _fits(folder, size, max_resident_gib * 2**30):
        found = gather(folder, size, strict, int(max_resident_gib * 2**30))
    else:
        found = gather_streamed(folder, size)
    duplicates = find_duplicates(found.images)
    for rows in across_parts(found, duplicates):
        first, copy = (found.files[row] for row in rows[:2])
        detail = f"in {first.part}, its copy {copy.name} in {copy.part}"
        found.report.problems.append(Problem(first.name, "copied across parts", detail))
    return as_dataset(found, divide(found, duplicates, protocol, seed)), found.report


def divide(found: Gathered, duplicates: Duplicates, protocol: str, seed: int) -> dict[str, torch.Tensor]:
    """Return the rows of train, val and test; copies of an image are not put on two sides.

    A folder's own parts are used as they are, copies included; where there is only one beside
    train, it is the test part, and the protocol says where val comes from.
    """
    own = {part: found.rows(part) for part in found.parts}
    fix = "run semmix data check on it"
    require(own.keys() & {"", "train"}, "no usable training image", found.report.folder, fix)
    if all(name in own for name in PARTS):
        return {name: own[name] for name in PARTS}

    def held_out_of(rows: torch.Tensor, nums: list[int], share: float) -> list[torch.Tensor]:
        groups = duplicates.near[rows]
        return [rows[k] for k in hold_out(found.images.select(rows), groups, nums, seed, share)]

    other = own.get("test", own.get("val"))
    if other is None:
        (every,) = own.values()
        num_held = round(HELD_OUT * len(every))
        val, test, train = held_out_of(every, [num_held, num_held], 0.5)
    elif protocol == "code":
        test, num_val = other, round(VAL_FRACTION * len(own["train"]))
        val, train = held_out_of(own["train"], [num_val], 0.5)
    else:
        train = own["train"]
        val, test = held_out_of(other, [len(other) // 2], 1.0)
    return {"train": train, "val": val, "test": test}


def across_parts(found: Gathered, duplicates: Duplicates) -> list[list[int]]:
    """Return the sets of near copies that lie in more than one of the folder's own parts."""
    return duplicates.across([file.part for file in found.files])


def as_dataset(found: Gathered, rows: dict[str, torch.Tensor]) -> Dataset:
    """Return the images in their splits; every split and, in train, every class needs one."""
    splits = {name: found.images.select(rows[name]) for name in PARTS}
    dataset = Dataset(name_of(found.report.folder), found.class_names, **splits)
    fix = "add images (copies of one count as one), or divide them into train, val and test folders yourself"
    seen = f"{sum(map(len, splits.values()))} images"
    for name, split in splits.items():
        require(len(split), f"no images are left for the {name} split", seen, fix)
    counts = dataset.train.class_counts(dataset.num_classes)
    missing = [name for name, n in zip(dataset.class_names, counts, strict=True) if n == 0]
    require(not missing, "classes without a training image", some_of(missing), "add images or remove them")
    return dataset


def read_folder(folder: Path, strict: bool = False) -> tuple[Parts, FolderReport]:
    """Return the folder's own parts (one named "" if undivided) and the report."""
    found = gather(folder, strict=strict)
    splits = {part: found.images.select(found.rows(part)) for part in found.parts}
    return Parts(splits, found.class_names), found.report


def gather(folder: Path, size: int | None = None, strict: bool = False, max_bytes: int | None = None) -> Gathered:
    """Return all usable images under `folder`, or of a table, in memory."""
    report = FolderReport(Path(folder))
    max_bytes = MAX_TOTAL_BYTES if max_bytes is None else max_bytes
    pixels: list[np.ndarray] = []
    files: list[ImageFile] = []
    for file, image in _read_images(report, size):
        height, width = image.shape[:2]
        if pixels and pixels[0].shape[:2] != (height, width):
            first_height, first_width = pixels[0].shape[:2]
            first = f"{files[0].path.name} is {first_width} x {first_height}"
            raise sizes_differ(harmless(f"{first}, {file.path.name} is {width} x {height}"))
        what = f"the images take more than {_show_bytes(max_bytes)} of memory"
        fits = len(pixels) * image.nbytes <= max_bytes
        require(fits, what, f"{width} x {height} pixels each", "give a smaller size")
        files.append(file)
        pixels.append(image)
    if strict and report.skipped:
        raise unusable_files(report.skipped, len(report.skipped))
    if not files:
        raise SemmixError("no images found", "\n  ".join(report.lines()), report.wanted)
    channels = max(image.shape[2] for image in pixels)  # grey stays grey if all are
    images = torch.empty(len(pixels), channels, *pixels[0].shape[:2], dtype=torch.uint8)
    for row, image in enumerate(pixels):
        images[row] = torch.from_numpy(image.copy()).permute(2, 0, 1)  # one channel fills three
    return _gathered(images, files, report)


def unusable_files(skipped: list[Problem], num: int) -> SemmixError:
    """Return the error for a folder with `num` unusable files, which `strict` does not allow."""
    shown = "; ".join(f"{bad.path} ({bad.kind})" for bad in skipped[:LISTED_PER_KIND])
    fix = "mend or remove them, or leave out strict to skip them"
    return SemmixError(f"{num} files cannot be used", harmless(shown), fix)


def gather_streamed(folder: Path, size: int | None = None) -> Gathered:
    """Return all images with their pixels still in their files, and an empty report."""
    report = FolderReport(Path(folder))
    files = list_files(report)
    images = StreamedImages([file.path for file in files], _common_shape(files, size), size)
    # It offers what splits and training use of a tensor.
    return _gathered(cast(torch.Tensor, images), files, report)


def _gathered(images: torch.Tensor, files: list[ImageFile], report: FolderReport) -> Gathered:
    class_names = tuple(sorted({file.class_name for file in files}))
    label_of = {name: label for label, name in enumerate(class_names)}
    labels = torch.tensor([label_of[file.class_name] for file in files])
    return Gathered(Split(images, labels), files, class_names, report)


def _fits(folder: Path, size: int | None, max_bytes: float) -> bool:
    """Return whether the decoded images fit; one in colour makes all take three channels."""
    files = list_files(FolderReport(Path(folder)))
    first = next(_readable(files, size), None)
    num_pixels = 0 if first is None else len(files) * math.prod(first.shape[:2])
    if num_pixels <= max_bytes < 3 * num_pixels:  # only if all are grey; telling takes long
        return num_pixels * _common_shape(files, size)[0] <= max_bytes
    return num_pixels <= max_bytes


def _common_shape(files: list[ImageFile], size: int | None) -> tuple[int, int, int]:
    """Return channels, height and width; grey stays grey if all are."""
    channels = height = width = 0
    for image in _readable(files, size):
        height, width, channels = image.shape
        if channels == 3:
            break
    return channels, height, width


def _readable(files: list[ImageFile], size: int | None) -> Iterator[np.ndarray]:
    for file in files:
        with contextlib.suppress(BadImageError):
            yield read_pixels(file.path, size)


def check_folder(folder: Path) -> FolderReport:
    """Return the report on every file under `folder`, keeping none of the pixels."""
    report = FolderReport(Path(folder))
    for _ in _read_images(report, size=None):
        pass
    return report


def _read_images(report: FolderReport, size: int | None) -> Iterator[tuple[ImageFile, np.ndarray]]:
    files = list_files(report)
    with progress(f"reading {report.folder.name}", len(files)) as bar:
        for file in files:
            bar.advance()
            try:
                picture = read_picture(file.path, size)
            except BadImageError as bad:
                report.problems.append(Problem(file.name, bad.kind, bad.detail))
                continue
            report.problems += [Problem(file.name, "warning", text) for text in picture.warnings]
            report.num_images[file.part, file.class_name] += 1
            report.sizes[picture.stored_size] += 1
            yield file, picture.pixels


def _show_bytes(num: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if num < 1024:
            return f"{num:.4g} {unit}"
        num /= 1024
    return f"{num:.4g} GiB"
