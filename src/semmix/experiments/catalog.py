"""Every table that `semmix table` knows, and its cells within a budget.

Nothing runs here. `plan_table` returns cells; `running.run_cell` runs one by the stages' functions.
"""

from dataclasses import replace
from typing import Any, Literal

from semmix.core.errors import SemmixError, unknown_name
from semmix.experiments.cells import Cell, CellBuilder, CellTable, TableSettings
from semmix.experiments.experiments import EXPERIMENTS
from semmix.experiments.paper import PAPER_TABLES
from semmix.experiments.protocols import recipe_for
from semmix.fitting.recipes import with_given

TABLES: dict[str, CellTable] = {**PAPER_TABLES, **EXPERIMENTS}
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
    cells = [
        cell for target in targets for cell in table.build(CellBuilder(name, *target, settings or TableSettings()))
    ]
    if not cells:
        raise SemmixError(f"table {name} has no cells on {dataset}", "none", "leave --dataset out")
    return cells


def within(cell: Cell, budget: Budget) -> Cell:
    """Return the cell made cheap: `smoke` to see that it runs, `short` for a tenth of the work."""
    if budget == "full":
        return cell
    changes: dict[str, Any]
    if budget == "short":
        changes = {"train": {"epochs": max(1, cell.train.epochs // 10)}}
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
