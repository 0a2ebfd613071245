"""Results over seeds: mean and interval per method, paired differences, and four ways to print."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semmix.calibration import METRICS, USUAL, Interval, Metric, mean_interval
from semmix.core.errors import SemmixError
from semmix.runs import Predictions, Run, load_run

TASK = ("dataset", "classifier")
"""Settings in which rows must agree to be compared."""


def percent(value: float, digits: int = 1) -> str:
    """Return a share in per cent, its sign kept on the same line.

    >>> percent(0.957)
    '95.7\xa0%'
    """
    return f"{100 * value:.{digits}f}\N{NO-BREAK SPACE}%"


ACCURACY, ECE, NLL, TEMPERATURE = (METRICS[name] for name in ("acc", "ece", "nll", "temperature"))

METHOD_NAMES = {
    "ce": "CE",
    "ls": "LS",
    "ecp": "ECP",
    "mmce": "MMCE",
    "mmce_w": "MMCE-w",
    "fl": "FL",
    "flsd": "FLSD",
    "crl": "CRL",
    "cpc": "CPC",
    "mbls": "MbLS",
    "fcl": "FCL",
    "mixup": "Mixup",
    "regmixup": "RegMixup",
    "augmix": "AugMix",
    "rankmixup": "RankMixup",
    "cals": "CALS",
    "remix": "Remix",
    "unimix": "UniMix",
    "csm": "CSM",
}


@dataclass(frozen=True)
class Row:
    """One line of a results table: a method with its options, over seeds."""

    name: str
    runs: tuple[Run, ...]
    before: dict[str, Interval]
    """Metrics on the test split, as trained."""
    after: dict[str, Interval]
    """The same after temperature scaling."""
    temperature: Interval
    baseline: Row | None
    """The row to compare with: same test images and classifier. None for the baseline itself."""
    pairs: tuple[tuple[Run, Run], ...]
    """Its runs, each with the baseline's run of the same seed; only the seeds both have."""
    change_before: dict[str, Interval]
    """Differences to the baseline over `pairs`; empty without any."""
    change_after: dict[str, Interval]

    @property
    def seeds(self) -> list[int]:
        """The seeds of its runs, in rising order."""
        return [run.seed for run in self.runs]


def aggregate(folders: Sequence[Path], baseline: str = "ce") -> list[Row]:
    """Return one row per group of runs that differ in nothing but the seed, baselines first.

    A row is compared with the row of method `baseline` that was made most like it, on the same
    test images with the same classifier.
    """
    runs = [load_run(folder) for folder in folders]
    groups = _group(runs)
    firsts = [group[0] for group in groups]
    rows: list[Row] = []
    for group in sorted(groups, key=lambda group: group[0].settings["method"] != baseline):
        name = _row_name(group[0], firsts)
        rows.append(_make_row(name, group, _find_baseline(group[0], rows, baseline)))
    return rows


def _group(runs: Sequence[Run]) -> list[tuple[Run, ...]]:
    """Return the runs of each row, by seed."""
    groups: dict[str, dict[int, Run]] = {}
    for run in runs:
        made_like = json.dumps([run.settings, run.origins], sort_keys=True)
        seeds = groups.setdefault(made_like, {})
        if run.seed in seeds:
            raise SemmixError(
                "two runs have the same settings and seed",
                f"{seeds[run.seed].folder} and {run.folder}",
                "leave one of them out",
            )
        seeds[run.seed] = run
    return [tuple(seeds[seed] for seed in sorted(seeds)) for seeds in groups.values()]


def _row_name(run: Run, runs: Sequence[Run]) -> str:
    """Return a row's method and only what else tells it from other rows; `runs` has one of each."""
    mine, settings = run.settings, [other.settings for other in runs]
    task = [str(mine[key]) for key in TASK if len({other[key] for other in settings}) > 1]
    details = ", ".join([*task, *_own_settings(mine, settings), *_own_origins(run, runs)])
    method = METHOD_NAMES.get(mine["method"], str(mine["method"]))
    return f"{method} ({details})" if details else method


def _own_settings(mine: dict[str, Any], settings: Sequence[dict[str, Any]]) -> list[str]:
    """Return the settings in which a row differs from others of its method."""
    peers = [other for other in settings if other["method"] == mine["method"]]
    return [
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in mine.items()
        if key not in TASK and any(peer.get(key) != value for peer in peers)
    ]


def _own_origins(run: Run, runs: Sequence[Run]) -> list[str]:
    """Return the origins in which a row differs from others of the same settings."""
    peers = [other.origins for other in runs if other.settings == run.settings]
    return [
        f"{key} {digest[:6]}" for key, digest in run.origins.items() if any(peer.get(key) != digest for peer in peers)
    ]


def _find_baseline(run: Run, rows: list[Row], baseline: str) -> Row | None:
    """Return the baseline's row that was made most like `run`, if it is not one itself."""
    if run.settings["method"] == baseline:
        return None
    candidates = [row for row in rows if row.runs[0].settings["method"] == baseline and _same_task(row.runs[0], run)]
    return max(candidates, key=lambda row: _likeness(run, row.runs[0]), default=None)


def _same_task(a: Run, b: Run) -> bool:
    """Return whether two runs may be compared: they were asked the same, with the same network."""
    same_images = a.origins.get("test") == b.origins.get("test")
    return same_images and all(a.settings[key] == b.settings[key] for key in TASK)


def _likeness(a: Run, b: Run) -> int:
    """Return how many settings and origins two runs share."""
    mine, theirs = {**a.settings, **a.origins}, {**b.settings, **b.origins}
    return sum(theirs.get(key) == value for key, value in mine.items())


def unlike(row: Row) -> str:
    """Return how a row's training differs from its baseline's but for the method, if it does.

    Not `eq_data`: it tells a method with mixed images how to see as many as the others.
    """
    if row.baseline is None:
        return ""
    run, other = row.runs[0], row.baseline.runs[0]
    mine, theirs = run.settings, other.settings
    found = [
        f"{key} {value}, not {theirs[key]}"
        for key, value in mine.items()
        if key not in ("method", "eq_data") and key in theirs and theirs[key] != value
    ]
    origins = {"train": "other training images", "init": "other weights to start from"}
    found += [name for k, name in origins.items() if run.origins.get(k) != other.origins.get(k)]
    return f"{row.name} against {row.baseline.name}: {'; '.join(found)}" if found else ""


def _make_row(name: str, runs: tuple[Run, ...], baseline: Row | None) -> Row:
    partners = {run.seed: run for run in baseline.runs} if baseline else {}
    pairs = tuple((run, partners[run.seed]) for run in runs if run.seed in partners)
    return Row(
        name=name,
        runs=runs,
        before=_estimates([run.before.metrics for run in runs]),
        after=_estimates([run.after.metrics for run in runs]),
        temperature=mean_interval([run.temperature for run in runs]),
        baseline=baseline,
        pairs=pairs,
        change_before=_changes([(mine.before, theirs.before) for mine, theirs in pairs]),
        change_after=_changes([(mine.after, theirs.after) for mine, theirs in pairs]),
    )


def _estimates(values: list[dict[str, float]]) -> dict[str, Interval]:
    return {m.name: mean_interval([v[m.name] for v in values]) for m in USUAL}


def _changes(pairs: list[tuple[Predictions, Predictions]]) -> dict[str, Interval]:
    """Return mine less theirs, by metric; nothing without pairs."""
    if not pairs:
        return {}
    return _estimates([{m.name: a.metrics[m.name] - b.metrics[m.name] for m in USUAL} for a, b in pairs])


def show_estimate(metric: Metric, value: Interval) -> str:
    """Return `1.52 ± 0.21`, or `1.52` for one seed."""
    if not value.has_interval:
        return metric.show(value.value)
    return f"{metric.show(value.value)} ± {metric.show(value.half_width)}"


def show_change(metric: Metric, value: Interval) -> str:
    """Return `−1.70 [−2.10, −1.30]`, or `−1.70` for one shared seed."""
    if not value.has_interval:
        return metric.show(value.value, signed=True)
    ends = ", ".join(metric.show(end, signed=True) for end in (value.low, value.high))
    return f"{metric.show(value.value, signed=True)} [{ends}]"


def _header() -> list[str]:
    before = [m.title for m in (ACCURACY, ECE, NLL)]
    return ["Method", "Seeds", *before, "T", "ECE % after T", "Δ ECE %"]


def _cells(row: Row) -> list[str]:
    return [
        row.name,
        str(len(row.runs)),
        *(show_estimate(m, row.before[m.name]) for m in (ACCURACY, ECE, NLL)),
        TEMPERATURE.show(row.temperature.value),
        show_estimate(ECE, row.after["ece"]),
        show_change(ECE, row.change_before["ece"]) if row.change_before else "–",
    ]


def render_text(rows: Sequence[Row]) -> str:
    """Return the table for a terminal, as wide as it is."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD)
    lines = [_header(), *map(_cells, rows)]
    (first, *_), *figures = zip(*lines, strict=True)
    table.add_column(first, overflow="fold", min_width=min(20, max(len(line[0]) for line in lines)))
    for column in figures:  # whole: a figure that is cut off is worth nothing
        table.add_column(column[0], justify="right", min_width=max(map(len, column)))
    for line in lines[1:]:
        table.add_row(*map(Text, line))  # Text: names are never read as markup
    console = Console(file=(file := io.StringIO()), width=10_000)
    needed = Measurement.get(console, console.options, table).minimum
    console.print(table, width=max(needed, shutil.get_terminal_size((110, 24)).columns))
    return file.getvalue()


def render_markdown(rows: Sequence[Row]) -> str:
    """Return the table in Markdown."""
    lines = [_header(), ["---", *["---:"] * (len(_header()) - 1)], *map(_cells, rows)]
    return "".join(f"| {' | '.join(escape_markdown(c) for c in line)} |\n" for line in lines)


def escape_markdown(text: str) -> str:
    """Return text that Markdown shows as it is."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def render_latex(rows: Sequence[Row]) -> str:
    """Return the table in LaTeX (package booktabs)."""
    lines = [r"\begin{tabular}{l" + "r" * (len(_header()) - 1) + "}", r"\toprule"]
    body = [" & ".join(map(escape_latex, line)) + r" \\" for line in map(_cells, rows)]
    head = " & ".join(map(escape_latex, _header())) + r" \\"
    return "\n".join([*lines, head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", ""])


_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "–": "--",
    "Δ": r"$\Delta$",
}


def escape_latex(text: str) -> str:
    """Return text that LaTeX shows as it is."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


def render_csv(rows: Sequence[Row]) -> str:
    """Return every number in full precision: one line per row, metric and temperature setting."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(
        [
            "method",
            "seeds",
            "metric",
            "temperature",
            "mean",
            "low",
            "high",
            "change",
            "change_low",
            "change_high",
            "pairs",
        ]
    )
    for row in rows:
        writer.writerows(_csv_lines(row, "no", row.before, row.change_before))
        writer.writerows(_csv_lines(row, "yes", row.after, row.change_after))
    return file.getvalue()


def _csv_lines(row: Row, scaled: str, values: dict[str, Interval], changes: dict[str, Interval]) -> list[list]:
    seeds = " ".join(map(str, row.seeds))
    lines = []
    for key, value in values.items():
        line = [row.name, seeds, key, scaled, value.value, value.low, value.high]
        change = changes.get(key)
        lines.append([*line, *([change.value, change.low, change.high, change.num] if change else [""] * 4)])
    return lines
