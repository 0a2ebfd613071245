"""From a store and its annotation to what the loop draws from."""

import json

import pytest
import torch

from semmix import MixPlan, MixSets, SemmixError
from semmix.annotate import annotate_mixsets
from semmix.datasets import Split
from semmix.plan import all_pairs
from semmix.training.mixed import load_mixed


class PixelEncoder:
    """Features are the pixels."""

    name, dim, digest = "pixels", 4, "pixels"

    def embed(self, images):
        return images.flatten(1).float()


@pytest.fixture
def notes(tmp_path):
    """The annotation of six random sets: each pair of three classes twice."""
    draw = torch.Generator().manual_seed(0)
    plan = MixPlan(num_classes=3, num_sets=6, pairs=all_pairs(3), lams=(0, 0.5, 1))
    generator = {"digest": "g", "name": "g", "trained_on": "split"}
    store = MixSets.create(tmp_path / "mix", plan, (1, 2, 2), generator, {})
    shape = (6, 3, 1, 2, 2)
    store.write_shard(0, torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8))
    real = torch.randint(0, 256, (9, 1, 2, 2), generator=draw, dtype=torch.uint8)
    split = Split(real, torch.arange(9) % 3)
    return annotate_mixsets(store, PixelEncoder(), split, split, tmp_path / "notes")


def test_sets_know_their_generator_and_what_was_left_out(notes, tmp_path):
    diagnosis = tmp_path / "diagnosis.json"
    diagnosis.write_text(json.dumps({"annotation": notes.digest, "odd_sets": [1, 4]}))
    folders = notes.store.folder, notes.artifact.folder
    every, fewer = load_mixed(*folders), load_mixed(*folders, exclude=diagnosis)
    assert (every.trained_on, every.num_excluded, fewer.num_excluded) == ("split", 0, 2)
    assert torch.equal(every.images.images, notes.store.read_all())
    assert torch.equal(fewer.images.images, notes.store.read_all()[[0, 2, 3, 5]])


def test_other_images_are_refused(notes):
    source = load_mixed(notes.store.folder, notes.artifact.folder)
    source.check_fits((1, 2, 2), 3)
    with pytest.raises(SemmixError, match=r"sets \(1, 2, 2\).*images \(1, 4, 4\)") as caught:
        source.check_fits((1, 4, 4), 3)
    assert "--size 2" in caught.value.fix
    with pytest.raises(SemmixError, match=r"in 3 classes.*in 2 classes") as caught:
        source.check_fits((1, 4, 4), 2)
    assert "--size" not in caught.value.fix  # alone it would not help


def test_labels_that_need_an_annotation_say_so(notes):
    assert load_mixed(notes.store.folder, None, "requested").inputs["annotation"] is None
    with pytest.raises(SemmixError, match="need an annotation"):
        load_mixed(notes.store.folder, None)
