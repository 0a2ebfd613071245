"""How the endpoint bears load and attacks: `python benchmarks/bench_serve.py MODEL IMAGE`.

Starts `semmix serve` with its default limits and meets it with 64 busy clients, then with 1,000
clients that send almost nothing, decompression bombs, and more large requests than fit in memory,
while eight honest clients go on asking. Prints their answers' times and the server's memory and
open files after each act; two rounds show whether anything leaks.
"""

from __future__ import annotations

import argparse
import http.client
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

BOUNDARY = "semmix"
NUM_SLOW = 1000


def make_form(*files: bytes) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a request with these files."""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="images"; filename="x"\r\n\r\n'
    parts = b"".join(head.encode() + data + b"\r\n" for data in files)
    headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    return parts + f"--{BOUNDARY}--\r\n".encode(), headers


def make_png(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """Return a grey PNG file with these chunks, whatever they hold."""
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n"
    for kind, content in ((b"IHDR", head), *chunks, (b"IEND", b"")):
        data += struct.pack(">I", len(content)) + kind + content
        data += struct.pack(">I", zlib.crc32(kind + content))
    return data


class Server:
    """A `semmix serve` process and what the system knows of it."""

    def __init__(self, model: Path):
        command = [sys.executable, "-m", "semmix", "serve", str(model), "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(re.findall(r":(\d+) ", self.process.stdout.readline())[0])

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def memory(self, name: str) -> float:
        """Return VmRSS (now) or VmHWM (the most so far) in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(rf"{name}:\s+(\d+)", status)[0]) / 1024

    def describe(self) -> str:
        num_files = len(os.listdir(f"/proc/{self.process.pid}/fd"))
        now, most = self.memory("VmRSS"), self.memory("VmHWM")
        return f"{now:.0f} MiB now, {most:.0f} MiB at most, {num_files} open files"

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)


class Clients:
    """Honest clients, each asking again as soon as it is answered."""

    def __init__(self, server: Server, image: bytes):
        self.server, self.form = server, make_form(image)
        self.seconds: list[float] = []
        self.statuses: Counter[object] = Counter()
        self.going = True

    def ask(self) -> None:
        connection = self.server.connect()
        while self.going:
            start = time.monotonic()
            try:
                connection.request("POST", "/predict", *self.form)
                response = connection.getresponse()
                response.read()
                self.statuses[response.status] += 1
            except OSError as error:
                self.statuses[type(error).__name__] += 1
                connection.close()
            self.seconds.append(time.monotonic() - start)
        connection.close()

    @contextmanager
    def busy(self, num: int) -> Iterator[None]:
        """Let `num` clients ask while the body of this context runs."""
        threads = [threading.Thread(target=self.ask) for _ in range(num)]
        start = time.monotonic()
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.going = False
            for thread in threads:
                thread.join()
            self.elapsed = time.monotonic() - start

    def describe(self) -> str:
        median, late, worst = 1000 * np.quantile(self.seconds, [0.5, 0.99, 1.0])
        rate = len(self.seconds) / self.elapsed
        return (
            f"{rate:.0f} answers/s, {dict(self.statuses)}; "
            f"{median:.1f} ms median, {late:.0f} ms 99 %, {worst:.0f} ms worst"
        )


def drip(server: Server, seconds: float) -> None:
    """Keep `NUM_SLOW` connections open, sending a byte a second on each; open closed ones again."""
    starts = (
        b"GET / HTTP/1.1\r\nX: ",
        b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n{",
        b"",
    )
    slow: dict[int, socket.socket] = {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for k in range(NUM_SLOW):
            try:
                if k not in slow:
                    slow[k] = socket.create_connection(("127.0.0.1", server.port), timeout=5)
                    slow[k].sendall(starts[k % 3])
                else:
                    slow[k].sendall(b"x")
            except OSError:
                if k in slow:
                    slow.pop(k).close()
        time.sleep(max(0.0, min(1.0, end - time.monotonic())))
    for client in slow.values():
        client.close()


def post(server: Server, body: bytes, headers: dict[str, str]) -> int:
    connection = server.connect()
    try:
        connection.request("POST", "/predict", body, headers)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def throw_bombs(server: Server) -> None:
    """Send 64 times three files of which each would unpack to 50 MB or more."""
    zeros = zlib.compress(bytes(101_000_000), 9)
    text = (b"zTXt", b"k\0\0" + zlib.compress(bytes(50_000_000), 9))
    pixels = (b"IDAT", zlib.compress(bytes(72)))
    files = [
        make_png(10_000, 10_000, (b"IDAT", zeros)),
        make_png(65_535, 65_535, pixels),
        make_png(8, 8, *[text] * 20, pixels),
    ]
    form = make_form(*files)
    with ThreadPoolExecutor(64) as pool:
        print("  bombs:", Counter(pool.map(lambda _: post(server, *form), range(64))))


def send_large(server: Server) -> None:
    """Send 64 requests of 15 MiB at once: 960 MiB, where 128 may be held."""
    form = make_form(bytes(15 * 2**20))
    with ThreadPoolExecutor(64) as pool:
        print("  large:", Counter(pool.map(lambda _: post(server, *form), range(64))))


def act(name: str, server: Server, image: bytes, num: int, work: Callable[[], object]) -> None:
    """Run `work` while `num` honest clients ask; print how they fared."""
    clients = Clients(server, image)
    with clients.busy(num):
        work()
    print(f"{name}: {num} honest clients: {clients.describe()}")
    print(f"  server: {server.describe()}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("image", type=Path)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    image, server = options.image.read_bytes(), Server(options.model)
    print(f"start: {server.describe()}")
    for _ in range(2):
        act("load", server, image, 64, lambda: time.sleep(options.seconds))
        act("slow", server, image, 8, lambda: drip(server, options.seconds))
        act("bombs", server, image, 8, lambda: throw_bombs(server))
        act("large", server, image, 8, lambda: send_large(server))
    time.sleep(12)  # longer than any client may take
    print(f"at rest: {server.describe()}")
    print(f"exit status {server.stop()}")


if __name__ == "__main__":
    main()
