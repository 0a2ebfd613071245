"""Measuring and mending calibration: metrics, intervals and tests, post-hoc calibrators."""

from semmix.calibration._calibrator import Calibrator, load_calibrator
from semmix.calibration._toplabel import Reliability, TopLabel, top_label
from semmix.calibration.intervals import Interval, interval
from semmix.calibration.metrics import (
    accuracy,
    aece,
    brier,
    classwise_ece,
    debiased_ece,
    ece,
    entropy,
    mce,
    nll,
    oe,
    reliability,
    smooth_ece,
    summary,
    ue,
    weighted_oe,
    weighted_ue,
)
from semmix.calibration.ood import ood_auroc
from semmix.calibration.proximity import piece
from semmix.calibration.temperature import TemperatureScaler

__all__ = [
    "Calibrator",
    "Interval",
    "Reliability",
    "TemperatureScaler",
    "TopLabel",
    "accuracy",
    "aece",
    "brier",
    "classwise_ece",
    "debiased_ece",
    "ece",
    "entropy",
    "interval",
    "load_calibrator",
    "mce",
    "nll",
    "oe",
    "ood_auroc",
    "piece",
    "reliability",
    "smooth_ece",
    "summary",
    "top_label",
    "ue",
    "weighted_oe",
    "weighted_ue",
]
