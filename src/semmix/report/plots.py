"""Pictures on matplotlib axes and as files, for scripts, notebooks, READMEs and papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from semmix.calibration import ece
from semmix.calibration._inputs import as_numpy, check_samples
from semmix.report.charts import NUM_BINS, Series
from semmix.report.gallery import Gallery
from semmix.report.svg import COLOURS, HATCH, INK, MUTED
from semmix.runs import Predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(repr=False)
class ReliabilityDisplay:
    """A reliability diagram: how often predictions are right, against their confidence.

    Bars show the accuracy of each bin of confidence with its 95 % interval, hatches the gap to the mean
    confidence of the bin, the dashed diagonal perfect calibration.

    Example:
        >>> import numpy as np
        >>> probs = np.array([[0.9, 0.1]] * 10)
        >>> display = ReliabilityDisplay.from_predictions(probs, [0] * 6 + [1] * 4, name="a classifier")
        >>> display
        ReliabilityDisplay(a classifier: ECE 30.0 %)
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

        Raises:
            SemmixError: If these are no probabilities and labels.
        """
        rows, classes = check_samples(probs, labels)
        return cls(Series(name, (Predictions(as_numpy(rows), classes),), bins)).plot(ax=ax)

    def plot(self, *, ax: Axes | None = None, colour: str = COLOURS[1]) -> ReliabilityDisplay:
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
        ax.bar(middles, gap, width, accuracy, hatch="////", facecolor="none", edgecolor=HATCH)
        ax.errorbar(middles, accuracy, list(zip(*ends, strict=True)), fmt="none", ecolor=INK)
        ax.plot((0, 1), (0, 1), "--", color=MUTED)
        ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy", aspect="equal")
        ax.set_title(self._title(), parse_math=False)
        self.ax_, self.figure_ = ax, ax.get_figure()  # pyright: ignore[reportAttributeAccessIssue]
        return self

    def _title(self) -> str:
        error = np.mean([ece(m.probs, m.labels, self.series.num_bins) for m in self.series.members])
        measured = f"ECE {100 * error:.1f} %"
        return f"{self.series.name}: {measured}" if self.series.name else measured

    def __repr__(self) -> str:
        return f"ReliabilityDisplay({self._title()})"


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

    Raises:
        SemmixError: If these are no probabilities and labels.

    Example:
        >>> axes = reliability_diagram([[0.9, 0.1], [0.2, 0.8]], [0, 0])
        >>> axes.get_xlabel()
        'confidence'
    """
    axes = ReliabilityDisplay.from_predictions(probs, labels, bins=bins, name=name, ax=ax).ax_
    assert axes is not None
    return axes


def reliability_figure(series: Sequence[Series], out: str | Path) -> Path:
    """Draw the reliability diagrams of several series side by side; return `out`, whose ending is the format."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(series), 3.4), layout="compressed")
    axes = figure.subplots(1, len(series), squeeze=False, sharey=True)[0]
    for k, (ax, one) in enumerate(zip(axes, series, strict=True)):
        ReliabilityDisplay(one).plot(ax=ax, colour=COLOURS[k % len(COLOURS)])
        ax.set_title(one.name, parse_math=False)
        ax.set_ylabel("" if k else "accuracy")
    return _save(figure, out)


def mixed_set_figure(
    gallery: Gallery, class_names: Sequence[str], out: str | Path, sets: Sequence[int] = (0, 1, 2)
) -> Path:
    """Draw mixed sets as rows, requested and annotated lambda under every image; return `out`."""
    from matplotlib.figure import Figure

    size = gallery.lam_requested.shape[1]
    figure = Figure(figsize=(1.05 * size + 1.5, 1.5 * len(sets)), layout="constrained")
    axes = figure.subplots(len(sets), size, squeeze=False)
    labelled = {"rotation": 0, "ha": "right", "va": "center", "labelpad": 10, "parse_math": False}
    lams = [(-0.04, "gen.", gallery.lam_requested, MUTED), (-0.2, "anno.", gallery.lam, COLOURS[1])]
    for row, n in zip(axes, sets, strict=True):
        i, j = gallery.pairs[n]
        row[0].set_ylabel(f"{class_names[j]}\nto\n{class_names[i]}", **labelled)
        for k, ax in enumerate(row):
            image = gallery.images[n, k].transpose(1, 2, 0)  # [H, W, C]
            ax.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(False)
            for y, name, lam, colour in lams if gallery.lam is not None else lams[:1]:
                place = {"transform": ax.transAxes, "ha": "center", "va": "top", "size": 9}
                ax.text(0.5, y, f"{name} {lam[n, k]:.2f}", color=colour, **place)
    return _save(figure, out)


def _save(figure: Figure, out: str | Path) -> Path:
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=160)
    return Path(out)
