"""Train a generator: the EDM recipe, scaled to a budget given in images or minutes.

    generator/generator.json        network, settings, which average was chosen, the training split
    generator/weights.safetensors   the chosen average
    generator/stats.jsonl           the loss curve
    generator/samples-*.png         samples on the way and at the end, one row per class

References: Karras et al. 2022, https://arxiv.org/abs/2206.00364 (EDM), table 1 and appendix F.
"""

from __future__ import annotations

import copy
import math
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from tyro.conf import arg

from semmix.core.artifact import begin_artifact, working_alone
from semmix.core.checks import check_positive, check_share, check_two_classes
from semmix.core.device import pick_device, to_device
from semmix.core.errors import SemmixError
from semmix.core.files import digest_tensors, read_json, write_json
from semmix.core.progress import progress
from semmix.core.runtime import Runtime
from semmix.core.seeds import fold_seed
from semmix.core.settings import plain, unnamed
from semmix.diffusion import find_folder
from semmix.diffusion.class_samples import sample_classes, write_grid
from semmix.diffusion.edm import EDMConfig, EDMDenoiser, network_preset
from semmix.diffusion.sampling import MixConfig
from semmix.diffusion.stored import MANIFEST, NetworkGenerator, load_stored, save_generator
from semmix.training.checkpoint import (
    append_stats,
    load_checkpoint,
    load_optimizer,
    optimizer_tensors,
    rewind_stats,
    save_checkpoint,
)
from semmix.training.distributed import average_over_processes, from_first, join_processes, own_draws, wait_for_all
from semmix.training.ema import PowerEMA
from semmix.training.graphs import CapturedStep
from semmix.training.stopping import ctrl_c_between_steps

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
        has_minutes = self.minutes is None or 0 < self.minutes < math.inf
        if self.num_images < 1 or not has_minutes:
            seen = f"num_images={self.num_images}, minutes={self.minutes}"
            raise SemmixError("a run needs a length", seen, "give positive images or minutes")
        check_positive(batch_size=self.batch_size, lr=self.lr, noise_std=self.noise_std)
        if not math.isfinite(self.noise_mean):
            fix = f"{NOISE_MEAN} is the usual choice"
            raise SemmixError("noise_mean must be a finite number", self.noise_mean, fix)
        check_share(label_dropout=self.label_dropout, beta_1=self.betas[0], beta_2=self.betas[1])
        if not (min(self.warmup, self.decay) >= 0 and self.warmup + self.decay <= 1):
            seen = f"warmup={self.warmup}, decay={self.decay}"
            raise SemmixError("warm-up and decay are parts of the run", seen, "at most 1 together")
        if not self.ema_lengths or not all(0 < length <= 0.25 for length in self.ema_lengths):
            fix = "give parts of the run between 0 and 0.25"
            raise SemmixError("unusable EMA lengths", self.ema_lengths, fix)


def train_generator(
    images: Tensor,
    labels: Tensor,
    num_classes: int,
    trained_on: str | None,
    config: GeneratorConfig,
    out: str | Path,
    held_out: tuple[Tensor, Tensor] | None = None,
    runtime: Runtime = Runtime(),
) -> Path:
    """Return the folder `out` with a generator trained on `images`.

    Kill it at any moment; the same call goes on from the last checkpoint and ends with the same
    bytes. Ctrl-C saves one first. Under `torchrun` each process takes its share of every batch.

    Args:
        images: uint8 [N, C, H, W], the training split and nothing else.
        labels: int64 [N].
        num_classes: Classes of the data set.
        trained_on: Digest of the training split.
        config: The settings.
        out: Folder of the artifact.
        held_out: Images and labels that choose among the weight averages.
        runtime: Where it runs and how often it saves its state.
    """
    with ExitStack() as until_the_end:
        given = (images, labels, num_classes, trained_on, config, Path(out), held_out, runtime)
        return _train(*given, until_the_end)


def _train(
    images: Tensor,
    labels: Tensor,
    num_classes: int,
    trained_on: str | None,
    config: GeneratorConfig,
    out: Path,
    held_out: tuple[Tensor, Tensor] | None,
    runtime: Runtime,
    until_the_end: ExitStack,
) -> Path:
    device, shape = pick_device(runtime.device), tuple(images.shape[1:])
    network_config = _network_config(config, images, num_classes)
    check_two_classes(labels, "generator")
    rank, world_size = join_processes(device, config.batch_size)

    # ---- all that wrong settings can break comes before the folder is claimed for them
    start = load_stored(find_folder(config.init), torch.device("cpu")) if config.init else None
    torch.manual_seed(fold_seed(config.seed, "generator weights"))
    network = EDMDenoiser(network_config)
    if start:
        _start_from(start, network, trained_on)
    inputs = _inputs(images, labels, num_classes, trained_on, held_out, config)
    inputs["init"] = start.digest if start else None
    artifact = begin_artifact(out, MANIFEST, "generator", inputs)
    wait_for_all(world_size)  # none may finish before all have looked
    checkpoint = out / "checkpoint.safetensors"
    if artifact.finished:
        checkpoint.unlink(missing_ok=True)
        return out
    if rank == 0:
        until_the_end.enter_context(working_alone(artifact))

    # ---- network, optimiser, averages; the whole data set lives on the device
    network = to_device(network, device).train()
    weights = {name: p.detach() for name, p in network.named_parameters()}
    initial = {name: weight.clone() for name, weight in weights.items()}
    optimizer = torch.optim.Adam(network.parameters(), config.lr, config.betas, fused=True)
    emas = [PowerEMA(weights, length) for length in config.ema_lengths]
    data, classes = images.to(device), nn.functional.one_hot(labels, num_classes).float().to(device)

    # ---- one step; on a GPU, without other processes, gradients come from one captured graph
    gradients = gradient_step(network, data, classes, config, rank, world_size)
    gradients.prepare()

    def train_step(step: int, lr: float) -> Tensor:
        torch.manual_seed(fold_seed(config.seed, "generator step", step))
        loss = gradients()
        average_over_processes([loss, *_gradients_of(network)], world_size)
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
        return loss

    # ---- the length of the run, fixed once
    num_images = _run_length(config, out, train_step, device, rank, world_size)
    num_steps = math.ceil(num_images / config.batch_size)
    _load_in_place(weights, initial)
    optimizer.state.clear()

    # ---- go on from a checkpoint
    step, loss_sum = 0, torch.zeros((), device=device)
    if checkpoint.exists():
        groups, header = load_checkpoint(checkpoint)
        step, loss_sum = header["step"], groups["loss"]["sum"].to(device)
        _load_in_place(weights, groups["weights"])
        load_optimizer(optimizer, groups["optimizer"])
        for k, ema in enumerate(emas):
            _load_in_place(ema.weights, groups[f"ema{k}"])
    if rank == 0:
        rewind_stats(out / "stats.jsonl", step * config.batch_size)

    # ---- the loop
    stats_steps, bad_windows = max(1, num_steps // NUM_STATS), 0
    grid_steps = {round(num_steps * k / config.num_grids) for k in range(1, config.num_grids)}
    saved = time.monotonic()
    with (
        progress("images seen", num_steps * config.batch_size, step * config.batch_size) as bar,
        ctrl_c_between_steps(world_size) as stop_wanted,
    ):
        while step < num_steps:
            lr = learning_rate((step + 0.5) / num_steps, config)
            loss_sum += train_step(step, lr)
            step += 1
            for ema in emas:
                ema.update(weights, step)
            bar.advance(config.batch_size)
            if rank != 0:
                continue
            if step % stats_steps == 0:
                row = {"nimg": step * config.batch_size, "loss": loss_sum.item() / stats_steps}
                append_stats(out / "stats.jsonl", {**row, "lr": lr})
                bar.advance(0, f"loss {row['loss']:.4f}")
                loss_sum.zero_()
                bad_windows = 0 if math.isfinite(row["loss"]) else bad_windows + 1
                if bad_windows == MAX_BAD_WINDOWS:
                    raise _diverged(row["loss"], out)
            if step in grid_steps:
                name = f"samples-{100 * step // num_steps:03d}.png"
                _write_samples(out / name, with_average(network, emas[0]), shape, num_classes)
            stopping = stop_wanted()
            if stopping or time.monotonic() - saved >= runtime.checkpoint_seconds:
                groups = {"weights": weights, "optimizer": optimizer_tensors(optimizer)}
                groups |= {f"ema{k}": ema.weights for k, ema in enumerate(emas)}
                groups["loss"] = {"sum": loss_sum}
                save_checkpoint(checkpoint, groups, {"step": step})
                saved = time.monotonic()
            if stopping:
                raise KeyboardInterrupt

    # ---- choose the average, write the artifact
    if rank == 0:
        averaged = [with_average(network, ema) for ema in emas]
        losses = held_out_losses(averaged, held_out, num_classes)
        best = losses.index(min(losses)) if losses else 0
        _write_samples(out / "samples-100.png", averaged[best], shape, num_classes)
        state = averaged[best].state_dict()
        for name in weights:  # buffers (noise frequencies) stay exact
            state[name] = state[name].to(getattr(torch, config.weights_dtype))
        save_generator(
            artifact,
            network_config,
            state,
            trained_on,
            num_images=num_steps * config.batch_size,
            ema_length=config.ema_lengths[best],
            held_out_losses=losses,
            label_dropout=config.label_dropout,
        )
        checkpoint.unlink(missing_ok=True)
    wait_for_all(world_size)
    return out


def _diverged(loss: float, out: Path) -> SemmixError:
    fix = (
        "lower --lr or lengthen --warmup (of semmix fit: --generator.lr, --generator.warmup), and "
        f"choose another folder than {out}"
    )
    return SemmixError("training diverged: the generator's loss is not finite", loss, fix)


def gradient_step(
    network: EDMDenoiser, images: Tensor, classes: Tensor, config: GeneratorConfig, rank: int = 0, world_size: int = 1
) -> CapturedStep:
    """Return the step that draws a batch and leaves its gradients; calling it returns the loss.

    Every process draws the whole batch and keeps its share, so their number does not matter but
    for dropout. Several capture no graph: its draws could not be seeded apart for that.
    """
    device, on_gpu = images.device, images.device.type == "cuda"
    quick = torch.compile(network, dynamic=False) if on_gpu else network
    denoise = own_draws(quick, rank, world_size)
    own = slice(*(config.batch_size * r // world_size for r in (rank, rank + 1)))

    def body() -> Tensor:
        clean, wanted, sigma, noise = (part[own] for part in draw_batch(images, classes, config))
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            loss = denoising_loss(denoise, clean, wanted, sigma, noise, network.sigma_data).mean()
        loss.backward()
        for grad in _gradients_of(network):
            grad.nan_to_num_(0.0, 0.0, 0.0)  # one bad batch must not end a run
        return loss.detach()

    step = CapturedStep(body, network.parameters(), device)
    step.captures &= world_size == 1
    return step


def _gradients_of(network: nn.Module) -> list[Tensor]:
    return [p.grad for p in network.parameters() if p.grad is not None]


def draw_batch(images: Tensor, classes: Tensor, config: GeneratorConfig) -> tuple[Tensor, ...]:
    """Return random clean images in [-1, 1], class weights, noise levels and noise.

    Draws from the default generator, as every training step does.
    """
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


def learning_rate(done: float, config: GeneratorConfig) -> float:
    """Return the learning rate when `done` of the run (0 to 1) is over: up, hold, down to 0."""
    rising = done / config.warmup if config.warmup else 1.0
    falling = (1 - done) / config.decay if config.decay else 1.0
    return config.lr * min(1.0, rising, falling)


def held_out_losses(
    networks: list[EDMDenoiser], held_out: tuple[Tensor, Tensor] | None, num_classes: int, batch_size: int = 256
) -> list[float]:
    """Return the denoising loss of each network on held-out images; [] where there are none.

    All see the same noise, at levels spread evenly over EDM's, whatever they were trained with.
    """
    if held_out is None:
        return []
    images, labels = held_out
    classes = nn.functional.one_hot(labels, num_classes).float()
    fixed = torch.Generator().manual_seed(fold_seed("held-out noise"))
    noise = torch.randn(images.shape, generator=fixed)
    ranks = (torch.randperm(len(images), generator=fixed) + 0.5) / len(images)
    sigma = (NOISE_MEAN + NOISE_STD * torch.special.ndtri(ranks)).exp()
    parts = (images.float() / 127.5 - 1, classes, sigma, noise)
    batches = list(zip(*(part.split(batch_size) for part in parts), strict=True))
    return [_mean_loss(network, batches) for network in networks]


@torch.no_grad()
def _mean_loss(network: EDMDenoiser, batches: list[tuple[Tensor, ...]]) -> float:
    device, losses = next(network.parameters()).device, []
    for batch in batches:
        clean, classes, sigma, noise = (part.to(device) for part in batch)
        losses.append(denoising_loss(network, clean, classes, sigma, noise, network.sigma_data))
    return torch.cat(losses).mean().item()


def with_average(network: EDMDenoiser, ema: PowerEMA) -> EDMDenoiser:
    """Return a copy of the network with averaged weights, ready for use."""
    averaged = copy.deepcopy(network).eval().requires_grad_(False)
    _load_in_place(dict(averaged.named_parameters()), ema.weights)
    return averaged


def _write_samples(path: Path, network: EDMDenoiser, shape: tuple, num_classes: int) -> None:
    generator = NetworkGenerator("in training", network, shape, num_classes, None, "")
    columns = max(1, min(GRID_COLUMNS, GRID_IMAGES // num_classes))
    settings = MixConfig(compile="off", batch_size=GRID_IMAGES)
    write_grid(path, sample_classes(generator, columns, settings))


def _inputs(images, labels, num_classes, trained_on, held_out, config) -> dict[str, Any]:
    """Return what the artifact was made from, as plain JSON values."""
    return {
        "images": digest_tensors({"images": images, "labels": labels}),
        "num_classes": num_classes,
        "trained_on": trained_on,
        "held_out": digest_tensors(dict(zip("xy", held_out, strict=True))) if held_out else None,
        "config": plain(config),
    }


def _network_config(config: GeneratorConfig, images: Tensor, num_classes: int) -> EDMConfig:
    shape = tuple(images.shape[1:])
    if images.dtype != torch.uint8 or len(shape) != 3:
        seen = f"{images.dtype} {tuple(images.shape)}"
        raise SemmixError("training images must be uint8 [N, C, H, W]", seen, "convert them")
    if isinstance(config.network, str):
        return network_preset(config.network, shape, num_classes)
    network = config.network
    wanted = (network.channels, network.resolution, network.resolution)
    if wanted != shape or network.num_classes != num_classes:
        seen = f"images {shape} of {num_classes} classes, network {wanted} of {network.num_classes}"
        raise SemmixError("the network does not fit the data", seen, "change the network")
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
    if start.trained_on != trained_on:
        seen = f"{start.name} learned from split {start.trained_on}, this run from {trained_on}"
        fix = "start from a generator of this very split, or from none"
        raise SemmixError("the generator to start from saw other images", seen, fix)
    try:
        network.load_state_dict(start.network.state_dict())
    except RuntimeError as error:
        fix = "choose the network it was trained with"
        raise SemmixError(f"{start.name} has another network", error, fix) from error


def _load_in_place(weights: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    """Copy `values` into `weights`, whose memory a captured graph may hold on to."""
    for name, weight in weights.items():
        weight.copy_(values[name])
