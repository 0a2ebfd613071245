"""A data set and mixed sets small enough to train on in a second."""

from contextlib import contextmanager

import pytest
import torch
from PIL import Image

from semmix.data import Dataset, Split
from semmix.mixing.plan import all_pairs, mix_labels
from semmix.training import engine
from semmix.training.batches import MixedImages
from semmix.training.mixed import MixedSource


def toy_split(num: int, seed: int) -> Split:
    """Three classes of 8x8 images: brightness tells them apart, noise makes it not too easy."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num) % 3
    base = 40 + 80 * labels[:, None, None, None]
    noise = 60 * torch.randn(num, 1, 8, 8, generator=generator)
    return Split((base + noise).clamp(0, 255).to(torch.uint8), labels)


def toy_dataset() -> Dataset:
    return Dataset("toy", ("dark", "grey", "light"), toy_split(60, 0), toy_split(30, 1), toy_split(45, 2))


def toy_mixed(data: Dataset) -> MixedSource:
    pairs = torch.tensor(all_pairs(3) * 4)
    lam = torch.linspace(0, 1, 8).expand(len(pairs), 8)
    i, j = pairs[:, :1], pairs[:, 1:]
    base = 40 + 80 * (lam * i + (1 - lam) * j)
    images = base[:, :, None, None, None].expand(-1, -1, 1, 8, 8).to(torch.uint8)
    soft = mix_labels(i, j, lam, num_classes=3)
    inputs = {"mixsets": "toy", "annotation": None, "labels": "requested", "scale": None}
    return MixedSource(MixedImages.build(images, soft, pairs), data.train.digest, inputs)


@pytest.fixture(scope="session")
def toy_data() -> Dataset:
    return toy_dataset()


@pytest.fixture(scope="session")
def toy_folder(toy_data, tmp_path_factory):
    """The same images as PNG files, in a folder with train, val and test parts."""
    folder = tmp_path_factory.mktemp("toy")
    for part, split in toy_data.splits.items():
        for name in toy_data.class_names:
            (folder / part / name).mkdir(parents=True)
        for row, (image, label) in enumerate(zip(split.images, split.labels, strict=True)):
            path = folder / part / toy_data.class_names[label] / f"{row:03d}.png"
            Image.fromarray(image[0].numpy()).save(path)
    return folder


@pytest.fixture(scope="session")
def toy_source(toy_data) -> MixedSource:
    return toy_mixed(toy_data)


@pytest.fixture
def stopped_past_its_checkpoint(monkeypatch):
    """Stop a loop at step 8, the only checkpoint of which is of step 4."""

    @contextmanager
    def stopped():
        def save_once(path, groups, header, save=engine.save_checkpoint):
            if header["step"] == 4:
                save(path, groups, header)
            if header["step"] == 8:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(engine, "save_checkpoint", save_once)
            yield

    return stopped
