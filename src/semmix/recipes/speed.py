"""How fast this device is, by a few steps of the networks a plan may use."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from semmix._device import to_device
from semmix.classifiers import classifier
from semmix.generators.edm import EDMDenoiser, network_preset

ENOUGH_SECONDS = 1.0
PIXELS_PER_STEP = 32 * 32 * 32
"""On a CPU: 32 images of 32 x 32, or 2 of 128 x 128; there time grows with the pixels anyway."""
GPU_BATCH = 256


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Seconds that one image takes."""

    classifiers: dict[str, float]
    """In a training step, by network; the largest network first."""
    generator: float
    """In a training step of the generator."""
    drawing: float
    """In one evaluation of the generator."""


def measure_speed(
    image_shape: tuple[int, int, int],
    num_classes: int,
    classifiers: Sequence[str],
    network: str,
    device: torch.device,
) -> Speed:
    """Return how fast `device` is, in seconds' time; without the compilation a GPU profits from."""
    channels, size, _ = image_shape
    num = max(2, PIXELS_PER_STEP // size**2) if device.type == "cpu" else GPU_BATCH
    images = torch.rand(num, *image_shape, device=device)
    labels = torch.zeros(num, dtype=torch.int64, device=device)
    sigma, weights = torch.ones(num, device=device), torch.ones(num, num_classes, device=device)

    def classify(name: str) -> Callable[[], object]:
        net = to_device(classifier(name, num_classes, channels, size), device)
        return lambda: torch.nn.functional.cross_entropy(net(images).float(), labels).backward()

    denoiser = EDMDenoiser(network_preset(network, image_shape, num_classes))
    denoiser = to_device(denoiser, device)

    def denoise() -> Tensor:
        return denoiser(images, sigma, weights).float().square().mean()

    def draw() -> Tensor:
        with torch.no_grad():
            return denoise()

    return Speed(
        classifiers={name: _seconds(classify(name), num, device) for name in classifiers},
        generator=_seconds(lambda: denoise().backward(), num, device),
        drawing=_seconds(draw, num, device),
    )


def _seconds(step: Callable[[], object], num: int, device: torch.device) -> float:
    """Return the seconds per image of steps with `num` images, after one to warm up."""

    def timed() -> float:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    start, steps = timed(), 0
    end = start
    while end - start < ENOUGH_SECONDS:
        end, steps = timed(), steps + 1
    return (end - start) / (steps * num)
