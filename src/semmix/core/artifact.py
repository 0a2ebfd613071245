"""What every stage leaves: a folder whose manifest names its inputs by digest.

A stage that finds its folder finished does nothing, one that finds it half done goes on, one that finds it made from
other inputs says so and stops.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semmix.core.errors import SemmixError, require
from semmix.core.files import read_json, remove_leftovers, write_json, writing
from semmix.core.progress import say

FORMAT = 1
LOCK = ".lock"  # a file in the folder of an artifact while a process works in it that must be alone
TRIES = 10  # how often to take a lock that its last owner removes; beyond that, files have no identity here


@dataclass
class Artifact:
    """A folder and its manifest (`kind`, `inputs`, `finished`, and what the stage adds)."""

    folder: Path
    name: str
    manifest: dict[str, Any]

    @property
    def path(self) -> Path:
        """The manifest's file."""
        return self.folder / self.name

    @property
    def finished(self) -> bool:
        """Whether the stage that makes this artifact has come to its end."""
        return self.manifest["finished"]

    def finish(self, **details: Any) -> None:
        """Record the stage's details and that it is done; last act of a stage."""
        self.manifest.update(details, finished=True)
        write_json(self.path, self.manifest)


def begin_artifact(folder: Path, name: str, kind: str, inputs: dict[str, Any], keeps_parts: bool = True) -> Artifact:
    """Start or resume the artifact in `folder`; refuse one that was made from other inputs.

    `inputs` holds plain JSON values: settings, and digests of what the stage reads. A stage that keeps nothing before
    its end (`keeps_parts=False`) may start again with other inputs.
    """
    folder = Path(folder)
    if (folder / name).exists():
        artifact = open_artifact(folder, name, kind)
        if keeps_parts or artifact.finished:
            changed = ", ".join(_differences(artifact.manifest["inputs"], inputs))
            fix = "choose another output folder, or delete this one to make it again"
            require(not changed, f"{folder} was made from other inputs", changed, fix)
            return artifact
    manifest = {"kind": kind, "format": FORMAT, "finished": False, "inputs": inputs}
    write_json(folder / name, manifest)
    return Artifact(folder, name, manifest)


@contextlib.contextmanager
def working_alone(artifact: Artifact) -> Iterator[None]:
    """Refuse a second process in the folder of an unfinished artifact, until the work ends.

    The files that a process was writing when it died are removed. Where there are no locks, nothing is refused.
    """
    with locked(artifact.folder / LOCK) as held:
        if held:
            finished = open_artifact(artifact.folder, artifact.name, artifact.manifest["kind"]).finished
            fix = "run the same command again: it finds the work done"
            require(not finished, "another process has just finished this", artifact.folder, fix)
            remove_leftovers(artifact.folder)
        yield


@contextlib.contextmanager
def locked(lock: Path, wait: bool = False) -> Iterator[bool]:
    """Hold the lock file `lock`, and remove it afterwards; yield False where there are no locks.

    While another process holds it, wait or refuse. The system takes it from a process that dies.
    """
    descriptor = _take(lock, wait)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            lock.unlink(missing_ok=True)
            os.close(descriptor)


def _take(lock: Path, wait: bool) -> int | None:
    """Return a descriptor that holds the lock while it is open; None where there are no locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    for _ in range(TRIES):
        with writing(lock):
            lock.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(lock, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if not wait:
                os.close(descriptor)
                fix = "let it finish, or choose another folder"
                raise SemmixError("another process works in this folder", lock.parent, fix) from error
            say(f"waiting for another process that holds {lock}")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:  # some network file systems have no locks
            os.close(descriptor)
            lock.unlink(missing_ok=True)
            return None
        if _is_there(lock, descriptor):
            return descriptor
        os.close(descriptor)  # its last owner removed it after we had opened it
    return None


def _is_there(lock: Path, descriptor: int) -> bool:
    """Return whether the file that is open is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), lock.stat())
    except OSError:
        return False


def folders_in(folder: Path, name: str) -> list[Path]:
    """Return the folders in `folder` that hold `name`, where `semmix fit` leaves its stages."""
    return sorted(path.parent for where in ("*", "runs/*") for path in folder.glob(f"{where}/{name}"))


def open_artifact(folder: Path, name: str, kind: str) -> Artifact:
    """Open an existing artifact, finished or not."""
    folder = Path(folder)
    if not (folder / name).exists():
        inner = folders_in(folder, name)
        fix = f"name one in it, such as {inner[0]}" if inner else f"the folder must hold {name}; check the path"
        raise SemmixError(f"no {kind} here", folder, fix)
    manifest = read_json(folder / name)
    found = manifest.get("kind") if isinstance(manifest, dict) else type(manifest).__name__
    require(found == kind, f"{folder / name} does not describe a {kind}", found, "check the path")
    version = manifest.get("format")
    require(version == FORMAT, f"{folder} has another format", version, f"this version reads format {FORMAT}")
    # A manifest of an earlier version becomes one of this version. Only what moved or got another name is here;
    # settings that came later need nothing (`core.settings`).
    if kind == "plan":  # 0.1.0 had the seconds between checkpoints among a stage's settings
        manifest.get("plan", {}).get("generator", {}).pop("checkpoint_seconds", None)
    return Artifact(folder, name, manifest)


def _differences(was: dict[str, Any], now: dict[str, Any], above: str = "") -> Iterator[str]:
    """Yield one phrase for each setting that differs."""

    def is_digest(value: Any) -> bool:
        return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None

    for key in {**was, **now}:
        old, new = was.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{above}{key}.")
        elif old != new and is_digest(old) and is_digest(new):
            yield f"{above}{key} changed"
        elif old != new:
            yield f"{above}{key} was {old!r}, now {new!r}"
