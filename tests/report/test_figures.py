"""Figures are written as the file's ending asks."""

import numpy as np
import pytest
from PIL import Image

from semmix.report.charts import Series
from semmix.report.figures import mixed_set_figure, reliability_figure
from semmix.report.rows import aggregate


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
