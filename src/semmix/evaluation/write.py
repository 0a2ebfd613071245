"""The tables of an evaluation: on the screen, in Markdown, in LaTeX."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from semmix.calibration import METRICS
from semmix.core.files import write_bytes, write_json
from semmix.core.progress import say

COLUMNS = ("acc", "ece", "interval", "aece", "oe", "ue", "classwise_ece", "mce", "nll", "brier")
AGREEMENT = ("cross_entropy", "kl_divergence", "total_variation", "entropy_correlation")
UNITS = "in percent, except NLL and Brier"


def table_rows(evaluation: dict[str, Any]) -> list[list[str]]:
    """Return the table's cells, headings first; the interval is that of ECE."""
    head = ["interval" if name == "interval" else METRICS[name].heading for name in COLUMNS]
    return [["", *head], *([result["name"], *_cells(result)] for result in evaluation["results"])]


def agreement_rows(human: dict[str, Any]) -> list[list[str]]:
    """Return the cells of the table on agreement with people, headings first."""
    return [
        ["", *(METRICS[name].heading for name in AGREEMENT)],
        *([name, *map(_number, values.values())] for name, values in human["agreement"].items()),
    ]


def _agreement_title(human: dict[str, Any]) -> str:
    return f"agreement with people; cross-entropy is {human['entropy']:.4f} at best; – is infinite or undefined"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def write_evaluation(evaluation: dict[str, Any], folder: Path) -> None:
    """Write evaluation.json, which holds all a page needs, evaluation.md and evaluation.tex."""
    write_json(folder / "evaluation.json", evaluation)
    write_bytes(folder / "evaluation.md", markdown(evaluation).encode())
    write_bytes(folder / "evaluation.tex", latex(evaluation).encode())
    say(f"written to {folder}")


def print_table(evaluation: dict[str, Any]) -> None:
    """Show the table in the terminal, and one on people where there is one."""
    title = f"{evaluation['num_samples']:,} samples, {evaluation['num_classes']} classes; {UNITS}"
    _print_rows(title, table_rows(evaluation))
    if human := evaluation["human"]:
        _print_rows(_agreement_title(human), agreement_rows(human))


def _print_rows(title: str, rows: list[list[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    head, *body = rows
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for column, name in enumerate(head):
        table.add_column(name, justify="right" if column else "left", no_wrap=True)
    for row in body:
        table.add_row(*row)
    Console(width=max(Console().width, 120)).print(table)


def markdown(evaluation: dict[str, Any]) -> str:
    """Return a Markdown page: what was read, warnings, the tables."""
    lines = [f"# Evaluation of {evaluation['source']}", "", f"Figures {UNITS}.", ""]
    lines += [f"- {note}" for note in evaluation["notes"]]
    lines += [f"- **warning**: {warning}" for warning in evaluation["warnings"]]
    lines += ["", *_pipe_table(table_rows(evaluation))]
    if human := evaluation["human"]:
        lines += ["", f"{_agreement_title(human)}.", "", *_pipe_table(agreement_rows(human))]
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


def _pipe_table(rows: list[list[str]]) -> list[str]:
    head, *body = rows
    return [_pipes(head), _pipes(["---", *["---:"] * (len(head) - 1)]), *map(_pipes, body)]


def _pipes(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _escape(cell: str) -> str:
    return cell.replace("%", r"\%").replace("_", r"\_")
