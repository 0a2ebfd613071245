"""Soft labels against a slow twin."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from semmix import SemmixError, lambda_grid, mix_labels


def slow_mix(i, j, lam, num_classes):
    label = np.zeros(num_classes)
    label[i] += lam
    label[j] += 1 - lam
    return label


@given(st.integers(0, 4), st.integers(0, 4), st.floats(0, 1))
def test_matches_the_slow_twin(i, j, lam):
    assert np.allclose(mix_labels(i, j, lam, 5).numpy(), slow_mix(i, j, lam, 5), atol=1e-7)


@given(st.integers(0, 4), st.integers(0, 4), st.floats(0, 1))
def test_swapping_the_classes_swaps_lam(i, j, lam):
    assert torch.allclose(mix_labels(i, j, lam, 5), mix_labels(j, i, 1 - lam, 5), atol=1e-6)


def test_broadcasts():
    labels = mix_labels([[0], [1]], [[2], [2]], [[0.0, 0.5, 1.0]], 3)
    assert labels.shape == (2, 3, 3)
    assert torch.allclose(labels.sum(-1), torch.ones(2, 3))
    assert labels[1, 1].tolist() == [0.0, 0.5, 0.5]


def test_labels_are_float32_whatever_they_are_made_of():
    classes = torch.tensor([0, 1], dtype=torch.int16)
    labels = mix_labels(classes, 2, torch.tensor([0.25, 1.0], dtype=torch.float64), 3)
    assert labels.dtype == torch.float32
    assert labels.tolist() == [[0.25, 0, 0.75], [0, 1, 0]]
    assert mix_labels([], [], [], 3).shape == (0, 3)


@pytest.mark.parametrize(
    "bad",
    [
        (0, 3, 0.5),
        (-1, 0, 0.5),
        ([0, 3], 0, 0.5),
        ([0, -1], 0, 0.5),
        (0, 1, 1.5),
        (0, 1, -0.5),
        (0, 1, [0.5, 1.5]),
        (0, 1, float("nan")),
    ],
)
def test_nonsense_is_refused(bad):
    with pytest.raises(SemmixError, match=r"class out of range|lam must lie"):
        mix_labels(*bad, num_classes=3)


def test_grid_has_both_ends():
    assert lambda_grid(8)[0] == 0
    assert lambda_grid(8)[-1] == 1
    assert len(lambda_grid()) == 8
    assert lambda_grid(2) == (0, 1)
    with pytest.raises(SemmixError, match="ends"):
        lambda_grid(1)
