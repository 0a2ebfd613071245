"""Any other data set of small images: a compact diffusion model and a ResNet-18, for one GPU."""

from __future__ import annotations

from semmix.datasets.config import DatasetConfig
from semmix.recipes.fit import FitConfig
from semmix.training.generator import GeneratorConfig


def images(dataset: str) -> FitConfig:
    """Return the recipe for `dataset`: 25 minutes of generator, then the published training."""
    return FitConfig(
        data=DatasetConfig(dataset=dataset),
        generator=GeneratorConfig(network="compact32", minutes=25, flip=True),
        sets_per_pair=100,
    )
