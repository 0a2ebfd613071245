"""Where imported data sets live: one folder each, safetensors and a manifest with digests."""

import os
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from semmix.core.artifact import Artifact, begin_artifact, open_artifact
from semmix.core.errors import explaining, require
from semmix.core.files import write_tensors
from semmix.data.dataset import Parts, Split

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
