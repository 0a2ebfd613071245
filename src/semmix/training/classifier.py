"""The classifier's training loop, for every method alike.

A run is a folder: `config.json`, `env.json`, `stats.jsonl` (one line per epoch; `tensorboard` shows
them where it is installed), `checkpoint` while it runs, then `weights`, `logits-val`, `logits-test`
and `metrics.json`. Start it again after any
interruption and it ends as if nothing had happened.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor
from tyro.conf import arg

from semmix.calibration import TemperatureScaler, summary
from semmix.core.artifact import begin_artifact, working_alone
from semmix.core.checks import (
    check_held_out,
    check_not_negative,
    check_positive,
    check_share,
    check_square,
    check_two_classes,
)
from semmix.core.device import describe_environment, pick_device, to_device
from semmix.core.errors import SemmixError, unknown_name
from semmix.core.files import digest_tensors, write_json, write_tensors
from semmix.core.progress import progress, say
from semmix.core.runtime import Runtime
from semmix.core.seeds import fold_seed
from semmix.core.settings import plain, unnamed
from semmix.data import Dataset
from semmix.methods import Batch, Method, list_methods, method
from semmix.networks import Classifier, classifier
from semmix.networks.predicting import predict_logits
from semmix.networks.saved import initial_classifier, save_classifier
from semmix.training.batches import MixedImages, crop_and_flip
from semmix.training.checkpoint import (
    append_stats,
    load_checkpoint,
    load_optimizer,
    optimizer_tensors,
    rewind_stats,
    save_checkpoint,
)
from semmix.training.distributed import (
    average_over_processes,
    join_processes,
    shared_forward,
    sum_over_processes,
    wait_for_all,
)
from semmix.training.graphs import CapturedStep, compiled
from semmix.training.mixed import MixedSource, check_no_leak
from semmix.training.schedules import SCHEDULES, learning_rate
from semmix.training.stopping import ctrl_c_between_steps
from semmix.training.streaming import place_images, read_batches
from semmix.training.tracking import tensorboard

Groups = dict[str, dict[str, Tensor]]


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
    """Accept mixed sets whose generator, encoder or annotation saw other images than the training
    split."""

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 2:
            seen = f"epochs={self.epochs}, batch_size={self.batch_size}"
            raise SemmixError("nothing to train", seen, "use at least 1 epoch and batches of 2")
        check_positive(lr=self.lr)
        if self.clip_norm is not None:
            check_positive(clip_norm=self.clip_norm)
        check_share(momentum=self.momentum)
        check_not_negative(weight_decay=self.weight_decay, pad=self.pad)
        if self.schedule not in SCHEDULES:
            raise unknown_name("schedule", self.schedule, SCHEDULES)
        if self.select not in ("last", "best"):
            raise unknown_name("choice of weights", self.select, ("last", "best"))
        if not self.init and (self.init_mean or self.init_std):
            seen = f"init_mean={self.init_mean}, init_std={self.init_std}"
            raise SemmixError("these belong to a network of yours", seen, "name it with --init")
        if not all(value > 0 for value in self.init_std):
            raise SemmixError("a standard deviation is positive", self.init_std, "use 1 for none")


def train_classifier(
    data: Dataset, config: TrainConfig, out: str | Path, source: MixedSource | None = None, runtime: Runtime = Runtime()
) -> Path:
    """Train a classifier on `data`, and on mixed sets if the method asks for them; return `out`.

    Does nothing if `out` holds the finished run, goes on if it holds a part of it. Under `torchrun`
    each process takes its share of every batch, and the first writes the files.
    """
    with ExitStack() as until_the_end:
        return _train(data, config, Path(out), source, runtime, until_the_end)


def _train(
    data: Dataset,
    config: TrainConfig,
    out: Path,
    source: MixedSource | None,
    runtime: Runtime,
    until_the_end: ExitStack,
) -> Path:
    device = pick_device(runtime.device)
    check_two_classes(data.train.labels, "classifier")
    check_held_out(val=len(data.val), test=len(data.test))
    check_square(data.image_shape)
    batch_size = min(config.batch_size, len(data.train))
    rank, world_size = join_processes(device, batch_size)

    # All that wrong settings can break comes before the folder is claimed for them.
    rule = method(config.method, data.num_classes, **config.options)
    mixed = _mixed_images(rule, data, config, source)
    network, network_name = first_network(config, data)
    inputs = {
        # A network to start from counts by the digest of its weights, wherever it lies.
        "config": {**plain(config), "classifier": Path(config.init).name if config.init else config.classifier},
        "dataset": data.name,
        "train": data.train.digest,
        "val": data.val.digest,
        "test": data.test.digest,
        "mixed": source.inputs if mixed and source else None,
    }
    if config.init:
        inputs["init"] = digest_tensors(network.state_dict())
    network = to_device(network, device).train()
    optimizer = torch.optim.SGD(
        network.parameters(),
        lr=config.lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        fused=device.type == "cuda",
    )
    run = begin_artifact(out, "config.json", "run", inputs)
    wait_for_all(world_size)  # none may finish before all have looked
    checkpoint = out / "checkpoint.safetensors"
    if run.finished:
        checkpoint.unlink(missing_ok=True)  # killed just before
        return out
    if rank == 0:
        until_the_end.enter_context(working_alone(run))
    if rank == 0 and not (out / "env.json").exists():
        write_json(out / "env.json", describe_environment())

    # Data live on the device for the whole run, but for images that do not fit in memory.
    images, labels = place_images(data.train.images, device), data.train.labels.to(device)
    mixed = mixed.to(device) if mixed else None
    val_images, val_labels = place_images(data.val.images, device), data.val.labels.to(device)
    rule.setup(labels)

    # A step is `batch_size` real images; passes over them drop the incomplete last batch.
    steps_per_pass = len(images) // batch_size
    steps_per_epoch = steps_per_pass
    if config.eq_data and rule.num_mixed:
        steps_per_epoch = math.ceil(len(images) / ((1 + rule.num_mixed) * batch_size))
        if rank == 0 and (words := surplus_words(len(images), batch_size, rule.num_mixed)):
            say(words)
    total_steps = config.epochs * steps_per_epoch
    images_per_step = (1 + rule.num_mixed) * batch_size

    # The images of a step are put where the step, once captured, looks for them.
    index = torch.zeros(batch_size, dtype=torch.int64, device=device)
    pixels = torch.zeros(batch_size, *data.image_shape, dtype=torch.uint8, device=device)

    def next_batch() -> Batch:
        return make_batch(pixels, labels[index], index, mixed, rule.num_mixed, config)

    gradients = make_step(network, rule, next_batch, config.clip_norm, rank, world_size)

    # Everything that changes during the run, in one place: it is what a checkpoint holds.
    loss_sum = torch.zeros((), device=device)
    best = {"accuracy": torch.full((), -1.0)}
    groups = {"network": network.state_dict(), "method": rule.state_dict(), "epoch": {"loss_sum": loss_sum}}
    untouched = {name: {k: t.clone() for k, t in group.items()} for name, group in groups.items()}
    gradients.prepare()
    _copy_in_place(groups, untouched)
    step = _resume(checkpoint, groups, optimizer, best)
    if rank == 0:
        rewind_stats(out / "stats.jsonl", step * images_per_step)
    saved_at = time.monotonic()

    order, ahead = torch.empty(0), iter(())
    with (
        progress(f"train {out.name}", total_steps, step) as bar,
        tensorboard(out / "tensorboard", step * images_per_step) as track,
        ctrl_c_between_steps(world_size) as stop_wanted,
    ):
        while step < total_steps:
            # Real images in an order that depends on nothing but the seed and the pass.
            slot = step % steps_per_pass
            if slot == 0 or not len(order):
                torch.manual_seed(fold_seed("order", config.seed, step // steps_per_pass))
                order = torch.rand(len(images), device=device).argsort()
                order = order[: steps_per_pass * batch_size]
                rest = order[slot * batch_size :]
                ahead = read_batches(images, rest, batch_size, rank, world_size)
            index.copy_(order[slot * batch_size : (slot + 1) * batch_size])
            pixels.copy_(next(ahead))

            # One step: every random draw in it comes from this seed.
            torch.manual_seed(fold_seed("step", config.seed, step))
            loss_sum += gradients()
            lr = learning_rate(config.schedule, config.lr, step / total_steps)
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            step += 1

            if step % steps_per_epoch == 0:
                loss = float(_finite(loss_sum, out)) / steps_per_epoch
                val_logits = _finite(predict_logits(network, val_images, fast=True), out)
                rule.end_epoch(val_logits, val_labels)
                measured = summary(val_logits.softmax(1), val_labels)
                row = {
                    "epoch": step // steps_per_epoch,
                    "nimg": step * images_per_step,
                    "loss": loss,
                    "lr": lr,
                    **{f"val_{k}": measured[k] for k in ("acc", "nll", "ece", "oe", "ue")},
                }
                if rank == 0:
                    append_stats(out / "stats.jsonl", row)
                track(row)
                loss_sum.zero_()
                if config.select == "best" and measured["acc"] > best["accuracy"]:
                    best = {k: v.clone() for k, v in network.state_dict().items()}
                    best["accuracy"] = torch.tensor(measured["acc"])
                bar.advance(0, f"val acc {measured['acc']:.1%}, ECE {measured['ece']:.1%}")

            stopping = stop_wanted()
            due = time.monotonic() - saved_at > runtime.checkpoint_seconds
            if rank == 0 and (due or stopping):
                for tensor in (loss_sum, *groups["network"].values()):
                    _finite(tensor, out)
                state = {**groups, "optimizer": optimizer_tensors(optimizer), "best": best}
                save_checkpoint(checkpoint, state, {"step": step})
                saved_at = time.monotonic()
            if stopping:
                raise KeyboardInterrupt
            bar.advance()

    if config.select == "best":
        network.load_state_dict({k: v for k, v in best.items() if k != "accuracy"})
    if rank == 0:
        save_classifier(network, network_name, data.image_shape, out)
        _write_predictions(network, data, out)
        leak = bool(source and mixed and source.leaks(data.train.digest, data.val.digest))
        run.finish(leak=leak, class_names=list(data.class_names))
        checkpoint.unlink(missing_ok=True)
    wait_for_all(world_size)
    return out


def surplus_words(num_images: int, batch_size: int, num_mixed: int) -> str | None:
    """Return what to tell a person whose `eq_data` epochs see over a tenth too many images.

    An epoch has whole steps, one at least, so large batches of few images overshoot.

    >>> surplus_words(1000, 10, num_mixed=2)
    """
    per_step = (1 + num_mixed) * batch_size
    seen = math.ceil(num_images / per_step) * per_step
    if seen <= 1.1 * num_images:
        return None
    enough = max(2, num_images // (10 * (1 + num_mixed)))
    return (
        f"--eq-data: an epoch, in whole steps, will see {seen} images, {seen / num_images - 1:.0%} "
        f"more than the {num_images} real ones; use a smaller --batch-size, such as {enough}"
    )


def unsure_words(probs: Tensor, labels: Tensor) -> str | None:
    """Return what to tell a person whose network of mixed images ends far less sure than right.

    >>> unsure_words(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 1]))
    """
    confidence, answer = probs.max(1)
    missing = float((answer == labels).float().mean() - confidence.mean())
    by_chance = float((confidence * (1 - confidence)).mean() / len(labels)) ** 0.5
    if missing < max(0.05, 3 * by_chance):
        return None
    return (
        f"on validation images it is {missing:.1%} less sure than right; more epochs or a larger "
        "--scale may mend that, or, where it set in late, --options batch_statistics=joint"
    )


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
    network: Classifier,
    rule: Method,
    next_batch: Callable[[], Batch],
    clip_norm: float | None,
    rank: int = 0,
    world_size: int = 1,
) -> CapturedStep:
    """Return a step of the loop: batch, forward, backward, clip; it leaves gradients.

    On a GPU it is captured as a CUDA graph, unless processes talk to each other in it.
    """
    device = network.mean.device
    quick = shared_forward(_forward(network, device), rank, world_size)
    statistics = _running_statistics(network)

    def body() -> Tensor:
        after_first: list[Tensor] = []

        def forward(images: Tensor) -> Tensor:
            logits = quick(images)
            if rule.first_pass_predicts and not after_first:
                after_first.extend(statistic.clone() for statistic in statistics)
            return logits

        loss = rule.step(forward, next_batch())["loss"]
        loss.backward()
        for statistic, value in zip(statistics, after_first, strict=False):
            statistic.copy_(value)  # not before: backward refuses what has changed
        sum_over_processes(_gradients(network), world_size)
        average_over_processes(statistics, world_size)
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(network.parameters(), clip_norm)
        return loss.detach()

    step = CapturedStep(body, network.parameters(), device)
    step.captures &= world_size == 1
    return step


def _mixed_images(rule: Method, data: Dataset, config: TrainConfig, source: MixedSource | None) -> MixedImages | None:
    if not rule.num_mixed:
        return None
    if source is None:
        fix = "make mixed sets (semmix mix), annotate them, and pass both folders"
        raise SemmixError(f"method {config.method} learns from mixed sets", "none given", fix)
    source.check_fits(data.image_shape, data.num_classes)
    if not config.allow_leak:
        check_no_leak(source, data.train.digest, data.val.digest)
    source.images.check_classes(data.train.labels, data.class_names, source.num_excluded)
    return source.images


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


def _gradients(network: Classifier) -> list[Tensor]:
    return [p.grad for p in network.parameters() if p.grad is not None]


def _running_statistics(network: Classifier) -> list[Tensor]:
    """Return what batch normalisation has seen so far, which differs between processes."""
    return [b for name, b in network.named_buffers() if "running" in name]


def _resume(path: Path, groups: Groups, optimizer: torch.optim.Optimizer, best: dict[str, Tensor]) -> int:
    """Load the checkpoint into the live state, if there is one; return the step."""
    if not path.exists():
        return 0
    saved, header = load_checkpoint(path)
    _copy_in_place(groups, saved)
    load_optimizer(optimizer, saved["optimizer"])
    best.update(saved["best"])
    return header["step"]


def _copy_in_place(groups: Groups, values: Groups) -> None:
    for group, tensors in groups.items():
        for name, tensor in tensors.items():
            tensor.copy_(values[group][name])


def _finite(values: Tensor, out: Path) -> Tensor:
    """Return the values; refuse any that are not finite, before metrics or files come of them."""
    finite = values.isfinite()
    if not bool(finite.all()):
        seen = values[~finite].flatten()[0].item()
        fix = f"lower --lr, and choose another folder than {out}"
        raise SemmixError("training diverged: loss, logits or weights are not finite", seen, fix)
    return values


def _write_predictions(network: Classifier, data: Dataset, out: Path) -> None:
    """Write logits of validation and test, and the metrics before and after temperature."""
    logits = {}
    for name, split in (("val", data.val), ("test", data.test)):
        logits[name] = predict_logits(network, split.images).cpu()
        tensors = {"logits": logits[name], "labels": split.labels}
        write_tensors(out / f"logits-{name}.safetensors", tensors)
    scaler = TemperatureScaler().fit(logits["val"], data.val.labels)
    metrics = {
        "test": summary(logits["test"].softmax(1), data.test.labels),
        "temperature": scaler.temperature,
        "test_after_temperature": summary(scaler.transform(logits["test"]), data.test.labels),
    }
    write_json(out / "metrics.json", metrics)
