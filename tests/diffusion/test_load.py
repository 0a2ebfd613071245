"""Folders, the zoo, and what is wrong with them."""

import json

import pytest
import torch

from semmix.core.artifact import begin_artifact
from semmix.core.errors import SemmixError
from semmix.diffusion import load_generator
from semmix.diffusion.stored import MANIFEST, WEIGHTS, save_generator


@pytest.fixture
def zoo(tmp_path, monkeypatch, small_networks, lively):
    """A zoo with one animal, stored in half precision."""
    config = small_networks["vp"]
    weights = {name: t.bfloat16() for name, t in lively(config).state_dict().items()}
    artifact = begin_artifact(tmp_path / "zoo" / "owls", MANIFEST, "generator", {})
    save_generator(artifact, config, weights, trained_on="split")
    monkeypatch.setenv("SEMMIX_ZOO", str(tmp_path / "zoo"))
    return tmp_path / "zoo"


def test_zoo_generator_is_found_by_name(zoo):
    generator = load_generator("zoo:owls", "cpu")
    assert generator.name == "owls"
    assert generator.image_shape == (3, 8, 8)
    assert generator.num_classes == 5
    assert generator.trained_on == "split"
    assert next(generator.network.parameters()).dtype == torch.float32
    assert load_generator(zoo / "owls", "cpu").digest == generator.digest
    assert repr(generator) == "Generator('owls': 3 x 8 x 8, 5 classes, SongUNet on cpu)"


@pytest.mark.parametrize(
    ("details", "known"), [({}, False), ({"label_dropout": 0.0}, False), ({"label_dropout": 0.1}, True)]
)
def test_no_class_is_known_after_label_dropout_alone(tmp_path, small_networks, lively, details, known):
    config = small_networks["vp"]
    artifact = begin_artifact(tmp_path, MANIFEST, "generator", {})
    save_generator(artifact, config, lively(config).state_dict(), None, **details)
    assert load_generator(tmp_path, "cpu").knows_no_class is known


def test_a_loaded_network_is_ready_to_predict(zoo):
    network = load_generator("zoo:owls", "cpu").network
    assert not network.training
    assert not any(parameter.requires_grad for parameter in network.parameters())


def test_settings_of_another_network_are_noticed(zoo):
    """The weights alone would fit."""
    path = zoo / "owls" / MANIFEST
    manifest = json.loads(path.read_text())
    manifest["network"]["sigma_data"] = 0.6
    path.write_text(json.dumps(manifest))
    with pytest.raises(SemmixError, match="digest"):
        load_generator("zoo:owls", "cpu")


def test_zoo_beside_the_working_folder_is_found(zoo, monkeypatch):
    monkeypatch.delenv("SEMMIX_ZOO")
    monkeypatch.chdir(zoo.parent)
    assert load_generator("zoo:owls", "cpu").name == "owls"


def test_a_generator_is_named_by_its_folder_however_it_is_reached(zoo, monkeypatch):
    monkeypatch.chdir(zoo / "owls")
    assert load_generator(".", "cpu").name == "owls"


def test_missing_folder_is_explained(tmp_path):
    with pytest.raises(SemmixError, match="no generator here"):
        load_generator(tmp_path / "nothing", "cpu")
    with pytest.raises(SemmixError, match=r"must hold generator\.json"):
        load_generator(tmp_path, "cpu")


def test_damaged_weights_are_noticed(zoo):
    path = zoo / "owls" / WEIGHTS
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(SemmixError, match="digest"):
        load_generator("zoo:owls", "cpu")
    path.write_bytes(bytes(data[:100]))
    with pytest.raises(SemmixError, match="cannot read"):
        load_generator("zoo:owls", "cpu")


def test_unknown_architecture_is_named(zoo):
    path = zoo / "owls" / MANIFEST
    manifest = json.loads(path.read_text())
    manifest["network"]["architecture"] = "SongNet"
    path.write_text(json.dumps(manifest))
    with pytest.raises(SemmixError, match="did you mean 'SongUNet'"):
        load_generator("zoo:owls", "cpu")
