"""The batch behind the golden values: B = 6 logits over K = 5 classes."""

import pytest
import torch

from semmix.methods import Batch


@pytest.fixture
def logits():
    i, k = torch.meshgrid(torch.arange(6.0), torch.arange(5.0), indexing="ij")
    return 3 * torch.sin((1 + 3 * i + 7 * k).double())


@pytest.fixture
def labels():
    return (2 * torch.arange(6) + 1) % 5


@pytest.fixture
def mixed_logits():
    """Return z_q for q = 0, 1, 2."""
    i, k = torch.meshgrid(torch.arange(6.0), torch.arange(5.0), indexing="ij")
    return [2 * torch.cos((1 + 2 * i + 5 * k + q).double()) for q in range(3)]


@pytest.fixture
def batch(logits, labels):
    """Return a batch whose images are the logits, for steps whose network is the identity."""
    return Batch(images=logits, labels=labels, index=torch.arange(6))
