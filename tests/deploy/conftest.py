"""A run trained on digits in seconds, the model folder made from it, and digits as files."""

from pathlib import Path

import pytest
from PIL import Image

from semmix.data import load_dataset
from semmix.deploy import Model, export_model, load_model
from semmix.training.classifier import TrainConfig, train


@pytest.fixture(scope="session")
def digits():
    return load_dataset("digits", train_size=200)


@pytest.fixture(scope="session")
def run(digits, tmp_path_factory) -> Path:
    config = TrainConfig(method="ce", classifier="small", epochs=15, batch_size=50, pad=0, flip=False)
    return train(digits, config, tmp_path_factory.mktemp("deploy") / "run").folder


@pytest.fixture(scope="session")
def model_folder(run) -> Path:
    return export_model(run, run.parent / "model")


@pytest.fixture(scope="session")
def model(run) -> Model:
    return load_model(run, "cpu")


@pytest.fixture
def image_files(digits, tmp_path) -> list[Path]:
    """Test digits as PNG files, in a folder and a folder within it."""
    paths = []
    for row in range(70):
        path = tmp_path / "images" / ("deep" if row % 2 else ".") / f"{row:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(digits.test.images[row, 0].numpy()).save(path)
        paths.append(path)
    return paths
