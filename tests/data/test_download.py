"""Downloads from a real server on this machine that misbehaves on request."""

import hashlib
import resource
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from semmix import SemmixError
from semmix.data.known import Download, fetch

DATA = bytes(range(256)) * 8192  # 2 MiB
MD5 = hashlib.md5(DATA).hexdigest()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        server.starts.append(start)
        if server.status != 200:
            self.send_error(server.status)
            return
        if server.can_resume and start >= len(DATA):
            self.send_error(416)
            return
        body = DATA[start:] if server.can_resume else DATA
        self.send_response(206 if server.can_resume else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if server.num_cuts > 0:  # hang up in the middle
            server.num_cuts -= 1
            body = body[: len(body) // 2]
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.starts, server.status, server.can_resume, server.num_cuts = [], 200, True, 0
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def download_from(server, md5=MD5):
    return Download(f"http://127.0.0.1:{server.server_port}/data.bin", md5)


def test_whole_file(server, tmp_path):
    path = fetch(download_from(server), tmp_path / "new")
    assert path == tmp_path / "new" / "data.bin"
    assert path.read_bytes() == DATA
    assert [file.name for file in path.parent.iterdir()] == ["data.bin"]


def test_a_file_that_is_there_is_not_fetched_again(server, tmp_path):
    fetch(download_from(server), tmp_path)
    fetch(download_from(server), tmp_path)
    assert len(server.starts) == 1


def test_goes_on_where_an_earlier_run_was_killed(server, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(DATA[:1000])
    assert fetch(download_from(server), tmp_path).read_bytes() == DATA
    assert server.starts == [1000]


def test_finished_but_not_yet_renamed(server, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(DATA)
    assert fetch(download_from(server), tmp_path).read_bytes() == DATA


def test_goes_on_after_lost_connections(server, tmp_path):
    server.num_cuts = 2
    assert fetch(download_from(server), tmp_path).read_bytes() == DATA
    assert server.starts == [0, len(DATA) // 2, len(DATA) * 3 // 4]


def test_gives_up_in_the_end_but_keeps_what_came(server, tmp_path):
    server.num_cuts = 4
    with pytest.raises(SemmixError, match=r"run the command again to go on; 1.9 MiB are kept"):
        fetch(download_from(server), tmp_path)
    assert fetch(download_from(server), tmp_path).read_bytes() == DATA
    assert server.starts[-1] == len(DATA) * 15 // 16


def test_server_that_cannot_resume(server, tmp_path):
    server.can_resume = False
    (tmp_path / "data.bin.part").write_bytes(b"x" * 1000)
    assert fetch(download_from(server), tmp_path).read_bytes() == DATA


def test_wrong_md5_is_refused_and_not_kept(server, tmp_path):
    with pytest.raises(SemmixError, match=r"data.bin is damaged: MD5 .*\n.*0000 is expected"):
        fetch(download_from(server, md5="0000"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_part_file_that_someone_took_away(server, tmp_path, monkeypatch):
    monkeypatch.setattr("os.replace", lambda *_: (tmp_path / "gone").stat())
    with pytest.raises(SemmixError, match=r"could not download .* No such file"):
        fetch(download_from(server), tmp_path)


def test_absent_file(server, tmp_path):
    server.status = 404
    with pytest.raises(SemmixError, match="HTTP status 404"):
        fetch(download_from(server), tmp_path)
    assert len(server.starts) == 1


def test_nobody_listens(monkeypatch, tmp_path):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(SemmixError, match="could not download"):
        fetch(Download(f"http://127.0.0.1:{port}/data.bin", "0"), tmp_path)


def test_full_disk_keeps_what_came(server, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        with pytest.raises(SemmixError, match=r"1.0 MiB are kept"):
            fetch(download_from(server), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert fetch(download_from(server), tmp_path).read_bytes() == DATA
    assert server.starts == [0, 2**20]
