"""The settings that `fit` follows: for the demo, for known data sets, for own images, with what a user gave on top."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from tyro.conf import OmitArgPrefixes

from semmix.core.errors import require, unknown_name
from semmix.core.runtime import Runtime
from semmix.data import list_datasets
from semmix.data.config import DatasetConfig
from semmix.data.listing import looks_like_path, name_of
from semmix.diffusion.sampling import MixConfig
from semmix.fitting.planning import Quality
from semmix.methods import method_class
from semmix.training.classifier import TrainConfig
from semmix.training.generator import GeneratorConfig


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """Settings of the whole path: generator, mixed sets, annotation, classifiers, report."""

    data: OmitArgPrefixes[DatasetConfig]
    """The images."""
    out: Path = Path("runs/fit")
    """Folder of everything; run the same command again to go on after a stop."""
    minutes: float | None = None
    """How long all of it may take, for your own images; by default what the quality says."""
    quality: Quality = "good"
    """For your own images: draft (5 minutes), good (30) or best (180)."""
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
    """Show the generator rare classes more often, by the square root of how rare they are."""
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
        some = self.methods and self.seeds >= 1 and self.sets_per_pair >= 1
        seen = f"methods={self.methods}, seeds={self.seeds}, sets_per_pair={self.sets_per_pair}"
        require(some, "nothing to fit", seen, "one method, seed and set at least")

    @property
    def mixes(self) -> bool:
        """Whether a method learns from mixed sets; a misspelt method must not cost an hour."""
        return sum(method_class(name).num_mixed for name in self.methods) > 0


def with_given(settings: Any, given: Mapping[str, Any]) -> Any:
    """Return a dataclass with some fields replaced; a mapping replaces fields of the settings inside.

    >>> with_given(demo(), {"seeds": 2, "train": {"epochs": 3}}).train.epochs
    3
    """
    names = [field.name for field in fields(settings)]
    changes = {}
    for name, value in given.items():
        if name not in names:
            raise unknown_name(f"setting of {type(settings).__name__}", name, names)
        present = getattr(settings, name)
        is_inside = is_dataclass(present) and isinstance(value, Mapping)
        changes[name] = with_given(present, value) if is_inside else value
    return replace(settings, **changes)


def is_own(images: str) -> bool:
    """Return whether `images` names a folder or a table rather than a known data set."""
    return images not in list_datasets() and looks_like_path(images)


def recipe_of(images: str) -> FitConfig:
    """Return the settings for some images; those for own images are a plan's, once they have been looked at.

    >>> recipe_of("digits").train.classifier, recipe_of("cifar10").train.classifier
    ('small', 'resnet18')
    """
    if images == "digits":
        return demo()
    if is_own(images):
        return FitConfig(data=DatasetConfig(dataset=images), out=Path("runs") / name_of(Path(images)))
    # 25 minutes of generator, then the published training.
    generator = GeneratorConfig(network="compact32", minutes=25, flip=True)
    return FitConfig(data=DatasetConfig(dataset=images), generator=generator, sets_per_pair=100)


def demo() -> FitConfig:
    """Return the settings of the demo: 100 handwritten digits, minutes on two CPU cores.

    With about ten training images for each digit and no augmentation, a network learns them by heart: it is right
    nine times out of ten and nearly always confident, which is what calibration is about.
    """
    return FitConfig(
        data=DatasetConfig(dataset="digits", train_size=100),
        out=Path("demo"),
        seeds=5,
        sets_per_pair=20,
        sets_per_shard=100,
        generator=GeneratorConfig(network="digits", num_images=20_000, batch_size=64),
        sampler=MixConfig(num_steps=10, batch_size=400),
        train=TrainConfig(classifier="small", epochs=100, batch_size=50, schedule="cosine", pad=0, flip=False),
        runtime=Runtime(checkpoint_seconds=5),
    )


def smoke_demo() -> FitConfig:
    """Return the same path in seconds, to see that it works at all."""
    generator = {"num_images": 640, "num_grids": 1}
    short = {"generator": generator, "sampler": {"num_steps": 4}, "train": {"epochs": 2}}
    return with_given(demo(), {"seeds": 2, "sets_per_pair": 1, **short})
