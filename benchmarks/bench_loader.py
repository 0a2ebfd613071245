"""Speed of the classifier loop on a CPU against the usual PyTorch loop over image files.

    python benchmarks/bench_loader.py

Random PNG files are written to a temporary folder. Ours: `semmix train` on that folder, its images
in memory. The peer: a `DataLoader` with two worker processes that open, crop and flip the same
files. Same network, batch, method (cross-entropy), optimizer and clipping. Images per second of
whole epochs after the first, so that neither starting nor the first reading counts; of several
measurements, in turns, the best of each. The target is 3 x on the demo's images (8 x 8); the larger
the images, the more the network itself decides.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from semmix.core.device import describe_environment
from semmix.core.runtime import Runtime
from semmix.data import Dataset, load_dataset
from semmix.training.classifier import TrainConfig, build_network, train

NUM_CLASSES = 10
NUM_HELD_OUT = 2  # of each class: validation is no part of the comparison
NUM_WORKERS = 2


def write_images(folder: Path, num_per_class: dict[str, int], size: int) -> None:
    random = np.random.default_rng(0)
    for part, num in num_per_class.items():
        for label in range(NUM_CLASSES):
            base = folder / part / str(label)
            base.mkdir(parents=True)
            for row in range(num):
                pixels = random.integers(0, 256, (size, size, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(base / f"{row:05d}.png")


class Files(TorchDataset):
    """Opens, crops and flips one file at a time, as data sets for `DataLoader` do."""

    def __init__(self, folder: Path, config: TrainConfig):
        self.paths, self.pad, self.flip = sorted(folder.glob("*/*.png")), config.pad, config.flip

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        path, pad = self.paths[row], self.pad
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
        height, width, _ = pixels.shape
        y, x, mirrored = torch.randint(2 * pad + 1, (3,)).tolist()
        pixels = np.pad(pixels, ((pad, pad), (pad, pad), (0, 0)))[y : y + height, x : x + width]
        if self.flip and mirrored % 2:
            pixels = pixels[:, ::-1]
        pixels = np.ascontiguousarray(pixels.transpose(2, 0, 1))
        return torch.from_numpy(pixels).float().div(255), int(path.parent.name)


def files_rate(folder: Path, data: Dataset, config: TrainConfig) -> float:
    """Return images per second of the usual loop."""
    network = build_network(config.classifier, data).train()
    optimizer = torch.optim.SGD(network.parameters(), config.lr, config.momentum, weight_decay=config.weight_decay)
    loader = DataLoader(
        Files(folder / "train", config),
        config.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=NUM_WORKERS,
        persistent_workers=True,
    )
    start = 0.0
    for epoch in range(1 + config.epochs):
        if epoch == 1:  # the first starts the workers
            start = time.perf_counter()
        for images, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(images), labels).backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), config.clip_norm)
            optimizer.step()
    return config.epochs * len(loader) * config.batch_size / (time.perf_counter() - start)


def run_seconds(data: Dataset, config: TrainConfig, epochs: int) -> float:
    settings = {**vars(config), "epochs": epochs}
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        train(data, TrainConfig(**settings), Path(folder) / "run", runtime=Runtime(device="cpu"))
        return time.perf_counter() - start


def loop_rate(data: Dataset, config: TrainConfig) -> float:
    """Return images per second of our loop: a long run less a run of one epoch."""
    run_seconds(data, config, epochs=1)  # imports and first calls
    short, long = (run_seconds(data, config, epochs) for epochs in (1, 1 + config.epochs))
    num_images = len(data.train) // config.batch_size * config.batch_size
    return config.epochs * num_images / (long - short)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classifier", default="small")
    parser.add_argument("--images", type=int, default=5120)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128)
    args = parser.parse_args()
    config = TrainConfig(
        method="ce",
        classifier=args.classifier,
        epochs=args.epochs,
        batch_size=args.batch_size,
        pad=1 if args.size < 32 else 4,
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        num = {"train": args.images // NUM_CLASSES, "val": NUM_HELD_OUT, "test": NUM_HELD_OUT}
        write_images(folder, num, args.size)
        data = load_dataset(folder)
        rates = [(loop_rate(data, config), files_rate(folder, data, config)) for _ in range(args.repeats)]
    ours, usual = map(max, zip(*rates, strict=True))
    machine = describe_environment()
    print(
        f"{args.classifier} on {args.size} x {args.size}: {ours:,.0f} img/s, {ours / usual:.2f} x "
        f"a DataLoader over PNG files ({usual:,.0f} img/s, {NUM_WORKERS} workers); "
        f"torch {machine['torch']}, {machine['cpu_threads']} threads",
        flush=True,
    )


if __name__ == "__main__":
    main()
