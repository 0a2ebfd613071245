"""How fast this device is, by a few steps of the networks a plan may use."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from semmix.core.device import to_device
from semmix.diffusion.edm import EDMDenoiser, network_preset
from semmix.networks import classifier

ENOUGH_SECONDS = 1.0
"""A slow network is timed over fewer steps."""
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
    image_shape: tuple[int, int, int], num_classes: int, classifiers: Sequence[str], network: str, device: torch.device
) -> Speed:
    """Return how fast `device` is, in seconds' time; without the compilation a GPU profits from."""
    channels, size, _ = image_shape
    num = max(2, PIXELS_PER_STEP // size**2) if device.type == "cpu" else GPU_BATCH
    images = torch.rand(num, *image_shape, device=device)
    sigma, weights = torch.ones(num, device=device), torch.ones(num, num_classes, device=device)
    denoiser = to_device(EDMDenoiser(network_preset(network, image_shape, num_classes)), device)

    def learning(name: str) -> float:
        net = to_device(classifier(name, num_classes, channels, size), device)
        return seconds_per_step(lambda: net(images), device, learns=True) / num

    def denoising(learns: bool) -> float:
        return seconds_per_step(lambda: denoiser(images, sigma, weights), device, learns) / num

    by_name = {name: learning(name) for name in classifiers}
    return Speed(classifiers=by_name, generator=denoising(learns=True), drawing=denoising(learns=False))


def seconds_per_step(
    forward: Callable[[], Tensor], device: torch.device, learns: bool, max_steps: float = math.inf
) -> float:
    """Return how long a step takes, in bfloat16 on a GPU; backward only where it learns.

    One step warms up; then as many as fit in about a second are timed, one at least.
    """
    on_gpu = device.type == "cuda"

    def step() -> float:
        """Return when the step was over."""
        with torch.set_grad_enabled(learns):
            with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
                output = forward()
            if learns:
                output.float().square().mean().backward()
        if on_gpu:
            torch.cuda.synchronize(device)
        return time.perf_counter()

    start, ends = step(), []
    while len(ends) < max_steps and (not ends or ends[-1] - start < ENOUGH_SECONDS):
        ends.append(step())
    return (ends[-1] - start) / len(ends)
