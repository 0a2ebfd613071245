"""semmix makes an image classifier say how sure it really is.

Public names are loaded on first use, so that `import semmix` costs no more than torch and numpy. `__init__.pyi` lists
them with their modules, for editors and type checkers and for the look-up here alike.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as _numpy  # noqa: F401  (the two packages every part of semmix needs)
import torch as _torch  # noqa: F401

__version__ = "0.2.0"

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_MODULES = {alias.name: node.module for node in _STUB.body if isinstance(node, ast.ImportFrom) for alias in node.names}
"""The module that defines each public name."""

__all__ = ["__version__", *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'semmix' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(str(_MODULES[name])), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
