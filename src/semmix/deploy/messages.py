"""What passes between the HTTP server and the service behind it."""

import json
import math
from dataclasses import dataclass, field
from typing import Any

from semmix.core.errors import SemmixError

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What clients may ask for; beyond it they are refused, and the memory stays bounded."""

    max_body_mib: float = 16.0
    """Largest request."""
    max_held_mib: float = 128.0
    """Requests held in memory at once, all together; further ones are asked to come again."""
    max_images: int = 64
    """Images in one request."""
    max_megapixels: float = 20.0
    """Largest image, judged by its header before it is decoded."""
    max_connections: int = 512
    """Open connections; at the limit the slowest sender makes room for a new one."""
    client_seconds: float = 10.0
    """Time for a client to send its whole request, and to take the response."""
    threads: int = 2
    """Requests decoded and predicted at the same time."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < math.inf:
                fix = "choose a number above 0; there is no unlimited"
                raise SemmixError(f"{name} must be positive and finite", value, fix)

    @property
    def max_body(self) -> int:
        """Bytes of the largest request."""
        return int(self.max_body_mib * MIB)

    @property
    def max_held(self) -> int:
        """Bytes of all requests held at once."""
        return int(self.max_held_mib * MIB)

    @property
    def max_pixels(self) -> int:
        """Pixels of the largest image."""
        return int(self.max_megapixels * 1e6)


@dataclass(frozen=True)
class Request:
    """A request; the names of its headers are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes | bytearray = b""


@dataclass(frozen=True)
class Response:
    """A response."""

    status: int
    content_type: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


class HttpError(Exception):
    """A request that is refused: the status, and why."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None):
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers or {}

    def response(self) -> Response:
        """Return the refusal as a response."""
        return json_response(self.status, {"error": self.detail}, self.headers)


def json_response(status: int, value: Any, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON response."""
    body = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return Response(status, "application/json", body, headers or {})
