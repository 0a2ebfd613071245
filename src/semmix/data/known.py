"""The known data sets: what they hold, how to tell that they are whole, and their download with resume."""

import contextlib
import hashlib
import http.client
import os
import tomllib
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import torch

from semmix.core.errors import SemmixError, require, unknown_name
from semmix.core.progress import progress
from semmix.data import readers
from semmix.data.dataset import Parts, Split
from semmix.data.readers import open_tree


@dataclass(frozen=True)
class Download:
    """A file on the web and the digest its publisher gives for it."""

    url: str
    digest: str
    algorithm: str = "md5"

    @property
    def file_name(self) -> str:
        """The last part of the address."""
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One known data set, as known.toml describes it."""

    name: str  # what `load_dataset` calls it
    title: str  # what people call it
    image_shape: tuple[int, int, int]  # channels, height, width
    num_images: dict[str, int]  # how many images each official part holds
    routes: dict[str, str]  # how to read it: a file (or `folder/`) that gives a source away -> the reader for it
    sources: str  # the same in words, for people
    class_names: tuple[str, ...] = ()  # in the order of the labels; empty where they are read from the source
    order_free_digests: dict[str, str] = field(default_factory=dict)
    """`Split.order_free_digest` of each part; empty where decoders may differ (JPEG)."""
    official_digests: dict[str, str] = field(default_factory=dict)
    """`Split.digest` of each part in its official order, where that is known."""
    downloads: tuple[Download, ...] = ()  # the official files
    stratified: bool = False  # whether a split takes the same share of every class


def _read_catalog() -> dict[str, Entry]:
    entries = tomllib.loads(Path(__file__).with_name("known.toml").read_text(encoding="utf-8"))
    for entry in entries.values():
        entry["downloads"] = [Download(**download) for download in entry["downloads"]]
    lists = {name: {k: tuple(v) for k, v in entry.items() if isinstance(v, list)} for name, entry in entries.items()}
    return {name: Entry(**{"name": name, **entry, **lists[name]}) for name, entry in entries.items()}


CATALOG = _read_catalog()


def find_entry(name: str) -> Entry:
    """Return the known data set called `name`."""
    fix = "use them as they are: semmix fit digits"
    require(name != "digits", "digits need no import", "they come with scikit-learn", fix)
    if name not in CATALOG:
        raise unknown_name("data set", name, CATALOG)
    return CATALOG[name]


def read_source(entry: Entry, source: Path) -> Parts:
    """Return the data set as read from a file or folder, whole and in one order."""
    with open_tree(source) as tree:
        for marker, reader in entry.routes.items():
            if tree.holds(marker):
                return verify_parts(entry, getattr(readers, reader)(tree), source)
    raise SemmixError(f"this is not {entry.title}", source, f"it can be read from {entry.sources}")


def verify_parts(entry: Entry, parts: Parts, source: Path) -> Parts:
    """Return the parts if they are what the catalogue promises.

    A part in its official order keeps it; any other is sorted by content, so that every source leads to the same order.
    """
    alike = not entry.class_names or parts.class_names in ((), entry.class_names)
    seen, fix = ", ".join(parts.class_names[:5]), f"expected {', '.join(entry.class_names[:5])}, ..."
    require(alike, f"the classes of {source} are not those of {entry.title}", seen, fix)
    splits = {part: _verify_part(entry, part, parts.splits.get(part), source) for part in entry.num_images}
    return Parts(splits, entry.class_names or parts.class_names)


def _verify_part(entry: Entry, part: str, split: Split | None, source: Path) -> Split:
    expected = f"{entry.num_images[part]} of {entry.image_shape}"
    seen = "none" if split is None else f"{len(split)} of {tuple(split.images.shape[1:])}"
    if split is None or seen != expected:
        fix = f"{expected} are expected; get the data set again"
        raise SemmixError(f"{source} does not hold the {part} images of {entry.title}", seen, fix)
    if part not in entry.order_free_digests:
        return split
    promised, seen = entry.order_free_digests[part], split.order_free_digest
    what = f"the {part} images of {source} are not those of {entry.title}"
    fix = f"{promised[:16]} is expected: pixels or labels differ; get the data set again"
    require(seen == promised, what, f"digest {seen[:16]}", fix)
    if split.digest == entry.official_digests.get(part):
        return split
    by_content = sorted(range(len(split)), key=split.image_digests.__getitem__)
    return split.select(torch.tensor(by_content))


BLOCK = 2**18
MIB = 2**20
TIMEOUT_SECONDS = 30
NUM_ATTEMPTS = 4


def fetch(download: Download, folder: Path) -> Path:
    """Return the path of the downloaded file, whole and of the right digest."""
    path = folder / download.file_name
    partial = path.with_name(f"{path.name}.part")
    try:
        if not path.exists() or _digest(path, download) != download.digest:
            folder.mkdir(parents=True, exist_ok=True)
            _fetch_rest(download, partial)
            seen = _digest(partial, download)
            if seen != download.digest:
                partial.unlink()
                fix = f"{download.digest} is expected; run the command again, or get the file another way"
                raise SemmixError(f"{download.file_name} is damaged", f"{download.algorithm.upper()} {seen}", fix)
            os.replace(partial, path)
        return path
    except (OSError, http.client.HTTPException) as error:
        why = f"HTTP status {error.code}" if isinstance(error, urllib.error.HTTPError) else error
        kept = partial.stat().st_size / MIB if partial.exists() else 0
        fix = f"run the command again to go on; {kept:.1f} MiB are kept in {partial}"
        raise SemmixError(f"could not download {download.url}", why, fix) from error


def _fetch_rest(download: Download, partial: Path) -> None:
    """Append what is missing, in a few attempts; each begins where the last one ended."""
    for attempt in range(1, NUM_ATTEMPTS + 1):
        try:
            _fetch_once(download, partial)
            return
        except (ConnectionError, TimeoutError, http.client.HTTPException, _ShortError):
            if attempt == NUM_ATTEMPTS:
                raise


class _ShortError(OSError):
    """The connection ended before the file did."""


def _fetch_once(download: Download, partial: Path) -> None:
    have = partial.stat().st_size if partial.exists() else 0
    headers = {"User-Agent": "semmix", "Range": f"bytes={have}-"}
    request = urllib.request.Request(download.url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:  # nothing lies beyond what we have
            return
        raise
    with response:
        if response.status != 206:  # this server cannot resume: from the beginning
            have = 0
        with open(partial, "ab" if have else "wb") as file:
            _copy(response, file, download.file_name, have)


def _copy(response: http.client.HTTPResponse, file: BinaryIO, title: str, have: int) -> None:
    length = response.length  # None where the server does not tell
    total = have + (length or 0)
    received = 0
    large = length is None or total >= MIB
    with progress(f"{title} (MiB)", total // MIB, done=have // MIB) if large else contextlib.nullcontext() as bar:
        while block := response.read(BLOCK):
            before = have + received
            file.write(block)
            received += len(block)
            if bar:
                bar.advance((before + len(block)) // MIB - before // MIB)
    if length is not None and received < length:
        raise _ShortError(f"only {have + received} of {total} bytes arrived")


def _digest(path: Path, download: Download) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(download.algorithm, usedforsecurity=False)).hexdigest()
