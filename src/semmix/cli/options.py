"""Questions that several commands ask about the options they were given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any


def not_default(command: Any, options: Sequence[str]) -> str:
    """Return those of the options that differ from their defaults, with their values, as text."""
    defaults = {field.name: field.default for field in fields(command)}
    values = {name: getattr(command, name) for name in options}
    return ", ".join(f"{name}={value}" for name, value in values.items() if value != defaults[name])
