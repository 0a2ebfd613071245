"""From a store and its annotation to what the loop draws from."""

import json
from dataclasses import replace

import pytest
import torch

from semmix import MixPlan, MixSets, SemmixError
from semmix.annotation import annotate
from semmix.core.files import digest
from semmix.data import Dataset, Split
from semmix.mixing.plan import all_pairs
from semmix.training.classifier import TrainConfig, train
from semmix.training.mixed import load_mixed


class PixelEncoder:
    """Features are the pixels."""

    name, dim, digest = "pixels", 4, "pixels"
    trained_on: str | None = None

    def embed(self, images):
        return images.flatten(1).float()


@pytest.fixture
def real():
    """Training and validation images of three classes."""
    draw = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (2, 9, 1, 2, 2), generator=draw, dtype=torch.uint8)
    return tuple(Split(part, torch.arange(9) % 3) for part in images)


@pytest.fixture
def notes(tmp_path, real):
    """The annotation of six random sets: each pair of three classes twice."""
    draw = torch.Generator().manual_seed(0)
    plan = MixPlan(num_classes=3, num_sets=6, pairs=all_pairs(3), lams=(0, 0.5, 1))
    generator = {"digest": "g", "name": "g", "trained_on": "split"}
    store = MixSets.create(tmp_path / "mix", plan, (1, 2, 2), generator, {})
    shape = (6, 3, 1, 2, 2)
    store.write_shard(0, torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8))
    return annotate(store, PixelEncoder(), real, tmp_path / "notes")


def test_sets_know_their_generator_and_what_was_left_out(notes, tmp_path):
    diagnosis = tmp_path / "diagnosis.json"
    diagnosis.write_text(json.dumps({"annotation": notes.digest, "odd_sets": [1, 4]}))
    folders = notes.store.folder, notes.artifact.folder
    every, fewer = load_mixed(*folders), load_mixed(*folders, exclude=diagnosis)
    assert (every.trained_on, every.num_excluded, fewer.num_excluded) == ("split", 0, 2)
    assert torch.equal(every.images.images, notes.store.read_all())
    assert torch.equal(fewer.images.images, notes.store.read_all()[[0, 2, 3, 5]])


def test_sets_that_are_all_used_are_not_copied(notes, monkeypatch):
    """They may fill half of the memory."""
    images = notes.store.read_all()
    monkeypatch.setattr(MixSets, "read_all", lambda self: images)
    source = load_mixed(notes.store.folder, notes.artifact.folder)
    assert source.images.images.data_ptr() == images.data_ptr()


def test_a_runs_manifest_tells_what_its_sets_are(notes, real, tmp_path):
    diagnosis = tmp_path / "diagnosis.json"
    diagnosis.write_text(json.dumps({"annotation": notes.digest, "odd_sets": [1, 4]}))
    store, folder = notes.store, notes.artifact.folder
    source = load_mixed(store, notes)
    own = {"mixsets": store.digest, "annotation": notes.digest, "labels": "reannotated"}
    assert source.inputs == {**own, "scale": notes.scale_for("reannotated", None)}
    assert source.annotated_with == tuple(split.digest for split in real)
    assert load_mixed(store, folder, scale=4.0).inputs == {**own, "scale": 4.0}
    fewer = load_mixed(store, folder, exclude=diagnosis)
    assert fewer.inputs == {**source.inputs, "excluded": digest([1, 4])}
    requested = load_mixed(store, None, "requested")
    assert requested.inputs == {"mixsets": store.digest, "annotation": None, "labels": "requested", "scale": None}
    assert (requested.annotated_with, requested.encoder_trained_on) == (None, None)
    assert torch.equal(requested.images.soft_labels, store.soft_labels(store.lam_requested()))
    assert torch.equal(source.images.soft_labels, notes.soft_labels("reannotated", None))


@pytest.mark.parametrize("content", ["[]", "null", "{}", '{"annotation": "DIGEST"}'])
def test_other_files_are_no_diagnosis(notes, tmp_path, content):
    path = tmp_path / "list.json"
    path.write_text(content.replace("DIGEST", notes.digest))
    words = r"^this diagnosis is not one of the annotation in use: .*list\.json\n.*semmix annotate --report"
    with pytest.raises(SemmixError, match=words):
        load_mixed(notes.store.folder, notes.artifact.folder, exclude=path)


def dataset(real, train=None, val=None) -> Dataset:
    """The data set of the annotation, or one with other splits."""
    return Dataset("real", ("a", "b", "c"), train or real[0], val or real[1], real[1])


def test_other_images_are_refused(notes, real):
    source, data = load_mixed(notes.store.folder, notes.artifact.folder), dataset(real)
    large = Split(torch.zeros(3, 1, 4, 4, dtype=torch.uint8), torch.arange(3))
    other = Dataset("other", ("a", "b", "c"), large, large, large)
    source.check(data, allow_leak=True)
    with pytest.raises(SemmixError, match=r"sets \(1, 2, 2\).*images \(1, 4, 4\)") as caught:
        source.check(other)
    assert "--size 2" in caught.value.fix
    with pytest.raises(SemmixError, match=r"in 3 classes.*in 2 classes") as caught:
        source.check(replace(other, class_names=("a", "b")))
    assert "--size" not in caught.value.fix  # alone it would not help


def test_an_annotation_is_all_that_training_needs(notes, real, tmp_path):
    """Images of 2 x 2 are too small for a network, but are refused after the sets."""
    config = TrainConfig(classifier="small", epochs=1)
    with pytest.raises(SemmixError, match="the generator learned from split split"):
        train(dataset(real), config, tmp_path / "run", notes)
    with pytest.raises(SemmixError, match="images are too small"):
        train(dataset(real), replace(config, allow_leak=True), tmp_path / "run", notes)


def test_labels_that_need_an_annotation_say_so(notes):
    assert load_mixed(notes.store.folder, None, "requested").inputs["annotation"] is None
    words = r"^labels 'reannotated' need an annotation: None\n.*--labels requested"
    with pytest.raises(SemmixError, match=words):
        load_mixed(notes.store.folder, None)


def test_other_images_behind_any_part_are_a_leak(notes, real, tmp_path):
    train, val = (split.digest for split in real)
    encoder = PixelEncoder()
    encoder.trained_on = "tests"
    learned = annotate(notes.store, encoder, real, tmp_path / "learned")
    assert learned.digest == notes.digest  # folders from before it was recorded stay valid
    plain, taught = (
        replace(load_mixed(notes.store.folder, folder), trained_on=train)
        for folder in (notes.artifact.folder, learned.artifact.folder)
    )
    data, other = dataset(real), real[0].select(torch.arange(9).flip(0))
    plain.check(data)
    replace(taught, encoder_trained_on=train).check(data)
    for source, given, words in (
        (replace(plain, trained_on=None), data, "the generator learned from split None"),
        (plain, dataset(real, train=other), f"come from split {train}, the training split is {other.digest}"),
        (plain, dataset(real, val=other), f"scale comes from split {val}, the validation split is {other.digest}"),
        (taught, data, "encoder learned from split tests, the training split is"),
    ):
        assert source.leaks(given.train.digest, given.val.digest)
        with pytest.raises(SemmixError, match=words) as caught:
            source.check(given)
        assert "--allow-leak" in caught.value.fix
        source.check(given, allow_leak=True)


@pytest.mark.parametrize(
    ("labels", "scale", "asks"),
    [
        ("reannotated", None, True),
        ("encoder_softmax", None, True),
        ("reannotated", 4.0, False),
        ("encoder_softmax", 4.0, False),
        ("one_hot", None, False),
        ("position", None, False),
    ],
)
def test_validation_images_count_where_they_chose_the_scale(labels, scale, asks, notes, real):
    train = real[0].digest
    source = load_mixed(notes.store.folder, notes.artifact.folder, labels, scale)
    assert bool(replace(source, trained_on=train).leaks(train, "other")) == asks


def test_a_scale_of_ones_own_asks_no_validation_images(notes, real, tmp_path):
    train = real[0].digest
    own = annotate(notes.store, PixelEncoder(), real, tmp_path / "own", scale=4.0)
    source = replace(load_mixed(notes.store.folder, own.artifact.folder), trained_on=train)
    assert source.leaks(train, "other") == []
    by_softmax = load_mixed(notes.store.folder, own.artifact.folder, "encoder_softmax")
    assert replace(by_softmax, trained_on=train).leaks(train, "other")  # it has a scale of its own


def test_sets_without_annotation_leak_by_their_generator_alone(notes):
    source = load_mixed(notes.store.folder, None, "requested")
    assert source.leaks("split", "any") == []
    assert len(source.leaks("other", "any")) == 1


def test_annotations_from_before_say_nothing_of_their_encoder(notes):
    path = notes.artifact.path
    manifest = json.loads(path.read_text())
    del manifest["encoder_trained_on"]
    path.write_text(json.dumps(manifest))
    assert load_mixed(notes.store.folder, path.parent).encoder_trained_on is None
