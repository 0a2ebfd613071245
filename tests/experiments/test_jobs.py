"""Runs in several processes; that they are the same runs is tested in test_making.py."""

import multiprocessing
import os
import shutil
import time
from dataclasses import replace

import pytest

from semmix import SemmixError
from semmix.core.runtime import Runtime
from semmix.experiments.making import TableConfig, chosen_cells, run_missing
from semmix.experiments.results import PROXIMITY, RunFolder
from semmix.experiments.running import Task, _in_processes, plain_cell, plan_tasks, run_together


def test_errors_of_a_process_reach_the_user_whole(tmp_path):
    cells = chosen_cells(TableConfig(name="main", dataset="digits", methods=("ce",), budget="smoke"))
    with pytest.raises(SemmixError, match="unknown device") as caught:
        run_together([(cell, 0) for cell in cells], tmp_path, 2, runtime=Runtime(device="tpu9"))
    assert "use auto, cpu, cuda" in caught.value.fix


def test_an_error_stops_the_others_at_once():
    start = time.monotonic()
    with pytest.raises(ValueError, match="non-negative"):
        _in_processes({"long": Task(time.sleep, (120,)), "wrong": Task(time.sleep, (-1,))}, 2)
    while multiprocessing.active_children() and time.monotonic() - start < 100:
        time.sleep(0.1)  # two threads wait for a process, and one learns later that it ended
    assert time.monotonic() - start < 100
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("num_jobs", [1, 3])
def test_a_task_waits_for_those_it_names(num_jobs, tmp_path):
    """A folder can only be made inside one that is there."""
    outer, middle, inner = tmp_path / "1", tmp_path / "1/2", tmp_path / "1/2/3"
    tasks = {
        "inner": Task(os.mkdir, (inner,), ("middle",)),
        "middle": Task(os.mkdir, (middle,), ("outer",)),
        "other": Task(os.mkdir, (tmp_path / "other",)),
        "outer": Task(os.mkdir, (outer,)),
    }
    _in_processes(tasks, num_jobs)
    assert inner.is_dir()
    assert (tmp_path / "other").is_dir()


def test_tasks_that_wait_for_each_other_are_refused():
    with pytest.raises(AssertionError, match="each waits for another: \\['egg', 'hen'\\]"):
        _in_processes({"egg": Task(print, (), ("hen",)), "hen": Task(print, (), ("egg",))}, num_jobs=1)


def planned(table, tmp_path, **more):
    config = TableConfig(name=table, dataset="digits", device="cpu", seeds=2, **more)
    runs = [(cell, seed) for seed in range(2) for cell in chosen_cells(config)]
    return runs, plan_tasks(runs, tmp_path)


def test_only_runs_on_mixed_sets_wait_for_them(tmp_path):
    runs, tasks = planned("headline", tmp_path)
    for cell, seed in runs:
        after = tasks[cell.run_name(seed)].after
        assert bool(after) == (cell.train.method == "csm")
    kinds = [key[0] if isinstance(key, tuple) else "run" for key in tasks]
    assert kinds == ["generator", "sets", "run", "annotations", *["run"] * 17]


def test_what_runs_share_is_made_once_and_first(tmp_path):
    runs, tasks = planned("controls", tmp_path)
    names = {cell.run_name(seed) for cell, seed in runs}
    shared = [key for key in tasks if key not in names]
    # One generator; sets of eight and of two members; each annotated by one network, a run of CE.
    assert [key[0] for key in shared] == ["generator", "sets", "annotations", "sets", "annotations"]
    for place, (key, task) in enumerate(tasks.items()):
        assert set(task.after) <= set([*tasks][:place]), key


def test_another_encoder_trains_no_network(tmp_path):
    _, tasks = planned("headline", tmp_path, methods=("csm",), encoder="pixels:4")
    assert [key[0] for key in tasks if isinstance(key, tuple)] == ["generator", "sets", "annotations"]
    assert all("csm" in key for key in tasks if isinstance(key, str))


@pytest.mark.parametrize("num_jobs", [1, 2])
def test_a_trained_run_is_measured_without_its_mixed_images(num_jobs, tmp_path, capsys):
    """They may be gone, and drawing them again can take hours."""
    config = TableConfig(
        name="main",
        dataset="digits",
        methods=("csm",),
        budget="smoke",
        seeds=1,
        device="cpu",
        out=tmp_path,
        jobs=num_jobs,
    )
    cells, runs = chosen_cells(config), RunFolder(tmp_path / "runs")
    run_missing(cells, runs, config)
    assert "2 runs to do" in capsys.readouterr().out  # with the network that annotates
    for made in ("mixsets", "annotations", "generators"):
        shutil.rmtree(tmp_path / made)
    shutil.rmtree(tmp_path / "runs" / plain_cell(cells[0]).run_name(0))
    measured = [replace(cell, measure="piece") for cell in cells]
    run_missing(measured, runs, config)
    (run,) = RunFolder(tmp_path / "runs").finished(measured[0])
    assert (run.folder / PROXIMITY).exists()
    assert "runs to do" not in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}
