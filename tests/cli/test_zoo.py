"""`semmix zoo`: models from a folder, from a server that misbehaves on request, and from an imitation of the hub."""

import hashlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from semmix import SemmixError
from semmix.cli.main import main
from semmix.cli.zoo import Source, fetch_model
from semmix.core.artifact import locked
from semmix.core.zoo import fetched_folder, find_zoo

FILES = {
    "generator.json": b'{"kind": "generator"}',
    "weights.safetensors": bytes(range(256)) * 8192,  # 2 MiB
    "classifier/config.json": b"{}",
    "classifier/empty.txt": b"",
}


def index_of(files: dict[str, bytes]) -> dict:
    listed = {path: {"size": len(body), "sha256": hashlib.sha256(body).hexdigest()} for path, body in files.items()}
    model = {"description": "Owls\x1b[31m", "licence": "CC0", "files": listed}
    return {"kind": "zoo", "schema": 1, "models": {"owls": model}}


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """Nothing was fetched, and the working folder has no zoo."""
    monkeypatch.delenv("SEMMIX_ZOO", raising=False)
    monkeypatch.setenv("SEMMIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def folder(tmp_path) -> Path:
    """A zoo of one small model, with its index."""
    for path, body in FILES.items():
        (tmp_path / "zoo" / "owls" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "zoo" / "owls" / path).write_bytes(body)
    write_index(tmp_path / "zoo", index_of(FILES))
    return tmp_path / "zoo"


def write_index(folder: Path, index: object) -> None:
    (folder / "index.json").write_text(json.dumps(index))


class Handler(BaseHTTPRequestHandler):
    """Serves a folder: in plain, or as the hub does under /OWNER/REPOSITORY/resolve/REVISION/."""

    def do_HEAD(self):
        self.answer(head=True)

    def do_GET(self):
        self.answer()

    def answer(self, head=False):
        server = self.server
        _, found, path = self.path.partition("/resolve/")
        path = path.partition("/")[2] if found else self.path.lstrip("/")
        server.asked.append(self.path)
        if not (server.folder / path).is_file():
            self.send_error(404)
            return
        body = (server.folder / path).read_bytes()
        start = int((self.headers["Range"] or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if self.headers["Range"] else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.end_headers()
        if not head:
            stop = len(body) // 2 if path in server.cut else len(body)
            self.wfile.write(body[start:stop])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(folder):
    """A server of the folder; `cut` names files whose second half never comes."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.folder, server.cut, server.asked = folder, set(), []
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def fetched() -> dict[str, bytes]:
    """Return every file of the fetched model."""
    model = fetched_folder() / "owls"
    return {path.relative_to(model).as_posix(): path.read_bytes() for path in model.rglob("*") if path.is_file()}


def left_over() -> list[str]:
    """Return every file that is not part of a model with a name."""
    partial = fetched_folder() / "partial"
    return sorted(path.relative_to(partial).as_posix() for path in partial.rglob("*") if path.is_file())


def test_a_model_from_a_server_is_found_by_its_name(server, capsys):
    assert main(["zoo", "get", "zoo:owls", "--from", f"{server.url}/"]) == 0
    assert find_zoo("zoo:owls") == fetched_folder() / "owls"
    assert fetched() == FILES
    assert left_over() == []
    out = capsys.readouterr().out
    assert "weights.safetensors (MiB): 2/2" in out
    assert "config.json (MiB)" not in out
    assert f"zoo:owls is in {fetched_folder() / 'owls'} (2.1 MB, CC0)" in out


def test_what_is_here_and_whole_is_not_fetched_again(server, capsys):
    target = fetched_folder() / "owls"
    assert fetch_model("owls", Source(server.url)) == target
    server.asked.clear()
    assert fetch_model("owls", Source(server.url)) == target
    assert server.asked == ["/index.json"]
    assert f"zoo:owls is in {target}, whole\n" in capsys.readouterr().out


def test_of_two_who_fetch_a_model_at_once_one_waits(folder, capsys):
    with locked(fetched_folder() / "partial" / "owls.lock"):
        second = Thread(target=fetch_model, args=("owls", Source(str(folder))))
        second.start()
        second.join(0.3)
        assert second.is_alive()
        assert not (fetched_folder() / "owls").exists()
    second.join(30)
    assert fetched() == FILES
    assert "waiting for another process" in capsys.readouterr().out


def test_a_changed_model_takes_the_old_ones_place(folder, server):
    fetch_model("owls", Source(str(folder)))
    changed = {"generator.json": b"{}", "new.txt": b"new"}
    for path, body in changed.items():
        (folder / "owls" / path).write_bytes(body)
    write_index(folder, index_of(changed))
    fetch_model("owls", Source(server.url))
    assert fetched() == changed
    assert left_over() == []


def test_a_damaged_file_here_is_fetched_again(folder):
    fetch_model("owls", Source(str(folder)))
    (fetched_folder() / "owls" / "generator.json").write_bytes(b"damaged")
    fetch_model("owls", Source(str(folder)))
    assert fetched() == FILES


def test_a_cut_connection_leaves_no_model_and_the_next_try_goes_on(server):
    server.cut.add("owls/weights.safetensors")
    with pytest.raises(SemmixError, match=r"could not download .*\n.*run the command again to go on; 1.0 MiB are kept"):
        fetch_model("owls", Source(server.url))
    assert not (fetched_folder() / "owls").exists()
    assert left_over() == ["owls/generator.json", "owls/weights.safetensors.part"]
    with pytest.raises(SemmixError, match="unknown zoo generator"):
        find_zoo("owls")
    server.cut.clear()
    server.asked.clear()
    last = ("config.json", "empty.txt")
    fetch_model("owls", Source(server.url))
    assert fetched() == FILES
    assert server.asked == ["/index.json", "/owls/weights.safetensors", *(f"/owls/classifier/{name}" for name in last)]


@pytest.mark.parametrize("way", ["folder", "server"])
def test_a_file_of_another_digest_is_refused_and_not_kept(way, folder, server):
    (folder / "owls" / "weights.safetensors").write_bytes(b"of somebody else")
    source = Source(str(folder) if way == "folder" else server.url)
    with pytest.raises(SemmixError, match=r"weights.safetensors is damaged: SHA-?256 [0-9a-f]{64}\n.*is expected"):
        fetch_model("owls", source)
    assert not (fetched_folder() / "owls").exists()
    assert left_over() == ["owls/generator.json"]


def test_a_file_that_the_source_lacks_is_named(folder, server):
    (folder / "owls" / "weights.safetensors").unlink()
    with pytest.raises(SemmixError, match=r"owls/weights.safetensors: HTTP status 404"):
        fetch_model("owls", Source(server.url))
    with pytest.raises(SemmixError, match="what came so far is kept") as caught:
        fetch_model("owls", Source(str(folder)))
    assert caught.value.what == f"could not fetch owls/weights.safetensors from {folder}"


def test_files_of_a_version_fetched_half_do_not_stay(folder):
    stray = fetched_folder() / "partial" / "owls" / "old.txt"
    stray.parent.mkdir(parents=True)
    stray.write_text("old")
    fetch_model("owls", Source(str(folder)))
    assert fetched() == FILES


def test_an_unknown_model_is_told_what_the_source_has(folder, capsys):
    assert main(["zoo", "get", "owl", "--from", str(folder)]) == 1
    err = capsys.readouterr().err
    assert f"unknown model of {folder}: 'owl'" in err
    assert "did you mean 'owls'?" in err
    assert not fetched_folder().exists()


def test_without_a_source_the_error_says_where_models_are(capsys):
    assert main(["zoo", "get", "owls"]) == 1
    err = capsys.readouterr().err
    assert "no public server holds the zoo yet, and no --from is given: 'owls'" in err
    assert "pip install ./zoo" in err
    assert "semmix zoo get NAME --from SOURCE" in err


def test_without_a_source_a_model_that_is_here_is_shown(folder, capsys, monkeypatch):
    monkeypatch.setenv("SEMMIX_ZOO", str(folder))
    assert main(["zoo", "get", "owls"]) == 0
    assert f"zoo:owls is in {folder / 'owls'}" in capsys.readouterr().out


def test_a_model_that_another_place_hides_is_told(folder, capsys, monkeypatch):
    monkeypatch.setenv("SEMMIX_ZOO", str(folder))
    assert main(["zoo", "get", "owls", "--from", str(folder)]) == 0
    assert f"zoo:owls still means {folder / 'owls'}, which comes first" in capsys.readouterr().out


OTHER_NAMES = ["../owls", "/owls", ".", "..", ".owls", "owls/..", "Owls", "", "owls\n", "o\x1b[31mwls", "c:owls"]


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_names_that_lead_elsewhere_are_refused(name, folder):
    index = index_of(FILES)
    write_index(folder, {**index, "models": {name: index["models"]["owls"]}})
    with pytest.raises(SemmixError, match="cannot read the index of"):
        fetch_model(name, Source(str(folder)))
    assert not fetched_folder().exists()


OTHER_PATHS = ["../evil", "a/../../evil", "/etc/evil", "a//b", "a/", "", ".", ".hidden", "a/.hidden", "a\\b", "C:evil"]


@pytest.mark.parametrize("path", [*OTHER_PATHS, "evil\n", "~evil", "a/..", "%2e%2e/evil", "évil"])
def test_paths_that_lead_elsewhere_are_refused(path, folder, server):
    write_index(folder, index_of({**FILES, path: b"evil"}))
    with pytest.raises(SemmixError, match="listed by path inside its folder"):
        fetch_model("owls", Source(server.url))
    assert server.asked == ["/index.json"]


def damaged(**changes) -> dict:
    """Return the index with one file's entry changed."""
    index = index_of(FILES)
    index["models"]["owls"]["files"]["generator.json"].update(changes)
    return index


NO_INDEX = [
    [],
    None,
    {"kind": "zoo", "schema": 1},
    {"kind": "zoo", "schema": 2, "models": {}},
    {"kind": "ark", "schema": 1, "models": {}},
    {"kind": "zoo", "schema": 1, "models": ["owls"]},
    {"kind": "zoo", "schema": 1, "models": {"owls": {"description": "", "licence": ""}}},
    {"kind": "zoo", "schema": 1, "models": {"owls": {"description": 1, "licence": "", "files": {}}}},
    index_of({"weights.safetensors": b""}),
    damaged(sha256="abc"),
    damaged(sha256=None),
    damaged(size=-1),
    damaged(size=True),
    damaged(size="1"),
]


@pytest.mark.parametrize("index", NO_INDEX)
def test_what_is_no_index_is_refused(index, folder):
    write_index(folder, index)
    with pytest.raises(SemmixError, match="cannot read the index of") as caught:
        Source(str(folder)).models()
    assert "index.json" in caught.value.fix


@pytest.mark.parametrize("text", [b"{", b"\xff", b"[" * 100_000])
def test_an_index_that_cannot_be_read_is_refused(text, folder, server):
    (folder / "index.json").write_bytes(text)
    with pytest.raises(SemmixError, match="cannot read the index of"):
        Source(server.url).models()


def test_an_index_of_the_largest_size_is_read(folder, server):
    text = json.dumps(index_of(FILES)).encode()
    (folder / "index.json").write_bytes(text + b" " * (2**20 - len(text)))
    assert list(Source(server.url).models()) == ["owls"]
    (folder / "index.json").write_bytes(text + b" " * (2**20 - len(text) + 1))
    with pytest.raises(SemmixError, match="is larger than 1048576 bytes"):
        Source(server.url).models()


def test_a_source_without_an_index_is_refused(tmp_path, server):
    with pytest.raises(SemmixError, match="cannot read the index of"):
        Source(str(tmp_path)).models()
    with pytest.raises(SemmixError, match=r"cannot read the index of .*404"):
        Source(f"{server.url}/elsewhere").models()


@pytest.mark.parametrize("where", ["ftp://example.org/zoo", "file:///zoo", "s3://zoo"])
def test_a_source_of_an_unknown_kind_is_refused(where):
    with pytest.raises(SemmixError, match="cannot be fetched from there") as caught:
        Source(where)
    assert caught.value.seen == where
    assert "hf://OWNER/REPOSITORY" in caught.value.fix


def test_the_list_shows_what_is_here(folder, capsys, monkeypatch):
    monkeypatch.setenv("SEMMIX_ZOO", str(folder))
    assert main(["zoo", "list"]) == 0
    out = capsys.readouterr().out
    assert f"owls              2.1 MB  {folder / 'owls'}" in out
    assert "pip install ./zoo" in out
    assert "no model is here" not in out
    monkeypatch.setattr("semmix.cli.zoo.zoo_entries", dict)
    main(["zoo", "list"])
    assert "no model is here; to get more" in capsys.readouterr().out


def test_the_list_shows_what_a_source_offers(folder, capsys):
    main(["zoo", "list", "--from", str(folder)])
    assert capsys.readouterr().out == "owls              2.1 MB  not here  Owls?[31m (CC0)\n"
    fetch_model("owls", Source(str(folder)))
    capsys.readouterr()
    main(["zoo", "list", "--from", str(folder)])
    assert "2.1 MB  here      Owls" in capsys.readouterr().out


@pytest.fixture
def hub(server, tmp_path, monkeypatch):
    """The loopback server in place of the hub, for the hub's own library."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    template = "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + template)
    return server


@pytest.mark.parametrize(("source", "revision"), [("hf://birds/zoo@v2", "v2"), ("hf://birds/zoo", "main")])
def test_a_model_from_the_hub(source, revision, hub):
    fetch_model("owls", Source(source))
    assert fetched() == FILES
    assert f"/birds/zoo/resolve/{revision}/index.json" in hub.asked
    assert left_over() == [name for name in left_over() if name.startswith(".cache/huggingface/")]


def test_a_model_that_the_hub_lacks_is_told(hub):
    (hub.folder / "index.json").unlink()
    with pytest.raises(SemmixError, match="cannot read the index of hf://birds/zoo"):
        Source("hf://birds/zoo").models()


def test_without_the_hubs_library_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(SemmixError, match=r"hf://birds/zoo needs huggingface_hub: .*\n.*pip install '.*\[hub\]'"):
        Source("hf://birds/zoo").models()
