"""Measuring and mending calibration: metrics, intervals and tests, post-hoc calibrators."""

from typing import TYPE_CHECKING, Any

from semmix.calibration._bins import Reliability
from semmix.calibration._calibrator import Calibrator, load_calibrator, log_softmax, softmax
from semmix.calibration._inputs import least_positive
from semmix.calibration._toplabel import RiskCoverage, TopLabel, top_label
from semmix.calibration.agreement import entropy_correlation, human_agreement, kl_divergence, total_variation
from semmix.calibration.augmentation import tta_probs, views
from semmix.calibration.intervals import (
    Interval,
    ece_of_chance,
    few_samples,
    interval,
    interval_from,
    mean_interval,
    paired_difference,
    resampled,
    sample_size_warning,
)
from semmix.calibration.metrics import (
    accuracy,
    aece,
    brier,
    brier_decomposition,
    classwise_ece,
    debiased_ece,
    ece,
    entropy,
    mce,
    nll,
    oe,
    reliability,
    smooth_ece,
    ue,
    weighted_oe,
    weighted_ue,
)
from semmix.calibration.neighbours import piece, proximity
from semmix.calibration.one_vs_rest import BetaCalibrator, HistogramBinning, IsotonicCalibrator
from semmix.calibration.ood import ood_aupr, ood_auroc, ood_fpr, ood_score
from semmix.calibration.procal import BinMeanShiftCalibrator, DensityRatioCalibrator
from semmix.calibration.registry import METRICS, USUAL, Metric
from semmix.calibration.scaling import DirichletCalibrator, MatrixScaler, VectorScaler
from semmix.calibration.selective import aurc, risk_coverage
from semmix.calibration.streaming import CalibrationStream, summary
from semmix.calibration.temperature import TemperatureScaler

if TYPE_CHECKING:
    from semmix.calibration.estimator import CalibratedClassifier

__all__ = [
    "METRICS",
    "USUAL",
    "BetaCalibrator",
    "BinMeanShiftCalibrator",
    "CalibratedClassifier",
    "CalibrationStream",
    "Calibrator",
    "DensityRatioCalibrator",
    "DirichletCalibrator",
    "HistogramBinning",
    "Interval",
    "IsotonicCalibrator",
    "MatrixScaler",
    "Metric",
    "Reliability",
    "RiskCoverage",
    "TemperatureScaler",
    "TopLabel",
    "VectorScaler",
    "accuracy",
    "aece",
    "aurc",
    "brier",
    "brier_decomposition",
    "classwise_ece",
    "debiased_ece",
    "ece",
    "ece_of_chance",
    "entropy",
    "entropy_correlation",
    "few_samples",
    "human_agreement",
    "interval",
    "interval_from",
    "kl_divergence",
    "least_positive",
    "load_calibrator",
    "log_softmax",
    "mce",
    "mean_interval",
    "nll",
    "oe",
    "ood_aupr",
    "ood_auroc",
    "ood_fpr",
    "ood_score",
    "paired_difference",
    "piece",
    "proximity",
    "reliability",
    "resampled",
    "risk_coverage",
    "sample_size_warning",
    "smooth_ece",
    "softmax",
    "summary",
    "top_label",
    "total_variation",
    "tta_probs",
    "ue",
    "views",
    "weighted_oe",
    "weighted_ue",
]


def __getattr__(name: str) -> Any:
    if name != "CalibratedClassifier":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # scikit-learn is slow to load: only its users wait for it
    from semmix.calibration.estimator import CalibratedClassifier

    return CalibratedClassifier
