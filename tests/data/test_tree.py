"""Folders and archives look alike: the same names, the same bytes, whole names only."""

import tarfile
import zipfile

import pytest

from semmix import SemmixError
from semmix.data.readers import open_tree

FILES = {"top/train/a.bin": b"1", "top/train/xb.bin": b"2", "top/test/b.bin": b"3"}


@pytest.fixture(params=["folder", "zip", "tar"])
def source(request, tmp_path):
    folder = tmp_path / "folder"
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    if request.param == "zip":
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            for name in FILES:
                archive.write(folder / name, name)
        return tmp_path / "a.zip"
    if request.param == "tar":
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            archive.add(folder / "top", "top")  # with its folders
        return tmp_path / "a.tar"
    return folder


def test_names_and_bytes(source):
    with open_tree(source) as tree:
        assert {name: tree.read(name) for name in tree.names} == FILES


def test_files_and_folders_are_found_by_whole_names(source):
    with open_tree(source) as tree:
        assert tree.read_file("b.bin") == b"3"
        assert tree.holds("b.bin")
        assert tree.holds("test/b.bin")
        assert not tree.holds(".bin")
        assert tree.holds("train/")
        assert not tree.holds("rain/")
        assert not tree.holds("val/")
        with pytest.raises(SemmixError, match="lacks a file: bin"):
            tree.read_file("bin")
