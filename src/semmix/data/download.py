"""Download with resume: what has arrived is kept, whatever ends the attempt."""

import contextlib
import hashlib
import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import BinaryIO

from semmix.core.errors import SemmixError
from semmix.core.progress import progress
from semmix.data.known import Download

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
