"""Fitting post-hoc calibrators without ever judging them by samples they have seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from semmix.calibration import (
    BetaCalibrator,
    Calibrator,
    DirichletCalibrator,
    HistogramBinning,
    IsotonicCalibrator,
    MatrixScaler,
    TemperatureScaler,
    VectorScaler,
)
from semmix.core.errors import SemmixError, unknown_name
from semmix.core.seeds import fold_seed
from semmix.core.user_code import import_object
from semmix.evaluation.parts import Array
from semmix.evaluation.samples import Samples, random_rows

CALIBRATORS: dict[str, Callable[[], Calibrator]] = {
    "temperature": TemperatureScaler,
    "temperature-ece-grid": lambda: TemperatureScaler(search="ece-grid"),
    "vector": VectorScaler,
    "matrix": MatrixScaler,
    "dirichlet": DirichletCalibrator,
    "histogram": HistogramBinning,
    "isotonic": IsotonicCalibrator,
    "beta": BetaCalibrator,
}


def calibrator_called(name: str) -> Callable[[], Any]:
    """Return what makes the calibrator `name`, or one's own named `package.module:Class`.

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


FITTING_ROWS = 100_000
"""Rows that calibrators are fitted on at most; more would change nothing but the time."""


@dataclass(frozen=True)
class Pool:
    """Samples to fit on, in memory, and the fold of each where the parts are not separate."""

    logits: Array
    labels: Array
    folds: Array | None = None


@dataclass(frozen=True)
class Fitted:
    """One map from logits to probabilities, or one per fold, which never saw rows of its fold.

    Without any, probabilities are those of the samples.
    """

    maps: list[Callable[[Array], Array]]
    folds: Array | None = None
    temperature: float | None = None
    """The temperature, or its mean over folds, where there is one."""

    def blocks(self, samples: Samples) -> Iterator[tuple[slice, Array, Array]]:
        """Yield where a block of rows stands, its probabilities and its labels."""
        for where in samples.slices():
            given = not self.maps
            probs = samples.probs(where) if given else self.apply(where, samples.logits(where))
            yield where, probs, samples.labels[where]

    def apply(self, where: slice, logits: Array) -> Array:
        """Return the probabilities of the rows that stand at `where`."""
        if self.folds is None:
            return self.maps[0](logits)
        probs, folds = np.empty_like(logits), self.folds[where]
        for fold in np.unique(folds):
            probs[folds == fold] = self.maps[fold](logits[folds == fold])
        return probs


AS_GIVEN = Fitted([])


def make_folds(num_rows: int, num_folds: int, seed: int) -> Array:
    """Return a random fold for each row, all of about the same size."""
    if num_rows < 2:
        fix = "pass more samples, or --val FILE to fit calibrators on"
        raise SemmixError("a single sample cannot be split into folds", f"{num_rows} sample", fix)
    random = np.random.default_rng(fold_seed("folds", seed))
    folds = np.resize(np.arange(num_folds, dtype=np.int32), num_rows)
    random.shuffle(folds)
    return folds


def make_pool(samples: Samples, folds: Array | None, seed: int) -> Pool:
    """Return at most `FITTING_ROWS` random rows to fit on."""
    chosen = random_rows(len(samples), FITTING_ROWS, fold_seed("pool", seed))
    logits = [samples.logits(where)[chosen[where]] for where in samples.slices()]
    return Pool(np.concatenate(logits), samples.labels[chosen], None if folds is None else folds[chosen])


def fit(name: str, pool: Pool, folds: Array | None) -> Fitted:
    """Return the calibrator `name` fitted on the pool, or on all other folds for each fold."""
    if pool.folds is None:
        calibrators = [_fit_one(name, pool.logits, pool.labels)]
    else:
        others = [pool.folds != fold for fold in range(int(pool.folds.max()) + 1)]
        calibrators = [_fit_one(name, pool.logits[rows], pool.labels[rows]) for rows in others]
    temperatures = [c.temperature for c in calibrators if isinstance(c, TemperatureScaler)]
    temperature = float(np.mean(temperatures)) if temperatures else None
    return Fitted([calibrator.transform for calibrator in calibrators], folds, temperature)


def _fit_one(name: str, logits: Array, labels: Array) -> Any:
    try:
        return calibrator_called(name)().fit(logits, labels)
    except TypeError as error:
        fix = "name one that is made without arguments and fitted on logits and labels alone"
        raise SemmixError(f"{name} cannot be fitted here", error, fix) from error
