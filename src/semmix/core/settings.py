"""Settings as plain JSON values: what manifests record, what digests are computed from.

Results are found again by these digests, those of earlier versions too. So a field that came later, or that got another
default, says so in its metadata, and `plain` writes its default as earlier versions did.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

ABSENT = object()


def since(schema: int, before: Any = ABSENT) -> dict[str, Any]:
    """Return the metadata of a field that came, or got its present default, with schema number `schema`.

    Args:
        schema: 1 is semmix 0.1.0.
        before: What to write instead of the default; nothing at all unless given.
    """
    return {"since": schema, "before": before}


def unnamed(before: Any = ABSENT) -> dict[str, Any]:
    """Return the metadata of a field whose value does not name a result.

    It does not change the result, or the result's inputs record it by a digest.

    Args:
        before: What earlier versions wrote whatever the value; nothing at all unless given.
    """
    return {"named": False, "before": before}


def plain(settings: Any) -> dict[str, Any]:
    """Return the settings of a dataclass as JSON values.

    Example:
        >>> from dataclasses import dataclass, field
        >>> @dataclass
        ... class Training:
        ...     betas: tuple[float, float] = (0.9, 0.999)
        ...     emphasis: float = field(default=1.0, metadata=since(2))
        >>> plain(Training())
        {'betas': [0.9, 0.999]}
    """
    written = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        is_default = "since" in field.metadata and value == field.default
        if is_default or not field.metadata.get("named", True):
            value = field.metadata["before"]
        if value is not ABSENT:
            written[field.name] = _as_json(value)
    return written


def _as_json(value: Any) -> Any:
    if is_dataclass(value):
        return plain(value)
    if isinstance(value, Mapping):
        return {key: _as_json(inner) for key, inner in value.items()}
    return [_as_json(inner) for inner in value] if isinstance(value, (tuple, list)) else value
