"""Measure and calibrate the predictions of any model: `semmix evaluate FILE`, `semmix.evaluate(scores, labels)`.

Files are read (`read`, `columns`) as parts of scores and labels, turned into samples while common mistakes are caught
(`samples`), calibrated without judging a calibrator by what it has seen (`calibrate`), measured (`measure`), compared
with people where their labels are given (`human`); what comes out is an `Evaluation` (`outcome`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from semmix.calibration import few_samples
from semmix.calibration._inputs import as_float64, as_numpy, as_rows
from semmix.core.errors import SemmixError, require
from semmix.core.files import read_json
from semmix.core.progress import progress, say
from semmix.evaluation.calibrate import Fitted, calibrator_called, fit_all, make_folds
from semmix.evaluation.columns import Array, Names, Part
from semmix.evaluation.human import check_human, compare_with_people
from semmix.evaluation.measure import Measured, measure_samples
from semmix.evaluation.outcome import AS_GIVEN, Evaluation
from semmix.evaluation.read import read_matrix, read_parts
from semmix.evaluation.samples import Samples, make_all

__all__ = ["EvaluateConfig", "Evaluation", "Measured", "evaluate", "evaluate_file", "load_samples"]

COMPARED = ("temperature", "vector", "histogram", "isotonic", "beta")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How predictions are calibrated and measured."""

    calibrators: tuple[str, ...] = COMPARED
    """Calibrators to compare; also known: temperature-ece-grid, matrix, dirichlet, and your own as
    package.module:Class."""

    bins: int = 15
    """Bins of the binned metrics."""

    level: float = 0.95
    """Level of the bootstrap intervals."""

    resamples: int = 1000
    """Bootstrap resamples."""

    folds: int = 5
    """Folds of the cross-fitting."""

    seed: int = 0
    """Seed of the folds and of the bootstrap."""

    def __post_init__(self):
        for name in self.calibrators:
            calibrator_called(name)
        for name, least in (("bins", 1), ("resamples", 1), ("folds", 2), ("seed", 0)):
            if getattr(self, name) < least:
                raise SemmixError(f"{name} is too small", getattr(self, name), f"at least {least}")
        require(0 < self.level < 1, "level must lie between 0 and 1", self.level, "0.95 is usual")


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(Settings):
    """Measure and calibrate logits or probabilities from any model."""

    path: Positional[Path]
    """A run folder, or a .npz, .npy, .csv, .parquet or .safetensors file of logits or probabilities
    with labels; arrays named after `val` and `test` are told apart."""

    val: Path | None = None
    """File of the validation part, on which calibrators are fitted. Without any validation part
    they are cross-fitted: no sample is judged by a calibrator that saw it."""

    out: Path | None = None
    """Folder for evaluation.json, .md, .tex and report.html; by default the run folder, or NAME-evaluation."""

    scores: str | None = None
    """Name of the array of logits or probabilities, or how its columns begin; else guessed."""

    labels: str | None = None
    """Name of the array or column of labels; of an .npy file, that of its labels; else guessed."""

    val_scores: str | None = None
    """Like `scores`, for the validation part."""

    val_labels: str | None = None
    """Like `labels`, for the validation part."""

    kind: Literal["logits", "probs"] | None = None
    """What the scores are, where their values leave it open."""

    human: Path | None = None
    """File of people's label distributions, one row for each test sample in the same order, such as
    cifar10h-probs.npy (10,000 x 10): also tell how the predictions agree with them."""


def evaluate(
    scores: Any,
    labels: Any,
    *,
    val: tuple[Any, Any] | None = None,
    kind: Literal["logits", "probs"] | None = None,
    human: Any = None,
    calibrators: Sequence[str] = COMPARED,
    bins: int = 15,
    level: float = 0.95,
    resamples: int = 1000,
    folds: int = 5,
    seed: int = 0,
    name: str = "predictions",
) -> Evaluation:
    """Measure predictions, fit post-hoc calibrators, and measure again.

    Args:
        scores: Logits or probabilities `[N, K]`, an array or a tensor; `[N]` for class 1 of two.
        labels: Classes `[N]`, from 0 or from 1, or one-hot rows `[N, K]`.
        val: Scores and labels to fit calibrators on. Without them calibrators are cross-fitted: no
            sample is judged by a calibrator that saw it.
        kind: What the scores are, where their values leave it open.
        human: People's label distributions `[N, K]`, to tell how the predictions agree with them.
        calibrators: Those to compare, as in `semmix evaluate --calibrators`.
        bins: Bins of the binned metrics.
        level: Level of the intervals.
        resamples: Bootstrap resamples.
        folds: Folds of the cross-fitting.
        seed: Seed of the folds and of the bootstrap.
        name: What the predictions are called in tables and files.

    Returns:
        The measures with intervals, tables, warnings about likely mistakes; `write(folder)` writes what
        the command `semmix evaluate` does.

    Raises:
        SemmixError: If scores and labels do not fit, or a setting is out of range.

    Example:
        >>> import semmix
        >>> probs, labels = [[0.9, 0.1]] * 50 + [[0.2, 0.8]] * 50, [0] * 35 + [1] * 65
        >>> found = semmix.evaluate(probs, labels, calibrators=("temperature",), resamples=100)
        >>> round(found.measures["ece"].value, 4)
        0.2
    """
    options: dict[str, Any] = {"bins": bins, "level": level, "resamples": resamples, "folds": folds, "seed": seed}
    settings = Settings(calibrators=tuple(calibrators), **options)
    parts = {"test": _part(scores, labels)} | ({} if val is None else {"val": _part(*val)})
    test, held_out, notes, warnings = make_all(parts, kind, folds)
    people = None if human is None else as_float64(as_rows(human, "human"))
    if people is not None:
        warnings += check_human(people, test)
    return _evaluate(name, test, held_out, notes, warnings, people, settings)


def evaluate_file(config: EvaluateConfig) -> Evaluation:
    """Evaluate the predictions in a file or a run as the command does: print a table, write files and a page."""
    folder = config.out or _default_folder(config.path)
    test, val, notes, warnings = load_samples(config)
    human = None
    if config.human:
        human, told = read_matrix(config.human)
        warnings += [*(f"people: {warning}" for warning in told), *check_human(human, test)]
    for line in [*notes, *(f"warning: {warning}" for warning in warnings)]:
        say(line)
    with progress("evaluate", (1 + len(config.calibrators)) * len(test)) as bar:
        evaluation = _evaluate(config.path.name, test, val, notes, warnings, human, config, bar.advance)
    for warning in evaluation.warnings[len(warnings) :]:
        say(f"warning: {warning}")
    for table in evaluation.tables():
        say(f"\n{table.text()}")
    page = evaluation.write(folder)
    say(f"written to {folder}")
    say(f"page: {page}")
    return evaluation


def load_samples(config: EvaluateConfig) -> tuple[Samples, Samples | None, list[str], list[str]]:
    """Return the test part, the validation part if any, what was read, and warnings."""
    names, val_names = Names(config.scores, config.labels), Names(config.val_scores, config.val_labels)
    return make_all(read_parts(config.path, config.val, names, val_names), config.kind, config.folds)


def _evaluate(
    source: str,
    test: Samples,
    val: Samples | None,
    notes: list[str],
    warnings: list[str],
    human: Array | None,
    settings: Settings,
    advance: Callable[[int, str], None] = lambda amount, note: None,
) -> Evaluation:
    folds = make_folds(len(test), settings.folds, settings.seed) if val is None else None
    fitted = {AS_GIVEN: Fitted()} | fit_all(settings.calibrators, test if val is None else val, folds, settings.seed)
    results: dict[str, Measured] = {}
    for name, each in fitted.items():
        results[name] = measure_samples(test, each, settings.bins, settings.level, settings.resamples, settings.seed)
        advance(len(test), name)
    given = results[AS_GIVEN]
    if few := few_samples(given.measures["ece"].value, given.ece_of_chance, len(test)):
        warnings = [*warnings, few]
    agreement = None if human is None else compare_with_people(human, test, fitted)
    return Evaluation(source, results, agreement, notes, warnings, settings.bins, settings.level, test, fitted)


def _part(scores: Any, labels: Any) -> Part:
    rows, targets = as_numpy(as_rows(scores, "scores")), as_numpy(as_rows(labels, "labels"))
    return Part(rows, targets, "scores", f"scores {list(rows.shape)}")


def _default_folder(path: Path) -> Path:
    """Return the run folder, or NAME-evaluation, unless it holds the evaluation of another file."""
    if path.is_dir():
        return path
    folder = path.with_name(f"{path.stem}-evaluation")
    if (written := folder / "evaluation.json").exists():
        source = read_json(written).get("source")
        fix = f"pass --out FOLDER for {path.name}, or remove that folder"
        require(source == path.name, f"{folder} holds the evaluation of another file", source, fix)
    return folder
