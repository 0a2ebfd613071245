"""How long 100,000 image files take to be listed, read, compared, checked and kept.

    python benchmarks/bench_folder.py --files 100000

The files are real PNG images of 16 x 16 pixels in 100 class folders, written to a temporary folder.
"""

from __future__ import annotations

import struct
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import TypeVar

import numpy as np
import tyro

from semmix.core.progress import say
from semmix.data.duplicates import find_duplicates
from semmix.data.image_folder import divide, gather
from semmix.data.listing import FolderReport, list_files
from semmix.fitting.suspects import second_opinion

SIDE = 16
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class BenchFolder:
    """Time each step of preparing a large folder."""

    files: int = 100_000
    """Image files."""
    classes: int = 100
    """Class folders."""


def main(config: BenchFolder) -> None:
    """Write the files, then time the steps."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "images"
        timed("writing", lambda: write_files(folder, config))
        timed("listing", lambda: list_files(FolderReport(folder)))
        found = timed("reading", lambda: gather(folder))
        copies = timed("finding copies", lambda: find_duplicates(found.images))
        timed("splitting", lambda: divide(found, copies, "code", 0))
        num_classes = len(found.class_names)
        timed("checking labels", lambda: second_opinion(found.images, copies.near, num_classes))
    say(f"largest memory: {getrusage(RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")


def timed(title: str, work: Callable[[], T]) -> T:
    """Return what `work` returns, after saying how long it took."""
    start, cpu = time.perf_counter(), time.process_time()
    result = work()
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    say(f"{title:16} {wall:6.1f} s ({cpu:.1f} s of one core)")
    return result


def write_files(folder: Path, config: BenchFolder) -> None:
    """Write random PNG images, a class after the other."""
    random = np.random.default_rng(0)
    per_class = config.files // config.classes
    for c in range(config.classes):
        inside = folder / f"class-{c:03d}"
        inside.mkdir(parents=True)
        pixels = random.integers(0, 256, (per_class, SIDE, SIDE, 3), dtype=np.uint8)
        for k, image in enumerate(pixels):
            (inside / f"{k:06d}.png").write_bytes(png(image))


def png(image: np.ndarray) -> bytes:
    """Return an RGB image [H, W, 3] as an uncompressed PNG file, much faster than Pillow does."""
    height, width, _ = image.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 0)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )


if __name__ == "__main__":
    main(tyro.cli(BenchFolder))
