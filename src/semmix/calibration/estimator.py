"""A scikit-learn classifier whose probabilities are calibrated by any of our calibrators."""

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from semmix.calibration._calibrator import Calibrator
from semmix.calibration._inputs import Array, least_positive
from semmix.calibration.scaling import TemperatureScaler
from semmix.core.errors import SemmixError, require


class CalibratedClassifier(ClassifierMixin, BaseEstimator):
    """Fits a classifier on all samples and a calibrator on its cross-validated predictions.

    Args:
        estimator: a classifier with `predict_proba` or `decision_function`; logistic regression when None.
        calibrator: one of our calibrators; `TemperatureScaler()` when None.
        cv: folds that give every sample a prediction by a model that never saw it.
    """

    def __init__(self, estimator: Any = None, calibrator: Calibrator | None = None, cv: int = 5):
        self.estimator = estimator
        self.calibrator = calibrator
        self.cv = cv

    def fit(self, X: Any, y: Any) -> "CalibratedClassifier":
        """Learn from features `[N, D]` and class labels of any type `[N]`."""
        require(self.cv >= 2, "cross-validation needs two folds", f"cv={self.cv}", "5 is usual")
        X, y = validate_data(self, X, y)
        check_classification_targets(y)
        self.classes_, labels, counts = np.unique(y, return_inverse=True, return_counts=True)
        if len(counts) < 2 or counts.min() < 2:
            seen = f"{len(counts)} class(es), the smallest of {counts.min()} sample(s)"
            fix = "pass at least 2 classes of at least 2 samples each"
            raise SemmixError("too few samples to cross-validate", seen, fix)
        estimator: Any = LogisticRegression() if self.estimator is None else clone(self.estimator)
        folds = StratifiedKFold(min(self.cv, int(counts.min())))
        unseen: Any = cross_val_predict(estimator, X, labels, cv=folds, method=_method(estimator))
        calibrator: Any = TemperatureScaler() if self.calibrator is None else clone(self.calibrator)
        self.zero_ = least_positive(unseen) / 2
        self.calibrator_ = calibrator.fit(_logits(unseen, estimator, self.zero_), labels)
        self.estimator_ = estimator.fit(X, labels)
        return self

    def predict_proba(self, X: Any) -> Array:
        """Return calibrated probabilities `[N, K]` in the order of `classes_`."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False)
        scores = getattr(self.estimator_, _method(self.estimator_))(X)
        return self.calibrator_.transform(_logits(scores, self.estimator_, self.zero_))

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each sample."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]


def _method(estimator: Any) -> str:
    return "predict_proba" if hasattr(estimator, "predict_proba") else "decision_function"


def _logits(scores: Array, estimator: Any, zero: float) -> Array:
    """Return logits `[N, K]` from probabilities, none below `zero`, or decision values."""
    if _method(estimator) == "predict_proba":
        return np.log(np.maximum(scores, zero))
    return np.stack([np.zeros_like(scores), scores], -1) if scores.ndim == 1 else scores
