"""Several runs of a table at a time, each in a process of its own: the same runs as one by one."""

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import torch

from semmix.core.runtime import Runtime
from semmix.experiments.cells import OWN, Cell
from semmix.experiments.results import trained_run
from semmix.experiments.running import draw_sets, load_data, mixed_source, own_generator, plain_cell, run_cell

Job = tuple[Cell, int]
"""A cell and a seed: one training."""


@dataclass(frozen=True)
class Task:
    """Work for one process, to be done after other tasks."""

    function: Callable
    args: tuple
    after: tuple[Hashable, ...] = ()


Tasks = dict[Hashable, Task]


def run_together(
    runs: Sequence[Job], out: Path, num_jobs: int, keep: Path | None = None, runtime: Runtime = Runtime()
) -> None:
    """Do the runs, `num_jobs` at a time; those that are timed come last, each alone.

    What several of them share is made once, beside the runs that can do without it.
    """
    timed = [run for run in runs if run[0].measure == "hours"]
    _in_processes(plan_tasks([run for run in runs if run not in timed], out, keep, runtime), num_jobs)
    for run in timed:
        _in_processes({run: Task(_run_cells, ([run], out, keep, runtime))}, 1)


def plan_tasks(runs: Sequence[Job], out: Path, keep: Path | None = None, runtime: Runtime = Runtime()) -> Tasks:
    """Return what is to do, by name: first what others wait for."""
    by_name: dict[str, list[Job]] = {}  # cells that need the same run take turns
    for cell, seed in runs:
        by_name.setdefault(cell.run_name(seed), []).append((cell, seed))
    shared: Tasks = {}
    trained: Tasks = {}
    for name, same in by_name.items():
        needs = _mixed_tasks(same[0][0], name, out, runtime)
        shared |= needs
        trained[name] = Task(_run_cells, (same, out, keep, runtime), tuple(needs))
    return {key: trained.get(key, task) for key, task in shared.items()} | trained


def _mixed_tasks(cell: Cell, run_name: str, out: Path, runtime: Runtime) -> Tasks:
    """Return the tasks that make the soft-labelled sets a run still has to learn from."""
    tasks: Tasks = {}
    mixing = cell.mixing
    if mixing is None or trained_run(cell, out / "runs" / run_name):
        return tasks
    learned = ("generator", mixing.learned_from, mixing.training)
    if mixing.generator == OWN:
        tasks[learned] = Task(own_generator, (mixing, out, runtime))
    drawn = ("sets", replace(mixing, encoder=OWN, labels="reannotated", scale=None))
    tasks[drawn] = Task(_draw, (cell, out, runtime), tuple(tasks))
    encoder: Hashable = (mixing.encoder, cell.data)
    if mixing.encoder == OWN:
        encoder = plain_cell(cell).run_name(0)
        tasks[encoder] = Task(_run_cells, ([(plain_cell(cell), 0)], out, None, runtime))
    tasks["annotations", drawn, encoder] = Task(_annotate, (cell, out, runtime), tuple(tasks))
    return tasks


def _draw(cell: Cell, out: Path, runtime: Runtime) -> None:
    assert cell.mixing is not None
    draw_sets(cell.mixing, load_data(cell.data).num_classes, out, runtime)


def _annotate(cell: Cell, out: Path, runtime: Runtime) -> None:
    mixed_source(cell, out, runtime)  # not returned: images would travel to the first process


def _run_cells(runs: Sequence[Job], out: Path, keep: Path | None, runtime: Runtime) -> None:
    for cell, seed in runs:
        run_cell(cell, seed, out, keep, runtime)


def _in_processes(tasks: Mapping[Hashable, Task], num_jobs: int) -> None:
    """Do the tasks in processes, each after those it names.

    The first error, or Ctrl-C, stops them all where they are: runs go on from their checkpoints.
    """
    if not tasks:
        return
    others = set(active_children())
    context = get_context("spawn")  # CUDA does not survive a fork
    places = context.SimpleQueue()
    for place in range(num_jobs):
        places.put(place)
    with ProcessPoolExecutor(num_jobs, context, _take_place, (places,)) as pool:
        try:
            _work_off(tasks, pool, num_jobs)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(active_children()) - others:
                process.terminate()
                process.join()
            raise


def _work_off(tasks: Mapping[Hashable, Task], pool: Executor, num_jobs: int) -> None:
    """Keep `num_jobs` tasks going, always the first that nothing holds up any more."""
    waiting, running, done = dict(tasks), {}, set()
    while waiting or running:
        ready = [key for key, task in waiting.items() if done.issuperset(task.after)]
        for key in ready[: num_jobs - len(running)]:
            task = waiting.pop(key)
            running[pool.submit(task.function, *task.args)] = key
        assert running, f"each waits for another: {[*waiting]}"
        for finished in wait(running, return_when=FIRST_COMPLETED).done:
            finished.result()
            done.add(running.pop(finished))


def _take_place(places: Any) -> None:
    """Take one of the GPUs in turn: `pick_device` reads it here, as under torchrun."""
    place = places.get()
    if torch.cuda.device_count():
        os.environ["LOCAL_RANK"] = str(place % torch.cuda.device_count())
