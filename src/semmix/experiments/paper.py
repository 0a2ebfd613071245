"""The paper's tables and figures as data: what to train, and the published number beside it."""

from __future__ import annotations

from typing import Any

from semmix.experiments.cells import METHODS_BY_NAME, Cell, CellBuilder, Table
from semmix.experiments.published import published, published_rows

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
    table = build.table
    network = _NETWORKS.get(build.classifier, build.classifier)
    names = dict.fromkeys(row["method"] for row in published_rows(table))
    return [
        build.cell(
            name,
            METHODS_BY_NAME[name],
            _published(table, method=name, dataset=build.dataset, network=network),
            eq_data=table == "eq_data" and name == "CSM",
        )
        for name in names
    ]


_OUTSIDE = {"cifar10": ("cifar100", "tiny-imagenet-val"), "cifar100": ("cifar10", "tiny-imagenet-val")}
"""Data sets whose images must look foreign."""


def _ood_auroc(build: CellBuilder) -> list[Cell]:
    cells = []
    for name in dict.fromkeys(row["method"] for row in published_rows("ood_auroc")):
        for outside in _OUTSIDE.get(build.dataset, ()):
            paper = _published(
                "ood_auroc",
                method=name,
                in_distribution=build.dataset,
                out_of_distribution=outside.removesuffix("-val"),
            )
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
    is_published = (build.dataset, build.classifier) == ("cifar100", "resnet50")
    return [
        build.cell(
            name, method, published("ablation_cifar100_resnet50", variant=name) if is_published else {}, **changes
        )
        for name, (method, changes) in variants.items()
    ]


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
            name, "csm", published("test_time_cifar100_resnet50", variant=name) if is_published else {}, measure=measure
        )
        for name, measure in measures.items()
    ]


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
            f"N_aug = {num}",
            "csm",
            _published("num_aug", n_aug=str(num), dataset=build.dataset),
            options={"num_mixed": num},
        )
        for num in (1, 2, 3)
    ]


def _num_sets(build: CellBuilder) -> list[Cell]:
    """Return CSM with up to four times as many mixed images as training images, in sets of 8.

    Fewer sets than pairs of classes are left out: the classes would not be treated alike.
    """
    num_images = build.training.train_size or build.training.num_images
    sets = {times: round(times * num_images / 8) for times in (1, 2, 3, 4, 5)}
    return [build.cell(f"{times} x data", "csm", num_sets=num) for times, num in sets.items() if num >= build.num_pairs]


def _training_time(build: CellBuilder) -> list[Cell]:
    names = [row["method"] for row in published_rows("training_time")]
    cells = []
    for name in names:
        method = METHODS_BY_NAME[name.removesuffix(" (Eq-Data)")]
        paper = published("training_time", method=name) if build.dataset == "cifar10" else {}
        eq_data = name.endswith("(Eq-Data)")
        cells.append(build.cell(name, method, paper, eq_data=eq_data, measure="hours"))
    return cells


_MAIN = ("acc", "ece", "ece_ts", "aece", "aece_ts")
_PLAIN = ("acc", "ece", "aece")
_C10, _C100 = ("cifar10", "resnet50"), ("cifar100", "resnet50")

PAPER_TABLES: dict[str, Table] = {
    "main": Table(
        "Main comparison",
        tuple((d, c) for d in ("cifar10", "cifar100", "tiny-imagenet") for c in ("resnet50", "resnet101")),
        _compare_methods,
        _MAIN,
    ),
    "eq_data": Table("CSM with as many images as others (Eq-Data)", (_C10,), _compare_methods, _MAIN),
    "imagenet_resnet50": Table("ImageNet, ResNet-50", (("imagenet", "timm:resnet50"),), _compare_methods, _PLAIN),
    "imagenet_swinv2": Table(
        "ImageNet, Swin-V2", (("imagenet", "timm:swinv2_tiny_window8_256"),), _compare_methods, _PLAIN
    ),
    "ood_auroc": Table("Out-of-distribution detection", (_C10, _C100), _ood_auroc, ("auroc",)),
    "ablation": Table("Ablation", (_C100,), _ablation, (*_MAIN, "temperature")),
    "reliability": Table("Reliability diagrams", (_C100,), _reliability, ("acc", "ece", "oe", "ue"), figure=True),
    "curves": Table(
        "Training curves and confidence histogram", (_C100,), _curves, ("acc", "nll", "oe", "ece"), figure=True
    ),
    "scale": Table("The scale s", (_C10,), _scale, ("oe", "ue", *_MAIN[1:]), figure=True),
    "test_time": Table("With test-time methods", (_C100,), _test_time, ("ece", "aece", "piece")),
    "wide_resnet": Table(
        "WRN-26-10", (("cifar10", "wrn26_10"), ("tiny-imagenet", "wrn26_10")), _compare_methods, _PLAIN
    ),
    "densenet121": Table("DenseNet-121", (("cifar10", "densenet121"),), _compare_methods, _PLAIN),
    "long_tailed": Table(
        "Long tails", (("cifar10", "resnet32"), ("cifar100", "resnet32")), _long_tailed, ("acc", "ece")
    ),
    "num_aug": Table("Mixed images for each real one", (_C10, _C100), _num_aug, ("ece",)),
    "num_sets": Table("Mixed images relative to the data", (_C100,), _num_sets, _PLAIN, figure=True),
    "training_time": Table("Training time", (_C10,), _training_time, ("hours",)),
}
