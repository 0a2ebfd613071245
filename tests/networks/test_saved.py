"""What training may start from, by its name."""

import pytest
import torch

from semmix.core.errors import SemmixError
from semmix.networks import classifier
from semmix.networks.saved import initial_classifier, save_classifier

UNKNOWN = ((), ())


def test_the_classifier_of_a_zoo_entry_may_be_started_from(tmp_path, monkeypatch):
    monkeypatch.setenv("SEMMIX_ZOO", str(tmp_path))
    network = classifier("small", 3, 1, 8)
    save_classifier(network, "small", (1, 8, 8), tmp_path / "owls" / "classifier")
    (tmp_path / "owls" / "generator.json").write_text("{}")
    started, name = initial_classifier("zoo:owls", 3, (1, 8, 8), UNKNOWN, UNKNOWN)
    assert name == "small"
    assert torch.equal(started.state_dict()["head.weight"], network.head.weight)


def test_a_network_that_normalises_by_itself_takes_no_statistics(tmp_path):
    save_classifier(classifier("small", 3, 1, 8), "small", (1, 8, 8), tmp_path)
    with pytest.raises(SemmixError, match="normalises its images by itself"):
        initial_classifier(str(tmp_path), 3, (1, 8, 8), ((0.5,), ()), UNKNOWN)


def test_a_name_that_means_nothing_is_refused():
    with pytest.raises(SemmixError, match=r"package\.module:name"):
        initial_classifier("resnet18", 3, (1, 8, 8), UNKNOWN, UNKNOWN)
