"""Where imported data sets live, and what `semmix data list | get | import | check` do, as functions."""

import os
import shutil
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from semmix.core.artifact import Artifact, begin_artifact, locked, open_artifact
from semmix.core.errors import explaining, require
from semmix.core.files import write_tensors
from semmix.core.progress import say
from semmix.data.dataset import Parts, Split
from semmix.data.image_folder import check_folder
from semmix.data.known import CATALOG, Entry, fetch, find_entry, read_source, verify_parts
from semmix.data.listing import looks_like_path

MANIFEST = "dataset.json"
KIND = "dataset"


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder of imported data sets: `root`, $SEMMIX_DATA, or one in the user's cache."""
    chosen = root or os.environ.get("SEMMIX_DATA") or "~/.cache/semmix/datasets"
    return Path(chosen).expanduser()


def is_stored(name: str, root: Path) -> bool:
    """Return whether the data set was imported to its end."""
    there = (root / name / MANIFEST).exists()
    return there and open_artifact(root / name, MANIFEST, KIND).finished


def save_parts(name: str, parts: Parts, source: str, root: Path) -> Artifact:
    """Write a data set; an import that was interrupted is simply written again."""
    folder = root / name
    artifact = begin_artifact(folder, MANIFEST, KIND, inputs={"name": name})
    for part, split in parts.splits.items():
        tensors = {"images": split.images, "labels": split.labels}
        write_tensors(folder / f"{part}.safetensors", tensors)
    artifact.finish(
        source=source,
        class_names=list(parts.class_names),
        parts={part: {"num_images": len(split), "digest": split.digest} for part, split in parts.splits.items()},
    )
    return artifact


def load_parts(name: str, root: Path) -> Parts:
    """Return an imported data set, after comparing its digests with the manifest's."""
    folder = root / name
    fix = f"run `semmix data get {name}`, or `semmix data import {name} SOURCE`"
    require(is_stored(name, root), f"{name} is not in the data folder", root, fix)
    manifest = open_artifact(folder, MANIFEST, KIND).manifest
    splits, fix = {}, f"delete {folder} and import the data set again"
    for part, entry in manifest["parts"].items():
        path = folder / f"{part}.safetensors"
        with explaining(f"{path} cannot be read", fix, OSError, KeyError, SafetensorError):
            tensors = load_file(path)
            splits[part] = split = Split(tensors["images"], tensors["labels"])
        seen = f"digest {split.digest[:16]}, not {entry['digest'][:16]}"
        require(split.digest == entry["digest"], f"{path} is damaged", seen, fix)
    return Parts(splits, tuple(manifest["class_names"]))


def list_data(root: Path | None = None) -> dict[str, bool]:
    """Return, for every known data set, whether it is here."""
    root = data_root(root)
    say(f"data folder: {root}")
    say(f"{'digits':18} here      1797 images of 1 x 8 x 8, from scikit-learn")
    here = {name: is_stored(name, root) for name in CATALOG}
    for name, entry in CATALOG.items():
        shape = " x ".join(map(str, entry.image_shape))
        images = f"{sum(entry.num_images.values())} images of {shape}"
        say(f"{name:18} {'here' if here[name] else 'not here':9} {images}, from {entry.sources}")
    return {"digits": True, **here}


def get_data(name: str, root: Path | None = None) -> Path:
    """Return the folder of the data set, downloaded and imported if it was not there."""
    entry, root = find_entry(name), data_root(root)
    folder = root / "downloads" / entry.name
    if not is_stored(entry.name, root):
        with locked(folder.with_name(f"{entry.name}.lock"), wait=True):
            if not is_stored(entry.name, root):  # by the process that we waited for
                files = [fetch(download, folder) for download in entry.downloads]
                imported = _import(entry, files[0] if len(files) == 1 else folder, root)
                shutil.rmtree(folder)
                return imported
    return _already_here(entry, root)


def import_data(name: str, source: Path, root: Path | None = None) -> Path:
    """Return the folder of the data set, imported from `source` if it was not there."""
    entry, root = find_entry(name), data_root(root)
    if is_stored(entry.name, root):
        return _already_here(entry, root)
    return _import(entry, source, root)


def _already_here(entry: Entry, root: Path) -> Path:
    say(f"{entry.name} is already in {root / entry.name}; delete that folder to import it again")
    return root / entry.name


def _import(entry: Entry, source: Path, root: Path) -> Path:
    say(f"reading {entry.title} from {source}")
    parts = read_source(entry, source)
    artifact = save_parts(entry.name, parts, source.name, root)
    counts = ", ".join(f"{len(split)} {part}" for part, split in parts.splits.items())
    how = "digests verified" if entry.order_free_digests else "counted"
    say(f"{entry.name}: {counts} images, {how}, in {artifact.folder}")
    return artifact.folder


def check_data(name: str, root: Path | None = None) -> int:
    """Return the exit status: 0 if all is well, 1 if files of the folder cannot be used."""
    if name not in CATALOG and looks_like_path(name):
        report = check_folder(Path(name))
        say("\n".join([*report.lines(), *report.advice()]))
        return 1 if report.skipped or report.advice() else 0
    if name == "digits":
        say("digits come with scikit-learn: nothing to check")
        return 0
    entry, root = find_entry(name), data_root(root)
    parts = verify_parts(entry, load_parts(entry.name, root), root / entry.name)
    for part, split in parts.splits.items():
        say(f"{entry.name} {part}: {len(split)} images, digest {split.digest}")
    return 0
