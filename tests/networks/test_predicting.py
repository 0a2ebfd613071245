"""A classifier over many images: batches, mode, precision, progress."""

import pytest
import torch

from semmix.networks import classifier
from semmix.networks.predicting import full_precision, over_batches, predict_logits


@pytest.fixture
def network():
    torch.manual_seed(0)
    return classifier("small", 3, in_channels=1, image_size=8)


IMAGES = torch.randint(0, 256, (7, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("training", [True, False])
def test_logits_are_those_of_evaluation_and_the_mode_stays(network, training):
    with torch.no_grad():
        expected = network.eval()(IMAGES)
    network.train(training)
    logits = predict_logits(network, IMAGES, batch_size=3)
    torch.testing.assert_close(logits, expected)
    assert (logits.dtype, logits.requires_grad, network.training) == (torch.float32, False, training)


def test_every_batch_is_seen_once_in_order_and_told_to_the_bar(network):
    class Bar:
        done = ()

        def advance(self, amount=1, note=""):
            self.done += (amount,)

    bar, sizes = Bar(), []

    def sums(images):
        sizes.append(len(images))
        return images.double().sum((1, 2, 3))

    found = over_batches(network, sums, IMAGES, 3, bar)
    assert sizes == [3, 3, 1]
    assert bar.done == (3, 3, 1)
    assert found.dtype == torch.float32
    assert found.tolist() == IMAGES.sum((1, 2, 3)).tolist()


def test_nothing_is_rounded_to_tf32_meanwhile(network):
    seen = []

    def precision(images):
        seen.append((torch.backends.cudnn.allow_tf32, torch.is_grad_enabled()))
        return images

    before = torch.backends.cudnn.allow_tf32
    over_batches(network, precision, IMAGES)
    assert seen == [(False, False)]
    assert torch.backends.cudnn.allow_tf32 == before
    with full_precision():
        assert torch.backends.cudnn.allow_tf32 is False


def test_fast_is_exact_on_a_cpu(network):
    assert torch.equal(predict_logits(network, IMAGES, fast=True), predict_logits(network, IMAGES))
