"""For the reference in docs/api.md: doctests are examples, whether a docstring has a heading for them or not."""

import re
from textwrap import indent
from typing import Any

import griffe

HEADING = re.compile(r"^Example:$", re.MULTILINE)
BARE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class DoctestExamples(griffe.Extension):
    """Gives griffe, which reads the docstrings, the one heading of examples that it knows."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of a function, class or attribute as soon as it is read."""
        if obj.docstring:
            obj.docstring.value = with_headings(obj.docstring.value)


def with_headings(text: str) -> str:
    """Return a docstring whose doctests stand under `Examples:`.

    >>> with_headings("Add.\\n\\n>>> 1 + 1\\n2")
    'Add.\\n\\nExamples:\\n    >>> 1 + 1\\n    2'
    """
    text = HEADING.sub("Examples:", text)
    return BARE.sub(lambda block: f"Examples:\n{indent(block[0], '    ')}", text)
