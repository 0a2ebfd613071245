"""lambda_E and lambda: the paper's algebra, and the stage that applies it."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from semmix import MixPlan, MixSets, SemmixError, lambda_e, lambda_from
from semmix.annotate import (
    SCALES,
    Annotation,
    annotate_mixsets,
    choose_scale,
    class_prototypes,
    scale_curve,
)
from semmix.datasets import Split
from semmix.plan import all_pairs

VECTORS = arrays(np.float64, 6, elements=st.floats(-3, 3, width=32))


def distinct(p_i, p_j):
    assume(np.sum((p_i - p_j) ** 2) > 1e-2)


@given(VECTORS, VECTORS, VECTORS)
def test_matches_the_slow_twin(feature, p_i, p_j):
    distinct(p_i, p_j)
    top = sum((f - b) * (a - b) for f, a, b in zip(feature, p_i, p_j, strict=True))
    bottom = sum((a - b) ** 2 for a, b in zip(p_i, p_j, strict=True))
    assert lambda_e(feature, p_i, p_j).item() == pytest.approx(top / bottom, abs=1e-9)


@given(VECTORS, VECTORS, VECTORS, VECTORS)
def test_orthogonal_residuals_do_not_count(feature, residual, p_i, p_j):
    distinct(p_i, p_j)
    line = p_i - p_j
    orthogonal = residual - line * (residual @ line) / (line @ line)
    moved = lambda_e(feature + orthogonal, p_i, p_j)
    assert moved.item() == pytest.approx(lambda_e(feature, p_i, p_j).item(), abs=1e-6)


@given(VECTORS, VECTORS, VECTORS, st.floats(0.1, 12))
def test_swapping_the_classes_gives_one_less(feature, p_i, p_j, scale):
    distinct(p_i, p_j)
    there = lambda_from(lambda_e(feature, p_i, p_j), scale)
    back = lambda_from(lambda_e(feature, p_j, p_i), scale)
    assert (there + back).item() == pytest.approx(1, abs=1e-6)


@given(VECTORS, VECTORS, VECTORS, st.floats(0.2, 5))
def test_the_papers_three_forms_agree(feature, p_i, p_j, tau):
    """eq:probability_ratio equals eq:lambda_expressed; eq:lambda_rewrite where norms match."""
    distinct(p_i, p_j)
    ratio = 1 / (1 + np.exp(-(feature @ p_i - feature @ p_j) / tau))
    line2, norms = np.sum((p_i - p_j) ** 2), p_i @ p_i - p_j @ p_j
    position = lambda_e(feature, p_i, p_j).item()
    expressed = 1 / (1 + np.exp(-(line2 * (position - 0.5) + norms / 2) / tau))
    assert expressed == pytest.approx(ratio, abs=1e-6)
    # With equal norms the bias is gone and s = |P_i - P_j|^2 / tau.
    p_j = p_j / max(np.linalg.norm(p_j), 1e-3) * np.linalg.norm(p_i)
    distinct(p_i, p_j)
    assume(abs(p_i @ p_i - p_j @ p_j) < 1e-9)
    rewritten = lambda_from(lambda_e(feature, p_i, p_j), np.sum((p_i - p_j) ** 2) / tau).item()
    ratio = 1 / (1 + np.exp(-(feature @ p_i - feature @ p_j) / tau))
    assert rewritten == pytest.approx(ratio, abs=1e-6)


def test_coincident_prototypes_are_refused():
    with pytest.raises(SemmixError, match="coincide"):
        lambda_e([1.0, 2.0], [0.5, 0.5], [0.5, 0.5])


def test_range_given_in_the_paper():
    assert lambda_from([0.0, 1.0], 4.0).tolist() == pytest.approx([0.1192, 0.8808], abs=1e-4)
    assert lambda_from([0.0, 1.0], 2.3).tolist() == pytest.approx([0.2405, 0.7595], abs=1e-4)
    with pytest.raises(SemmixError, match="positive"):
        lambda_from(0.5, 0.0)


def test_prototypes_are_class_means():
    features = torch.tensor([[0.0, 2.0], [2.0, 0.0], [5.0, 5.0]])
    assert class_prototypes(features, torch.tensor([0, 0, 1]), 2).tolist() == [[1, 1], [5, 5]]
    with pytest.raises(SemmixError, match="without training images"):
        class_prototypes(features, torch.tensor([0, 0, 2]), 3)


@pytest.mark.parametrize("true_scale", [3.0, 8.0])
def test_auto_scale_finds_the_slope_the_data_have(true_scale):
    """Images at position t are of class 1 with probability sigmoid(s (t - 1/2)): s comes back."""
    generator = torch.Generator().manual_seed(0)
    t = torch.rand(40_000, generator=generator, dtype=torch.float64) * 3 - 1
    labels = (torch.rand(40_000, generator=generator) < lambda_from(t, true_scale)).long()
    prototypes = torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    features = torch.stack([t, torch.randn(40_000, generator=generator).double()], 1)
    chosen = choose_scale(scale_curve(features, labels, prototypes))
    assert chosen == pytest.approx(true_scale, rel=0.06)


def test_scale_curve_matches_the_slow_twin():
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(300, 4, generator=generator).double()
    labels = torch.arange(300) % 3
    prototypes = torch.randn(3, 4, generator=generator).double()
    losses = []
    for f, label in zip(features, labels.tolist(), strict=True):
        own = min(range(3), key=lambda c: float((f - prototypes[c]).square().sum()))
        t = min(lambda_e(f, prototypes[own], prototypes[o]).item() for o in {0, 1, 2} - {own})
        assert t >= 0.5
        sure = 1 / (1 + np.exp(-SCALES[30] * (t - 0.5)))
        losses.append(-np.log(sure if own == label else 1 - sure))
    assert scale_curve(features, labels, prototypes)[30].item() == pytest.approx(np.mean(losses))


class PixelEncoder:
    """Features are the pixels: enough to check the stage's book-keeping exactly."""

    name, dim, digest = "pixels", 12, "pixels"

    def __init__(self, fail_after: int = 10**9):
        self.left = fail_after

    def embed(self, images):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return images.flatten(1).float()


def make_store(folder) -> MixSets:
    plan = MixPlan(num_classes=3, num_sets=7, pairs=all_pairs(3), sets_per_shard=2)
    generator = {"digest": "g", "name": "g", "trained_on": None}
    store = MixSets.create(folder, plan, (3, 2, 2), generator, {})
    draw = torch.Generator().manual_seed(0)
    for k in range(plan.num_shards):
        shape = (len(plan.shard(k)), 8, 3, 2, 2)
        store.write_shard(k, torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8))
    return store


def make_split(seed: int) -> Split:
    draw = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (12, 3, 2, 2), generator=draw, dtype=torch.uint8)
    return Split(images, torch.arange(12) % 3)


def test_every_image_is_annotated_once_and_right(tmp_path):
    store, train, val = make_store(tmp_path / "mix"), make_split(1), make_split(2)
    notes = annotate_mixsets(store, PixelEncoder(), train, val, tmp_path / "notes")
    assert notes.lambda_e.shape == (7, 8)
    means = [train.images[train.labels == c].flatten(1).double().mean(0) for c in range(3)]
    for n in range(7):
        i, j = store.pair(n)
        for member in range(8):
            feature = store.read_set(n)[member].flatten().double()
            expected = lambda_e(feature, means[i], means[j])
            assert notes.lambda_e[n, member].item() == pytest.approx(expected.item())
    assert torch.allclose(notes.lam(), lambda_from(notes.lambda_e, notes.scale).float())
    assert torch.equal(notes.lam("requested"), store.lam_requested())
    assert set(notes.lam("one_hot").unique().tolist()) == {0.0, 1.0}
    with pytest.raises(SemmixError, match="did you mean 'requested'"):
        notes.lam("request")


@pytest.mark.parametrize("stop_after", range(6))
def test_stopped_annotation_goes_on_to_the_same_bytes(tmp_path, stop_after):
    store, train, val = make_store(tmp_path / "mix"), make_split(1), make_split(2)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    annotate_mixsets(store, PixelEncoder(), train, val, whole)
    with pytest.raises(KeyboardInterrupt):
        annotate_mixsets(store, PixelEncoder(stop_after), train, val, stopped)
    annotate_mixsets(store, PixelEncoder(), train, val, stopped)
    assert sorted(p.name for p in stopped.iterdir()) == ["annotation.json", "lambda_e.safetensors"]
    for path in whole.iterdir():
        assert path.read_bytes() == (stopped / path.name).read_bytes()


def test_finished_annotation_is_not_done_again(tmp_path):
    store, train, val = make_store(tmp_path / "mix"), make_split(1), make_split(2)
    annotate_mixsets(store, PixelEncoder(), train, val, tmp_path / "notes")
    annotate_mixsets(store, PixelEncoder(fail_after=0), train, val, tmp_path / "notes")


def test_annotation_of_other_sets_is_refused(tmp_path):
    store, train, val = make_store(tmp_path / "mix"), make_split(1), make_split(2)
    annotate_mixsets(store, PixelEncoder(), train, val, tmp_path / "notes")
    with pytest.raises(SemmixError, match="made from other inputs"):
        annotate_mixsets(store, PixelEncoder(), val, train, tmp_path / "notes")
    plan = MixPlan(num_classes=3, num_sets=1, pairs=((0, 1),))
    other = MixSets.create(tmp_path / "other", plan, (3, 2, 2), {"digest": "h"}, {})
    other.write_shard(0, torch.zeros(1, 8, 3, 2, 2, dtype=torch.uint8))
    with pytest.raises(SemmixError, match="belongs to other mixed sets"):
        Annotation.open(tmp_path / "notes", other)
