"""The engine under both loops: what a stopped run leaves and takes up again."""

import json
import signal
import sys
import threading

import pytest

from semmix.core.runtime import Runtime
from semmix.training.classifier import TrainConfig, train
from semmix.training.engine import append_stats, ctrl_c_between_steps, rewind_stats, tensorboard


def test_lines_after_the_checkpoint_and_half_lines_are_forgotten(tmp_path):
    path = tmp_path / "stats.jsonl"
    rewind_stats(path, 0)  # before the first line there is no file
    assert not path.exists()
    for nimg in (60, 120, 180):
        append_stats(path, {"nimg": nimg, "loss": 1 / nimg})
    lines = path.read_text().splitlines(keepends=True)
    rewind_stats(path, 179)
    assert path.read_text() == "".join(lines[:2])
    path.write_text("".join(lines)[:-1])  # killed while it was written
    rewind_stats(path, 180)
    assert path.read_text() == "".join(lines[:2])
    rewind_stats(path, 120)
    assert path.read_text() == "".join(lines[:2])
    rewind_stats(path, 0)
    assert path.read_text() == ""


ROWS = [{"epoch": k, "nimg": 60 * k, "loss": 1 / k} for k in (1, 2, 3)]


def test_runs_do_without_it(tmp_path, toy_data, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    config = TrainConfig(method="ce", classifier="small", epochs=1, batch_size=20)
    out = train(toy_data, config, tmp_path / "run", runtime=Runtime(device="cpu")).folder
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


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def test_the_step_is_finished_first():
    done = []
    with pytest.raises(KeyboardInterrupt), ctrl_c_between_steps() as stop_wanted:
        assert not stop_wanted()
        press_ctrl_c()
        done.append("the rest of the step")
        assert stop_wanted()
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_one_stops_at_once():
    with pytest.raises(KeyboardInterrupt), ctrl_c_between_steps():
        press_ctrl_c()
        press_ctrl_c()
        pytest.fail("still running")


def test_other_errors_pass_through():
    with pytest.raises(ZeroDivisionError), ctrl_c_between_steps():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_several_processes_stop_at_once():
    with pytest.raises(KeyboardInterrupt), ctrl_c_between_steps(world_size=2):
        press_ctrl_c()
        pytest.fail("still running")


def test_someone_elses_handler_stays():
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append("Ctrl-C"))
    try:
        with ctrl_c_between_steps() as stop_wanted:
            press_ctrl_c()
            assert not stop_wanted()
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == ["Ctrl-C"]


def test_other_threads_train_without_it():
    answers = []

    def work() -> None:
        with ctrl_c_between_steps() as stop_wanted:
            answers.append(stop_wanted())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert answers == [False]
