"""Crops, flips and the drawing of mixed images, against slow twins."""

import itertools

import numpy as np
import pytest
import torch

from semmix import SemmixError
from semmix.core.seeds import fold_seed
from semmix.mixing.plan import all_pairs
from semmix.training.batches import MixedImages, crop_and_flip, place_images, shuffled_batches


def random_images(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def all_variants(image: np.ndarray, pad: int, flip: bool) -> list[bytes]:
    """Every crop of the zero-padded image, and of its mirror image."""
    variants = []
    for source in [image, image[..., ::-1]] if flip else [image]:
        padded = np.pad(source, ((0, 0), (pad, pad), (pad, pad)))
        _, height, width = image.shape
        for y in range(2 * pad + 1):
            for x in range(2 * pad + 1):
                variants.append(padded[:, y : y + height, x : x + width].tobytes())
    return variants


@pytest.mark.parametrize(("pad", "flip"), [(0, False), (0, True), (1, False), (2, True)])
def test_crops_and_flips_are_all_there_is_and_all_occur(pad, flip):
    image = random_images(3, 6, 6)
    torch.manual_seed(0)
    out = crop_and_flip(image.expand(4000, -1, -1, -1), pad, flip)
    seen = {(255 * x).round().to(torch.uint8).numpy().tobytes() for x in out}
    assert seen == set(all_variants(image.numpy(), pad, flip))


def test_crops_and_flips_are_drawn_as_ever():
    """Other draws of the same kind would make other runs; half are mirrored, all shifts alike."""
    images, pad = random_images(2000, 1, 5, 5), 2
    torch.manual_seed(3)
    mirrored = torch.rand(2000, 1) < 0.5
    down, right = (torch.randint(0, 2 * pad + 1, (2000, 1)) for _ in range(2))
    torch.manual_seed(3)
    for n, out in enumerate(crop_and_flip(images, pad, True)):
        padded = np.pad(images[n].numpy(), ((0, 0), (pad, pad), (pad, pad)))
        y, x = int(down[n]), int(right[n])
        crop = padded[:, y : y + 5, x : x + 5]
        expected = crop[..., ::-1] if mirrored[n] else crop
        assert np.allclose(255 * out.numpy(), expected, atol=1e-3)


def test_each_image_keeps_its_place():
    images, before = random_images(10, 1, 5, 5), torch.get_rng_state()
    assert torch.equal(crop_and_flip(images, 0, False), images.float() / 255)
    assert torch.equal(torch.get_rng_state(), before)  # nothing to draw


def test_batches_go_on_at_any_step():
    """Of 50 images, batches of 16 leave two out of every pass."""
    images = random_images(50, 1, 2, 2)
    batches = shuffled_batches(images, 3, 0, 16, torch.device("cpu"))
    places, pixels = zip(*itertools.islice(batches, 8), strict=True)
    for place, batch in zip(places, pixels, strict=True):
        assert torch.equal(batch, images[place])
    for number in range(2):
        torch.manual_seed(fold_seed("order", 3, number))
        assert torch.equal(torch.cat(places[3 * number : 3 * number + 3]), torch.rand(50).argsort()[:48])
    for step in (1, 3, 5):
        place, _ = next(shuffled_batches(images, 3, step, 16, torch.device("cpu")))
        assert torch.equal(place, places[step])


def test_images_in_memory_are_put_on_the_device():
    images = random_images(2, 1, 2, 2)
    assert place_images(images, torch.device("meta")).device.type == "meta"
    assert place_images("in files", torch.device("meta")) == "in files"


def mixed_images(num_classes: int = 4, copies: int = 3, size: int = 5) -> MixedImages:
    """Every pixel of member m of set s says 16 s + m."""
    pairs = torch.tensor(all_pairs(num_classes) * copies)
    code = 16 * torch.arange(len(pairs))[:, None] + torch.arange(size)
    images = code.to(torch.uint8)[:, :, None, None, None].expand(-1, -1, 1, 2, 2)
    soft_labels = torch.rand(len(pairs), size, num_classes).softmax(-1)
    return MixedImages.build(images, soft_labels, pairs)


@pytest.mark.parametrize("num_mixed", [1, 2, 3])
def test_drawn_members_follow_the_rule(num_mixed):
    mixed = mixed_images(copies=2)
    labels = torch.arange(4).repeat(500)
    torch.manual_seed(0)
    images, soft = mixed.draw(labels, num_mixed)
    codes = images[:, 0, 0, 0].reshape(-1, num_mixed).tolist()
    assert soft.shape == (2000 * num_mixed, 4)
    soft = soft.reshape(-1, num_mixed, 4)
    seen = set()
    for row, (label, drawn) in enumerate(zip(labels.tolist(), codes, strict=True)):
        sets = {code // 16 for code in drawn}
        assert len(sets) == 1, "all members come from one set"
        n = sets.pop()
        i, j = mixed.pairs[n].tolist()
        assert label in (i, j)
        seen.add((label, n))
        members = [code % 16 for code in drawn]
        if num_mixed > 1:
            assert members[0] == (4 if label == i else 0), "the end of the image's own class"
        assert all(1 <= m <= 3 for m in members[num_mixed > 1 :])
        assert torch.equal(soft[row], mixed.soft_labels[n, members])
    assert seen == {(c, n) for n, p in enumerate(mixed.pairs.tolist()) for c in p}


def test_sets_and_inner_members_are_drawn_equally_often():
    mixed = mixed_images(num_classes=3, copies=2)  # class 1 is in sets 0, 2, 3 and 5
    torch.manual_seed(0)
    images, _ = mixed.draw(torch.ones(6000, dtype=torch.int64), num_mixed=2)
    codes = images[:, 0, 0, 0].reshape(-1, 2).long()
    assert (codes[:, 0] // 16).bincount(minlength=6).tolist() == pytest.approx([1500, 0, 1500, 1500, 0, 1500], abs=150)
    assert (codes[:, 1] % 16).bincount(minlength=5).tolist() == pytest.approx([0, 2000, 2000, 2000, 0], abs=150)


def test_classes_without_sets_are_named():
    soft_labels = torch.full((1, 5, 4), 0.25)
    mixed = MixedImages.build(random_images(1, 5, 1, 2, 2), soft_labels, torch.tensor([[0, 1]]))
    names = ("plane", "car", "bird", "cat")
    mixed.check_classes(torch.tensor([0, 1, 1]), names)
    with pytest.raises(SemmixError, match=r"^no mixed set contains these classes: bird, cat\n.*semmix mix"):
        mixed.check_classes(torch.tensor([0, 1, 2, 3]), names)
    with pytest.raises(SemmixError, match="--exclude left out 5 sets"):
        mixed.check_classes(torch.tensor([0, 1, 2, 3]), names, num_excluded=5)
    soft_labels = torch.full((1, 5, 100), 0.01)
    mixed = MixedImages.build(random_images(1, 5, 1, 2, 2), soft_labels, torch.tensor([[0, 1]]))
    with pytest.raises(SemmixError, match=r"these classes: 2, 3, .*13 and 86 more\n"):
        mixed.check_classes(torch.arange(100), tuple(map(str, range(100))))


@pytest.mark.parametrize("num_mixed", [1, 2])
def test_sets_of_two_have_both_ends_drawn(num_mixed):
    mixed = mixed_images(num_classes=3, copies=1, size=2)
    torch.manual_seed(0)
    images, _ = mixed.draw(torch.arange(3).repeat(100), num_mixed)
    members = images[:, 0, 0, 0].reshape(-1, num_mixed) % 16
    for label in (0, 1, 2):
        assert set(members[label::3, -1].tolist()) == {0, 1}


def test_sets_of_three_have_one_inner_member():
    mixed = mixed_images(num_classes=3, copies=1, size=3)
    images, _ = mixed.draw(torch.arange(3).repeat(100), num_mixed=1)
    assert (images[:, 0, 0, 0] % 16).unique().tolist() == [1]
