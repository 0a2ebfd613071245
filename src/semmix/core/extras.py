"""Optional packages: imported where they are needed, with the command that installs a missing one."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from semmix.core.errors import SemmixError

CLONE = Path(__file__).resolve().parents[3]


def import_extra(module: str, extra: str, user: str) -> Any:
    """Return a module of the optional packages called `extra`; `user` is what needs it.

    >>> import_extra("json", "clip", "clip:NAME").loads("[1]")
    [1]
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise SemmixError(f"{user} needs {module.partition('.')[0]}", error, install_command(extra)) from error


def install_command(extra: str) -> str:
    """Return the command that installs the optional packages, from the clone where semmix runs from one."""
    source = CLONE if (CLONE / "pyproject.toml").is_file() else "semmix"
    return f"pip install '{source}[{extra}]'"
