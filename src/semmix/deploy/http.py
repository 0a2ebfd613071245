"""A small HTTP/1.1 server: h11 knows the protocol, this file keeps time and counts bytes.

A client that sends slowly, or nothing, costs one idle task until its time is over; when connections
run out, the oldest of those that wait for their client makes room. Requests held in memory are
counted byte by byte, so however many come at once, memory stays within `Limits`.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from email.utils import formatdate
from http import HTTPStatus
from typing import Protocol

import h11

from semmix.deploy.messages import HttpError, Limits, Request, Response

MAX_HEAD = 16 * 1024
"""Bytes of request line and headers."""
CHUNK = 64 * 1024
LINGER_SECONDS = 2.0
"""Time in which the rest of a refused request is thrown away, so that its sender sees why."""

log = logging.getLogger(__name__)


class Service(Protocol):
    """What the server serves."""

    def check(self, head: Request) -> None:
        """Raise HttpError if the request is refused whatever its body is."""

    async def answer(self, request: Request) -> Response:
        """Return the answer to a whole request."""
        ...

    def count(self, path: str, status: int, seconds: float) -> None:
        """Take note of a request that was answered or refused."""


class HttpServer:
    """Connections, their deadlines and the bytes they hold."""

    def __init__(self, service: Service, limits: Limits):
        self.service, self.limits = service, limits
        self.held_bytes = 0
        self.connections: set[asyncio.Task] = set()
        self.idle: dict[asyncio.Task, None] = {}  # those that wait for their client, oldest first
        self.stopping = False

    async def start(self, host: str, port: int) -> tuple[asyncio.Server, int]:
        """Listen; return the listener and the port it got."""
        server = await asyncio.start_server(
            self._connected, host, port, limit=CHUNK, backlog=self.limits.max_connections
        )
        return server, server.sockets[0].getsockname()[1]

    async def stop(self, server: asyncio.Server) -> None:
        """Take no more requests, finish those that have arrived, close everything."""
        self.stopping = True
        server.close()
        for task in list(self.idle):
            task.cancel()
        if self.connections:
            _, late = await asyncio.wait(self.connections, timeout=self.limits.client_seconds)
            for task in late:
                task.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections.add(task)
        # An answer counts as taken when all of it has left, so only what is given up stays unsent.
        writer.transport.set_write_buffer_limits(high=0)
        try:
            await _Connection(self, task, reader, writer).run()
        except (TimeoutError, OSError, asyncio.CancelledError):
            pass  # the client went away, was too slow to take its answer, or made room for another
        finally:
            self.connections.discard(task)
            writer.transport.abort()  # close would wait for a client that never takes the rest

    def make_room(self) -> None:
        """Let go of the slowest sender if there are too many connections."""
        if len(self.connections) <= self.limits.max_connections:
            return
        oldest = next(iter(self.idle), None)
        if oldest is None:
            raise HttpError(503, "too many requests at once; come again", {"retry-after": "1"})
        del self.idle[oldest]
        oldest.cancel()

    @contextlib.contextmanager
    def waiting(self, task: asyncio.Task) -> Iterator[None]:
        """Mark a connection as one that may be let go."""
        self.idle[task] = None
        try:
            yield
        finally:
            self.idle.pop(task, None)


class _Connection:
    """One client: requests and answers in turn, until either side has enough."""

    def __init__(
        self, server: HttpServer, task: asyncio.Task, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ):
        self.server, self.task, self.reader, self.writer = server, task, reader, writer
        self.limits = server.limits
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self.head = Request("", "", {})
        self.start: float | None = None  # when the head had arrived
        self.body = bytearray()
        self.held_bytes = 0  # of the present request and its answer

    async def run(self) -> None:
        """Answer until there is no more to answer."""
        while not self.server.stopping:
            try:
                if not await self._turn():
                    return
            finally:
                self._release()

    async def _turn(self) -> bool:
        """Take a request and answer it; return whether another may follow."""
        self.head, self.start = Request("", "", {}), None
        response = await self._respond()
        if response is None:
            return False
        now = time.monotonic()
        self.server.service.count(self.head.path, response.status, now - (self.start or now))
        self._hold(len(response.body))
        await asyncio.wait_for(self._send(response), self.limits.client_seconds)
        if self.http.our_state is h11.DONE and self.http.their_state is h11.DONE:
            self.http.start_next_cycle()
            return True
        await self._linger()
        return False

    async def _respond(self) -> Response | None:
        """Return the answer or the refusal; None if there was no request."""
        try:
            return await self._exchange()
        except HttpError as error:  # not kept: its traceback would hold the request's body
            refusal = error.response()
        except h11.RemoteProtocolError as error:
            detail = f"not a sound HTTP request: {error}"
            refusal = HttpError(error.error_status_hint, detail).response()
        self._release()  # what was refused makes room at once, however long its sender lingers
        return refusal

    async def _exchange(self) -> Response | None:
        """Return the answer to the next request; None if there is none."""
        self.server.make_room()
        try:
            with self.server.waiting(self.task):
                request = await asyncio.wait_for(self._receive(), self.limits.client_seconds)
        except TimeoutError:
            if not self.head.method and not self.http.trailing_data[0]:
                return None  # kept alive for a request that did not come
            raise HttpError(408, f"no whole request in {self.limits.client_seconds:g} s") from None
        return await self._answer(request) if request else None

    async def _answer(self, request: Request) -> Response:
        try:
            return await self.server.service.answer(request)
        except HttpError:
            raise
        except Exception:  # whatever goes wrong with one request, the next is answered
            log.exception("%s %s failed", request.method, request.path)
            return HttpError(500, "the server failed to answer; its log says why").response()

    async def _receive(self) -> Request | None:
        """Return the next request whole, or None at the end of the connection."""
        while True:
            event = self.http.next_event()
            if event is h11.NEED_DATA:
                await self._welcome_body()
                self.http.receive_data(await self.reader.read(CHUNK))
            elif isinstance(event, h11.Request):
                self.head, self.start = _head(event), time.monotonic()
                if event.http_version not in (b"1.0", b"1.1"):
                    raise HttpError(505, "HTTP/1.1 is spoken here")
                self._check_length(int(self.head.headers.get("content-length", 0)))
                self.server.service.check(self.head)
            elif isinstance(event, h11.Data):
                self._check_length(len(self.body) + len(event.data))
                self._check_room(len(event.data))
                self._hold(len(event.data))
                self.body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return replace(self.head, body=self.body)
            elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                return None

    async def _welcome_body(self) -> None:
        if self.http.they_are_waiting_for_100_continue:
            event = h11.InformationalResponse(status_code=100, headers=[])
            self.writer.write(self.http.send(event) or b"")
            await self.writer.drain()

    def _check_length(self, length: int) -> None:
        if length > self.limits.max_body:
            raise HttpError(413, f"a request may have {self.limits.max_body:,} bytes")

    def _check_room(self, num_bytes: int) -> None:
        if self.server.held_bytes + num_bytes > self.limits.max_held:
            detail = "too many large requests at once; come again"
            raise HttpError(503, detail, {"retry-after": "1"})

    def _hold(self, num_bytes: int) -> None:
        self.held_bytes += num_bytes
        self.server.held_bytes += num_bytes

    def _release(self) -> None:
        self.server.held_bytes -= self.held_bytes
        self.held_bytes, self.body = 0, bytearray()

    async def _send(self, response: Response) -> None:
        if self.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        last = self.server.stopping or self.http.their_state is not h11.DONE
        headers = {
            "content-type": response.content_type,
            "content-length": str(len(response.body)),
            "date": formatdate(usegmt=True),
            "x-content-type-options": "nosniff",
            **response.headers,
            **({"connection": "close"} if last else {}),
        }
        reason = HTTPStatus(response.status).phrase.encode()
        event = h11.Response(status_code=response.status, headers=list(headers.items()), reason=reason)
        data = self.http.send(event) or b""
        if self.head.method != "HEAD":
            data += self.http.send(h11.Data(data=response.body)) or b""
        self.writer.write(data + (self.http.send(h11.EndOfMessage()) or b""))
        await self.writer.drain()

    async def _linger(self) -> None:
        """Throw away what the client still sends: closing at once could take the answer from it."""
        with contextlib.suppress(asyncio.TimeoutError, OSError), self.server.waiting(self.task):
            self.writer.write_eof()
            await asyncio.wait_for(self._drain(), LINGER_SECONDS)

    async def _drain(self) -> None:
        while await self.reader.read(CHUNK):
            pass


def _head(event: h11.Request) -> Request:
    """Return the request's head; of headers sent twice the values stand side by side."""
    headers: dict[str, str] = {}
    for name, value in event.headers:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    path = event.target.decode("latin-1").partition("?")[0]
    return Request(event.method.decode("latin-1"), path, headers)
