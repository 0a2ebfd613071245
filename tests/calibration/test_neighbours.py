"""Proximity and the calibration error that knows of it."""

import numpy as np
import pytest

from semmix import SemmixError, piece
from semmix import calibration as cal


def slow_proximity(features, pool, num_neighbours, own):
    unit = [f / np.linalg.norm(f) for f in features]
    candidates = [f / np.linalg.norm(f) for f in pool]
    result = []
    for i, x in enumerate(unit):
        others = [c for j, c in enumerate(candidates) if not (own and i == j)]
        squared = sorted(((x - c) ** 2).sum() for c in others)[:num_neighbours]
        result.append((np.exp(-np.array(squared)).mean(), np.exp(-np.sqrt(squared).mean())))
    return np.array(result).T


def test_proximity_twin():
    random = np.random.default_rng(0)
    features, pool = random.normal(size=(30, 5)), random.normal(size=(40, 5))
    for others, own in ((pool, False), (None, True)):
        code, paper = slow_proximity(features, features if own else pool, 4, own)
        assert cal.proximity(features, others, 4) == pytest.approx(code)
        assert cal.proximity(features, others, 4, protocol="paper") == pytest.approx(paper)


def test_proximity_of_duplicates_is_one():
    assert cal.proximity([[1.0, 2.0]] * 5, num_neighbours=3) == pytest.approx(1)


def test_rounding_takes_no_copy_beyond_itself():
    """The cosine of a vector with itself may come out above 1."""
    features = np.repeat(np.random.default_rng(0).normal(size=(200, 7)), 3, axis=0)
    for protocol in ("code", "paper"):
        near = cal.proximity(features, num_neighbours=2, protocol=protocol)
        assert near == pytest.approx(1, abs=1e-6)
        assert near.max() <= 1


def slow_piece(probs, labels, proximity, bins, proximity_bins):
    edges = [np.quantile(proximity, q / proximity_bins) for q in range(1, proximity_bins)]
    cells = {}
    for row, label, near in zip(probs, labels, proximity, strict=True):
        group = sum(near >= edge for edge in edges)
        confidence = next(m for m in range(bins) if max(row) <= (m + 1) / bins or m == bins - 1)
        gap = max(row) - (int(np.argmax(row)) == label)
        cells[group, confidence] = cells.get((group, confidence), 0.0) + gap
    return sum(map(abs, cells.values())) / len(labels)


def test_piece_twin():
    random = np.random.default_rng(1)
    probs = cal.softmax(2 * random.normal(size=(300, 4)))
    labels, near = random.integers(0, 4, 300), random.random(300)
    assert piece(probs, labels, near) == pytest.approx(slow_piece(probs, labels, near, 15, 10))
    assert piece(probs, labels, near, 7, 3) == pytest.approx(slow_piece(probs, labels, near, 7, 3))
    near = near.round(1)  # many lie on an edge
    assert piece(probs, labels, near) == pytest.approx(slow_piece(probs, labels, near, 15, 10))


def test_piece_of_constant_proximity_is_ece():
    random = np.random.default_rng(2)
    probs, labels = cal.softmax(random.normal(size=(50, 3))), random.integers(0, 3, 50)
    assert piece(probs, labels, np.ones(50)) == pytest.approx(cal.ece(probs, labels))


def test_piece_sees_what_ece_does_not():
    """Overconfident where data are sparse, underconfident where dense: ECE cancels, PIECE adds."""
    probs, labels = [[0.75, 0.25]] * 8, [0, 0, 0, 0, 0, 0, 1, 1]
    assert cal.ece(probs, labels) == pytest.approx(0)
    near = [0.9] * 4 + [0.1] * 4
    assert piece(probs, labels, near, proximity_bins=2) == pytest.approx(0.25)


def test_mistakes():
    with pytest.raises(SemmixError, match="neighbours"):
        cal.proximity([[1.0, 0.0]] * 5, num_neighbours=5)
    with pytest.raises(SemmixError, match="zero"):
        cal.proximity([[0.0, 0.0], [1.0, 0.0]], num_neighbours=1)
    with pytest.raises(SemmixError, match="code, paper"):
        cal.proximity(np.eye(5), num_neighbours=1, protocol="papr")  # pyright: ignore[reportArgumentType]
    with pytest.raises(SemmixError, match="at least 1"):
        cal.proximity(np.eye(5), num_neighbours=0)
    with pytest.raises(SemmixError, match=r"pass \[N, D\]"):
        cal.proximity([1.0, 2.0, 3.0], num_neighbours=1)
    with pytest.raises(SemmixError, match="5 numbers each in features, 4 in the pool"):
        cal.proximity(np.eye(5), np.eye(4), num_neighbours=1)
    with pytest.raises(SemmixError, match="features hold NaN"):
        cal.proximity([[np.nan, 1.0], [1.0, 0.0]], num_neighbours=1)
    with pytest.raises(SemmixError, match="one per sample"):
        piece([[0.5, 0.5]], [0], [0.1, 0.2])
