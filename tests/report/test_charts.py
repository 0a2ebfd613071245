"""What charts draw equals plain loops over the predictions."""

import math

import numpy as np
import pytest
from scipy import stats

from semmix.report.breakdown import class_lines, pair_lines
from semmix.report.charts import (
    COVERAGES,
    Bin,
    Series,
    confidence_chart,
    reliability_chart,
    risk_chart,
    training_chart,
    verdict,
)
from semmix.report.rows import aggregate
from semmix.report.svg import Frame, round_ticks, series_style, spread, tag
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


def test_bars_reach_as_high_as_the_accuracy(series):
    svg = str(reliability_chart(series, k=1))
    frame = Frame((0, 1), (0, 1), height=330)
    height = frame.y(0) - frame.y(series.bins[-1].accuracy)
    assert f'height="{height:.2f}"'.rstrip('0"') in svg
    assert svg.count('class="whisker"') == len(series.bins)


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


def test_training_chart_draws_runs_and_mean(run_folders):
    rows = aggregate(run_folders)
    svg = str(training_chart(rows, "val_nll", "NLL"))
    assert svg.count("line thin s0") == 3
    assert svg.count("<polyline") == 8  # two rows: three runs and a mean
    assert training_chart(rows, "val_unknown", "nothing") is None


def test_tag_escapes_values_and_children():
    assert str(tag("a", "<b>", title='"x"')) == '<a title="&#34;x&#34;">&lt;b&gt;</a>'


@pytest.mark.parametrize(
    ("low", "high", "labels"), [(0, 1, "0 0.2 0.4 0.6 0.8 1"), (0, 37, "0 10 20 30"), (-0.3, 0.3, "-0.2 0 0.2")]
)
def test_ticks_are_round(low, high, labels):
    assert [label for _, label in round_ticks(low, high)] == labels.split()


def test_spread_keeps_both_ends():
    assert spread(1000, 5) == [0, 250, 500, 749, 999]
    assert spread(3, 5) == [0, 1, 2]
    assert spread(0, 5) == []
