"""Runs in several processes; that they are the same runs is tested in test_table.py."""

import multiprocessing
import time

import pytest

from semmix import SemmixError
from semmix.recipes.jobs import _in_processes, run_together
from semmix.recipes.table import TableConfig, chosen_cells


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
    assert time.monotonic() - start < 100
    assert not multiprocessing.active_children()
