"""Which recipe `semmix fit` starts from: it depends on the data set."""

from __future__ import annotations

from collections.abc import Sequence

from semmix.recipes.digits import digits
from semmix.recipes.fit import FitConfig, fit
from semmix.recipes.images import images

__all__ = ["FitConfig", "fit", "recipe_for"]


def recipe_for(arguments: Sequence[str]) -> FitConfig:
    """Return the recipe of the data set that the arguments begin with; the demo's without one.

    >>> recipe_for(["digits", "--seeds", "2"]).train.classifier
    'small'
    >>> recipe_for(["cifar10"]).train.classifier
    'resnet18'
    """
    named = next(iter(arguments), "digits")
    return digits() if named == "digits" or named.startswith("-") else images(named)
