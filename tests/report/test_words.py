"""Sentences say no more than the numbers do."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from semmix.calibration import Interval, ece_of_chance
from semmix.report.rows import Row, percent
from semmix.report.words import chance, compare, headline


def about(value, half_width, num=3):
    """Return an interval of this half width around the value."""
    return Interval(value, value - half_width, value + half_width, num)


BASELINE = Row(
    name="CE",
    runs=(),
    before={"ece": about(0.032, 0.004, 3)},
    after={"ece": about(0.010, 0.001, 3)},
    temperature=about(2, 0.1, 3),
    baseline=None,
    pairs=(),
    change_before={},
    change_after={},
)


def run(before, after):
    """Return a run that has these ECEs, and nothing else."""
    stages = {"before": before, "after": after}
    return SimpleNamespace(**{k: SimpleNamespace(metrics={"ece": v}) for k, v in stages.items()})


def row(ece, change, accuracy=(0.0, 0.001, 3)):
    """Return a row with this ECE, compared with CE's 3.2 %."""
    pairs = ((run(ece, ece), run(0.032, 0.010)),)
    changes = {"ece": about(*change), "acc": about(*accuracy)}
    values = {"ece": about(ece, 0.001, 3)}
    return Row("CSM", (), values, values, about(1, 0.1, 3), BASELINE, pairs, changes, changes)


def plain(text):
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_clearly_better_at_the_same_accuracy():
    assert plain(compare(row(0.0152, (-0.0168, 0.004, 3)))) == (
        "CSM is 2.1 times better calibrated than CE at the same accuracy (ECE 1.5 % against 3.2 %, 3 seeds)."
    )


@pytest.mark.parametrize(
    ("accuracy", "words"),
    [
        ((0.012, 0.002, 3), "and 1.2 points more accurate"),
        ((-0.012, 0.002, 3), "but 1.2 points less accurate"),
        ((0.25, 0.002, 3), "and 25.0 points more accurate"),
        ((0.001, 0.02, 3), "with no clear difference in accuracy"),
        ((-0.001, 0.004, 3), "at the same accuracy"),
        ((-0.001, 0.0041, 3), "with no clear difference in accuracy"),
    ],
)
def test_accuracy_is_named_as_it_is(accuracy, words):
    assert words in compare(row(0.0152, (-0.0168, 0.004, 3), accuracy))


def test_clearly_worse():
    text = plain(compare(row(0.064, (0.032, 0.004, 3))))
    assert text.startswith("CSM is 2.0 times worse calibrated than CE")


def test_a_small_but_clear_gain_is_not_blown_up():
    assert "slightly better" in compare(row(0.0315, (-0.0005, 0.0001, 3)))
    assert "1.2 times better" in compare(row(0.0275, (-0.0045, 0.0001, 3)))


def test_an_interval_over_zero_is_no_clear_difference():
    assert plain(compare(row(0.0152, (-0.0168, 0.02, 3)))) == (
        "CSM shows no clear difference in calibration from CE (ECE 1.5 % against 3.2 %; "
        "difference −1.68 points, interval −3.68 to +0.32; 3 seeds)."
    )


def test_one_seed_may_be_chance():
    assert "may be chance" in compare(row(0.0152, (-0.0168, float("nan"), 1)))


def test_no_shared_seed_is_said():
    alone = replace(row(0.0152, (-0.0168, 0.004, 3)), change_before={})
    assert "share no seed" in compare(alone)


def test_scaled_sentence_uses_scaled_numbers():
    text = plain(compare(row(0.0152, (0.0052, 0.001, 3)), "after"))
    assert "worse" in text
    assert "against 1.0 %" in text


def test_means_are_those_of_the_pairs():
    """Seeds that only one of the rows has change no word."""
    pairs = tuple((run(mine, 1), run(theirs, 1)) for mine, theirs in ((0.010, 0.020), (0.012, 0.024)))
    shared = replace(row(0.5, (-0.011, 0.002, 2)), pairs=pairs)
    assert plain(compare(shared)) == (
        "CSM is 2.0 times better calibrated than CE at the same accuracy (ECE 1.1 % against 2.2 %, 2 seeds)."
    )


def test_headline_takes_the_lowest_error_and_admits_a_winning_baseline():
    good, bad = row(0.0152, (-0.0168, 0.004, 3)), row(0.05, (0.018, 0.004, 3))
    assert headline([BASELINE, good]) == compare(good)
    assert headline([BASELINE, bad, good]) == f"Lowest ECE of 3 rows: {compare(good)}"
    assert plain(headline([BASELINE, bad])) == ("No method here is better calibrated than CE (ECE 3.2 %, one seed).")


def test_headline_of_a_row_alone_compares_nothing():
    alone = replace(BASELINE, runs=(run(0.032, 0.01),))
    assert plain(headline([alone])) == "CE: ECE 3.2 %, one seed."
    twice = replace(BASELINE, runs=(run(0.032, 0.01),) * 2)
    assert plain(headline([twice])) == "CE: ECE 3.2 %, 2 seeds."


def test_chance_is_the_mean_over_the_seeds_of_the_best_row():
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 200)
    probs = [random.dirichlet(np.full(3, a), 200) for a in (0.1, 3.0)]
    runs = [SimpleNamespace(before=SimpleNamespace(probs=p, labels=labels)) for p in probs]
    value = sum(ece_of_chance(p, labels) for p in probs) / 2
    assert percent(value) not in {percent(ece_of_chance(p, labels)) for p in probs}
    best = replace(row(0.0152, (-0.0168, 0.004, 3)), runs=tuple(runs))
    text = chance([BASELINE, best])
    assert "With 200 test images, even a perfectly calibrated CSM would" in text
    assert text.endswith(f"an ECE near {percent(value)}.")
