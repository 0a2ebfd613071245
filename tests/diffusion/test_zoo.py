"""What the zoo holds: generators of CIFAR-10 and CIFAR-100, a network that annotates mixed sets."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from semmix.diffusion import load_generator
from semmix.networks.predicting import predict_logits
from semmix.networks.saved import load_classifier

ZOO = Path(__file__).parents[2] / "zoo"


def samples(name: str, zoom: int, blocks: int, columns: int) -> torch.Tensor:
    """Return the images of a samples.png [classes, columns, 3, 32, 32], one class below another.

    A grey line follows each image; a new block of columns begins where the rows end.
    """
    picture = torch.from_numpy(np.asarray(Image.open(ZOO / name / "samples.png")).copy())
    cells = picture[::zoom, ::zoom].unflatten(0, (-1, 33)).unflatten(2, (blocks, columns, 33))
    return cells[:, :32, :, :, :32].permute(2, 0, 3, 5, 1, 4).flatten(0, 1)


SAMPLES = {"cifar10": (2, 1, 8), "cifar100": (1, 5, 5)}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_generator_denoises_its_samples_best_as_their_own_class(name):
    generator = load_generator(f"zoo:{name}", "cpu")
    images = samples(name, *SAMPLES[name])
    num_classes = generator.num_classes
    assert images.shape == (num_classes, SAMPLES[name][2], 3, 32, 32)
    step = num_classes // 10
    clean = images[::step, 0] / 127.5 - 1
    noisy = clean + 2 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    own = torch.eye(num_classes)[::step]

    def error(class_weights: torch.Tensor) -> float:
        with torch.no_grad():
            denoised = generator.denoise(noisy, torch.full((10,), 2.0), class_weights)
        return (denoised - clean).square().mean().item()

    for shift in (1, num_classes // 2):
        assert error(own) < 0.95 * error(own.roll(shift, 1))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_generator_knows_which_images_it_saw(name):
    manifest = json.loads((ZOO / name / "generator.json").read_text())
    assert manifest["finished"]
    assert manifest["trained_on"] == manifest["inputs"]["trained_on"]
    readme = (ZOO / name / "README.md").read_text()
    assert f"digest `{manifest['trained_on'][:8]}…`" in readme
    assert f"{manifest['num_images']:,} images" in readme


@pytest.mark.parametrize("name", SAMPLES)
def test_generator_and_network_saw_the_same_images_alone(name):
    generator = json.loads((ZOO / name / "generator.json").read_text())
    network = json.loads((ZOO / name / "classifier" / "config.json").read_text())
    assert network["inputs"]["train"] == generator["inputs"]["trained_on"]
    assert network["leak"] is False


@pytest.mark.parametrize(("name", "least"), [("cifar10", 0.8), ("cifar100", 0.45)])
def test_the_network_recognises_what_the_generator_drew(name, least):
    network, _ = load_classifier(ZOO / name / "classifier")
    images = samples(name, *SAMPLES[name])
    logits = predict_logits(network, images.flatten(0, 1))
    recognised = logits.argmax(1) == torch.arange(len(images)).repeat_interleave(images.shape[1])
    assert recognised.float().mean() > least
