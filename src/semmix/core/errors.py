"""The one error that users see, ways to raise it, and helpers for misspelt names and long lists."""

import contextlib
import difflib
from collections.abc import Iterable, Iterator, Sequence


class SemmixError(ValueError):
    """A mistake the user can mend: what is wrong, the value seen, what to do."""

    def __init__(self, what: str, seen: object, fix: str):
        super().__init__(f"{what}: {seen}\n  -> {fix}")
        self.what, self.seen, self.fix = what, seen, fix

    def __reduce__(self):  # errors of worker processes travel as their three parts
        return SemmixError, (self.what, str(self.seen), self.fix)


def require(holds: object, what: str, seen: object, fix: str) -> None:
    """Raise a `SemmixError` unless something holds."""
    if not holds:
        raise SemmixError(what, seen, fix)


@contextlib.contextmanager
def explaining(what: str, fix: str, *errors: type[Exception], seen: object = None) -> Iterator[None]:
    """Turn these errors of the code inside into a `SemmixError`; what was seen is the error unless given."""
    try:
        yield
    except errors as error:
        raise SemmixError(what, error if seen is None else seen, fix) from error


def unknown_name(kind: str, name: str, known: Iterable[str]) -> SemmixError:
    """Return the error for an unknown name, with the nearest known ones."""
    known = sorted(known)
    by_lower = {k.lower(): k for k in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)
    guess = f"did you mean {' or '.join(repr(by_lower[n]) for n in near)}? " if near else ""
    return SemmixError(f"unknown {kind}", repr(name), f"{guess}known: {', '.join(known)}")


def some_of(names: Sequence[str], most: int = 12) -> str:
    """Return the first names, and how many more there are.

    >>> some_of(["cat", "dog", "owl", "toad"], most=2)
    'cat, dog and 2 more'
    """
    more = len(names) - most
    text = ", ".join(map(short_name, names[:most]))
    return f"{text} and {more:,} more" if more > 0 else text


def short_name(name: str, longest: int = 60) -> str:
    """Return the name with its middle left out where it is very long."""
    half = longest // 2 - 1
    return name if len(name) <= longest else f"{name[:half]}…{name[-half:]}"
