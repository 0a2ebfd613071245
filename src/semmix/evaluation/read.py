"""Predictions from files of many kinds: what they hold is guessed, said, and can be overridden."""

import csv
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from zipfile import BadZipFile

import numpy as np
from numpy.lib.format import open_memmap
from numpy.lib.npyio import NpzFile
from safetensors import SafetensorError, safe_open

from semmix.core.artifact import folders_in
from semmix.core.errors import SemmixError, require, unknown_name
from semmix.evaluation.columns import (
    IGNORED_WORDS,
    SCORE_WORDS,
    Array,
    Names,
    Part,
    best_labels,
    likeliest,
    not_predicted,
    read_csv,
    read_csv_matrix,
    read_parquet,
    words,
)
from semmix.runs import logits_file

T = TypeVar("T")
Arrays = Mapping[str, Any]
Shapes = Mapping[str, tuple[int, ...]]

VAL_WORDS = {"val", "valid", "validation", "dev", "calib", "calibration", "holdout"}
TEST_WORDS = {"test", "eval", "evaluation"}
UNREADABLE = (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error, csv.Error, SafetensorError)
"""What the readers raise for files that are cut off or hold something else."""


def read_parts(path: Path, val: Path | None, names: Names, val_names: Names) -> dict[str, Part]:
    """Return the part to report on as `test` and the part to fit on, if any, as `val`."""
    if path.is_dir():
        _refuse_unused("a run folder holds its own parts", val, *names, *val_names)
        return _read_run(path)
    content = _read(path, names)
    parts = {"test": _find_part(path, content, names)}
    if val is not None:
        parts["val"] = _find_part(val, _read(val, val_names), val_names, prefer_val=True)
        test_order, val_order = parts["test"].columns, parts["val"].columns
        if test_order != val_order and sorted(test_order) == sorted(val_order):
            seen = f"{', '.join(test_order[:12])} in test, {', '.join(val_order[:12])} in validation"
            raise SemmixError("the two parts differ in the order of classes", seen, "write one order")
    elif not isinstance(content, Part) and (any(val_names) or all(_split(content))):
        parts["val"] = _find_part(path, content, val_names, prefer_val=True)
    else:
        _refuse_unused("there is no validation part to name anything of", *val_names)
    return parts


def _refuse_unused(why: str, *given: Path | str | None) -> None:
    """Refuse options that would change nothing."""
    if any(given):
        seen = ", ".join(str(value) for value in given if value)
        raise SemmixError(why, seen, "leave this out, or pass files: PATH and --val FILE")


def _read_run(folder: Path) -> dict[str, Part]:
    files = {part: folder / logits_file(part) for part in ("test", "val")}
    if not files["test"].exists():
        # A user has the folder of `semmix fit` at hand, or the model in it, rather than a run.
        outer = folder.parent if (folder / "model.json").exists() else folder
        inner = folders_in(outer, files["test"].name)
        fix = f"pass a run folder that holds {logits_file('test')}, or a file"
        fix += f", such as {inner[0]}" if inner else ""
        raise SemmixError("nothing to evaluate in this folder", folder, fix)
    return {part: _find_part(file, _read(file, Names()), Names()) for part, file in files.items() if file.exists()}


def read_matrix(path: Path) -> tuple[Array, list[str]]:
    """Return the one table of numbers in a file, `[N, K]` in float64, and warnings."""

    def only_table(arrays: Arrays) -> tuple[Array, list[str]]:
        shaped = [name for name, rows in arrays.items() if rows.ndim == 2]
        if len(shaped) != 1:
            seen = ", ".join(shaped) or "none"
            raise SemmixError(f"{path.name} must hold one table of numbers", seen, "leave one in it")
        return np.asarray(arrays[shaped[0]][:], np.float64), []

    readers = {kind: lambda path, read=read: only_table(read(path)) for kind, read in ARRAYS.items()}
    return _open(path, {**readers, ".csv": read_csv_matrix})


def _open(path: Path, readers: Mapping[str, Callable[[Path], T]]) -> T:
    """Return what the reader for this kind of file makes of it."""
    require(path.exists(), "no such file", path, "check the path")
    if path.suffix.lower() not in readers:
        raise SemmixError("unknown kind of file", path.name, f"pass one of {', '.join(readers)}")
    try:
        return readers[path.suffix.lower()](path)
    except UnicodeDecodeError as error:
        raise SemmixError(f"cannot read {path}", error, "save it as UTF-8") from error
    except UNREADABLE as error:
        told = error if isinstance(error, SemmixError) else error.__cause__  # np.loadtxt wraps what converters raise
        if isinstance(told, SemmixError):
            raise told from None
        raise SemmixError(f"cannot read {path}", error, "check that it is whole and holds numbers") from error


def _read(path: Path, names: Names) -> Part | Arrays:
    """Return the arrays in a file by name, or the part it holds where its reader can tell."""
    tables = {".csv": read_csv, ".npy": _read_npy_part, ".parquet": read_parquet}
    return _open(path, {**ARRAYS, **{k: lambda path, read=read: read(path, names) for k, read in tables.items()}})


# --- kinds of files -------------------------------------------------------------------------------


def _read_npz(path: Path) -> Arrays:
    with open(path, "rb") as file, NpzFile(file) as arrays:
        return dict(arrays)


class _LazyTensor:
    """Rows of a tensor in a safetensors file, read when sliced."""

    def __init__(self, rows: Any):
        self.rows = rows
        self.shape = tuple(rows.get_shape())
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, where: slice) -> Array:
        rows = self.rows[where]
        half = rows.is_floating_point() and rows.element_size() < 4  # NumPy knows no bfloat16
        return (rows.float() if half else rows).numpy()


def _read_safetensors(path: Path) -> Arrays:
    file = safe_open(path, framework="pt")
    return {name: _LazyTensor(file.get_slice(name)) for name in file.keys()}  # noqa: SIM118


ARRAYS: dict[str, Callable[[Path], Arrays]] = {
    ".npz": _read_npz,
    ".npy": lambda path: {path.stem: open_memmap(path, mode="r")},
    ".safetensors": _read_safetensors,
}
"""Readers of all arrays in a file."""


def _read_npy_part(path: Path, names: Names) -> Part:
    """Return a memory map of the scores, and the labels from a file of their own.

    Labels are sought under the name of the scores with `labels` in it: `val-labels` for `val-logits`.
    """
    pattern = "|".join(sorted(SCORE_WORDS[:-1], key=len, reverse=True))
    swapped = re.sub(pattern, "labels", path.stem, count=1, flags=re.IGNORECASE)
    beside = path.with_name(f"{swapped if swapped != path.stem else 'labels'}.npy")
    file = Path(names.labels) if names.labels else beside
    if not file.exists() or file == path:
        fix = f"save the labels as {beside.name} beside it, or pass --labels FILE.npy"
        raise SemmixError("an .npy file holds scores but no labels", path.name, fix)
    arrays = _open(file, ARRAYS)
    labels = _only(arrays) or _choose_labels(_shapes(arrays))
    if labels is None:
        fix = "pass --labels FILE.npy, a file of labels alone"
        raise SemmixError("which array holds the labels?", _held(file, arrays), fix)
    return _make_part(path, path.stem, open_memmap(path, mode="r"), labels, arrays[labels])


# --- choosing arrays ------------------------------------------------------------------------------


def _find_part(path: Path, content: Part | Arrays, names: Names, prefer_val: bool = False) -> Part:
    """Return the scores and labels in a file, by the names given or the likeliest ones."""
    if isinstance(content, Part):
        return content
    given = [name for name in names if name is not None]
    for name in given:
        if name not in content:
            raise unknown_name(f"array in {path.name}", name, content)
    of_test, of_val = _split(content)
    among = (of_val or of_test) if prefer_val else (of_test or of_val)
    shapes = {name: shape for name, shape in _shapes(content).items() if name in [*among, *given]}
    # Wide arrays are scores unless called labels.
    flat = [name for name in shapes if not _is_wide(shapes[name])]
    likely = [name for name in shapes if name not in flat and (likeliest([name]) or not best_labels([name]))]
    scores = names.scores or likeliest(likely) or _only(likely) or likeliest(flat)
    others = {name: shape for name, shape in shapes.items() if name != scores}
    labels = names.labels or _choose_labels(others)
    if scores is None or labels is None:
        fix = "pass --scores NAME and --labels NAME; what is called train, features or id is read "
        fix += "only if named so"
        raise SemmixError("which arrays hold scores and labels?", _held(path, content), fix)
    return _make_part(path, scores, content[scores], labels, content[labels])


def _split(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return what belongs to the test part (or to none) and to the validation part."""
    used = [name for name in names if not words(name) & IGNORED_WORDS]
    val = [name for name in used if words(name) & VAL_WORDS]
    test = [name for name in used if words(name) & TEST_WORDS]
    return test or [name for name in used if name not in val], val


def _choose_labels(shapes: Shapes) -> str | None:
    """Return the name of the labels: class indices `[N]` or, where called so, one-hot `[N, K]`."""
    flat = [name for name in shapes if not _is_wide(shapes[name])]
    one_hot = [name for name in shapes if name not in flat and not likeliest([name])]
    return best_labels(flat) or best_labels(one_hot) or _only(not_predicted(flat))


def _only(names: Iterable[str]) -> str | None:
    """Return the name if there is but one."""
    names = list(names)
    return names[0] if len(names) == 1 else None


def _is_wide(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and shape[1] > 1


def _make_part(path: Path, name: str, scores: Any, label: str, labels: Any) -> Part:
    origin = f"{path.name}: scores from {name!r} {list(scores.shape)}, labels from {label!r}"
    return Part(scores, np.asarray(labels[:]), name, origin)


def _shapes(arrays: Arrays) -> Shapes:
    return {name: tuple(rows.shape) for name, rows in arrays.items()}


def _held(path: Path, arrays: Arrays) -> str:
    shapes = ", ".join(f"{name} {list(shape)}" for name, shape in _shapes(arrays).items())
    return f"{path.name} holds {shapes or 'no arrays'}"
