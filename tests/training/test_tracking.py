"""Curves in TensorBoard, with it and without it."""

import json
import sys

import pytest

from semmix.core.runtime import Runtime
from semmix.training.classifier import TrainConfig, train_classifier
from semmix.training.tracking import tensorboard

ROWS = [{"epoch": k, "nimg": 60 * k, "loss": 1 / k} for k in (1, 2, 3)]


def test_runs_do_without_it(tmp_path, toy_data, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    config = TrainConfig(method="ce", classifier="small", epochs=1, batch_size=20)
    out = train_classifier(toy_data, config, tmp_path / "run", runtime=Runtime(device="cpu"))
    assert not (out / "tensorboard").exists()
    assert json.loads((out / "stats.jsonl").read_text())["epoch"] == 1


def test_an_interrupted_curve_is_shown_once(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tensorboard(tmp_path, 0) as track:
        for row in ROWS[:2]:
            track({**row, "loss": 9.0})
    (first,) = tmp_path.iterdir()
    # read in the order of their names, which tell seconds: the second run comes later
    first.rename(tmp_path / "events.out.tfevents.0000000001")
    with tensorboard(tmp_path, 60) as track:  # from a checkpoint after the first row
        for row in ROWS[1:]:
            track(row)
    shown = EventAccumulator(str(tmp_path)).Reload()
    assert shown.Tags()["scalars"] == ["loss"]
    assert [(event.step, event.value) for event in shown.Scalars("loss")] == [
        (60, 9.0),
        (120, pytest.approx(1 / 2)),
        (180, pytest.approx(1 / 3)),
    ]


def test_other_processes_than_the_first_show_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with tensorboard(tmp_path / "events", 0) as track:
        track(ROWS[0])
    assert not (tmp_path / "events").exists()
