"""Running cells of a table by the product's own stages: one after the other, or several, each in its process."""

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semmix.annotation import annotate
from semmix.calibration import proximity, tta_probs
from semmix.core.device import pick_device, to_device
from semmix.core.files import digest, write_json, write_tensors
from semmix.core.runtime import Runtime
from semmix.core.settings import plain
from semmix.data import Dataset, Split
from semmix.data.config import DatasetConfig
from semmix.diffusion import load_generator
from semmix.experiments.cells import OWN, Cell, CellMixing
from semmix.experiments.cost import training_hours
from semmix.experiments.results import PROXIMITY, SPEED, TTA, has_extra, keep_run, trained_run
from semmix.mixing.draw import mix
from semmix.mixing.plan import MixPlan, all_pairs, lambda_grid
from semmix.mixing.store import MixSets
from semmix.networks import Classifier
from semmix.networks.encoders import load_encoder
from semmix.networks.predicting import over_batches
from semmix.networks.saved import load_classifier
from semmix.report.detection import predict_ood
from semmix.training.classifier import train
from semmix.training.generator import train_generator
from semmix.training.mixed import MixedSource, load_mixed

BATCH_SIZE = 500


def run_cell(cell: Cell, seed: int, out: Path, keep: Path | None = None, runtime: Runtime = Runtime()) -> Path:
    """Train a cell with one seed, after all it needs; return the run's folder.

    Generators, mixed sets, annotations and runs are shared by all cells that need the same.
    As soon as it is finished, the run is also kept in the folder `keep`.
    """
    data, run = load_data(cell.data), out / "runs" / cell.run_name(seed)
    if trained_run(cell, run) is None:
        source = mixed_source(cell, out, runtime) if cell.mixing else None
        train(data, replace(cell.train, seed=seed), run, source, runtime)
    if not has_extra(cell, run):
        write_extra(cell, run, data, runtime.device)
    if keep:
        keep_run(run, keep)
    return run


@lru_cache(maxsize=2)
def load_data(config: DatasetConfig) -> Dataset:
    """Return a data set; the last ones are kept, for the next seed."""
    return config.load()


@lru_cache(maxsize=1)
def mixed_source(cell: Cell, out: Path, runtime: Runtime) -> MixedSource:
    """Return a cell's soft-labelled sets, after making what is missing of them."""
    mixing = cell.mixing
    assert mixing is not None
    data = load_data(cell.data)
    store = draw_sets(mixing, data.num_classes, out, runtime)
    encoder_name = mixing.encoder
    if encoder_name == OWN:
        # Like the generator, it knows the training split alone; it is also a run of CE.
        encoder_name = f"classifier:{run_cell(plain_cell(cell), 0, out, runtime=runtime)}"
    encoder = load_encoder(encoder_name, pick_device(runtime.device))
    made_from = [store.digest, encoder.digest, data.train.digest, data.val.digest]
    folder = out / "annotations" / digest(made_from)[:12]
    return load_mixed(store, annotate(store, encoder, data, folder), mixing.labels, mixing.scale)


def plain_cell(cell: Cell) -> Cell:
    """Return the cell of cross-entropy on the same images with the same classifier."""
    epochs = max(1, cell.train.epochs // cell.times_encoder)
    train = replace(cell.train, method="ce", options={}, eq_data=False, allow_leak=False, epochs=epochs)
    return replace(cell, train=train, mixing=None, measure="plain", seeds=1, times_encoder=1)


def draw_sets(mixing: CellMixing, num_classes: int, out: Path, runtime: Runtime) -> MixSets:
    """Return the store of mixed sets, drawn by a generator that is trained first if it is ours."""
    folder = mixing.generator if mixing.generator != OWN else own_generator(mixing, out, runtime)
    generator = load_generator(folder, runtime.device)
    plan = MixPlan(
        num_classes=num_classes,
        num_sets=mixing.num_sets,
        pairs=all_pairs(num_classes),
        lams=lambda_grid(mixing.members),
        sets_per_shard=256,
    )
    name = digest([generator.digest, plain(plan), plain(mixing.sampler)])[:12]
    return mix(generator, plan, mixing.sampler, out / "mixsets" / name)


def own_generator(mixing: CellMixing, out: Path, runtime: Runtime) -> Path:
    """Return the generator of the cell's own images, after training what is missing of it."""
    data = load_data(mixing.learned_from)
    name = digest([data.train.digest, data.val.digest, plain(mixing.training)])[:12]
    folder = out / "generators" / f"{data.name}-{name}"
    train_generator(data, mixing.training, folder, runtime)
    return folder


def write_extra(cell: Cell, run: Path, data: Dataset, device_name: str) -> None:
    """Write what a cell measures besides its logits, with the trained network."""
    if cell.measure.startswith("ood:"):
        predict_ood(run, cell.measure.removeprefix("ood:"), device_name)
        return
    device = pick_device(device_name)
    if cell.measure == "hours":
        how = f"a few steps on {device}, not compiled, times the images of the run"
        write_json(run / SPEED, {"hours": training_hours(cell, device_name), "measured": how})
        return
    network = to_device(load_classifier(run)[0], device)
    write_proximity(network, data, run)
    if cell.measure == "tta":
        write_tta(network, data.test, cell.train.pad, cell.train.flip, run)


def write_proximity(network: Classifier, data: Dataset, run: Path) -> None:
    """Write how near the validation features are to each validation and test image."""
    splits = (data.val.images, data.test.images)
    val, test = (over_batches(network, network.features, images, BATCH_SIZE).cpu() for images in splits)
    near = {"val": proximity(val), "test": proximity(test, pool=val)}
    write_tensors(run / PROXIMITY, {name: torch.as_tensor(v) for name, v in near.items()})


def write_tta(network: Classifier, split: Split, pad: int, flip: bool, run: Path) -> None:
    """Write the logarithm of the mean probability over the views that training knows."""

    def log_probs(images: Tensor) -> Tensor:
        # uint8 views are cut and mirrored exactly.
        return tta_probs(network, images, padding=pad, flip=flip).log().float()

    logits = over_batches(network, log_probs, split.images, BATCH_SIZE)
    write_tensors(run / TTA, {"logits": logits.cpu(), "labels": split.labels})


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
    """Do the runs, `num_jobs` at a time; those that are timed come last, each alone. What they share is made once."""
    timed = [run for run in runs if run[0].measure == "hours"]
    _in_processes(plan_tasks([run for run in runs if run not in timed], out, keep, runtime), num_jobs)
    for run in timed:
        _in_processes({run: Task(_run_cells, ([run], out, keep, runtime))}, 1)


def plan_tasks(runs: Sequence[Job], out: Path, keep: Path | None = None, runtime: Runtime = Runtime()) -> Tasks:
    """Return what is to do, by name: first what others wait for."""
    by_name: dict[str, list[Job]] = {}  # cells that need the same run take turns
    for cell, seed in runs:
        by_name.setdefault(cell.run_name(seed), []).append((cell, seed))
    shared, trained = Tasks(), Tasks()
    for name, same in by_name.items():
        needs = _mixed_tasks(same[0][0], name, out, runtime)
        shared |= needs
        trained[name] = Task(_run_cells, (same, out, keep, runtime), tuple(needs))
    return {key: trained.get(key, task) for key, task in shared.items()} | trained


def _mixed_tasks(cell: Cell, run_name: str, out: Path, runtime: Runtime) -> Tasks:
    """Return the tasks that make the soft-labelled sets a run still has to learn from."""
    tasks, mixing = Tasks(), cell.mixing
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
