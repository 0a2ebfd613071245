"""Pictures on matplotlib axes and as files: what they show is what the numbers say."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from scipy import stats

from semmix.report.charts import Series
from semmix.report.plots import ReliabilityDisplay, mixed_set_figure, reliability_diagram, reliability_figure
from semmix.report.rows import aggregate

PROBS = np.array([[0.95, 0.05]] * 10 + [[0.35, 0.65]] * 20)
LABELS = np.array([0] * 5 + [1] * 5 + [1] * 16 + [0] * 4)
"""Right on 5 of 10 at confidence .95 (too confident), on 16 of 20 at .65 (not confident enough)."""


def bars(axes) -> dict[float, list[tuple[float, float]]]:
    """Return (bottom, top) of each bar by the middle of its bin, rounded: accuracy first, then the gap."""
    found: dict[float, list[tuple[float, float]]] = {}
    for bar in axes.patches:
        middle = round(bar.get_x() + bar.get_width() / 2, 3)
        ends = sorted((bar.get_y(), bar.get_y() + bar.get_height()))
        found.setdefault(middle, []).append((round(ends[0], 3), round(ends[1], 3)))
    return found


def test_bars_show_accuracy_and_the_gap_to_confidence():
    axes = reliability_diagram(PROBS, LABELS, bins=10, ax=Figure().subplots())
    assert bars(axes) == {0.95: [(0.0, 0.5), (0.5, 0.95)], 0.65: [(0.0, 0.8), (0.65, 0.8)]}
    assert {round(bar.get_width(), 6) for bar in axes.patches} == {0.1}
    (diagonal,) = axes.lines[-1:]
    assert diagonal.get_xydata().tolist() == [[0, 0], [1, 1]]


def test_the_title_names_the_classifier_and_its_error():
    expected = 100 * (10 / 30 * 0.45 + 20 / 30 * 0.15)
    display = ReliabilityDisplay.from_predictions(PROBS, LABELS, bins=10, name="mine", ax=Figure().subplots())
    assert display.ax_.get_title() == f"mine: ECE {expected:.1f} %"
    unnamed = reliability_diagram(PROBS, LABELS, bins=10, ax=Figure().subplots())
    assert unnamed.get_title() == f"ECE {expected:.1f} %"


@pytest.mark.parametrize("kind", [torch.from_numpy, np.ndarray.tolist])
def test_tensors_and_lists_show_the_same(kind):
    axes = reliability_diagram(kind(PROBS), kind(LABELS), bins=10, ax=Figure().subplots())
    assert bars(axes)[0.65] == [(0.0, 0.8), (0.65, 0.8)]


def test_one_column_is_the_probability_of_class_1():
    two = reliability_diagram(PROBS, LABELS, ax=Figure().subplots())
    one = reliability_diagram(PROBS[:, 1], LABELS, ax=Figure().subplots())
    assert bars(one) == bars(two)


def test_axes_that_are_given_are_drawn_on():
    figure = Figure()
    left, right = figure.subplots(1, 2)
    display = ReliabilityDisplay.from_predictions(PROBS, LABELS, ax=right)
    assert display.ax_ is right
    assert display.figure_ is figure
    assert not left.patches


def pixels(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("L"))


def test_mixed_set_figure_shows_rows_of_members(gallery, tmp_path):
    names = ["$a", "b_", "c", "d"]
    one, three = (
        pixels(mixed_set_figure(gallery, names, tmp_path / f"{len(sets)}.png", sets)) for sets in ((0,), (0, 1, 3))
    )
    assert three.shape[1] == one.shape[1]
    assert three.shape[0] == pytest.approx(3 * one.shape[0], rel=0.02)
    assert (one == 0).any()  # the first member is black


@pytest.mark.parametrize("num", [1, 2, 4, 8])
def test_reliability_figures_cut_nothing_off(run_folders, tmp_path, num):
    """Titles of four and more were cut by the upper edge."""
    row = aggregate(run_folders)[0]
    series = [Series(row.name, tuple(run.before for run in row.runs))] * num
    drawn = pixels(reliability_figure(series, tmp_path / "r.png"))
    for edge in (drawn[:2], drawn[-2:], drawn[:, :2], drawn[:, -2:]):
        assert (edge == 255).all()


def test_reliability_figure_is_svg_or_png(run_folders, tmp_path):
    rows = aggregate(run_folders)
    series = [Series(row.name, tuple(run.before for run in row.runs)) for row in rows]
    assert pixels(reliability_figure(series, tmp_path / "new" / "r.png")).shape[1] > 900
    text = reliability_figure(series, tmp_path / "r.svg").read_text()
    assert "<svg" in text


def shown_texts(path):
    """Return the texts of an SVG figure, which matplotlib notes beside their outlines."""
    return re.findall("<!-- (.*?) -->", path.read_text())


def test_mixed_set_figures_name_both_lambdas_of_every_image(gallery, tmp_path):
    names = ["cat", "dog", "cow", "hen"]
    texts = shown_texts(mixed_set_figure(gallery, names, tmp_path / "a.svg", (1,)))
    assert [text for text in texts if text.startswith("gen.")] == [f"gen. {k / 4:.2f}" for k in range(5)]
    assert [text for text in texts if text.startswith("anno.")] == [f"anno. {(k / 4) ** 2:.2f}" for k in range(5)]
    assert [text for text in texts if text in (*names, "to")] == ["cow", "to", "cat"]  # from class j to class i
    alone = shown_texts(mixed_set_figure(replace(gallery, lam=None), names, tmp_path / "b.svg", (1,)))
    assert [text for text in alone if text.startswith(("gen.", "anno."))] == [f"gen. {k / 4:.2f}" for k in range(5)]


def test_reliability_figures_have_a_name_over_each_diagram_and_one_name_of_the_upright_axis(run_folders, tmp_path):
    series = [Series(row.name, tuple(run.before for run in row.runs)) for row in aggregate(run_folders)]
    texts = shown_texts(reliability_figure(series, tmp_path / "r.svg"))
    assert [text for text in texts if text in ("CE", "CSM", "accuracy", "confidence")] == [
        "confidence",
        "accuracy",
        "CE",
        "confidence",
        "CSM",
    ]


def test_a_display_names_itself_and_draws_again_on_other_axes():
    display = ReliabilityDisplay.from_predictions(PROBS, LABELS, bins=10, name="mine", ax=Figure().subplots())
    assert repr(display) == "ReliabilityDisplay(mine: ECE 25.0 %)"
    other = Figure().subplots()
    display.plot(ax=other, colour="red")
    assert display.ax_ is other
    assert other.patches[0].get_facecolor()[:3] == (1, 0, 0)
    assert other.patches[0].get_alpha() == 0.75


def test_whiskers_are_the_wilson_intervals():
    axes = reliability_diagram(PROBS, LABELS, bins=10, ax=Figure().subplots())
    (segments,) = [collection.get_segments() for collection in axes.collections]
    for segment, (right, num) in zip(segments, ((16, 20), (5, 10)), strict=True):
        low, high = stats.binomtest(right, num).proportion_ci(0.95, method="wilson")
        assert segment[:, 1].tolist() == pytest.approx([low, high], abs=1e-6)
