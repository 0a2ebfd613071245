"""lambda_E and lambda: the paper's algebra, and the stage that applies it."""

import os
import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from semmix import MixPlan, MixSets, SemmixError, lambda_e, lambda_from
from semmix.annotation import LABEL_SCHEMES, Annotation, annotate, diagnose
from semmix.annotation.algebra import (
    SCALES,
    add_third_class,
    biased_lambda,
    choose_scale,
    class_prototypes,
    ends_warning,
    nearest_class,
    positions_against,
    scale_curve,
    scale_warning,
    sharpness,
    similarity,
    softmax_curve,
    temperature,
)
from semmix.cli.main import run_command
from semmix.data import Dataset, Split
from semmix.mixing.plan import all_pairs
from semmix.networks import classifier
from semmix.networks.encoders.pretrained import embed_all, embed_split
from semmix.networks.saved import load_classifier, save_classifier

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
    position = lambda_e(feature, p_i, p_j)
    expressed = biased_lambda(position, torch.as_tensor(p_i), torch.as_tensor(p_j), tau).item()
    assert expressed == pytest.approx(ratio, abs=1e-6)
    # With equal norms the bias is gone and s = |P_i - P_j|^2 / tau.
    p_j = p_j / max(np.linalg.norm(p_j), 1e-3) * np.linalg.norm(p_i)
    distinct(p_i, p_j)
    assume(abs(p_i @ p_i - p_j @ p_j) < 1e-9)
    rewritten = lambda_from(lambda_e(feature, p_i, p_j), np.sum((p_i - p_j) ** 2) / tau).item()
    ratio = 1 / (1 + np.exp(-(feature @ p_i - feature @ p_j) / tau))
    assert rewritten == pytest.approx(ratio, abs=1e-6)


@given(VECTORS, VECTORS, st.floats(0.2, 30))
def test_two_classes_have_the_slope_of_the_scale(p_i, p_j, scale):
    distinct(p_i, p_j)
    tau = temperature(torch.tensor(np.stack([p_i, p_j])), scale)
    assert np.sum((p_i - p_j) ** 2) / tau == pytest.approx(scale)


@given(arrays(np.float64, (4, 6), elements=st.floats(-3, 3, width=32)), VECTORS)
def test_similarities_alone_give_positions_and_the_nearest_class(prototypes, feature):
    for a in range(4):
        for b in range(a):
            distinct(prototypes[a], prototypes[b])
    protos = torch.tensor(prototypes)
    products = similarity(torch.tensor(feature), protos)
    against = positions_against(products, protos, torch.tensor(2))
    for k in (0, 1, 3):
        expected = lambda_e(feature, prototypes[k], prototypes[2]).item()
        assert against[k].item() == pytest.approx(expected, abs=1e-6)
    distances = np.sum((prototypes - feature) ** 2, axis=1)
    nearest = nearest_class(products, protos)
    assert distances[nearest] == pytest.approx(distances.min(), abs=1e-9)


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


@pytest.mark.parametrize(("accuracy", "scale"), [(0.88, 4.0), (0.76, 2.3), (0.97, 7.0)])
def test_auto_scale_makes_ends_as_sure_as_the_encoder_is_right(accuracy, scale):
    """Ends at lambda_E 0 and 1 have the label sigmoid(s / 2): the paper's s follow from CLIP's."""
    positions = torch.linspace(0, 1, 8, dtype=torch.float64).expand(50, 8)
    chosen = choose_scale(scale_curve(positions, accuracy))
    assert chosen == pytest.approx(scale, rel=0.04)
    assert torch.sigmoid(torch.tensor(chosen / 2)).item() == pytest.approx(accuracy, abs=0.005)


@pytest.mark.parametrize(
    ("spread", "accuracy", "words"),
    [
        (0.01, 0.9, "s = 64 .*hardly show"),
        (-0.5, 0.9, r"s = 0\.5 .*hardly show"),
        (1.0, 0.4, r"s = 0\.5 .*better encoder"),
    ],
)
def test_scales_at_the_end_of_their_range_are_doubted(spread, accuracy, words):
    """Ends of a poor generator lie half-way, or nearer to the other class."""
    positions = 0.5 + spread * torch.linspace(-0.5, 0.5, 8).double().expand(50, 8)
    chosen = choose_scale(scale_curve(positions, accuracy))
    assert re.search(words, scale_warning(chosen, accuracy) or "")
    assert scale_warning(4.0, accuracy) is None


def test_scale_curve_matches_the_slow_twin():
    positions = torch.randn(9, 5, generator=torch.Generator().manual_seed(1)).double() + 0.5
    sure = []
    for first, *_, last in positions.tolist():
        sure += [1 / (1 + np.exp(-SCALES[30] * (t - 0.5))) for t in (last, 1 - first)]
    expected = abs(np.mean(sure) - 0.8)
    assert scale_curve(positions, 0.8)[30].item() == pytest.approx(expected)


def test_softmax_curve_matches_the_slow_twin():
    draw = np.random.default_rng(2)
    features, labels, prototypes = draw.normal(size=(50, 4)), np.arange(50) % 3, np.eye(3, 4)
    tau = 2 / SCALES[40]  # every two of these prototypes are at squared distance 2
    losses = []
    for feature, label in zip(features, labels, strict=True):
        terms = [np.exp(sum(a * b for a, b in zip(feature, p, strict=True)) / tau) for p in prototypes]
        losses.append(-np.log(terms[label] / sum(terms)))
    curve = softmax_curve(*map(torch.tensor, (features, labels, prototypes)))
    assert curve[40].item() == pytest.approx(np.mean(losses))


def third_class_label(feature, prototypes, i, j, lam, scale):
    """The slow twin: one label, class by class."""
    shares, weights = {i: lam, j: 1 - lam}, {}
    for k in sorted(set(range(len(prototypes))) - {i, j}):
        logs = [
            share * (np.log(share) + scale * (lambda_e(feature, prototypes[k], prototypes[c]) - 0.5))
            for c, share in shares.items()
        ]
        weights[k] = np.exp(float(sum(logs)))
    third = max(weights, key=lambda k: weights[k])
    label = np.zeros(len(prototypes))
    label[[i, j, third]] = lam, 1 - lam, weights[third]
    return label / label.sum()


def test_third_class_matches_the_slow_twin():
    draw = np.random.default_rng(3)
    prototypes, features = draw.normal(size=(5, 6)), draw.normal(size=(3, 2, 6))
    pairs, lam = np.array([[0, 1], [4, 2], [3, 0]]), draw.uniform(0.1, 0.9, size=(3, 2))
    labels = torch.zeros(3, 2, 5, dtype=torch.float64)
    for n, (i, j) in enumerate(pairs):
        labels[n, :, i], labels[n, :, j] = torch.tensor(lam[n]), torch.tensor(1 - lam[n])
    protos = torch.tensor(prototypes)
    products = similarity(torch.tensor(features), protos)
    joined = add_third_class(labels, products, protos, torch.tensor(pairs), scale=5.0)
    for n, (i, j) in enumerate(pairs):
        for m in range(2):
            expected = third_class_label(features[n, m], prototypes, i, j, lam[n, m], scale=5.0)
            assert joined[n, m].tolist() == pytest.approx(expected.tolist())


def test_pure_and_two_class_labels_survive_a_third_class():
    """Where lambda is 0 or 1, or no other class exists, nothing becomes NaN."""
    protos = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    labels = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    products = similarity(torch.tensor([[[0.0, 0.0], [1.0, 0.0]]]), protos)
    joined = add_third_class(labels, products, protos, torch.tensor([[0, 1]]), scale=4.0)
    assert joined[0, 0, 2].item() == pytest.approx(np.exp(-2) / (1 + np.exp(-2)))
    two = add_third_class(labels[..., :2], products[..., :2], protos[:2], torch.tensor([[0, 1]]), scale=4.0)
    assert torch.equal(two, labels[..., :2])


def test_a_third_class_may_be_all_there_is():
    protos = 4 * torch.eye(3, dtype=torch.float64)
    products = similarity(torch.tensor([[[0.0, 0.0, 4.0]]]), protos)
    labels = torch.tensor([[[0.5, 0.5, 0.0]]])
    for scale in (200.0, 2000.0):
        joined = add_third_class(labels, products, protos, torch.tensor([[0, 1]]), scale)
        assert joined.flatten().tolist() == pytest.approx([0, 0, 1])


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


def make_store(folder, **changes) -> MixSets:
    plan = MixPlan(num_classes=3, num_sets=7, pairs=all_pairs(3), sets_per_shard=2, **changes)
    generator = {"digest": "g", "name": "g", "trained_on": None}
    store = MixSets.create(folder, plan, (3, 2, 2), generator, {})
    draw = torch.Generator().manual_seed(0)
    for k in range(plan.num_shards):
        shape = (len(plan.shard(k)), plan.set_size, 3, 2, 2)
        store.write_shard(k, torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8))
    return store


def make_split(seed: int) -> Split:
    draw = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (12, 3, 2, 2), generator=draw, dtype=torch.uint8)
    return Split(images, torch.arange(12) % 3)


def test_every_image_is_annotated_once_and_right(tmp_path):
    store, train, val = make_store(tmp_path / "mix"), make_split(1), make_split(2)
    annotation = annotate(store, PixelEncoder(), (train, val), tmp_path / "annotation")
    assert annotation.lambda_e.shape == (7, 8)
    means = [train.images[train.labels == c].flatten(1).double().mean(0) for c in range(3)]
    for n in range(7):
        i, j = store.pair(n)
        for member in range(8):
            feature = store.read_set(n)[member].flatten().double()
            expected = lambda_e(feature, means[i], means[j])
            assert annotation.lambda_e[n, member].item() == pytest.approx(expected.item())
    assert torch.allclose(annotation.lam(), lambda_from(annotation.lambda_e, annotation.scale).float())
    assert torch.equal(annotation.lam("requested"), store.lam_requested())
    assert set(annotation.lam("one_hot").unique().tolist()) == {0.0, 1.0}
    position = annotation.lam("position")
    assert torch.equal(position, annotation.lambda_e.float().clamp(min=0, max=1))
    assert torch.equal(position, annotation.lam("position", 3.0))  # no scale changes it
    with pytest.raises(SemmixError, match="did you mean 'requested'"):
        annotation.lam("request")


def test_sets_encoder_and_images_may_be_named(tmp_path, capsys):
    make_store(tmp_path / "mix")
    save_classifier(classifier("small", 3, 3, 8), "small", (3, 8, 8), tmp_path / "run")
    data = Dataset("noise", ("a", "b", "c"), make_split(1), make_split(2), make_split(3))
    given = annotate(tmp_path / "mix", f"classifier:{tmp_path / 'run'}", data, tmp_path / "annotation", device="cpu")
    inputs = given.artifact.manifest["inputs"]
    assert (inputs["train"], inputs["val"]) == (data.train.digest, data.val.digest)
    assert inputs["encoder"] == {"kind": "classifier", "digest": load_classifier(tmp_path / "run")[1]}
    assert repr(given).startswith(
        f"Annotation('{tmp_path}/annotation': 7 sets, scale {given.scale:.2f}, classifier right"
    )


def test_a_doubtful_scale_is_told_unless_the_user_chose_it(tmp_path, capsys):
    store, train = make_store(tmp_path / "mix"), make_split(1)
    val = Split(train.images, (train.labels + 1) % 3)  # hardly any is recognised
    annotate(store, PixelEncoder(), (train, val), tmp_path / "auto")
    assert "a better encoder may do better" in capsys.readouterr().out
    annotate(store, PixelEncoder(), (train, val), tmp_path / "given", SCALES[0])
    assert "may do better" not in capsys.readouterr().out


def test_ends_that_hardly_show_their_classes_are_told(tmp_path, capsys):
    store, train = make_store(tmp_path / "mix"), make_split(1)  # all noise
    annotate(store, PixelEncoder(), (train, train), tmp_path / "annotation", 4.0)
    means = [train.images[train.labels == c].flatten(1).double().mean(0) for c in range(3)]

    def looks_like(image):
        return int(np.argmin([(image.flatten().double() - mean).norm() for mean in means]))

    right = [
        looks_like(store.read_set(n)[member]) == c
        for n in range(7)
        for c, member in zip(store.pair(n), (7, 0), strict=True)
    ]
    seen = [looks_like(image) == c for image, c in zip(train.images, train.labels.tolist(), strict=True)]
    shares = f"recognised on {np.mean(right):.0%}, real images on {np.mean(seen):.0%}"
    assert shares in capsys.readouterr().out
    assert ends_warning(0.86, 1.0) is None
    assert ends_warning(0.84, 1.0)


@pytest.mark.parametrize("lams", [(0.2, 0.5, 0.8), (0.0, 0.5), (0.5, 1.0)])
def test_ends_that_are_not_pure_choose_no_scale(tmp_path, lams):
    store, train = make_store(tmp_path / "mix", lams=lams), make_split(1)
    with pytest.raises(SemmixError, match="without pure ends"):
        annotate(store, PixelEncoder(), (train, train), tmp_path / "annotation")
    annotation = annotate(store, PixelEncoder(), (train, train), tmp_path / "annotation", 4.0)
    assert annotation.lam().shape == (7, len(lams))


def test_sets_of_one_image_are_neither_monotone_nor_abrupt(tmp_path):
    store, train = make_store(tmp_path / "mix", lams=(0.5,)), make_split(1)
    annotation = annotate(store, PixelEncoder(), (train, train), tmp_path / "annotation", 4.0)
    found = diagnose(annotation)
    assert (found["monotone_share"], found["abrupt_share"]) == (0, 0)
    assert found["third_class_share"] is None


def test_drawn_lambdas_have_pure_ends(tmp_path):
    store, train = make_store(tmp_path / "mix", lams=(0.2, 0.5, 0.8), beta=1.0), make_split(1)
    assert annotate(store, PixelEncoder(), (train, train), tmp_path / "annotation").scale > 0


def test_every_scheme_gives_labels(tmp_path):
    store, train, val = make_store(tmp_path / "mix"), make_split(1), make_split(2)
    annotation = annotate(store, PixelEncoder(), (train, val), tmp_path / "annotation")
    for scheme in LABEL_SCHEMES:
        labels = annotation.soft_labels(scheme)
        assert labels.shape == (7, 8, 3)
        assert labels.dtype == torch.float32
        assert torch.allclose(labels.sum(-1), torch.ones(7, 8), atol=1e-6)
    assert torch.equal(annotation.soft_labels(), store.soft_labels(annotation.lam()))
    features = store.read_all().flatten(2).double()
    tau = temperature(annotation.prototypes, annotation.scale_for("encoder_softmax"))
    expected = torch.softmax(features @ annotation.prototypes.T / tau, -1).float()
    assert torch.allclose(annotation.soft_labels("encoder_softmax"), expected, atol=1e-4)
    curve = softmax_curve(val.images.flatten(1), val.labels, annotation.prototypes)
    assert torch.equal(annotation.tensors["softmax_curve"], curve)
    assert annotation.scale_for("encoder_softmax") == choose_scale(curve) != annotation.scale
    for scale in (annotation.scale, 3.0):
        of_pair = store.soft_labels(lambda_from(annotation.lambda_e, scale))
        rest = (annotation.similarity, annotation.prototypes, store.pairs(), scale)
        expected = add_third_class(of_pair, *rest)
        assert torch.allclose(annotation.soft_labels("third_class", scale), expected, atol=1e-6)
    # biased is what the softmax says of the pair alone, at the same temperature
    soft, biased = annotation.soft_labels("encoder_softmax", 3.0), annotation.soft_labels("biased", 3.0)
    of_pair = soft * (biased > 0)
    assert torch.allclose(of_pair / of_pair.sum(-1, keepdim=True), biased, atol=1e-4)
    assert [annotation.scale_for(s, 3.0) for s in ("requested", "position", "biased")] == [None, None, 3.0]
    with pytest.raises(SemmixError, match="no single lambda"):
        annotation.lam("third_class")
    with pytest.raises(SemmixError, match="unknown label scheme"):
        annotation.soft_labels("soft")


def test_controls_are_as_sharp_as_the_labels_and_know_no_image(tmp_path):
    store, train, val = make_store(tmp_path / "mix"), make_split(1), make_split(2)
    annotation = annotate(store, PixelEncoder(), (train, val), tmp_path / "annotation")
    for scale in (None, 2.0):
        wanted = sharpness(annotation.lam("reannotated", scale))
        requested = annotation.lam("requested_matched", scale)
        smoothed = annotation.lam("smoothed_matched", scale)
        assert sharpness(requested) == pytest.approx(wanted, abs=1e-6)
        assert sharpness(smoothed) == pytest.approx(wanted, abs=1e-6)
        assert bool((requested.diff(dim=1) > 0).all())  # every set rises with what was asked for
        assert torch.allclose(requested, requested[:1].expand_as(requested))  # SIMD rounding
        assert smoothed.unique().tolist() == pytest.approx([1 - wanted, wanted])
    assert sharpness(torch.tensor([[0.1, 0.9]])) == pytest.approx(0.9)  # ends alone


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_senseless_scales_are_refused(tmp_path, scale):
    store, train = make_store(tmp_path / "mix"), make_split(1)
    with pytest.raises(SemmixError, match="positive"):
        annotate(store, PixelEncoder(), (train, train), tmp_path / "annotation", scale)
    annotation = annotate(store, PixelEncoder(), (train, train), tmp_path / "annotation", 2.0)
    assert annotation.scale == 2.0
    with pytest.raises(SemmixError, match="positive"):
        annotation.soft_labels("encoder_softmax", scale)


@pytest.mark.parametrize("stop_after", range(6))
def test_stopped_annotation_goes_on_to_the_same_bytes(tmp_path, stop_after):
    store, train, val = make_store(tmp_path / "mix"), make_split(1), make_split(2)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    annotate(store, PixelEncoder(), (train, val), whole)
    with pytest.raises(KeyboardInterrupt):
        annotate(store, PixelEncoder(stop_after), (train, val), stopped)
    annotate(store, PixelEncoder(), (train, val), stopped)
    assert sorted(p.name for p in stopped.iterdir()) == ["annotation.json", "lambda_e.safetensors"]
    for path in whole.iterdir():
        assert path.read_bytes() == (stopped / path.name).read_bytes()


def test_a_half_done_annotation_is_not_opened(tmp_path):
    store, train, val = make_store(tmp_path / "mix"), make_split(1), make_split(2)
    with pytest.raises(KeyboardInterrupt):
        annotate(store, PixelEncoder(3), (train, val), tmp_path / "annotation")
    with pytest.raises(SemmixError, match=r"is not finished(.|\n)*semmix annotate again"):
        Annotation.open(tmp_path / "annotation", store)


def test_finished_annotation_is_not_done_again(tmp_path):
    store, train, val = make_store(tmp_path / "mix"), make_split(1), make_split(2)
    annotate(store, PixelEncoder(), (train, val), tmp_path / "annotation")
    annotate(store, PixelEncoder(fail_after=0), (train, val), tmp_path / "annotation")


def test_images_of_another_data_set_claim_no_folder(tmp_path):
    store, train = make_store(tmp_path / "mix"), make_split(1)
    larger = Split(train.images.repeat(1, 1, 2, 2), train.labels)
    grey = Split(train.images[:, :1], train.labels)
    beyond = Split(train.images, train.labels + 1)
    fewer = Split(train.images, train.labels.clamp(max=1))
    out, cases = (tmp_path / "annotation", ((larger, "--size 2"), (grey, "data set"), (beyond, "4 classes")))
    for other, words in cases:
        for splits in ((other, train), (train, other)):
            with pytest.raises(SemmixError, match="do not fit") as caught:
                annotate(store, PixelEncoder(), splits, out)
            assert words in str(caught.value)
            assert ("classes" in caught.value.seen) == (other is beyond)  # the others are not known
    with pytest.raises(SemmixError, match="without training images"):
        annotate(store, PixelEncoder(), (fewer, train), out)
    assert not out.exists()


def test_a_judge_of_other_images_is_refused_before_the_work(tmp_path):
    make_store(tmp_path / "mix")
    for name, num_classes, shape in (("reader", 10, (1, 8, 8)), ("judge", 4, (3, 8, 8))):
        network = classifier("small", num_classes, *shape[:2])
        save_classifier(network, "small", shape, tmp_path / name)
    arguments = ["digits", "--encoder", f"classifier:{tmp_path / 'reader'}", "--report"]
    arguments += ["--mixsets", str(tmp_path / "mix"), "--out", str(tmp_path / "annotation")]
    with pytest.raises(SemmixError, match=r"judge does not fit(.|\n)*they are \(3, 2, 2\)"):
        run_command("annotate", [*arguments, "--judge", str(tmp_path / "judge")])
    assert not (tmp_path / "annotation").exists()


def test_a_judge_without_a_report_is_refused(tmp_path):
    with pytest.raises(SemmixError, match=r"for the report alone: run(.|\n)*--report"):
        run_command("annotate", ["digits", "--judge", "run", "--out", str(tmp_path / "annotation")])
    assert not (tmp_path / "annotation").exists()


def test_annotation_of_other_sets_is_refused(tmp_path):
    store, train, val = make_store(tmp_path / "mix"), make_split(1), make_split(2)
    annotate(store, PixelEncoder(), (train, val), tmp_path / "annotation")
    other_encoder = PixelEncoder()
    other_encoder.digest = "other weights"
    for encoder, images, scale in (
        (PixelEncoder(), (val, val), None),
        (PixelEncoder(), (train, train), None),
        (PixelEncoder(), (train, val), 4.0),
        (other_encoder, (train, val), None),
    ):
        with pytest.raises(SemmixError, match="made from other inputs"):
            annotate(store, encoder, images, tmp_path / "annotation", scale)
    plan = MixPlan(num_classes=3, num_sets=1, pairs=((0, 1),))
    other = MixSets.create(tmp_path / "other", plan, (3, 2, 2), {"digest": "h"}, {})
    other.write_shard(0, torch.zeros(1, 8, 3, 2, 2, dtype=torch.uint8))
    with pytest.raises(SemmixError, match="belongs to other mixed sets"):
        Annotation.open(tmp_path / "annotation", other)


def test_damaged_annotation_gives_no_labels(tmp_path):
    store, train, val = make_store(tmp_path / "mix"), make_split(1), make_split(2)
    whole = annotate(store, PixelEncoder(), (train, val), tmp_path / "annotation")
    path, manifest = whole.artifact.folder / "lambda_e.safetensors", whole.artifact.path
    other = "do not match the annotation's digest"
    for file, damage, words in (
        (path, lambda sound: sound[:-1] + bytes([sound[-1] ^ 1]), other),
        (manifest, lambda sound: sound.replace(b'"softmax_scale": ', b'"softmax_scale": 1'), other),
        (manifest, lambda sound: sound.replace(b'\n  "scale": ', b'\n  "scale": 1'), other),
        (path, lambda sound: sound[:100], "cannot read"),
        (path, None, "cannot read"),
    ):
        sound = file.read_bytes()
        file.unlink() if damage is None else file.write_bytes(damage(sound))
        with pytest.raises(SemmixError, match=words) as caught:
            Annotation.open(path.parent, store).soft_labels()
        assert "run semmix annotate again" in caught.value.fix
        file.write_bytes(sound)
    assert torch.equal(Annotation.open(path.parent, store).soft_labels(), whole.soft_labels())


def test_damaged_part_is_named_and_can_be_made_again(tmp_path):
    store, train, val = make_store(tmp_path / "mix"), make_split(1), make_split(2)
    whole = annotate(store, PixelEncoder(), (train, val), tmp_path / "whole")
    stopped = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        annotate(store, PixelEncoder(fail_after=2), (train, val), stopped)
    (part,) = stopped.glob("part-*")
    part.write_bytes(part.read_bytes()[:50])
    with pytest.raises(SemmixError, match=rf"cannot read .*{part.name}") as caught:
        annotate(store, PixelEncoder(), (train, val), stopped)
    assert f"delete {part}" in caught.value.fix
    part.unlink()
    again = annotate(store, PixelEncoder(), (train, val), stopped)
    assert again.digest == whole.digest


PROCESS = """
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("test_annotate", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
folder = sys.argv[2]

class Logged(module.PixelEncoder):
    def embed(self, images):
        with open(f"{folder}/seen-{os.environ['RANK']}", "a") as file:
            file.write("".join(image.numpy().tobytes().hex() + "\\n" for image in images))
        return super().embed(images)

store = module.MixSets.open(f"{folder}/mix")
train, val = module.make_split(1), module.make_split(2)
annotation = module.annotate(store, Logged(), (train, val), f"{folder}/annotation")
assert annotation.lambda_e.shape == (7, 8)
"""


def test_two_processes_read_every_image_once(tmp_path):
    """Two processes leave the bytes that one leaves, and share the shards between them."""
    store, train, val = make_store(tmp_path / "mix"), make_split(1), make_split(2)
    annotate(store, PixelEncoder(), (train, val), tmp_path / "alone")
    command = [sys.executable, "-c", PROCESS, __file__, str(tmp_path)]
    places = [{"RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)]
    running = [subprocess.Popen(command, env={**os.environ, **place}) for place in places]
    assert [process.wait(timeout=60) for process in running] == [0, 0]
    for path in (tmp_path / "alone").iterdir():
        assert path.read_bytes() == (tmp_path / "annotation" / path.name).read_bytes()
    assert len(list((tmp_path / "annotation").iterdir())) == 2
    seen = [Counter((tmp_path / f"seen-{rank}").read_text().split()) for rank in range(2)]
    mixed = [image.numpy().tobytes().hex() for image in store.read_all().flatten(0, 1)]
    assert all(seen[0][image] + seen[1][image] == 1 for image in mixed)
    assert all(any(counts[image] for image in mixed) for counts in seen)


@pytest.mark.parametrize("calls_before", range(6))
def test_what_another_command_finishes_meanwhile_is_taken(tmp_path, monkeypatch, calls_before):
    """However far the slower one is: at prototypes, at any shard, or putting them together."""
    store, train, val = make_store(tmp_path / "mix"), make_split(1), make_split(2)
    whole = annotate(store, PixelEncoder(), (train, val), tmp_path / "whole")

    class Overtaken(PixelEncoder):
        def embed(self, images):
            self.left -= 1
            if self.left == -1:
                annotate(store, PixelEncoder(), (train, val), tmp_path / "annotation")
            return images.flatten(1).float()

    def wait(seconds):
        raise AssertionError("waits for parts that nobody makes any more")

    monkeypatch.setattr("semmix.annotation.annotation.time.sleep", wait)
    annotation = annotate(store, Overtaken(calls_before), (train, val), tmp_path / "annotation")
    assert annotation.digest == whole.digest
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "annotation" / path.name).read_bytes()
    assert len(list((tmp_path / "annotation").iterdir())) == 2


class KeptEncoder(PixelEncoder):
    """One whose features are worth keeping."""

    cache_key = "pixels"


def test_features_of_a_split_are_read_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SEMMIX_CACHE", str(tmp_path))
    split = make_split(1)
    first = embed_split(KeptEncoder(), split, "features")
    assert torch.equal(embed_split(KeptEncoder(fail_after=0), split, "features"), first)
    with pytest.raises(KeyboardInterrupt):  # other images, other features
        embed_split(KeptEncoder(fail_after=0), make_split(2), "features")
    with pytest.raises(KeyboardInterrupt):  # an encoder that does not ask for it is not kept
        embed_split(PixelEncoder(fail_after=0), split, "features")
    (kept,) = (tmp_path / "features").iterdir()
    kept.write_bytes(b"damaged")
    assert torch.equal(embed_split(KeptEncoder(), split, "features"), first)
    monkeypatch.setenv("SEMMIX_CACHE", str(kept))  # a file, no folder: nothing can be kept there
    assert torch.equal(embed_split(KeptEncoder(), split, "features"), first)
    assert "not kept" in capsys.readouterr().out


def test_features_do_not_depend_on_the_batch(tmp_path):
    images = make_split(1).images
    whole = embed_all(PixelEncoder(), images, "features")
    assert torch.equal(embed_all(PixelEncoder(), images, "features", batch_size=5), whole)


def make_annotation(folder, lambda_e, scale=None) -> Annotation:
    """Annotate sets of one grey pixel that shows lambda_E times 100 (and 120: a third class)."""
    plan = MixPlan(num_classes=3, num_sets=len(lambda_e), pairs=((1, 0),), lams=(0, 0.5, 1))
    store = MixSets.create(folder / "mix", plan, (1, 1, 1), {"digest": "g"}, {})
    images = (torch.tensor(lambda_e) * 100).round().to(torch.uint8).view(-1, 3, 1, 1, 1)
    store.write_shard(0, images)
    real = torch.tensor([0, 100, 180], dtype=torch.uint8).view(3, 1, 1, 1)
    split = Split(real, torch.arange(3))
    return annotate(store, PixelEncoder(), (split, split), folder / "annotation", scale)


def test_clear_ends_give_no_warning_and_swapped_ones_do(tmp_path, capsys):
    """Of the pair (1, 0) the first image is to show class 0, the last one class 1."""
    make_annotation(tmp_path / "clear", [[0.0, 0.5, 1.0]] * 4, scale=4.0)
    assert "hardly show" not in capsys.readouterr().out
    make_annotation(tmp_path / "swapped", [[1.0, 0.5, 0.0]] * 4, scale=4.0)
    assert "recognised on 0%, real images on 100%" in capsys.readouterr().out


def test_diagnosis_of_sets_made_to_order(tmp_path):
    smooth, jump, fall = [0.0, 0.5, 1.0], [0.0, 0.9, 1.0], [0.0, 1.0, 0.8]
    foreign, swapped = [0.0, 1.6, 1.7], [0.7, 0.8, 1.0]
    found = diagnose(make_annotation(tmp_path, [smooth, jump, fall, foreign, swapped]))
    flat = diagnose(make_annotation(tmp_path / "flat", [[0.2, 0.21, 0.22]]))
    assert flat["monotone_share"] == 0
    still = diagnose(make_annotation(tmp_path / "still", [[0.3, 0.3, 0.3], [0.3, 0.3, 0.1]]))
    assert still["rank_correlation"] == pytest.approx((0 - np.sqrt(3) / 2) / 2)
    assert found["monotone_share"] == pytest.approx(4 / 5)  # fall
    assert found["abrupt_share"] == pytest.approx(4 / 5)  # all but smooth
    assert found["third_class_share"] == pytest.approx(1 / 5)  # foreign
    assert found["odd_sets"] == [3, 4]
    assert found["swapped_share"] == pytest.approx(1 / 5)
    assert found["prototype_accuracy"] == 1
    assert [place["lambda_e"] for place in found["places"]] == pytest.approx([0.14, 0.96, 1.1])
    assert [place["third_class"] for place in found["places"]] == pytest.approx([0, 0.2, 0.2])
    assert found["rank_correlation"] == pytest.approx((1 + 1 + 0.5 + 1 + 1) / 5)
    assert [row["norm"] for row in found["classes"]] == [0, 100, 180]
    assert [row["nearest"] for row in found["classes"]] == [1, 2, 1]
    assert [row["ends_look_right"] for row in found["classes"]] == [0.8, 0.8, None]
    (pair,) = found["pairs"]
    assert pair["pair"] == [1, 0]
    assert pair["distance"] == pytest.approx(100)
    assert pair["odd"] == pytest.approx(0.4)
    tau = 2 * (100**2 + 80**2 + 180**2) / 6 / found["scale"]["chosen"]
    sigmoid = torch.sigmoid
    positions = torch.tensor([smooth, jump, fall, foreign, swapped]).double()
    biased = sigmoid((100**2 * (positions - 0.5) + 100**2 / 2) / tau)
    moved = biased - sigmoid(found["scale"]["chosen"] * (positions - 0.5))
    assert found["bias"]["mean_move"] == pytest.approx(moved.abs().mean().item(), abs=1e-6)
