"""Measure and calibrate the predictions of any model: `semmix evaluate FILE`.

Files are read (`read`, `tables`) as parts of scores and labels (`parts`), turned into samples while
common mistakes are caught (`samples`), calibrated without judging a calibrator by what it has seen
(`calibrate`), measured (`measure`), compared with people where their labels are given (`human`),
written (`write`, `page`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from semmix.calibration import few_samples
from semmix.core.errors import SemmixError
from semmix.core.files import read_json
from semmix.core.progress import progress, say
from semmix.evaluation.calibrate import AS_GIVEN, Fitted, calibrator_called, fit, make_folds, make_pool
from semmix.evaluation.human import compare_with_people, doubt_people, read_human
from semmix.evaluation.measure import measure_samples
from semmix.evaluation.page import write_page
from semmix.evaluation.parts import Names
from semmix.evaluation.read import read_parts
from semmix.evaluation.samples import Samples, compare_parts, first_label, look_closer, make_samples
from semmix.evaluation.write import print_table, write_evaluation


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Measure and calibrate logits or probabilities from any model."""

    path: Positional[Path]
    """A run folder, or a .npz, .npy, .csv, .parquet or .safetensors file of logits or probabilities
    with labels; arrays named after `val` and `test` are told apart."""

    val: Path | None = None
    """File of the validation part, on which calibrators are fitted. Without any validation part
    they are cross-fitted: no sample is judged by a calibrator that saw it."""

    out: Path | None = None
    """Folder for evaluation.json, .md, .tex and report.html; by default the run folder, or
    NAME-evaluation."""

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

    calibrators: tuple[str, ...] = ("temperature", "vector", "histogram", "isotonic", "beta")
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
        if not 0 < self.level < 1:
            raise SemmixError("level must lie between 0 and 1", self.level, "0.95 is usual")


def evaluate_file(config: EvaluateConfig) -> dict[str, Any]:
    """Return all that was measured, after printing a table and writing files and a page."""
    folder = config.out or _default_folder(config.path)
    test, val, notes, warnings = load_samples(config)
    human = None
    if config.human:
        human, mended = read_human(config.human, len(test), test.num_classes)
        warnings += [*mended, *doubt_people(human, test.labels)]
    for line in [*notes, *(f"warning: {warning}" for warning in warnings)]:
        say(line)
    fitted = dict(fit_all(config, test, val))
    results = measure_all(config, test, fitted)
    given = results[0]
    if few := few_samples(given["metrics"]["ece"], given["ece_of_chance"], len(test)):
        say(f"warning: {few}")
        warnings.append(few)
    evaluation = {
        "source": config.path.name,
        "notes": notes,
        "warnings": warnings,
        "num_samples": len(test),
        "num_classes": test.num_classes,
        "bins": config.bins,
        "level": config.level,
        "results": results,
        "human": None if human is None else compare_with_people(human, test, fitted),
    }
    print_table(evaluation)
    write_evaluation(evaluation, folder)
    say(f"page: {write_page(evaluation, test, fitted, folder)}")
    return evaluation


def load_samples(config: EvaluateConfig) -> tuple[Samples, Samples | None, list[str], list[str]]:
    """Return the test part, the validation part if any, what was read, and warnings."""
    names, val_names = (Names(config.scores, config.labels), Names(config.val_scores, config.val_labels))
    parts = read_parts(config.path, config.val, names, val_names)
    samples, notes, warnings, first = {}, [], [], first_label(parts.values())
    for role, part in parts.items():
        samples[role], mended = make_samples(part, config.kind, first)
        notes.append(f"{role} from {part.origin}, read as {samples[role].kind}")
        warnings += [f"{role}: {warning}" for warning in mended]
    test, val = samples["test"], samples.get("val")
    if val is None:
        notes.append(f"no validation part: calibrators are cross-fitted in {config.folds} folds")
    else:
        warnings += compare_parts(test, val)
    return test, val, notes, warnings + look_closer(test)


def measure_all(config: EvaluateConfig, test: Samples, fitted: Mapping[str, Fitted]) -> list[dict[str, Any]]:
    """Return what is measured of the predictions as given and after each calibrator."""
    settings = {"bins": config.bins, "level": config.level, "resamples": config.resamples, "seed": config.seed}
    results = []
    with progress("evaluate", len(fitted) * len(test)) as bar:
        for name, each in fitted.items():
            about = {"name": name, "temperature": each.temperature}
            results.append({**about, **measure_samples(test, each, **settings)})
            bar.advance(len(test), name)
    return results


def fit_all(config: EvaluateConfig, test: Samples, val: Samples | None) -> Iterator[tuple[str, Fitted]]:
    """Yield the predictions as given, then each calibrator, by name."""
    yield "as given", AS_GIVEN
    folds = make_folds(len(test), config.folds, config.seed) if val is None else None
    pool = make_pool(test if val is None else val, folds, config.seed)
    for name in config.calibrators:
        yield name, fit(name, pool, folds)


def _default_folder(path: Path) -> Path:
    """Return the run folder, or NAME-evaluation, unless it holds the evaluation of another file."""
    if path.is_dir():
        return path
    folder = path.with_name(f"{path.stem}-evaluation")
    if (written := folder / "evaluation.json").exists():
        source = read_json(written).get("source")
        if source != path.name:
            fix = f"pass --out FOLDER for {path.name}, or remove that folder"
            raise SemmixError(f"{folder} holds the evaluation of another file", source, fix)
    return folder
