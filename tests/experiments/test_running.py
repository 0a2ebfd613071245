"""How cells become tasks and places; that the tasks make the same runs is tested in test_making.py."""

import os
from dataclasses import replace
from queue import SimpleQueue

import pytest
import torch

from semmix.core.files import read_named_tensors
from semmix.core.runtime import Runtime
from semmix.data import Split
from semmix.experiments.catalog import plan_table
from semmix.experiments.results import TTA
from semmix.experiments.running import _take_place, load_data, plain_cell, plan_tasks, write_tta
from semmix.networks import classifier

CE, *_, CSM = plan_table("main", "digits")


@pytest.mark.parametrize(("num_gpus", "place", "rank"), [(2, 0, "0"), (2, 1, "1"), (2, 3, "1"), (4, 3, "3")])
def test_processes_take_turns_on_the_gpus(num_gpus, place, rank, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "unset")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    places = SimpleQueue()
    places.put(place)
    _take_place(places)
    assert os.environ["LOCAL_RANK"] == rank
    assert places.empty()


def test_without_gpus_a_place_is_only_a_place(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    places = SimpleQueue()
    places.put(1)
    _take_place(places)
    assert "LOCAL_RANK" not in os.environ


def test_cells_that_need_the_same_run_are_one_task(tmp_path):
    again = replace(CE, row="CE again", measure="piece")
    tasks = plan_tasks([(CE, 0), (CE, 1), (again, 0)], tmp_path, tmp_path / "kept", Runtime(device="cpu"))
    assert list(tasks) == [CE.run_name(0), CE.run_name(1)]
    first, second = tasks.values()
    assert first.args == ([(CE, 0), (again, 0)], tmp_path, tmp_path / "kept", Runtime(device="cpu"))
    assert second.args[0] == [(CE, 1)]
    assert first.after == second.after == ()


def test_csm_waits_for_its_generator_its_sets_the_network_that_reads_them_and_the_reading(tmp_path):
    tasks = plan_tasks([(CSM, 0), (CSM, 1)], tmp_path)
    generator, sets, encoder, annotations, *runs = tasks
    assert runs == [CSM.run_name(0), CSM.run_name(1)]
    assert (generator[0], sets[0], annotations[0]) == ("generator", "sets", "annotations")
    assert encoder == plain_cell(CSM).run_name(0)
    assert tasks[generator].after == ()
    assert tasks[sets].after == (generator,)
    assert tasks[annotations].after == (generator, sets, encoder)
    assert all(tasks[run].after == (generator, sets, encoder, annotations) for run in runs)


def test_sets_of_a_given_generator_read_by_a_given_encoder_wait_for_nothing_else(tmp_path):
    given = replace(CSM, mixing=replace(CSM.mixing, generator="folder", encoder="pixels:4"))
    sets, annotations, run = tasks = plan_tasks([(given, 0)], tmp_path)
    assert tasks[sets].after == ()
    assert tasks[annotations].after == (sets,)
    assert tasks[run].after == (sets, annotations)


def test_lines_that_differ_in_labels_share_their_sets(tmp_path):
    other = replace(CSM, mixing=replace(CSM.mixing, labels="one_hot", scale=3.0))
    both = plan_tasks([(CSM, 0), (other, 0)], tmp_path)
    assert len(both) == len(plan_tasks([(CSM, 0)], tmp_path)) + 1
    more = replace(CSM, mixing=replace(CSM.mixing, num_sets=CSM.mixing.num_sets + 1))
    assert len(plan_tasks([(CSM, 0), (more, 0)], tmp_path)) == len(both) + 2  # other sets, read anew


def test_views_are_the_mean_of_what_training_shows(tmp_path):
    torch.manual_seed(0)
    data = load_data(CE.data)
    assert load_data(CE.data) is data
    few = Split(data.test.images[:6], data.test.labels[:6])
    network = classifier("small", data.num_classes, 1, 8).eval()
    write_tta(network, few, 0, True, tmp_path)
    with torch.no_grad():
        views = [network(images).softmax(1) for images in (few.images, few.images.flip(3))]
    logits, labels = read_named_tensors(tmp_path / TTA, "logits", "labels")
    torch.testing.assert_close(logits.exp(), (views[0] + views[1]) / 2, rtol=1e-4, atol=1e-5)
    assert torch.equal(labels, few.labels)
