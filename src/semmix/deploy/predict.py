"""`semmix predict`: predictions for any number of image files, a row each, in bounded memory."""

import csv
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tyro.conf import OmitArgPrefixes, Positional

from semmix.core.errors import require
from semmix.core.files import printable, whole_file
from semmix.core.progress import harmless, progress, say
from semmix.deploy.image_files import find_images
from semmix.deploy.model import ROW_FIELDS, Caution, Model, Row, load_model, prediction_rows

Write = Callable[[Row], object]

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
        known, fix = not self.out or self.out.suffix in WRITERS, f"end its name in {' or '.join(WRITERS)}"
        require(known, "unknown kind of file for the predictions", self.out, fix)


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
    parts = [f"{tally['answered']:,} answered"]
    if command.caution.abstain:
        parts.append(f"{tally['asked']:,} to ask (confidence below {command.caution.abstain})")
    parts.append(f"{tally['warned']:,} unlike the training images")
    if tally["failed"]:
        parts.append(f"{tally['failed']:,} could not be read")
    speed = len(paths) / max(time.monotonic() - start, 1e-9)
    say(f"{len(paths):,} images: {', '.join(parts)}; {speed:.0f} images/s")
    if command.out:
        say(f"predictions in {command.out}")
    return 1 if tally["failed"] == len(paths) else 0


def predict_files(model: Model, paths: Iterable[Path], caution: Caution | None = None) -> Iterator[Row]:
    """Yield a row of `COLUMNS` for each file, in order; bad files have an `error`, nothing else."""
    for batch in model.read(list(paths)):
        rows = prediction_rows(model, [image for _, image in batch], caution)
        for (path, _), row in zip(batch, rows, strict=True):
            yield {"file": printable(path), **row}


def outcome(row: Row) -> str:
    """Return what became of an image: answered (predicted), asked (left to a person) or failed."""
    if row["error"]:
        return "failed"
    return "asked" if row["abstain"] else "answered"


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

    def cell(value: Any) -> Any:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, bool)) else value

    return lambda row: writer.writerow([cell(row[name]) for name in COLUMNS])


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
        text = f"! {row['error']}"
        if not row["error"]:
            several = f"one of {', '.join(row['prediction_set'])}" if len(row["prediction_set"]) > 1 else ""
            asked, unlike = row["abstain"] and "ask a person", row["ood_warning"] and "unlike the training images"
            numbers = f"{100 * row['confidence']:12.1f}  {row['entropy']:7.3f}"
            text = f"{row['class_name']:{width}}  {numbers}  {'; '.join(filter(None, [asked, unlike, several]))}"
        say(f"{name:{FILE_WIDTH}}  {harmless(text)}".rstrip())

    return write
