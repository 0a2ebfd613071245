"""What all pages share: the signs of a change, differences in points, one list of colours."""

import re

import numpy as np
import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from semmix.calibration import METRICS, Interval
from semmix.report import Predictions, draw_evaluation
from semmix.report.rendering import SHOWN_COVERAGES, mark, render_page, signed
from semmix.report.svg import COLOURS, HATCH, INK, MUTED

NAN = float("nan")


@pytest.mark.parametrize(
    ("metric", "change", "symbol", "word", "style"),
    [
        ("ece", (-0.02, -0.03, -0.01), "▲", "better", "better"),
        ("ece", (0.02, 0.01, 0.03), "▼", "worse", "worse"),
        ("acc", (0.02, 0.01, 0.03), "▲", "better", "better"),
        ("acc", (-0.02, -0.03, -0.01), "▼", "worse", "worse"),
        ("ece", (-0.02, -0.05, 0.01), "=", "no clear difference", ""),
        ("ece", (-0.02, NAN, NAN), "?", "one pair: no interval", ""),
    ],
)
def test_a_change_is_marked_for_eyes_and_for_readers(metric, change, symbol, word, style):
    assert mark(METRICS[metric], Interval(*change, 3)) == Markup(
        f'<span class="{style}" title="{word}"><span aria-hidden="true">{symbol}</span>'
        f'<span class="hidden">{word}</span></span>'
    )


def test_differences_have_a_sign_and_unknown_ones_a_dash():
    assert [signed(value) for value in (0.031, -0.031, 0.0, NAN)] == ["+3.1", "−3.1", "+0.0", "–"]


def test_pages_take_the_colours_that_figures_have(tmp_path):
    predictions = Predictions(np.array([[0.9, 0.1]] * 4), np.array([0, 0, 0, 1]))
    text = draw_evaluation({"a": predictions}, tmp_path / "e.html", title="t").read_text()
    root = re.search(r":root \{ (--ink.*?) \}", text).group(1)
    colours = dict(re.findall(r"--(\w+): (#\w+);", root))
    assert colours == {"ink": INK, "muted": MUTED, "hatch": HATCH, **{f"c{k}": c for k, c in enumerate(COLOURS)}}
    for coverage in SHOWN_COVERAGES:
        assert f">{100 * coverage:.0f} %</button>" in text


def test_what_a_template_asks_for_must_be_there(tmp_path):
    with pytest.raises(UndefinedError, match="'title' is undefined"):
        render_page("evaluation.html", tmp_path / "e.html")
