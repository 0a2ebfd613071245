"""AugMix: its operations against Pillow's, its divergence against a slow twin."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from semmix.methods import Batch, augmix, method
from semmix.methods.augmix import OPERATIONS, apply_operations, augment, jensen_shannon

SIZE = 32


def smooth_image(seed):
    """Return a uint8 picture with large and small structure: [H, W, 3]."""
    noise = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    picture = Image.fromarray(noise).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    return np.asarray(picture) // 2 + 40


def pillow(name, picture, level, sign):
    def affine(*coefficients):
        bilinear = Image.Resampling.BILINEAR
        return picture.transform((SIZE, SIZE), Image.Transform.AFFINE, coefficients, bilinear)

    shear, shift = sign * level * 0.3 / 10, sign * int(level * (SIZE / 3) / 10)
    turn = Image.Resampling.BILINEAR
    return {
        "autocontrast": lambda: ImageOps.autocontrast(picture),
        "equalize": lambda: ImageOps.equalize(picture),
        "posterize": lambda: ImageOps.posterize(picture, 4 - int(level * 4 / 10)),
        "solarize": lambda: ImageOps.solarize(picture, 256 - int(level * 256 / 10)),
        "rotate": lambda: picture.rotate(sign * int(level * 30 / 10), resample=turn),
        "shear_x": lambda: affine(1, shear, 0, 0, 1, 0),
        "shear_y": lambda: affine(1, 0, 0, shear, 1, 0),
        "translate_x": lambda: affine(1, 0, shift, 0, 1, 0),
        "translate_y": lambda: affine(1, 0, 0, 0, 1, shift),
    }[name]()


def test_operations_equal_pillows_to_one_level():
    cases = [(k, level, s) for k in range(9) for level in (0.5, 2.9, 7.7) for s in (-1, 1)]
    pictures = [smooth_image(seed) for seed in range(len(cases))]
    images = torch.tensor(np.stack(pictures)).permute(0, 3, 1, 2).float()
    operation, level, sign = (torch.tensor(column) for column in zip(*cases, strict=True))
    results = apply_operations(images, operation, level, sign).permute(0, 2, 3, 1).numpy()
    for result, picture, (k, strength, s) in zip(results, pictures, cases, strict=True):
        reference = np.asarray(pillow(OPERATIONS[k], Image.fromarray(picture), strength, s))
        gap = np.abs(result - reference)
        # Pillow cuts fractions off where we round, so that edges of the picture may also differ.
        assert (gap > 1).mean() < 0.005, OPERATIONS[k]


def test_an_index_past_the_end_changes_nothing():
    images = torch.randint(0, 256, (4, 3, 8, 8)).float()
    same = apply_operations(images, torch.full((4,), 9), torch.ones(4), torch.ones(4))
    torch.testing.assert_close(same, images)


def test_flat_images_survive_contrast_operations():
    images = torch.full((2, 1, 8, 8), 77.0)
    for name in ("autocontrast", "equalize"):
        index = torch.full((2,), OPERATIONS.index(name))
        torch.testing.assert_close(apply_operations(images, index, index, index * 0 + 1), images)


def test_augmented_images_are_new_images_in_range():
    images = torch.tensor(smooth_image(0)).permute(2, 0, 1)[None].repeat(16, 1, 1, 1) / 255
    torch.manual_seed(0)
    views = augment(images, severity=3.0)
    assert views.min() >= 0
    assert views.max() <= 1
    change = (views - images).abs().mean((1, 2, 3))
    assert (change > 0).float().mean() > 0.8  # a blend may draw a weight near 0
    assert len(set(change.tolist())) > 12  # every image has its own chains


def test_chains_have_one_to_three_operations_of_any_level(monkeypatch):
    operations, levels = [], []

    def recorded(images, operation, level, sign):
        operations.append(operation)
        levels.append(level)
        return images

    monkeypatch.setattr(augmix, "apply_operations", recorded)
    torch.manual_seed(0)
    augmix.chain(torch.rand(3000, 1, 2, 2), severity=3.0)
    depth = (torch.stack(operations) < len(OPERATIONS)).sum(0)
    assert (depth.bincount(minlength=4) / 3000).tolist() == pytest.approx([0, *[1 / 3] * 3], abs=0.04)
    levels = torch.cat(levels)
    assert 0.1 <= levels.min() < 0.11
    assert 2.99 < levels.max() <= 3
    assert levels.mean().item() == pytest.approx(1.55, abs=0.05)


def test_a_view_is_blended_with_its_image(monkeypatch):
    images = torch.tensor(smooth_image(1)).permute(2, 0, 1)[None] / 255
    monkeypatch.setattr(augmix, "draw_beta", lambda alpha, num, like: torch.zeros(num))
    torch.testing.assert_close(augment(images, severity=10.0), images)


def test_divergence_golden_value_and_twin(logits, mixed_logits):
    views = (logits, mixed_logits[0], mixed_logits[1])
    value = jensen_shannon(views).item()
    assert value == pytest.approx(0.286299, abs=1e-5)
    p = np.exp(np.stack(views))
    p /= p.sum(-1, keepdims=True)
    total = 0.0
    for i in range(6):
        mean = np.clip(p[:, i].mean(0), 1e-7, 1)
        total += sum((p[v, i] * np.log(p[v, i] / mean)).sum() for v in range(3)) / 3
    assert value == pytest.approx(total / 6, abs=1e-12)


def test_divergence_gradient_and_extremes(logits, mixed_logits):
    views = torch.stack([logits, *mixed_logits[:2]]).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: jensen_shannon(z.unbind()), views)
    extreme = (1e4 * views.detach().sign()).float().requires_grad_()
    jensen_shannon(extreme.unbind()).backward()
    assert torch.isfinite(extreme.grad).all()


def test_step_shows_three_views_at_once():
    images = torch.rand(4, 1, 8, 8)
    batch = Batch(images=images, labels=torch.tensor([0, 1, 2, 0]), index=torch.arange(4))
    shown = []

    def forward(images):
        shown.append(images)
        return images.flatten(1)[:, :3]

    terms = method("augmix", num_classes=3, weight=12.0).step(forward, batch)
    assert len(shown) == 1
    assert shown[0].shape == (12, 1, 8, 8)
    torch.testing.assert_close(shown[0][:4], images)
    torch.testing.assert_close(terms["loss"], terms["ce"] + 12 * terms["divergence"])


def test_divergence_needs_no_double_precision(logits, mixed_logits):
    views = torch.stack([logits, *mixed_logits[:2]])
    single = jensen_shannon(views.float().unbind())
    torch.testing.assert_close(single, jensen_shannon(views.unbind()).float())
