"""Which image files there are, of which class and part, and what was wrong with them: from folders, or from a table.

A folder holds one folder per class (`cat/1.png`, `cat/2024/1.png`), or `train`, `val` and `test` folders of those, by
any of their usual names. A table is a .csv or .jsonl file with a path and a label in every row.
"""

import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from semmix.core.errors import require
from semmix.core.files import printable
from semmix.core.progress import harmless
from semmix.data.decoding import SUFFIXES
from semmix.data.image_table import PART_NAMES, PARTS, TABLE_SUFFIXES, read_table

# what can be wrong with a file -> whether the file is skipped for it
PROBLEMS: dict[str, bool] = dict.fromkeys(("empty", "unreadable", "truncated", "too large", "animated"), True)
PROBLEMS |= {"copied across parts": False, "warning": False}
LISTED_PER_KIND = 5


@dataclass(frozen=True)
class Problem:
    """One file, what is wrong with it, and how that showed."""

    path: str
    kind: str
    detail: str


@dataclass
class FolderReport:
    """What was found in an image folder."""

    folder: Path
    num_images: Counter[tuple[str, str]] = field(default_factory=Counter)  # by (part, class name)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)  # by (width, height)
    problems: list[Problem] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)  # files that are no images, unused folders

    @property
    def is_table(self) -> bool:
        """Whether a table of paths was named, not a folder."""
        return self.folder.suffix.lower() in TABLE_SUFFIXES and not self.folder.is_dir()

    @property
    def skipped(self) -> list[Problem]:
        """The problems that cost an image."""
        return [problem for problem in self.problems if PROBLEMS[problem.kind]]

    def lines(self) -> list[str]:
        """Return the report for people."""
        parts = Counter[str]()
        for (part, _), count in self.num_images.items():
            parts[part] += count
        num_classes = len({name for _, name in self.num_images})
        lines = [f"{self.folder}: {parts.total()} images in {num_classes} classes"]
        lines += [f"  {part}: {count}" for part, count in parts.items() if part]
        if len(self.sizes) > 1:
            (width, height), _ = self.sizes.most_common(1)[0]
            lines.append(f"  {len(self.sizes)} sizes, most often {width} x {height}")
        for kind, is_skipped in PROBLEMS.items():
            found = [f"{bad.path}: {bad.detail}" for bad in self.problems if bad.kind == kind]
            lines += _list_some(f"{kind}, {'skipped' if is_skipped else 'kept'}", found)
        lines += _list_some("other files and folders, ignored", self.ignored)
        return list(map(harmless, lines))

    def advice(self) -> list[str]:
        """Return what to do about a folder that teaches no classifier."""
        return [] if len({name for _, name in self.num_images}) >= 2 else [f"  -> {self.wanted}"]

    @property
    def wanted(self) -> str:
        """What the folder, or the table, must hold to teach a classifier."""
        kinds = ", ".join(SUFFIXES)
        if self.is_table:
            paths = "paths from the table's own folder"
            return f"rows with two labels at least are wanted, and {paths}, of {kinds} files"
        return f"two folders at least are wanted, one for each class, with {kinds} files in them"


def _list_some(title: str, names: list[str]) -> list[str]:
    if not names:
        return []
    lines = [f"  {title}: {len(names)}", *(f"    {name}" for name in names[:LISTED_PER_KIND])]
    more = len(names) - LISTED_PER_KIND
    return [*lines, f"    and {more} more"] if more > 0 else lines


HIDDEN = ("__MACOSX", "__pycache__")
"""Folders that programs leave behind; like names with a dot in front, they are not mentioned."""


@dataclass(frozen=True)
class ImageFile:
    """One file and what is known of it before it is read."""

    part: str  # "" where the images are not divided
    class_name: str
    path: Path
    name: str  # as people are shown it


def looks_like_path(name: str | Path) -> bool:
    """Return whether `name` is meant as a path rather than as the name of a data set."""
    path = Path(name)
    return path.is_dir() or os.sep in str(name) or path.suffix.lower() in TABLE_SUFFIXES


def name_of(path: Path) -> str:
    """Return what the images of a folder or a table are called."""
    path = path.resolve()
    return printable(path.name if path.is_dir() else path.stem)


def list_files(report: FolderReport) -> list[ImageFile]:
    """Return the files that `report.folder`, a folder or a table, names; they need not be sound."""
    if report.is_table:
        table = report.folder
        return [
            ImageFile(row.part, printable(row.label), table.parent / row.path, printable(row.path))
            for row in read_table(table)
        ]
    fix = "check the path; a folder of class folders, or a .csv or .jsonl file, is wanted"
    require(report.folder.is_dir(), "no such folder", report.folder, fix)
    return list(_found_in_folder(report))


def _found_in_folder(report: FolderReport) -> Iterator[ImageFile]:
    parts = _part_folders(report)
    bases = [base for _, base in parts]
    if report.folder not in bases:  # what lies beside `train` and is no part
        beside = (path for path in _entries(report, report.folder) if path not in bases and not _is_hidden(path))
        report.ignored += _shown(report, beside)
    for base in bases:  # what lies beside class folders: images of no class, links that lead nowhere
        loose = (path for path in _entries(report, base) if not path.is_dir() and not _is_hidden(path))
        report.ignored += _shown(report, loose)
    part_of = {folder: part for part, base in parts for folder in _subfolders(report, base)}
    filled: set[Path] = set()
    for folder, path in walk_files(report, part_of, not_again=[report.folder, *bases]):
        name = printable(path.relative_to(report.folder))
        if path.suffix.lower() in SUFFIXES:
            filled.add(folder)
            yield ImageFile(part_of[folder], printable(folder.name), path, name)
        else:
            report.ignored.append(name)
    named = {*report.ignored, *(problem.path for problem in report.problems)}
    empty = _shown(report, (folder for folder in part_of if folder not in filled))
    report.ignored += [name for name in empty if name not in named]


def walk_files(
    report: FolderReport, folders: Iterable[Path], not_again: Iterable[Path] = ()
) -> Iterator[tuple[Path, Path]]:
    """Yield each file under some folders, with the one of them it was found in; hidden names are left out.

    Links to folders wait until all folders are walked: one that leads to another, or into one, would take
    its files. A folder met before is not entered again, but reported as ignored.
    """
    visited = {_identity(folder) for folder in not_again}
    waiting = deque((folder, folder) for folder in sorted(folders, key=Path.is_symlink))
    while waiting:
        top, folder = waiting.popleft()
        for path in _files_below(report, folder, visited):
            if _is_folder(path):
                waiting.append((top, path))
            else:
                yield top, path


def _files_below(report: FolderReport, folder: Path, visited: set[tuple[int, int]]) -> Iterator[Path]:
    """Yield the files under `folder`, and the links to folders."""
    identity = _identity(folder)
    if identity in visited:
        report.ignored.append(printable(folder.relative_to(report.folder)))
        return
    visited.add(identity)
    for path in _entries(report, folder):
        is_folder = _is_folder(path)
        if path.name.startswith(".") or (is_folder and _is_hidden(path)):
            continue
        if is_folder and not path.is_symlink():
            yield from _files_below(report, path, visited)
        else:
            yield path


def _is_folder(path: Path) -> bool:
    """Return whether to look inside; a folder named like an image is a mistake to be told."""
    return path.suffix.lower() not in SUFFIXES and path.is_dir()


def _part_folders(report: FolderReport) -> list[tuple[str, Path]]:
    """Return the folders of class folders, each with its part, train first."""
    folders = _subfolders(report, report.folder)
    named = [(PART_NAMES.get(folder.name.lower(), ""), folder) for folder in folders]
    parts = [(part, folder) for name in PARTS for part, folder in named if part == name]
    # A class may be called "train" (ships, trains, ...): a part holds folders, a class holds files.
    if not any(part == "train" and _subfolders(report, base) for part, base in parts):
        only_parts = len(folders) == len(parts) > 1  # they cannot be the classes
        fix = "give train/CLASS/, val/CLASS/ and test/CLASS/ folders, or one folder for each class"
        seen = ", ".join(folder.name for folder in folders)
        require(not only_parts, "no train part with class folders in it", seen, fix)
        return [("", report.folder)]
    return parts


def _shown(report: FolderReport, paths: Iterable[Path]) -> list[str]:
    return [printable(path.relative_to(report.folder)) for path in paths]


def _subfolders(report: FolderReport, folder: Path) -> list[Path]:
    return [path for path in _entries(report, folder) if path.is_dir() and not _is_hidden(path)]


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(".") or path.name in HIDDEN


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _entries(report: FolderReport, folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        name = printable(folder.relative_to(report.folder))
        report.problems.append(Problem(name, "unreadable", error.strerror or str(error)))
        return []
