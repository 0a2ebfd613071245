"""What charts draw equals plain loops over the predictions."""

import math
import re
from dataclasses import replace
from math import nan
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from semmix.calibration import Interval
from semmix.report.charts import (
    COVERAGES,
    Bin,
    Series,
    class_lines,
    confidence_chart,
    forest_chart,
    pair_lines,
    reliability_chart,
    risk_chart,
    roc_chart,
    training_chart,
    verdict,
)
from semmix.report.detection import Detection
from semmix.report.rows import aggregate
from semmix.report.svg import Frame, series_style
from semmix.runs import Predictions


@pytest.fixture
def series():
    draw = np.random.default_rng(0)
    members = []
    for _ in range(2):
        probs = draw.dirichlet([0.4] * 3, size=200)
        members.append(Predictions(probs, draw.integers(0, 3, 200)))
    return Series("a & b", tuple(members))


def test_bins_equal_a_plain_loop(series):
    for b in series.bins:
        count = right = confidence = 0
        for member in series.members:
            for p, label in zip(member.probs, member.labels, strict=True):
                if b.low < max(p) <= b.high:
                    count += 1
                    right += np.argmax(p) == label
                    confidence += max(p)
        assert b.count == count / 2
        assert b.accuracy == pytest.approx(right / count)
        assert b.confidence == pytest.approx(confidence / count)
    assert sum(b.count for b in series.bins) == 200


@pytest.mark.parametrize(("right", "count"), [(8, 10), (10, 10), (0, 3), (700, 1000)])
def test_accuracy_range_is_the_wilson_interval(right, count):
    expected = stats.binomtest(right, count).proportion_ci(0.95, method="wilson")
    ours = Bin(0, 1, count, 0.9, right / count).accuracy_range
    assert ours == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_risk_equals_a_plain_loop(series):
    risks = []
    for member in series.members:
        order = sorted(range(200), key=lambda n: -member.probs[n].max())
        wrong = [member.probs[n].argmax() != member.labels[n] for n in order]
        risks.append(sum(wrong[:100]) / 100)
    half = int(np.flatnonzero(np.isclose(COVERAGES, 0.5))[0])
    assert series.risk[half] == pytest.approx(np.mean(risks))


def test_class_lines_equal_a_plain_loop(series):
    lines = {line.name: line for line in class_lines(series, ["x", "y", "z"])}
    said = [(p, y) for m in series.members for p, y in zip(m.probs, m.labels, strict=True)]
    for k, name in enumerate("xyz"):
        answers = [(p.max(), y) for p, y in said if p.argmax() == k]
        own = [p.argmax() for p, y in said if y == k]
        line = lines[name]
        assert line.images == len(own) / 2
        assert line.found == pytest.approx(own.count(k) / len(own))
        assert line.predictions == len(answers) / 2
        assert line.confidence == pytest.approx(np.mean([c for c, _ in answers]))
        assert line.right == pytest.approx(np.mean([y == k for _, y in answers]))


def test_a_class_nobody_names_has_no_confidence():
    probs = np.array([[0.9, 0.1, 0.0]] * 4)
    series = Series("s", (Predictions(probs, np.array([0, 0, 1, 1])),))
    lines = {line.name: line for line in class_lines(series, "abc")}
    assert math.isnan(lines["b"].gap)
    assert lines["b"].found == 0
    assert math.isnan(lines["c"].found)


def test_pair_lines_count_confusions():
    probs = np.array([[0.9, 0.1], [0.7, 0.3], [0.4, 0.6], [0.8, 0.2]])
    series = Series("s", (Predictions(probs, np.array([1, 1, 1, 0])),))
    (line,) = pair_lines(series, ["cat", "dog"])
    assert (line.truth, line.prediction, line.images) == ("dog", "cat", 2)
    assert line.share == pytest.approx(2 / 3)
    assert line.confidence == pytest.approx(0.8)


def test_pair_lines_equal_a_plain_loop(series):
    lines = pair_lines(series, ["x", "y", "z"])
    said = [(p, y) for m in series.members for p, y in zip(m.probs, m.labels, strict=True)]
    for line in lines:
        i, j = "xyz".index(line.truth), "xyz".index(line.prediction)
        taken = [p.max() for p, y in said if (y, p.argmax()) == (i, j)]
        assert line.images == len(taken) / 2
        assert line.share == pytest.approx(len(taken) / sum(y == i for _, y in said))
        assert line.confidence == pytest.approx(np.mean(taken))
    assert len(lines) == 6
    assert [line.images for line in lines] == sorted((e.images for e in lines), reverse=True)


def test_classes_that_add_most_to_the_error_come_first():
    """Five answers too sure by 0.1, three too modest by 0.4, two too sure by 0.5."""
    rows = [(0, 0.9, 4, 5), (1, 0.6, 3, 3), (2, 1.0, 1, 2)]
    probs, labels = [], []
    for k, confidence, num_right, num in rows:
        others = np.full(3, (1 - confidence) / 2)
        others[k] = confidence
        probs += [others] * num
        labels += [k] * num_right + [(k + 1) % 3] * (num - num_right)
    series = Series("s", (Predictions(np.array(probs), np.array(labels)),))
    lines = class_lines(series, "abc")
    assert [line.name for line in lines] == ["b", "c", "a"]
    assert [line.gap for line in lines] == pytest.approx([-0.4, 0.5, 0.1])


def test_verdict_names_the_side():
    probs = np.array([[0.9, 0.1]] * 10)
    for right, word in ((6, "over-confident by 30.0"), (10, "under-confident by 10.0")):
        labels = np.array([0] * right + [1] * (10 - right))
        assert word in Series("s", (Predictions(probs, labels),)).verdict
    assert verdict(0.7502, 0.7499).startswith("neither over- nor under-confident on average (mean confidence 75.0")
    assert verdict(0.7506, 0.75).startswith("over-confident by 0.1 points")


BINS = Predictions(
    np.array([[0.9, 0.1]] * 20 + [[0.7, 0.3]] * 10 + [[0.55, 0.45]] * 9), np.array([0] * 10 + [1] * 10 + [0] * 19)
)
"""Of five bins: 9 images at .55 and 10 at .7, all right; 20 at .9, half of them right."""


def shapes(markup, name):
    """Return the attributes of each element of this name."""
    found = re.findall(rf"<{name} (.*?)>", str(markup))
    return [dict(re.findall(r'([\w-]+)="(.*?)"', attributes)) for attributes in found]


def heights(frame, rect):
    """Return where a bar begins and ends, in the data's units, and its class."""
    top = float(rect["y"])
    values = ((frame.y(0) - y) / (frame.y(0) - frame.y(1)) for y in (top + float(rect["height"]), top))
    return (*(round(value, 3) for value in values), rect["class"])


def test_a_reliability_diagram_shows_each_bin_with_its_gap_and_interval():
    frame, series = Frame((0, 1), (0, 1), height=330), Series("s", (BINS,), 5)
    svg = reliability_chart(series, k=1)
    drawn = [heights(frame, rect) for rect in shapes(svg, "rect")]
    assert drawn == [
        (0, 1, "bar s1 d0"),
        (0.55, 1, "gap under"),
        (0, 1, "bar s1 d0"),
        (0.7, 1, "gap under"),
        (0, 0.5, "bar s1 d0"),
        (0.5, 0.9, "gap"),
    ]
    left, right = (float(shapes(svg, "rect")[4][key]) for key in ("x", "width"))
    assert (left, left + right) == pytest.approx((frame.x(0.8), frame.x(1)), abs=0.01)
    assert [group["class"] for group in shapes(svg, "g")] == ["few", "", ""]  # fewer than ten images are drawn pale
    whisker = [line for line in shapes(svg, "line") if line["class"] == "whisker"][-1]
    low, high = stats.binomtest(10, 20).proportion_ci(0.95, method="wilson")
    assert [float(whisker[key]) for key in ("x1", "y1", "x2", "y2")] == pytest.approx(
        [frame.x(0.9), frame.y(low), frame.x(0.9), frame.y(high)], abs=0.01
    )
    diagonal = shapes(svg, "line")[-1]
    corners = [frame.x(0), frame.y(0), frame.x(1), frame.y(1)]
    assert [float(diagonal[key]) for key in ("x1", "y1", "x2", "y2")] == corners
    described = shapes(svg, "svg")[0]["aria-label"].replace("\xa0", " ")
    assert "adds most to the error: confidence 80 % to 100 %: 20 images, mean confidence 90.0 %" in described
    assert "right 50.0 % (interval 29.9 % to 70.1 %)" in described


def test_a_confidence_histogram_hatches_what_is_wrong():
    series = Series("s", (BINS,), 5)
    svg = confidence_chart(series, k=0)
    frame = Frame((0, 1), (0, 20 / 39), height=170, top=30)
    ends = [
        tuple(round(20 / 39 * end, 3) for end in heights(Frame((0, 1), (0, 1), height=170, top=30), rect)[:2])
        for rect in shapes(svg, "rect")
    ]
    assert [rect["class"] for rect in shapes(svg, "rect")] == ["gap", "bar s0 d0"] * 3
    expected = [(0, 0), (0, 9 / 39), (0, 0), (0, 10 / 39), (0, 10 / 39), (10 / 39, 20 / 39)]
    assert ends == [pytest.approx(pair, abs=0.002) for pair in expected]
    means = [line for line in shapes(svg, "line") if "mark" in line["class"]]
    confidence, accuracy = (20 * 0.9 + 10 * 0.7 + 9 * 0.55) / 39, 29 / 39
    assert [(float(m["x1"]), m["class"]) for m in means] == [
        (pytest.approx(frame.x(confidence), abs=0.01), "mark"),
        (pytest.approx(frame.x(accuracy), abs=0.01), "mark dashed"),
    ]
    assert {float(m["y2"]) for m in means} == {130}
    assert f">confidence {100 * confidence:.1f}" in svg
    assert f">accuracy {100 * accuracy:.1f}" in svg


@pytest.mark.parametrize(
    ("confidence", "right", "heights", "end"),
    [(0.9, 7, (11, 24), True), (0.9, 10, (24, 11), True), (0.4, 3, (24, 11), False), (0.4, 5, (11, 24), False)],
)
def test_no_name_of_a_mean_crosses_the_line_of_the_other(confidence, right, heights, end):
    """Names lie left of their lines, the upper one that of the line on the right; right of them below one half."""
    rest = (1 - confidence) / 3
    probs = np.array([[confidence, rest, rest, rest]] * 10)
    series = Series("s", (Predictions(probs, np.array([0] * right + [1] * (10 - right))),))
    svg = confidence_chart(series, k=0)
    names = [text for text in re.findall("<text.*?</text>", str(svg)) if ">confidence " in text or ">accuracy " in text]
    names = [text for text in names if "confidence, %" not in text]
    for text, height, value in zip(names, heights, (confidence, right / 10), strict=True):
        x, y = (float(re.search(rf' {key}="(.*?)"', text).group(1)) for key in ("x", "y"))
        place = Frame((0, 1), (0, 1)).x(value)
        assert (x, y) == (pytest.approx(place - 4 if end else place + 4, abs=0.01), height)
        assert ('class="end"' in text) is end


@pytest.mark.parametrize("draw", [reliability_chart, confidence_chart])
def test_charts_describe_and_escape(series, draw):
    svg = str(draw(series, k=0))
    assert 'role="img" aria-label="' in svg
    assert "a &amp; b" in svg
    assert "a & b" not in svg


def test_risk_chart_has_a_line_for_each_series(series):
    svg = str(risk_chart([series, series]))
    assert svg.count("<polyline") == 2
    assert series_style(0) in svg
    assert series_style(1) in svg


def polylines(svg):
    return [
        [tuple(map(float, point.split(","))) for point in line["points"].split()] for line in shapes(svg, "polyline")
    ]


def test_risk_chart_shows_the_error_over_the_most_confident_images():
    probs = np.array([[c, 1 - c] for c in (0.9, 0.8, 0.7, 0.6)])
    series = Series("s", (Predictions(probs, np.array([0, 1, 0, 1])),))
    assert [round(series.risk_at(c), 3) for c in (0.25, 0.5, 1.0)] == [0, 0.5, 0.5]
    svg = risk_chart([series])
    (line,) = polylines(svg)
    frame = Frame((0, 1), (0, 0.5 * 1.05), height=300)
    assert line[-1] == pytest.approx((frame.x(1), frame.y(0.5)), abs=0.06)
    assert "Error over all images: s 50.0" in svg


def curve_run(values, key="loss"):
    return SimpleNamespace(stats=[{"epoch": k + 1, key: value} for k, value in enumerate(values)])


def curve_rows(*rows):
    return [SimpleNamespace(name=f"row {k}", runs=runs) for k, runs in enumerate(rows)]


def test_training_chart_draws_runs_and_mean(run_folders):
    rows = aggregate(run_folders)
    svg = str(training_chart(rows, "val_nll", "NLL"))
    assert svg.count("line thin s0") == 3
    assert svg.count("<polyline") == 8  # two rows: three runs and a mean
    assert training_chart(rows, "val_unknown", "nothing") is None


def test_a_mean_curve_goes_through_the_mean_of_the_epochs_that_all_seeds_have():
    rows = curve_rows([curve_run([1, 2, 3, 4]), curve_run([3, 4, 5])])
    svg = training_chart(rows, "loss", "Loss")
    first, second, mean = polylines(svg)
    assert len(first) == 4
    assert len(second) == len(mean) == 3
    low, high = (polyline[1][1] for polyline in (first, second))
    assert mean[1][1] == pytest.approx((low + high) / 2, abs=0.06)
    assert "Loss over the epochs: row 0." in svg


def test_the_first_epochs_do_not_set_the_scale_of_training_curves():
    """A spike of 60 in the first of eight epochs is cut at the edge; 6 and 3 are far apart."""
    rows = curve_rows([curve_run([60, 50, 6, 6, 6, 6, 6, 6])], [curve_run([60, 3, 3, 3, 3, 3, 3, 3])])
    svg = training_chart(rows, "loss", "Loss")
    (upper, _, lower, _), top, bottom = polylines(svg), 10, 190
    assert upper[0][1] == upper[1][1] == lower[0][1] == top  # outside: drawn at the edge
    assert lower[-1][1] - upper[-1][1] > 0.8 * (bottom - top)
    assert upper[2][1] > top
    # What comes after the first quarter does set the scale.
    late = polylines(training_chart(curve_rows([curve_run([6, 6, 60, 6, 6, 6, 6, 6])]), "loss", "Loss"))[0]
    assert late[2][1] > top


def test_a_curve_that_does_not_move_lies_in_the_middle():
    (line, _) = polylines(training_chart(curve_rows([curve_run([2.0, 2.0, 2.0])]), "loss", "Loss"))
    assert {y for _, y in line} == {100.0}
    (below, _) = polylines(training_chart(curve_rows([curve_run([-2.0, -2.0])]), "loss", "Loss"))
    assert {y for _, y in below} == {100.0}
    (zero, _) = polylines(training_chart(curve_rows([curve_run([0.0, 0.0])]), "loss", "Loss"))
    assert {y for _, y in zero} == {190.0}  # the axis does not go below zero


def test_epochs_without_a_value_are_left_out():
    values = [1.0, None, 3.0, float("nan")]
    (line, _) = polylines(training_chart(curve_rows([curve_run(values)]), "loss", "Loss"))
    assert len(line) == 2
    assert training_chart(curve_rows([curve_run([None, float("nan")])]), "loss", "Loss") is None


def test_forest_chart_has_dots_and_rings_with_their_intervals(run_folders):
    ce, csm = aggregate(run_folders)
    svg = forest_chart([ce, csm])
    top = 1.05 * max(each["ece"].high for row in (ce, csm) for each in (row.before, row.after))
    frame = Frame((0, top), (0, 2), height=134, left=14, top=2)
    circles = [(float(c["cx"]), float(c["cy"]), c["class"]) for c in shapes(svg, "circle")]
    expected = []
    for k, (row, y) in enumerate(((ce, 1), (csm, 0))):
        expected.append((frame.x(row.before["ece"].value), frame.y(y + 0.45), f"dot s{k} d0"))
        expected.append((frame.x(row.after["ece"].value), frame.y(y + 0.18), f"ring s{k} d0"))
    assert circles == [(pytest.approx(x, abs=0.01), pytest.approx(y, abs=0.01), style) for x, y, style in expected]
    ranges = [line for line in shapes(svg, "line") if "range" in line["class"]]
    assert [float(ranges[0][key]) for key in ("x1", "x2")] == pytest.approx(
        [frame.x(max(ce.before["ece"].low, 0)), frame.x(ce.before["ece"].high)], abs=0.01
    )
    one_seed = {"ece": Interval(0.1, nan, nan, 1)}
    assert "range" not in forest_chart([replace(ce, before=one_seed, after=one_seed)])
    cut = replace(ce, before={"ece": Interval(0.1, -0.1, 0.3, 2)})
    assert float(next(line for line in shapes(forest_chart([cut]), "line") if "range" in line["class"])["x1"]) == 14


def test_every_axis_has_its_name(series, run_folders):
    rows = aggregate(run_folders)
    detection = Detection("far", 0, *[Interval(0.5, nan, nan, 1)] * 3, np.linspace(0, 1, 101))
    drawn = {
        reliability_chart(series, 0): ["confidence, %", "accuracy, %"],
        confidence_chart(series, 0): ["confidence, %", "images, %"],
        risk_chart([series]): ["the most confident images, %", "wrong among them, %"],
        roc_chart([detection], "far"): ["test images called OOD, %", "OOD images found, %"],
        training_chart(rows, "loss", "Loss"): ["epoch", ""],
        forest_chart(rows): ["ECE, %", ""],
    }
    for svg, names in drawn.items():
        assert re.findall('class="name middle">(.*?)<', str(svg)) == names
    places = re.findall('<text x="18" y="(.*?)" class="row-name">(.*?)<', str(forest_chart(rows)))
    frame = Frame((0, 1), (0, 2), height=134, left=14, top=2)
    assert [(float(y), name) for y, name in places] == [
        (pytest.approx(frame.y(1.72), abs=0.01), "CE"),
        (pytest.approx(frame.y(0.72), abs=0.01), "CSM"),
    ]
