"""The endpoint, as its clients and its attackers meet it: a real process, real sockets."""

import base64
import contextlib
import gzip
import http.client
import io
import json
import math
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from semmix import SemmixError
from semmix.cli.main import main
from semmix.deploy import Caution
from semmix.deploy.bodies import read_images
from semmix.deploy.http import LINGER_SECONDS
from semmix.deploy.messages import HttpError, Limits, Request
from semmix.deploy.predict import predict_files

CLIENT_SECONDS = 1.5
MAX_CONNECTIONS = 100
MAX_HELD_MIB = 8


class Server:
    """A `semmix serve` process."""

    def __init__(self, model: Path):
        options = [
            "--port",
            "0",
            "--client-seconds",
            CLIENT_SECONDS,
            "--max-body-mib",
            2,
            "--max-held-mib",
            MAX_HELD_MIB,
            "--max-connections",
            MAX_CONNECTIONS,
            "--abstain",
            0.5,
            "--coverage",
            0.99,
            "--device",
            "cpu",
        ]
        command = [sys.executable, "-m", "semmix", "serve", model, *options]
        self.process = subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.port = int(re.findall(r":(\d+) ", self.process.stdout.readline())[0])

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)

    def socket(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def request(self, method: str, path: str, body=None, headers=None) -> tuple[int, bytes]:
        connection = self.connect()
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def predict(self, *files: bytes) -> tuple[int, dict]:
        texts = [base64.b64encode(data).decode() for data in files]
        headers = {"content-type": "application/json"}
        status, body = self.request("POST", "/predict", json.dumps({"images": texts}), headers)
        return status, json.loads(body)

    def metric(self, name: str) -> float:
        (line,) = [x for x in self.request("GET", "/metrics")[1].decode().splitlines() if x.startswith(f"{name} ")]
        return float(line.split()[1])

    def peak_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024

    def num_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


@pytest.fixture(scope="module")
def server(run):
    server = Server(run)
    yield server
    server.process.send_signal(signal.SIGTERM)
    out, err = server.process.communicate(timeout=20)
    assert server.process.returncode == 0
    assert out.endswith("stopped\n")
    assert err == ""


@pytest.fixture
def digit(image_files) -> bytes:
    return image_files[0].read_bytes()


def form(*files: bytes, name: str = "images", boundary: str = "xYz") -> tuple[bytes, dict]:
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="../../etc/p"\r\n'
        "Content-Type: image/png\r\n\r\n".encode()
        + data
        + b"\r\n"
        for data in files
    ]
    body = b"".join(parts) + f"--{boundary}--\r\n".encode()
    return body, {"content-type": f"multipart/form-data; boundary={boundary}"}


def png_header(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """Return a PNG file of the size it claims, with these chunks after its header."""
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n"
    for kind, content in ((b"IHDR", head), *chunks, (b"IEND", b"")):
        data += struct.pack(">I", len(content)) + kind + content
        data += struct.pack(">I", zlib.crc32(kind + content))
    return data


def test_json_and_form_give_what_predict_gives(server, model, digit, image_files):
    files = [path.read_bytes() for path in image_files[:5]]
    status, answer = server.predict(*files)
    assert status == 200
    status, body = server.request("POST", "/predict", *form(*files))
    assert status == 200
    assert json.loads(body) == answer
    wanted = list(predict_files(model, image_files[:5], Caution(abstain=0.5, coverage=0.99)))
    for row, answered in zip(wanted, answer["predictions"], strict=True):
        assert answered.pop("confidence") == pytest.approx(row.pop("confidence"), abs=1e-5)
        assert answered["class_name"] == row["class_name"]
        assert answered["prediction_set"] == row["prediction_set"]
        assert answered["error"] is None


def test_bad_images_do_not_spoil_good_ones(server, digit):
    status, answer = server.predict(b"no image", digit)
    assert status == 200
    bad, good = answer["predictions"]
    assert "not a PNG" in bad["error"]
    assert bad["class_name"] is None
    assert good["class_name"] is not None
    assert server.predict(b"no image")[0] == 422
    assert server.predict(digit[:60])[0] == 422


def test_openapi_is_true(server, digit):
    api = json.loads(server.request("GET", "/openapi.json")[1])
    for path in api["paths"]:
        method = next(iter(api["paths"][path])).upper()
        assert server.request(method, path)[0] in (200, 415)
        assert server.request("DELETE", path)[0] == 405
    example = api["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]
    headers = {"content-type": "application/json"}
    status, body = server.request("POST", "/predict", json.dumps(example["example"]), headers)
    assert status == 200
    answered = api["paths"]["/predict"]["post"]["responses"]["200"]["content"]
    schema = answered["application/json"]["schema"]["properties"]["predictions"]["items"]
    assert set(schema["anyOf"][0]["properties"]) == set(json.loads(body)["predictions"][0])


def test_health_and_page(server):
    health = json.loads(server.request("GET", "/health")[1])
    assert health["status"] == "ok"
    assert health["image_shape"] == [1, 8, 8]
    status, page = server.request("GET", "/")
    assert status == 200
    assert b"<form" not in page  # the page sends images by script to this server alone
    assert b"://" not in page
    assert server.request("HEAD", "/health") == (200, b"")


@pytest.mark.parametrize("path", ["/nothing", "/../../etc/passwd", "//etc/passwd", "/page.html"])
def test_no_file_is_reached_by_path(server, path):
    status, body = server.request("GET", path)
    assert status == 404
    assert b"root:" not in body


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {"content-type": "application/json"}, 400),
        (b"[" * 100_000, {"content-type": "application/json"}, 400),
        (b'{"images": "abc"}', {"content-type": "application/json"}, 400),
        (b'{"images": []}', {"content-type": "application/json"}, 400),
        (b'{"images": ["file:///etc/passwd"]}', {"content-type": "application/json"}, 400),
        (b'{"images": ["http://127.0.0.1/"]}', {"content-type": "application/json"}, 400),
        (b'{"images": ["YQ=="], "path": "/etc"}', {"content-type": "application/json"}, 400),
        (b'{"images": [7]}', {"content-type": "application/json"}, 400),
        (json.dumps({"images": ["YQ=="] * 65}).encode(), {"content-type": "application/json"}, 400),
        (b"", {"content-type": "application/json"}, 400),
        (b"x", {"content-type": "image/png"}, 415),
        (b"x", {}, 415),
        (b"x", {"content-type": "multipart/form-data"}, 400),
        (b"x", {"content-type": "multipart/form-data; boundary=y"}, 400),
        (form(b"x", name="other")[0], form()[1], 400),
        (form()[0], form()[1], 400),
        (form(b"x")[0][:-10], form()[1], 400),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_bad_bodies_are_refused(server, body, headers, status):
    seen, answer = server.request("POST", "/predict", body, headers)
    assert seen == status
    assert json.loads(answer)["error"]


def test_a_form_may_hold_its_boundary_within_a_line():
    body, headers = form(b"one --xYz two\r\n--xY", b"\r\n")
    assert read_images(Request("POST", "/", headers, body), 2) == [b"one --xYz two\r\n--xY", b"\r\n"]
    with pytest.raises(HttpError, match="1 to 1 images"):
        read_images(Request("POST", "/", headers, body), 1)


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_json_may_be_laid_out_in_any_way(encoding):
    body = json.dumps({"images": ["YQ==", "Yg\u003d="]}, indent=4).encode(encoding)
    assert read_images(Request("POST", "/", JSON, body), 2) == [b"a", b"b"]


MANY = 300_000


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b'{"images":[' + b"{}," * MANY + b"{}]}", JSON),
        (b'{"images":[' + b'"AAAA",' * MANY + b'"AAAA"]}', JSON),
        (b'{"images":[' + b"1234," * MANY + b"1]}", JSON),
        (b"{" + b",".join(b'"%d":0' % number for number in range(MANY)) + b"}", JSON),
        (b"--xYz" + b"\r\n--xYz" * MANY + b"--", form()[1]),
        (b"--xYz\r\n" + b"ab\r\n" * MANY + b"\r\n\r\n--xYz--", form()[1]),
    ],
    ids=["objects", "texts", "numbers", "keys", "parts", "headers"],
)
def test_many_small_pieces_are_refused_before_they_take_memory(body, headers):
    request = Request("POST", "/predict", headers, body)
    tracemalloc.start()
    with pytest.raises(HttpError, match="images"):
        read_images(request, 64)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * len(body)


@given(
    body=st.lists(
        st.sampled_from(
            [
                b"--x",
                b"--",
                b"\r\n",
                b"\n",
                b"content-disposition:",
                b"form-data;",
                b"name=images",
                b"name*=utf-8''\"",
                b'{"images":',
                b"[",
                b"]",
                b"}",
                b'"',
                b"YQ==",
                b"\xff\0",
                b"\\ud800",
            ]
        )
    ).map(b"".join),
    kind=st.sampled_from(
        [
            "application/json",
            "multipart/form-data; boundary=x",
            "multipart/form-data; boundary*=utf-8''%E2%82%AC",
            "multipart/form-data; boundary*0=x; boundary*1=\xff",
        ]
    ),
)
def test_any_body_is_read_or_refused(body, kind):
    with contextlib.suppress(HttpError):
        files = read_images(Request("POST", "/predict", {"content-type": kind}, body), 3)
        assert all(isinstance(file, bytes) for file in files)


def test_large_requests_are_refused_before_they_arrive(server):
    with server.socket() as client:
        client.sendall(
            b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 99999999999\r\n\r\n"
        )
        assert client.recv(100).startswith(b"HTTP/1.1 413")
    stream = (b"x" * 65536 for _ in range(64))  # 4 MiB in chunks, no length
    headers = {"content-type": "application/json", "transfer-encoding": "chunked"}
    connection = server.connect()
    connection.request("POST", "/predict", stream, headers, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.parametrize("text", [b"GARBAGE\r\n\r\n", b"GET /\r\n\r\n", b"\0" * 999 + b"\n\n"])
def test_what_is_not_http_is_refused(server, text):
    with server.socket() as client:
        client.sendall(text)
        assert client.recv(100).startswith(b"HTTP/1.1 400")


def test_a_length_of_ten_thousand_digits_is_refused(server):
    with server.socket() as client:
        head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        client.sendall(head + b"Content-Length: " + b"9" * 10_000 + b"\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 4")


def test_other_versions_are_refused(server):
    with server.socket() as client:
        client.sendall(b"GET / HTTP/2.0\r\nHost: x\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 505")


def test_endless_headers_are_refused(server):
    with server.socket() as client:
        client.sendall(b"GET / HTTP/1.1\r\nX: " + b"y" * 70_000)
        assert client.recv(100).startswith(b"HTTP/1.1 431")


def bombs() -> dict[str, bytes]:
    """Return small files that would fill the memory of a careless reader."""
    zeros = zlib.compress(bytes(101_000_000), 9)  # 10,000 rows of 10,000 and a filter byte
    huge = png_header(10_000, 10_000, (b"IDAT", zeros))
    text = (b"zTXt", b"k\0\0" + zlib.compress(bytes(50_000_000), 9))
    pixels = zlib.compress(bytes(72), 9)
    return {
        "100 megapixels": huge,
        "claims 4 gigapixels": png_header(65_535, 65_535, (b"IDAT", pixels)),
        "texts": png_header(8, 8, *[text] * 6, (b"IDAT", pixels)),
        "more pixels than claimed": png_header(8, 8, (b"IDAT", zeros)),
    }


def test_bombs_are_refused_in_bounded_memory(server, digit):
    server.predict(digit)
    before = server.peak_mib()
    for name, data in bombs().items():
        status, answer = server.predict(data, data, data, digit)
        assert status == 200, name
        errors = [row["error"] for row in answer["predictions"]]
        assert errors[3] is None
        if name != "more pixels than claimed":  # the claim is kept, the rest never unpacked
            assert all(errors[:3]), name
    assert server.peak_mib() - before < 80
    packed = gzip.compress(bytes(100_000_000))
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    assert server.request("POST", "/predict", packed, headers)[0] == 415
    assert server.peak_mib() - before < 80


def test_refused_bodies_are_not_kept(server):
    before = server.peak_mib()
    for _ in range(60):
        assert server.request("POST", "/predict", b"," * 1_900_000, JSON)[0] == 400
    assert server.peak_mib() - before < 20


def test_many_clients_are_answered_and_nothing_leaks(server, digit):
    """64 clients at once, twice: the second round takes no more memory and no more files."""

    def client(_: int) -> list[int]:
        connection = server.connect()
        body, headers = form(digit)
        statuses = []
        for _ in range(10):  # over one connection, kept alive
            connection.request("POST", "/predict", body, headers)
            response = connection.getresponse()
            assert len(json.loads(response.read())["predictions"]) == 1
            statuses.append(response.status)
        connection.close()
        return statuses

    peaks, files = [], []
    with ThreadPoolExecutor(64) as pool:
        for _ in range(2):
            assert list(pool.map(client, range(64))) == [[200] * 10] * 64
            time.sleep(0.2)
            peaks.append(server.peak_mib())
            files.append(server.num_files())
    assert peaks[1] - peaks[0] < 20
    assert files[1] <= files[0] + 1
    assert server.metric("semmix_held_bytes") == 0


def test_slow_clients_neither_block_nor_stay(server, digit):
    """More of them than connections are allowed, sending heads, bodies, or nothing at all."""
    starts = [
        b"GET / HTTP/1.1\r\nX: ",
        b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{",
        b"",
    ]
    slow = []
    for number in range(2 * MAX_CONNECTIONS):
        slow.append(server.socket())
        slow[-1].sendall(starts[number % 3])
    try:
        start = time.monotonic()
        for _ in range(5):
            assert server.predict(digit)[0] == 200
        assert time.monotonic() - start < CLIENT_SECONDS + 1
        assert server.metric("semmix_connections") <= MAX_CONNECTIONS + 1
        deadline = time.monotonic() + CLIENT_SECONDS + LINGER_SECONDS + 2
        while server.metric("semmix_connections") > 1:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert server.metric("semmix_held_bytes") == 0
    finally:
        for client in slow:
            client.close()


def test_clients_that_take_no_answers_do_not_stay(server):
    """They ask for far more than the system's buffers hold, and read nothing."""
    before = server.num_files()
    deaf = [server.socket() for _ in range(5)]
    try:
        deadline = time.monotonic() + 20
        while server.num_files() == before:  # a busy machine lets them in late
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for client in deaf:
            client.settimeout(0.2)
            with contextlib.suppress(TimeoutError, ConnectionError):
                client.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 20_000)
        deadline = time.monotonic() + 5 * CLIENT_SECONDS
        while server.num_files() > before:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        for client in deaf:
            client.close()


def test_too_many_large_requests_are_asked_to_come_again(server, digit):
    """Ten clients hold nearly 2 MiB each, more than all may: some are refused, memory stays."""
    before = server.peak_mib()
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2000000\r\n\r\n"
    clients = [server.socket() for _ in range(10)]
    for client in clients:
        client.sendall(head + b" " * 1_900_000)
    refused = 0
    for client in clients:
        client.settimeout(CLIENT_SECONDS + 3)
        answer = client.recv(200)
        refused += answer.startswith(b"HTTP/1.1 503")
        assert answer.startswith((b"HTTP/1.1 503", b"HTTP/1.1 408"))
        client.close()
    assert 10 - refused <= MAX_HELD_MIB / 1.8
    assert refused >= 5
    assert server.peak_mib() - before < 80
    assert server.predict(digit)[0] == 200


@pytest.fixture(scope="module")
def large() -> bytes:
    """An image just below the limit of 20 megapixels, which takes a while to decode."""
    buffer = io.BytesIO()
    Image.new("RGB", (4400, 4400), (90, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def test_the_largest_image_is_answered(server, large):
    assert server.predict(large)[0] == 200


def test_metrics_are_what_prometheus_reads(server, digit):
    before = server.metric("semmix_request_seconds_count")
    server.predict(digit)
    text = server.request("GET", "/metrics")[1].decode()
    assert re.search(r'semmix_requests_total{path="/predict",status="200"} [1-9]', text)
    assert re.search(r'semmix_images_total{outcome="(answered|asked)"} [1-9]', text)
    bars = [int(num) for num in re.findall(r'seconds_bucket{le="[^"]+"} (\d+)', text)]
    assert bars == sorted(bars)  # each counts all that are faster
    assert bars[-1] == server.metric("semmix_request_seconds_count") - 1 > before
    names = {line.split("{")[0].split()[0] for line in text.splitlines() if line[0] != "#"}
    typed = set(re.findall(r"# TYPE (\w+)", text))
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in names} == typed


def test_a_port_in_use_is_explained(server, run, capsys):
    assert main(["serve", str(run), "--port", str(server.port), "--device", "cpu"]) == 1
    assert "choose another --host or --port" in capsys.readouterr().err


def test_limits_must_be_possible():
    with pytest.raises(SemmixError, match="max_images must be positive"):
        Limits(max_images=0)
    with pytest.raises(SemmixError, match="max_body_mib must be positive and finite: inf"):
        Limits(max_body_mib=math.inf)


def test_stopping_finishes_what_has_arrived(run, large):
    server = Server(run)
    body, headers = form(large)
    with ThreadPoolExecutor(1) as pool, server.socket():  # one client works, one is idle
        answer = pool.submit(server.request, "POST", "/predict", body, headers)
        while server.metric("semmix_held_bytes") < len(body):
            assert not answer.done()
        server.process.send_signal(signal.SIGINT)
        assert answer.result()[0] == 200
        assert server.process.wait(timeout=20) == 0
    assert server.process.communicate()[1] == ""


def test_the_page_answers_files_chosen_in_a_browser(browser, server, image_files, tmp_path):
    text = tmp_path / "note.png"
    text.write_text("no image")
    browser.open(f"http://127.0.0.1:{server.port}/", width=390)
    assert browser.run("document.documentElement.scrollWidth") == 390
    for chosen in (image_files[:3], [image_files[3], text]):  # the second answer replaces the first
        browser.choose_files("#files", chosen)
        shown = "[...document.querySelectorAll('tbody tr')].map(r => r.cells[0].textContent)"
        browser.wait_for(f"{shown}.join() === '{','.join(path.name for path in chosen)}'")
    cells = browser.run("[...document.querySelectorAll('tbody tr')[0].cells].map(c => c.innerText)")
    assert re.fullmatch(r"\d", cells[1])
    assert re.fullmatch(r"\d+\.\d %", cells[2])
    remark = browser.run("document.querySelectorAll('tbody tr')[1].cells[4].innerText")
    assert "not a PNG" in remark
    assert browser.complaints == []
    assert all(url.startswith(("http://127.0.0.1", "data:")) for url in browser.requests)
