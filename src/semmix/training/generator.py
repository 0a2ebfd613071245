"""Train a generator: the EDM recipe, scaled to a budget given in images or minutes.

    generator/generator.json        network, settings, which average was chosen, the training split
    generator/weights.safetensors   the chosen average
    generator/stats.jsonl           the loss curve
    generator/samples-*.png         samples on the way and at the end, one row per class

References: Karras et al. 2022, https://arxiv.org/abs/2206.00364 (EDM), table 1 and appendix F; Karras et al. 2024,
https://arxiv.org/abs/2312.02696 (EDM2), section 3.1, for the averages.
"""

import copy
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot
from tyro.conf import arg

from semmix.core.checks import check_positive, check_share, check_two_classes
from semmix.core.device import pick_device, to_device
from semmix.core.errors import explaining, require
from semmix.core.files import digest_tensors, read_json, write_json
from semmix.core.runtime import Runtime
from semmix.core.seeds import fold_seed
from semmix.core.settings import plain, unnamed
from semmix.data import Dataset, Split
from semmix.diffusion import find_folder
from semmix.diffusion.edm import EDMConfig, EDMDenoiser, network_preset
from semmix.diffusion.sampling import MixConfig, sample_classes, write_grid
from semmix.diffusion.stored import MANIFEST, NetworkGenerator, load_stored, save_generator
from semmix.training.distributed import average_over_processes, from_first, gradients_of, join_processes, own_draws
from semmix.training.engine import claim, unchanged
from semmix.training.graphs import CapturedStep

NOISE_MEAN, NOISE_STD = -1.2, 1.2
"""EDM's noise levels for small images: ln sigma ~ N(NOISE_MEAN, NOISE_STD^2)."""
NUM_TIMED_STEPS = 20
TIMED_SHARE = 0.02
"""Part of a budget in minutes that the timed steps of its speed test may take."""
NUM_STATS = 200
MAX_BAD_WINDOWS = 2
"""Windows of stats in a row without a finite loss: one may be a single bad batch, two are not."""
GRID_COLUMNS = 8
GRID_IMAGES = 512
"""A grid of many classes has fewer columns; this many images are drawn at once."""


@dataclass(frozen=True, kw_only=True)
class GeneratorConfig:
    """How a generator is trained."""

    network: Annotated[str | EDMConfig, arg(constructor=str)] = "compact32"
    """A preset's name, or the whole network."""
    init: str | None = field(default=None, metadata=unnamed(before=None))
    """Start from this generator (a folder or zoo:NAME), which learned from the same images."""
    num_images: int = 10_000_000
    """Length of the run in images seen."""
    minutes: float | None = None
    """Length of the run in minutes instead; a speed test at the start turns it into images.
    Compiling, some two minutes on a GPU, comes before it."""
    batch_size: int = 512
    """Images per step, over all processes."""
    lr: float = 1e-3
    """Highest learning rate of Adam."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's memories."""
    warmup: float = 0.03
    """Part of the run in which the learning rate rises to `lr`."""
    decay: float = 0.35
    """Part of the run, at its end, in which the learning rate falls to 0."""
    ema_lengths: tuple[float, ...] = (0.1, 0.05, 0.15)
    """Lengths of the weight averages as parts of the run; held-out images choose, or the first."""
    label_dropout: float = 0.0
    """Part of the images shown without their class; 0.1 where guidance is wanted."""
    flip: bool = False
    """Mirror half of the images."""
    even_out: bool = field(default=False, metadata=unnamed())
    """Show rare classes more often, by the root of how rare they are."""
    noise_mean: float = NOISE_MEAN
    """Mean of ln sigma in training; higher values practise shapes more and details less."""
    noise_std: float = NOISE_STD
    """Standard deviation of ln sigma in training."""
    seed: int = 0
    """Seed of the whole run."""
    num_grids: int = 4
    """Sample grids written over the run."""
    weights_dtype: Literal["float32", "bfloat16"] = "float32"
    """How the chosen average is stored."""

    def __post_init__(self) -> None:
        seen = f"num_images={self.num_images}, minutes={self.minutes}"
        has_length = self.num_images >= 1 and (self.minutes is None or 0 < self.minutes < math.inf)
        require(has_length, "a run needs a length", seen, "give positive images or minutes")
        check_positive(batch_size=self.batch_size, lr=self.lr, noise_std=self.noise_std)
        fix = f"{NOISE_MEAN} is the usual choice"
        require(math.isfinite(self.noise_mean), "noise_mean must be a finite number", self.noise_mean, fix)
        check_share(label_dropout=self.label_dropout, beta_1=self.betas[0], beta_2=self.betas[1])
        fits, seen = self.warmup + self.decay <= 1, f"warmup={self.warmup}, decay={self.decay}"
        are_parts = min(self.warmup, self.decay) >= 0 and fits
        require(are_parts, "warm-up and decay are parts of the run", seen, "at most 1 together")
        usable = self.ema_lengths and all(0 < length <= 0.25 for length in self.ema_lengths)
        require(usable, "unusable EMA lengths", self.ema_lengths, "give parts of the run between 0 and 0.25")


def train_generator(
    data: Dataset, config: GeneratorConfig, out: str | Path, runtime: Runtime = Runtime()
) -> NetworkGenerator:
    """Train a generator of class-conditional images on the training split and nothing else.

    Kill it at any moment: the same call goes on from the last checkpoint and ends with the same bytes. Ctrl-C saves
    one first. Under `torchrun` each process takes its share of every batch.

    Args:
        data: The images; those of the validation split choose among the weight averages.
        config: The network and how it is trained.
        out: Folder of the generator.
        runtime: Where it runs and how often it saves its state.

    Returns:
        The generator, ready to draw images; its `folder` is `out`.

    Raises:
        SemmixError: If the network does not fit the data, the folder holds a generator of other inputs or another
            process works in it, or training diverges.

    Example:
        >>> import tempfile
        >>> from semmix import load_dataset
        >>> config = GeneratorConfig(network="digits", num_images=128, batch_size=64, num_grids=1)
        >>> generator = train_generator(load_dataset("digits"), config, tempfile.mkdtemp())  # doctest: +ELLIPSIS
        images seen: ...
        >>> generator.image_shape, generator.num_classes
        ((1, 8, 8), 10)
    """
    out, device = Path(out), pick_device(runtime.device)
    check_two_classes(data.train.labels, "generator")
    network_config = _network_config(config, data)
    rank, world_size = join_processes(device, config.batch_size)

    # All that wrong settings can break comes before the folder is claimed for them.
    split = evened_out(data.train, data.num_classes) if config.even_out else data.train
    held_out = data.val if len(data.val) else None
    start = load_stored(find_folder(config.init), torch.device("cpu")) if config.init else None
    torch.manual_seed(fold_seed(config.seed, "generator weights"))
    network = EDMDenoiser(network_config)
    if start:
        _start_from(start, network, data.train.digest)
    inputs = {
        "images": digest_tensors({"images": split.images, "labels": split.labels}),
        "num_classes": data.num_classes,
        "trained_on": data.train.digest,
        "held_out": digest_tensors({"x": held_out.images, "y": held_out.labels}) if held_out else None,
        "config": plain(config),
        "init": start.digest if start else None,
    }
    with claim(out, MANIFEST, "generator", inputs, runtime, rank, world_size) as engine:
        if engine is None:
            return load_stored(out, device)

        # Network, optimiser, averages; the whole data set lives on the device.
        network = to_device(network, device).train()
        weights = {name: p.detach() for name, p in network.named_parameters()}
        optimizer = torch.optim.Adam(network.parameters(), config.lr, config.betas, fused=True)
        emas = [PowerEMA(weights, length) for length in config.ema_lengths]
        images, classes = split.images.to(device), one_hot(split.labels, data.num_classes).float().to(device)
        gradients = gradient_step(network, images, classes, config, rank, world_size)

        def train_step(step: int, lr: float) -> Tensor:
            torch.manual_seed(fold_seed(config.seed, "generator step", step))
            loss = gradients()
            average_over_processes([loss, *gradients_of(network)], world_size)
            optimizer.param_groups[0]["lr"] = lr
            optimizer.step()
            return loss

        # The length of the run, fixed once; a speed test leaves neither weights nor memory behind.
        with unchanged({"weights": weights}):
            gradients.prepare()
            num_images = _run_length(config, out, train_step, device, rank, world_size)
        optimizer.state.clear()
        num_steps = math.ceil(num_images / config.batch_size)
        stats_steps, bad_windows = max(1, num_steps // NUM_STATS), 0
        grid_steps = {round(num_steps * k / config.num_grids) for k in range(1, config.num_grids)}

        # Everything that changes during the run: it is what a checkpoint holds.
        loss_sum = torch.zeros((), device=device)
        averages = {f"ema{k}": ema.weights for k, ema in enumerate(emas)}
        engine.resume({"weights": weights, "loss": {"sum": loss_sum}, **averages}, optimizer)
        for step in engine.steps("images seen", num_steps, config.batch_size):
            lr = generator_lr(config, (step + 0.5) / num_steps)
            loss_sum += train_step(step, lr)
            done = step + 1
            for ema in emas:
                ema.update(weights, done)
            if done % stats_steps == 0:
                row = {"nimg": done * config.batch_size, "loss": loss_sum.item() / stats_steps, "lr": lr}
                engine.record(row, f"loss {row['loss']:.4f}")
                loss_sum.zero_()
                bad_windows = 0 if math.isfinite(row["loss"]) else bad_windows + 1
                ways = "lower --lr or lengthen --warmup (of semmix fit: --generator.lr, --generator.warmup)"
                fix = f"{ways}, and choose another folder than {out}"
                what = "training diverged: the generator's loss is not finite"
                require(bad_windows < MAX_BAD_WINDOWS, what, row["loss"], fix)
            if done in grid_steps and rank == 0:
                _write_samples(out / f"samples-{100 * done // num_steps:03d}.png", with_average(network, emas[0]), data)

        # Choose the average, write the artifact.
        if rank == 0:
            averaged = [with_average(network, ema) for ema in emas]
            losses = held_out_losses(averaged, held_out, data.num_classes)
            best = losses.index(min(losses)) if losses else 0
            _write_samples(out / "samples-100.png", averaged[best], data)
            state = averaged[best].state_dict()
            for name in weights:  # buffers (noise frequencies) stay exact
                state[name] = state[name].to(getattr(torch, config.weights_dtype))
            facts = {"num_images": num_steps * config.batch_size, "ema_length": config.ema_lengths[best]}
            facts |= {"held_out_losses": losses, "label_dropout": config.label_dropout}
            save_generator(engine.artifact, network_config, state, data.train.digest, **facts)
    return load_stored(out, device)


def evened_out(split: Split, num_classes: int) -> Split:
    """Return a split that repeats the images of rare classes, by the root of how rare they are."""
    counts = torch.bincount(split.labels, minlength=num_classes)
    times = (counts.max() / counts.clamp(min=1)).sqrt().round().long()[split.labels]
    return split.select(torch.arange(len(split)).repeat_interleave(times))


def gradient_step(
    network: EDMDenoiser, images: Tensor, classes: Tensor, config: GeneratorConfig, rank: int = 0, world_size: int = 1
) -> CapturedStep:
    """Return the step that draws a batch and leaves its gradients; calling it returns the loss.

    Every process draws the whole batch and keeps its share, so their number does not matter but for dropout. Several
    capture no graph: its draws could not be seeded apart for that.
    """
    device, on_gpu = images.device, images.device.type == "cuda"
    denoise = own_draws(torch.compile(network, dynamic=False) if on_gpu else network, rank, world_size)
    own = slice(*(config.batch_size * r // world_size for r in (rank, rank + 1)))

    def body() -> Tensor:
        clean, wanted, sigma, noise = (part[own] for part in draw_batch(images, classes, config))
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            loss = denoising_loss(denoise, clean, wanted, sigma, noise, network.sigma_data).mean()
        loss.backward()
        for grad in gradients_of(network):
            grad.nan_to_num_(0.0, 0.0, 0.0)  # one bad batch must not end a run
        return loss.detach()

    return CapturedStep(body, network.parameters(), device, world_size)


def draw_batch(images: Tensor, classes: Tensor, config: GeneratorConfig) -> tuple[Tensor, ...]:
    """Return random clean images in [-1, 1], class weights, noise levels and noise, by the default generator."""
    size, device = config.batch_size, images.device
    index = torch.randint(len(images), (size,), device=device)
    clean = images[index].float() / 127.5 - 1
    if config.flip:
        mirrored = torch.rand(size, 1, 1, 1, device=device) < 0.5
        clean = torch.where(mirrored, clean.flip(3), clean)
    class_weights = classes[index]
    if config.label_dropout:
        kept = torch.rand(size, 1, device=device) >= config.label_dropout
        class_weights = class_weights * kept
    sigma = (config.noise_mean + config.noise_std * torch.randn(size, device=device)).exp()
    return clean, class_weights, sigma, torch.randn_like(clean)


def denoising_loss(
    denoise, clean: Tensor, class_weights: Tensor, sigma: Tensor, noise: Tensor, sigma_data: float
) -> Tensor:
    """Return EDM's weighted squared error of each image, averaged over its pixels, [N]."""
    noisy = clean + sigma.reshape(-1, 1, 1, 1) * noise
    error = (denoise(noisy, sigma, class_weights) - clean).square().flatten(1).mean(1)
    return error * (sigma**2 + sigma_data**2) / (sigma * sigma_data) ** 2


def generator_lr(config: GeneratorConfig, done: float) -> float:
    """Return the learning rate when `done` of the run (0 to 1) is over: up, hold, down to 0."""
    rising = done / config.warmup if config.warmup else 1.0
    falling = (1 - done) / config.decay if config.decay else 1.0
    return config.lr * min(1.0, rising, falling)


@torch.no_grad()
def held_out_losses(
    networks: list[EDMDenoiser], held_out: Split | None, num_classes: int, batch_size: int = 256
) -> list[float]:
    """Return the denoising loss of each network on held-out images; [] where there are none.

    All see the same noise, at levels spread evenly over EDM's, whatever they were trained with.
    """
    if held_out is None:
        return []
    fixed = torch.Generator().manual_seed(fold_seed("held-out noise"))
    noise = torch.randn(held_out.images.shape, generator=fixed)
    ranks = (torch.randperm(len(held_out), generator=fixed) + 0.5) / len(held_out)
    sigma = (NOISE_MEAN + NOISE_STD * torch.special.ndtri(ranks)).exp()
    parts = (held_out.images.float() / 127.5 - 1, one_hot(held_out.labels, num_classes).float(), sigma, noise)
    batches = list(zip(*(part.split(batch_size) for part in parts), strict=True))
    means = []
    for network in networks:
        device = next(network.parameters()).device
        losses = []
        for batch in batches:
            clean, classes, sigma, noise = (part.to(device) for part in batch)
            losses.append(denoising_loss(network, clean, classes, sigma, noise, network.sigma_data))
        means.append(torch.cat(losses).mean().item())
    return means


def gamma_of_length(length: float) -> float:
    """Return gamma such that the profile's standard deviation is `length` of the run.

    Solves length^2 = (gamma + 1) / ((gamma + 2)^2 (gamma + 3)).

    >>> round(gamma_of_length(0.1), 2)
    6.94
    """
    t = length**-2
    return float(np.roots([1, 7, 16 - t, 12 - t]).real.max())


class PowerEMA:
    """An average of a network's weights over the last part of training.

    The weight of step t is proportional to t^gamma (EDM2's power-function profile): an average's length is a fraction
    of the run so far, so it needs no warm-up and fits runs of any length.
    """

    def __init__(self, weights: dict[str, Tensor], length: float):
        self.length, self.gamma = length, gamma_of_length(length)
        self.weights = {name: weight.detach().clone() for name, weight in weights.items()}

    @torch.no_grad()
    def update(self, weights: dict[str, Tensor], step: int) -> None:
        """Take in the weights after step number `step` (from 1); the first replaces the start."""
        share = 1 - (1 - 1 / step) ** (self.gamma + 1)
        averages, news = list(self.weights.values()), list(weights.values())
        torch._foreach_lerp_(averages, news, share)  # pyright: ignore[reportPrivateImportUsage]


def with_average(network: EDMDenoiser, ema: PowerEMA) -> EDMDenoiser:
    """Return a copy of the network with averaged weights, ready for use."""
    averaged = copy.deepcopy(network).eval().requires_grad_(False)
    averaged.load_state_dict(ema.weights, strict=False)  # buffers stay
    return averaged


def _write_samples(path: Path, network: EDMDenoiser, data: Dataset) -> None:
    generator = NetworkGenerator("in training", network, data.image_shape, data.num_classes, None, "")
    columns = max(1, min(GRID_COLUMNS, GRID_IMAGES // data.num_classes))
    write_grid(path, sample_classes(generator, columns, MixConfig(compile="off", batch_size=GRID_IMAGES)))


def _network_config(config: GeneratorConfig, data: Dataset) -> EDMConfig:
    shape, num_classes, network = data.image_shape, data.num_classes, config.network
    if isinstance(network, str):
        return network_preset(network, shape, num_classes)
    wanted = (network.channels, network.resolution, network.resolution)
    seen = f"images {shape} of {num_classes} classes, network {wanted} of {network.num_classes}"
    fits = wanted == shape and network.num_classes == num_classes
    require(fits, "the network does not fit the data", seen, "change the network")
    return network


def _run_length(config, out: Path, train_step, device, rank: int, world_size: int) -> int:
    """Return the length of the run in images; a budget in minutes is measured once and kept."""
    if config.minutes is None:
        return config.num_images
    path = out / "budget.json"
    if path.exists():
        return read_json(path)["num_images"]
    budget = 60 * config.minutes
    seconds = speed_test(lambda step: train_step(step, config.lr), TIMED_SHARE * budget, device, world_size)
    num_images = from_first(round(budget / seconds * config.batch_size), world_size)
    if rank == 0:
        write_json(path, {"minutes": config.minutes, "num_images": num_images})
    return num_images


def speed_test(train_step, at_most: float, device: torch.device, world_size: int = 1) -> float:
    """Return the seconds a step takes: the mean of as many as fit `at_most`, of one at least.

    A GPU has them all: its steps are short, but the second may still compile something.
    """

    def timed(num_steps: int) -> float:
        _wait_for_device(device)
        start = time.monotonic()
        for step in range(num_steps):
            train_step(step)
        _wait_for_device(device)
        return (time.monotonic() - start) / num_steps

    timed(1)  # the first sets up what the others find ready
    seconds = timed(1)
    num_steps = NUM_TIMED_STEPS if device.type == "cuda" else int(at_most / max(seconds, 1e-9))
    num_steps = from_first(min(num_steps, NUM_TIMED_STEPS), world_size)
    if num_steps > 1:
        timed(num_steps)  # warms up
        seconds = timed(num_steps)
    return seconds


def _wait_for_device(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@torch.no_grad()
def _start_from(start: NetworkGenerator, network: EDMDenoiser, trained_on: str | None) -> None:
    """Give the network the weights of a generator that saw no other images."""
    seen = f"{start.name} learned from split {start.trained_on}, this run from {trained_on}"
    fix = "start from a generator of this very split, or from none"
    require(start.trained_on == trained_on, "the generator to start from saw other images", seen, fix)
    with explaining(f"{start.name} has another network", "choose the network it was trained with", RuntimeError):
        network.load_state_dict(start.network.state_dict())
