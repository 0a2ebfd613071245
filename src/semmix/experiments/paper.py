"""The paper's tables and figures as data: what to train, and beside it the number published, from one CSV file each."""

import csv
from functools import cache
from importlib.resources import files
from typing import Any

from semmix.calibration import METRICS
from semmix.core.errors import require, unknown_name
from semmix.experiments.cells import METHODS_BY_NAME, Cell, CellBuilder, CellTable

_NAMES = "acc ece aece oe ue nll brier ece_ts aece_ts temperature auroc piece hours"
COLUMNS = {name: METRICS[name] for name in _NAMES.split()}
"""What a table may show: the columns of the CSV files that hold results, and some more."""

_FOLDER = files("semmix.experiments") / "paper_tables"
_RENAMED = {"hours_a4000": "hours"}


def list_published() -> list[str]:
    """Return the names of the tables with published numbers."""
    return sorted(item.name.removesuffix(".csv") for item in _FOLDER.iterdir())


@cache
def published_rows(table: str) -> tuple[dict[str, str], ...]:
    """Return the lines of one published table as text, exactly as its file has them."""
    if table not in list_published():
        raise unknown_name("published table", table, list_published())
    return tuple(csv.DictReader((_FOLDER / f"{table}.csv").read_text(encoding="utf-8").splitlines()))


def published(table: str, **keys: str) -> dict[str, float]:
    """Return the numbers of the line whose keys are these; shares as fractions, not per cent.

    >>> published("eq_data", method="CSM")["ece"]
    0.0091
    """
    found = [row for row in published_rows(table) if keys.items() <= row.items()]
    fix = f"the keys must name one line of {table}.csv"
    require(len(found) == 1, f"{len(found)} published lines have these keys", keys, fix)
    named = {_RENAMED.get(name, name): text for name, text in found[0].items()}
    numbers = {key: float(text) for key, text in named.items() if key in COLUMNS and text}
    return {k: round(number / 100, 6) if COLUMNS[k].unit == "%" else number for k, number in numbers.items()}


LEAKING = "CSM (leaking)"
"""CSM on a long tail with a generator of the whole balanced set, as the paper must have done."""


def _published(table: str, **keys: str) -> dict[str, float]:
    """Return the published numbers of a line, or none: the paper does not know every data set."""
    known = any(keys.items() <= row.items() for row in published_rows(table))
    return published(table, **keys) if known else {}


_NETWORKS = {"wrn26_10": "wrn-26-10", "timm:resnet50": "resnet50", "timm:swinv2_tiny_window8_256": "swin-v2"}
"""The paper's names of networks."""


def _compare_methods(build: CellBuilder) -> list[Cell]:
    """Return a line for each method of the published table; CSM alone may be held to Eq-Data."""
    table, network, cells = build.table, _NETWORKS.get(build.classifier, build.classifier), []
    for name in _methods(table):
        paper = _published(table, method=name, dataset=build.dataset, network=network)
        cells.append(build.cell(name, METHODS_BY_NAME[name], paper, eq_data=table == "eq_data" and name == "CSM"))
    return cells


def _methods(table: str) -> list[str]:
    """Return the methods of a published table, each once."""
    return list(dict.fromkeys(row["method"] for row in published_rows(table)))


_OUTSIDE = {"cifar10": ("cifar100", "tiny-imagenet-val"), "cifar100": ("cifar10", "tiny-imagenet-val")}
"""Data sets whose images are out-of-distribution."""


def _ood_auroc(build: CellBuilder) -> list[Cell]:
    cells = []
    for name in _methods("ood_auroc"):
        for outside in _OUTSIDE.get(build.dataset, ()):
            data = {"in_distribution": build.dataset, "out_of_distribution": outside.removesuffix("-val")}
            paper = _published("ood_auroc", method=name, **data)
            # TS is cross-entropy after temperature scaling.
            method = "ce" if name == "TS" else METHODS_BY_NAME[name]
            cells.append(build.cell(name, method, paper, measure=f"ood:{outside}", scaled=name == "TS"))
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
    return [
        build.cell(name, method, _of_cifar100(build, "ablation_cifar100_resnet50", name), **changes)
        for name, (method, changes) in variants.items()
    ]


def _of_cifar100(build: CellBuilder, table: str, variant: str) -> dict[str, float]:
    """Return the published numbers of a table that has only one data set and network, or none."""
    return published(table, variant=variant) if (build.dataset, build.classifier) == _C100_50 else {}


def _reliability(build: CellBuilder) -> list[Cell]:
    requested = build.cell("CSM w/o Reanno", "csm", labels="requested")
    return [*_curves(build)[:2], requested, build.cell("CSM", "csm")]


def _curves(build: CellBuilder) -> list[Cell]:
    rows = {"w/o Augmented Data": "ce", "Mixup": "mixup", "CSM": "csm"}
    return [build.cell(name, method) for name, method in rows.items()]


def _scale(build: CellBuilder) -> list[Cell]:
    return [build.cell(f"s = {s}", "csm", scale=float(s)) for s in range(2, 7)]


def _test_time(build: CellBuilder) -> list[Cell]:
    measures = {"CSM": "piece", "CSM + TTA": "tta", "CSM + ProCal": "procal"}
    return [
        build.cell(name, "csm", _of_cifar100(build, "test_time_cifar100_resnet50", name), measure=measure)
        for name, measure in measures.items()
    ]


def _long_tailed(build: CellBuilder) -> list[Cell]:
    """Return both tails where every class keeps an image."""
    cells = []
    for imbalance in (10.0, 100.0):
        if build.num_images <= imbalance * build.recipe.num_classes:
            continue
        keys = {"dataset": f"{build.dataset}-lt", "imbalance": f"{imbalance:g}"}
        for name in _methods("long_tailed"):
            paper = _published("long_tailed", method=name, **keys)
            cells.append(build.cell(name, METHODS_BY_NAME[name], paper, imbalance=imbalance))
        # Last comes CSM, whose generator knows the long tail alone; here is the paper's.
        paper = _published("long_tailed", method="CSM", **keys)
        cells.append(build.cell(LEAKING, "csm", paper, imbalance=imbalance, leaking=True))
    return cells


def _num_aug(build: CellBuilder) -> list[Cell]:
    papers = {num: _published("num_aug", n_aug=str(num), dataset=build.dataset) for num in (1, 2, 3)}
    return [build.cell(f"N_aug = {num}", "csm", paper, options={"num_mixed": num}) for num, paper in papers.items()]


def _num_sets(build: CellBuilder) -> list[Cell]:
    """Return CSM with up to five times as many mixed images as training images."""
    sets = build.num_sets((1, 2, 3, 4, 5))
    return [build.cell(f"{times} x data", "csm", num_sets=num) for times, num in sets.items()]


def _training_time(build: CellBuilder) -> list[Cell]:
    cells = []
    for name in _methods("training_time"):
        method = METHODS_BY_NAME[name.removesuffix(" (Eq-Data)")]
        paper = published("training_time", method=name) if build.dataset == "cifar10" else {}
        eq_data = name.endswith("(Eq-Data)")
        cells.append(build.cell(name, method, paper, eq_data=eq_data, measure="hours"))
    return cells


_MAIN = ("acc", "ece", "ece_ts", "aece", "aece_ts")
_PLAIN = ("acc", "ece", "aece")
_C10, _C100, _TINY, _IMAGENET = "cifar10", "cifar100", "tiny-imagenet", "imagenet"
_C10_50, _C100_50 = (_C10, "resnet50"), (_C100, "resnet50")
_ALL = tuple((data, network) for data in (_C10, _C100, _TINY) for network in ("resnet50", "resnet101"))
_SWIN, _WIDE = ((_IMAGENET, "timm:swinv2_tiny_window8_256"),), ((_C10, "wrn26_10"), (_TINY, "wrn26_10"))
_LONG_TAILED = ((_C10, "resnet32"), (_C100, "resnet32"))

PAPER_TABLES: dict[str, CellTable] = {
    "main": CellTable(_ALL, _compare_methods, _MAIN),
    "eq_data": CellTable((_C10_50,), _compare_methods, _MAIN),
    "imagenet_resnet50": CellTable(((_IMAGENET, "timm:resnet50"),), _compare_methods, _PLAIN),
    "imagenet_swinv2": CellTable(_SWIN, _compare_methods, _PLAIN),
    "ood_auroc": CellTable((_C10_50, _C100_50), _ood_auroc, ("auroc",)),
    "ablation": CellTable((_C100_50,), _ablation, (*_MAIN, "temperature")),
    "reliability": CellTable((_C100_50,), _reliability, ("acc", "ece", "oe", "ue"), figure=True),
    "curves": CellTable((_C100_50,), _curves, ("acc", "nll", "oe", "ece"), figure=True),
    "scale": CellTable((_C10_50,), _scale, ("oe", "ue", *_MAIN[1:]), figure=True),
    "test_time": CellTable((_C100_50,), _test_time, ("ece", "aece", "piece")),
    "wide_resnet": CellTable(_WIDE, _compare_methods, _PLAIN),
    "densenet121": CellTable(((_C10, "densenet121"),), _compare_methods, _PLAIN),
    "long_tailed": CellTable(_LONG_TAILED, _long_tailed, ("acc", "ece")),
    "num_aug": CellTable((_C10_50, _C100_50), _num_aug, ("ece",)),
    "num_sets": CellTable((_C100_50,), _num_sets, _PLAIN, figure=True),
    "training_time": CellTable((_C10_50,), _training_time, ("hours",)),
}
