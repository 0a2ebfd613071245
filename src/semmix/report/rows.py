"""Results over seeds: mean and interval per method, and paired differences to a baseline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from semmix.calibration import METRICS, USUAL, Interval, Metric, mean_interval
from semmix.core.errors import require
from semmix.report.table import Table
from semmix.runs import Run

TASK = ("dataset", "classifier")  # settings in which rows must agree to be compared


def percent(value: float, digits: int = 1) -> str:
    """Return a share in per cent, its sign kept on the same line.

    >>> percent(0.957)
    '95.7\xa0%'
    """
    return f"{100 * value:.{digits}f}\N{NO-BREAK SPACE}%"


ACCURACY, ECE, NLL, TEMPERATURE = (METRICS[name] for name in ("acc", "ece", "nll", "temperature"))

_NAMES = """CE LS ECP MMCE MMCE-w FL FLSD CRL CPC MbLS FCL Mixup RegMixup AugMix RankMixup CALS Remix UniMix CSM"""
METHOD_NAMES = {name.lower().replace("-", "_"): name for name in _NAMES.split()}  # how the methods are called in tables


@dataclass(frozen=True)
class Row:
    """One line of a results table: a method with its options, over seeds."""

    name: str
    runs: tuple[Run, ...]
    before: dict[str, Interval]  # metrics on the test split, as trained
    after: dict[str, Interval]  # the same after temperature scaling
    temperature: Interval
    baseline: Row | None  # the row to compare with: same test images and classifier. None for the baseline itself
    pairs: tuple[tuple[Run, Run], ...]
    """Its runs, each with the baseline's run of the same seed; only the seeds both have."""
    change_before: dict[str, Interval]  # differences to the baseline over `pairs`; empty without any
    change_after: dict[str, Interval]

    @property
    def seeds(self) -> list[int]:
        """The seeds of its runs, in rising order."""
        return [run.seed for run in self.runs]


def aggregate(runs: Sequence[Row | Run | str | Path], baseline: str = "ce") -> list[Row]:
    """Return one row per group of runs that differ in nothing but the seed, baselines first.

    A row is compared with the row of method `baseline` that was made most like it, on the same
    test images with the same classifier.

    Args:
        runs: Runs, or their folders. Rows that were made before are returned as they are.
        baseline: The method to compare with.
    """
    if rows := [run for run in runs if isinstance(run, Row)]:
        return rows
    groups: dict[str, dict[int, Run]] = {}  # of each row, by seed
    for run in (Run.open(run) for run in runs if not isinstance(run, Row)):
        made_like = json.dumps([run.settings, run.origins], sort_keys=True)
        seeds = groups.setdefault(made_like, {})
        both = f"{seeds.get(run.seed, run).folder} and {run.folder}"
        require(run.seed not in seeds, "two runs have the same settings and seed", both, "leave one of them out")
        seeds[run.seed] = run
    ordered = sorted(groups.values(), key=lambda seeds: next(iter(seeds.values())).method != baseline)
    members = [tuple(seeds[seed] for seed in sorted(seeds)) for seeds in ordered]
    for group in members:
        name = _row_name(group[0], [other[0] for other in members])
        rows.append(_make_row(name, group, _find_baseline(group[0], rows, baseline)))
    return rows


def _row_name(run: Run, runs: Sequence[Run]) -> str:
    """Return a row's method and only what else tells it from other rows; `runs` has one of each."""
    mine, settings = run.settings, [other.settings for other in runs]
    task = [str(mine[key]) for key in TASK if len({other[key] for other in settings}) > 1]
    peers = [other for other in settings if other["method"] == mine["method"]]
    own_settings = [
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in mine.items()
        if key not in TASK and any(peer.get(key) != value for peer in peers)
    ]
    alike = [other.origins for other in runs if other.settings == mine]
    own_origins = [
        f"{key} {digest[:6]}" for key, digest in run.origins.items() if any(peer.get(key) != digest for peer in alike)
    ]
    details = ", ".join([*task, *own_settings, *own_origins])
    method = METHOD_NAMES.get(run.method, run.method)
    return f"{method} ({details})" if details else method


def _find_baseline(run: Run, rows: list[Row], baseline: str) -> Row | None:
    """Return the baseline's row on the same test images and classifier made most like `run`, if not one itself."""
    mine = {**run.settings, **run.origins}

    def likeness(row: Row) -> int:
        theirs = {**row.runs[0].settings, **row.runs[0].origins}
        return sum(theirs.get(key) == value for key, value in mine.items())

    candidates = []
    for row in rows:
        other = row.runs[0]
        same_task = all(other.settings[key] == run.settings[key] for key in TASK)
        if other.method == baseline and same_task and other.origins.get("test") == run.origins.get("test"):
            candidates.append(row)
    return None if run.method == baseline else max(candidates, key=likeness, default=None)


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

    def means(stage: str) -> dict[str, Interval]:
        measured = [getattr(run, stage).metrics for run in runs]
        return {m.name: mean_interval([values[m.name] for values in measured]) for m in USUAL}

    def changes(stage: str) -> dict[str, Interval]:
        both = [[getattr(run, stage).metrics for run in pair] for pair in pairs]
        return {m.name: mean_interval([a[m.name] - b[m.name] for a, b in both]) for m in USUAL if both}

    temperature = mean_interval([run.temperature for run in runs])
    stages = means("before"), means("after")
    return Row(name, runs, *stages, temperature, baseline, pairs, changes("before"), changes("after"))


def show_estimate(metric: Metric, value: Interval) -> str:
    """Return `1.52 ± 0.21`, or `1.52` for one seed."""
    shown = metric.show(value.value)
    return f"{shown} ± {metric.show(value.half_width)}" if value.has_interval else shown


def show_change(metric: Metric, value: Interval) -> str:
    """Return `−1.70 [−2.10, −1.30]`, or `−1.70` for one shared seed."""
    shown, low, high = (metric.show(each, signed=True) for each in (value.value, value.low, value.high))
    return f"{shown} [{low}, {high}]" if value.has_interval else shown


def results_table(runs: Sequence[Row | Run | str | Path], baseline: str = "ce") -> Table:
    """Return the results of several runs as a table: over seeds, one line for each method.

    It holds accuracy, ECE and NLL, the temperature T, the ECE after it, and the difference in ECE to the baseline.

    Args:
        runs: Finished runs or their folders, or rows from `aggregate`.
        baseline: The method to compare with.

    Returns:
        A `Table`: a notebook shows it, `print` prints it, and `.markdown()`, `.latex()` and `.csv()` give it as text.

    Raises:
        SemmixError: If a run is not finished, or two have the same settings and seed.

    Example:
        >>> print(results_table(["results/demo/ce-0", "results/demo/csm-0"]))
        Method  Seeds  Accuracy %  ECE %    NLL     T  ECE % after T  Δ ECE %
        ---------------------------------------------------------------------
        CE          1       88.55   5.09  0.378  1.53           2.16        –
        CSM         1       92.05   2.05  0.258  0.88           1.71    −3.04
        <BLANKLINE>
    """
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
        for row in aggregate(runs, baseline)
    ]
    return Table(headings, cells)


def full_results_table(runs: Sequence[Row | Run | str | Path], baseline: str = "ce") -> Table:
    """Return every number in full precision, for CSV: a line for each row, metric, and before or after T."""
    headings = ["method", "seeds", "metric", "temperature", "mean", "low", "high"]
    headings += ["change", "change_low", "change_high", "pairs"]
    lines = []
    for row in aggregate(runs, baseline):
        seeds = " ".join(map(str, row.seeds))
        for scaled, values, changes in (("no", row.before, row.change_before), ("yes", row.after, row.change_after)):
            for key, value in values.items():
                change = changes.get(key)
                numbers = [value.value, value.low, value.high]
                numbers += [change.value, change.low, change.high, change.num] if change else [""] * 4
                lines.append([row.name, seeds, key, scaled, *map(str, numbers)])
    return Table(headings, lines)
