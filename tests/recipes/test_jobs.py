"""Runs in several processes; that they are the same runs is tested in test_table.py."""

import pytest

from semmix import SemmixError
from semmix.recipes.jobs import run_together
from semmix.recipes.table import TableConfig, chosen_cells


def test_errors_of_a_process_reach_the_user_whole(tmp_path):
    cells = chosen_cells(
        TableConfig(name="main", dataset="digits", methods=("ce",), budget="smoke", device="tpu9")
    )
    with pytest.raises(SemmixError, match="unknown device") as caught:
        run_together([(cell, 0) for cell in cells], tmp_path, 2)
    assert "use auto, cpu, cuda" in caught.value.fix
