"""One line of a table as data: what is trained and measured, and from which images."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from tyro.conf import arg

from semmix.core.files import digest
from semmix.core.settings import plain, since, unnamed
from semmix.data.config import DatasetConfig
from semmix.diffusion.sampling import MixConfig
from semmix.experiments.protocols import PROTOCOLS, protocol_called, recipe_for, training_config
from semmix.report.rows import METHOD_NAMES
from semmix.training.classifier import TrainConfig
from semmix.training.generator import GeneratorConfig

OWN = "own"
"""As an encoder: a plain network trained on the same images. As a generator: one trained so."""

METHODS_BY_NAME = {name: method for method, name in METHOD_NAMES.items()}


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """What holds for all cells of a table, unless a line says otherwise."""

    protocol: Annotated[str, arg(help=f"Paper or code: {', '.join(PROTOCOLS)}.")] = "semmix"
    """Where paper and code differ: semmix.experiments.protocols."""
    generator: str = OWN
    """own: trained on the training split; or a generator's folder, or zoo:NAME."""
    encoder: str = OWN
    """own: a plain network trained first; or kind:what, as semmix annotate takes it."""
    scale: float | None = None
    """The scale s of lines that do not name one; that of the data set and encoder by default."""
    emphasis: float = 1.0
    """How far mixed sets stretch the classes they show, as semmix mix takes it."""
    options: Mapping[str, object] = field(default_factory=dict, hash=False)
    """Options of csm as name=value, such as batch_statistics=joint, for lines that do not set
    them."""


@dataclass(frozen=True, kw_only=True)
class CellMixing:
    """Where a cell's mixed images come from."""

    learned_from: DatasetConfig
    """The images a generator of our own learns from."""
    generator: str = OWN
    """own, or a generator's folder, or zoo:NAME."""
    training: GeneratorConfig
    """How a generator of our own is trained."""
    sampler: MixConfig
    """How sets are drawn."""
    num_sets: int
    """Sets in all."""
    members: int = 8
    """Images in a set; 2 are pure ends."""
    encoder: str = OWN
    """own, or an encoder as kind:what."""
    labels: str = "reannotated"
    """Label scheme."""
    scale: float | None = None
    """The scale s; chosen on validation images by default."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One line of one table: what is trained and measured, for every seed alike."""

    table: str = field(metadata=unnamed())
    row: str = field(metadata=unnamed())
    """The line's name in the paper."""
    data: DatasetConfig
    """Data set, split, long tail."""
    train: TrainConfig
    """Classifier, method, options, epochs, schedule, eq_data."""
    mixing: CellMixing | None = None
    """For methods that learn from mixed sets."""
    times_encoder: int = field(default=1, metadata=since(2))
    """How many times as long as an encoder of our own it is trained."""
    measure: str = field(default="plain", metadata=unnamed())
    """plain, hours, piece, tta, procal, or ood:DATASET: see `results.measure_run`."""
    scaled: bool = field(default=False, metadata=unnamed())
    """Whether the line is about probabilities after temperature scaling."""
    paper: dict[str, float] = field(default_factory=dict, hash=False, metadata=unnamed())
    """The published numbers, by metric."""
    seeds: int = field(default=3, metadata=unnamed())
    """Trainings."""
    needs: str = field(default="", metadata=unnamed())
    """What is missing before anyone could run it."""

    @property
    def name(self) -> str:
        """What `--cells` matches, such as `cifar10/resnet50/CSM`."""
        tail = f"-lt{self.data.imbalance:g}" if self.data.imbalance else ""
        outside = f"/{self.measure.removeprefix('ood:')}" if self.measure.startswith("ood:") else ""
        return f"{self.data.dataset}{tail}/{self.train.classifier}/{self.row}{outside}"

    @property
    def group(self) -> str:
        """Its name without the row: cells that compete with each other share it."""
        return self.name.replace(f"/{self.row}", "")

    def run_name(self, seed: int) -> str:
        """Return the folder of one training: the same in every table that needs the same one."""
        words = (self.data.dataset, self.train.classifier, self.train.method)
        return f"{'-'.join(words).replace(':', '-')}-{self.digest[:8]}-s{seed}"

    @property
    def digest(self) -> str:
        """Names what decides the outcome of training, but for the seed."""
        content = plain(self)
        del content["train"]["seed"]
        return digest(content)


class CellBuilder:
    """Makes the cells of one table on one data set with one classifier."""

    def __init__(self, table: str, dataset: str, classifier: str, settings: TableSettings):
        self.table, self.dataset, self.classifier = table, dataset, classifier
        self.settings, self.recipe = settings, recipe_for(dataset)

    def cell(
        self,
        row: str,
        method: str,
        paper: dict[str, float] | None = None,
        *,
        options: Mapping[str, object] | None = None,
        eq_data: bool = False,
        imbalance: float | None = None,
        leaking: bool = False,
        measure: str = "plain",
        scaled: bool = False,
        **mixing: Any,
    ) -> Cell:
        """Return one cell; `mixing` replaces fields of the data set's usual `CellMixing`."""
        protocol, recipe = protocol_called(self.settings.protocol), self.recipe
        options = {**(self.settings.options if method == "csm" else {}), **(options or {})}
        data = DatasetConfig(
            dataset=self.dataset, protocol=protocol.split, imbalance=imbalance, train_size=recipe.train_size
        )
        train = training_config(method, self.dataset, protocol, options)
        train = replace(train, classifier=self.classifier, eq_data=eq_data, allow_leak=leaking)
        usual = CellMixing(
            learned_from=replace(data, imbalance=None) if leaking else data,
            generator=self.settings.generator,
            training=recipe.generator,
            sampler=replace(recipe.sampler, emphasis=self.settings.emphasis),
            num_sets=recipe.sets_per_pair * self.num_pairs,
            encoder=self.settings.encoder,
            scale=self.scale,
        )
        return Cell(
            table=self.table,
            row=row,
            data=data,
            train=train,
            mixing=replace(usual, **mixing) if method == "csm" else None,
            measure=measure,
            scaled=scaled,
            paper=paper or {},
            needs=recipe.needs,
        )

    @property
    def scale(self) -> float | None:
        """The scale s of a line that has none of its own; None: chosen on validation images."""
        encoder = self.settings.encoder
        own = self.recipe.own_scale if encoder == OWN else None
        return self.settings.scale or (self.recipe.clip_scale if encoder.startswith("clip:") else own)

    @property
    def num_images(self) -> int:
        """Training images, before a validation split is taken from them."""
        return self.recipe.train_size or self.recipe.num_images

    @property
    def num_pairs(self) -> int:
        """Pairs of classes."""
        return self.recipe.num_classes * (self.recipe.num_classes - 1) // 2

    def num_sets(self, shares: tuple[float, ...]) -> dict[float, int]:
        """Return how many sets of 8 hold these shares of the training images.

        Fewer sets than pairs of classes are left out: the classes would not be treated alike.
        """
        sets = {share: round(share * self.num_images / 8) for share in shares}
        return {share: num for share, num in sets.items() if num >= self.num_pairs}


@dataclass(frozen=True)
class CellTable:
    """One table or figure of docs/tables.md: where it was published, how its lines are made, what it shows."""

    targets: tuple[tuple[str, str], ...]
    """The published (data set, classifier)."""
    build: Callable[[CellBuilder], list[Cell]]
    columns: tuple[str, ...]
    """Keys of `published.COLUMNS`."""
    figure: bool = False
    """Whether the paper shows it as a figure, which `semmix report` draws."""
