"""Speed of the classifier loop: whole epochs of `train_classifier`, data and augmentation included.

    python benchmarks/bench_training.py --classifier resnet18 --method csm

Random images of CIFAR-10's shape. The peer, in the same run, is a plain PyTorch loop: float32,
eager, augmentation on the device, the same batch. `setup` is all before the first epoch's end.
Targets on one H200: ResNet-50 csm 15,000 img/s, ResNet-18 csm 55,000, ResNet-18 ce 45,000.
"""

import argparse
import statistics
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

import torch

from semmix._device import describe_environment, pick_device
from semmix.datasets import Dataset, Split
from semmix.labels import mix_labels
from semmix.methods import method
from semmix.plan import all_pairs
from semmix.training.batches import MixedImages
from semmix.training.classifier import TrainConfig, build_network, make_batch, train_classifier
from semmix.training.mixed import MixedSource


def random_split(num: int, size: int) -> Split:
    return Split(
        torch.randint(0, 256, (num, 3, size, size), dtype=torch.uint8), torch.arange(num) % 10
    )


def random_data(num: int, size: int) -> Dataset:
    parts = (random_split(num, size), random_split(1000, size), random_split(1000, size))
    return Dataset("random", tuple("abcdefghij"), *parts)


def random_source(data: Dataset) -> MixedSource:
    pairs = torch.tensor(all_pairs(10) * 20)
    lam = torch.linspace(0, 1, 8).expand(len(pairs), 8)
    images = torch.randint(0, 256, (len(pairs), 8, *data.image_shape), dtype=torch.uint8)
    labels = mix_labels(pairs[:, :1], pairs[:, 1:], lam, 10)
    return MixedSource(MixedImages.build(images, labels, pairs), data.train.digest, {})


def epoch_ends(stats: Path, num: int, thread: threading.Thread) -> list[float]:
    """Return when each line of a run's stats appeared."""
    times: list[float] = []
    while len(times) < num and thread.is_alive():
        lines = stats.read_text().count("\n") if stats.exists() else 0
        times += [time.perf_counter()] * (lines - len(times))
        time.sleep(0.002)
    return times


def loop_rate(data, source, config: TrainConfig) -> tuple[float, float]:
    """Return images per second of a median epoch after the first, and the seconds before."""
    per_epoch = (1 + method(config.method, 10).num_mixed) * (len(data.train) // config.batch_size)
    per_epoch *= config.batch_size
    with tempfile.TemporaryDirectory() as folder:
        out, start = Path(folder) / "run", time.perf_counter()
        arguments = (data, config, out, source)
        thread = threading.Thread(target=train_classifier, args=arguments, daemon=True)
        thread.start()
        times = epoch_ends(out / "stats.jsonl", config.epochs, thread)
        thread.join()
    durations = [end - begin for begin, end in pairwise(times)]
    return per_epoch / statistics.median(durations), times[0] - start


def plain_rate(data, source, config: TrainConfig, device: torch.device, steps: int) -> float:
    """Return images per second of an eager float32 loop over the same batches."""
    rule = method(config.method, 10)
    network = build_network(config.classifier, data).to(device).train()
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    images, labels = data.train.images.to(device), data.train.labels.to(device)
    mixed = source.images.to(device)

    def step() -> None:
        index = torch.randint(len(images), (config.batch_size,), device=device)
        batch = make_batch(images[index], labels[index], index, mixed, rule.num_mixed, config)
        optimizer.zero_grad()
        rule.step(network, batch)["loss"].backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 2.0)
        optimizer.step()

    step()
    wait(device)
    start = time.perf_counter()
    for _ in range(steps):
        step()
    wait(device)
    images_per_step = (1 + rule.num_mixed) * config.batch_size
    return steps * images_per_step / (time.perf_counter() - start)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classifier", default="small")
    parser.add_argument("--method", default="csm")
    parser.add_argument("--images", type=int, default=2560)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--plain-steps", type=int, default=10)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    device = pick_device(args.device)
    config = TrainConfig(
        method=args.method, classifier=args.classifier, epochs=args.epochs, device=args.device
    )
    data = random_data(args.images, args.size)
    source = random_source(data)
    rate, setup = loop_rate(data, source, config)
    plain = plain_rate(data, source, config, device, args.plain_steps)
    machine = describe_environment()
    print(
        f"{args.classifier} {args.method}: {rate:,.0f} img/s, {rate / plain:.2f} x a plain loop "
        f"({plain:,.0f} img/s); setup {setup:.0f} s; torch {machine['torch']}, "
        f"{machine['gpu'] or str(machine['cpu_threads']) + ' threads'}",
        flush=True,
    )


if __name__ == "__main__":
    main()
