"""The data commands from end to end, with a data set small enough to make here."""

import hashlib
import io
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest

from semmix import SemmixError
from semmix.data import check_data, get_data, import_data, list_data, load_dataset
from semmix.data.known import CATALOG, Download


@pytest.fixture
def small_cifar10(make_split, monkeypatch):
    """CIFAR-10 as the catalogue would know it if it had 40 images."""
    train = make_split(num_classes=10, per_class=3, shape=(3, 32, 32))
    test = make_split(num_classes=10, per_class=1, shape=(3, 32, 32), seed=1)
    parts = {"train": train, "test": test}
    entry = replace(
        CATALOG["cifar10"],
        num_images={part: len(split) for part, split in parts.items()},
        order_free_digests={part: split.order_free_digest for part, split in parts.items()},
        official_digests={part: split.digest for part, split in parts.items()},
    )
    monkeypatch.setitem(CATALOG, "cifar10", entry)
    return entry, train, test


@pytest.fixture
def npz(small_cifar10, tmp_path):
    _, train, test = small_cifar10
    path = tmp_path / "cifar10.npz"
    np.savez(
        path, train_images=train.images, train_labels=train.labels, test_images=test.images, test_labels=test.labels
    )
    return path


def test_import_check_and_load(npz, tmp_path, capsys):
    root = tmp_path / "data"
    folder = import_data("cifar10", source=npz, root=root)
    assert folder == root / "cifar10"
    assert "30 train, 10 test images, digests verified" in capsys.readouterr().out
    assert check_data("cifar10", root=root) == 0
    assert len(load_dataset("cifar10", root=root).test) == 10


def test_a_second_import_does_nothing(npz, tmp_path, capsys):
    given = {"name": "cifar10", "source": npz, "root": tmp_path / "data"}
    folder = import_data(**given)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert import_data(**given) == folder
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert "already in" in capsys.readouterr().out


def test_an_import_tells_what_it_reads_and_what_came_of_it(npz, tmp_path, capsys):
    folder = import_data("cifar10", source=npz, root=tmp_path / "data")
    first, last = capsys.readouterr().out.splitlines()
    assert first == f"reading CIFAR-10 from {npz}"
    assert last == f"cifar10: 30 train, 10 test images, digests verified, in {folder}"


def test_a_refused_import_leaves_nothing(npz, tmp_path):
    with pytest.raises(SemmixError, match="does not hold the train images of CIFAR-100"):
        import_data("cifar100", source=npz, root=tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_check_finds_damage(npz, tmp_path):
    root = tmp_path / "data"
    folder = import_data("cifar10", source=npz, root=root)
    path = folder / "test.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    with pytest.raises(SemmixError, match="is damaged"):
        check_data("cifar10", root=root)


class SlowHandler(SimpleHTTPRequestHandler):
    def do_GET(self):
        self.server.paths.append(self.path)
        time.sleep(0.2)
        super().do_GET()


@pytest.fixture
def server(small_cifar10, monkeypatch, tmp_path):
    """A server that the catalogue's CIFAR-10 is downloaded from; `paths` were asked for."""
    entry, train, test = small_cifar10
    served = tmp_path / "served"
    served.mkdir()
    with tarfile.open(served / "cifar.tar.gz", "w:gz") as archive:
        for k in range(6):
            split = test if k == 5 else train.select(np.arange(6 * k, 6 * k + 6))
            records = np.column_stack([split.labels, split.images.flatten(1)]).astype(np.uint8)
            member = tarfile.TarInfo("test_batch.bin" if k == 5 else f"data_batch_{k + 1}.bin")
            member.size = records.size
            archive.addfile(member, io.BytesIO(records.tobytes()))
    md5 = hashlib.md5((served / "cifar.tar.gz").read_bytes()).hexdigest()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    handler = partial(SlowHandler, directory=served)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.paths = []
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/cifar.tar.gz"
        monkeypatch.setitem(CATALOG, "cifar10", replace(entry, downloads=(Download(url, md5),)))
        yield server
        server.shutdown()
        thread.join()


def test_get_downloads_imports_and_cleans_up(small_cifar10, server, tmp_path):
    root = tmp_path / "data"
    get_data("cifar10", root=root)
    get_data("cifar10", root=root)
    assert load_dataset("cifar10", root=root).test.digest == small_cifar10[2].digest
    assert server.paths == ["/cifar.tar.gz"]
    assert not list(root.glob("downloads/*"))


def test_of_two_downloads_at_once_the_second_waits(server, tmp_path, capsys):
    roots = [tmp_path / "data"] * 2
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(get_data, ["cifar10"] * 2, roots))
    assert folders == [tmp_path / "data" / "cifar10"] * 2
    assert server.paths == ["/cifar.tar.gz"]
    printed = capsys.readouterr().out
    assert "waiting for another process" in printed
    assert "already in" in printed


def test_get_into_a_folder_that_cannot_be_made(server, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SemmixError, match="cannot write"):
        get_data("cifar10", root=tmp_path / "file")


def test_list_shows_what_is_here(npz, tmp_path, capsys):
    root = tmp_path / "data"
    assert list_data(root)["cifar10"] is False
    import_data("cifar10", source=npz, root=root)
    here = list_data(root)
    assert here["cifar10"] is here["digits"] is True
    assert here["cifar100"] is False
    assert "tiny-imagenet-200.zip" in capsys.readouterr().out


def test_misspelt_names(tmp_path):
    for run, given in ((get_data, ("cifar11",)), (import_data, ("cifar11", tmp_path)), (check_data, ("cifar11",))):
        with pytest.raises(SemmixError, match="did you mean 'cifar10'"):
            run(*given)
    with pytest.raises(SemmixError, match="no such folder"):
        check_data(name=str(tmp_path / "absent"))


def test_digits_need_no_import():
    with pytest.raises(SemmixError, match="scikit-learn"):
        get_data("digits")
