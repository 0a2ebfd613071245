"""Several runs of a table at a time, each in a process of its own: the same runs as one by one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import torch

from semmix.recipes.cells import Cell
from semmix.recipes.results import is_trained
from semmix.recipes.running import mixed_source, run_cell


def run_together(runs: Sequence[tuple[Cell, int]], out: Path, num_jobs: int) -> None:
    """Do the runs (cell, seed), `num_jobs` at a time.

    What they share is made first, and what is timed runs last, each by one process alone.
    """
    mixing = {
        cell.run_name(0): cell
        for cell, seed in runs
        if cell.mixing and not is_trained(cell, out / "runs" / cell.run_name(seed))
    }
    _in_processes(_make_mixed, [(cell, out) for cell in mixing.values()], 1)
    timed = [run for run in runs if run[0].measure == "hours"]
    by_name: dict[str, list[tuple[Cell, int]]] = {}  # cells that need the same run take turns
    for cell, seed in runs:
        if (cell, seed) not in timed:
            by_name.setdefault(cell.run_name(seed), []).append((cell, seed))
    _in_processes(_run_cells, [(same, out) for same in by_name.values()], num_jobs)
    _in_processes(_run_cells, [([run], out) for run in timed], 1)


def _make_mixed(cell: Cell, out: Path) -> None:
    mixed_source(cell, out)


def _run_cells(cells: Sequence[tuple[Cell, int]], out: Path) -> None:
    for cell, seed in cells:
        run_cell(cell, seed, out)


def _in_processes(function: Callable, arguments: Sequence[tuple], num_jobs: int) -> None:
    """Call the function with each of the arguments, in processes.

    The first error, or Ctrl-C, stops them all where they are: runs go on from their checkpoints.
    """
    if not arguments:
        return
    others = set(active_children())
    context = get_context("spawn")  # CUDA does not survive a fork
    places = context.SimpleQueue()
    for place in range(num_jobs):
        places.put(place)
    with ProcessPoolExecutor(num_jobs, context, _take_place, (places,)) as pool:
        try:
            for done in as_completed([pool.submit(function, *args) for args in arguments]):
                done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(active_children()) - others:
                process.terminate()
                process.join()
            raise


def _take_place(places: Any) -> None:
    """Take one of the GPUs in turn: `pick_device` reads it here, as under torchrun."""
    place = places.get()
    if torch.cuda.device_count():
        os.environ["LOCAL_RANK"] = str(place % torch.cuda.device_count())
