"""The tables of an evaluation: on the screen, in Markdown, in LaTeX."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from semmix._files import write_bytes, write_json
from semmix._progress import say

COLUMNS = {
    "acc": "acc", "ece": "ECE", "interval": "interval", "aece": "AECE", "oe": "OE", "ue": "UE",
    "classwise_ece": "class ECE", "mce": "MCE", "nll": "NLL", "brier": "Brier",
}  # fmt: skip
UNITS = "in percent, except NLL and Brier"


def table_rows(evaluation: dict[str, Any]) -> list[list[str]]:
    """Return the table's cells, headings first; the interval is that of ECE."""
    return [
        ["", *COLUMNS.values()],
        *([result["name"], *_cells(result)] for result in evaluation["results"]),
    ]


def write_evaluation(evaluation: dict[str, Any], folder: Path) -> None:
    """Write evaluation.json, which holds all a page needs, evaluation.md and evaluation.tex."""
    write_json(folder / "evaluation.json", evaluation)
    write_bytes(folder / "evaluation.md", markdown(evaluation).encode())
    write_bytes(folder / "evaluation.tex", latex(evaluation).encode())
    say(f"written to {folder}")


def print_table(evaluation: dict[str, Any]) -> None:
    """Show the table in the terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    head, *rows = table_rows(evaluation)
    title = f"{evaluation['num_samples']:,} samples, {evaluation['num_classes']} classes; {UNITS}"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for column, name in enumerate(head):
        table.add_column(name, justify="right" if column else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(width=max(Console().width, 120)).print(table)


def markdown(evaluation: dict[str, Any]) -> str:
    """Return a Markdown page: what was read, warnings, the table."""
    head, *rows = table_rows(evaluation)
    lines = [f"# Evaluation of {evaluation['source']}", "", f"Figures {UNITS}.", ""]
    lines += [f"- {note}" for note in evaluation["notes"]]
    lines += [f"- **warning**: {warning}" for warning in evaluation["warnings"]]
    lines += ["", _pipes(head), _pipes(["---", *["---:"] * (len(head) - 1)]), *map(_pipes, rows)]
    return "\n".join(lines) + "\n"


def latex(evaluation: dict[str, Any]) -> str:
    """Return a LaTeX table in the style of booktabs."""
    head, *rows = [[_escape(cell) for cell in row] for row in table_rows(evaluation)]
    lines = [
        r"\begin{tabular}{l" + "r" * (len(head) - 1) + "}",
        r"\toprule",
        " & ".join(head) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _cells(result: dict[str, Any]) -> Iterator[str]:
    for name in COLUMNS:
        if name == "interval":
            yield "{:.2f} to {:.2f}".format(*(100 * end for end in result["intervals"]["ece"]))
        elif name in ("nll", "brier"):
            yield f"{result['metrics'][name]:.4f}"
        else:
            yield f"{100 * result['metrics'][name]:.2f}"


def _pipes(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _escape(cell: str) -> str:
    return cell.replace("%", r"\%").replace("_", r"\_")
