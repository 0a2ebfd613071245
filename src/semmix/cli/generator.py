"""`semmix generator train | sample | convert | score`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from tyro.conf import OmitArgPrefixes, Positional

from semmix.core.errors import SemmixError
from semmix.core.progress import say
from semmix.core.runtime import Runtime
from semmix.data.config import DatasetConfig
from semmix.diffusion import load_generator
from semmix.diffusion.official import convert_checkpoint
from semmix.diffusion.quality import GeneratorScore, score_command
from semmix.diffusion.sampling import MixConfig, sample_classes, write_grid
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
        if self.out.suffix.lower() not in ("", ".png"):
            raise SemmixError("samples are written as PNG", self.out, "end its name in .png")

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


class GeneratorScoreCommand(GeneratorScore):
    """Measure how good a generator's class samples are."""

    def run(self) -> None:
        """Draw samples, measure them, print the numbers."""
        score_command(self)
