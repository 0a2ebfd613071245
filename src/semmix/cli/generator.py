"""`semmix generator train | sample | convert | score`."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from shlex import quote
from typing import Literal

from tyro.conf import OmitArgPrefixes, Positional

from semmix.core.device import pick_device
from semmix.core.errors import require
from semmix.core.files import write_json
from semmix.core.progress import say
from semmix.core.runtime import Runtime
from semmix.data.config import DatasetConfig
from semmix.diffusion import load_generator
from semmix.diffusion.official import convert_checkpoint
from semmix.diffusion.quality import score_generator
from semmix.diffusion.sampling import MixConfig, sample_classes, write_grid
from semmix.networks.encoders import load_encoder
from semmix.networks.saved import check_takes, load_classifier
from semmix.training.generator import GeneratorConfig, train_generator


@dataclass(frozen=True, kw_only=True)
class GeneratorTrainCommand:
    """Train a class-conditional diffusion model."""

    data: OmitArgPrefixes[DatasetConfig]
    """The images; only the training split is learned from."""
    generator: OmitArgPrefixes[GeneratorConfig] = field(default_factory=GeneratorConfig)
    """The network and how it is trained."""
    runtime: OmitArgPrefixes[Runtime] = field(default_factory=lambda: Runtime(checkpoint_seconds=120.0))
    """Where it runs."""
    out: Path = Path("generator")
    """Folder of the generator."""

    def run(self) -> None:
        """Train, or go on training."""
        train_generator(self.data.load(), self.generator, self.out, self.runtime)
        say(f"generator in {self.out}; next: semmix mix {quote(str(self.out))}")


@dataclass(frozen=True, kw_only=True)
class GeneratorSampleCommand:
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
        is_png = self.out.suffix.lower() in ("", ".png")
        require(is_png, "samples are written as PNG", self.out, "end its name in .png")

    def run(self) -> None:
        """Write a picture of class samples."""
        generator = load_generator(self.generator, self.device)
        write_grid(self.out, sample_classes(generator, self.per_class, self.sampler, self.seed))
        say(f"wrote {self.out}")


@dataclass(frozen=True, kw_only=True)
class GeneratorConvertCommand:
    """Read an official checkpoint safely."""

    checkpoint: Positional[Path]
    """An EDM or EDM2 network file (.pkl)."""
    out: Path = Path("generator")
    """Folder of the generator."""

    def run(self) -> None:
        """Write the checkpoint's network as a generator folder."""
        convert_checkpoint(self.checkpoint, self.out)
        say(f"generator in {self.out}; mind its licence (NOTICE)")


@dataclass(frozen=True, kw_only=True)
class GeneratorScoreCommand:
    """Measure how good a generator's class samples are."""

    generator: Positional[str]
    """Folder of a generator, or zoo:NAME."""
    data: OmitArgPrefixes[DatasetConfig]
    """The images it learned from, split as it was trained."""
    extractor: str
    """Encoder of the features as kind:what, such as classifier:runs/ce-0."""
    classifier: Path | None = None
    """Run of a classifier trained on real images: how often does it recognise the samples?"""
    samples: int = 50_000
    """Samples to draw, rounded up to equally many of each class."""
    reference: Literal["train", "val", "test"] = "train"
    """Split to compare with."""
    few: bool = False
    """Allow fewer than 2,048 images; such distances say little and compare with nothing."""
    seed: int = 0
    """Seed of the samples' noise."""
    sampler: OmitArgPrefixes[MixConfig] = field(default_factory=MixConfig)
    """The solver."""
    out: Path | None = None
    """Also write the numbers to this JSON file."""
    device: str = "auto"
    """auto, cpu or cuda."""

    def run(self) -> None:
        """Draw samples, measure them, print the numbers."""
        device = pick_device(self.device)
        data = self.data.load()
        # runs trained on other images, of which networks may make wrong numbers in silence, are refused
        kind, _, run = self.extractor.partition(":")
        if kind == "classifier":
            check_takes(run, data.image_shape)
        if self.classifier:
            check_takes(self.classifier, data.image_shape, data.num_classes)
        classifier = load_classifier(self.classifier)[0].to(device) if self.classifier else None
        score = score_generator(
            load_generator(self.generator, self.device),
            data,
            load_encoder(self.extractor, device),
            num_samples=self.samples,
            sampler=self.sampler,
            reference=self.reference,
            classifier=classifier,
            seed=self.seed,
            few=self.few,
        )
        say("\n".join(score.lines()))
        if self.out:
            write_json(self.out, asdict(score))
