"""Pictures as files, for READMEs and papers; the format follows the file's ending."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from semmix.report.charts import Series
from semmix.report.gallery import Gallery

COLOURS = ("#3b4249", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's colours, told apart with every kind of colour vision."""
MUTED = "#57616b"


def mixed_set_figure(gallery: Gallery, class_names: Sequence[str], out: Path, sets: Sequence[int] = (0, 1, 2)) -> Path:
    """Draw mixed sets as rows, requested and annotated lambda under every image; return `out`."""
    from matplotlib.figure import Figure

    size = gallery.lam.shape[1]
    figure = Figure(figsize=(1.05 * size + 1.5, 1.5 * len(sets)), layout="constrained")
    axes = figure.subplots(len(sets), size, squeeze=False)
    for row, n in zip(axes, sets, strict=True):
        i, j = gallery.pairs[n]
        row[0].set_ylabel(
            f"{class_names[j]}\nto\n{class_names[i]}",
            rotation=0,
            ha="right",
            va="center",
            labelpad=10,
            parse_math=False,
        )
        for k, axis in enumerate(row):
            _draw_member(axis, gallery, n, k)
    return _save(figure, out)


def _draw_member(axis, gallery: Gallery, n: int, k: int) -> None:
    image = gallery.images[n, k].transpose(1, 2, 0)  # [H, W, C]
    axis.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)
    places = ((-0.04, "gen.", gallery.lam_requested, MUTED), (-0.2, "anno.", gallery.lam, COLOURS[1]))
    for y, name, lam, colour in places:
        text = f"{name} {lam[n, k]:.2f}"
        axis.text(0.5, y, text, transform=axis.transAxes, ha="center", va="top", size=9, color=colour)


def reliability_figure(series: Sequence[Series], out: Path) -> Path:
    """Draw the reliability diagrams of several series side by side; return `out`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(series), 3.4), layout="compressed")
    axes = figure.subplots(1, len(series), squeeze=False, sharey=True)[0]
    for k, (axis, one) in enumerate(zip(axes, series, strict=True)):
        _draw_reliability(axis, one, COLOURS[k % len(COLOURS)])
    axes[0].set_ylabel("accuracy")
    return _save(figure, out)


def _draw_reliability(axis, series: Series, colour: str) -> None:
    middles = [(b.low + b.high) / 2 for b in series.bins]
    width = series.bins[0].high - series.bins[0].low
    accuracy = [b.accuracy for b in series.bins]
    gap = [b.confidence - b.accuracy for b in series.bins]
    ends = [[abs(b.accuracy - end) for end in b.accuracy_range] for b in series.bins]
    axis.bar(middles, accuracy, width, color=colour, alpha=0.75, edgecolor="white")
    axis.bar(middles, gap, width, accuracy, hatch="////", facecolor="none", edgecolor="#8a939c")
    axis.errorbar(middles, accuracy, list(zip(*ends, strict=True)), fmt="none", ecolor="#1c2126")
    axis.plot((0, 1), (0, 1), "--", color=MUTED)
    axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", aspect="equal")
    axis.set_title(series.name, parse_math=False)


def _save(figure, out: Path) -> Path:
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=160)
    return out
