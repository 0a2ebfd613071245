"""The zoo: trained generators, and classifiers beside them, found by name wherever they are installed.

A zoo is a folder that holds `NAME/generator.json`. A package offers one through the entry point group
`semmix.zoo`: the entry point names a module, and the module's folder is the zoo.
"""

import contextlib
import os
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from semmix.core.errors import SemmixError, unknown_name
from semmix.core.files import cache_folder

PREFIX = "zoo:"
GROUP = "semmix.zoo"
MANIFEST = "generator.json"
HOW_TO_GET = "to get more: `pip install ./zoo` in a clone of semmix, or `semmix zoo get NAME --from SOURCE`"


def zoo_folders() -> list[Path]:
    """Return the folders in which names are looked up; of two entries with one name the first counts.

    They are $SEMMIX_ZOO, `./zoo`, the installed packages, what `semmix zoo get` fetched, and the clone.
    """
    named = [Path(folder)] if (folder := os.environ.get("SEMMIX_ZOO")) else []
    clone = Path(__file__).resolve().parents[3]
    return [*named, Path("zoo"), *package_folders(), fetched_folder(), clone / "zoo"]


def package_folders() -> list[Path]:
    """Return the zoos of installed packages, in the order of their names; no module is imported."""
    folders = []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        with contextlib.suppress(ImportError, ValueError):  # a broken package hides no other zoo
            spec = find_spec(entry.module)
            if spec and spec.submodule_search_locations:
                folders += map(Path, spec.submodule_search_locations)
            elif spec and spec.origin:
                folders.append(Path(spec.origin).parent)
    return list(dict.fromkeys(folders))  # packages of several models share one folder


def fetched_folder() -> Path:
    """Return where `semmix zoo get` puts what it fetches."""
    return cache_folder("zoo")


def zoo_entries() -> dict[str, Path]:
    """Return the folder of every model; names are compared as they are written, on every file system."""
    found = (manifest.parent for zoo in reversed(zoo_folders()) for manifest in zoo.glob(f"*/{MANIFEST}"))
    return {folder.name: folder for folder in found}


def find_zoo(name: str) -> Path:
    """Return the folder of the zoo's model `name`, given with or without `zoo:` in front."""
    name = name.removeprefix(PREFIX)
    found = zoo_entries()
    if name in found:
        return found[name]
    error = unknown_name("zoo generator", name, found or ["none"])
    raise SemmixError(error.what, error.seen, f"{error.fix}; {HOW_TO_GET}")


def is_zoo_name(spec: str | Path) -> bool:
    """Return whether `spec` is `zoo:NAME` rather than a path."""
    return str(spec).startswith(PREFIX)
