"""Copies are found however they were saved, different images are not, and quickly."""

import io
import time

import numpy as np
import pytest
import torch
from PIL import Image

from semmix.data import Split
from semmix.data.duplicates import THUMB_SIDE, find_duplicates, near_pairs, perceptual_hashes


def photos(num, size=64, seed=0):
    """Smooth random colour images: as different from each other as photographs are."""
    draw = torch.Generator().manual_seed(seed)
    grey, colour = (torch.rand(num, 1, 6, 6, generator=draw), torch.rand(num, 3, 6, 6, generator=draw))
    coarse = 0.8 * grey + 0.2 * colour
    images = torch.nn.functional.interpolate(coarse, (size, size), mode="bicubic")
    return (images.clamp(0, 1) * 255).to(torch.uint8)


def saved_again(image, quality=70, scale=1.0, brighter=0):
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    size = picture.size
    picture = picture.resize([round(scale * side) for side in size], Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    picture.point(lambda value: value + brighter).save(buffer, "JPEG", quality=quality)
    again = Image.open(buffer).resize(size, Image.Resampling.BICUBIC)
    return torch.from_numpy(np.asarray(again).copy()).permute(2, 0, 1)


def as_split(images):
    return Split(images, torch.zeros(len(images), dtype=torch.int64))


def test_different_images_are_no_copies():
    found = find_duplicates(as_split(photos(500)))
    assert found.near.tolist() == found.exact.tolist() == list(range(500))


@pytest.mark.parametrize("changes", [{}, {"quality": 40}, {"scale": 0.5}, {"scale": 3.0}, {"brighter": 4}])
def test_saved_again_rescaled_or_brightened_it_is_a_near_copy(changes):
    images = photos(60)
    copies = torch.stack([saved_again(image, **changes) for image in images])
    found = find_duplicates(as_split(torch.cat([images, copies])))
    assert found.exact.tolist() == list(range(120))
    assert (found.near[60:] == torch.arange(60)).double().mean() > 0.9


def test_exact_copies_share_the_first_row_and_make_sets():
    images = photos(4)
    found = find_duplicates(as_split(images[[0, 1, 0, 2, 1, 0]]))
    assert found.exact.tolist() == found.near.tolist() == [0, 1, 0, 3, 1, 0]
    assert found.sets(found.near) == [[0, 2, 5], [1, 4]]


def test_copies_of_several_kinds_begin_with_two_that_differ():
    images = photos(3)
    found = find_duplicates(as_split(images[[0, 0, 1, 0, 1, 2, 0]]))
    assert found.across(list("aaxbxyb")) == [[0, 3, 1, 6]]


def test_the_same_shape_in_another_colour_is_no_copy():
    grey = photos(1)[0].float().mean(0)
    red, green = torch.zeros(2, 3, 64, 64, dtype=torch.uint8)
    red[0], green[1] = grey, grey
    assert find_duplicates(as_split(torch.stack([red, green]))).near.tolist() == [0, 1]


def test_blank_images_of_other_brightness_are_no_copies():
    blank = torch.stack([torch.full((1, 8, 8), value) for value in (0, 20, 255, 255)])
    assert find_duplicates(as_split(blank.to(torch.uint8))).near.tolist() == [0, 1, 2, 2]


def test_hashes_see_shape_not_brightness_nor_contrast():
    thumbs = np.random.default_rng(0).integers(0, 100, (300, 144), dtype=np.uint8)
    hashes = perceptual_hashes(thumbs)
    assert (perceptual_hashes(thumbs + 50) == hashes).mean() > 0.95
    assert (perceptual_hashes(2 * thumbs) == hashes).any(1).all()
    assert (hashes == np.roll(hashes, 1, 0)).mean() < 0.001


def as_set(pairs):
    return {tuple(sorted(pair)) for some in pairs for pair in some.tolist()}


def test_nearly_every_pair_of_copies_is_found():
    """Against the comparison of all with all, on thumbnails at every distance from each other."""
    random = np.random.default_rng(0)
    base = random.integers(0, 256, (40, 432)).repeat(10, axis=0)
    noise = random.standard_normal(base.shape) * random.uniform(0, 10, (len(base), 1))
    thumbs = np.clip(base + noise, 0, 255).astype(np.uint8)
    wide = thumbs.astype(np.float32)
    distance = np.sqrt(np.square(wide[:, None] - wide[None]).mean(2))
    copies = distance <= 0.1 * wide.std(1)[:, None] + 1
    expected = {(i, j) for i, j in zip(*np.nonzero(copies), strict=True) if i < j}
    found = as_set(near_pairs(thumbs))
    assert found <= expected | {(j, i) for i, j in expected}
    assert len(found & expected) > 0.98 * len(expected) > 500


def test_a_hundred_thousand_images_take_seconds():
    random = np.random.default_rng(1)
    thumbs = random.integers(0, 256, (100_000, 3 * THUMB_SIDE**2), dtype=np.uint8)
    thumbs[50_000:50_100] = thumbs[:100]
    start = time.process_time()
    assert as_set(near_pairs(thumbs)) == {(row, 50_000 + row) for row in range(100)}
    assert time.process_time() - start < 20


def test_a_crowd_that_looks_alike_does_not_explode(monkeypatch):
    """Scanned pages share their hashes: the work is bounded, neighbours are still compared."""
    monkeypatch.setattr("semmix.data.duplicates.MAX_PAIRS", 300_000)
    thumbs = np.tile(np.array([[0, 120, 255]], dtype=np.uint8), (20_000, 4))
    start = time.process_time()
    assert sum(map(len, near_pairs(thumbs))) > 10 * 19_900
    assert time.process_time() - start < 20


def test_grey_and_small_images():
    grey = photos(20).float().mean(1, keepdim=True).to(torch.uint8)
    assert find_duplicates(as_split(grey)).near.tolist() == list(range(20))
    small = photos(20, size=8)
    assert find_duplicates(as_split(small[[*range(20), 3]])).near.tolist() == [*range(20), 3]
