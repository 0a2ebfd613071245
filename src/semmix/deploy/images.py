"""Images for a model: which files are meant, and their pixels in the shape the network takes."""

from __future__ import annotations

import glob
import os
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from semmix.core.errors import SemmixError
from semmix.data.decoding import SUFFIXES, decode_pixels, read_pixels

LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R 601, as Pillow turns colour into grey


def list_images(names: Sequence[str]) -> list[Path]:
    """Return the files meant: those named, the images in folders named, the matches of globs.

    A file that is named but not there is listed too: its row will say so.
    """
    paths = [path for name in names for path in _expand(name)]
    if not paths:
        seen = ", ".join(names) or "nothing was named"
        fix = f"name files, folders that hold {', '.join(SUFFIXES)} files, or quoted globs"
        raise SemmixError("no images found", seen, fix)
    return paths


def read_image(path: Path, shape: tuple[int, int, int]) -> Tensor:
    """Return the image in a file as the network takes it, uint8 `[C, H, W]`.

    Raises:
        BadImageError: the file cannot be used, and why.
    """
    return fit_channels(read_pixels(path, shape[1]), shape[0])


def decode_image(data: bytes, shape: tuple[int, int, int]) -> Tensor:
    """Return the image in the bytes of a file; like `read_image`."""
    return fit_channels(decode_pixels(data, shape[1]), shape[0])


def fit_channels(pixels: np.ndarray, channels: int) -> Tensor:
    """Return pixels `[H, W, 1 or 3]` as `[C, H, W]`: grey fills channels, colour turns grey."""
    if channels == 1 and pixels.shape[2] == 3:
        pixels = np.rint(pixels @ LUMA).astype(np.uint8)[..., None]
    image = torch.from_numpy(np.array(pixels)).permute(2, 0, 1)
    return image.expand(channels, -1, -1)


def _expand(name: str) -> Iterator[Path]:
    path = Path(name)
    if path.is_dir():
        yield from _walk(path)
    elif path.exists() or not glob.has_magic(name):
        yield path
    else:
        yield from _matches(name)


def _matches(pattern: str) -> Iterator[Path]:
    """Yield what a glob finds, each file once however many links lead to it."""
    found = sorted(glob.glob(pattern, recursive=True))
    once = {os.path.realpath(match): match for match in reversed(found)}
    for match in sorted(once.values()):
        yield from _expand(match)


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the images under a folder; links are followed, to each real folder once."""
    visited: set[str] = set()
    waiting = deque([folder])
    while waiting:  # links come last, so that files go by the names they have without them
        for base, folders, names in os.walk(waiting.popleft()):
            if (place := os.path.realpath(base)) in visited:
                folders.clear()
                continue
            visited.add(place)
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            waiting += [Path(base, name) for name in folders if Path(base, name).is_symlink()]
            images = (name for name in sorted(names) if Path(name).suffix.lower() in SUFFIXES)
            yield from (Path(base, name) for name in images if not name.startswith("."))
