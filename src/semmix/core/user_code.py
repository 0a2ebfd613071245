"""The user's own code, by name."""

import os
import sys
from importlib import import_module
from typing import Any

from semmix.core.errors import SemmixError


def import_object(path: str, kind: str, fix: str) -> Any:
    """Return what `package.module:name` stands for; `kind` and `fix` go into the error.

    Modules in the current folder are found too, however semmix was started.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SemmixError(f"cannot load {kind} {path}", error, fix) from error
