"""`fit`: from a data set to calibrated classifiers and a report, one stage after the other."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from tyro.conf import OmitArgPrefixes

from semmix._device import pick_device
from semmix._errors import SemmixError
from semmix._progress import say
from semmix.annotate import Annotation, annotate_mixsets
from semmix.datasets import Dataset
from semmix.datasets.config import DatasetConfig
from semmix.encoders import load_encoder
from semmix.generators import load_generator
from semmix.methods import method_class
from semmix.mixsets import MixSets
from semmix.plan import MixPlan, all_pairs
from semmix.report import aggregate, open_gallery, write_report
from semmix.report.tables import render_text
from semmix.sampling.mix import MixConfig, make_mixsets
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
    methods: tuple[str, ...] = ("ce", "csm")
    """Methods to compare; the first is the baseline."""
    seeds: int = 3
    """Trainings of each method."""
    sets_per_pair: int = 20
    """Mixed sets for each pair of classes."""
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


def fit(config: FitConfig) -> Path:
    """Walk the path and return the report's file; what is finished already is not done again."""
    out = config.out
    for name in config.methods:
        method_class(name)  # a misspelt name must not cost an hour of generator training
    data = config.data.load()
    counts = ", ".join(f"{len(split)} {name}" for name, split in data.splits.items())
    say(f"{data.name}: {data.num_classes} classes, {counts} images")

    train_generator(
        data.train.images,
        data.train.labels,
        data.num_classes,
        data.train.digest,
        config.generator,
        out / "generator",
        held_out=(data.val.images, data.val.labels),
    )
    store = _mix(config, data)

    # A plain network reads the mixed images back: like the generator, it knows the training split
    # alone. It is also the first run of cross-entropy.
    encoder = train_run(config, data, "ce", 0, None)
    notes = _annotate(config, data, store, encoder)
    source = load_mixed(store.folder, notes.artifact.folder)
    runs = [
        train_run(config, data, name, seed, source)
        for name in config.methods
        for seed in range(config.seeds)
    ]

    gallery = open_gallery(store.folder, notes.artifact.folder)
    report = write_report(
        runs,
        out / "report.html",
        title=f"semmix on {data.name}",
        class_names=data.class_names,
        gallery=gallery,
        baseline=config.methods[0],
    )
    say(render_text(aggregate(runs, baseline=config.methods[0])))
    say(f"report: {report}")
    return report


def train_run(
    config: FitConfig, data: Dataset, method: str, seed: int, source: MixedSource | None
) -> Path:
    """Train one method with one seed; return the run's folder."""
    settings = replace(config.train, method=method, seed=seed)
    return train_classifier(data, settings, config.out / "runs" / f"{method}-{seed}", source)


def _mix(config: FitConfig, data: Dataset) -> MixSets:
    pairs = all_pairs(data.num_classes)
    plan = MixPlan(
        num_classes=data.num_classes, num_sets=config.sets_per_pair * len(pairs), pairs=pairs,
        sets_per_shard=config.sets_per_shard,
    )  # fmt: skip
    generator = load_generator(config.out / "generator", config.train.device)
    return make_mixsets(generator, plan, config.sampler, config.out / "mixsets")


def _annotate(config: FitConfig, data: Dataset, store: MixSets, run: Path) -> Annotation:
    encoder = load_encoder(f"classifier:{run}", pick_device(config.train.device))
    out = config.out / "annotation"
    return annotate_mixsets(store, encoder, data.train, data.val, out, config.scale)
