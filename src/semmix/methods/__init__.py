"""Training-time calibration methods, one file each: the file's name is the method's name.

A new method is a new file here with one `Method` subclass, or any class of your own named by
`package.module:ClassName`. Nothing else needs to know of it.
"""

import math
from dataclasses import Field, fields
from importlib import import_module
from numbers import Integral, Real
from pkgutil import iter_modules
from typing import Any

from semmix.core.errors import SemmixError, unknown_name
from semmix.core.extras import import_object
from semmix.methods._base import Batch, Forward, Method

__all__ = ["Batch", "Forward", "Method", "list_methods", "method", "method_class", "method_options"]

VALUES = {
    bool: (bool, "true or false"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a word"),
}
"""What an option of each type may be given, and how to say so."""


def list_methods() -> list[str]:
    """Return the names of all methods in this folder."""
    return sorted(m.name for m in iter_modules(__path__) if not m.name.startswith("_"))


def method(name: str, num_classes: int, **options: Any) -> Method:
    """Return the method called `name`, with its options.

    >>> method("csm", num_classes=10, loss="ce").num_mixed
    2
    """
    kind = method_class(name)
    known = _option_fields(name)
    for option, value in options.items():
        if option not in known:
            raise unknown_name(f"option of method {name}", option, known or ["none"])
        _check_value(known[option], value)
    return kind(num_classes=num_classes, **options)


def method_options(name: str) -> dict[str, Any]:
    """Return the options of a method with their defaults."""
    return {option: field.default for option, field in _option_fields(name).items()}


def _option_fields(name: str) -> dict[str, Field]:
    own = fields(method_class(name))
    return {field.name: field for field in own if field.name != "num_classes"}


def _check_value(option: Field, value: Any) -> None:
    """Refuse a value of another type than the default; numbers are finite, a float may be whole."""
    wanted = float if option.type in (float, "float") else type(option.default)
    accepted, words = VALUES.get(wanted, (object, ""))
    swapped = isinstance(value, bool) and wanted in (int, float)  # Python counts with booleans
    endless = isinstance(value, float) and not math.isfinite(value)  # JSON knows NaN and Infinity
    if swapped or endless or not isinstance(value, accepted):
        fix = f"as in {option.name}={option.default}"
        raise SemmixError(f"option {option.name} must be {words}", repr(value), fix)


def method_class(name: str) -> type[Method]:
    """Return the class behind a method's name, or behind `package.module:ClassName`."""
    if ":" in name:
        return _foreign(name)
    if name not in list_methods():
        raise unknown_name("method", name, list_methods())
    module = import_module(f"{__name__}.{name}")
    own = [c for c in vars(module).values() if _is_method(c) and c.__module__ == module.__name__]
    if len(own) != 1:
        seen = [c.__name__ for c in own]
        raise SemmixError(f"methods/{name}.py must define one method", seen, "one class per file")
    return own[0]


def _foreign(path: str) -> type[Method]:
    fix = "write package.module:ClassName of a semmix.methods.Method that Python can import"
    kind = import_object(path, "method", fix)
    if not _is_method(kind):
        raise SemmixError(f"{path} is not a method", kind, fix)
    return kind


def _is_method(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Method) and value is not Method
