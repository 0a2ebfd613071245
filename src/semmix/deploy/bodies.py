"""Images from a request's body: base64 in JSON, or files of a form.

A piece of a few bytes becomes an object of a hundred, so pieces are counted before they are made.
"""

import base64
import binascii
import io
import json
from email.message import Message
from typing import Any

from PIL import Image

from semmix.data.decoding import BadImageError
from semmix.deploy.messages import HttpError, Request

FORMATS = ("PNG", "JPEG", "WEBP")
JSON, FORM = "application/json", "multipart/form-data"
FIELD = "images"
MAX_PART_HEAD = 16 * 1024
"""Bytes of the headers of a form's part."""


def read_images(request: Request, max_images: int) -> list[bytes]:
    """Return the files in the request, as their bytes.

    Raises:
        HttpError: 400, the body is not what its type says; or 415, the type is unknown.
    """
    kind = check_type(request)
    images = (_from_json if kind == JSON else _from_form)(request, max_images)
    if not 1 <= len(images) <= max_images:
        raise HttpError(400, f"send 1 to {max_images} images, not {len(images)}")
    return images


def check_type(request: Request) -> str:
    """Return the body's type; refuse unknown ones, and compressed bodies."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise HttpError(415, "compressed requests are not read; images are compressed already")
    kind = _header("content-type", request.headers.get("content-type", "")).get_content_type()
    if kind not in (JSON, FORM):
        raise HttpError(415, f"send {JSON} or {FORM}")
    return kind


def check_image(data: bytes, max_pixels: int) -> None:
    """Refuse what is no PNG, JPEG or WebP file, or too large by its header; decode nothing.

    Raises:
        BadImageError: what is wrong.
    """
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise BadImageError("too large", str(error)) from error
    except Exception as error:  # damaged files make Pillow's readers raise errors of every type
        raise BadImageError("unreadable", f"not a {', '.join(FORMATS)} file") from error
    if width * height > max_pixels:
        seen = f"{width} x {height} pixels, at most {max_pixels:,} are read"
        raise BadImageError("too large", seen)


def _from_json(request: Request, max_images: int) -> list[bytes]:
    wanted = f'send {{"{FIELD}": [base64, ...]}}, 1 to {max_images} images, and nothing else'
    # Every value but the outermost follows one of these; base64 has none of them.
    if sum(request.body.count(mark) for mark in (b"{", b"[", b",")) > max_images + 1:
        raise HttpError(400, wanted)
    try:
        value = json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"the body is not JSON: {error}") from error
    images = value.get(FIELD) if isinstance(value, dict) and len(value) == 1 else None
    if not isinstance(images, list):
        raise HttpError(400, wanted)
    return [_from_base64(place, image) for place, image in enumerate(images)]


def _from_base64(place: int, text: Any) -> bytes:
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (AttributeError, UnicodeEncodeError, binascii.Error) as error:
        raise HttpError(400, f"{FIELD}[{place}] is not base64 text") from error


def _from_form(request: Request, max_images: int) -> list[bytes]:
    """Return the files of a form (RFC 7578); every part must be called `images`."""
    header = _header("content-type", request.headers["content-type"])
    delimiter = b"--" + str(header.get_param("boundary", "")).encode("latin-1")
    num_parts = request.body.count(b"\r\n" + delimiter)  # each is followed by one
    if num_parts > max_images:
        raise HttpError(400, f"send 1 to {max_images} images, not {num_parts}")
    first, *others = request.body.split(b"\r\n" + delimiter)
    begins = delimiter != b"--" and first.startswith(delimiter)
    if not (begins and others and others.pop().startswith(b"--")):
        raise HttpError(400, "the form has no boundary, or does not begin and end with it")
    return [_from_part(part) for part in (first.removeprefix(delimiter), *others)]


def _from_part(part: bytes | bytearray) -> bytes:
    end = part.find(b"\r\n\r\n", 0, MAX_PART_HEAD)
    lines = part[: max(end, 0)].decode("latin-1").split("\r\n")
    named = [line for line in lines if line.lower().startswith("content-disposition:")]
    disposition = _header("content-disposition", named[0].partition(":")[2] if named else "")
    if disposition.get_param("name", header="content-disposition") != FIELD:
        raise HttpError(400, f"every part of the form must be a file called {FIELD}")
    return bytes(memoryview(part)[end + 4 :])


def _header(name: str, value: str) -> Message:
    message = Message()
    message[name] = value.strip()
    return message
