"""Many files: listed, read and searched for copies in reasonable time and memory."""

import os

import numpy as np
import torch
from PIL import Image

from semmix.data.duplicates import find_duplicates
from semmix.data.image_folder import gather

NUM_FILES, NUM_PICTURES, NUM_CLASSES, REPEATS = 20_000, 40, 4, 5


def test_twenty_thousand_files_and_a_hundred_thousand_images(tmp_path):
    """Hard links make them in seconds; so most are copies, which is the harder case."""
    random = np.random.default_rng(0)
    originals = tmp_path / "originals"
    originals.mkdir()
    for k in range(NUM_PICTURES):
        pixels = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(originals / f"{k}.png")
    photos = tmp_path / "photos"
    for c in range(NUM_CLASSES):
        (photos / f"class{c}").mkdir(parents=True)
    for k in range(NUM_FILES):
        name = f"class{k % NUM_CLASSES}/{k:06d}.png"
        os.link(originals / f"{k % NUM_PICTURES}.png", photos / name)
    found = gather(photos, 8, strict=True)
    assert len(found.files) == len(found.images) == NUM_FILES
    assert found.images.class_counts(NUM_CLASSES) == [NUM_FILES // NUM_CLASSES] * NUM_CLASSES
    copies = find_duplicates(found.images.select(torch.arange(NUM_FILES).repeat(REPEATS)))
    assert len(copies.near) == NUM_FILES * REPEATS
    assert len(copies.near.unique()) == len(copies.exact.unique()) == NUM_PICTURES
