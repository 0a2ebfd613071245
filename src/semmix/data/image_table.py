"""A table of image paths and labels: .csv with or without a header, or .jsonl."""

import csv
import io
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semmix.core.errors import SemmixError, explaining, require
from semmix.core.files import delimiter_of
from semmix.data.decoding import SUFFIXES

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl")
COLUMNS = {
    "path": "path file filename file_name filepath file_path image image_path img img_path",
    "label": "label class class_name category target y",
    "split": "split part subset set partition",
}
"""Names that a column may have, the likeliest first."""
PARTS = {"train": "train training", "val": "val valid validation dev", "test": "test testing"}
PART_NAMES = {name: part for part, names in PARTS.items() for name in names.split()}
"""The part that any of its usual names means."""


@dataclass(frozen=True)
class TableRow:
    """One image: where it is, relative to the table, what it shows, and its part or ""."""

    path: str
    label: str
    part: str


def read_table(table: Path) -> list[TableRow]:
    """Return the rows of a .csv, .tsv or .jsonl file."""
    with explaining(f"cannot read {table}", "check the path; UTF-8 is read", OSError, UnicodeDecodeError):
        text = table.read_text(encoding="utf-8-sig")
    is_json = table.suffix.lower() == ".jsonl"
    records = list((_json_records if is_json else _csv_records)(table, text))
    require(records, f"{table} has no rows", "0 rows", "give every image a path and a label")
    columns = _find_columns(table, records[0][1])
    rows = [_row(table, line, record, columns) for line, record in records]
    parts = {row.part for row in rows}
    fix = "name a part in every row or in none"
    require("" not in parts or len(parts) == 1, f"some rows of {table} have no split", sorted(parts), fix)
    return rows


def _json_records(table: Path, text: str) -> Iterator[tuple[int, dict[str, str]]]:
    for line, content in enumerate(text.split("\n"), 1):  # labels may hold other line ends
        if not content.strip():
            continue
        with explaining(f"{table} line {line} is not JSON", "every line must be one JSON object", ValueError):
            record: Any = json.loads(content)
        fix = 'write lines such as {"path": "cat/1.jpg", "label": "cat"}'
        require(isinstance(record, dict), f"{table} line {line} is not an object", content[:80], fix)
        yield line, {key: "" if v is None else str(v) for key, v in record.items()}


def _csv_records(table: Path, text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows that hold something, each with the line where it ends."""
    delimiter = delimiter_of(text.partition("\n")[0])
    # Unless strict, a quotation mark that is not closed takes the rest of the file for a label;
    # but blanks behind one that closes, as in aligned columns, are no mistake.
    text = re.sub(rf'(?<!")" +(?=[{delimiter}\r\n]|$)', '"', text)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    head: list[str] = []
    start = 1  # of the row that is read next
    try:
        for row in reader:
            cells, start = [cell.strip() for cell in row], reader.line_num + 1
            if not any(cells):
                continue
            if not head:
                has_header = not any(map(_is_image_name, cells))
                head = cells if has_header else ["path", "label", "split"][: len(cells)]
                if has_header:
                    continue
                if not _is_image_name(cells[0]):
                    head[:2] = ["label", "path"]
            yield reader.line_num, dict(zip(head, cells, strict=False))
    except csv.Error as error:
        fix = "close every quotation mark, and double those inside of a label"
        raise SemmixError(f"{table} line {start} is not CSV", error, fix) from error


def _is_image_name(cell: str) -> bool:
    return cell.lower().endswith(SUFFIXES)


def _find_columns(table: Path, first: dict[str, str]) -> dict[str, str | None]:
    """Return which column holds the path, the label and, perhaps, the split."""
    by_lower = {name.lower(): name for name in first}
    columns = {
        meaning: next((by_lower[name] for name in names.split() if name in by_lower), None)
        for meaning, names in COLUMNS.items()
    }
    for meaning in ("path", "label"):
        seen = f"columns {', '.join(first)}" if first else "no columns"
        if columns[meaning] is None:
            fix = f"name one of them {' or '.join(COLUMNS[meaning].split()[:3])}"
            raise SemmixError(f"{table} has no column for the {meaning}", seen, fix)
    return columns


def _row(table: Path, line: int, record: dict[str, str], columns: dict[str, str | None]) -> TableRow:
    names = (columns[meaning] for meaning in ("path", "label", "split"))
    path, label, part = ("" if name is None else record.get(name, "") for name in names)
    label, part = label.strip(), part.strip()  # "cat " is no class of its own
    where = f"{table} line {line}"
    require(path and label, f"{where} is incomplete", record, "every row needs a path and a label")
    fix = "write whole characters: a \\ud... escape needs its second half"
    with explaining(f"{where} holds half a character", fix, UnicodeEncodeError):
        os.fsencode(path + label)
    is_known = not part or part.lower() in PART_NAMES
    require(is_known, f"{where} names an unknown split", repr(part), "use train, val and test")
    return TableRow(path, label, PART_NAMES.get(part.lower(), ""))
