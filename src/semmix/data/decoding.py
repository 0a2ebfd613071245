"""One image file in, one uint8 array out; every way a file can be bad has a name."""

import io
import stat
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
KINDS = "PNG, JPEG, WebP, BMP or GIF"
MAX_PIXELS = 80_000_000  # beyond this Pillow begins to suspect a decompression bomb
MAX_FILE_BYTES = 512 * 2**20


class BadImageError(Exception):
    """A file that cannot be used; `kind` is one of `folder_report.PROBLEMS`."""

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
