"""`fit`: from a data set to calibrated classifiers and a report, one stage after the other."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from tyro.conf import OmitArgPrefixes

from semmix.annotation import Annotation, annotate
from semmix.core.device import pick_device
from semmix.core.errors import SemmixError
from semmix.core.progress import say, tell
from semmix.core.runtime import Runtime
from semmix.data import Dataset, list_datasets, load_dataset
from semmix.data.config import DatasetConfig
from semmix.deploy import predict_command
from semmix.diffusion import load_generator
from semmix.diffusion.sampling import MixConfig
from semmix.fitting.planning import Quality
from semmix.fitting.prepare import IMAGES
from semmix.fitting.ship import best_run, closing_words, ship
from semmix.methods import method_class
from semmix.mixing.draw import mix
from semmix.mixing.pairs import partner_pairs
from semmix.mixing.plan import MixPlan, all_pairs
from semmix.mixing.store import MixSets
from semmix.networks.encoders import load_encoder
from semmix.report import aggregate, open_gallery
from semmix.report.html import write_rows
from semmix.report.rows import results_table
from semmix.report.table import terminal_width
from semmix.runs import Run
from semmix.training.classifier import TrainConfig, train_classifier
from semmix.training.generator import GeneratorConfig, train_generator
from semmix.training.mixed import MixedSource, load_mixed


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """Walk the whole path: generator, mixed sets, annotation, classifiers, report."""

    data: OmitArgPrefixes[DatasetConfig]
    """The images."""
    out: Path = Path("runs/fit")
    """Folder of everything; run the same command again to go on after a stop."""
    minutes: float | None = None
    """How long all of it may take, for images of your own; by default what the quality says."""
    quality: Quality = "good"
    """For images of your own: draft (5 minutes), good (30) or best (180)."""
    runtime: OmitArgPrefixes[Runtime] = field(default_factory=Runtime)
    """Where all stages run."""
    methods: tuple[str, ...] = ("ce", "csm")
    """Methods to compare; the first is the baseline, shipped unless another is clearly better."""
    seeds: int = 3
    """Trainings of each method."""
    sets_per_pair: int = 20
    """Mixed sets for each pair of classes."""
    partners: int | None = None
    """Mix each class only with so many others, those it is confused with most; all by default."""
    even_out: bool = False
    """Show the generator rare classes more often, by the root of how rare they are."""
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    """The generator and how it is trained."""
    sets_per_shard: int = 1024
    """Mixed sets in one file."""
    sampler: MixConfig = field(default_factory=MixConfig)
    """How mixed sets are drawn."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """How classifiers are trained; method and seed are set by the two options above."""
    scale: float | None = None
    """The annotation's scale s; chosen on the validation split by default."""

    def __post_init__(self) -> None:
        if not self.methods or self.seeds < 1 or self.sets_per_pair < 1:
            seen = f"methods={self.methods}, seeds={self.seeds}, sets_per_pair={self.sets_per_pair}"
            raise SemmixError("nothing to fit", seen, "one method, seed and set at least")

    @property
    def mixes(self) -> bool:
        """Whether a method learns from mixed sets; a misspelt one must not cost an hour."""
        return sum(method_class(name).num_mixed for name in self.methods) > 0


def fit(config: FitConfig) -> Path:
    """Walk the path and return the report's file; what is finished already is not done again."""
    mixes = config.mixes
    data = load_images(config)
    counts = ", ".join(f"{len(split)} {name}" for name, split in data.splits.items())
    say(f"{data.name}: {data.num_classes} classes, {counts} images")

    # A plain network reads the mixed images back: like the generator, it knows the training split
    # alone. It is also the first run of cross-entropy.
    source = gallery = None
    if mixes:
        plain = train_run(config, data, "ce", 0, None)
        learn_to_draw(config, data)
        store = mix_pairs(config, data, plain)
        notes = _annotate(config, data, store, plain)
        source = load_mixed(store.folder, notes.artifact.folder)
        gallery = open_gallery(store.folder, notes.artifact.folder)
    trained = [train_run(config, data, name, seed, source) for name in config.methods for seed in range(config.seeds)]

    runs, baseline = [Run.open(folder) for folder in trained], config.methods[0]
    rows = aggregate(runs, baseline)
    out, title = config.out / "report.html", f"semmix on {data.name}"
    report = write_rows(rows, out, title=title, class_names=data.class_names, gallery=gallery, baseline=baseline)
    say(results_table(rows).text(terminal_width()))
    best, why = best_run(runs)
    model = ship(best, config.out / "model")
    tell("what came of it:", closing_words(best, why))
    say(f"report: {report}")
    say(f"use it: {predict_command(model)}")
    return report


def load_images(config: FitConfig) -> Dataset:
    """Return the images: those that were made ready in `out`, or the data set by its name."""
    ready = config.out / IMAGES
    if config.data.dataset not in list_datasets() and ready.exists():
        return load_dataset(ready)
    return config.data.load()


def learn_to_draw(config: FitConfig, data: Dataset) -> Path:
    """Train the generator on the training split; return its folder."""
    images, labels = data.train.images, data.train.labels
    if config.even_out:
        counts = torch.bincount(labels, minlength=data.num_classes)
        times = (counts.max() / counts.clamp(min=1)).sqrt().round().long()[labels]
        images, labels = (t.repeat_interleave(times, dim=0) for t in (images, labels))
    return train_generator(
        images,
        labels,
        data.num_classes,
        data.train.digest,
        config.generator,
        config.out / "generator",
        held_out=(data.val.images, data.val.labels),
        runtime=config.runtime,
    )


def train_run(config: FitConfig, data: Dataset, method: str, seed: int, source: MixedSource | None) -> Path:
    """Train one method with one seed; return the run's folder."""
    settings = replace(config.train, method=method, seed=seed)
    return train_classifier(data, settings, config.out / "runs" / f"{method}-{seed}", source, config.runtime)


def mix_pairs(config: FitConfig, data: Dataset, plain: Path) -> MixSets:
    """Draw the mixed sets: of all pairs, or of those that the run `plain` confuses most."""
    if config.partners is None:
        pairs = all_pairs(data.num_classes)
    else:
        val = Run.open(plain).val
        pairs = partner_pairs(torch.from_numpy(val.logits), torch.from_numpy(val.labels), config.partners)
    plan = MixPlan(
        num_classes=data.num_classes,
        num_sets=config.sets_per_pair * len(pairs),
        pairs=pairs,
        sets_per_shard=config.sets_per_shard,
    )
    generator = load_generator(config.out / "generator", config.runtime.device)
    return mix(generator, plan, config.sampler, config.out / "mixsets")


def _annotate(config: FitConfig, data: Dataset, store: MixSets, run: Path) -> Annotation:
    encoder = load_encoder(f"classifier:{run}", pick_device(config.runtime.device))
    out = config.out / "annotation"
    return annotate(store, encoder, data, out, config.scale)
