"""`semmix serve`: the predictions of `semmix predict` over HTTP.

No path and no address from a client is ever opened: images come in the request, and go nowhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import warnings
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image
from torch import Tensor
from tyro.conf import OmitArgPrefixes, Positional

from semmix import __version__
from semmix.core.errors import SemmixError
from semmix.core.extras import import_extra
from semmix.core.progress import say
from semmix.data.decoding import BadImageError
from semmix.deploy.bodies import check_image, check_type, read_images
from semmix.deploy.counters import CONTENT_TYPE, Counters, resident_bytes
from semmix.deploy.image_files import decode_image
from semmix.deploy.messages import HttpError, Limits, Request, Response, json_response
from semmix.deploy.model import Caution, Model, Row, load_model, prediction_rows
from semmix.deploy.openapi import describe_api
from semmix.deploy.predict import outcome

if TYPE_CHECKING:
    from semmix.deploy.http import HttpServer

PAGE = Path(__file__).with_name("page.html")
PAGE_POLICY = "default-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Predict images over HTTP."""

    model: Positional[Path]
    """A model folder (semmix export), or a finished training run."""
    host: str = "127.0.0.1"
    """Address to listen at; the default is reached from this machine alone."""
    port: int = 8000
    """Port; 0 takes a free one."""
    caution: OmitArgPrefixes[Caution] = field(default_factory=Caution)
    """When to ask, and how large prediction sets are."""
    limits: OmitArgPrefixes[Limits] = field(default_factory=Limits)
    """What clients may ask for."""
    device: str = "auto"
    """auto, cpu or cuda."""
    trust_code: bool = False
    """Run the code that a model folder with its maker's own network brings or names."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 1 << 16:
            raise SemmixError("no such port", self.port, "choose 1 to 65535; 0 takes a free one")


def serve_command(command: Serve) -> None:
    """Serve until interrupted; requests that have arrived are answered first."""
    import_extra("h11", "serve", "serving")
    model = load_model(command.model, command.device, trust_code=command.trust_code)
    # The service has its own, lower limit.
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)
    asyncio.run(_serve(command, PredictionService(model, command.caution, command.limits)))


async def _serve(command: Serve, service: PredictionService) -> None:
    from semmix.deploy.http import HttpServer

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows stops by KeyboardInterrupt
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    service.server = HttpServer(service, command.limits)
    try:
        listener, port = await service.server.start(command.host, command.port)
    except OSError as error:
        where = f"cannot listen at {command.host}, port {command.port}"
        raise SemmixError(where, error, "choose another --host or --port") from error
    say(f"listening at http://{command.host}:{port} (Ctrl-C stops)")
    if not _is_local(command.host):
        say("warning: anyone who reaches this address can ask; there is no password and no TLS")
    await stop.wait()
    await service.server.stop(listener)
    service.pool.shutdown()
    say("stopped")


def _is_local(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


class PredictionService:
    """The routes, and the threads that decode and predict."""

    server: HttpServer

    def __init__(self, model: Model, caution: Caution, limits: Limits):
        self.model, self.caution, self.limits = model, caution, limits
        self.counters = Counters()
        self.pool = ThreadPoolExecutor(limits.threads, thread_name_prefix="predict")
        self.api = describe_api(model.rules.class_names, limits)
        self.routes: dict[str, tuple[str, Callable[[Request], Awaitable[Response]]]] = {
            "/": ("GET", self._page),
            "/health": ("GET", self._health),
            "/metrics": ("GET", self._metrics),
            "/openapi.json": ("GET", self._openapi),
            "/predict": ("POST", self._predict),
        }

    def check(self, head: Request) -> None:
        """Refuse unknown paths, methods and types before their body arrives."""
        if head.path not in self.routes:
            raise HttpError(404, f"there is only {', '.join(self.routes)}")
        method = self.routes[head.path][0]
        allowed = ("GET", "HEAD") if method == "GET" else (method,)
        if head.method not in allowed:
            raise HttpError(405, f"use {method}", {"allow": ", ".join(allowed)})
        if method == "POST":
            check_type(head)

    async def answer(self, request: Request) -> Response:
        """Return the answer of the request's route."""
        return await self.routes[request.path][1](request)

    def count(self, path: str, status: int, seconds: float) -> None:
        """Take note of a request; unknown paths count as one."""
        self.counters.count_request(path if path in self.routes else "other", status, seconds)

    async def _page(self, _: Request) -> Response:
        headers = {"content-security-policy": PAGE_POLICY}
        return Response(200, "text/html; charset=utf-8", PAGE.read_bytes(), headers)

    async def _health(self, _: Request) -> Response:
        return json_response(
            200,
            {
                "status": "ok",
                "semmix": __version__,
                "class_names": self.model.rules.class_names,
                "image_shape": list(self.model.image_shape),
                "coverage": self.caution.coverage,
                "abstain": self.caution.abstain,
            },
        )

    async def _metrics(self, _: Request) -> Response:
        gauges = {
            "semmix_connections": len(self.server.connections),
            "semmix_held_bytes": self.server.held_bytes,
            **resident_bytes(),
        }
        return Response(200, CONTENT_TYPE, self.counters.render(gauges).encode())

    async def _openapi(self, _: Request) -> Response:
        return json_response(200, self.api)

    async def _predict(self, request: Request) -> Response:
        loop = asyncio.get_running_loop()
        rows = await loop.run_in_executor(self.pool, self.predict, request)
        self.counters.images.update(outcome(row) for row in rows)
        self.counters.images["warned"] += sum(bool(row["ood_warning"]) for row in rows)
        status = 422 if all(row["error"] for row in rows) else 200
        return json_response(status, {"predictions": rows}, {"cache-control": "no-store"})

    def predict(self, request: Request) -> list[Row]:
        """Return a row for each image of the request; runs in a thread."""
        images = [self._decode(data) for data in read_images(request, self.limits.max_images)]
        return prediction_rows(self.model, images, self.caution)

    def _decode(self, data: bytes) -> Tensor | BadImageError:
        try:
            check_image(data, self.limits.max_pixels)
            return decode_image(data, self.model.image_shape)
        except BadImageError as bad:
            return bad
