"""The demo: everything on 100 handwritten digits, in minutes on two CPU cores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from semmix.core.runtime import Runtime
from semmix.data.config import DatasetConfig
from semmix.diffusion.sampling import MixConfig
from semmix.fitting.fit import FitConfig
from semmix.training.classifier import TrainConfig
from semmix.training.generator import GeneratorConfig


def digits() -> FitConfig:
    """Return the demo's config.

    Ten training images for each digit and no augmentation: a network that has learned them by heart
    is right nine times out of ten and sure nearly always, which is what calibration is about.
    """
    return FitConfig(
        data=DatasetConfig(dataset="digits", train_size=100),
        out=Path("demo"),
        seeds=5,
        sets_per_pair=20,
        sets_per_shard=100,
        generator=GeneratorConfig(network="digits", num_images=20_000, batch_size=64),
        sampler=MixConfig(num_steps=10, batch_size=400),
        train=TrainConfig(classifier="small", epochs=100, batch_size=50, schedule="cosine", pad=0, flip=False),
        runtime=Runtime(checkpoint_seconds=5),
    )


def smoke_digits() -> FitConfig:
    """Return the same path in seconds, to see that it can be walked at all."""
    demo = digits()
    return replace(
        demo,
        seeds=2,
        sets_per_pair=1,
        generator=replace(demo.generator, num_images=640, num_grids=1),
        sampler=replace(demo.sampler, num_steps=4),
        train=replace(demo.train, epochs=2),
    )
