"""Reliability diagrams for scripts and notebooks, on matplotlib axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from semmix.calibration import ece
from semmix.calibration._inputs import as_numpy, check_samples
from semmix.report.charts import NUM_BINS, Series
from semmix.runs import Predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, GREY, BLACK = "#0072b2", "#8a939c", "#1c2126"


@dataclass
class ReliabilityDisplay:
    """A reliability diagram: how often predictions are right, against their confidence.

    Bars show the accuracy of each bin of confidence with its 95 % interval, hatches the gap to the mean
    confidence of the bin, the dashed diagonal perfect calibration.

    Example:
        >>> import numpy as np
        >>> probs = np.array([[0.9, 0.1]] * 10)
        >>> display = ReliabilityDisplay.from_predictions(probs, [0] * 6 + [1] * 4, name="a classifier")
        >>> display.ax_.get_title()
        'a classifier: ECE 30.0 %'
    """

    series: Series
    ax_: Axes | None = None
    figure_: Figure | None = None

    @classmethod
    def from_predictions(
        cls, probs: Any, labels: Any, *, bins: int = NUM_BINS, name: str = "", ax: Axes | None = None
    ) -> ReliabilityDisplay:
        """Draw the diagram of these predictions.

        Args:
            probs: Probabilities `[N, K]`, or `[N]`: the probability of class 1 of two.
            labels: Class indices `[N]`.
            bins: Bins of equal width between confidence 0 and 1.
            name: What the title calls the classifier.
            ax: Axes to draw on; new ones by default.

        Returns:
            The display, with the axes as `ax_` and their figure as `figure_`.
        """
        rows, classes = check_samples(probs, labels)
        return cls(Series(name, (Predictions(as_numpy(rows), classes),), bins)).plot(ax=ax)

    def plot(self, *, ax: Axes | None = None, colour: str = BLUE) -> ReliabilityDisplay:
        """Draw the diagram on `ax`, or on new axes; return the display."""
        if ax is None:
            from matplotlib import pyplot

            _, ax = pyplot.subplots(figsize=(4, 4), layout="constrained")
        bins = self.series.bins
        middles = [(b.low + b.high) / 2 for b in bins]
        width = bins[0].high - bins[0].low
        accuracy = [b.accuracy for b in bins]
        gap = [b.confidence - b.accuracy for b in bins]
        ends = [[abs(b.accuracy - end) for end in b.accuracy_range] for b in bins]
        ax.bar(middles, accuracy, width, color=colour, alpha=0.75, edgecolor="white")
        ax.bar(middles, gap, width, accuracy, hatch="////", facecolor="none", edgecolor=GREY)
        ax.errorbar(middles, accuracy, list(zip(*ends, strict=True)), fmt="none", ecolor=BLACK)
        ax.plot((0, 1), (0, 1), "--", color=GREY)
        ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy", aspect="equal")
        ax.set_title(self._title(), parse_math=False)
        self.ax_, self.figure_ = ax, ax.get_figure()  # pyright: ignore[reportAttributeAccessIssue]
        return self

    def _title(self) -> str:
        error = np.mean([ece(m.probs, m.labels, self.series.num_bins) for m in self.series.members])
        measured = f"ECE {100 * error:.1f} %"
        return f"{self.series.name}: {measured}" if self.series.name else measured


def reliability_diagram(
    probs: Any, labels: Any, *, bins: int = NUM_BINS, name: str = "", ax: Axes | None = None
) -> Axes:
    """Draw how often predictions are right against their confidence; return the axes.

    Args:
        probs: Probabilities `[N, K]`, or `[N]`: the probability of class 1 of two.
        labels: Class indices `[N]`.
        bins: Bins of equal width between confidence 0 and 1.
        name: What the title calls the classifier.
        ax: Axes to draw on; new ones by default.

    Returns:
        The matplotlib axes, to be changed or saved as usual.

    Example:
        >>> axes = reliability_diagram([[0.9, 0.1], [0.2, 0.8]], [0, 0])
        >>> axes.get_xlabel()
        'confidence'
    """
    axes = ReliabilityDisplay.from_predictions(probs, labels, bins=bins, name=name, ax=ax).ax_
    assert axes is not None
    return axes
