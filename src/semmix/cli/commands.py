"""Each stage as a command: a dataclass of what it takes, a function that runs it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from shlex import quote
from typing import Literal

import torch
from torch import Tensor
from tyro.conf import OmitArgPrefixes, Positional

from semmix.annotation import Annotation, annotate_mixsets
from semmix.annotation.annotation import UNSCALED_SCHEMES
from semmix.core.device import pick_device, rank_and_world
from semmix.core.errors import SemmixError
from semmix.core.progress import say
from semmix.data.config import DatasetConfig
from semmix.deploy import export_model, predict_command
from semmix.diffusion import load_generator
from semmix.diffusion.class_samples import sample_classes, write_grid
from semmix.diffusion.official import convert_checkpoint
from semmix.diffusion.sampling import MixConfig, check_knows_classes
from semmix.methods import method_class
from semmix.mixing.draw import make_mixsets
from semmix.mixing.export import export_folder, export_parquet
from semmix.mixing.labels import lambda_grid
from semmix.mixing.pairs import confusable_pairs
from semmix.mixing.plan import MixPlan, all_pairs, tournament_pairs
from semmix.mixing.store import MixSets
from semmix.networks.encoders import load_encoder
from semmix.networks.saved import check_takes
from semmix.report.diagnosis import judge_images, write_diagnosis
from semmix.runs import read_logits
from semmix.training.classifier import TrainConfig, train_classifier, unsure_words
from semmix.training.generator import GeneratorConfig, train_generator
from semmix.training.mixed import load_mixed


@dataclass(frozen=True, kw_only=True)
class GeneratorTrain:
    """Train a class-conditional diffusion model."""

    data: OmitArgPrefixes[DatasetConfig]
    """The images; only the training split is learned from."""
    generator: OmitArgPrefixes[GeneratorConfig] = field(default_factory=GeneratorConfig)
    """The network and how it is trained."""
    out: Path = Path("generator")
    """Folder of the generator."""


def train_generator_command(command: GeneratorTrain) -> None:
    """Train, or go on training."""
    data = command.data.load()
    train_generator(
        data.train.images,
        data.train.labels,
        data.num_classes,
        data.train.digest,
        command.generator,
        command.out,
        held_out=(data.val.images, data.val.labels),
    )
    say(f"generator in {command.out}; next: semmix mix {quote(str(command.out))}")


@dataclass(frozen=True, kw_only=True)
class GeneratorSample:
    """Draw plain class samples."""

    generator: Positional[str]
    """Folder of a generator, or zoo:NAME."""
    out: Path = Path("samples.png")
    """The picture, a PNG file: one row for each class."""
    per_class: int = 8
    """Images in a row."""
    seed: int = 0
    """Seed of the noise."""
    sampler: OmitArgPrefixes[MixConfig] = field(default_factory=MixConfig)
    """The solver."""
    device: str = "auto"
    """auto, cpu or cuda."""

    def __post_init__(self) -> None:
        if self.out.suffix.lower() not in ("", ".png"):
            raise SemmixError("a picture of another kind", self.out, "end its name in .png")


def sample_command(command: GeneratorSample) -> None:
    """Write a picture of class samples."""
    generator = load_generator(command.generator, command.device)
    images = sample_classes(generator, command.per_class, command.sampler, command.seed)
    write_grid(command.out, images)
    say(f"wrote {command.out}")


@dataclass(frozen=True, kw_only=True)
class GeneratorConvert:
    """Read an official checkpoint safely."""

    checkpoint: Positional[Path]
    """An EDM or EDM2 network file (.pkl)."""
    out: Path = Path("generator")
    """Folder of the generator."""


def convert_command(command: GeneratorConvert) -> None:
    """Write the checkpoint's network as a generator folder."""
    convert_checkpoint(command.checkpoint, command.out)
    say(f"generator in {command.out}; mind its licence (NOTICE)")


@dataclass(frozen=True, kw_only=True)
class Mix:
    """Draw mixed sets."""

    generator: Positional[str]
    """Folder of a generator, or zoo:NAME."""
    out: Path = Path("mixsets")
    """Folder of the store."""
    sets: int = 1000
    """Sets in all; they cycle through the pairs. With fewer sets than pairs of classes, pairs are
    taken so that all classes come equally often, to within two."""
    pairs: tuple[str, ...] = ()
    """Pairs of classes to mix, as numbers i:j; all of them by default."""
    confusable_by: Path | None = None
    """Take the pairs that this run confuses most on validation images, the worst first."""
    num_pairs: int | None = None
    """With confusable_by: how many pairs; all by default."""
    members: int = 8
    """Images in a set: requested lambda from 0 to 1 in equal steps."""
    beta: float | None = None
    """Draw the interior lambdas from Beta(beta, beta) instead."""
    seed: int = 0
    """Seed of the sets' noise."""
    sets_per_shard: int = 1024
    """Sets in one file."""
    sampler: OmitArgPrefixes[MixConfig] = field(default_factory=MixConfig)
    """The solver."""
    device: str = "auto"
    """auto, cpu or cuda."""


def mix_command(command: Mix) -> None:
    """Draw the sets that are missing."""
    generator = load_generator(command.generator, command.device)
    check_knows_classes(generator, 2)
    plan = MixPlan(
        num_classes=generator.num_classes,
        num_sets=command.sets,
        pairs=chosen_pairs(command, generator.num_classes),
        lams=lambda_grid(command.members),
        beta=command.beta,
        seed=command.seed,
        sets_per_shard=command.sets_per_shard,
    )
    make_mixsets(generator, plan, command.sampler, command.out)
    say(f"mixed sets in {command.out}; next: semmix annotate")


def chosen_pairs(command: Mix, num_classes: int) -> tuple[tuple[int, int], ...]:
    """Return the pairs the command names, or those its run confuses, or all."""
    if command.confusable_by and command.pairs:
        fix = "leave out --pairs or --confusable-by"
        raise SemmixError("pairs are listed or found, not both", " ".join(command.pairs), fix)
    if command.confusable_by:
        confusion = validation_confusion(command.confusable_by, num_classes)
        return confusable_pairs(confusion, command.num_pairs)
    if command.num_pairs is not None:
        fix = "name the run with --confusable-by, or list the pairs with --pairs"
        raise SemmixError("num_pairs counts what a run confuses", command.num_pairs, fix)
    if command.pairs:
        return tuple(map(_parse_pair, command.pairs))
    pairs = all_pairs(num_classes)
    return pairs if command.sets >= len(pairs) else tournament_pairs(num_classes)


def validation_confusion(run: Path, num_classes: int) -> Tensor:
    """Return counts [K, K] of true class against answer on a run's validation images."""
    path = run / "logits-val.safetensors"
    if not path.exists():
        raise SemmixError("no finished run here", run, "name a run folder with validation logits")
    logits, labels = map(torch.from_numpy, read_logits(path))
    if logits.shape[1] != num_classes:
        seen = f"{logits.shape[1]} in {run}, {num_classes} of the generator"
        raise SemmixError("the run knows other classes", seen, "name a run on the same data set")
    places = labels * num_classes + logits.argmax(1)
    return torch.bincount(places, minlength=num_classes**2).view(num_classes, num_classes)


def _parse_pair(text: str) -> tuple[int, int]:
    i, _, j = text.partition(":")
    if not (i.isdecimal() and j.isdecimal()):
        raise SemmixError("a pair is written i:j", repr(text), "as in 3:5")
    return int(i), int(j)


@dataclass(frozen=True, kw_only=True)
class Verify:
    """Check a store of mixed sets."""

    mixsets: Positional[Path]
    """Folder of the store."""


def verify_command(command: Verify) -> int:
    """Say what is wrong with the store; the exit status tells too."""
    store = MixSets.open(command.mixsets)
    problems = store.verify()
    for problem in problems:
        say(problem)
    say(f"{store.plan.num_shards - len(problems)} of {store.plan.num_shards} shards are sound")
    return 1 if problems else 0


@dataclass(frozen=True, kw_only=True)
class Annotate:
    """Annotate mixed sets."""

    data: OmitArgPrefixes[DatasetConfig]
    """The real images: prototypes come from the training split, the scale from validation."""
    encoder: str = "clip:openai/clip-vit-base-patch32"
    """The encoder as kind:what; classifier:RUN, one of your own, needs nothing from outside. Kinds:
    classifier, clip, dino, efficientnet, inception, mobilenet, onnx, resnet50, timm."""
    mixsets: Path = Path("mixsets")
    """Folder of the store."""
    out: Path = Path("annotation")
    """Folder of the annotation."""
    scale: float | Literal["auto"] = "auto"
    """The scale s, such as 4.0 for CLIP ViT-B/32; auto chooses it on the validation split."""
    report: bool = False
    """Say how good the labels are: diagnosis.json and diagnosis.html beside the annotation."""
    judge: Path | None = None
    """With --report: a trained run, other than the encoder, to compare the labels with."""
    device: str = "auto"
    """auto, cpu or cuda."""


def annotate_command(command: Annotate) -> None:
    """Annotate the shards that are not yet."""
    if command.judge and not command.report:
        raise SemmixError("a judge is asked for the report alone", command.judge, "add --report")
    data = command.data.load()
    device = pick_device(command.device)
    encoder = load_encoder(command.encoder, device)
    store = MixSets.open(command.mixsets)
    if command.judge:  # asked last, refused first
        check_takes(command.judge, store.image_shape, store.plan.num_classes)
    scale = None if command.scale == "auto" else command.scale
    notes = annotate_mixsets(store, encoder, data.train, data.val, command.out, scale)
    if command.report and rank_and_world()[0] == 0:
        judge = judge_images(store, command.judge, device) if command.judge else None
        say(f"diagnosis in {write_diagnosis(notes, command.out, data.class_names, judge)}")
    say(f"annotation in {command.out}, scale {notes.scale:.2f}; next: semmix train")


@dataclass(frozen=True, kw_only=True)
class Export:
    """Hand a trained classifier, or mixed sets, to others."""

    source: Positional[Path]
    """A finished training run, which becomes a model folder, or a store of mixed sets."""
    out: Path
    """Folder of the model; of mixed sets, the folder for PNG files or the Parquet file."""
    onnx: bool = True
    """Of a run: write model.onnx too, which needs semmix[onnx]."""
    annotation: Path | None = None
    """Of mixed sets: folder of the annotation; `annotation` unless the labels are requested."""
    labels: str | None = None
    """Of mixed sets: reannotated (default), requested, one_hot, position, biased, encoder_softmax,
    third_class, or the controls requested_matched and smoothed_matched."""
    format: Literal["png", "parquet"] | None = None
    """Of mixed sets: PNG files with labels.jsonl (default), or one Parquet file for Hugging Face
    datasets."""


def export_command(command: Export) -> None:
    """Look at what the source is, and write it in the form that others can use."""
    if (command.source / "config.json").exists():
        _refuse_options(command, "a training run", ("annotation", "labels", "format"))
        export_model(command.source, command.out, onnx=command.onnx)
        say(f"next: {predict_command(command.out)}; what it is: {command.out / 'README.md'}")
    elif (command.source / "manifest.json").exists():
        _refuse_options(command, "a store of mixed sets", ("onnx",))
        if command.labels == "requested" and command.annotation:
            fix = "leave out --annotation, or choose labels that were read back"
            raise SemmixError("requested labels need no annotation", command.annotation, fix)
        _export_mixsets(command)
    else:
        fix = "name a finished training run, or a store of mixed sets"
        raise SemmixError("nothing to export here", command.source, fix)


def _refuse_options(command: Export, what: str, options: tuple[str, ...]) -> None:
    """Raise the error for options that make no sense for this source."""
    given = _given(command, options)
    if given:
        fix = "leave these options out, or name another source"
        raise SemmixError(f"{command.source} is {what}, which these do not fit", given, fix)


def _given(command: Export | Train, options: tuple[str, ...]) -> str:
    """Return those of the options that are not as by default, with their values."""
    defaults = {field.name: field.default for field in fields(command)}
    values = {name: getattr(command, name) for name in options}
    return ", ".join(f"{name}={v}" for name, v in values.items() if v != defaults[name])


def _export_mixsets(command: Export) -> None:
    store = MixSets.open(command.source)
    if command.labels == "requested":
        soft_labels = store.soft_labels(store.lam_requested())
    else:
        notes = Annotation.open(command.annotation or Path("annotation"), store)
        soft_labels = notes.soft_labels(command.labels or "reannotated")
    write = export_parquet if command.format == "parquet" else export_folder
    say(f"wrote {write(store, soft_labels, command.out)}")


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train a classifier."""

    data: OmitArgPrefixes[DatasetConfig]
    """The real images."""
    train: OmitArgPrefixes[TrainConfig] = field(default_factory=TrainConfig)
    """The method and how it is trained."""
    mixsets: Path | None = None
    """Store of mixed sets, for methods that learn from them."""
    annotation: Path | None = None
    """Their annotation."""
    labels: str = "reannotated"
    """Of mixed images: reannotated, requested, one_hot, position, biased, encoder_softmax,
    third_class, or the controls requested_matched and smoothed_matched."""
    scale: float | None = None
    """Use this scale s instead of the annotation's."""
    exclude: Path | None = None
    """A diagnosis.json of the annotation: leave out the sets whose ends look like other classes."""
    max_resident_gib: float = 8.0
    """Decode the images of a folder that needs more memory from their files in every epoch."""
    out: Path = Path("run")
    """Folder of the run."""


def train_command(command: Train) -> None:
    """Train, or go on training."""
    _refuse_unused(command)
    source = None
    if command.mixsets:
        source = load_mixed(command.mixsets, command.annotation, command.labels, command.scale, command.exclude)
    data = command.data.load(command.max_resident_gib)
    run = train_classifier(data, command.train, command.out, source)
    if source:
        logits, labels = map(torch.from_numpy, read_logits(run / "logits-val.safetensors"))
        if words := unsure_words(logits.softmax(1), labels):
            say(words)
    say(f"run in {command.out}; next: semmix evaluate {quote(str(command.out))}")


def _refuse_unused(command: Train) -> None:
    """Raise the error for options of mixed sets that would change nothing."""
    name, options = command.train.method, command.train.method_options
    given = _given(command, ("mixsets", "annotation", "labels", "scale", "exclude"))
    if given and not options.get("num_mixed", method_class(name).num_mixed):
        fix = "leave these options out, or choose a method that does, such as csm"
        if "num_mixed" in options:
            fix = "use num_mixed >= 1, or leave these options out"
        raise SemmixError(f"method {name} learns from no mixed sets", given, fix)
    if command.scale is not None and command.labels in UNSCALED_SCHEMES:
        fix = "leave out --scale, or choose labels that have one, such as reannotated"
        raise SemmixError(f"labels {command.labels!r} have no scale", command.scale, fix)
