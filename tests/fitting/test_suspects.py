"""The quick check finds wrong labels, leaves right ones alone, and knows what may be mirrored."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from semmix.data import Split
from semmix.fitting import suspects
from semmix.fitting.suspects import SecondOpinion, Suspect, cross_validated_scores, features, second_opinion, suspected


@pytest.fixture(scope="module")
def digits():
    images, labels = load_digits(return_X_y=True)
    pixels = torch.from_numpy(images.reshape(-1, 1, 8, 8) * 255 / 16).round().to(torch.uint8)
    return Split(pixels[:800], torch.from_numpy(labels[:800]).long())


def test_changed_labels_are_found_and_others_left_alone(digits):
    labels = digits.labels.clone()
    changed = torch.arange(0, 800, 40)
    labels[changed] = (labels[changed] + 3) % 10
    opinion = second_opinion(Split(digits.images, labels), torch.arange(800), 10)
    found = {suspect.row for suspect in opinion.suspects}
    assert len(found & set(changed.tolist())) >= 15
    assert len(found - set(changed.tolist())) <= 5
    for suspect in opinion.suspects[:10]:
        assert suspect.looks_like == int(digits.labels[suspect.row])
        assert suspect.label == int(labels[suspect.row])


def test_mirrored_digits_are_no_digits_but_mirrored_textures_are_textures(digits):
    opinion = second_opinion(digits, torch.arange(800), 10)
    assert opinion.accuracy > 0.95
    assert opinion.mirrored_accuracy < 0.6
    assert not opinion.may_mirror
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 2
    rough = torch.rand(200, 3, 16, 16, generator=draw)
    smooth = torch.nn.functional.avg_pool2d(rough, 5, stride=1, padding=2) * 2
    images = torch.where(labels.bool()[:, None, None, None], smooth, rough)
    textures = Split((images.clamp(0, 1) * 255).to(torch.uint8), labels)
    assert second_opinion(textures, torch.arange(200), 2).may_mirror


def test_chance_does_not_forbid_mirroring():
    opinion = SecondOpinion(num_images=1000, accuracy=0.64, mirrored_accuracy=0.49, suspects=[])
    assert not opinion.may_mirror
    assert replace(opinion, mirrored_accuracy=0.6).may_mirror
    assert replace(opinion, num_images=300).may_mirror


def test_many_images_tell_what_mirroring_costs():
    """Of a thousand that were known, 850 must still be, and 849 are too few."""
    opinion = SecondOpinion(num_images=10**12, accuracy=1, mirrored_accuracy=0.85, suspects=[])
    assert opinion.may_mirror
    assert not replace(opinion, mirrored_accuracy=0.849).may_mirror


def test_the_opinion_is_the_same_each_time(digits):
    some = Split(digits.images[:40], digits.labels[:40])
    first = second_opinion(some, torch.arange(40), 10)
    torch.rand(7)  # what others draw changes nothing
    assert second_opinion(some, torch.arange(40), 10) == first


def test_five_models_are_asked_each_about_the_fifth_it_has_not_seen(digits, monkeypatch):
    learned_from, real = [], suspects._ridge_weights

    def watched(x, y):
        learned_from.append(x.shape)
        return real(x, y)

    monkeypatch.setattr(suspects, "_ridge_weights", watched)
    second_opinion(Split(digits.images[:100], digits.labels[:100]), torch.arange(100), 10)
    assert len(learned_from) == 5
    assert sum(100 - num for num, _ in learned_from) == 100
    assert {width for _, width in learned_from} == {8 * 128 + 1}  # of 128 patches, both signs in four quarters


def test_copies_do_not_vouch_for_each_other(digits):
    """Five copies of one seven called a one: together in a fold, each is still found out."""
    seven = int((digits.labels == 7).nonzero()[0])
    images = torch.cat([digits.images, digits.images[[seven] * 5]])
    labels = torch.cat([digits.labels, torch.full((5,), 1)])
    groups = torch.cat([torch.arange(800), torch.full((5,), seven)])
    found = second_opinion(Split(images, labels), groups, 10).suspects
    assert sum(suspect.row >= 800 for suspect in found) == 5


def test_images_that_all_look_alike_are_not_judged(digits):
    opinion = second_opinion(digits, torch.zeros(800, dtype=torch.int64), 10)
    assert opinion.suspects == []
    assert opinion.may_mirror


def test_many_images_are_sampled(digits, monkeypatch):
    monkeypatch.setattr("semmix.fitting.suspects.MAX_IMAGES", 300)
    labels = digits.labels.clone()
    labels[::20] = (labels[::20] + 3) % 10
    opinion = second_opinion(Split(digits.images, labels), torch.arange(800), 10)
    assert opinion.num_images == 300
    assert all(labels[s.row] == s.label for s in opinion.suspects)
    assert sum(s.row % 20 == 0 for s in opinion.suspects) > len(opinion.suspects) / 2 > 2


def test_suspicion_needs_an_unlikely_label_and_a_likely_other():
    probs = torch.tensor([[0.99, 0.01], [0.005, 0.995], [0.6, 0.4], [0.1, 0.9], [0.9, 0.1]])
    labels = torch.tensor([0, 0, 1, 1, 0])
    assert [(s.row, s.looks_like) for s in suspected(probs, labels)] == [(1, 1)]


def test_among_many_classes_a_label_must_be_unlikelier_than_a_fifth_of_chance():
    probs = torch.full((2, 100), 0.1 / 98)
    probs[:, 1] = 0.9
    probs[0, 0], probs[1, 0] = 0.0019, 0.0021
    assert [s.row for s in suspected(probs, torch.tensor([0, 0]))] == [0]


def test_suspects_are_those_of_a_plain_loop():
    draw = torch.Generator().manual_seed(0)
    probs = (4 * torch.randn(300, 5, generator=draw, dtype=torch.float64)).softmax(1)
    labels = torch.randint(5, (300,), generator=draw)
    own = probs[range(300), labels]
    usual = [max(float(own[labels == k].mean()), 0.2) for k in range(5)]
    found = []
    for n, row in enumerate(probs.tolist()):
        likely = [(p, k) for k, p in enumerate(row) if p >= usual[k]]
        if likely and max(likely)[1] != labels[n] and own[n] < 0.02:
            found.append((float(own[n]) - max(likely)[0], Suspect(n, int(labels[n]), *max(likely)[::-1])))
    expected = [suspect for _, suspect in sorted(found, key=lambda pair: pair[0])]
    assert len(expected) > 50
    assert suspected(probs, labels) == expected


def test_a_class_without_images_is_no_reason_to_suspect():
    probs = torch.tensor([[0.01, 0.5, 0.49], [0.9, 0.05, 0.05]])
    assert [s.looks_like for s in suspected(probs, torch.tensor([0, 0]))] == [1]


@pytest.mark.parametrize("width", [6, 40])  # fewer numbers than images, and more
def test_scores_are_those_of_ridge_regression_without_the_fold(width):
    random = np.random.default_rng(0)
    labels = np.arange(30) % 3
    means = random.normal(size=(3, width))
    x, turned = (means[labels] + 2 * random.normal(size=(30, width)) for _ in range(2))
    folds = random.integers(0, 4, 30)
    found = []
    for ridge in (1e-3, 1e-2, 1e-1, 1.0):
        scores, mirrored = np.zeros((2, 30, 3))
        for fold in range(4):
            out, num = folds == fold, (folds != fold).sum()
            gram = x[~out].T @ x[~out] / num + ridge * np.eye(width)
            weights = np.linalg.solve(gram, x[~out].T @ np.eye(3)[labels[~out]] / num)
            scores[out], mirrored[out] = x[out] @ weights, turned[out] @ weights
        found.append(((scores.argmax(1) == labels).mean(), scores, mirrored))
    _, scores, mirrored = max(found, key=lambda each: each[0])
    tensors = (torch.from_numpy(a) for a in (x.astype("f"), turned.astype("f"), labels, folds))
    ours = cross_validated_scores(*tensors, num_classes=3)
    np.testing.assert_allclose(ours[0], scores, atol=2e-3)
    np.testing.assert_allclose(ours[1], mirrored, atol=2e-3)


def test_features_are_likenesses_in_each_quarter(monkeypatch):
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (5, 3, 16, 16), generator=draw, dtype=torch.uint8)
    patches = torch.randn(2, 3, 4, 4, generator=draw)
    monkeypatch.setattr("semmix.fitting.suspects.CHUNK", 2)
    found = features(images, patches)
    assert found.shape == (5, 16)
    for image, row in zip(images.numpy().astype("d"), found, strict=True):
        image = (image - image.mean()) / (image.std(ddof=1) + 1)
        windows = np.lib.stride_tricks.sliding_window_view(image, (4, 4), (1, 2))
        likeness = np.einsum("cyxij,pcij->pyx", windows, patches.numpy())  # [2, 13, 13]
        both = np.concatenate([likeness.clip(min=0), (-likeness).clip(min=0)])
        halves = slice(0, 7), slice(6, 13)
        quarters = [[k[a, b].mean() for a in halves for b in halves] for k in both]
        np.testing.assert_allclose(row, np.ravel(quarters), atol=1e-4)
