"""The classifier's training loop, for every method alike.

A run is a folder: `config.json`, `env.json`, `stats.jsonl` (one line per epoch; `tensorboard` shows them where it is
installed), `checkpoint` while it runs, then `weights`, `logits-val`, `logits-test` and `metrics.json`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor
from tyro.conf import arg

from semmix.annotation import Annotation
from semmix.calibration import TemperatureScaler, summary
from semmix.core import checks
from semmix.core.device import describe_environment, pick_device, to_device
from semmix.core.errors import require, unknown_name
from semmix.core.files import digest_tensors, write_json, write_tensors
from semmix.core.progress import say
from semmix.core.runtime import Runtime
from semmix.core.seeds import fold_seed
from semmix.core.settings import plain, unnamed
from semmix.data import Dataset
from semmix.methods import Batch, Method, list_methods
from semmix.methods import method as new_method
from semmix.networks import Classifier, classifier
from semmix.networks.predicting import predict_logits
from semmix.networks.saved import initial_classifier, save_classifier
from semmix.runs import MANIFEST, METRICS, Run, logits_file
from semmix.training import distributed
from semmix.training.batches import MixedImages, crop_and_flip, place_images, shuffled_batches
from semmix.training.engine import claim, unchanged
from semmix.training.graphs import CapturedStep, compiled
from semmix.training.mixed import MixedSource, load_mixed

SCHEDULES = ("multistep", "cosine")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a classifier is trained; the defaults are the published CIFAR recipe."""

    method: Annotated[str, arg(help=f"Calibration method: {', '.join(list_methods())}.")] = "csm"
    """Training-time calibration method; see semmix.list_methods()."""
    options: Mapping[str, object] = field(default_factory=dict, hash=False)
    """Options of the method as name=value, such as weight=0.5."""
    classifier: str = "resnet18"
    """Network."""
    init: str | None = field(default=None, metadata=unnamed())
    """Start from this network instead: a run's folder, an exported program (.pt2), or your own by
    package.module:name."""
    init_mean: tuple[float, ...] = field(default=(), metadata=unnamed())
    """Mean your network's images are normalised by, for pixels in [0, 1]; the data's by default."""
    init_std: tuple[float, ...] = field(default=(), metadata=unnamed())
    """Standard deviation they are divided by."""
    epochs: int = 200
    """Passes over the training images (see eq_data)."""
    batch_size: int = 128
    """Real images in a step; mixed images come on top."""
    lr: float = 0.1
    """Highest learning rate."""
    schedule: str = "multistep"
    """How the rate falls: multistep or cosine."""
    momentum: float = 0.9
    """Momentum of SGD."""
    weight_decay: float = 5e-4
    """Weight decay of SGD."""
    clip_norm: float | None = 2.0
    """Largest norm of the gradient; None leaves it as it is."""
    pad: int = 4
    """Random crops shift images by up to this many pixels."""
    flip: bool = True
    """Mirror half of the images."""
    eq_data: bool = False
    """Shorten epochs so that real and mixed images together are as many as real ones alone."""
    select: str = "last"
    """Weights to keep: last, or best (by validation accuracy)."""
    seed: int = 0
    """Seed of weights, order and augmentation."""
    allow_leak: bool = field(default=False, metadata=unnamed())
    """Accept mixed sets whose generator, encoder or annotation saw other images than the training split."""

    def __post_init__(self) -> None:
        seen = f"epochs={self.epochs}, batch_size={self.batch_size}"
        fix = "use at least 1 epoch and batches of 2"
        require(self.epochs >= 1 and self.batch_size >= 2, "nothing to train", seen, fix)
        checks.check_positive(lr=self.lr)
        if self.clip_norm is not None:
            checks.check_positive(clip_norm=self.clip_norm)
        checks.check_share(momentum=self.momentum)
        checks.check_not_negative(weight_decay=self.weight_decay, pad=self.pad)
        if self.schedule not in SCHEDULES:
            raise unknown_name("schedule", self.schedule, SCHEDULES)
        if self.select not in ("last", "best"):
            raise unknown_name("choice of weights", self.select, ("last", "best"))
        seen, named = f"init_mean={self.init_mean}, init_std={self.init_std}", self.init_mean or self.init_std
        require(self.init or not named, "these belong to a network of yours", seen, "name it with --init")
        positive = all(value > 0 for value in self.init_std)
        require(positive, "a standard deviation is positive", self.init_std, "use 1 for none")


def train(
    data: Dataset,
    config: TrainConfig,
    out: str | Path,
    mixed: Annotation | MixedSource | None = None,
    runtime: Runtime = Runtime(),
) -> Run:
    """Train a classifier on a data set, and on mixed sets if the method asks for them.

    Does nothing if the folder holds the finished run, goes on if it holds a part of it; a run that was stopped or
    killed ends as if nothing had happened. Under `torchrun` each process takes its share of every batch, and the
    first writes the files.

    Args:
        data: The real images.
        config: The method and how it is trained.
        out: Folder of the run.
        mixed: The annotation of mixed sets, for methods that learn from them; or those sets with labels of another
            scheme or scale (`semmix.training.mixed.load_mixed`).
        runtime: Where it runs and how often it saves its state.

    Returns:
        The finished run, with its logits, temperature and metrics.

    Raises:
        SemmixError: If the settings do not fit the data, mixed sets are missing or were made from other images, the
            folder holds a run of other inputs or another process works in it, or training diverges.

    Example:
        >>> import tempfile
        >>> from semmix import load_dataset
        >>> config = TrainConfig(method="ls", classifier="small", epochs=1, pad=0, flip=False)
        >>> run = train(load_dataset("digits", train_size=200), config, tempfile.mkdtemp())  # doctest: +ELLIPSIS
        train ...
        >>> run.method, run.temperature > 0
        ('ls', True)
    """
    out, device = Path(out), pick_device(runtime.device)
    checks.check_two_classes(data.train.labels, "classifier")
    checks.check_held_out(val=len(data.val), test=len(data.test))
    checks.check_square(data.image_shape)
    batch_size = min(config.batch_size, len(data.train))
    rank, world_size = distributed.join_processes(device, batch_size)

    # All that wrong settings can break comes before the folder is claimed for them.
    method = new_method(config.method, data.num_classes, **config.options)
    mixed = load_mixed(mixed.store, mixed) if isinstance(mixed, Annotation) else mixed
    if method.num_mixed:
        fix = "make mixed sets (semmix mix), annotate them, and pass both folders"
        require(mixed, f"method {config.method} learns from mixed sets", "none given", fix)
    mixed = mixed if method.num_mixed else None
    if mixed:
        mixed.check(data, config.allow_leak)
    network, network_name = first_network(config, data)
    with claim(out, MANIFEST, "run", _inputs(data, config, network, mixed), runtime, rank, world_size) as engine:
        if engine is None:
            return Run.open(out)
        if rank == 0 and not (out / "env.json").exists():
            write_json(out / "env.json", describe_environment())

        # Data live on the device for the whole run, but for images that do not fit in memory.
        images, labels = place_images(data.train.images, device), data.train.labels.to(device)
        val_images, val_labels = place_images(data.val.images, device), data.val.labels.to(device)
        sets = mixed.images.to(device) if mixed else None
        method.setup(labels)

        # A step is `batch_size` real images, with the mixed images of their classes.
        images_per_step = (1 + method.num_mixed) * batch_size
        steps_per_epoch = len(images) // batch_size
        if config.eq_data and method.num_mixed:
            steps_per_epoch = math.ceil(len(images) / images_per_step)
            if rank == 0 and (warning := surplus_warning(len(images), batch_size, method.num_mixed)):
                say(warning)
        total_steps = config.epochs * steps_per_epoch

        # The images of a step are put where the step, once captured, looks for them.
        index = torch.zeros(batch_size, dtype=torch.int64, device=device)
        pixels = torch.zeros(batch_size, *data.image_shape, dtype=torch.uint8, device=device)
        network = to_device(network, device).train()

        def next_batch() -> Batch:
            return make_batch(pixels, labels[index], index, sets, method.num_mixed, config)

        gradients = make_step(network, method, next_batch, config.clip_norm, rank, world_size)
        decay, fused = config.weight_decay, device.type == "cuda"
        optimizer = torch.optim.SGD(network.parameters(), config.lr, config.momentum, weight_decay=decay, fused=fused)

        # Everything that changes during the run, in one place: it is what a checkpoint holds.
        loss_sum, best = torch.zeros((), device=device), {"accuracy": torch.full((), -1.0)}
        groups = {"network": network.state_dict(), "method": method.state_dict(), "epoch": {"loss_sum": loss_sum}}
        with unchanged(groups):
            gradients.prepare()
        engine.resume({**groups, "best": best}, optimizer, finite=("epoch", "network"))

        batches = shuffled_batches(images, config.seed, engine.done, batch_size, device, rank, world_size)
        for step in engine.steps(f"train {out.name}", total_steps, images_per_step, curves=True):
            for place, values in zip((index, pixels), next(batches), strict=True):
                place.copy_(values)
            torch.manual_seed(fold_seed("step", config.seed, step))  # every random draw of the step comes from it
            loss_sum += gradients()
            lr = classifier_lr(config.schedule, config.lr, step / total_steps)
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            if (step + 1) % steps_per_epoch:
                continue

            # The end of an epoch: what is measured there, and what the method learns from it.
            loss = float(engine.finite(loss_sum)) / steps_per_epoch
            loss_sum.zero_()
            val_logits = engine.finite(predict_logits(network, val_images, fast=True))
            method.end_epoch(val_logits, val_labels)
            measured = summary(val_logits.softmax(1), val_labels)
            row = {
                "epoch": (step + 1) // steps_per_epoch,
                "nimg": (step + 1) * images_per_step,
                "loss": loss,
                "lr": lr,
                **{f"val_{k}": measured[k] for k in ("acc", "nll", "ece", "oe", "ue")},
            }
            engine.record(row, f"val acc {measured['acc']:.1%}, ECE {measured['ece']:.1%}")
            if config.select == "best" and measured["acc"] > best["accuracy"]:
                best.update({name: tensor.clone() for name, tensor in network.state_dict().items()})
                best["accuracy"] = torch.tensor(measured["acc"])

        if config.select == "best":
            network.load_state_dict({name: tensor for name, tensor in best.items() if name != "accuracy"})
        if rank == 0:
            save_classifier(network, network_name, data.image_shape, out)
            _write_predictions(network, data, out)
            leak = bool(mixed and mixed.leaks(data.train.digest, data.val.digest))
            engine.artifact.finish(leak=leak, class_names=list(data.class_names))
    return Run.open(out)


def _inputs(data: Dataset, config: TrainConfig, network: Classifier, mixed: MixedSource | None) -> dict[str, Any]:
    """Return what a run is made from, as plain JSON values."""
    inputs = {
        # A network to start from counts by the digest of its weights, wherever it lies.
        "config": {**plain(config), "classifier": Path(config.init).name if config.init else config.classifier},
        "dataset": data.name,
        "train": data.train.digest,
        "val": data.val.digest,
        "test": data.test.digest,
        "mixed": mixed.inputs if mixed else None,
    }
    return {**inputs, "init": digest_tensors(network.state_dict())} if config.init else inputs


def classifier_lr(schedule: str, peak: float, done: float) -> float:
    """Return the learning rate when the fraction `done` of the run is behind.

    `multistep` divides by ten at 40 % and 60 % (epochs 80 and 120 of 200, as published); `cosine` falls to zero.

    >>> classifier_lr("multistep", 0.1, 0.5)
    0.01
    """
    if schedule == "multistep":
        return peak / 10 ** ((done >= 0.4) + (done >= 0.6))
    return peak * 0.5 * (1 + math.cos(math.pi * done))


def surplus_warning(num_images: int, batch_size: int, num_mixed: int) -> str | None:
    """Return the warning that `eq_data` epochs see over a tenth too many images, or None.

    An epoch has whole steps, one at least, so large batches of few images overshoot.

    >>> surplus_warning(1000, 10, num_mixed=2)
    """
    per_step = (1 + num_mixed) * batch_size
    seen = math.ceil(num_images / per_step) * per_step
    if seen <= 1.1 * num_images:
        return None
    fix = f"use a smaller --batch-size, such as {max(2, num_images // (10 * (1 + num_mixed)))}"
    more = f"{seen / num_images - 1:.0%} more than the {num_images} real ones"
    return f"--eq-data: an epoch, in whole steps, will see {seen} images, {more}; {fix}"


def under_confidence_warning(probs: Tensor, labels: Tensor) -> str | None:
    """Return the warning that a network is far less confident than it is right, or None.

    >>> under_confidence_warning(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 1]))
    """
    confidence, predicted = probs.max(1)
    missing = float((predicted == labels).float().mean() - confidence.mean())
    by_chance = float((confidence * (1 - confidence)).mean() / len(labels)) ** 0.5
    if missing < max(0.05, 3 * by_chance):
        return None
    fix = "more epochs or a larger --scale may help, or, where it set in late, --options batch_statistics=joint"
    return f"under-confident: on validation images its mean confidence is {missing:.1%} below its accuracy; {fix}"


def first_network(config: TrainConfig, data: Dataset) -> tuple[Classifier, str]:
    """Return the network that training starts from, and what it can be built from again."""
    torch.manual_seed(fold_seed("weights", config.seed))
    if not config.init:
        return build_network(config.classifier, data), config.classifier
    named, default = (config.init_mean, config.init_std), data.train.channel_stats()
    return initial_classifier(config.init, data.num_classes, data.image_shape, named, default)


def build_network(name: str, data: Dataset) -> Classifier:
    """Return a new network that fits the images and normalises them by the training split."""
    mean, std = data.train.channel_stats()
    channels, size, _ = data.image_shape
    return classifier(name, data.num_classes, channels, size, mean, std)


def make_batch(
    pixels: Tensor, labels: Tensor, index: Tensor, mixed: MixedImages | None, num_mixed: int, config: TrainConfig
) -> Batch:
    """Return these images, augmented, and, where wanted, mixed ones of their classes."""
    images = crop_and_flip(pixels, config.pad, config.flip)
    batch = Batch(images=images, labels=labels, index=index)
    if mixed and num_mixed:
        drawn, batch.mixed_labels = mixed.draw(labels, num_mixed)
        batch.mixed_images = crop_and_flip(drawn, config.pad, config.flip)
    return batch


def make_step(
    network: Classifier, method: Method, next_batch: Callable, clip_norm: float | None, rank: int, world_size: int
) -> CapturedStep:
    """Return a step of the loop, which leaves gradients; it is captured where one process computes on a GPU."""
    device = network.mean.device
    quick = distributed.shared_forward(_forward(network, device), rank, world_size)
    # What batch normalisation has seen so far: it differs between processes.
    statistics = [buffer for name, buffer in network.named_buffers() if "running" in name]

    def body() -> Tensor:
        after_first: list[Tensor] = []

        def forward(images: Tensor) -> Tensor:
            logits = quick(images)
            if method.first_pass_predicts and not after_first:
                after_first.extend(statistic.clone() for statistic in statistics)
            return logits

        loss = method.step(forward, next_batch())["loss"]
        loss.backward()
        for statistic, value in zip(statistics, after_first, strict=False):
            statistic.copy_(value)  # not before: backward refuses what has changed
        distributed.sum_over_processes(distributed.gradients_of(network), world_size)
        distributed.average_over_processes(statistics, world_size)
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(network.parameters(), clip_norm)
        return loss.detach()

    return CapturedStep(body, network.parameters(), device, world_size)


def _forward(network: Classifier, device: torch.device):
    """Return images -> float32 logits; on a GPU compiled and in bfloat16."""
    if device.type != "cuda":
        return network
    quick = compiled(network)

    def forward(images: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = quick(images.contiguous(memory_format=torch.channels_last))
        return logits.float()

    return forward


def _write_predictions(network: Classifier, data: Dataset, out: Path) -> None:
    """Write logits of validation and test, and the metrics before and after temperature."""
    logits = {}
    for name, split in (("val", data.val), ("test", data.test)):
        logits[name] = predict_logits(network, split.images).cpu()
        write_tensors(out / logits_file(name), {"logits": logits[name], "labels": split.labels})
    scaler = TemperatureScaler().fit(logits["val"], data.val.labels)
    metrics = {
        "test": summary(logits["test"].softmax(1), data.test.labels),
        "temperature": scaler.temperature,
        "test_after_temperature": summary(scaler.transform(logits["test"]), data.test.labels),
    }
    write_json(out / METRICS, metrics)
