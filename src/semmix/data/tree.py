"""A folder, a zip or a tar archive, seen alike: names, and the bytes behind a name.

Nothing is ever unpacked to disk, so a hostile archive has no path to escape by.
"""

import contextlib
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from semmix.core.errors import SemmixError, explaining, require

DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError)


@dataclass(frozen=True)
class Tree:
    """Where it lies, the names of its files (with `/`), and how to read one."""

    path: Path
    names: list[str]
    read: Callable[[str], bytes]

    def holds(self, ending: str) -> bool:
        """Whether some file has this name, or lies in this folder if `ending` ends with `/`."""
        if ending.endswith("/"):
            return any(f"/{ending}" in f"/{name}" for name in self.names)
        return any(f"/{name}".endswith(f"/{ending}") for name in self.names)

    def read_file(self, ending: str) -> bytes:
        """Return the bytes of the first file whose path ends with `ending`."""
        for name in self.names:
            if f"/{name}".endswith(f"/{ending}"):
                return self.read(name)
        raise SemmixError(f"{self.path} lacks a file", ending, "get the data set again")


@contextmanager
def open_tree(path: Path) -> Iterator[Tree]:
    """Open a folder or an archive for reading."""
    require(path.exists(), "no such file or folder", path, "check the path")
    with explaining(f"cannot read {path}", "get the file again", *DAMAGE), contextlib.ExitStack() as stack:
        yield _open(path, stack)


def _open(path: Path, stack: contextlib.ExitStack) -> Tree:
    if path.is_dir():
        files = (file for file in path.rglob("*") if not file.is_dir())  # follows no links, so no loops
        return Tree(
            path, sorted(file.relative_to(path).as_posix() for file in files), lambda name: (path / name).read_bytes()
        )
    if zipfile.is_zipfile(path):
        # what `zipfile` cannot do: passwords, other methods of packing (NotImplementedError), odd names
        fix = "unpack it with the program that packed it, and import the folder"
        explained = explaining(f"cannot read {path}", fix, RuntimeError, UnicodeDecodeError)
        archive = explained(lambda: stack.enter_context(zipfile.ZipFile(path)))()
        return Tree(path, archive.namelist(), explained(archive.read))
    if tarfile.is_tarfile(path):
        return _open_tar(path, stack.enter_context(tarfile.open(path)))
    raise SemmixError("neither a folder nor an archive", path, "give a folder, .zip, .tgz or .npz")


def _open_tar(path: Path, archive: tarfile.TarFile) -> Tree:
    members = {member.name: member for member in archive.getmembers() if member.isfile()}

    def read(name: str) -> bytes:
        file = archive.extractfile(members[name])
        assert file is not None  # only regular files are listed
        return file.read()

    return Tree(path, list(members), read)
