"""Files that are either whole or absent, and digests of what they hold."""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from semmix._errors import SemmixError


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` under a temporary name, flush it to disk, then rename it into place."""
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise SemmixError(
            f"cannot write {path}",
            error.strerror or error,
            "free some space or choose a writable folder, then run the same command again; "
            "everything finished so far is kept",
        ) from error


def write_json(path: Path, value: Any) -> None:
    """Write `value` as readable JSON, atomically."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Return the JSON value in `path`."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SemmixError(
            f"cannot read {path}", error, "check the path, or delete the file and make it again"
        ) from error


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], header: Any = None) -> None:
    """Write tensors as safetensors, atomically; the same content always gives the same bytes.

    `header` is stored as one JSON string: the format keeps several metadata keys in random order.
    """
    metadata = None if header is None else {"semmix": json.dumps(header, sort_keys=True)}
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_bytes(path, save(ready, metadata))


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
