"""Small image files and splits that several tests share."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from semmix.data import Split


@pytest.fixture
def make_split():
    """A function that makes a random split with the same number of images in every class."""

    def make(num_classes=4, per_class=25, shape=(3, 6, 6), seed=0):
        generator = torch.Generator().manual_seed(seed)
        labels = torch.arange(num_classes).repeat(per_class)
        images = torch.randint(0, 256, (len(labels), *shape), generator=generator)
        return Split(images.to(torch.uint8), labels)

    return make


@pytest.fixture
def make_folder(tmp_path):
    """A function that fills class folders with small random PNG files."""

    def make(name="photos", classes=("cat", "dog"), per_class=10, size=(8, 8)) -> Path:
        random = np.random.default_rng(0)
        for class_name in classes:
            folder = tmp_path / name / class_name
            folder.mkdir(parents=True)
            for k in range(per_class):
                pixels = random.integers(0, 256, (*size, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{k:03d}.png")
        return tmp_path / name

    return make
