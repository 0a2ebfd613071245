"""Read pickles of others without running anything: a machine that builds data and nothing else.

A pickle is a program. Python's own machine imports and calls whatever the program names; this one
knows only the opcodes that build data, keeps every call as an inert `Record`, and refuses names it
was not told of. It reads no more than the file holds, whatever sizes the program claims.
"""

import pickletools
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, BinaryIO

LITERALS = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"}
LITERALS |= {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
MADE = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_SET": set}
MADE |= {"NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False}
MAX_LINE = 1024
MAX_INSTRUCTIONS = 2_000_000  # networks need some thousands; each may build a small object, many times its own size


class RefusedPickleError(Exception):
    """The pickle asks for what this machine does not do, or is damaged."""


def insist(holds: object, problem: str) -> None:
    """Refuse the pickle unless something holds."""
    if not holds:
        raise RefusedPickleError(problem)


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
        insist(0 <= count <= left, f"it claims {count} more bytes where {left} are left")
        return self.file.read(count)

    def readline(self) -> bytes:
        """Return the next line, a short one."""
        return self.file.readline(MAX_LINE)


def read_pickle(file: BoundedFile, known: Collection[str]) -> Any:
    """Return the data of the pickle at the file's position; full names it mentions must be `known`."""
    machine = _Machine(known)
    try:
        operations = pickletools.genops(file)  # pyright: ignore[reportArgumentType]
        for count, (opcode, argument, _) in enumerate(operations):
            insist(count < MAX_INSTRUCTIONS, f"it has more than {MAX_INSTRUCTIONS:,} instructions")
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
        stack = self.stack
        match opcode:
            case _ if opcode in LITERALS:
                stack.append(argument)
            case _ if opcode in MADE:
                stack.append(MADE[opcode]())
            case "PROTO" | "FRAME":
                pass
            case "MEMOIZE" | "BINPUT" | "LONG_BINPUT":
                self.memo[len(self.memo) if argument is None else argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self.memo[argument])
            case "MARK":
                self.outer_stacks.append(stack)
                self.stack = []
            case "TUPLE":
                made = tuple(self.since_mark())
                self.stack.append(made)
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(opcode[-1])
                insist(len(stack) >= count, "it takes more than it made")
                stack[-count:] = [tuple(stack[-count:])]
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                self.fill([key, value])
            case "SETITEMS":
                self.fill(self.since_mark())
            case "APPEND":
                value = stack.pop()
                self.top(list).append(value)
            case "APPENDS":
                made = self.since_mark()
                self.top(list).extend(made)
            case "ADDITEMS":
                made = self.since_mark()
                insist(all(isinstance(item, str | int) for item in made), "a set holds more than names and numbers")
                self.top(set).update(made)
            case "GLOBAL":
                self.push_name(argument.replace(" ", ".", 1))
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                are_texts = isinstance(name, str) and isinstance(module, str)
                insist(are_texts, "it names something by other means than a text")
                self.push_name(f"{module}.{name}")
            case "REDUCE" | "NEWOBJ":
                args, what = stack.pop(), stack.pop()
                insist(isinstance(what, Name) and isinstance(args, tuple), "it calls the result of another call")
                stack.append(Record(what.name, args))
            case "BUILD":
                state = stack.pop()
                self.top(Record).state = state
            case "BINPERSID":
                stack.append(Record("persistent id", (stack.pop(),)))
            case _:
                raise RefusedPickleError(f"it uses the instruction {opcode}, which no network needs")

    def since_mark(self) -> list[Any]:
        """Return what was made since the last mark, and forget the mark."""
        made, self.stack = self.stack, self.outer_stacks.pop()
        return made

    def top(self, kind: type) -> Any:
        """Return what is on top of the stack, which must be of this kind."""
        found = self.stack[-1]
        insist(isinstance(found, kind), f"it fills a {type(found).__name__} like another thing")
        return found

    def fill(self, keys_and_values: list[Any]) -> None:
        """Fill the dictionary, or the call that makes one, on top of the stack."""
        target = self.stack[-1]
        target = target.items if isinstance(target, Record) else target
        keys, values = keys_and_values[::2], keys_and_values[1::2]
        # hashing a deeply nested key could overflow the stack
        usual = isinstance(target, dict) and all(isinstance(key, str | int) for key in keys)
        insist(usual, "it fills a dictionary in an unknown way")
        target.update(zip(keys, values, strict=True))

    def push_name(self, name: str) -> None:
        """Push something by its name, if it is known."""
        insist(name in self.known, f"it wants to use {name[:200]}, which no network needs")
        self.stack.append(Name(name))
