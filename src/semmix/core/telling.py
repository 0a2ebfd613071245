"""Telling a person several things at once."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

from semmix.core.progress import say


def tell(title: str, lines: Sequence[str]) -> None:
    """Print a title and, one under the other, what belongs to it, as wide as the terminal is."""
    width = shutil.get_terminal_size((100, 24)).columns
    wrap = textwrap.TextWrapper(
        width, initial_indent="  - ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    say("\n".join([title, *map(wrap.fill, lines)]))
