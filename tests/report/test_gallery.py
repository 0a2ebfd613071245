"""Sprites hold the very pixels; galleries open from real stores."""

import base64
import io
import re
from dataclasses import dataclass, replace

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
from semmix.report.svg import Frame


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
    for given in ((store, notes), (store, tmp_path / "notes"), (str(tmp_path / "sets"), notes)):
        again = open_gallery(*given)
        assert len(again.images) == 5  # all there are
        np.testing.assert_array_equal(again.lam, gallery.lam)
    for alone in (open_gallery(store), open_gallery(tmp_path / "sets", None)):
        assert alone.lam is None
        np.testing.assert_array_equal(alone.lam_requested, gallery.lam_requested)


def points(markup):
    """Return the points of every line, in the data's units."""
    frame = Frame((0, 1), (0, 1), height=330)
    lines = re.findall('<polyline points="(.*?)" class="(.*?)"', str(markup))
    unit = {"x": frame.x(1) - frame.x(0), "y": frame.y(0) - frame.y(1)}
    found = []
    for text, style in lines:
        places = [map(float, point.split(",")) for point in text.split()]
        found.append(([((x - frame.x(0)) / unit["x"], (frame.y(0) - y) / unit["y"]) for x, y in places], style))
    return found


def test_the_lambda_chart_shows_the_mean_and_the_middle_eighty_per_cent(gallery):
    draw = np.random.default_rng(0)
    spread = replace(gallery, lam=np.clip(gallery.lam + 0.2 * draw.normal(size=gallery.lam.shape), 0, 1))
    chart = lambda_chart(spread)
    (band, band_style), (mean, mean_style) = points(chart)
    assert (band_style, mean_style) == ("band s1 d0", "line s1 d0")
    at = gallery.lam_requested[0]
    low, high = np.quantile(spread.lam, (0.1, 0.9), axis=0)
    assert mean == [pytest.approx(pair, abs=0.003) for pair in zip(at, spread.lam.mean(0), strict=True)]
    upper_back = zip(at[::-1], high[::-1], strict=True)
    assert band == [pytest.approx(pair, abs=0.003) for pair in [*zip(at, low, strict=True), *upper_back]]
    assert chart.count('class="speck"') == spread.lam.size


def test_the_chart_of_a_pair_shows_its_own_sets(gallery):
    lam = gallery.lam.copy()
    lam[1] = 0.5
    chart = pair_chart(replace(gallery, lam=lam), (0, 2), "b → a")
    assert "annotated lambda from 0.50 to 0.50" in chart
    assert re.findall('class="name middle">(.*?)<', str(chart)) == ["λ requested", "λ annotated"]
    assert replace(gallery, pairs=[(2, 3), (0, 1), (2, 3), (0, 1)]).distinct_pairs == [(0, 1), (2, 3)]
    assert chart.count("line thin") == 1
    assert 'viewBox="0 0 200 170"' in chart
    many = Gallery(np.zeros((1, 2, 1, 2, 2), np.uint8), [(0, 1)] * 30, np.tile([0.0, 1.0], (30, 1)), np.zeros((30, 2)))
    assert pair_chart(many, (0, 1), "n").count("line thin") == module.MAX_LINES


def test_every_array_of_a_gallery_must_fit(gallery):
    wrong = [
        {"pairs": gallery.pairs[:3]},
        {"lam": gallery.lam[:, :4]},
        {"images": gallery.images[:, :4]},
        {"images": gallery.images[0]},
        {"images": np.concatenate([gallery.images, gallery.images[:1]])},
    ]
    for change in wrong:
        with pytest.raises(SemmixError, match="shapes disagree"):
            replace(gallery, **change)
    assert len(replace(gallery, images=gallery.images[:2]).images) == 2  # fewer may be shown


def test_images_of_the_largest_side_are_not_shrunk():
    for side, shown in ((96, 96), (97, 96)):
        images = np.zeros((1, 2, 1, side, side), np.uint8)
        gallery = Gallery(images=images, pairs=[(0, 1)], lam_requested=np.zeros((1, 2)))
        assert decode(sprites(gallery)[0]).shape == (shown * side // side, 2 * shown)
