"""One line of a table as data, and the settings it takes from the paper or its code: each switch, each recipe."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from tyro.conf import arg

from semmix.core.errors import unknown_name
from semmix.core.files import digest
from semmix.core.settings import plain, since, unnamed
from semmix.data.config import DatasetConfig
from semmix.diffusion.sampling import MixConfig
from semmix.fitting.recipes import demo
from semmix.methods import method_options
from semmix.report.rows import METHOD_NAMES
from semmix.runs import Search
from semmix.training.classifier import TrainConfig
from semmix.training.generator import GeneratorConfig

_CONFIGURED = {"cifar10": 2.0, "cifar100": 2.0, "tiny-imagenet": 1.0}
_WRITTEN = {"cifar10": 1.0, "cifar100": 1.0, "tiny-imagenet": 2.0}


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """One answer to each question on which paper and published code differ; the defaults follow docs/design.md."""

    split: Literal["code", "paper"] = "code"
    """Images to train, choose and test on: 45,000/5,000/10,000 or 50,000/5,000/5,000."""
    l2: Literal["code", "paper"] = "code"
    """CSM's loss: summed over the classes, or divided by their number."""
    ecp: Literal["code", "paper"] = "paper"
    """ECP's entropy: averaged over the classes too, or summed."""
    rankmixup_alpha: Mapping[str, float] = field(default_factory=lambda: _CONFIGURED)
    """RankMixup's Beta by data set; CSM's paper and RankMixup's configuration swap the two."""
    overconfidence: Literal["plain", "weighted"] = "plain"
    """OE and UE: gaps alone (then OE + UE = ECE), or gaps times confidence."""
    temperature: Search = "nll"
    """How T is found on validation images: the least NLL, or the least ECE among 0.1, 0.2, ..., 10."""


PROTOCOLS = {
    "semmix": Protocol(),
    "code": Protocol(ecp="code", overconfidence="weighted", temperature="ece-grid"),
    "paper": Protocol(split="paper", l2="paper", rankmixup_alpha=_WRITTEN, temperature="ece-grid"),
}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the paper trains on one data set."""

    image_shape: tuple[int, int, int]
    num_classes: int
    num_images: int
    """Images of the official training part."""
    classifiers: tuple[str, ...]
    """Networks of the main table."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """Epochs, batch size, schedule."""
    train_size: int | None = None
    """Training images to use; all by default."""
    clip_scale: float = 4.0
    """The scale s for CLIP ViT-B/32; for other encoders it is chosen on validation images."""
    own_scale: float | None = None
    """The scale s for an encoder of our own, where it was chosen by training with several."""
    joint_scale: float | None = None
    """The same where real and mixed images share their batch statistics."""
    num_mixed: int = 2
    """N_aug: mixed images for each real one."""
    sets_per_pair: int
    """Mixed sets for each pair of classes."""
    margin: float = 6.0
    """MbLS's margin."""
    generator: GeneratorConfig = field(
        default_factory=lambda: GeneratorConfig(network="compact32", minutes=25, flip=True)
    )
    """Ours: the paper takes published weights, whose training split is not that of the table."""
    sampler: MixConfig = field(default_factory=MixConfig)
    """How mixed sets are drawn."""
    needs: str = ""
    """What users must bring before this can run."""


_DEMO = demo()

RECIPES = {
    "cifar10": Recipe(
        image_shape=(3, 32, 32),
        num_classes=10,
        num_images=50_000,
        classifiers=("resnet50", "resnet101"),
        sets_per_pair=444,
        # Of 3 to 8 (joint: 3 to 5), the one whose confidence is nearest to its accuracy on
        # validation images: ResNet-18, seed 0 (docs/results.md).
        own_scale=5.0,
        joint_scale=3.0,
        sampler=MixConfig(solver="heun", num_steps=20),
    ),
    "cifar100": Recipe(
        image_shape=(3, 32, 32),
        num_classes=100,
        num_images=50_000,
        classifiers=("resnet50", "resnet101"),
        clip_scale=2.3,
        sets_per_pair=4,
        own_scale=2.0,  # of 2 to 6 and 8, likewise
        sampler=MixConfig(solver="heun", num_steps=25),
    ),
    "tiny-imagenet": Recipe(
        image_shape=(3, 64, 64),
        num_classes=200,
        num_images=100_000,
        classifiers=("resnet50", "resnet101"),
        num_mixed=1,
        sets_per_pair=2,
        margin=10.0,
        train=TrainConfig(epochs=100, batch_size=64),
        sampler=MixConfig(solver="heun", num_steps=25),
    ),
    "imagenet": Recipe(
        image_shape=(3, 224, 224),
        num_classes=1000,
        num_images=1_281_167,
        classifiers=("timm:resnet50",),
        sets_per_pair=1,
        margin=10.0,
        train=TrainConfig(batch_size=256),
        needs="ImageNet as an image folder and a generator for it; the paper does not give its training settings",
    ),
    "digits": Recipe(
        image_shape=(1, 8, 8),
        num_classes=10,
        num_images=1_797,
        classifiers=("small",),
        train=_DEMO.train,
        train_size=_DEMO.data.train_size,
        sets_per_pair=_DEMO.sets_per_pair,
        generator=_DEMO.generator,
        sampler=_DEMO.sampler,
    ),
}
"""Published settings, and the demo's for `digits`, of which the paper knows nothing."""


def recipe_for(dataset: str) -> Recipe:
    """Return how the tables train on `dataset`."""
    if dataset not in RECIPES:
        raise unknown_name("data set of the tables", dataset, RECIPES)
    return RECIPES[dataset]


def protocol_called(name: str) -> Protocol:
    """Return a protocol by its name."""
    if name not in PROTOCOLS:
        raise unknown_name("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]


def method_settings(method: str, dataset: str, protocol: Protocol) -> dict[str, object]:
    """Return a method's options as the paper's comparison used them on `dataset`.

    MMCE, CRL and CPC, whose weights the paper does not give, keep their authors'.

    >>> method_settings("mbls", "tiny-imagenet", PROTOCOLS["semmix"])
    {'margin': 10.0, 'alpha': 0.1}
    """
    recipe = recipe_for(dataset)
    settings: dict[str, dict[str, object]] = {
        "ecp": {"weight": 0.1, "protocol": protocol.ecp},
        "ls": {"alpha": 0.05},
        "fl": {"gamma": 3.0},
        "mbls": {"margin": recipe.margin, "alpha": 0.1},
        "fcl": {"gamma": 3.0, "weight": 0.5},
        "mixup": {"alpha": 0.2},
        "regmixup": {"alpha": 10.0},
        "augmix": {"weight": 1.0},
        "rankmixup": {"alpha": protocol.rankmixup_alpha.get(dataset, 2.0), "weight": 0.1},
        "unimix": {"tau": -0.1 if dataset == "cifar100" else -0.5},
        "csm": {"num_mixed": recipe.num_mixed, "protocol": protocol.l2},
    }
    return settings.get(method, {})


def training_config(method: str, dataset: str, protocol: Protocol, options: Mapping[str, object]) -> TrainConfig:
    """Return the training of `method` on `dataset`; `options` come on top of the published.

    A default that is written out changes nothing, so it gives the run no other name.
    """
    published, defaults = method_settings(method, dataset, protocol), method_options(method)
    asked = {k: v for k, v in options.items() if k in published or v != defaults.get(k)}
    # Published are the weights of the best validation accuracy.
    return replace(recipe_for(dataset).train, method=method, options={**published, **asked}, select="best")


OWN = "own"
"""As an encoder: a plain network trained on the same images. As a generator: one trained so."""

METHODS_BY_NAME = {name: method for method, name in METHOD_NAMES.items()}


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """What holds for all cells of a table, unless a line says otherwise."""

    protocol: Annotated[str, arg(help=f"Paper or code: {', '.join(PROTOCOLS)}.")] = "semmix"
    """Where paper and code differ: `PROTOCOLS`."""
    generator: str = OWN
    """own: trained on the training split; or a generator's folder, or zoo:NAME."""
    encoder: str = OWN
    """own: a plain network trained first; or kind:what, as semmix annotate takes it."""
    scale: float | None = None
    """The scale s of lines that do not name one; that of the data set and encoder by default."""
    emphasis: float = 1.0
    """How far mixed sets stretch the classes they show, as semmix mix takes it."""
    options: Mapping[str, object] = field(default_factory=dict, hash=False)
    """Options of csm as name=value, such as batch_statistics=joint, for lines that do not set them."""


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
        split = {"protocol": protocol.split, "imbalance": imbalance, "train_size": recipe.train_size}
        data = DatasetConfig(dataset=self.dataset, **split)
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
