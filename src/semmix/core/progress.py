"""Progress of long work: a bar with the remaining time in a terminal, plain lines otherwise."""

import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import parent_process
from typing import Protocol

PLAIN_LINE_SECONDS = 10.0


class Progress(Protocol):
    """What a stage calls while it works."""

    def advance(self, amount: int = 1, note: str = "") -> None: ...


def say(text: str) -> None:
    """Print one line for the person watching."""
    print(text, flush=True)


def tell(title: str, lines: Sequence[str]) -> None:
    """Print a title and a list of lines under it, wrapped to the width of the terminal."""
    width = shutil.get_terminal_size((100, 24)).columns
    wrap = textwrap.TextWrapper(
        width, initial_indent="  - ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    say("\n".join([title, *map(wrap.fill, lines)]))


def harmless(text: str) -> str:
    """Return names as a terminal may show them: without line ends and commands to it."""
    return "".join(c if c.isprintable() else "?" for c in text)


def duration(seconds: float) -> str:
    """Return a short human time, such as `1:05` or `2:03:00`."""
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@contextmanager
def progress(title: str, total: int, done: int = 0) -> Iterator[Progress]:
    """Show how far `title` is on its way from `done` to `total`.

    Of several processes only the first shows a bar; they would draw over each other.
    """
    if sys.stdout.isatty() and os.environ.get("RANK", "0") == "0" and parent_process() is None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        before, after = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
        with RichProgress(before, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), after) as bar:
            yield _RichBar(bar, title, total, done)
    else:
        lines = _Lines(title, total, done)
        yield lines
        lines.close()


class _Lines:
    """A line every few seconds, for logs and pipes."""

    def __init__(self, title: str, total: int, done: int):
        self.title, self.total, self.first, self.done = title, total, done, done
        self.start = self.last = time.monotonic()
        self.note = ""

    def advance(self, amount: int = 1, note: str = "") -> None:
        self.done += amount
        self.note = note or self.note
        now = time.monotonic()
        if now - self.last >= PLAIN_LINE_SECONDS and self.done < self.total:
            self.last = now
            left = (now - self.start) / max(self.done - self.first, 1) * (self.total - self.done)
            self._say(f"{duration(left)} left")

    def close(self) -> None:
        self._say(f"took {duration(time.monotonic() - self.start)}")

    def _say(self, when: str) -> None:
        say(f"{self.title}: {self.done}/{self.total}  {when}  {self.note}".rstrip())


class _RichBar:
    def __init__(self, bar, title: str, total: int, done: int):
        self.bar, self.task = bar, bar.add_task(title, total=total, completed=done, note="")

    def advance(self, amount: int = 1, note: str = "") -> None:
        self.bar.update(self.task, advance=amount, **({"note": note} if note else {}))
