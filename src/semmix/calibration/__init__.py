"""Measuring and improving calibration: metrics, intervals and tests, post-hoc calibrators."""

from typing import TYPE_CHECKING, Any

from semmix.calibration._bins import Reliability as Reliability
from semmix.calibration._calibrator import Calibrator as Calibrator
from semmix.calibration._calibrator import load_calibrator as load_calibrator
from semmix.calibration._calibrator import log_softmax as log_softmax
from semmix.calibration._calibrator import softmax as softmax
from semmix.calibration._inputs import least_positive as least_positive
from semmix.calibration._toplabel import RiskCoverage as RiskCoverage
from semmix.calibration._toplabel import TopLabel as TopLabel
from semmix.calibration._toplabel import top_label as top_label
from semmix.calibration.agreement import entropy_correlation as entropy_correlation
from semmix.calibration.agreement import human_agreement as human_agreement
from semmix.calibration.agreement import kl_divergence as kl_divergence
from semmix.calibration.agreement import total_variation as total_variation
from semmix.calibration.augmentation import tta_probs as tta_probs
from semmix.calibration.augmentation import views as views
from semmix.calibration.intervals import Interval as Interval
from semmix.calibration.intervals import ece_of_chance as ece_of_chance
from semmix.calibration.intervals import few_samples as few_samples
from semmix.calibration.intervals import interval as interval
from semmix.calibration.intervals import interval_from as interval_from
from semmix.calibration.intervals import mean_interval as mean_interval
from semmix.calibration.intervals import paired_difference as paired_difference
from semmix.calibration.intervals import resampled as resampled
from semmix.calibration.intervals import sample_size_warning as sample_size_warning
from semmix.calibration.metrics import accuracy as accuracy
from semmix.calibration.metrics import aece as aece
from semmix.calibration.metrics import aurc as aurc
from semmix.calibration.metrics import brier as brier
from semmix.calibration.metrics import brier_decomposition as brier_decomposition
from semmix.calibration.metrics import classwise_ece as classwise_ece
from semmix.calibration.metrics import debiased_ece as debiased_ece
from semmix.calibration.metrics import ece as ece
from semmix.calibration.metrics import entropy as entropy
from semmix.calibration.metrics import mce as mce
from semmix.calibration.metrics import nll as nll
from semmix.calibration.metrics import oe as oe
from semmix.calibration.metrics import reliability as reliability
from semmix.calibration.metrics import risk_coverage as risk_coverage
from semmix.calibration.metrics import smooth_ece as smooth_ece
from semmix.calibration.metrics import ue as ue
from semmix.calibration.metrics import weighted_oe as weighted_oe
from semmix.calibration.metrics import weighted_ue as weighted_ue
from semmix.calibration.neighbours import piece as piece
from semmix.calibration.neighbours import proximity as proximity
from semmix.calibration.one_vs_rest import BetaCalibrator as BetaCalibrator
from semmix.calibration.one_vs_rest import HistogramBinning as HistogramBinning
from semmix.calibration.one_vs_rest import IsotonicCalibrator as IsotonicCalibrator
from semmix.calibration.ood import ood_aupr as ood_aupr
from semmix.calibration.ood import ood_auroc as ood_auroc
from semmix.calibration.ood import ood_fpr as ood_fpr
from semmix.calibration.ood import ood_score as ood_score
from semmix.calibration.procal import BinMeanShiftCalibrator as BinMeanShiftCalibrator
from semmix.calibration.procal import DensityRatioCalibrator as DensityRatioCalibrator
from semmix.calibration.registry import METRICS as METRICS
from semmix.calibration.registry import USUAL as USUAL
from semmix.calibration.registry import Metric as Metric
from semmix.calibration.scaling import DirichletCalibrator as DirichletCalibrator
from semmix.calibration.scaling import MatrixScaler as MatrixScaler
from semmix.calibration.scaling import TemperatureScaler as TemperatureScaler
from semmix.calibration.scaling import VectorScaler as VectorScaler
from semmix.calibration.streaming import CalibrationStream as CalibrationStream
from semmix.calibration.streaming import summary as summary

if TYPE_CHECKING:
    from semmix.calibration.estimator import CalibratedClassifier as CalibratedClassifier


def __getattr__(name: str) -> Any:
    if name != "CalibratedClassifier":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # scikit-learn is slow to load: only its users wait for it
    from semmix.calibration.estimator import CalibratedClassifier

    return CalibratedClassifier
