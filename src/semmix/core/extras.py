"""What is imported by name when it is needed: optional packages, and the user's own code."""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from semmix.core.errors import explaining

CLONE = Path(__file__).resolve().parents[3]  # the clone that semmix runs from, if it does


def install_command(extra: str) -> str:
    """Return the command that installs the optional packages `extra`, from the clone where semmix runs from one."""
    source = CLONE if (CLONE / "pyproject.toml").is_file() else "semmix"
    return f"pip install '{source}[{extra}]'"


def import_extra(module: str, extra: str, user: str) -> Any:
    """Return a module of the optional packages called `extra`; `user` is what needs it.

    >>> import_extra("json", "clip", "clip:NAME").loads("[1]")
    [1]
    """
    with explaining(f"{user} needs {module.partition('.')[0]}", install_command(extra), ImportError):
        return import_module(module)


def import_object(path: str, kind: str, fix: str) -> Any:
    """Return what `package.module:name` stands for; `kind` and `fix` go into the error.

    Modules in the current folder are found too, however semmix was started.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    module, _, name = path.partition(":")
    with explaining(f"cannot load {kind} {path}", fix, ImportError, AttributeError, ValueError):
        return getattr(import_module(module), name)
