"""`Table`: the only printer of tables, for terminals, Markdown, LaTeX, CSV and HTML."""

import csv
import html
import io
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

NARROWEST = 20  # characters that the first column keeps, however narrow the terminal is

_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {letter: f"\\{letter}" for letter in "&%$#_{}"} | {"±": r"$\pm$", "−": "$-$", "–": "--", "Δ": r"$\Delta$"}


def escape_latex(text: str) -> str:
    """Return text that LaTeX shows as it is."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


def escape_markdown(text: str) -> str:
    """Return text that Markdown shows as it is."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def terminal_width() -> int:
    """Return how many characters fit in a line of the terminal; 110 where there is none."""
    return shutil.get_terminal_size((110, 24)).columns


@dataclass(frozen=True)
class Table:
    """Cells as they are shown, and five ways to print them. A notebook shows it as HTML.

    Example:
        >>> print(Table(["Method", "ECE %"], [["CE", "3.17"], ["CSM", "0.79"]]).text())
        Method  ECE %
        -------------
        CE       3.17
        CSM      0.79
        <BLANKLINE>
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    align: str = ""
    """`l` or `r` for each column; by default the first is left-aligned and the others right-aligned."""
    title: str = ""
    """What stands above it in a terminal and in HTML."""

    def __post_init__(self) -> None:
        if not self.align:
            object.__setattr__(self, "align", "l" + "r" * (len(self.headings) - 1))
        assert all(len(row) == len(self.headings) == len(self.align) for row in self.rows), "rows differ in length"

    def text(self, width: int | None = None) -> str:
        """Return the table with aligned columns.

        Args:
            width: Characters in a line of the terminal. The first column is folded to fit; other columns
                are never cut, since half a number is worth nothing. None folds nothing.
        """
        widths = [max(map(len, column)) for column in zip(self.headings, *self.rows, strict=True)]
        if width is not None:
            rest = sum(widths[1:]) + 2 * len(widths[1:])
            widths[0] = min(widths[0], max(NARROWEST, width - rest))
        head, *body = [self._text_row(row, widths) for row in (self.headings, *self.rows)]
        rule = "-" * (sum(widths) + 2 * len(widths) - 2)
        return "\n".join([*([self.title] if self.title else []), head, rule, *body, ""])

    def _text_row(self, row: Sequence[str], widths: Sequence[int]) -> str:
        """Return the lines of a row, its first cell folded."""
        folded = textwrap.wrap(row[0], widths[0], break_on_hyphens=False) if len(row[0]) > widths[0] else [row[0]]
        lines = zip_longest(folded, *([cell] for cell in row[1:]), fillvalue="")
        places = [f"{{:{'<' if side == 'l' else '>'}{width}}}" for side, width in zip(self.align, widths, strict=True)]
        return "\n".join("  ".join(places).format(*line).rstrip() for line in lines)

    def markdown(self) -> str:
        """Return the table in Markdown."""
        rule = ["---" if side == "l" else "---:" for side in self.align]
        lines = [map(escape_markdown, self.headings), rule, *(map(escape_markdown, row) for row in self.rows)]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def latex(self) -> str:
        """Return the table in LaTeX (package booktabs)."""
        head, *body = [" & ".join(map(escape_latex, row)) + r" \\" for row in (self.headings, *self.rows)]
        start = [rf"\begin{{tabular}}{{{self.align}}}", r"\toprule"]
        return "\n".join([*start, head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", ""])

    def csv(self) -> str:
        """Return the cells as comma-separated values, headings first."""
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows([self.headings, *self.rows])
        return file.getvalue()

    def html(self) -> str:
        """Return the table as an HTML element."""
        caption = f"<caption>{html.escape(self.title)}</caption>" if self.title else ""
        starts = [f' style="text-align: {"left" if side == "l" else "right"}">' for side in self.align]
        head, *body = [
            "<tr>" + "".join(f"<{name}{a}{html.escape(b)}</{name}>" for a, b in zip(starts, row, strict=True)) + "</tr>"
            for name, row in [("th", self.headings), *(("td", row) for row in self.rows)]
        ]
        return f"<table>{caption}<thead>{head}</thead><tbody>{''.join(body)}</tbody></table>"

    def render(self, form: str) -> str:
        """Return the table as `text`, `markdown`, `latex`, `csv` or `html`."""
        return getattr(self, form)()

    def _repr_html_(self) -> str:
        return self.html()

    def __str__(self) -> str:
        return self.text()
