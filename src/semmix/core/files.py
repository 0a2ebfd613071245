"""Files that are either whole or absent, and digests of what they hold."""

import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from semmix.core.errors import SemmixError, explaining, require


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path; on success flush it to disk and rename it to `path`."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")  # see remove_leftovers
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # as private as the user's umask says
        try:
            yield temporary
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of killed processes from a folder; no process may be writing there."""
    for path in folder.glob(".*"):
        if re.fullmatch(r"\..+\.[0-9a-f]{8}", path.name) and path.is_file():
            remove_file(path)


def remove_file(path: Path) -> None:
    """Remove `path` if it is there."""
    with writing(path):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of the system about a file that is written or removed into a `SemmixError`."""
    try:
        yield
    except OSError as error:
        fix = "free some space or choose a writable folder, then run the same command again; "
        fix += "everything finished so far is kept"
        raise SemmixError(f"cannot write {path}", error.strerror or error, fix) from error


def cache_folder(name: str) -> Path:
    """Return a folder of the user's cache: `name` in $SEMMIX_CACHE, or in ~/.cache/semmix."""
    return Path(os.environ.get("SEMMIX_CACHE") or "~/.cache/semmix").expanduser() / name


def printable(path: Path | str) -> str:
    """Return the path as valid text, even where its bytes are not."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def delimiter_of(first_line: str) -> str:
    """Return what separates the columns of a CSV file: a comma, a semicolon or a tab."""
    return max(",;\t", key=first_line.count)


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as readable JSON, atomically."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Return the JSON value in `path`."""
    fix = "check the path, or delete the file and make it again"
    with explaining(f"cannot read {path}", fix, OSError, ValueError):
        return json.loads(Path(path).read_text(encoding="utf-8"))


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], header: Any = None) -> None:
    """Write tensors as safetensors, atomically; the same content always gives the same bytes.

    `header` is stored as one JSON string: the format keeps several metadata keys in random order.
    """
    metadata = None if header is None else {"semmix": json.dumps(header, sort_keys=True)}
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_bytes(path, save(ready, metadata))


DAMAGED = "the file is missing or damaged: make it again"


def read_tensors(path: Path, fix: str = DAMAGED) -> dict[str, torch.Tensor]:
    """Return the tensors in `path`; `fix` says what to do where it cannot be read."""
    with explaining(f"cannot read {path}", fix, OSError, SafetensorError):
        return load_file(path)


def read_named_tensors(path: Path, *names: str) -> list[torch.Tensor]:
    """Return the tensors of these names in `path`."""
    tensors = read_tensors(path)
    for name in names:
        require(name in tensors, f"{path} holds no {name!r}", ", ".join(tensors) or "nothing", DAMAGED)
    return [tensors[name] for name in names]


def digest(value: Any) -> str:
    """Return the SHA-256 of a JSON-like value, independent of key order."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def digest_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 over names, types, shapes and bytes, independent of dict order."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    total = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            total.update(block)
    return total.hexdigest()
