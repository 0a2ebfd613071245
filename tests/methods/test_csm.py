"""Semantic mixing: golden values, the ablated losses, and where batch statistics come from."""

import numpy as np
import pytest
import torch

from semmix import SemmixError
from semmix.methods import method
from semmix.mixing.plan import mix_labels


def identity(images):
    return images


@pytest.fixture
def mixed_batch(batch, mixed_logits):
    batch.mixed_images = mixed_logits[0]
    batch.mixed_labels = mix_labels(batch.labels, batch.labels.roll(-1), 0.7, 5).double()
    return batch


@pytest.mark.parametrize(
    ("options", "golden"),
    [
        ({}, 3.425865),
        ({"protocol": "paper"}, 2.797282),
        ({"weight": 0.1}, 2.640136 + 0.0785729),
        ({"loss": "ce"}, 2.640136 + 2.825930),
        ({"loss": "ce", "protocol": "paper"}, 2.640136 + 2.825930),
        ({"loss": "focal"}, 2.640136 + 2.408146),
        ({"batch_statistics": "real"}, 3.425865),
        ({"batch_statistics": "joint"}, 3.425865),
    ],
)
def test_golden_values(mixed_batch, options, golden):
    terms = method("csm", num_classes=5, **options).step(identity, mixed_batch)
    assert terms["loss"].item() == pytest.approx(golden, abs=1e-5)
    assert terms["real"].item() == pytest.approx(2.640136, abs=1e-5)


def slow_mixed(name, logits, targets, gamma):
    total = 0.0
    for z, q in zip(logits.tolist(), targets.tolist(), strict=True):
        p = np.exp(z) / np.exp(z).sum()
        for pk, qk in zip(p, q, strict=True):
            item = -np.log(pk) if name == "ce" else -((1 - pk) ** gamma) * np.log(pk)
            total += (pk - qk) ** 2 if name == "l2" else qk * item
    return total / len(logits)


@pytest.mark.parametrize("loss", ["l2", "ce", "focal"])
def test_mixed_term_equals_a_slow_twin(mixed_batch, loss):
    terms = method("csm", num_classes=5, loss=loss, gamma=2.0).step(identity, mixed_batch)
    slow = slow_mixed(loss, mixed_batch.mixed_images, mixed_batch.mixed_labels, 2.0)
    assert terms["mixed"].item() == pytest.approx(slow, abs=1e-12)


@pytest.mark.parametrize(("kind", "sizes"), [("both", [4, 6]), ("real", [4, 6]), ("joint", [10])])
def test_real_images_pass_first_and_apart_unless_asked(mixed_batch, kind, sizes):
    mixed_batch.images, mixed_batch.labels = mixed_batch.images[:4], mixed_batch.labels[:4]
    seen = []

    def forward(images):
        seen.append(len(images))
        return images

    rule = method("csm", num_classes=5, batch_statistics=kind)
    rule.step(forward, mixed_batch)
    assert seen == sizes
    assert method("csm", num_classes=5).batch_statistics == "both"  # as published
    assert rule.first_pass_predicts == (kind == "real")


def test_user_mistakes(batch):
    with pytest.raises(SemmixError, match="no mixed images"):
        method("csm", num_classes=5).step(identity, batch)
    for wrong in (
        {"loss": "mse"},
        {"protocol": "both"},
        {"num_mixed": 0},
        {"gamma": 0.5},
        {"batch_statistics": "mixed"},
    ):
        with pytest.raises(SemmixError):
            method("csm", num_classes=5, **wrong)


def test_ce(batch):
    loss = method("ce", num_classes=5).step(identity, batch)["loss"]
    assert loss.item() == pytest.approx(2.640136, abs=1e-5)
    assert torch.isfinite(method("ce", num_classes=5).step(lambda z: 1e4 * z, batch)["loss"])


def loss_of_mixed(mixed_batch, images, **options):
    mixed_batch.mixed_images = images
    return method("csm", num_classes=5, **options).step(identity, mixed_batch)["loss"]


@pytest.mark.parametrize("loss", ["l2", "ce", "focal"])
def test_gradient_precision_and_extremes(mixed_batch, loss):
    images = mixed_batch.mixed_images.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss_of_mixed(mixed_batch, x, loss=loss), images)
    double = loss_of_mixed(mixed_batch, images, loss=loss)
    torch.testing.assert_close(
        loss_of_mixed(mixed_batch, images.float(), loss=loss).float(), double.float(), rtol=1e-5, atol=1e-5
    )
    extreme = (1e4 * images.detach().sign()).float().requires_grad_()
    value = loss_of_mixed(mixed_batch, extreme, loss=loss)
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(extreme.grad).all()
