"""The metrics by name: how each is headed and shown, which direction is better, what measures it."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from semmix.calibration import agreement, metrics
from semmix.calibration.metrics import aurc
from semmix.calibration.neighbours import piece
from semmix.calibration.ood import ood_auroc, ood_fpr


@dataclass(frozen=True)
class Metric:
    """What a table, a chart or a file must know of a metric."""

    name: str
    """Its name in JSON, CSV and `semmix.calibration.summary`."""
    heading: str
    """Its name in tables and charts."""
    unit: Literal["%", ""] = "%"
    """`%` for a share, which is shown times 100."""
    higher_is_better: bool = False
    digits: int = 2
    """Digits behind the point when shown."""
    function: Callable[..., float] | None = None
    """What measures it, mostly from probabilities and labels; None where a single function cannot."""

    @property
    def title(self) -> str:
        """The heading with the unit, such as `ECE %`."""
        return f"{self.heading} {self.unit}".rstrip()

    def show(self, value: float, signed: bool = False) -> str:
        """Return the value as text, a share in percent but without the sign.

        >>> METRICS["ece"].show(-0.0152, signed=True)
        '−1.52'
        """
        scaled = 100 * value if self.unit == "%" else value
        sign = "+" if signed else ""
        return f"{scaled:{sign}.{self.digits}f}".replace("-", "−")

    def with_bins(self, bins: int) -> Callable[..., float]:
        """Return the function with this number of bins, where it has any."""
        assert self.function is not None
        takes_bins = "bins" in inspect.signature(self.function).parameters
        return partial(self.function, bins=bins) if takes_bins else self.function


_MEMBERS = (
    Metric("acc", "Accuracy", higher_is_better=True, function=metrics.accuracy),
    Metric("ece", "ECE", function=metrics.ece),
    Metric("aece", "AECE", function=metrics.aece),
    Metric("oe", "OE", function=metrics.oe),
    Metric("ue", "UE", function=metrics.ue),
    Metric("classwise_ece", "class ECE", function=metrics.classwise_ece),
    Metric("mce", "MCE", function=metrics.mce),
    Metric("debiased_ece", "debiased ECE", function=metrics.debiased_ece),
    Metric("smooth_ece", "smooth ECE", function=metrics.smooth_ece),
    Metric("nll", "NLL", unit="", digits=3, function=metrics.nll),
    Metric("brier", "Brier", unit="", digits=3, function=metrics.brier),
    Metric("aurc", "AURC", function=aurc),
    Metric("piece", "PIECE", function=piece),
    Metric("auroc", "AUROC", higher_is_better=True, function=ood_auroc),
    Metric("fpr", "FPR at 95 %", function=ood_fpr),
    Metric("cross_entropy", "cross-entropy", unit="", digits=4, function=metrics.nll),
    Metric("kl_divergence", "KL", unit="", digits=4, function=agreement.kl_divergence),
    Metric("total_variation", "total variation", unit="", digits=4, function=agreement.total_variation),
    Metric(
        "entropy_correlation",
        "entropy rank correlation",
        unit="",
        higher_is_better=True,
        digits=4,
        function=agreement.entropy_correlation,
    ),
    Metric("temperature", "T", unit=""),
    Metric("ece_ts", "ECE after T"),
    Metric("aece_ts", "AECE after T"),
    Metric("coverage", "coverage", higher_is_better=True, digits=1),
    Metric("hours", "Hours", unit=""),
)
METRICS = {metric.name: metric for metric in _MEMBERS}
"""Every metric that is shown anywhere."""

USUAL = tuple(METRICS[name] for name in ("acc", "ece", "aece", "oe", "ue", "nll", "brier"))
"""The columns of a usual table."""
