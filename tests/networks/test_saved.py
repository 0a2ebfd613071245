"""Saved networks: whose code is run, and what training may start from, by its name."""

import re

import pytest
import torch

from semmix.core.errors import SemmixError
from semmix.networks import classifier
from semmix.networks.saved import check_takes, initial_classifier, load_classifier, save_classifier, user_classifier

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


def test_code_of_a_models_maker_is_run_only_if_trusted(tmp_path, monkeypatch):
    (tmp_path / "my_nets.py").write_text(
        "import torch\nmake = lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    network = user_classifier("my_nets:make", 3, (1, 8, 8))
    save_classifier(network, "my_nets:make", (1, 8, 8), tmp_path)
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(load_classifier(tmp_path)[0](images), network(images))  # a run is the user's own
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(SemmixError, match=r"would run code of its maker: my_nets:make(.|\n)*--trust-code"):
        load_classifier(tmp_path)
    assert torch.equal(load_classifier(tmp_path, trust_code=True)[0](images), network(images))


@pytest.mark.parametrize(
    ("shape", "num_classes", "words"),
    [
        ((3, 8, 8), None, None),
        ((1, 8, 8), 3, None),  # grey images are repeated
        ((2, 8, 8), 3, "does not fit the images: it takes (3, 8, 8), they are (2, 8, 8)"),
        ((3, 8, 9), 3, "does not fit the images"),
        ((3, 9, 8), 3, "does not fit the images"),
        ((3, 8, 8), 4, "has other classes: it knows 3, there are 4"),
    ],
)
def test_images_that_a_network_does_not_take_are_refused(tmp_path, shape, num_classes, words):
    save_classifier(classifier("small", 3, 3, 8), "small", (3, 8, 8), tmp_path)
    if words is None:
        check_takes(tmp_path, shape, num_classes)
    else:
        with pytest.raises(SemmixError, match=re.escape(words)):
            check_takes(tmp_path, shape, num_classes)
