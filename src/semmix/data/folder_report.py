"""What was found in an image folder, and what was wrong with it."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from semmix.core.progress import harmless
from semmix.data.decoding import SUFFIXES
from semmix.data.image_table import TABLE_SUFFIXES

# what can be wrong with a file -> whether the file is skipped for it
PROBLEMS = {
    "empty": True,
    "unreadable": True,
    "truncated": True,
    "too large": True,
    "animated": True,
    "copied across parts": False,
    "warning": False,
}
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
