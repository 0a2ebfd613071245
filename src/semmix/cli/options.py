"""Options as text: how the command line reads them, and questions that several commands ask about them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, TypedDict, get_args, get_origin, get_type_hints

from tyro.conf import PositionalMetavarFromFieldName
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from semmix.core.errors import require

HELP = ("-h", "--help")
TYRO_STYLE = (PositionalMetavarFromFieldName,)
"""How every command shows its options."""

TEXT_READERS = ConstructorRegistry()
"""How tyro reads types of ours that it does not know, while this is entered."""

PYTHON_LITERALS = {"True": True, "False": False, "None": None}
"""JSON spells these differently; read as text, even False would be true."""


class MethodOptions(dict[str, object]):
    """Stands for `Mapping[str, object]` in `only_given`: tyro takes a mapping without a default for settings."""


@TEXT_READERS.primitive_rule
def _method_options(type_info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """Read the options of a method, such as `weight=0.5 loss=focal`."""
    if type_info.type not in (Mapping[str, object], MethodOptions):
        return None
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="[NAME=VALUE ...]",
        instance_from_str=parse_options,
        is_instance=lambda value: isinstance(value, Mapping),
        str_from_instance=lambda options: [f"{name}={value}" for name, value in options.items()],
    )


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """Return options written as name=value, by name.

    >>> parse_options(["weight=0.5", "loss=focal", "joint=True"])
    {'weight': 0.5, 'loss': 'focal', 'joint': True}
    """
    pairs = list(map(_parse_option, texts))
    once = len(dict(pairs)) == len(pairs)
    require(once, "an option of the method is given twice", " ".join(texts), "keep one of them")
    return dict(pairs)


def _parse_option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    require(equals, "a method's option is written name=value", repr(text), "as in weight=0.5")
    if value in PYTHON_LITERALS:
        return name, PYTHON_LITERALS[value]
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def only_given(settings: type) -> Any:
    """Return the type of a dict that holds those fields of a dataclass that were given on the command line."""
    hints = get_type_hints(settings, include_extras=True)
    given = {name: _given(hint) for name, hint in hints.items()}
    return TypedDict(settings.__name__, given, total=False)  # pyright: ignore


def _given(hint: Any) -> Any:
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        return Annotated[(_given(inner), *notes)]
    if hint == Mapping[str, object]:
        return MethodOptions
    return only_given(hint) if is_dataclass(hint) and isinstance(hint, type) else hint


def not_default(command: Any, options: Sequence[str]) -> str:
    """Return those of the options that differ from their defaults, with their values, as text."""
    defaults = {field.name: field.default for field in fields(command)}
    values = {name: getattr(command, name) for name in options}
    return ", ".join(f"{name}={value}" for name, value in values.items() if value != defaults[name])
