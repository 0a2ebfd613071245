"""Draw images from a generator: the settings, the solver set up once, batches of one shape, plain class samples."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from semmix.core.errors import require
from semmix.core.files import write_bytes
from semmix.core.seeds import fold_seed
from semmix.core.settings import since
from semmix.diffusion import Generator
from semmix.diffusion.solvers import karras_sigmas, solver

Sampler = Callable[[Tensor, Tensor], Tensor]  # noise [N, C, H, W] and class weights [N, K] to images [N, C, H, W]
GPU_BATCH, CPU_BATCH = 512, 32  # images a network is shown at once where no number is given
FINE = 0.1  # noise level below which a network adds the last detail to what it has settled before


@dataclass(frozen=True, kw_only=True)
class MixConfig:
    """How images are drawn from a generator."""

    solver: str = "dpmpp_2m"
    """`dpmpp_2m` or `adams` (one evaluation per step), or `heun` (the reference, about two)."""
    num_steps: int = 18
    """Noise levels of the solver."""
    sigma_min: float = 0.002
    """Last noise level."""
    sigma_max: float = 80.0
    """First noise level."""
    rho: float = 7.0
    """How much the noise levels crowd at the lower end."""
    guidance: float = 1.0
    """Classifier-free guidance with the mixed label; 1 is none. It bends lambda, so it is off."""
    emphasis: float = field(default=1.0, metadata=since(2))
    """How far the classes asked for are stretched away from the mean of all: 1 is not at all, 1.3
    makes a poor generator show them more clearly."""
    grain: float = field(default=0.0, metadata=since(2))
    """Part of the noise that the network is made to overlook while it adds the last detail, such
    as 0.045: for a generator whose images come out too smooth."""
    batch_size: int | Literal["auto"] = field(default="auto", metadata=since(2, before=GPU_BATCH))
    """Images the network sees at once; auto is 512 on a GPU, 32 elsewhere (more is slower)."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the network; auto is bfloat16 on a GPU, float32 elsewhere."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Whether to compile the network; auto does on a GPU."""

    def __post_init__(self) -> None:
        solver(self.solver)
        enough = self.num_steps >= 2 and (self.batch_size == "auto" or self.batch_size >= 1)
        seen = f"num_steps={self.num_steps}, batch_size={self.batch_size}"
        require(enough, "too few steps or images", seen, "at least 2 steps and 1 image")
        seen = f"sigma_min={self.sigma_min}, sigma_max={self.sigma_max}"
        falling = 0 < self.sigma_min < self.sigma_max < math.inf
        require(falling, "noise levels must fall", seen, "use 0 < sigma_min < sigma_max, both finite")
        require(self.rho > 0, "rho must be positive", self.rho, "7 is the usual choice")
        seen = f"rho={self.rho}, {seen}"
        require(self._levels_are_exact(), "no noise levels come of these", seen, "7 is the usual rho")
        require(0 <= self.grain < 0.5, "unusable grain", self.grain, "use 0 (none) or some hundredths")
        require(0 < self.emphasis <= 10, "unusable emphasis", self.emphasis, "use 1 (none) or, say, 1.3")

    def _levels_are_exact(self) -> bool:
        """Return whether the levels fall from end to end; a rho too extreme for floats overflows or loses the ends."""
        try:
            levels = karras_sigmas(self.num_steps, self.sigma_min, self.sigma_max, self.rho)
        except OverflowError:
            return False
        ends = ((levels[0], self.sigma_max), (levels[-2], self.sigma_min))
        falling = all(high > low for high, low in pairwise(levels))
        return falling and all(math.isclose(*end, rel_tol=1e-3) for end in ends)

    def images_at_once(self, device: torch.device) -> int:
        """Return the batch size on `device`."""
        if self.batch_size != "auto":
            return self.batch_size
        return GPU_BATCH if device.type == "cuda" else CPU_BATCH

    def resolve(self, device: torch.device) -> MixConfig:
        """Return the settings with every `auto` decided for `device`."""
        precision, compiled = ("bfloat16", "on") if device.type == "cuda" else ("float32", "off")
        return replace(
            self,
            batch_size=self.images_at_once(device),
            precision=precision if self.precision == "auto" else self.precision,
            compile=compiled if self.compile == "auto" else self.compile,
        )


def make_sampler(generator: Generator, config: MixConfig) -> Sampler:
    """Return the function that turns noise and class weights into uint8 images."""
    solve = make_solver(generator, config)

    @torch.no_grad()
    def sample(noise: Tensor, class_weights: Tensor) -> Tensor:
        images = solve(noise, class_weights)
        if decode := getattr(generator, "decode", None):
            images = decode(images)
        fix = "try --precision float32 or more steps; a generator that does so still is broken"
        require(images.isfinite().all(), "the generator drew NaN or infinity", generator.name, fix)
        return to_uint8(images)

    return sample


def make_solver(generator: Generator, config: MixConfig) -> Sampler:
    """Return the function that turns noise and class weights into images or latents as floats."""
    config = config.resolve(generator.device)
    can, fix = config.emphasis == 1 or getattr(generator, "takes_emphasis", False), "use one of our own networks"
    require(can, "emphasis needs class weights beyond 0 and 1", generator.name, f"{fix}, or emphasis 1 (none)")
    can, fix = config.guidance == 1 or getattr(generator, "knows_no_class", False), "use one trained with label dropout"
    require(can, "guidance needs a generator that knows no class", generator.name, f"{fix}, or guidance 1 (none)")
    solve, device = solver(config.solver), generator.device
    sigmas = karras_sigmas(config.num_steps, config.sigma_min, config.sigma_max, config.rho)
    denoise = generator.denoise
    if config.compile == "on":
        denoise = torch.compile(denoise, dynamic=False)
    bfloat16 = torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bfloat16")

    @torch.no_grad()
    def solution(noise: Tensor, class_weights: Tensor) -> Tensor:
        weights = emphasised(class_weights.to(device), config.emphasis)

        def denoise_at(x: Tensor, sigma: float) -> Tensor:
            level = x.new_full((len(x),), sigma)
            with bfloat16:
                clean = denoise(x, level, weights).float()
                if config.guidance != 1:
                    of_no_class = denoise(x, level, torch.zeros_like(weights)).float()
                    clean = of_no_class.lerp(clean, config.guidance)
            if not config.grain or sigma >= FINE:
                return clean
            # Epsilon scaling: Ning et al. 2023, https://arxiv.org/abs/2308.15321.
            return x - (x - clean) / (1 + config.grain)

        return solve(denoise_at, noise.to(device) * sigmas[0], sigmas)

    return solution


def emphasised(class_weights: Tensor, emphasis: float) -> Tensor:
    """Return class weights [N, K] stretched away from the mean of all classes; sums stay.

    >>> emphasised(torch.eye(2), 1.5)
    tensor([[ 1.2500, -0.2500],
            [-0.2500,  1.2500]])
    """
    mean = class_weights.mean(1, keepdim=True)
    return mean.lerp(class_weights, emphasis)


def to_uint8(images: Tensor) -> Tensor:
    """Return images in [-1, 1] as uint8, by EDM's rounding."""
    return (images * 127.5 + 128).clip(0, 255).to(torch.uint8)


def sample_padded(sample: Sampler, noise: Tensor, class_weights: Tensor, batch_size: int) -> Tensor:
    """Return the images, uint8 on the CPU, drawn in batches of exactly `batch_size`.

    The last batch is filled up with copies of its last row, which are dropped again.
    """
    images = []
    for rows in chunks(range(len(noise)), batch_size):
        padded = torch.tensor([*rows, *[rows[-1]] * (batch_size - len(rows))])
        images.append(sample(noise[padded], class_weights[padded])[: len(rows)].cpu())
    return torch.cat(images)


def chunks(items: range, size: int) -> list[range]:
    """Return the items in pieces of at most `size`."""
    return [items[k : k + size] for k in range(0, len(items), size)]


def check_knows_classes(generator: Generator, least: int) -> None:
    """Refuse a generator with fewer classes than a task needs: one to draw, two to mix."""
    what = "this generator knows no classes to " + ("mix" if least > 1 else "draw")
    seen = f"{generator.num_classes} in {generator.name}, {least} at least are needed"
    fix = "choose a class-conditional one, trained on such classes"
    require(generator.num_classes >= least, what, seen, fix)


def sample_classes(generator: Generator, per_class: int, config: MixConfig, seed: int = 0) -> Tensor:
    """Return `per_class` images of every class, uint8 [K, per_class, C, H, W].

    Image m of class k starts from a noise of its own, whatever the other numbers are. Fewer images
    than a batch are drawn as one of their own size.
    """
    require(per_class >= 1, "no images to draw", f"per_class={per_class}", "ask for at least 1")
    check_knows_classes(generator, 1)
    shape = getattr(generator, "latent_shape", generator.image_shape)
    num_classes = generator.num_classes
    seeds = [fold_seed("class", seed, k, m) for k in range(num_classes) for m in range(per_class)]
    noise = torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(s)) for s in seeds])
    class_weights = torch.eye(num_classes).repeat_interleave(per_class, dim=0)
    sample = make_sampler(generator, config)
    batch_size = min(config.images_at_once(generator.device), len(noise))
    images = sample_padded(sample, noise, class_weights, batch_size)
    return images.unflatten(0, (num_classes, per_class))


def write_grid(path: Path, images: Tensor, pixels: int = 64) -> None:
    """Write uint8 images [rows, columns, C, H, W] as one PNG, each about `pixels` wide."""
    from PIL import Image

    images = torch.nn.functional.pad(images, (0, 1, 0, 1), value=128)  # a grey line between them
    rows, columns, channels, height, width = images.shape
    tall = images.permute(0, 3, 1, 4, 2).reshape(rows * height, columns * width, channels)
    picture = Image.fromarray(tall.squeeze(2).numpy())  # grey images have no channel axis
    zoom = max(1, round(pixels / width))
    picture = picture.resize((columns * width * zoom, rows * height * zoom), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    write_bytes(path, buffer.getvalue())
