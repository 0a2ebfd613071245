"""Pairs by confusion."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file

from semmix.cli.mix import MixCommand, chosen_pairs
from semmix.core.artifact import FORMAT
from semmix.core.errors import SemmixError
from semmix.core.files import write_json
from semmix.mixing.plan import all_pairs, confusable_pairs, partner_pairs


def test_most_confused_pairs_come_first():
    confusion = torch.tensor([[70, 10, 20, 0], [2, 95, 3, 0], [0, 0, 9, 1], [0, 30, 0, 70]])
    # rates: (0,1) .12, (0,2) .20, (1,2) .03, (0,3) 0, (1,3) .30, (2,3) .10
    assert confusable_pairs(confusion, 4) == ((1, 3), (0, 2), (0, 1), (2, 3))
    assert set(confusable_pairs(confusion, 6)) == set(all_pairs(4))
    assert confusable_pairs(confusion) == confusable_pairs(confusion, 6)


def test_frequent_classes_do_not_win_by_number():
    confusion = torch.tensor([[9000, 100, 0], [0, 5, 5], [0, 0, 10]])
    assert confusable_pairs(confusion, 1) == ((1, 2),)


def test_a_single_image_counts_in_full():
    confusion = torch.tensor([[0, 1, 0], [0, 8, 0], [0, 4, 2]])
    assert confusable_pairs(confusion, 1) == ((0, 1),)


def test_class_without_images_is_allowed():
    assert confusable_pairs(torch.zeros(3, 3), 3) == all_pairs(3)


def test_user_mistakes_are_explained():
    with pytest.raises(SemmixError, match="confusion matrix"):
        confusable_pairs(torch.zeros(2, 3), 1)
    with pytest.raises(SemmixError, match="confusion matrix"):
        confusable_pairs(torch.ones(3, 3) - 2 * torch.eye(3), 1)
    for num_pairs in (0, 4):
        with pytest.raises(SemmixError, match="3 pairs"):
            confusable_pairs(torch.eye(3), num_pairs)


@pytest.mark.parametrize("num_pairs", [0, 2])
def test_the_command_counts_only_what_a_run_confuses(num_pairs):
    assert chosen_pairs(MixCommand(generator="g", pairs=("1:2",)), 3) == ((1, 2),)
    with pytest.raises(SemmixError, match="--confusable-by"):
        chosen_pairs(MixCommand(generator="g", num_pairs=num_pairs), 3)


def test_few_sets_show_every_class_and_enough_of_them_the_usual_pairs():
    few = MixCommand(generator="g", sets=1000)  # the default
    counts = Counter(c for pair in chosen_pairs(few, 100)[:1000] for c in pair)
    assert set(counts.values()) == {20}
    assert len(counts) == 100
    assert chosen_pairs(replace(few, sets=4950), 100) == all_pairs(100)
    assert chosen_pairs(few, 10) == all_pairs(10)
    assert chosen_pairs(replace(few, sets=1, pairs=("1:2", "0:1")), 3) == ((1, 2), (0, 1))


def write_run(folder, tensors):
    """Write what is read of a finished run."""
    save_file(tensors, folder / "logits-val.safetensors")
    write_json(folder / "config.json", {"kind": "run", "format": FORMAT, "finished": True, "inputs": {}})


def test_a_runs_confusion_is_that_of_the_generators_classes(tmp_path):
    """Labels as kept runs have them: 200 classes are more than their products fit."""
    logits, labels = torch.eye(200)[[199, 198, 199, 0]], torch.tensor([199, 199, 198, 0])
    tensors = {"logits": logits.half(), "labels": labels.to(torch.int16)}
    write_run(tmp_path, tensors)
    command = MixCommand(generator="g", confusable_by=tmp_path, num_pairs=1)
    assert chosen_pairs(command, 200) == ((198, 199),)
    with pytest.raises(SemmixError, match=r"200 in .* 10 of the generator"):
        chosen_pairs(command, 10)
    with pytest.raises(SemmixError, match="not both"):
        chosen_pairs(replace(command, pairs=("1:2",)), 200)


@pytest.mark.parametrize("damage", [lambda sound: sound[:20], lambda _: save({"x": torch.ones(1)})])
def test_a_damaged_run_is_named(tmp_path, damage):
    path = tmp_path / "logits-val.safetensors"
    write_run(tmp_path, {"logits": torch.eye(3), "labels": torch.arange(3)})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(SemmixError, match=r"logits-val.*\n.*make it again"):
        chosen_pairs(MixCommand(generator="g", confusable_by=tmp_path), 3)


def test_every_class_is_in_a_pair_even_without_validation_images():
    draw = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(300, 1000, generator=draw), torch.arange(300)
    pairs = partner_pairs(logits, labels, 2)
    assert {c for pair in pairs for c in pair} == set(range(1000))
    assert 1000 <= len(pairs) <= 2000
    assert len(set(pairs)) == len(pairs)


def test_the_most_confused_come_first_and_all_partners_are_all_pairs():
    logits = torch.zeros(4, 4)
    logits[0, 2] = logits[2, 0] = 5.0
    assert partner_pairs(logits, torch.arange(4), 1)[0] == (0, 2)
    assert sorted(partner_pairs(logits, torch.arange(4), 9)) == sorted(all_pairs(4))


def slow_partner_pairs(logits, labels, partners):
    num_classes = logits.shape[1]
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    taken_for = np.zeros((num_classes, num_classes))
    for c in set(labels.tolist()):
        taken_for[c] = shares[labels == c].mean(0)
    confusion, pairs = taken_for + taken_for.T, set()
    for i in range(num_classes):
        others = sorted((-confusion[i, j], j) for j in range(num_classes) if j != i)
        pairs |= {(min(i, j), max(i, j)) for _, j in others[:partners]}
    return tuple(sorted(pairs, key=lambda pair: -confusion[pair]))


@pytest.mark.parametrize("partners", [1, 2, 4])
def test_partners_are_those_of_the_slow_twin(partners):
    """Classes of one image, of many and of none."""
    draw = np.random.default_rng(partners)
    logits, labels = 2 * draw.normal(size=(40, 8)), draw.integers(1, 7, 40)
    labels[:2] = 0, 1
    found = partner_pairs(torch.from_numpy(logits), torch.from_numpy(labels), partners)
    assert found == slow_partner_pairs(logits, labels, partners)
