"""What cells will cost: images that pass through networks, and hours on this device."""

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
from semmix.experiments.cells import OWN, Cell, CellMixing, recipe_for
from semmix.methods import Batch, Method, method
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
        passed, time = f"{self.num_images:,} images through classifiers", _show_hours(self.hours)
        runs = f"{self.num_runs} runs to do: {passed}, about {time} on this device"
        if not self.mixed_images:
            return runs
        made, time = f"generators and {self.mixed_images:,} mixed images", _show_hours(self.mixing_hours)
        rest = "".join(f"; annotating by {name} not counted" for name in self.left_out)
        return f"{runs}; {made}, unless they are there: about {time}{rest}"


def _show_hours(hours: float) -> str:
    return f"{hours:,.1f} hours" if hours >= 1 else f"{duration(3600 * hours)} minutes"


def cost_of(missing: Sequence[tuple[Cell, int]], device: str = "auto") -> Cost:
    """Return what these cells cost, each with a number of seeds to run; what they share is made once."""
    to_do = [(cell, num) for cell, num in missing if num]
    generators: dict[object, tuple[Cell, CellMixing]] = {}
    stores, encoders = dict(generators), dict(generators)
    for cell, _ in to_do:
        if mixing := cell.mixing:
            generator = (mixing.generator, mixing.learned_from, mixing.training)
            store = (generator, mixing.sampler, mixing.num_sets, mixing.members)
            encoder = (store, mixing.encoder, cell.data, cell.train.classifier)
            generators[generator] = stores[store] = encoders[encoder] = (cell, mixing)
    seconds = sum(_generator_seconds(*made, device) for made in generators.values())
    seconds += sum(_drawing_seconds(*made, device) for made in stores.values())
    seconds += sum(_annotating_seconds(*made, device) for made in encoders.values())
    return Cost(
        num_runs=sum(num for _, num in to_do),
        num_images=sum(num * images_seen(cell) for cell, num in to_do),
        hours=sum(num * training_hours(cell, device) for cell, num in to_do),
        mixed_images=sum(mixing.num_sets * mixing.members for _, mixing in stores.values()),
        mixing_hours=seconds / 3600,
        left_out=tuple(sorted({mixing.encoder for _, mixing in encoders.values()} - {OWN})),
    )


def _generator_seconds(cell: Cell, mixing: CellMixing, device: str) -> float:
    """Return how long training a generator takes; nothing for one from elsewhere."""
    training = mixing.training
    if mixing.generator != OWN:
        return 0.0
    if training.minutes is not None:
        return 60 * training.minutes
    return training.num_images * denoising_seconds(cell, mixing, training.batch_size, device, learns=True)


def _drawing_seconds(cell: Cell, mixing: CellMixing, device: str) -> float:
    sampler = mixing.sampler
    evaluations = 2 * sampler.num_steps - 1 if sampler.solver == "heun" else sampler.num_steps
    batch_size = sampler.images_at_once(pick_device(device))
    seconds = denoising_seconds(cell, mixing, batch_size, device, learns=False)
    return mixing.num_sets * mixing.members * evaluations * seconds


def _annotating_seconds(cell: Cell, mixing: CellMixing, device: str) -> float:
    """Return how long a classifier of our own reads the images; nothing for other encoders."""
    if mixing.encoder != OWN:
        return 0.0
    task = (cell.train.classifier, cell.data.dataset, cell.train.batch_size, device)
    return (mixing.num_sets * mixing.members + num_train(cell)) * seconds_per_image(*task, learns=False)


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
    num_images = num_train(cell)
    batch_size = min(cell.train.batch_size, num_images)
    steps = num_images // batch_size
    num_mixed = _method(cell).num_mixed
    if cell.train.eq_data and num_mixed:
        steps = math.ceil(num_images / ((1 + num_mixed) * batch_size))
    return round(cell.train.epochs * steps * batch_size * passes_per_image(cell))


def num_train(cell: Cell) -> int:
    """Return the size of a cell's training split, by the published numbers."""
    recipe = recipe_for(cell.data.dataset)
    held_out = 0.1 if cell.data.protocol == "code" else 0.0
    num = cell.data.train_size or round(recipe.num_images * (1 - held_out))
    if cell.data.imbalance is None:
        return num
    last = recipe.num_classes - 1
    shares = [cell.data.imbalance ** (-k / last) for k in range(recipe.num_classes)]
    return sum(int(num / recipe.num_classes * share) for share in shares)


def passes_per_image(cell: Cell) -> float:
    """Return how many images a method sends through the network for each real one."""
    recipe, trained_by = recipe_for(cell.data.dataset), _method(cell)
    trained_by.setup(torch.arange(recipe.num_classes))
    index = torch.arange(SMALL_BATCH)
    batch = Batch(images=torch.rand(SMALL_BATCH, *recipe.image_shape), labels=index, index=index)
    if trained_by.num_mixed:
        num = trained_by.num_mixed * SMALL_BATCH
        batch.mixed_images = torch.rand(num, *recipe.image_shape)
        batch.mixed_labels = torch.full((num, recipe.num_classes), 1 / recipe.num_classes)
    passed = 0

    def forward(images: Tensor) -> Tensor:
        nonlocal passed
        passed += len(images)
        return torch.rand(len(images), recipe.num_classes)

    trained_by.step(forward, batch)
    return passed / SMALL_BATCH


def _method(cell: Cell) -> Method:
    return method(cell.train.method, recipe_for(cell.data.dataset).num_classes, **cell.train.options)


@cache
def seconds_per_image(name: str, dataset: str, batch_size: int, device_name: str, learns: bool = True) -> float:
    """Return how long a classifier takes to learn from one image, or to look at it."""
    recipe, device = recipe_for(dataset), pick_device(device_name)
    channels, size, _ = recipe.image_shape
    network = to_device(classifier(name, recipe.num_classes, channels, size), device)
    images = torch.rand(batch_size, *recipe.image_shape, device=device)
    return _timed(lambda num: network(images[:num]), batch_size, device, learns)


def denoising_seconds(cell: Cell, mixing: CellMixing, batch_size: int, device: str, learns: bool) -> float:
    """Return how long a cell's generator takes to denoise one image, or to learn from it."""
    is_own = mixing.generator == OWN
    name = str(mixing.training.network) if is_own else mixing.generator
    return _denoising_seconds(name, is_own, cell.data.dataset, batch_size, device, learns)


@cache
def _denoising_seconds(name: str, is_own: bool, dataset: str, batch_size: int, device_name: str, learns: bool) -> float:
    recipe, device = recipe_for(dataset), pick_device(device_name)
    shape, num_classes = recipe.image_shape, recipe.num_classes
    if is_own:
        denoise = to_device(EDMDenoiser(network_preset(name, shape, num_classes)), device).forward
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
