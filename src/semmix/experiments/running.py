"""Running one cell of a table: the product's own stages, one after the other."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

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
from semmix.mixing.labels import lambda_grid
from semmix.mixing.plan import MixPlan, all_pairs
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
    val, test = (
        over_batches(network, network.features, split.images, BATCH_SIZE).cpu() for split in (data.val, data.test)
    )
    near = {"val": proximity(val), "test": proximity(test, pool=val)}
    write_tensors(run / PROXIMITY, {name: torch.as_tensor(v) for name, v in near.items()})


def write_tta(network: Classifier, split: Split, pad: int, flip: bool, run: Path) -> None:
    """Write the logarithm of the mean probability over the views that training knows."""

    def log_probs(images: Tensor) -> Tensor:
        # uint8 views are cut and mirrored exactly.
        return tta_probs(network, images, padding=pad, flip=flip).log().float()

    logits = over_batches(network, log_probs, split.images, BATCH_SIZE)
    write_tensors(run / TTA, {"logits": logits.cpu(), "labels": split.labels})
