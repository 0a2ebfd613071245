"""One image file in, one uint8 array out, every way a file can be bad with a name; many files decoded ahead of need."""

import io
import os
import stat
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from semmix.core.errors import SemmixError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
KINDS = "PNG, JPEG, WebP, BMP or GIF"
MAX_PIXELS = 80_000_000  # beyond this Pillow begins to suspect a decompression bomb
MAX_FILE_BYTES = 512 * 2**20


class BadImageError(Exception):
    """A file that cannot be used; `kind` is one of `listing.PROBLEMS`."""

    def __init__(self, kind: str, detail: str):
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail = kind, detail


@dataclass(frozen=True, eq=False)
class Picture:
    """The pixels of one file, its size as stored, and what Pillow warned of while reading it."""

    pixels: np.ndarray  # uint8 [H, W, 1 or 3]
    stored_size: tuple[int, int]  # width, height
    warnings: list[str] = field(default_factory=list)


def read_picture(path: Path, size: int | None = None) -> Picture:
    """Return the picture in `path`, upright, grey or RGB, cropped to `size` if given."""
    return decode_picture(_read_file(path), size)


def decode_picture(data: bytes, size: int | None = None) -> Picture:
    """Return the picture in the bytes of a file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        picture = _decode_or_name_fault(data, size)
    return replace(picture, warnings=[*picture.warnings, *(str(warning.message) for warning in caught)])


def read_pixels(path: Path, size: int | None = None) -> np.ndarray:
    """Return the pixels in `path` alone; unlike catching warnings, this works in threads."""
    return _decode_or_name_fault(_read_file(path), size).pixels


def decode_pixels(data: bytes, size: int | None = None) -> np.ndarray:
    """Return the pixels in the bytes of a file alone; this works in threads too."""
    return _decode_or_name_fault(data, size).pixels


def read_stored_size(path: Path) -> tuple[int, int]:
    """Return width and height from the header alone."""
    _check_file(path)
    try:
        with Image.open(path, formats=FORMATS) as image:
            return image.size
    except Exception as error:  # Pillow's readers raise nearly every type
        raise BadImageError("unreadable", str(error)) from error


def _read_file(path: Path) -> bytes:
    _check_file(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadImageError("unreadable", error.strerror or str(error)) from error


def _check_file(path: Path) -> None:
    """Raise the error for what is not there, no file, or too large to be read."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:  # a name with a null character is a ValueError
        raise BadImageError("unreadable", getattr(error, "strerror", None) or str(error)) from error
    if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait for ever
        raise BadImageError("unreadable", "not a regular file")
    if status.st_size > MAX_FILE_BYTES:
        raise BadImageError("too large", f"{status.st_size / 2**20:.0f} MiB on disk")


def _decode_or_name_fault(data: bytes, size: int | None) -> Picture:
    try:
        return _decode(data, size)
    except BadImageError:
        raise
    except Image.DecompressionBombError as error:
        raise BadImageError("too large", str(error)) from error
    except UnidentifiedImageError as error:
        raise BadImageError("unreadable", f"not a {KINDS} file, or a damaged one") from error
    # Damaged files make Pillow's readers raise errors of nearly every type.
    except Exception as error:
        detail = str(error) or type(error).__name__
        kind = "truncated" if "truncated" in detail.lower() else "unreadable"
        raise BadImageError(kind, detail) from error


def _decode(data: bytes, size: int | None) -> Picture:
    if not data:
        raise BadImageError("empty", "0 bytes")
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        found = _check_header(image)
        stored_size = image.size
        if size:  # lets a JPEG decoder skip detail nobody will see
            image.draft(None, (2 * size, 2 * size))
        image.load()
        return Picture(picture_pixels(image, size), stored_size, found)


def picture_pixels(image: Image.Image, size: int | None = None) -> np.ndarray:
    """Return a Pillow image upright, grey or RGB, cropped to `size` if given: uint8 [H, W, 1 or 3]."""
    plain = _to_grey_or_rgb(ImageOps.exif_transpose(image))
    if size:
        plain = ImageOps.fit(plain, (size, size), Image.Resampling.BICUBIC)
    pixels = np.asarray(plain)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _check_header(image: Image.Image) -> list[str]:
    """Return warnings; refuse what is too large, and animations but for a GIF, whose first picture counts."""
    width, height = image.size
    if width * height > MAX_PIXELS:  # known from the header, before anything is decoded
        raise BadImageError("too large", f"{width} x {height} pixels")
    # Phones write stills as MPO, a JPEG that carries further pictures.
    if getattr(image, "is_animated", False) and image.format != "MPO":
        if image.format != "GIF":
            raise BadImageError("animated", f"{getattr(image, 'n_frames', '?')} frames")
        return ["animated: its first picture is read"]
    return []


def _to_grey_or_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit grey; Pillow's own conversion would clip at 255
        wide = np.clip(np.asarray(image, dtype=np.float64), 0, 65535)
        return Image.fromarray(np.rint(wide / 257).astype(np.uint8))
    mode = "L" if image.mode in ("1", "L", "LA") else "RGB"
    if image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image.convert(mode)


BATCHES_AHEAD = 3  # decoded while the present one is in use
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class StreamedImages:
    """Stands for a uint8 tensor [N, C, H, W] wherever that is only indexed or gone through."""

    paths: list[Path] = field(repr=False)
    image_shape: tuple[int, int, int]
    size: int | None = None  # height and width to which the files' images are scaled and cropped

    dtype = torch.uint8
    ndim = 4

    @property
    def shape(self) -> torch.Size:
        """The shape of the tensor these images would be."""
        return torch.Size((len(self.paths), *self.image_shape))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: torch.Tensor) -> "StreamedImages":
        """Return the images at `index` (or where a mask is true), still in their files."""
        rows = torch.arange(len(self))[index].tolist()
        return StreamedImages([self.paths[row] for row in rows], self.image_shape, self.size)

    def split(self, num: int) -> Iterator[torch.Tensor]:
        """Yield all images in order, `num` at a time."""
        return self.batches(torch.arange(len(self)).split(num))

    def batches(self, indices: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Yield the images at each index, uint8 [n, C, H, W], decoded by threads ahead of need."""
        for images in read_ahead(self._read, (index.tolist() for index in indices)):
            yield torch.stack(images)

    def _read(self, row: int) -> torch.Tensor:
        path = self.paths[row]
        try:
            pixels = torch.from_numpy(read_pixels(path, self.size).copy()).permute(2, 0, 1)
        except BadImageError as bad:
            fix = "mend or remove it; semmix data check names all such files"
            raise SemmixError(f"cannot read {path}", bad, fix) from bad
        if pixels.shape[1:] != self.image_shape[1:]:
            raise sizes_differ(f"{path.name} is {pixels.shape[2]} x {pixels.shape[1]}")
        return pixels.expand(self.image_shape)  # one channel fills three


def sizes_differ(seen: str) -> SemmixError:
    """Return the error for images that cannot be one tensor."""
    fix = "give one size, such as --size 64: all images are then scaled and cropped to it"
    return SemmixError("the images differ in size", seen, fix)


def read_ahead(read: Callable[[T], R], batches: Iterable[Iterable[T]], ahead: int = BATCHES_AHEAD) -> Iterator[list[R]]:
    """Yield what `read` returns for the items of each batch, read by threads `ahead` batches before they are needed."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # decoders let other threads run
        waiting = deque()
        for batch in batches:
            waiting.append(pool.map(read, batch))  # begins at once
            if len(waiting) > ahead:
                yield list(waiting.popleft())
        while waiting:
            yield list(waiting.popleft())
