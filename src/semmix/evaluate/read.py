"""Predictions from files of many kinds: what they hold is guessed, said, and can be overridden."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from semmix._errors import SemmixError, unknown_name

Array = NDArray[Any]
Batches = Iterator[tuple[Array, Array]]
Reader = Callable[[Path, "Names"], Mapping[str, Any]]

ROWS_PER_BLOCK = 1 << 16
SCORE_WORDS = ("logits", "logit", "probs", "prob", "probabilities", "proba", "softmax", "scores",
               "score", "outputs", "output", "predictions", "preds", "pred", "p")  # fmt: skip
LABEL_WORDS = ("labels", "label", "targets", "target", "truth", "true", "gt", "y", "class")
VAL_WORDS = {"val", "valid", "validation", "dev", "calib", "calibration", "holdout"}
TEST_WORDS = {"test", "eval", "evaluation"}
CHOOSING = {".npy", ".csv", ".parquet"}
"""Files whose readers apply the names themselves, to columns or to another file."""
IGNORED_WORDS = {"train", "training", "features", "index", "idx", "id", "ids", "unnamed"}


class Part(NamedTuple):
    """Scores as they stand in a file, `[N, K]` or `[N]`, read only where sliced, and labels."""

    scores: Any
    labels: Array
    name: str
    """What the scores are called there."""
    origin: str
    """A sentence on where scores and labels were found."""


class Names(NamedTuple):
    """Names of the arrays or columns to read; None is guessed."""

    scores: str | None = None
    labels: str | None = None


def read_parts(path: Path, val: Path | None, names: Names, val_names: Names) -> dict[str, Part]:
    """Return the part to report on as `test` and the part to fit on, if any, as `val`."""
    if path.is_dir():
        return _read_run(path)
    arrays = _open(path, names)
    of_test, of_val = _split(arrays)
    if val is not None or not of_test:
        of_test, of_val = of_test or of_val, {}
    parts = {"test": _find(path, {**of_test, **_named(arrays, names)}, names)}
    if val is not None:
        parts["val"] = _find(val, _open(val, val_names), val_names)
    elif of_val:
        parts["val"] = _find(path, {**of_val, **_named(arrays, val_names)}, val_names)
    return parts


def _read_run(folder: Path) -> dict[str, Part]:
    files = {part: folder / f"logits-{part}.safetensors" for part in ("test", "val")}
    if not files["test"].exists():
        fix = "pass a run folder that holds logits-test.safetensors, or a file"
        raise SemmixError("nothing to evaluate in this folder", folder, fix)
    return {
        part: _find(file, _open(file, Names()), Names())
        for part, file in files.items()
        if file.exists()
    }


def read_matrix(path: Path) -> Array:
    """Return the one table of numbers in a file, `[N, K]` in float64."""
    readers = {
        ".npz": _read_npz,
        ".npy": lambda path, names: {path.stem: np.load(path)},
        ".safetensors": _read_safetensors,
        ".csv": _read_csv_matrix,
    }
    shaped = {name: rows for name, rows in _open(path, Names(), readers).items() if rows.ndim == 2}
    if len(shaped) != 1:
        seen = ", ".join(shaped) or "none"
        raise SemmixError(f"{path.name} must hold one table of numbers", seen, "leave one in it")
    (rows,) = shaped.values()
    return np.asarray(rows[:], np.float64)


def _open(
    path: Path, names: Names, readers: Mapping[str, Reader] | None = None
) -> Mapping[str, Any]:
    """Return the arrays in a file by name."""
    readers = readers or {
        ".npz": _read_npz,
        ".npy": _read_npy,
        ".safetensors": _read_safetensors,
        ".csv": _read_csv,
        ".parquet": _read_parquet,
    }
    if path.suffix.lower() not in readers:
        raise SemmixError("unknown kind of file", path.name, f"pass one of {', '.join(readers)}")
    if not path.exists():
        raise SemmixError("no such file", path, "check the path")
    try:
        return readers[path.suffix.lower()](path, names)
    except SemmixError:
        raise
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise SemmixError(
            f"cannot read {path}", error, "check that it is whole and holds numbers"
        ) from error


def _read_npz(path: Path, names: Names) -> Mapping[str, Any]:
    with np.load(path) as arrays:
        return dict(arrays)


def _read_npy(path: Path, names: Names) -> Mapping[str, Any]:
    """Return a memory map of the scores, and the labels from a file of their own."""
    beside = path.with_name(_swap_words(path.stem) + ".npy")
    labels = Path(names.labels) if names.labels else beside
    if not labels.exists() or labels == path:
        fix = f"save the labels as {beside.name} beside it, or pass --labels FILE.npy"
        raise SemmixError("an .npy file holds scores but no labels", path.name, fix)
    return _chosen(path.stem, np.load(path, mmap_mode="r"), labels.stem, np.load(labels))


def _swap_words(stem: str) -> str:
    """Return the name of the labels that belong to scores: `val-logits` gives `val-labels`."""
    pattern = "|".join(sorted(SCORE_WORDS[:-1], key=len, reverse=True))
    swapped = re.sub(pattern, "labels", stem, count=1, flags=re.IGNORECASE)
    return swapped if swapped != stem else "labels"


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


def _read_safetensors(path: Path, names: Names) -> Mapping[str, Any]:
    file = safe_open(path, framework="pt")
    return {name: _LazyTensor(file.get_slice(name)) for name in file.keys()}  # noqa: SIM118


def _read_csv_matrix(path: Path, names: Names) -> Mapping[str, Any]:
    """Return all columns but those of row numbers; a first line of names is optional."""
    delimiter, columns, _ = _look_at_csv(path)
    has_names = not all(map(_is_number, columns))
    chosen = [k for k, name in enumerate(columns) if not _words(name) & IGNORED_WORDS]
    table = np.loadtxt(
        path, delimiter=delimiter, skiprows=int(has_names), usecols=chosen if has_names else None,
        ndmin=2, encoding="utf-8-sig", quotechar='"',
    )  # fmt: skip
    return {path.stem: table}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _look_at_csv(path: Path) -> tuple[str, list[str], int]:
    """Return what separates columns, the columns of the first line, and the lines after it."""
    with open(path, encoding="utf-8-sig") as file:
        header = file.readline()
        num_rows = sum(1 for line in file if line.strip())
    delimiter = max(",;\t", key=header.count)
    columns = [name.strip().strip("\"'") for name in header.split(delimiter)]
    return delimiter, columns, num_rows


def _read_csv(path: Path, names: Names) -> Mapping[str, Any]:
    delimiter, columns, num_rows = _look_at_csv(path)
    if any(name.replace(".", "").lstrip("-").isdigit() for name in columns):
        fix = "give it a first line of column names, such as label,prob_0,prob_1"
        raise SemmixError("the CSV file has no header", delimiter.join(columns)[:60], fix)
    label, chosen = _choose_columns(columns, names)
    batches = _csv_batches(path, delimiter, [*chosen, label])
    return _collect(num_rows, batches, _span(columns, chosen), columns[label])


def _csv_batches(path: Path, delimiter: str, columns: list[int]) -> Batches:
    with open(path, encoding="utf-8-sig") as file:
        next(file)
        rows = (line for line in file if line.strip())
        while lines := list(islice(rows, ROWS_PER_BLOCK)):
            table = np.loadtxt(lines, delimiter=delimiter, usecols=columns, ndmin=2, quotechar='"')
            yield table[:, :-1], table[:, -1]


def _read_parquet(path: Path, names: Names) -> Mapping[str, Any]:
    try:
        from pyarrow import parquet, types
    except ImportError as error:
        fix = "pip install 'semmix[parquet]'"
        raise SemmixError("reading parquet needs pyarrow", path.name, fix) from error
    file = parquet.ParquetFile(path)
    columns = file.schema_arrow.names
    label, chosen = _choose_columns(columns, names)
    lists = [i for i in chosen if types.is_nested(file.schema_arrow.types[i])][:1]
    wanted = [columns[i] for i in lists or chosen]
    batches = _parquet_batches(file, wanted, columns[label], is_list=bool(lists))
    return _collect(
        file.metadata.num_rows, batches, _span(columns, lists or chosen), columns[label]
    )


def _parquet_batches(file: Any, wanted: list[str], label: str, is_list: bool) -> Batches:
    for batch in file.iter_batches(ROWS_PER_BLOCK, columns=[*wanted, label]):
        arrays = [batch.column(name) for name in wanted]
        if is_list:
            scores = arrays[0].flatten().to_numpy(zero_copy_only=False).reshape(len(batch), -1)
        else:
            scores = np.stack([column.to_numpy(zero_copy_only=False) for column in arrays], 1)
        yield scores, batch.column(label).to_numpy(zero_copy_only=False)


def _collect(num_rows: int, batches: Batches, scores_name: str, label: str) -> Mapping[str, Any]:
    """Return whole columns, filled batch by batch so that no table is held twice."""
    scores, labels, start = None, np.empty(num_rows), 0
    for rows, row_labels in batches:
        if scores is None:
            scores = np.empty((num_rows, rows.shape[1]), rows.dtype)
        scores[start : start + len(rows)] = rows
        labels[start : start + len(rows)] = row_labels
        start += len(rows)
    if scores is None:
        raise SemmixError("the table has no rows", num_rows, "check the file")
    return _chosen(scores_name, scores[:, 0] if scores.shape[1] == 1 else scores, label, labels)


def _chosen(scores_name: str, scores: Any, labels_name: str, labels: Array) -> Mapping[str, Any]:
    """Return what a reader chose itself, under names that leave no doubt which is which."""
    return {f"scores {scores_name}": scores, f"labels {labels_name}": labels}


def _choose_columns(columns: list[str], names: Names) -> tuple[int, list[int]]:
    """Return the index of the label column and those of the score columns."""
    label = names.labels or _best(columns, LABEL_WORDS)
    if label not in columns:
        fix = f"pass --labels NAME; columns: {', '.join(columns[:12])}"
        raise SemmixError("which column holds the labels?", label, fix)
    rest = [name for name in columns if name != label and not _words(name) & IGNORED_WORDS]
    if names.scores:
        rest = [name for name in rest if name.startswith(names.scores)]
    else:
        rest = [name for name in rest if _words(name) & set(SCORE_WORDS)] or rest
    if not rest:
        fix = f"pass --scores PREFIX; columns: {', '.join(columns[:12])}"
        raise SemmixError("which columns hold the scores?", names.scores, fix)
    return columns.index(label), [columns.index(name) for name in rest]


def _named(arrays: Mapping[str, Any], names: Names) -> dict[str, Any]:
    return {name: arrays[name] for name in names if name is not None and name in arrays}


def _split(arrays: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what belongs to the test part (or to none) and to the validation part."""
    used = {name: rows for name, rows in arrays.items() if not _words(name) & IGNORED_WORDS}
    val = {name: rows for name, rows in used.items() if _words(name) & VAL_WORDS}
    test = {name: rows for name, rows in used.items() if _words(name) & TEST_WORDS}
    neither = {name: rows for name, rows in used.items() if name not in val and name not in test}
    return test or neither, val


def _find(path: Path, arrays: Mapping[str, Any], names: Names) -> Part:
    """Return the scores and labels among `arrays`, by the names given or the likeliest ones."""
    if path.suffix.lower() in CHOOSING:
        names = Names()
    for name in names:
        if name is not None and name not in arrays:
            raise unknown_name(f"array in {path.name}", name, arrays)
    shapes = {name: tuple(rows.shape) for name, rows in arrays.items()}
    wide = [name for name, shape in shapes.items() if len(shape) == 2 and shape[1] > 1]
    flat = [name for name in shapes if name not in wide and len(shapes[name]) in (1, 2)]
    scores = names.scores or _best(wide, SCORE_WORDS, alone=True) or _best(flat, SCORE_WORDS)
    flat = [name for name in flat if name != scores]
    labels = names.labels or _best(flat, LABEL_WORDS, alone=True)
    if scores is None or labels is None:
        held = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        fix = f"pass --scores NAME and --labels NAME; {path.name} holds {held}"
        raise SemmixError("which arrays hold scores and labels?", path.name, fix)
    rows, classes = arrays[scores], np.asarray(arrays[labels][:])
    origin = f"{path.name}: scores from {scores!r} {list(rows.shape)}, labels from {labels!r}"
    return Part(rows, classes.reshape(len(classes)), scores, origin)


def _best(names: Iterable[str], words: tuple[str, ...], alone: bool = False) -> str | None:
    """Return the name that holds the earliest of `words`, or the only name if `alone` may do."""
    names = list(names)
    for word in words:
        for name in names:
            if word in _words(name):
                return name
    return names[0] if alone and len(names) == 1 else None


def _words(name: str) -> set[str]:
    """Return the words of a name: `val_logits.2` gives `val` and `logits`."""
    spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", name)
    return set(re.findall(r"[a-z]+", spaced.lower()))


def _span(columns: list[str], chosen: list[int]) -> str:
    first, last = columns[chosen[0]], columns[chosen[-1]]
    return first if first == last else f"{first} to {last}"
