"""Test-time augmentation: which views, and their mean."""

import pytest
import torch

from semmix import SemmixError
from semmix import calibration as cal


def test_views():
    image = torch.arange(1.0, 10.0).reshape(1, 1, 3, 3)
    seen = list(cal.views(image, padding=1))
    assert len(seen) == 10
    assert torch.equal(seen[0], image)
    assert torch.equal(seen[1], image.flip(-1))
    assert seen[2].squeeze().tolist() == [[0, 0, 0], [0, 1, 2], [0, 4, 5]]
    assert all(view.shape == image.shape for view in seen)
    assert len(list(cal.views(image, padding=0, flip=False))) == 1


def test_mean_of_probabilities():
    """A classifier that looks at the left edge sees both edges, and the padding, in turn."""

    def forward(images):
        left = images[:, 0, :, 0].mean(1)
        return torch.stack([left, -left], 1)

    images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    probs = cal.tta_probs(forward, images, padding=2)
    expected = torch.stack([forward(v).double().softmax(1) for v in cal.views(images, 2)]).mean(0)
    assert torch.equal(probs, expected)
    assert probs.dtype == torch.float64
    assert torch.allclose(probs.sum(1), torch.ones(4, dtype=torch.float64))


def test_one_image_without_batch_axis():
    with pytest.raises(SemmixError, match="batch axis"):
        cal.tta_probs(lambda x: x, torch.zeros(3, 8, 8))
