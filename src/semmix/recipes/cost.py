"""What cells will cost: images that pass through networks, and hours on this device."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from semmix._device import pick_device, to_device
from semmix._progress import duration
from semmix.classifiers import classifier
from semmix.methods import Batch, method
from semmix.recipes.paper import OWN, Cell
from semmix.recipes.protocols import training_of

SMALL_BATCH = 8
"""Images in the batch by which passes through the network are counted."""
CPU_BATCH = 2
"""Images in a timed step on a CPU, where time grows with the images anyway."""
NUM_TIMED_STEPS = 3
ENOUGH_SECONDS = 1.0
"""A slow network is timed over fewer steps."""


@dataclass(frozen=True)
class Cost:
    """Work that is still to be done."""

    num_runs: int
    num_images: int
    """Images through classifiers, mixed and augmented ones counted as often as they pass."""
    hours: float
    """For training classifiers, by a measurement of a few steps without compilation."""
    generator_minutes: float
    """For training generators whose length is given in minutes."""

    def __str__(self) -> str:
        generators = f", {self.generator_minutes:g} minutes of generators"
        return (
            f"{self.num_runs} runs to do: {self.num_images:,} images through classifiers, "
            f"about {_show_hours(self.hours)} on this device"
            f"{generators if self.generator_minutes else ''}; drawing mixed sets not counted"
        )


def _show_hours(hours: float) -> str:
    return f"{hours:,.1f} hours" if hours >= 1 else f"{duration(3600 * hours)} minutes"


def cost_of(missing: Sequence[tuple[Cell, int]]) -> Cost:
    """Return what these cells cost, each with a number of seeds to run."""
    images = sum(num * images_seen(cell) for cell, num in missing)
    hours = sum(num * training_hours(cell) for cell, num in missing if num)
    own = {c.mixing.learned_from: c.mixing.training.minutes or 0.0
           for c, num in missing if num and c.mixing and c.mixing.generator == OWN}  # fmt: skip
    runs = sum(num for _, num in missing)
    return Cost(runs, images, hours, sum(own.values()))


def training_hours(cell: Cell) -> float:
    """Return how long one training of a cell takes on this device, by a short measurement."""
    train = cell.train
    seconds = seconds_per_image(train.classifier, cell.data.dataset, train.batch_size, train.device)
    return images_seen(cell) * seconds / 3600


def images_seen(cell: Cell) -> int:
    """Return how many images pass through the classifier in one training of a cell.

    >>> from semmix.recipes.paper import plan_table
    >>> ce, *_, csm = plan_table("main")[:15]
    >>> images_seen(ce), images_seen(csm) / images_seen(ce)
    (8985600, 3.0)
    """
    num_images, batch_size = num_train(cell), cell.train.batch_size
    batch_size = min(batch_size, num_images)
    steps = num_images // batch_size
    if cell.train.eq_data:
        num_mixed = _method(cell).num_mixed
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
    return method(cell.train.method, num_classes, **cell.train.method_options)


@cache
def seconds_per_image(name: str, dataset: str, batch_size: int, device_name: str) -> float:
    """Return how long one image takes to learn from, measured over a few steps of cross-entropy."""
    training, device = training_of(dataset), pick_device(device_name)
    on_gpu = device.type == "cuda"
    channels, size, _ = training.image_shape
    network = to_device(classifier(name, training.num_classes, channels, size), device)
    num = batch_size if on_gpu else CPU_BATCH
    images = torch.rand(num, *training.image_shape, device=device)
    labels = torch.zeros(num, dtype=torch.int64, device=device)

    def step() -> float:
        """Return when the step was over."""
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            logits = network(images)
        torch.nn.functional.cross_entropy(logits.float(), labels).backward()
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    start, ends = step(), []
    while len(ends) < NUM_TIMED_STEPS and (not ends or ends[-1] - start < ENOUGH_SECONDS):
        ends.append(step())
    return (ends[-1] - start) / (len(ends) * num)
