"""What the zoo holds: a generator of CIFAR-10 and the network that annotates its mixed sets."""

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from semmix.classifiers.saved import load_classifier
from semmix.training.classifier import predict_logits

ZOO = Path(__file__).parents[1] / "zoo" / "cifar10"


def samples() -> torch.Tensor:
    """Return the images of samples.png [10 classes, 8, 3, 32, 32]: it shows each pixel as four."""
    picture = torch.from_numpy(np.asarray(Image.open(ZOO / "samples.png")).copy())[::2, ::2]
    cells = picture.unflatten(0, (10, 33)).unflatten(2, (8, 33))  # a grey line after each image
    return cells[:, :32, :, :32].permute(0, 2, 4, 1, 3)


def test_generator_and_network_saw_the_same_images_alone():
    generator = json.loads((ZOO / "generator.json").read_text())
    network = json.loads((ZOO / "classifier" / "config.json").read_text())
    assert network["inputs"]["train"] == generator["inputs"]["trained_on"]
    assert network["leak"] is False


def test_the_network_recognises_what_the_generator_drew():
    network, _ = load_classifier(ZOO / "classifier")
    logits = predict_logits(network, samples().flatten(0, 1))
    recognised = logits.argmax(1) == torch.arange(10).repeat_interleave(8)
    assert recognised.float().mean() > 0.8
