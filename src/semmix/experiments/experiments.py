"""Our own experiments as tables: does it work against its rivals, and what makes it work?

All on one network and one schedule that a GPU finishes in minutes, equal numbers of images seen
(Eq-Data) unless the line says otherwise, last weights. Held to Eq-Data, 120 epochs of CSM with two
mixed images for each real one pass over the real images 40 times. RegMixup and RankMixup pass
blends of the same images through the network besides, which makes them more expensive.
"""

from dataclasses import replace
from typing import Any

from semmix.diffusion.sampling import MixConfig
from semmix.experiments.cells import OWN, Cell, CellBuilder, CellTable
from semmix.report.rows import METHOD_NAMES

RIVALS = ("ce", "ls", "fl", "mbls", "mixup", "regmixup", "rankmixup", "fcl")
OUTSIDE = ("cifar100", "tiny-imagenet-val")
EPOCHS = 120
REGMIXUP_PASSES = 2
"""How often RegMixup passes an image through the network; most methods do once."""
STATISTICS = {"real": ("statistics of real images", (3, 4, 5)), "joint": ("joint batch statistics", (2, 3, 4))}
"""How batch normalisation is kept from telling real images by itself, and the scales tried."""
LABELS = {
    "CSM, smoothed labels as sharp": "smoothed_matched",
    "CSM, requested labels": "requested",
    "CSM, requested labels as sharp": "requested_matched",
}
"""Labels that the same mixed images might have instead of those read back."""


def _cell(build: CellBuilder, row: str, method: str = "csm", epochs: int = EPOCHS, **changes: Any):
    """Return a cell with the experiments' schedule; the demo keeps its own."""
    if method == "csm":
        sampler = MixConfig(batch_size=2048, emphasis=build.settings.emphasis)
        changes = {"eq_data": True, "sampler": sampler, **changes}
    cell = build.cell(row, method, **changes)
    if build.dataset == "digits":
        schedule = {"epochs": cell.train.epochs * epochs // EPOCHS}
    else:
        schedule = {"epochs": epochs, "schedule": "cosine"}
    train = replace(cell.train, select="last", **schedule)
    # Whatever their length, all lines of CSM have the same network read their images.
    return replace(cell, train=train, times_encoder=epochs // EPOCHS if cell.mixing else 1)


def _headline(build: CellBuilder) -> list[Cell]:
    return [_cell(build, METHOD_NAMES[name], name) for name in (*RIVALS, "csm")]


def _outside(build: CellBuilder) -> list[Cell]:
    """Return whether the headline's runs notice images of other data sets (out-of-distribution)."""
    return [
        _cell(build, METHOD_NAMES[name], name, measure=f"ood:{outside}")
        for outside in OUTSIDE
        for name in (*RIVALS, "csm")
        if outside != build.dataset
    ]


def _controls(build: CellBuilder) -> list[Cell]:
    """Return what CSM's gain might come from besides mixing and re-annotation."""
    hard_ends = {"options": {"loss": "ce"}, "labels": "one_hot", "members": 2}
    return [
        _cell(build, "CE", "ce"),
        _cell(build, "CE, as many real images as CSM", "ce", epochs=EPOCHS // _times_full(build)),
        _cell(build, "CE, as many images as CSM in full", "ce", epochs=_times_full(build) * EPOCHS),
        _cell(build, "CE + generated ends, hard labels", **hard_ends),
        *(_cell(build, f"Mixup, alpha = {alpha}", "mixup", options={"alpha": alpha}) for alpha in (0.1, 0.2, 0.4, 1.0)),
        _cell(build, "CSM, as many passes as RegMixup", epochs=REGMIXUP_PASSES * EPOCHS),
        *_labels(build),
        *_labels(build, ", joint batch statistics", **_joint(build)),
    ]


def _times_full(build: CellBuilder) -> int:
    """Return how many times the images of Eq-Data CSM sees in full: a real one and its mixed."""
    options = build.cell("CSM", "csm").train.options
    return 1 + int(options["num_mixed"])  # pyright: ignore[reportArgumentType]


def _labels(build: CellBuilder, words: str = "", **changes: Any) -> list[Cell]:
    """Return CSM with other labels, with its own, and in full."""
    return [
        *(_cell(build, row + words, labels=labels, **changes) for row, labels in LABELS.items()),
        _cell(build, "CSM" + words, **changes),
        _cell(build, "CSM in full" + words, eq_data=False, **changes),
    ]


def _joint(build: CellBuilder) -> dict[str, Any]:
    """Return what changes where all images pass through the network together."""
    is_ours = build.settings.encoder == OWN and build.settings.scale is None
    scale = build.recipe.joint_scale if is_ours else None
    return {"options": {"batch_statistics": "joint"}, **({"scale": scale} if scale else {})}


def _variants(build: CellBuilder) -> list[Cell]:
    """Return CSM with one thing changed at a time."""
    sets, training = build.num_sets((0.1, 0.5, 1.0, 2.0, 4.0)), build.recipe.generator
    early = replace(training, num_images=training.num_images // 10, minutes=None)
    return [
        _cell(build, "CSM"),
        _cell(build, "one-hot labels", labels="one_hot"),
        _cell(build, "requested labels", labels="requested"),
        _cell(build, "positions as labels", labels="position"),
        _cell(build, "third-class labels", labels="third_class"),
        _cell(build, "CE on soft labels", options={"loss": "ce"}),
        _cell(build, "focal on soft labels", options={"loss": "focal"}),
        *(_cell(build, f"N_aug = {num}", options={"num_mixed": num}) for num in (1, 3)),
        _cell(build, "joint batch statistics", options={"batch_statistics": "joint"}),
        *(_cell(build, f"s = {s}", scale=float(s)) for s in range(2, 9)),
        *(
            _cell(build, f"s = {s}, {words}", scale=float(s), options={"batch_statistics": whose})
            for whose, (words, scales) in STATISTICS.items()
            for s in scales
        ),
        *([_cell(build, "s by the rule", scale=None)] if build.scale else []),
        *(_cell(build, f"sets of {share:.0%} of the data", num_sets=num) for share, num in sets.items()),
        _cell(build, "an early generator", generator=OWN, training=early),
    ]


_COLUMNS = ("acc", "ece", "aece", "oe", "ue", "nll", "temperature", "ece_ts", "aece_ts")
_TARGET = (("cifar10", "resnet18"),)

EXPERIMENTS: dict[str, CellTable] = {
    "headline": CellTable(_TARGET, _headline, _COLUMNS),
    "foreign": CellTable(_TARGET, _outside, ("auroc",)),
    "controls": CellTable(_TARGET, _controls, _COLUMNS),
    "variants": CellTable(_TARGET, _variants, _COLUMNS),
}
