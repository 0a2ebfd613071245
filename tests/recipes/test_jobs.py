"""Runs in several processes; that they are the same runs is tested in test_table.py."""

import multiprocessing
import shutil
import time
from dataclasses import replace

import pytest

from semmix import SemmixError
from semmix.recipes.jobs import _in_processes, run_together
from semmix.recipes.results import PROXIMITY, finished_runs
from semmix.recipes.running import plain_cell
from semmix.recipes.table import TableConfig, chosen_cells, run_missing


def test_errors_of_a_process_reach_the_user_whole(tmp_path):
    cells = chosen_cells(
        TableConfig(name="main", dataset="digits", methods=("ce",), budget="smoke", device="tpu9")
    )
    with pytest.raises(SemmixError, match="unknown device") as caught:
        run_together([(cell, 0) for cell in cells], tmp_path, 2)
    assert "use auto, cpu, cuda" in caught.value.fix


def test_an_error_stops_the_others_at_once():
    start = time.monotonic()
    with pytest.raises(ValueError, match="non-negative"):
        _in_processes(time.sleep, [(120,), (-1,)], 2)
    while multiprocessing.active_children() and time.monotonic() - start < 100:
        time.sleep(0.1)  # two threads wait for a process, and one learns later that it ended
    assert time.monotonic() - start < 100
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("num_jobs", [1, 2])
def test_a_trained_run_is_measured_without_its_mixed_images(num_jobs, tmp_path, capsys):
    """They may be gone, and drawing them again can take hours."""
    config = TableConfig(
        name="main", dataset="digits", methods=("csm",), budget="smoke", seeds=1, device="cpu",
        out=tmp_path, jobs=num_jobs,
    )  # fmt: skip
    cells = chosen_cells(config)
    run_missing(cells, config)
    assert "2 runs to do" in capsys.readouterr().out  # with the network that annotates
    for made in ("mixsets", "annotations", "generators"):
        shutil.rmtree(tmp_path / made)
    shutil.rmtree(tmp_path / "runs" / plain_cell(cells[0]).run_name(0))
    measured = [replace(cell, measure="piece") for cell in cells]
    run_missing(measured, config)
    (run,) = finished_runs(measured[0], tmp_path / "runs")
    assert (run / PROXIMITY).exists()
    assert "runs to do" not in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}
