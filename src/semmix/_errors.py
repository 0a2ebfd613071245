"""The one error users see, and the helper that answers a misspelt name."""

import difflib
from collections.abc import Iterable


class SemmixError(ValueError):
    """A mistake the user can mend: what is wrong, the value seen, what to do."""

    def __init__(self, what: str, seen: object, fix: str):
        super().__init__(f"{what}: {seen}\n  -> {fix}")
        self.what, self.seen, self.fix = what, seen, fix

    def __reduce__(self):  # errors of worker processes travel as their three parts
        return SemmixError, (self.what, str(self.seen), self.fix)


def unknown_name(kind: str, name: str, known: Iterable[str]) -> SemmixError:
    """Return the error for a name nobody registered, with the nearest known ones."""
    known = sorted(known)
    by_lower = {k.lower(): k for k in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)
    guess = f"did you mean {' or '.join(repr(by_lower[n]) for n in near)}? " if near else ""
    return SemmixError(f"unknown {kind}", repr(name), f"{guess}known: {', '.join(known)}")
