"""`semmix zoo list | get`: trained models at hand, and more from a server, a folder or the Hugging Face hub."""

import http.client
import json
import re
import shutil
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from tyro.conf import Positional, arg

from semmix.core.artifact import locked
from semmix.core.errors import SemmixError, explaining, require, unknown_name
from semmix.core.extras import import_extra
from semmix.core.files import digest_file
from semmix.core.progress import harmless, say
from semmix.core.zoo import HOW_TO_GET, MANIFEST, PREFIX, fetched_folder, find_zoo, zoo_entries
from semmix.data.known import TIMEOUT_SECONDS, Download, fetch

INDEX = "index.json"
LARGEST_INDEX = 2**20
HUB = "hf://"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
PATH = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*", re.ASCII)
"""A file inside the model's folder: no way out of it, nothing hidden."""
SHA256 = re.compile(r"[0-9a-f]{64}")
UNREADABLE = (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading an index may raise: no connection, no JSON, JSON of another shape."""


@dataclass(frozen=True, kw_only=True)
class _ZooCommand:
    from_: Annotated[str | None, arg(name="from")] = None
    """Where models come from: an address (https://...), a folder, or hf://OWNER/REPOSITORY."""


class ZooListCommand(_ZooCommand):
    """Show the trained models at hand, or those that a source offers."""

    def run(self) -> None:
        """Print a line for each model."""
        here = zoo_entries()
        if self.from_:
            for name, model in Source(self.from_).models().items():
                state = "here" if name in here else "not here"
                say(f"{name:12} {_mb(model.size)}  {state:8}  {model.description} ({model.licence})")
            return
        for name, folder in sorted(here.items()):
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            say(f"{name:12} {_mb(size)}  {folder}")
        say(HOW_TO_GET if here else f"no model is here; {HOW_TO_GET}")


@dataclass(frozen=True, kw_only=True)
class ZooGetCommand(_ZooCommand):
    """Fetch a trained model; afterwards zoo:NAME works anywhere."""

    name: Positional[str]
    """The model, such as cifar10."""

    def run(self) -> None:
        """Fetch what is not here, check it, and put it in its place."""
        name = self.name.removeprefix(PREFIX)
        if self.from_:
            folder = fetch_model(name, Source(self.from_))
            if find_zoo(name) != folder:
                say(f"{PREFIX}{name} still means {find_zoo(name)}, which comes first")
        elif name in zoo_entries():
            say(f"{PREFIX}{name} is in {find_zoo(name)}; --from SOURCE fetches it again")
        else:
            raise SemmixError("no public server holds the zoo yet, and no --from is given", repr(name), HOW_TO_GET)


@dataclass(frozen=True)
class Model:
    """A model as an index describes it."""

    description: str
    licence: str
    files: Mapping[str, Mapping[str, Any]]
    """Size and SHA-256 of each file, by its path in the model's folder."""

    def __post_init__(self) -> None:
        paths, files = self.files.keys(), self.files.values()
        hashed = all(map(PATH.fullmatch, paths)) and all(SHA256.fullmatch(file["sha256"]) for file in files)
        sized = all(type(file["size"]) is int and file["size"] >= 0 for file in files)
        if not (hashed and sized and MANIFEST in paths):
            raise ValueError("files of a model are listed by path inside its folder, size and SHA-256")

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(file["size"] for file in self.files.values())

    def is_whole(self, folder: Path) -> bool:
        """Return whether a folder holds every file as listed."""
        listed = ((folder / path, file["sha256"]) for path, file in self.files.items())
        return all(path.is_file() and digest_file(path) == sha256 for path, sha256 in listed)


@dataclass(frozen=True)
class Source:
    """Where models come from: an address, a folder, or a repository of the Hugging Face hub."""

    where: str

    def __post_init__(self) -> None:
        scheme, separator, _ = self.where.partition("://")
        known, fix = (
            scheme in ("http", "https", "hf"),
            "give an address (https://...), a folder, or hf://OWNER/REPOSITORY",
        )
        require(known or not separator, "models cannot be fetched from there", self.where, fix)

    def models(self) -> dict[str, Model]:
        """Return the models of the source's index; names and paths that lead elsewhere are refused."""
        fix = f"name the address or folder in which {INDEX} lies; docs/zoo.md says what it holds"
        with explaining(f"cannot read the index of {self.where}", fix, *UNREADABLE):
            index = json.loads(self._index())
            if (index["kind"], index["schema"]) != ("zoo", 1) or not all(map(NAME.fullmatch, index["models"])):
                raise ValueError("it is no index of schema 1 with names of lower-case letters, digits, - and _")
            return {
                name: Model(harmless(model["description"]), harmless(model["licence"]), model["files"])
                for name, model in index["models"].items()
            }

    def _index(self) -> bytes:
        if self.where.startswith(HUB):
            return Path(self._from_hub(INDEX, None)).read_bytes()
        if "://" not in self.where:
            return (Path(self.where) / INDEX).read_bytes()
        request = urllib.request.Request(f"{self.where.rstrip('/')}/{INDEX}", headers={"User-Agent": "semmix"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            text = response.read(LARGEST_INDEX + 1)
        if len(text) > LARGEST_INDEX:
            raise ValueError(f"{INDEX} is larger than {LARGEST_INDEX} bytes")
        return text

    def fetch(self, path: str, folder: Path, sha256: str) -> None:
        """Bring the file `path` of the source to `folder / path`."""
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if self.where.startswith(HUB):
            self._from_hub(path, folder)
        elif "://" in self.where:
            address = f"{self.where.rstrip('/')}/{quote(path)}"
            fetch(Download(address, sha256, "sha256"), (folder / path).parent)
        else:
            shutil.copyfile(Path(self.where) / path, folder / path)

    def _from_hub(self, path: str, folder: Path | None) -> str:
        """Return where the hub's library put a file: in `folder`, or in its own cache."""
        repository, _, revision = self.where.removeprefix(HUB).partition("@")
        hub = import_extra("huggingface_hub", "hub", self.where)
        return hub.hf_hub_download(repository, path, revision=revision or None, local_dir=folder)


def fetch_model(name: str, source: Source) -> Path:
    """Return the folder of a model, fetched from the source where it is not here as its index says.

    Files gather in a folder of their own, where a stopped download goes on; only a whole model gets its name.
    """
    models = source.models()
    if name not in models:
        raise unknown_name(f"model of {source.where}", name, models or ["none"])
    model, partial, target = models[name], fetched_folder() / "partial", fetched_folder() / name
    with locked(partial / f"{name}.lock", wait=True):
        if model.is_whole(target):
            say(f"{PREFIX}{name} is in {target}, whole")
            return target
        for path in model.files:
            _fetch_file(source, f"{name}/{path}", partial, model.files[path]["sha256"])
        for path in (partial / name).rglob("*"):  # of another version, fetched half
            if path.is_file() and path.relative_to(partial / name).as_posix() not in model.files:
                path.unlink()
        shutil.rmtree(target, ignore_errors=True)
        (partial / name).rename(target)
    say(f"{PREFIX}{name} is in {target} ({_mb(model.size).strip()}, {model.licence})")
    return target


def _fetch_file(source: Source, path: str, partial: Path, sha256: str) -> None:
    """Bring a file to the folder of what is not yet whole, and check it."""
    fix = "see whether the source is whole, then run the command again; what came so far is kept"
    with explaining(f"could not fetch {path} from {source.where}", fix, OSError):
        source.fetch(path, partial, sha256)
    if (seen := digest_file(partial / path)) != sha256:
        (partial / path).unlink()
        fix = f"{sha256} is expected; run the command again, or tell whoever publishes it"
        raise SemmixError(f"{path} is damaged", f"SHA-256 {seen}", fix)


def _mb(size: int) -> str:
    return f"{size / 1e6:8.1f} MB"
