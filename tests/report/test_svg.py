"""Shapes lie where their numbers say."""

import re

import numpy as np
import pytest

from semmix.report.svg import COLOURS, MAX_POINTS, PERCENT_TICKS, Frame, round_ticks, series_style, spread, tag

FRAME = Frame((0, 2), (-1, 1), width=300, height=200, left=50, right=10, top=20, bottom=30)
"""Drawn from x = 50 to 290 and from y = 20 to 170."""


def numbers(markup, *names):
    """Return the numbers of these attributes, in order."""
    return tuple(float(re.search(rf' {name}="([^"]*)"', str(markup)).group(1)) for name in names)


def test_corners_of_the_frame():
    assert (FRAME.x(0), FRAME.x(2), FRAME.x(0.5)) == (50, 290, 110)
    assert (FRAME.y(-1), FRAME.y(1), FRAME.y(0.5)) == (170, 20, 57.5)
    usual = Frame((0, 1), (0, 1))
    assert (usual.x(0), usual.x(1), usual.y(0), usual.y(1)) == (44, 346, 210, 10)


def test_shapes_lie_between_their_points():
    assert numbers(FRAME.segment((0, -1), (2, 1), "s"), "x1", "y1", "x2", "y2") == (50, 170, 290, 20)
    for ends in ((0, 0.5), (0.5, 0)):
        assert numbers(FRAME.bar((0.5, 1), ends, "b"), "x", "y", "width", "height") == (110, 57.5, 60, 37.5)
    assert numbers(FRAME.dot(1, 0, "d"), "cx", "cy", "r") == (170, 95, 4)
    assert 'points="50.0,170.0 290.0,20.0"' in FRAME.line([0, 1, 2], [-1, np.nan, 1], "l")
    assert 'points="50.0,170.0"' in FRAME.line([0, np.inf], [-1, 1], "l")


def test_a_line_keeps_so_many_points_and_both_ends():
    line = FRAME.line(np.linspace(0, 2, 1000), np.linspace(-1, 1, 1000), "l")
    points = re.search('points="(.*?)"', line).group(1).split()
    assert (len(points), points[0], points[-1]) == (MAX_POINTS, "50.0,170.0", "290.0,20.0")


def test_axes_have_a_grid_line_and_a_label_at_each_tick():
    drawn = str(FRAME.axes("across", "up", [(0.5, "half")], [(0.5, "high")]))
    upright, level = re.findall("<line.*?</line>", drawn)
    assert numbers(upright, "x1", "y1", "x2", "y2") == (110, 170, 110, 20)
    assert numbers(level, "x1", "y1", "x2", "y2") == (50, 57.5, 290, 57.5)
    half, high, across, up = re.findall("<text.*?</text>", drawn)
    assert numbers(half, "x", "y") == (110, 185)
    assert numbers(high, "x", "y") == (44, 61.5)
    assert numbers(across, "x", "y") == (170, 195)
    assert "translate(11 95.0) rotate(-90)" in up
    assert [part.split(">")[1].split("<")[0] for part in (half, high, across, up)] == ["half", "high", "across", "up"]


def test_a_drawing_has_its_size_and_says_what_it_shows():
    drawing = FRAME.drawing('5 < "6"', tag("g"))
    assert drawing == ('<svg viewBox="0 0 300 200" role="img" aria-label="5 &lt; &#34;6&#34;"><g></g></svg>')


def test_tag_escapes_values_and_children():
    assert str(tag("a", "<b>", title='"x"')) == '<a title="&#34;x&#34;">&lt;b&gt;</a>'
    assert str(tag("a", aria_hidden="true", class_="k", x=2.504, y=10.0)) == (
        '<a aria-hidden="true" class="k" x="2.5" y="10"></a>'
    )


def test_more_series_than_colours_differ_by_dashes():
    styles = [series_style(k) for k in range(3 * len(COLOURS))]
    assert len(set(styles)) == len(styles)
    assert [styles[0], styles[6], styles[7], styles[13], styles[14]] == ["s0 d0", "s6 d0", "s0 d1", "s6 d1", "s0 d2"]
    assert series_style(21) == "s0 d0"


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0, 1, "0 0.2 0.4 0.6 0.8 1"),
        (0, 37, "0 10 20 30"),
        (-0.3, 0.3, "-0.2 0 0.2"),
        (0, 0.5, "0 0.1 0.2 0.3 0.4 0.5"),
    ],
)
def test_ticks_are_round(low, high, labels):
    assert [label for _, label in round_ticks(low, high)] == labels.split()
    assert [value for value, _ in round_ticks(low, high)] == pytest.approx([float(label) for label in labels.split()])


def test_labels_count_in_units_of_the_factor():
    assert round_ticks(0.021, 0.049, factor=100, num=3) == [(0.03, "3"), (0.04, "4")]
    assert [*PERCENT_TICKS] == [(0, "0"), (0.25, "25"), (0.5, "50"), (0.75, "75"), (1, "100")]


def test_spread_keeps_both_ends():
    assert spread(1000, 5) == [0, 250, 500, 749, 999]
    assert spread(3, 5) == spread(3, 3) == [0, 1, 2]
    assert spread(4, 3) == [0, 2, 3]
    assert spread(0, 5) == []
