"""`semmix predict`: predictions for any number of image files, a row each, in bounded memory."""

from __future__ import annotations

import csv
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from tyro.conf import OmitArgPrefixes, Positional

from semmix.core.errors import SemmixError
from semmix.core.files import printable, whole_file
from semmix.core.progress import harmless, progress, say
from semmix.data.decoding import BadImageError
from semmix.data.streamed import read_ahead
from semmix.deploy.image_files import find_images, read_image
from semmix.deploy.model import BATCH_SIZE, ROW_FIELDS, Caution, Model, Row, load_model, prediction_rows

Write = Callable[[Row], object]

BATCHES_AHEAD = 2  # decoded while the present one is answered
COLUMNS = ("file", *ROW_FIELDS)
FILE_WIDTH = 44
"""Characters of a file's name in the terminal; the end is what tells names apart."""


@dataclass(frozen=True, kw_only=True)
class Predict:
    """Predict the classes of images with a model."""

    model: Positional[Path]
    """A model folder (semmix export), or a finished training run."""
    images: Positional[tuple[str, ...]]
    """Image files, folders of them (searched to the bottom), or quoted globs."""
    out: Path | None = None
    """File for the predictions: .csv or .jsonl; the terminal by default."""
    caution: OmitArgPrefixes[Caution] = field(default_factory=Caution)
    """When to ask, and how large prediction sets are."""
    device: str = "auto"
    """auto, cpu or cuda."""
    trust_code: bool = False
    """Run the code that a model folder with its maker's own network brings or names."""

    def __post_init__(self) -> None:
        if self.out and self.out.suffix not in WRITERS:
            fix = f"end its name in {' or '.join(WRITERS)}"
            raise SemmixError("unknown kind of file for the predictions", self.out, fix)


def predict_command(command: Predict) -> int:
    """Predict every image; the exit status is 1 only if none could be read."""
    model = load_model(command.model, command.device, trust_code=command.trust_code)
    paths = find_images(command.images)
    tally: Counter[str] = Counter()
    start = time.monotonic()
    with _writer(command.out, model.rules.class_names) as write, progress("predict", len(paths)) as bar:
        for row in predict_files(model, paths, command.caution):
            write(row)
            tally[outcome(row)] += 1
            tally["warned"] += bool(row["ood_warning"])
            bar.advance()
    say(_summary(tally, len(paths), command.caution, time.monotonic() - start))
    if command.out:
        say(f"predictions in {command.out}")
    return 1 if tally["failed"] == len(paths) else 0


def predict_files(model: Model, paths: Iterable[Path], caution: Caution | None = None) -> Iterator[Row]:
    """Yield a row of `COLUMNS` for each file, in order; bad files have an `error`, nothing else."""
    for batch in _read_batches(list(paths), model.image_shape):
        rows = prediction_rows(model, [image for _, image in batch], caution)
        for (path, _), row in zip(batch, rows, strict=True):
            yield {"file": printable(path), **row}


def _read_batches(
    paths: Sequence[Path], shape: tuple[int, int, int]
) -> Iterator[list[tuple[Path, Tensor | BadImageError]]]:
    """Return files with their images, or with what is wrong, decoded by threads ahead of need."""

    def read(path: Path) -> tuple[Path, Tensor | BadImageError]:
        try:
            return path, read_image(path, shape)
        except BadImageError as bad:
            return path, bad

    batches = (paths[first : first + BATCH_SIZE] for first in range(0, len(paths), BATCH_SIZE))
    return read_ahead(read, batches, BATCHES_AHEAD)


def outcome(row: Row) -> str:
    """Return what became of an image: answered, asked (left to a person) or failed."""
    if row["error"]:
        return "failed"
    return "asked" if row["abstain"] else "answered"


def _summary(tally: Counter[str], num: int, caution: Caution, seconds: float) -> str:
    parts = [f"{tally['answered']:,} answered"]
    if caution.abstain:
        parts.append(f"{tally['asked']:,} to ask (confidence below {caution.abstain})")
    parts.append(f"{tally['warned']:,} unlike the training images")
    if tally["failed"]:
        parts.append(f"{tally['failed']:,} could not be read")
    return f"{num:,} images: {', '.join(parts)}; {num / max(seconds, 1e-9):.0f} images/s"


@contextmanager
def _writer(out: Path | None, class_names: Sequence[str]) -> Iterator[Write]:
    """Yield the function that writes a row: to the file `out`, whole or not at all, or here."""
    if out is None:
        yield _table(class_names)
        return
    with whole_file(out) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        yield WRITERS[out.suffix](file)


def _csv(file: Any) -> Write:
    """Return the writer of CSV lines; a prediction set is a JSON list in one cell."""
    writer = csv.writer(file)
    writer.writerow(COLUMNS)
    return lambda row: writer.writerow([_cell(row[name]) for name in COLUMNS])


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, bool)) else value


def _jsonl(file: Any) -> Write:
    return lambda row: file.write(json.dumps(row, ensure_ascii=False) + "\n")


WRITERS = {".csv": _csv, ".jsonl": _jsonl}


def _table(class_names: Sequence[str]) -> Write:
    """Print the headings; return the writer of lines for people."""
    width = max(len("class"), *map(len, class_names))
    say(f"{'file':{FILE_WIDTH}}  {'class':{width}}  confidence %  entropy")

    def write(row: Row) -> None:
        name = harmless(row["file"])
        name = name if len(name) <= FILE_WIDTH else f"…{name[1 - FILE_WIDTH :]}"
        say(f"{name:{FILE_WIDTH}}  {harmless(_line(row, width))}".rstrip())

    return write


def _line(row: Row, width: int) -> str:
    if row["error"]:
        return f"! {row['error']}"
    notes = [
        *(["ask a person"] if row["abstain"] else []),
        *(["unlike the training images"] if row["ood_warning"] else []),
        *([f"one of {', '.join(row['prediction_set'])}"] if len(row["prediction_set"]) > 1 else []),
    ]
    numbers = f"{100 * row['confidence']:12.1f}  {row['entropy']:7.3f}"
    return f"{row['class_name']:{width}}  {numbers}  {'; '.join(notes)}"
