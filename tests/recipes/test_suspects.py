"""The quick check finds wrong labels, leaves right ones alone, and knows what may be mirrored."""

from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits

from semmix.datasets import Split
from semmix.recipes.suspects import SecondOpinion, second_opinion, suspected


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
    monkeypatch.setattr("semmix.recipes.suspects.MAX_IMAGES", 300)
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
