"""Training-time calibration methods, one file each: the file's name is the method's name.

A new method is a new file here with one `Method` subclass, or a class of your own named by `package.module:ClassName`.
"""

import math
from dataclasses import Field, fields
from importlib import import_module
from numbers import Integral, Real
from pkgutil import iter_modules
from typing import Any, Literal, get_args, get_origin

from semmix.core.errors import require, unknown_name
from semmix.core.extras import import_object
from semmix.methods._base import Batch, Forward, Method

__all__ = ["Batch", "Forward", "Method", "list_methods", "method", "method_class", "method_options"]

VALUES = {bool: (bool, "true or false"), str: (str, "a word")}
VALUES |= {int: (Integral, "a whole number"), float: (Real, "a number")}
"""What an option of each type may be given, and how to say so."""


def list_methods() -> list[str]:
    """Return the names of all training-time methods.

    Example:
        >>> list_methods()[:3]
        ['augmix', 'cals', 'ce']
    """
    return sorted(m.name for m in iter_modules(__path__) if not m.name.startswith("_"))


def method(name: str, num_classes: int, **options: Any) -> Method:
    """Return a training-time method with its options.

    Args:
        name: One of `list_methods()`, or `package.module:ClassName` of your own.
        num_classes: Classes the network tells apart.
        options: Options of the method; `method_options` shows them with their defaults.

    Raises:
        SemmixError: If the method or an option is unknown, or a value is of another type than the default.

    Example:
        >>> method("csm", num_classes=10, loss="ce").num_mixed
        2
    """
    kind = method_class(name)
    known = _option_fields(kind)
    for option, value in options.items():
        if option not in known:
            raise unknown_name(f"option of method {name}", option, known or ["none"])
        _check_value(known[option], value)
    return kind(num_classes=num_classes, **options)


def method_options(name: str) -> dict[str, Any]:
    """Return the options of a method with their defaults."""
    return {option: field.default for option, field in _option_fields(method_class(name)).items()}


def _option_fields(kind: type[Method]) -> dict[str, Field]:
    return {field.name: field for field in fields(kind) if field.name != "num_classes"}


def _check_value(option: Field, value: Any) -> None:
    """Refuse a value of another type than the default, or none of its choices; numbers are finite."""
    wanted = float if option.type in (float, "float") else type(option.default)  # a float may be whole
    accepted, words = VALUES.get(wanted, (object, ""))
    swapped = isinstance(value, bool) and wanted in (int, float)  # Python counts with booleans
    endless = isinstance(value, float) and not math.isfinite(value)  # JSON knows NaN and Infinity
    fits = isinstance(value, accepted) and not swapped and not endless
    require(fits, f"option {option.name} must be {words}", repr(value), f"as in {option.name}={option.default}")
    if get_origin(option.type) is Literal and value not in get_args(option.type):
        raise unknown_name(option.name, str(value), get_args(option.type))


def method_class(name: str) -> type[Method]:
    """Return the class behind a method's name, or behind `package.module:ClassName`."""
    if ":" in name:
        fix = "write package.module:ClassName of a semmix.methods.Method that Python can import"
        kind = import_object(name, "method", fix)
        require(_is_method(kind), f"{name} is not a method", kind, fix)
        return kind
    if name not in list_methods():
        raise unknown_name("method", name, list_methods())
    module = import_module(f"{__name__}.{name}")
    own = [c for c in vars(module).values() if _is_method(c) and c.__module__ == module.__name__]
    seen = [c.__name__ for c in own]
    require(len(own) == 1, f"methods/{name}.py must define one method", seen, "one class per file")
    return own[0]


def _is_method(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Method) and value is not Method
