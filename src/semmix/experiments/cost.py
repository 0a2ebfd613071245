"""What cells will cost: images that pass through networks, and hours on this device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from semmix.core.device import pick_device, to_device
from semmix.core.progress import duration
from semmix.diffusion import load_generator
from semmix.diffusion.edm import EDMDenoiser, network_preset
from semmix.experiments.cells import OWN, Cell, Mixing
from semmix.experiments.protocols import training_of
from semmix.methods import Batch, method
from semmix.networks import classifier
from semmix.training.speed import ENOUGH_SECONDS, seconds_per_step

SMALL_BATCH = 8
"""Images in the batch by which passes through the network are counted."""
CPU_BATCH = 2
"""Images in a timed step of a large network on a CPU, where time grows with the images anyway."""
NUM_TIMED_STEPS = 3


@dataclass(frozen=True)
class Cost:
    """Work that is still to be done; all hours by a measurement of a few steps, not compiled."""

    num_runs: int
    num_images: int
    """Images through classifiers, mixed and augmented ones counted as often as they pass."""
    hours: float
    """For training classifiers."""
    mixed_images: int
    """Images of mixed sets, if none are there yet."""
    mixing_hours: float
    """For training their generators, drawing them, and annotating them by networks of our own."""
    left_out: tuple[str, ...] = ()
    """Encoders from elsewhere, whose time is not known before they are loaded."""

    def __str__(self) -> str:
        runs = (
            f"{self.num_runs} runs to do: {self.num_images:,} images through classifiers, "
            f"about {_show_hours(self.hours)} on this device"
        )
        if not self.mixed_images:
            return runs
        rest = "".join(f"; annotating by {name} not counted" for name in self.left_out)
        return (
            f"{runs}; generators and {self.mixed_images:,} mixed images, unless they are there: "
            f"about {_show_hours(self.mixing_hours)}{rest}"
        )


def _show_hours(hours: float) -> str:
    return f"{hours:,.1f} hours" if hours >= 1 else f"{duration(3600 * hours)} minutes"


def cost_of(missing: Sequence[tuple[Cell, int]], device: str = "auto") -> Cost:
    """Return what these cells cost, each with a number of seeds to run."""
    to_do = [(cell, num) for cell, num in missing if num]
    generators: dict[object, Cell] = {}  # what cells share is made once
    stores, encoders = dict(generators), dict(generators)
    for cell in (cell for cell, _ in to_do if cell.mixing):
        for made, key in zip((generators, stores, encoders), _shared(cell), strict=True):
            made[key] = cell
    foreign = {mixing_of(cell).encoder for cell in encoders.values()} - {OWN}
    seconds = sum(generator_seconds(cell, device) for cell in generators.values())
    seconds += sum(drawing_seconds(cell, device) for cell in stores.values())
    seconds += sum(annotating_seconds(cell, device) for cell in encoders.values())
    return Cost(
        num_runs=sum(num for _, num in to_do),
        num_images=sum(num * images_seen(cell) for cell, num in to_do),
        hours=sum(num * training_hours(cell, device) for cell, num in to_do),
        mixed_images=sum(map(num_mixed_images, stores.values())),
        mixing_hours=seconds / 3600,
        left_out=tuple(sorted(foreign)),
    )


def _shared(cell: Cell) -> tuple[object, object, object]:
    """Return what names a cell's generator, its store of mixed sets, and its annotation."""
    mixing = mixing_of(cell)
    generator = (mixing.generator, mixing.learned_from, mixing.training)
    store = (generator, mixing.sampler, mixing.num_sets, mixing.members)
    return generator, store, (store, mixing.encoder, cell.data, cell.train.classifier)


def mixing_of(cell: Cell) -> Mixing:
    """Return where a cell's mixed images come from; it must have some."""
    assert cell.mixing is not None
    return cell.mixing


def num_mixed_images(cell: Cell) -> int:
    """Return how many images a cell's mixed sets have."""
    return mixing_of(cell).num_sets * mixing_of(cell).members


def generator_seconds(cell: Cell, device: str) -> float:
    """Return how long training a cell's generator takes; nothing for one from elsewhere."""
    mixing = mixing_of(cell)
    if mixing.generator != OWN:
        return 0.0
    if mixing.training.minutes is not None:
        return 60 * mixing.training.minutes
    size = mixing.training.batch_size
    return mixing.training.num_images * denoising_seconds(cell, size, device, learns=True)


def drawing_seconds(cell: Cell, device: str) -> float:
    """Return how long drawing a cell's mixed sets takes."""
    sampler = mixing_of(cell).sampler
    evaluations = 2 * sampler.num_steps - 1 if sampler.solver == "heun" else sampler.num_steps
    seconds = denoising_seconds(cell, sampler.images_at_once(pick_device(device)), device, learns=False)
    return num_mixed_images(cell) * evaluations * seconds


def annotating_seconds(cell: Cell, device: str) -> float:
    """Return how long a classifier of our own reads the images; nothing for other encoders."""
    if mixing_of(cell).encoder != OWN:
        return 0.0
    train = cell.train
    task = (train.classifier, cell.data.dataset, train.batch_size, device)
    return (num_mixed_images(cell) + num_train(cell)) * seconds_per_image(*task, learns=False)


def training_hours(cell: Cell, device: str) -> float:
    """Return how long one training of a cell takes on this device, by a short measurement."""
    train = cell.train
    seconds = seconds_per_image(train.classifier, cell.data.dataset, train.batch_size, device)
    return images_seen(cell) * seconds / 3600


def images_seen(cell: Cell) -> int:
    """Return how many images pass through the classifier in one training of a cell.

    >>> from semmix.experiments.catalog import plan_table
    >>> ce, *_, csm = plan_table("main")[:15]
    >>> images_seen(ce), images_seen(csm) / images_seen(ce)
    (8985600, 3.0)
    """
    num_images, batch_size = num_train(cell), cell.train.batch_size
    batch_size = min(batch_size, num_images)
    steps = num_images // batch_size
    num_mixed = _method(cell).num_mixed
    if cell.train.eq_data and num_mixed:
        steps = math.ceil(num_images / ((1 + num_mixed) * batch_size))
    return round(cell.train.epochs * steps * batch_size * passes_per_image(cell))


def num_train(cell: Cell) -> int:
    """Return the size of a cell's training split, by the published numbers."""
    training = training_of(cell.data.dataset)
    held_out = 0.1 if cell.data.protocol == "code" else 0.0
    num = cell.data.train_size or round(training.num_images * (1 - held_out))
    if cell.data.imbalance is None:
        return num
    last = training.num_classes - 1
    shares = [cell.data.imbalance ** (-k / last) for k in range(training.num_classes)]
    return sum(int(num / training.num_classes * share) for share in shares)


def passes_per_image(cell: Cell) -> float:
    """Return how many images a method sends through the network for each real one."""
    training, rule = training_of(cell.data.dataset), _method(cell)
    rule.setup(torch.arange(training.num_classes))
    index = torch.arange(SMALL_BATCH)
    batch = Batch(images=torch.rand(SMALL_BATCH, *training.image_shape), labels=index, index=index)
    if rule.num_mixed:
        num = rule.num_mixed * SMALL_BATCH
        batch.mixed_images = torch.rand(num, *training.image_shape)
        batch.mixed_labels = torch.full((num, training.num_classes), 1 / training.num_classes)
    passed = 0

    def forward(images: Tensor) -> Tensor:
        nonlocal passed
        passed += len(images)
        return torch.rand(len(images), training.num_classes)

    rule.step(forward, batch)
    return passed / SMALL_BATCH


def _method(cell: Cell):
    num_classes = training_of(cell.data.dataset).num_classes
    return method(cell.train.method, num_classes, **cell.train.options)


@cache
def seconds_per_image(name: str, dataset: str, batch_size: int, device_name: str, learns: bool = True) -> float:
    """Return how long a classifier takes to learn from one image, or to look at it."""
    training, device = training_of(dataset), pick_device(device_name)
    channels, size, _ = training.image_shape
    network = to_device(classifier(name, training.num_classes, channels, size), device)
    images = torch.rand(batch_size, *training.image_shape, device=device)
    return _timed(lambda num: network(images[:num]), batch_size, device, learns)


def denoising_seconds(cell: Cell, batch_size: int, device: str, learns: bool) -> float:
    """Return how long a cell's generator takes to denoise one image, or to learn from it."""
    mixing = mixing_of(cell)
    name = str(mixing.training.network) if mixing.generator == OWN else mixing.generator
    return _denoising_seconds(name, mixing.generator == OWN, cell.data.dataset, batch_size, device, learns)


@cache
def _denoising_seconds(name: str, is_own: bool, dataset: str, batch_size: int, device_name: str, learns: bool) -> float:
    training, device = training_of(dataset), pick_device(device_name)
    shape, num_classes = training.image_shape, training.num_classes
    if is_own:
        network = to_device(EDMDenoiser(network_preset(name, shape, num_classes)), device)
        denoise = network.forward
    else:
        generator = load_generator(name, device_name)
        shape, denoise = getattr(generator, "latent_shape", shape), generator.denoise
    x, sigma = torch.randn(batch_size, *shape, device=device), torch.ones(batch_size, device=device)
    weights = torch.full((batch_size, num_classes), 1 / num_classes, device=device)
    return _timed(lambda num: denoise(x[:num], sigma[:num], weights[:num]), batch_size, device, learns)


def _timed(forward: Callable[[int], Tensor], batch_size: int, device: torch.device, learns: bool) -> float:
    """Return the seconds for one image, passed as one of a batch unless that would take long."""
    if device.type != "cuda":
        few = seconds_per_step(lambda: forward(CPU_BATCH), device, learns, NUM_TIMED_STEPS)
        if few / CPU_BATCH * batch_size > ENOUGH_SECONDS:
            return few / CPU_BATCH
    whole = seconds_per_step(lambda: forward(batch_size), device, learns, NUM_TIMED_STEPS)
    return whole / batch_size
