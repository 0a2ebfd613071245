"""Which run is shipped, and what is said of it."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from semmix.data import load_dataset
from semmix.fitting.fit import Fitted, best_run, closing_words, is_clear, ship, worth
from semmix.runs import Predictions, Run
from semmix.training.classifier import TrainConfig, train

DEMO = Path(__file__).parents[2] / "results" / "demo"


@pytest.fixture
def make_run(tmp_path):
    """A function that writes what `best_run` reads of a run."""

    def make(method, seed, skill):
        run = tmp_path / f"{method}-{seed}"
        run.mkdir()
        config = {"method": method, "seed": seed, "options": {}}
        inputs = {"dataset": "photos", "config": config}
        manifest = {"kind": "run", "format": 1, "finished": True, "inputs": inputs}
        (run / "config.json").write_text(json.dumps({**manifest, "class_names": list("abcd")}))
        (run / "env.json").write_text("{}")
        labels = torch.arange(200) % 4
        noise = torch.randn(200, 4, generator=torch.Generator().manual_seed(seed))
        logits = 10 * (skill * torch.nn.functional.one_hot(labels, 4) + noise)
        for part in ("val", "test"):
            save_file({"logits": logits, "labels": labels}, run / f"logits-{part}.safetensors")
        return Run.open(run)

    return make


def test_the_better_method_wins_and_within_it_the_better_seed(make_run):
    """Not the single best run: its method may have been lucky once."""
    lucky = [make_run("ce", 0, 3.0), make_run("ce", 1, 0.5)]
    steady = [make_run("csm", 2, 2.5), make_run("csm", 3, 2.9)]
    run, why = best_run([*lucky, *steady])
    assert run == steady[1]
    assert why == "the best on the validation images"


def test_the_plain_method_stays_unless_another_is_better_beyond_chance(make_run):
    """Of two that hardly differ, the one that is named first; the other may be luck, or harm."""
    plain, lucky, better = (make_run("ce", 2, 2.0), make_run("csm", 4, 2.0), make_run("mixup", 5, 3.0))
    no_other = "on the validation images no other is better beyond chance"
    assert best_run([plain, lucky]) == (plain, no_other)
    assert best_run([lucky, plain]) == (lucky, "the best on the validation images")
    assert best_run([plain]) == (plain, "the only one trained")
    assert best_run([plain, lucky, better])[0] == better
    gains = np.array([0.3, -0.1, 0.2, 0.0])
    assert is_clear(gains)
    assert not is_clear(gains - 0.05)
    assert not is_clear(np.zeros(4))


def test_a_method_that_was_trained_more_often_is_not_the_worse_for_it(make_run):
    """Means over seeds are compared, whatever the number of seeds."""
    plain = [make_run("ce", seed, 2.5) for seed in range(3)]
    assert best_run([*plain, make_run("csm", 3, 1.5)])[0] in plain
    assert best_run([make_run("ls", 4, 1.5), *plain])[0] in plain


def test_one_that_is_clearly_better_is_shipped_though_luck_had_another_ahead(make_run):
    plain, lucky, steady = (
        make_run("ce", 2, 2.0),
        make_run("csm", 4, 2.05),
        make_run("mixup", 2, 2.02),  # the same answers, each a little better
    )
    no_other = "on the validation images no other is better beyond chance"
    assert best_run([plain, lucky, steady]) == (steady, no_other)


def test_a_model_is_made_again_when_onnx_comes_or_goes(monkeypatch, tmp_path):
    data = load_dataset("digits", train_size=50)
    config = TrainConfig(method="ce", classifier="small", epochs=1, batch_size=50, pad=0)
    run = train(data, config, tmp_path / "run")
    for onnx in (False, True, False):
        monkeypatch.setattr(sys.modules[ship.__module__], "can_write_onnx", lambda onnx=onnx: onnx)
        model = ship(run, tmp_path / "model")
        assert (model / "model.onnx").exists() == onnx
        (model / "link").symlink_to(run.folder)  # no part of it, and goes like the rest
    made = (model / "model.json").stat().st_mtime_ns
    assert (ship(run, model) / "model.json").stat().st_mtime_ns == made


def test_a_temperature_that_could_not_be_fitted_is_not_claimed(make_run):
    unfitted = "no validation image was wrong: the temperature could not be fitted"
    assert not any(unfitted in line for line in closing_words(make_run("ce", 0, 1.0), ""))
    assert any(unfitted in line for line in closing_words(make_run("ce", 1, 9.0), ""))


def answers(accuracy, confidence, num=400, num_classes=2):
    labels = np.arange(num) % num_classes
    right = np.arange(num) < accuracy * num
    predicted = np.where(right, labels, (labels + 1) % num_classes)
    probs = np.full((num, num_classes), (1 - confidence) / (num_classes - 1))
    probs[np.arange(num), predicted] = confidence
    return Predictions(probs, labels)


def test_words_of_a_sound_model():
    words = worth(answers(0.95, 0.94), ["cat", "dog"])
    assert words == [
        "on 400 test images its mean confidence is 94.0\xa0%, and it is right on 95.0\xa0%",
        "where its confidence is at least 90% (400 images), it is right on 95.0\xa0%",
        "its confidence is never below 60%",
    ]


def test_high_begins_at_ninety_per_cent_and_low_ends_below_sixty():
    assert "at least 90% (400 images)" in worth(answers(0.95, 0.9), ["cat", "dog"])[1]
    assert worth(answers(0.9, 0.6), ["cat", "dog"])[-1] == "its confidence is never below 60%"


@pytest.mark.parametrize(("accuracy", "warned"), [(0.82, True), (0.85, False)])
def test_the_same_answer_always_is_the_most_frequent_within_two_standard_errors(accuracy, warned):
    """Of 400 images 320 are dogs: 2 standard errors are 3.8 and 3.6 per cent."""
    right = np.arange(400) < accuracy * 400
    labels = np.where(np.arange(400) < 80, 0, 1)
    predicted = np.where(right, labels, 1 - labels)
    said = "\n".join(worth(Predictions(np.eye(2)[predicted], labels), ["cat", "\x1b[1mdog"]))
    assert ("do not rely on it" in said) == warned
    assert ("always saying ?[1mdog would be right on 80.0\xa0%" in said) == warned


def test_the_closing_words_name_the_model_and_why(make_run):
    for method, name in (("ce", "CE"), ("csm", "CSM"), ("their_own", "their_own")):
        first, *rest = closing_words(make_run(method, 3, 1.0), "the only one trained")
        assert first == f"the model is {name}, seed 3: the only one trained"
        assert rest[0].startswith("on 200 test images its mean confidence is ")


def test_parts_that_exist_are_counted_and_others_said_to_be_missing():
    sure, unsure = answers(0.9, 0.95, num=30), answers(0.6, 0.55, num=10)
    both = Predictions(np.concatenate([sure.probs, unsure.probs]), np.concatenate([sure.labels, unsure.labels]))
    *_, high, low = worth(both, ["cat", "dog"])
    assert high == "where its confidence is at least 90% (30 images), it is right on 90.0\xa0%"
    assert low == "where its confidence is below 60% (10 images), it is right on 60.0\xa0%"
    assert worth(unsure, ["cat", "dog"])[-2] == "its confidence is never at least 90%"


def test_a_model_that_has_learned_nothing_is_not_praised():
    words = "\n".join(worth(answers(0.52, 0.7), ["cat", "dog"]))
    assert "always saying cat would be right on 50.0\xa0%: do not rely on it" in words


def test_what_came_of_fit_shows_itself():
    runs = tuple(Run.open(DEMO / name) for name in ("ce-0", "ce-1", "csm-0"))
    summary = ("the model is CSM, seed 0: <the best>",)
    fitted = Fitted(Path("out"), Path("out/report.html"), runs, runs[2], summary, warnings=("rare: a & b",))
    assert repr(fitted) == f"Fitted('out': 3 runs, model from {runs[2]!r})"
    shown = fitted._repr_html_()
    assert "<ul><li>the model is CSM, seed 0: &lt;the best&gt;</li><li>rare: a &amp; b</li></ul>" in shown
    assert shown.endswith("<p>out/report.html</p>")
    assert shown.count("<tr") == 3  # the headings, CE, CSM
    assert (fitted.findings, fitted.device) == ((), "auto")
