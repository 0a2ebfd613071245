"""Results over seeds: mean and interval per method, and paired differences to a baseline."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semmix.calibration import METRICS, USUAL, Interval, Metric, mean_interval
from semmix.core.errors import SemmixError
from semmix.report.table import Table
from semmix.runs import Predictions, Run

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


def aggregate(runs: Sequence[Run | str | Path], baseline: str = "ce") -> list[Row]:
    """Return one row per group of runs that differ in nothing but the seed, baselines first.

    A row is compared with the row of method `baseline` that was made most like it, on the same
    test images with the same classifier.

    Args:
        runs: Runs, or their folders.
        baseline: The method to compare with.
    """
    groups = _group([Run.open(run) for run in runs])
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


def results_table(rows: Sequence[Row]) -> Table:
    """Return the table of results: accuracy, ECE and NLL, the temperature, and what it does to the ECE."""
    shown = (ACCURACY, ECE, NLL)
    headings = ["Method", "Seeds", *(m.title for m in shown), "T", "ECE % after T", "Δ ECE %"]
    cells = [
        [
            row.name,
            str(len(row.runs)),
            *(show_estimate(m, row.before[m.name]) for m in shown),
            TEMPERATURE.show(row.temperature.value),
            show_estimate(ECE, row.after["ece"]),
            show_change(ECE, row.change_before["ece"]) if row.change_before else "–",
        ]
        for row in rows
    ]
    return Table(headings, cells)


def numbers_table(rows: Sequence[Row]) -> Table:
    """Return every number in full precision, for CSV: a line for each row, metric, and before or after T."""
    headings = ("method", "seeds", "metric", "temperature", "mean", "low", "high")
    headings += ("change", "change_low", "change_high", "pairs")
    lines = [
        line
        for row in rows
        for line in (
            *_number_lines(row, "no", row.before, row.change_before),
            *_number_lines(row, "yes", row.after, row.change_after),
        )
    ]
    return Table(headings, lines)


def _number_lines(
    row: Row, scaled: str, values: dict[str, Interval], changes: dict[str, Interval]
) -> Iterator[list[str]]:
    seeds = " ".join(map(str, row.seeds))
    for key, value in values.items():
        change = changes.get(key)
        numbers = [value.value, value.low, value.high]
        differences = [change.value, change.low, change.high, change.num] if change else [""] * 4
        yield [row.name, seeds, key, scaled, *map(str, [*numbers, *differences])]
