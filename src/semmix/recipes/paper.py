"""The paper's tables and figures as data: what to train, and which published number stands by it.

Nothing runs here. `plan_table` returns cells; `running.run_cell` runs one by the stages' functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from semmix._errors import SemmixError, unknown_name
from semmix._files import digest
from semmix.datasets.config import DatasetConfig
from semmix.recipes.protocols import (
    PROTOCOLS,
    Protocol,
    training_config,
    training_of,
)
from semmix.recipes.tables import published, published_rows
from semmix.report.tables import METHOD_NAMES
from semmix.sampling.mix import MixConfig
from semmix.training.classifier import TrainConfig
from semmix.training.generator import GeneratorConfig

OWN = "own"
"""As an encoder: a plain network trained on the same images. As a generator: one trained so."""
LEAKING = "CSM (leaking)"
"""CSM on a long tail with a generator of the whole balanced set, as the paper must have done."""

METHODS_BY_NAME = {name: method for method, name in METHOD_NAMES.items()}


@dataclass(frozen=True, kw_only=True)
class Mixing:
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
    encoder: str = OWN
    """own, or an encoder as kind:what."""
    labels: str = "reannotated"
    """Label scheme."""
    scale: float | None = None
    """The scale s; chosen on validation images by default."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One line of one table: what is trained and measured, for every seed alike."""

    table: str
    row: str
    """The line's name in the paper."""
    data: DatasetConfig
    """Data set, split, long tail."""
    train: TrainConfig
    """Classifier, method, options, epochs, schedule, eq_data."""
    mixing: Mixing | None = None
    """For methods that learn from mixed sets."""
    measure: str = "plain"
    """plain, hours, piece, tta, procal, or ood:DATASET: see `results.measure_run`."""
    scaled: bool = False
    """Whether the line is about probabilities after temperature scaling."""
    paper: dict[str, float] = field(default_factory=dict, hash=False)
    """The published numbers, by metric."""
    seeds: int = 3
    """Trainings."""
    needs: str = ""
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
        data = {k: v for k, v in asdict(self.data).items() if k != "root"}
        train = {k: v for k, v in self.train.to_json().items() if k != "seed"}
        return digest({"data": data, "train": train, "mixing": _plain(self.mixing)})


def _plain(mixing: Mixing | None) -> dict[str, Any] | None:
    """Return what decides the mixed images as JSON values; where and how fast does not count."""
    if mixing is None:
        return None
    content = asdict(mixing)
    del content["learned_from"]["root"]
    del content["training"]["device"], content["training"]["checkpoint_seconds"]
    return content


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What holds for all cells of a plan."""

    protocol: Protocol = PROTOCOLS["semmix"]
    encoder: str = OWN
    generator: str = OWN
    device: str = "auto"


class CellBuilder:
    """Makes the cells of one table on one data set with one classifier."""

    def __init__(self, table: str, dataset: str, classifier: str, setting: Setting):
        self.table, self.dataset, self.classifier = table, dataset, classifier
        self.setting, self.training = setting, training_of(dataset)

    def cell(
        self, row: str, method: str, paper: dict[str, float] | None = None, *,
        options: Mapping[str, object] | None = None, eq_data: bool = False,
        imbalance: float | None = None, leaking: bool = False, measure: str = "plain",
        scaled: bool = False, **mixing: Any,
    ) -> Cell:  # fmt: skip
        """Return one cell; `mixing` replaces fields of the data set's usual `Mixing`."""
        protocol = self.setting.protocol
        data = DatasetConfig(
            dataset=self.dataset, protocol=protocol.split, imbalance=imbalance,
            train_size=self.training.train_size,
        )  # fmt: skip
        train = replace(
            training_config(method, self.dataset, protocol, options or {}),
            classifier=self.classifier, eq_data=eq_data, allow_leak=leaking,
            device=self.setting.device,
        )  # fmt: skip
        learned_from = replace(data, imbalance=None) if leaking else data
        sets = replace(self._mixing(learned_from), **mixing) if method == "csm" else None
        return Cell(
            table=self.table, row=row, data=data, train=train, mixing=sets, measure=measure,
            scaled=scaled, paper=paper or {}, needs=self.training.needs,
        )  # fmt: skip

    def _mixing(self, learned_from: DatasetConfig) -> Mixing:
        training, clip = self.training, self.setting.encoder.startswith("clip:")
        return Mixing(
            learned_from=learned_from,
            generator=self.setting.generator,
            training=replace(training.generator, device=self.setting.device),
            sampler=training.sampler,
            num_sets=training.sets_per_pair * self.num_pairs,
            encoder=self.setting.encoder,
            scale=training.clip_scale if clip else None,
        )

    @property
    def num_pairs(self) -> int:
        """Pairs of classes."""
        return self.training.num_classes * (self.training.num_classes - 1) // 2


def _published(table: str, **keys: str) -> dict[str, float]:
    """Return the published numbers of a line, or none: the paper does not know every data set."""
    known = any(keys.items() <= row.items() for row in published_rows(table))
    return published(table, **keys) if known else {}


_NETWORKS = {"wrn26_10": "wrn-26-10", "timm:resnet50": "resnet50",
             "timm:swinv2_tiny_window8_256": "swin-v2"}  # fmt: skip
"""The paper's names of networks."""


def _compare_methods(build: CellBuilder) -> list[Cell]:
    """Return a line for each method of the published table; CSM alone may be held to Eq-Data."""
    table = build.table
    network = _NETWORKS.get(build.classifier, build.classifier)
    names = dict.fromkeys(row["method"] for row in published_rows(table))
    return [
        build.cell(
            name, METHODS_BY_NAME[name],
            _published(table, method=name, dataset=build.dataset, network=network),
            eq_data=table == "eq_data" and name == "CSM",
        )
        for name in names
    ]  # fmt: skip


_OUTSIDE = {
    "cifar10": ("cifar100", "tiny-imagenet-val"),
    "cifar100": ("cifar10", "tiny-imagenet-val"),
}
"""Data sets whose images must look foreign."""


def _ood_auroc(build: CellBuilder) -> list[Cell]:
    cells = []
    for name in dict.fromkeys(row["method"] for row in published_rows("ood_auroc")):
        for outside in _OUTSIDE.get(build.dataset, ()):
            paper = _published(
                "ood_auroc", method=name, in_distribution=build.dataset,
                out_of_distribution=outside.removesuffix("-val"),
            )  # fmt: skip
            # TS is cross-entropy after temperature scaling.
            method = "ce" if name == "TS" else METHODS_BY_NAME[name]
            cells.append(
                build.cell(name, method, paper, measure=f"ood:{outside}", scaled=name == "TS")
            )
    return cells


def _ablation(build: CellBuilder) -> list[Cell]:
    variants: dict[str, tuple[str, dict[str, Any]]] = {
        "w/o Augmented Data": ("ce", {}),
        "CSM (L2) w/o Reanno": ("csm", {"labels": "requested"}),
        "CSM (L2) w/ CLIP labels": ("csm", {"labels": "encoder_softmax"}),
        "CSM (L2) w/ One-hot Aug": ("csm", {"labels": "one_hot"}),
        "Mixup (CE)": ("mixup", {"options": {"loss": "ce"}}),
        "Mixup (FL)": ("mixup", {"options": {"loss": "focal"}}),
        "Mixup (L2)": ("mixup", {"options": {"loss": "l2"}}),
        "CSM (CE)": ("csm", {"options": {"loss": "ce"}}),
        "CSM (FL)": ("csm", {"options": {"loss": "focal"}}),
        "CSM (L2, ours)": ("csm", {}),
    }
    is_published = (build.dataset, build.classifier) == ("cifar100", "resnet50")
    return [
        build.cell(
            name, method,
            published("ablation_cifar100_resnet50", variant=name) if is_published else {},
            **changes,
        )
        for name, (method, changes) in variants.items()
    ]  # fmt: skip


def _reliability(build: CellBuilder) -> list[Cell]:
    return [
        build.cell("w/o Augmented Data", "ce"),
        build.cell("Mixup", "mixup"),
        build.cell("CSM w/o Reanno", "csm", labels="requested"),
        build.cell("CSM", "csm"),
    ]


def _curves(build: CellBuilder) -> list[Cell]:
    rows = {"w/o Augmented Data": "ce", "Mixup": "mixup", "CSM": "csm"}
    return [build.cell(name, method) for name, method in rows.items()]


def _scale(build: CellBuilder) -> list[Cell]:
    return [build.cell(f"s = {s}", "csm", scale=float(s)) for s in range(2, 7)]


def _test_time(build: CellBuilder) -> list[Cell]:
    is_published = (build.dataset, build.classifier) == ("cifar100", "resnet50")
    measures = {"CSM": "piece", "CSM + TTA": "tta", "CSM + ProCal": "procal"}
    return [
        build.cell(
            name, "csm",
            published("test_time_cifar100_resnet50", variant=name) if is_published else {},
            measure=measure,
        )
        for name, measure in measures.items()
    ]  # fmt: skip


def _long_tailed(build: CellBuilder) -> list[Cell]:
    """Return both tails where every class keeps an image."""
    num_images = build.training.train_size or build.training.num_images
    cells = []
    for imbalance in (10.0, 100.0):
        if num_images <= imbalance * build.training.num_classes:
            continue
        keys = {"dataset": f"{build.dataset}-lt", "imbalance": f"{imbalance:g}"}
        for name in dict.fromkeys(row["method"] for row in published_rows("long_tailed")):
            paper = _published("long_tailed", method=name, **keys)
            cells.append(build.cell(name, METHODS_BY_NAME[name], paper, imbalance=imbalance))
        # Last comes CSM, whose generator knows the long tail alone; here is the paper's.
        paper = _published("long_tailed", method="CSM", **keys)
        cells.append(build.cell(LEAKING, "csm", paper, imbalance=imbalance, leaking=True))
    return cells


def _num_aug(build: CellBuilder) -> list[Cell]:
    return [
        build.cell(
            f"N_aug = {num}", "csm", _published("num_aug", n_aug=str(num), dataset=build.dataset),
            options={"num_mixed": num},
        )
        for num in (1, 2, 3)
    ]  # fmt: skip


def _num_sets(build: CellBuilder) -> list[Cell]:
    """Return CSM with up to four times as many mixed images as training images, in sets of 8.

    Fewer sets than pairs of classes are left out: the classes would not be treated alike.
    """
    num_images = build.training.train_size or build.training.num_images
    sets = {times: round(times * num_images / 8) for times in (1, 2, 3, 4, 5)}
    return [
        build.cell(f"{times} x data", "csm", num_sets=num)
        for times, num in sets.items()
        if num >= build.num_pairs
    ]


def _training_time(build: CellBuilder) -> list[Cell]:
    names = [row["method"] for row in published_rows("training_time")]
    cells = []
    for name in names:
        method = METHODS_BY_NAME[name.removesuffix(" (Eq-Data)")]
        paper = published("training_time", method=name) if build.dataset == "cifar10" else {}
        eq_data = name.endswith("(Eq-Data)")
        cells.append(build.cell(name, method, paper, eq_data=eq_data, measure="hours"))
    return cells


@dataclass(frozen=True)
class Table:
    """One table or figure: where it was published, how its lines are made, what it shows."""

    title: str
    targets: tuple[tuple[str, str], ...]
    """The published (data set, classifier)."""
    build: Callable[[CellBuilder], list[Cell]]
    columns: tuple[str, ...]
    """Keys of `tables.COLUMNS`."""
    figure: bool = False
    """Whether the paper shows it as a figure, which `semmix report` draws."""


_MAIN = ("acc", "ece", "ece_ts", "aece", "aece_ts")
_PLAIN = ("acc", "ece", "aece")
_C10, _C100 = ("cifar10", "resnet50"), ("cifar100", "resnet50")

TABLES: dict[str, Table] = {
    "main": Table(
        "Main comparison",
        tuple((d, c) for d in ("cifar10", "cifar100", "tiny-imagenet")
              for c in ("resnet50", "resnet101")),
        _compare_methods, _MAIN,
    ),
    "eq_data": Table("CSM with as many images as others (Eq-Data)", (_C10,), _compare_methods,
                     _MAIN),
    "imagenet_resnet50": Table("ImageNet, ResNet-50", (("imagenet", "timm:resnet50"),),
                               _compare_methods, _PLAIN),
    "imagenet_swinv2": Table("ImageNet, Swin-V2", (("imagenet", "timm:swinv2_tiny_window8_256"),),
                             _compare_methods, _PLAIN),
    "ood_auroc": Table("Out-of-distribution detection", (_C10, _C100), _ood_auroc, ("auroc",)),
    "ablation": Table("Ablation", (_C100,), _ablation, (*_MAIN, "temperature")),
    "reliability": Table("Reliability diagrams", (_C100,), _reliability,
                         ("acc", "ece", "oe", "ue"), figure=True),
    "curves": Table("Training curves and confidence histogram", (_C100,), _curves,
                    ("acc", "nll", "oe", "ece"), figure=True),
    "scale": Table("The scale s", (_C10,), _scale, ("oe", "ue", *_MAIN[1:]), figure=True),
    "test_time": Table("With test-time methods", (_C100,), _test_time, ("ece", "aece", "piece")),
    "wide_resnet": Table("WRN-26-10", (("cifar10", "wrn26_10"), ("tiny-imagenet", "wrn26_10")),
                         _compare_methods, _PLAIN),
    "densenet121": Table("DenseNet-121", (("cifar10", "densenet121"),), _compare_methods, _PLAIN),
    "long_tailed": Table("Long tails", (("cifar10", "resnet32"), ("cifar100", "resnet32")),
                         _long_tailed, ("acc", "ece")),
    "num_aug": Table("Mixed images for each real one", (_C10, _C100), _num_aug, ("ece",)),
    "num_sets": Table("Mixed images relative to the data", (_C100,), _num_sets, _PLAIN,
                      figure=True),
    "training_time": Table("Training time", (_C10,), _training_time, ("hours",)),
}  # fmt: skip


def table_called(name: str) -> Table:
    """Return a table by its name."""
    if name not in TABLES:
        raise unknown_name("table", name, TABLES)
    return TABLES[name]


def plan_table(name: str, dataset: str | None = None, setting: Setting | None = None) -> list[Cell]:
    """Return the cells of a table: as published, or moved to a data set the paper does not show.

    >>> len(plan_table("main"))
    90
    >>> plan_table("main", "digits")[-1].name
    'digits/small/CSM'
    """
    table = table_called(name)
    targets = table.targets
    if dataset is not None:
        known = tuple(target for target in targets if target[0] == dataset)
        targets = known or tuple((dataset, c) for c in training_of(dataset).classifiers)
    builders = [CellBuilder(name, *target, setting or Setting()) for target in targets]
    cells = [cell for builder in builders for cell in table.build(builder)]
    if not cells:
        raise SemmixError(f"table {name} has no cells on {dataset}", "none", "leave --dataset out")
    return cells


Budget = Literal["smoke", "short", "full"]


def within(cell: Cell, budget: Budget) -> Cell:
    """Return the cell made cheap: `smoke` to see that it runs, `short` for a tenth of the work."""
    if budget == "full":
        return cell
    if budget == "short":
        train = replace(cell.train, epochs=max(1, cell.train.epochs // 10))
        return replace(cell, train=train, mixing=cell.mixing and _short(cell.mixing))
    training = training_of(cell.data.dataset)
    num_classes = training.num_classes
    # The largest class must leave the smallest an image.
    enough = 2 * num_classes * int(cell.data.imbalance or 5)
    data = replace(cell.data, train_size=min(training.train_size or enough, enough))
    mixing = cell.mixing and _smoke(cell.mixing, num_classes, data)
    return replace(
        cell, data=data, train=replace(cell.train, epochs=2), mixing=mixing, seeds=1
    )  # fmt: skip


def _short(mixing: Mixing) -> Mixing:
    training = mixing.training
    shorter = replace(
        training,
        minutes=training.minutes and training.minutes / 10,
        num_images=max(1, training.num_images // 10),
    )
    return replace(mixing, training=shorter)


def _smoke(mixing: Mixing, num_classes: int, data: DatasetConfig) -> Mixing:
    learned_from = replace(mixing.learned_from, train_size=data.train_size)
    training = replace(mixing.training, minutes=None, num_images=640, batch_size=64, num_grids=1)
    return replace(
        mixing,
        learned_from=learned_from,
        training=training,
        sampler=replace(mixing.sampler, solver="dpmpp_2m", num_steps=4),
        num_sets=num_classes - 1,  # the first pairs are (0, 1), (0, 2), ...: all classes
    )
