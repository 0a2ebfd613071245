"""Which recipe `semmix fit` starts from: it depends on the data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from semmix.recipes.digits import digits
from semmix.recipes.fit import FitConfig, fit

__all__ = ["FitConfig", "fit", "recipe_for"]

RECIPES: dict[str, Callable[[], FitConfig]] = {"digits": digits}


def recipe_for(arguments: Sequence[str]) -> FitConfig:
    """Return the recipe of the data set named in the arguments; the demo's for any other."""
    named = [word for word in arguments if word in RECIPES]
    return RECIPES[named[0]]() if named else digits()
