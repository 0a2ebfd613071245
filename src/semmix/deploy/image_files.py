"""Images for a model: files by name, folder or glob, and pixels in the shape the network takes."""

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from semmix.core.errors import SemmixError, require
from semmix.data.decoding import SUFFIXES, decode_pixels, picture_pixels, read_pixels
from semmix.data.listing import FolderReport, walk_files

LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R 601, as Pillow turns colour into grey


def find_images(names: Sequence[str]) -> list[Path]:
    """Return the files named, the images in the folders named, and the matches of globs.

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


def prepare_image(image: Path | Image.Image | np.ndarray, shape: tuple[int, int, int]) -> Tensor:
    """Return a file, a Pillow image or uint8 pixels `[H, W]` or `[H, W, C]` as `read_image` does a file."""
    if isinstance(image, Path):
        return read_image(image, shape)
    if not isinstance(image, Image.Image):
        pixels, fix = np.asarray(image), "pass uint8 pixels [H, W], [H, W, 1] or [H, W, 3], Pillow images or files"
        known = pixels.dtype == np.uint8 and (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (1, 3, 4)))
        require(known, "this is no image", f"{pixels.dtype} {pixels.shape}", fix)
        image = Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)
    return fit_channels(picture_pixels(image, shape[1]), shape[0])


def fit_channels(pixels: np.ndarray, channels: int) -> Tensor:
    """Return pixels `[H, W, 1 or 3]` as `[C, H, W]`: grey fills channels, colour turns grey."""
    if channels == 1 and pixels.shape[2] == 3:
        pixels = np.rint(pixels @ LUMA).astype(np.uint8)[..., None]
    image = torch.from_numpy(np.array(pixels)).permute(2, 0, 1)
    return image.expand(channels, -1, -1)


def _expand(name: str) -> Iterator[Path]:
    path = Path(name)
    if path.is_dir():
        files = (file for _, file in walk_files(FolderReport(path), [path]))
        yield from (file for file in files if file.suffix.lower() in SUFFIXES)
    elif path.exists() or not glob.has_magic(name):
        yield path
    else:  # each file once, however many links lead to it
        once = {os.path.realpath(match): match for match in sorted(glob.glob(name, recursive=True), reverse=True)}
        for match in sorted(once.values()):
            yield from _expand(match)
