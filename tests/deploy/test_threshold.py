"""The threshold: least cost on validation, judged on test, said plainly."""

import itertools
import json
import math
import re

import numpy as np
import pytest

from semmix import SemmixError
from semmix.calibration import Interval, TemperatureScaler, TopLabel, top_label
from semmix.cli.main import main
from semmix.deploy.rules import estimate_mean
from semmix.deploy.threshold import Costs, _words, best_threshold, judge, judge_policies, show_threshold


def honest(num: int, seed: int) -> TopLabel:
    """Answers that are right exactly as often as they say."""
    random = np.random.default_rng(seed)
    confidence = random.uniform(0.2, 1.0, num)
    return TopLabel(confidence, (random.random(num) < confidence).astype(float))


def cost_at(top: TopLabel, costs: Costs, threshold: float) -> float:
    answered = top.confidence >= threshold
    return float(np.where(answered, costs.wrong * (1 - top.correct), costs.ask).mean())


def test_it_is_the_least_cost_of_all_thresholds():
    costs = Costs(wrong=10, ask=2)
    for seed in range(20):
        val = honest(60, seed)
        val.confidence[::7] = 0.8  # ties are answered together
        tried = [*val.confidence, 0.0, math.inf]
        best = best_threshold(val, costs)
        least = min(cost_at(val, costs, t) for t in tried)
        assert cost_at(val, costs, best) == pytest.approx(least)


def test_it_lies_halfway_between_the_last_answered_and_the_next():
    val = TopLabel(np.array([0.7, 0.9, 0.6, 0.8]), np.array([0.0, 1.0, 0.0, 1.0]))
    assert best_threshold(val, Costs(wrong=10, ask=1)) == pytest.approx(0.75)
    sure = TopLabel(np.array([0.7, 0.9, 0.8]), np.array([0.0, 1.0, 1.0]))
    assert best_threshold(sure, Costs(wrong=10, ask=1)) == pytest.approx(0.75)


def test_with_honest_confidences_it_is_where_error_and_question_cost_the_same():
    assert best_threshold(honest(200_000, 0), Costs(wrong=10, ask=2)) == pytest.approx(0.8, abs=0.03)


def test_extreme_costs_answer_or_ask_always():
    val = honest(500, 1)
    assert best_threshold(val, Costs(wrong=1, ask=5)) == 0
    wrong = TopLabel(val.confidence, np.zeros(500))
    assert best_threshold(wrong, Costs(wrong=10, ask=1)) == math.inf


def test_policies_are_measured_on_test():
    costs, test = Costs(wrong=10, ask=1), honest(4000, 2)
    chosen, ideal, answer, ask = judge_policies(test, costs, 0.7)
    answered = test.confidence >= 0.7
    assert chosen.coverage.value == pytest.approx(answered.mean())
    assert chosen.error.value == pytest.approx(1 - test.correct[answered].mean())
    assert chosen.cost.value == pytest.approx(cost_at(test, costs, 0.7))
    assert ideal.threshold == pytest.approx(0.9)
    assert (answer.threshold, ask.threshold) == (0, math.inf)
    assert answer.cost.value == pytest.approx(10 * (1 - test.correct).mean())
    assert ask.cost == Interval(1.0, 1.0, 1.0, num=4000)
    assert math.isnan(ask.error.value)
    # Savings count against the cheaper of the two simple policies: here, asking.
    assert ask.saving.value == pytest.approx(0)
    assert ideal.saving.low > 0
    assert chosen.saving.value == pytest.approx(1 - chosen.cost.value)


def test_intervals_hold_the_truth_as_often_as_they_should():
    held = 0
    for seed in range(60):
        values = np.random.default_rng(seed).random(200) < 0.3
        interval = estimate_mean(values)
        held += interval.low <= 0.3 <= interval.high
    assert held >= 52


def test_an_empty_threshold_has_no_error_rate():
    policy = judge(honest(50, 3), Costs(wrong=2, ask=1), "none", 1.5)
    assert policy.coverage.value == 0
    assert math.isnan(policy.error.value)


def test_a_confidence_at_the_threshold_is_answered_as_predict_does():
    test = TopLabel(np.array([0.5, 0.7, 0.9]), np.ones(3))
    policy = judge(test, Costs(wrong=2, ask=1), "chosen", 0.7)
    assert policy.coverage.value == pytest.approx(2 / 3)


def test_no_share_is_above_one():
    """Nearly all answered, nearly all wrong: the intervals would reach beyond."""
    test = TopLabel(np.where(np.arange(40) > 0, 0.9, 0.1), np.where(np.arange(40) > 1, 0.0, 1.0))
    policy = judge(test, Costs(wrong=2, ask=1), "most", 0.5)
    assert policy.coverage.high == policy.error.high == 1


@pytest.mark.parametrize(
    ("threshold", "shown"),
    [
        (0.85994, "0.8599"),
        (0.0, "0.0000"),
        (0.9, "0.9000"),  # that of an image: it is answered, and shown so
        (0.9995876, "0.99959"),  # 0.9996 would leave out the last image
        (0.99995, "0.99995"),
        (0.9999999, "0.9999999"),
        (math.inf, "never"),
    ],
)
def test_thresholds_are_shown_in_as_many_digits_as_they_need(threshold, shown):
    confidence = np.array([0.3, 0.9, 0.999592])
    assert show_threshold(confidence, threshold) == shown


def test_a_threshold_shown_answers_the_same_images():
    random = np.random.default_rng(0)
    confidence = 1 - 10.0 ** -random.uniform(0, 12, 500)
    for low, high in itertools.pairwise(np.sort(confidence)):
        shown = float(show_threshold(confidence, (low + high) / 2))
        assert low < shown <= high


@pytest.mark.parametrize(("wrong", "ask"), [(0, 1), (-1, 1), (1, 0), (math.inf, 1), (1, math.inf), (1, math.nan)])
def test_impossible_costs_are_refused(wrong, ask):
    with pytest.raises(SemmixError, match="positive"):
        Costs(wrong=wrong, ask=ask)


def test_command_on_a_run(capsys, run, tmp_path):
    out = tmp_path / "choice.json"
    words = ["choose", str(run), "--cost-wrong", "10", "--cost-ask", "1", "--out", str(out)]
    assert main(words) == 0
    said = capsys.readouterr().out
    value = json.loads(out.read_text())
    chosen, ideal, answer, ask = value["policies"]
    (level,) = re.findall(r"--abstain (\S+)", said)
    assert float(level) == pytest.approx(chosen["threshold"], abs=1e-4)
    assert "always ask" in said
    assert ideal["threshold"] == pytest.approx(0.9)
    assert chosen["cost"]["value"] < min(answer["cost"]["value"], ask["cost"]["value"])
    assert ask["threshold"] is None
    assert ask["error"]["value"] is None


def test_command_on_logits_from_elsewhere(capsys, tmp_path):
    random = np.random.default_rng(0)
    logits, labels = random.normal(size=(300, 3)), random.integers(0, 3, 300)
    np.savez(tmp_path / "test.npz", logits=logits, labels=labels)
    words = ["choose", str(tmp_path / "test.npz"), "--cost-wrong", "10", "--cost-ask", "1"]
    assert main(words) == 1
    assert "chosen on validation images" in capsys.readouterr().err
    np.savez(tmp_path / "val.npz", logits=logits + 0.1, labels=labels[::-1])
    assert main([*words, "--val", str(tmp_path / "val.npz")]) == 0
    assert "always asking is cheapest" in capsys.readouterr().out


def test_what_is_said_of_very_sure_networks_can_be_used(capsys, tmp_path):
    """Most confidences would round to 1: each threshold said answers what its figures count."""
    random = np.random.default_rng(1)
    parts = {}
    for name in ("val", "test"):
        margins = random.uniform(0, 12, 2000)
        labels = (random.random(2000) > 1 / (1 + np.exp(-margins))).astype(int)
        parts[name] = np.stack([margins, np.zeros(2000)], 1), labels
        np.savez(tmp_path / f"{name}.npz", logits=parts[name][0], labels=labels)
    files = [tmp_path / name for name in ("test.npz", "val.npz", "choice.json")]
    words = ["choose", files[0], "--val", files[1], "--out", files[2]]
    assert main([*map(str, words), "--cost-wrong", "30000", "--cost-ask", "1"]) == 0
    said = capsys.readouterr().out
    chosen, ideal, *_ = json.loads(files[2].read_text())["policies"]
    scaled = TemperatureScaler().fit(*parts["val"]).transform(parts["test"][0])
    confidence = top_label(scaled, parts["test"][1]).confidence
    for before, policy in (("--abstain ", chosen), ("1/30000 = ", ideal)):
        (level,) = re.findall(rf"{before}(0\.\d+)", said)
        assert np.mean(confidence >= float(level)) == pytest.approx(policy["coverage"]["value"])
    assert f"{level} is safer" in said


def choose(capsys, tmp_path, num_wrong, *costs):
    """What is said where so many of 60 validation answers are wrong, the least sure ones."""
    margins = np.linspace(1, 4, 60)
    logits = np.stack([margins, np.zeros(60)], 1)
    labels = (np.arange(60) < num_wrong).astype(int)
    np.savez(tmp_path / "val.npz", logits=logits, labels=labels)
    np.savez(tmp_path / "test.npz", logits=logits + 0.01, labels=labels)
    words = ["choose", tmp_path / "test.npz", "--val", tmp_path / "val.npz"]
    assert main([*map(str, words), "--cost-wrong", costs[0], "--cost-ask", costs[1]]) == 0
    return capsys.readouterr().out


def test_answering_always_because_nothing_was_wrong_is_called_chance(capsys, tmp_path):
    said = choose(capsys, tmp_path, 0, "10", "1")
    assert "no validation prediction was wrong: the temperature could not be fitted" in said
    assert "always accepting is cheapest" in said
    assert "warning: none of the validation predictions from there on were wrong" in said
    assert "0.9000 is safer" in said


def test_answering_always_because_questions_are_dear_is_not(capsys, tmp_path):
    said = choose(capsys, tmp_path, 0, "1", "5")
    assert "always accepting is cheapest" in said
    assert "is safer" not in said


def test_what_was_chosen_is_not_called_safer_than_itself(capsys, tmp_path):
    said = choose(capsys, tmp_path, 20, "2", "1")
    assert "= 0.5000: the closer" in said
    assert "too few to choose by; more validation images are better" in said


def test_a_gain_within_the_interval_is_not_clear():
    """Right and wrong as often above the threshold as below: what is accepted costs as much as it saves."""
    val = TopLabel(np.r_[np.full(100, 0.9), np.full(100, 0.4)], np.r_[np.ones(100), np.zeros(100)])
    test, costs = TopLabel(val.confidence, np.arange(200) % 2.0), Costs(wrong=2, ask=1)
    words = "\n".join(_words(judge_policies(test, costs, best_threshold(val, costs)), costs, val, str))
    assert "Whether it saves anything is not clear: 0.0000 [-0." in words
    assert "It saves" not in words


@pytest.mark.parametrize(("num_wrong", "few"), [(4, "only 4 of the validation"), (5, "")])
def test_fewer_than_five_errors_above_the_threshold_are_too_few(num_wrong, few):
    confidence = np.r_[np.full(100, 0.9), np.full(100, 0.4)]
    correct = np.r_[np.ones(100 - num_wrong), np.zeros(num_wrong), np.zeros(100)]
    val, costs = TopLabel(confidence, correct), Costs(wrong=4, ask=1)
    policies = judge_policies(val, costs, best_threshold(val, costs))
    assert policies[0].threshold == pytest.approx(0.65)
    words = "\n".join(_words(policies, costs, val, "{:.2f}".format))
    assert ("too few to choose" in words) is bool(few)
    assert few in words
    assert "Accept predictions from confidence 0.65 on: semmix predict MODEL IMAGES --abstain 0.65" in words
    assert f"It accepts 50.0 % of the predictions, of which {num_wrong:.2f} % are wrong" in words
    assert f"; of all, {50 + num_wrong / 2:.2f} % are." in words
    assert "the threshold would be 1 - 1/4 = 0.75" in words
    assert "It saves 0." in words
    assert "it loses" not in words


def test_a_threshold_that_loses_on_test_images_says_so():
    """On validation the confident half is right, on test it is wrong."""
    confidence = np.r_[np.full(100, 0.9), np.full(100, 0.4)]
    val = TopLabel(confidence, np.r_[np.ones(100), np.zeros(100)])
    test, costs = TopLabel(confidence, np.r_[np.zeros(100), np.ones(100)]), Costs(wrong=4, ask=1)
    words = "\n".join(_words(judge_policies(test, costs, best_threshold(val, costs)), costs, val, str))
    assert re.search(r"It saves -\d.*, that is, it loses\.", words)
