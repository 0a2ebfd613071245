"""Every table that `semmix table` knows, and its cells within a budget; `running.run_cell` runs one.

Our own: does CSM work against its rivals, and what makes it work? All on one network and one schedule that a
GPU finishes in minutes, equal numbers of images seen (Eq-Data) unless the line says otherwise, last weights.
Held to Eq-Data, 120 epochs of CSM with two mixed images for each real one pass over the real images 40 times.
RegMixup and RankMixup pass blends of the same images through the network besides, which makes them more expensive.
"""

from dataclasses import replace
from typing import Any, Literal

from semmix.core.errors import require, unknown_name
from semmix.diffusion.sampling import MixConfig
from semmix.experiments.cells import OWN, Cell, CellBuilder, CellTable, TableSettings, recipe_for
from semmix.experiments.paper import PAPER_TABLES
from semmix.fitting.recipes import with_given
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


def _all_methods(build: CellBuilder, **changes: Any) -> list[Cell]:
    return [_cell(build, METHOD_NAMES[name], name, **changes) for name in (*RIVALS, "csm")]


def _outside(build: CellBuilder) -> list[Cell]:
    """Return whether the headline's runs notice images of other data sets (out-of-distribution)."""
    others = [outside for outside in OUTSIDE if outside != build.dataset]
    return [cell for outside in others for cell in _all_methods(build, measure=f"ood:{outside}")]


def _controls(build: CellBuilder) -> list[Cell]:
    """Return what CSM's gain might come from besides mixing and re-annotation."""
    hard_ends = {"options": {"loss": "ce"}, "labels": "one_hot", "members": 2}
    options = build.cell("CSM", "csm").train.options
    full = 1 + int(options["num_mixed"])  # pyright: ignore[reportArgumentType]  # times the images of Eq-Data
    is_ours = build.settings.encoder == OWN and build.settings.scale is None
    joint_scale = {"scale": build.recipe.joint_scale} if is_ours and build.recipe.joint_scale else {}
    return [
        _cell(build, "CE", "ce"),
        _cell(build, "CE, as many real images as CSM", "ce", epochs=EPOCHS // full),
        _cell(build, "CE, as many images as CSM in full", "ce", epochs=full * EPOCHS),
        _cell(build, "CE + generated ends, hard labels", **hard_ends),
        *(_cell(build, f"Mixup, alpha = {alpha}", "mixup", options={"alpha": alpha}) for alpha in (0.1, 0.2, 0.4, 1.0)),
        _cell(build, "CSM, as many passes as RegMixup", epochs=REGMIXUP_PASSES * EPOCHS),
        *_labels(build),
        *_labels(build, ", joint batch statistics", options={"batch_statistics": "joint"}, **joint_scale),
    ]


def _labels(build: CellBuilder, words: str = "", **changes: Any) -> list[Cell]:
    """Return CSM with other labels, with its own, and in full."""
    return [
        *(_cell(build, row + words, labels=labels, **changes) for row, labels in LABELS.items()),
        _cell(build, "CSM" + words, **changes),
        _cell(build, "CSM in full" + words, eq_data=False, **changes),
    ]


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

TABLES: dict[str, CellTable] = {
    **PAPER_TABLES,
    "headline": CellTable(_TARGET, _all_methods, _COLUMNS),
    "foreign": CellTable(_TARGET, _outside, ("auroc",)),
    "controls": CellTable(_TARGET, _controls, _COLUMNS),
    "variants": CellTable(_TARGET, _variants, _COLUMNS),
}

Budget = Literal["smoke", "short", "full"]


def table_called(name: str) -> CellTable:
    """Return a table by its name."""
    if name not in TABLES:
        raise unknown_name("table", name, TABLES)
    return TABLES[name]


def plan_table(
    name: str, dataset: str | None = None, settings: TableSettings | None = None, classifier: str | None = None
) -> list[Cell]:
    """Return the cells of a table: as published, or moved to another data set or network.

    >>> len(plan_table("main"))
    90
    >>> plan_table("main", "digits")[-1].name
    'digits/small/CSM'
    """
    table = table_called(name)
    targets = table.targets
    if dataset is not None:
        known = tuple(target for target in targets if target[0] == dataset)
        targets = known or tuple((dataset, c) for c in recipe_for(dataset).classifiers)
    if classifier is not None:
        targets = tuple(dict.fromkeys((of, classifier) for of, _ in targets))
    builders = [CellBuilder(name, *target, settings or TableSettings()) for target in targets]
    cells = [cell for builder in builders for cell in table.build(builder)]
    require(cells, f"table {name} has no cells on {dataset}", "none", "leave --dataset out")
    return cells


def within(cell: Cell, budget: Budget) -> Cell:
    """Return the cell made cheap: `smoke` to see that it runs, `short` for a tenth of the work."""
    if budget == "full":
        return cell
    if budget == "short":
        changes: dict[str, Any] = {"train": {"epochs": max(1, cell.train.epochs // 10)}}
        if cell.mixing:
            training = cell.mixing.training
            length = {"minutes": training.minutes and training.minutes / 10}
            changes["mixing"] = {"training": {**length, "num_images": max(1, training.num_images // 10)}}
        return with_given(cell, changes)
    recipe = recipe_for(cell.data.dataset)
    # The largest class must leave the smallest an image.
    enough = 2 * recipe.num_classes * int(cell.data.imbalance or 5)
    data = {"train_size": min(recipe.train_size or enough, enough)}
    changes = {"data": data, "train": {"epochs": 2}}
    if cell.mixing:
        changes["mixing"] = {
            "learned_from": data,
            "training": {"minutes": None, "num_images": 640, "batch_size": 64, "num_grids": 1},
            "sampler": {"solver": "dpmpp_2m", "num_steps": 4},
            "num_sets": recipe.num_classes - 1,  # the first pairs are (0, 1), (0, 2), ...: all classes
        }
    return replace(with_given(cell, changes), seeds=1)
