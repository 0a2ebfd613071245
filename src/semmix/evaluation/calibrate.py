"""Fitting post-hoc calibrators without ever judging them by samples they have seen."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from semmix import calibration as cal
from semmix.core.errors import SemmixError, require, unknown_name
from semmix.core.extras import import_object
from semmix.core.seeds import fold_seed
from semmix.evaluation.columns import Array
from semmix.evaluation.samples import Samples, random_rows

CALIBRATORS: dict[str, Callable[[], cal.Calibrator]] = {
    "temperature": cal.TemperatureScaler,
    "temperature-ece-grid": lambda: cal.TemperatureScaler(search="ece-grid"),
    "vector": cal.VectorScaler,
    "matrix": cal.MatrixScaler,
    "dirichlet": cal.DirichletCalibrator,
    "histogram": cal.HistogramBinning,
    "isotonic": cal.IsotonicCalibrator,
    "beta": cal.BetaCalibrator,
}

FITTING_ROWS = 100_000
"""Rows that calibrators are fitted on at most; more would change nothing but the time."""


def calibrator_called(name: str) -> Callable[[], Any]:
    """Return what makes the calibrator `name`, or a user's own named `package.module:Class`.

    Its objects have `fit(logits, labels)`, which returns the object, and `transform(logits)`.
    """
    if name in CALIBRATORS:
        return CALIBRATORS[name]
    if ":" not in name:
        raise unknown_name("calibrator", name, [*CALIBRATORS, "package.module:Class"])
    fix = "write package.module:Class of a class with fit and transform that Python can import"
    kind = import_object(name, "calibrator", fix)
    if not (callable(kind) and hasattr(kind, "fit") and hasattr(kind, "transform")):
        raise SemmixError(f"{name} is not a calibrator", kind, fix)
    return kind


@dataclass(frozen=True)
class Fitted:
    """A fitted calibrator, or one per fold, which never saw rows of its fold.

    Without any, probabilities are those of the samples.
    """

    calibrators: list[Any] = field(default_factory=list)
    folds: Array | None = None

    @property
    def temperature(self) -> float | None:
        """The temperature, or its mean over folds, where there is one."""
        found = [c.temperature for c in self.calibrators if isinstance(c, cal.TemperatureScaler)]
        return float(np.mean(found)) if found else None

    def blocks(self, samples: Samples) -> Iterator[tuple[slice, Array, Array]]:
        """Yield where a block of rows stands, its probabilities and its labels."""
        for where in samples.slices():
            probs = self.apply(where, samples.logits(where)) if self.calibrators else samples.probs(where)
            yield where, probs, samples.labels[where]

    def apply(self, where: slice, logits: Array) -> Array:
        """Return the probabilities of the rows that stand at `where`."""
        if self.folds is None:
            return self.calibrators[0].transform(logits)
        probs, folds = np.empty_like(logits), self.folds[where]
        for fold in np.unique(folds):
            probs[folds == fold] = self.calibrators[fold].transform(logits[folds == fold])
        return probs


def make_folds(num_rows: int, num_folds: int, seed: int) -> Array:
    """Return a random fold for each row, all of about the same size."""
    fix = "pass more samples, or --val FILE to fit calibrators on"
    require(num_rows >= 2, "a single sample cannot be split into folds", f"{num_rows} sample", fix)
    random = np.random.default_rng(fold_seed("folds", seed))
    folds = np.resize(np.arange(num_folds, dtype=np.int32), num_rows)
    random.shuffle(folds)
    return folds


def fit_all(names: tuple[str, ...], samples: Samples, folds: Array | None, seed: int) -> dict[str, Fitted]:
    """Return the calibrators by name, fitted on random rows of the samples, or of all other folds for each fold."""
    chosen = random_rows(len(samples), FITTING_ROWS, fold_seed("pool", seed))
    logits = np.concatenate([samples.logits(where)[chosen[where]] for where in samples.slices()])
    labels = samples.labels[chosen]
    if folds is None:
        groups = [np.ones(len(labels), bool)]
    else:
        groups = [folds[chosen] != fold for fold in range(int(folds[chosen].max()) + 1)]
    return {name: Fitted([_fit_one(name, logits[rows], labels[rows]) for rows in groups], folds) for name in names}


def _fit_one(name: str, logits: Array, labels: Array) -> Any:
    try:
        return calibrator_called(name)().fit(logits, labels)
    except TypeError as error:
        fix = "name one that is made without arguments and fitted on logits and labels alone"
        raise SemmixError(f"{name} cannot be fitted here", error, fix) from error
