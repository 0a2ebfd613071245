"""Sprites hold the very pixels; galleries open from real stores."""

import base64
import io
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image

from semmix.annotation import annotate
from semmix.core.errors import SemmixError
from semmix.data import Split
from semmix.mixing.plan import MixPlan, all_pairs
from semmix.mixing.store import MixSets
from semmix.report import Gallery, open_gallery
from semmix.report import gallery as module
from semmix.report.gallery import lambda_chart, pair_chart, sprites


def decode(uri):
    head, data = uri.split(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


@pytest.mark.parametrize("channels", [1, 3])
def test_sprites_hold_the_very_pixels(channels):
    images = np.random.default_rng(0).integers(0, 256, (2, 4, channels, 5, 6), dtype=np.uint8)
    lam = np.zeros((2, 4))
    gallery = Gallery(images=images, pairs=[(0, 1)] * 2, lam_requested=lam, lam=lam)
    for n, uri in enumerate(sprites(gallery)):
        pixels = decode(uri).reshape(5, 24, channels)
        for k in range(4):
            expected = images[n, k].transpose(1, 2, 0)
            np.testing.assert_array_equal(pixels[:, 6 * k : 6 * k + 6], expected)


def test_large_images_are_shrunk():
    lam = np.zeros((1, 2))
    images = np.zeros((1, 2, 3, 128, 256), dtype=np.uint8)
    gallery = Gallery(images=images, pairs=[(0, 1)], lam_requested=lam, lam=lam)
    assert decode(sprites(gallery)[0]).shape == (48, 192, 3)


def test_pixels_stop_at_the_limit(gallery, monkeypatch):
    one = len(base64.b64decode(sprites(gallery)[0].split(",")[1]))
    monkeypatch.setattr(module, "MAX_SPRITE_BYTES", int(2.5 * one))
    assert len(sprites(gallery)) == 2


def test_shapes_that_disagree_are_refused():
    lam = np.zeros((2, 4))
    images = np.zeros((3, 4, 1, 5, 5), dtype=np.uint8)
    with pytest.raises(SemmixError, match="shapes disagree"):
        Gallery(images=images, pairs=[(0, 1)] * 2, lam_requested=lam, lam=lam)


def test_charts_show_means(gallery):
    assert "over 4 sets. The mean annotation goes from 0.00 to 1.00" in lambda_chart(gallery)
    assert "annotated lambda from 0.00 to 1.00" in pair_chart(gallery, (0, 2), "b → a")
    assert gallery.distinct_pairs == [(0, 1), (0, 2), (1, 3), (2, 3)]


@dataclass
class PixelEncoder:
    """Features are the pixels themselves."""

    name: str = "pixels:raw"
    dim: int = 4
    digest: str = "none"

    def embed(self, images):
        return images.flatten(1).float()


def test_open_gallery_reads_a_store_and_its_annotation(tmp_path):
    plan = MixPlan(num_classes=3, num_sets=5, pairs=all_pairs(3), lams=(0.0, 0.5, 1.0))
    generator = {"digest": "g", "trained_on": "t"}
    store = MixSets.create(tmp_path / "sets", plan, (1, 2, 2), generator, {})
    images = torch.randint(0, 256, (5, 3, 1, 2, 2), dtype=torch.uint8)
    store.write_shard(0, images)
    split = Split(torch.randint(0, 256, (9, 1, 2, 2), dtype=torch.uint8), torch.arange(9) % 3)
    notes = annotate(store, PixelEncoder(), (split, split), tmp_path / "notes")
    gallery = open_gallery(tmp_path / "sets", tmp_path / "notes", num_sets=2)
    np.testing.assert_array_equal(gallery.images, images[:2].numpy())
    np.testing.assert_array_equal(gallery.lam, notes.lam().numpy())
    np.testing.assert_array_equal(gallery.lam_requested[4], [0, 0.5, 1])
    assert gallery.pairs.tolist() == [[0, 1], [0, 2], [1, 2], [0, 1], [0, 2]]
