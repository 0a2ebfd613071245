"""Read foreign pickles without running anything: a machine that builds data and nothing else.

A pickle is a program. Python's own machine imports and calls whatever the program names; this one
knows only the opcodes that build data, keeps every call as an inert `Record`, and refuses names it
was not told of. It reads no more than the file holds, whatever sizes the program claims.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, BinaryIO

MAX_LINE = 1024
MAX_INSTRUCTIONS = 2_000_000
"""Networks need some thousands; each may build a small object, many times its own size."""


class RefusedPickleError(Exception):
    """The pickle asks for what this machine does not do, or is damaged."""


@dataclass(frozen=True)
class Name:
    """Something the pickle names, such as `torch.FloatStorage`."""

    name: str


@dataclass
class Record:
    """A call the pickle asked for, kept instead of made."""

    what: str
    args: tuple
    state: Any = None
    items: dict = field(default_factory=dict)


class BoundedFile:
    """A file that answers a claim beyond its end with an error instead of an allocation."""

    def __init__(self, file: BinaryIO, size: int):
        self.file, self.size, self.tell = file, size, file.tell

    def read(self, count: int) -> bytes:
        """Return exactly `count` bytes."""
        left = self.size - self.tell()
        if not 0 <= count <= left:
            raise RefusedPickleError(f"it claims {count} more bytes where {left} are left")
        return self.file.read(count)

    def readline(self) -> bytes:
        """Return the next line, a short one."""
        return self.file.readline(MAX_LINE)


def read_pickle(file: BoundedFile, known: Collection[str]) -> Any:
    """Return the data of the pickle at the file's position, which then stands behind it.

    Args:
        file: Where to read.
        known: Full names the pickle may mention; all others are refused.
    """
    machine = _Machine(known)
    try:
        operations = pickletools.genops(file)  # pyright: ignore[reportArgumentType]
        for count, (opcode, argument, _) in enumerate(operations):
            if count == MAX_INSTRUCTIONS:
                raise RefusedPickleError(f"it has more than {MAX_INSTRUCTIONS:,} instructions")
            if opcode.name == "STOP":
                return machine.stack.pop()
            machine.step(opcode.name, argument)
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, EOFError) as error:
        raise RefusedPickleError(f"it is damaged ({error})") from error
    raise RefusedPickleError("it ends early")


class _Machine:
    def __init__(self, known: Collection[str]):
        self.known = known
        self.stack: list[Any] = []
        self.outer_stacks: list[list[Any]] = []  # one for each open mark
        self.memo: dict[int, Any] = {}

    def step(self, opcode: str, argument: Any) -> None:
        """Carry out one instruction."""
        if opcode in _LITERALS:
            self.stack.append(argument)
        elif opcode in _CONSTANTS:
            self.stack.append(_CONSTANTS[opcode])
        elif opcode in _EMPTY:
            self.stack.append(_EMPTY[opcode]())
        elif opcode in _TUPLES:
            count = _TUPLES[opcode]
            parts, self.stack[-count:] = tuple(self.stack[-count:]), []
            if len(parts) != count:
                raise RefusedPickleError("it takes more than it made")
            self.stack.append(parts)
        elif opcode in _ACTIONS:
            _ACTIONS[opcode](self, argument)
        elif opcode not in _IGNORED:
            raise RefusedPickleError(f"it uses the instruction {opcode}, which no network needs")

    def mark(self, _) -> None:
        self.outer_stacks.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        """Return what was made since the last mark, and forget the mark."""
        made, self.stack = self.stack, self.outer_stacks.pop()
        return made

    def memoize(self, index: int | None) -> None:
        self.memo[len(self.memo) if index is None else index] = self.stack[-1]

    def recall(self, index: int) -> None:
        self.stack.append(self.memo[index])

    def tuple_since_mark(self, _) -> None:
        made = tuple(self.since_mark())
        self.stack.append(made)

    def set_item(self, _) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._fill(self.stack[-1], [key, value])

    def set_items(self, _) -> None:
        made = self.since_mark()
        self._fill(self.stack[-1], made)

    def append(self, _) -> None:
        value = self.stack.pop()
        self._expect(list).append(value)

    def append_all(self, _) -> None:
        made = self.since_mark()
        self._expect(list).extend(made)

    def add_all(self, _) -> None:
        made = self.since_mark()
        if not all(isinstance(item, str | int) for item in made):
            raise RefusedPickleError("a set holds more than names and numbers")
        self._expect(set).update(made)

    def name(self, argument: str) -> None:
        self._push_name(argument.replace(" ", ".", 1))

    def name_from_stack(self, _) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if not (isinstance(name, str) and isinstance(module, str)):
            raise RefusedPickleError("it names something by other means than a text")
        self._push_name(f"{module}.{name}")

    def call(self, _) -> None:
        args, what = self.stack.pop(), self.stack.pop()
        if not isinstance(what, Name) or not isinstance(args, tuple):
            raise RefusedPickleError("it calls the result of another call")
        self.stack.append(Record(what.name, args))

    def build(self, _) -> None:
        state = self.stack.pop()
        self._expect(Record).state = state

    def persistent_id(self, _) -> None:
        self.stack.append(Record("persistent id", (self.stack.pop(),)))

    def _push_name(self, name: str) -> None:
        if name not in self.known:
            raise RefusedPickleError(f"it wants to use {name[:200]}, which no network needs")
        self.stack.append(Name(name))

    def _expect(self, kind: type) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise RefusedPickleError(f"it fills a {type(self.stack[-1]).__name__} like another thing")
        return self.stack[-1]

    def _fill(self, target: Any, keys_and_values: list[Any]) -> None:
        target = target.items if isinstance(target, Record) else target
        keys, values = keys_and_values[::2], keys_and_values[1::2]
        # hashing a deeply nested key could overflow the stack
        if not isinstance(target, dict) or not all(isinstance(key, str | int) for key in keys):
            raise RefusedPickleError("it fills a dictionary in an unknown way")
        target.update(zip(keys, values, strict=True))


_LITERALS = {
    "BININT",
    "BININT1",
    "BININT2",
    "LONG1",
    "BINFLOAT",
    "SHORT_BINUNICODE",
    "BINUNICODE",
    "BINUNICODE8",
    "SHORT_BINBYTES",
    "BINBYTES",
    "BINBYTES8",
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_SET": set}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = {"PROTO", "FRAME"}
_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine.mark,
    "TUPLE": _Machine.tuple_since_mark,
    "MEMOIZE": _Machine.memoize,
    "BINPUT": _Machine.memoize,
    "LONG_BINPUT": _Machine.memoize,
    "BINGET": _Machine.recall,
    "LONG_BINGET": _Machine.recall,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.append_all,
    "ADDITEMS": _Machine.add_all,
    "GLOBAL": _Machine.name,
    "STACK_GLOBAL": _Machine.name_from_stack,
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.call,
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.persistent_id,
}
