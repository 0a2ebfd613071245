"""The engine under both loops: what a stopped run leaves and takes up again."""

import json
import math
import signal
import sys
import threading

import pytest
import torch

from semmix import SemmixError
from semmix.core.runtime import Runtime
from semmix.training import engine
from semmix.training.classifier import TrainConfig, train
from semmix.training.engine import (
    append_stats,
    claim,
    copy_in_place,
    ctrl_c_between_steps,
    load_checkpoint,
    load_optimizer,
    optimizer_tensors,
    rewind_stats,
    save_checkpoint,
    tensorboard,
    unchanged,
)


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


def test_tensors_are_restored_where_they_are():
    here = {"weights": {"a": torch.ones(2)}, "best": {}}
    place = here["weights"]["a"]
    with unchanged(here):
        place.add_(5)
    assert place.tolist() == [1, 1]
    copy_in_place(here, {"weights": {"a": torch.zeros(2)}, "best": {"b": torch.ones(1)}})
    assert here["weights"]["a"] is place
    assert place.tolist() == [0, 0]
    assert here["best"]["b"].tolist() == [1]  # one that was not there yet


@pytest.mark.parametrize("content", [b"", b"no tensors"])
def test_a_damaged_checkpoint_is_named(tmp_path, content):
    (tmp_path / "checkpoint.safetensors").write_bytes(content)
    with pytest.raises(SemmixError, match=r"cannot read checkpoint .*checkpoint\.safetensors.*\n.*delete it"):
        load_checkpoint(tmp_path / "checkpoint.safetensors")


def test_an_optimizers_memory_comes_back(tmp_path):
    """A group without tensors leaves no trace in the file, and is empty when it is read."""
    weight = torch.nn.Parameter(torch.ones(3))
    adam = torch.optim.Adam([weight], 0.1)
    weight.grad = torch.tensor([1.0, 2.0, 3.0])
    adam.step()
    groups = {"optimizer": optimizer_tensors(adam), "method": {}, "network": {"a/b/c": torch.ones(1)}}
    save_checkpoint(tmp_path / "c", groups, {"step": 7})
    groups, header = load_checkpoint(tmp_path / "c")
    assert header == {"step": 7}
    assert groups["method"] == {}
    assert list(groups["network"]) == ["a/b/c"]
    again = torch.optim.Adam([weight], 0.1)
    load_optimizer(again, groups["optimizer"])
    for name, value in adam.state[weight].items():
        assert torch.equal(again.state[weight][name], value), name


def engine_in(folder, inputs=None, seconds=1e9):
    return claim(folder, "run.json", "test", inputs or {}, Runtime(checkpoint_seconds=seconds), 0, 1)


def count_to(folder, last, seconds=1e9, stop_at=None):
    """Count the steps of a run, whose only state is their sum; return the steps done."""
    done, total, weight = [], torch.zeros(()), torch.nn.Parameter(torch.zeros(()))
    with engine_in(folder, seconds=seconds) as run:
        assert run is not None
        run.resume({"count": {"total": total}}, torch.optim.SGD([weight]), finite=("count",))
        for step in run.steps("count", last, 10):
            total += step
            done.append(step)
            run.record({"nimg": 10 * (step + 1), "total": float(total)}, f"total {float(total):g}")
            if step == stop_at:
                signal.raise_signal(signal.SIGINT)
        run.artifact.finish(total=float(total))
    return done


def test_a_stopped_run_goes_on_after_its_last_step(tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt):
        count_to(tmp_path, 6, stop_at=3)
    assert (tmp_path / "checkpoint.safetensors").exists()
    capsys.readouterr()
    assert count_to(tmp_path, 6) == [4, 5]
    assert capsys.readouterr().out.startswith("count: 60/60  took")
    assert not (tmp_path / "checkpoint.safetensors").exists()
    rows = [json.loads(line) for line in (tmp_path / "stats.jsonl").read_text().splitlines()]
    assert [row["total"] for row in rows] == [0, 1, 3, 6, 10, 15]
    assert json.loads((tmp_path / "run.json").read_text())["total"] == 15
    with engine_in(tmp_path) as run:
        assert run is None


def test_the_last_note_is_shown(tmp_path, capsys):
    count_to(tmp_path, 3)
    assert capsys.readouterr().out.endswith("total 3\n")
    assert not (tmp_path / "tensorboard").exists()  # curves are for those who ask


@pytest.mark.parametrize(("seconds", "saved"), [(0, [1, 2, 3]), (1e9, [])])
def test_checkpoints_are_saved_when_they_are_due(tmp_path, monkeypatch, seconds, saved):
    steps = []

    def watched(path, groups, header, save=engine.save_checkpoint):
        steps.append(header["step"])
        save(path, groups, header)

    monkeypatch.setattr(engine, "save_checkpoint", watched)
    count_to(tmp_path, 3, seconds)
    assert steps == saved


def test_checkpoints_are_as_far_apart_as_asked_for(tmp_path, monkeypatch):
    """Steps of one second, by a clock that only they move."""
    clock, steps = [100.0], []
    monkeypatch.setattr(engine.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(engine, "save_checkpoint", lambda path, groups, header: steps.append(header["step"]))
    with engine_in(tmp_path, seconds=3) as run:
        run.resume({"count": {}}, torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))]))
        for _ in run.steps("count", 8, 1):
            clock[0] += 1
    assert steps == [3, 6]


def test_the_first_value_that_is_not_finite_is_named(tmp_path):
    with engine_in(tmp_path) as run:
        values = torch.tensor([[1.0, 2.0], [math.inf, math.nan]])
        with pytest.raises(SemmixError, match=r"^training diverged: .* not finite: inf\n.*lower --lr"):
            run.finite(values)
        assert run.finite(values[:1]) is not None
        assert run.finite(values[:1]).tolist() == [[1, 2]]


def test_what_is_not_finite_is_not_saved(tmp_path):
    weight = torch.nn.Parameter(torch.zeros(()))
    bad = torch.tensor([1.0, math.nan])
    with (
        pytest.raises(SemmixError, match=r"not finite: nan\n.*another folder than"),
        engine_in(tmp_path, seconds=0) as run,
    ):
        assert run is not None
        run.resume({"count": {"bad": bad}}, torch.optim.SGD([weight]), finite=("count",))
        for _ in run.steps("count", 2, 1):
            pass
    assert not (tmp_path / "checkpoint.safetensors").exists()


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
