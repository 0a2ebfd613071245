"""Every table that `semmix table` knows, and its cells within a budget.

Nothing runs here. `plan_table` returns cells; `running.run_cell` runs one by the stages' functions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from semmix.core.errors import SemmixError, unknown_name
from semmix.data.config import DatasetConfig
from semmix.experiments.cells import Cell, CellBuilder, Mixing, Setting, Table
from semmix.experiments.experiments import EXPERIMENTS
from semmix.experiments.paper import PAPER_TABLES
from semmix.experiments.protocols import training_of

TABLES: dict[str, Table] = {**PAPER_TABLES, **EXPERIMENTS}


def table_called(name: str) -> Table:
    """Return a table by its name."""
    if name not in TABLES:
        raise unknown_name("table", name, TABLES)
    return TABLES[name]


def plan_table(
    name: str, dataset: str | None = None, setting: Setting | None = None, classifier: str | None = None
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
        targets = known or tuple((dataset, c) for c in training_of(dataset).classifiers)
    if classifier is not None:
        targets = tuple(dict.fromkeys((of, classifier) for of, _ in targets))
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
    return replace(cell, data=data, train=replace(cell.train, epochs=2), mixing=mixing, seeds=1)


def _short(mixing: Mixing) -> Mixing:
    training = mixing.training
    shorter = replace(
        training, minutes=training.minutes and training.minutes / 10, num_images=max(1, training.num_images // 10)
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
