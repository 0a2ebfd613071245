"""Speed of the classifier loop: whole epochs of `train`, data and augmentation included.

    python benchmarks/bench_training.py --classifier resnet18 --method csm --images 45000
    python benchmarks/bench_training.py --classifier resnet50 --method csm --images 12800 --epochs 3
    python benchmarks/bench_training.py --classifier resnet18 --method ce --same-curve 100
    python benchmarks/bench_training.py --classifier resnet18 --method ce --jobs 4

Random images of CIFAR-10's shape, nine for training to one for validation, as in its split. Peers
in the same run: the bare step, captured alike but with fixed images and no loop around it, and a
plain PyTorch loop (float32, eager, PyTorch's defaults). On a CPU nothing is compiled or captured.
Targets on one H200: ResNet-50 csm 15,000 img/s, ResNet-18 csm 55,000, ResNet-18 ce 45,000; the
loop's overhead over the bare step under 5 %.

`--same-curve` trains some steps with the step captured and again without, from the same seeds, and
fails where the losses differ by more than `--tolerance`. `--jobs` trains in several processes at
once; they start together after all have compiled and captured. `--profile` shows where a step's
time goes, kernel by kernel.
"""

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from torch._dynamo.utils import counters

from semmix.core.device import describe_environment, pick_device, to_device
from semmix.core.runtime import Runtime
from semmix.data import Dataset, Split
from semmix.methods import method
from semmix.mixing.plan import all_pairs, mix_labels
from semmix.training import classifier as loop
from semmix.training import engine
from semmix.training.batches import MixedImages
from semmix.training.classifier import TrainConfig, build_network, make_batch, make_step
from semmix.training.graphs import CapturedStep
from semmix.training.mixed import MixedSource


def random_split(num: int, size: int) -> Split:
    """Return random images; their brightness tells the class, so there is something to learn."""
    labels = torch.arange(num) % 10
    pixels = torch.randint(0, 156, (num, 3, size, size)) + 10 * labels[:, None, None, None]
    return Split(pixels.to(torch.uint8), labels)


def random_data(num: int, size: int) -> Dataset:
    parts = [random_split(part, size) for part in (num, max(num // 9, 10), 1000)]
    return Dataset("random", tuple("abcdefghij"), *parts)


def random_source(data: Dataset) -> MixedSource:
    pairs = torch.tensor(all_pairs(10) * 20)
    lam = torch.linspace(0, 1, 8).expand(len(pairs), 8)
    images = torch.randint(0, 256, (len(pairs), 8, *data.image_shape), dtype=torch.uint8)
    labels = mix_labels(pairs[:, :1], pairs[:, 1:], lam, 10)
    return MixedSource(MixedImages.build(images, labels, pairs), data.train.digest, {})


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


class Step:
    """A step of the loop on fixed images, with its optimizer."""

    def __init__(self, data: Dataset, source: MixedSource, config: TrainConfig, runtime: Runtime):
        device = pick_device(runtime.device)
        torch.manual_seed(0)
        rule = method(config.method, 10, **config.options)
        network = to_device(build_network(config.classifier, data), device)
        index = torch.arange(config.batch_size, device=device)
        pixels, labels = data.train.images.to(device)[index], data.train.labels.to(device)
        mixed = source.images.to(device)
        rule.setup(labels)

        def next_batch():
            return make_batch(pixels, labels[index], index, mixed, rule.num_mixed, config)

        self.num_images = (1 + rule.num_mixed) * config.batch_size
        self.device, self.network, self.rule, self.next_batch = device, network, rule, next_batch
        self.gradients = make_step(network, rule, next_batch, config.clip_norm, 0, 1)
        self.optimizer = torch.optim.SGD(
            network.parameters(), config.lr, momentum=0.9, weight_decay=5e-4, fused=device.type == "cuda"
        )

    def prepare(self) -> float:
        """Compile and capture; return the seconds it took."""
        start = time.perf_counter()
        self.gradients.prepare()
        wait(self.device)
        return time.perf_counter() - start

    def captured(self) -> torch.Tensor:
        loss = self.gradients()
        self.optimizer.step()
        return loss

    def eager(self) -> torch.Tensor:
        """The same in the usual way: float32, not compiled, not captured."""
        self.optimizer.zero_grad()
        loss = self.rule.step(self.network, self.next_batch())["loss"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 2.0)
        self.optimizer.step()
        return loss

    def rate(self, step, num_steps: int) -> float:
        """Return images per second of one of the two: the median of three measurements."""
        step()
        rates = []
        for _ in range(3):
            wait(self.device)
            start = time.perf_counter()
            for _ in range(num_steps):
                step()
            wait(self.device)
            rates.append(num_steps * self.num_images / (time.perf_counter() - start))
        return statistics.median(rates)


class Clock:
    """When the loop prepared its step, and when it began and ended each epoch's evaluation."""

    def __init__(self, device: torch.device):
        self.device = device
        self.prepared, self.begins, self.ends = [], [], []

    def tick(self, times: list[float]) -> None:
        wait(self.device)
        times.append(time.perf_counter())


@contextmanager
def clocked(device: torch.device, ready=lambda: None):
    """Yield a clock that the loop's own functions wind; `ready` is called before the first step."""
    clock, prepare = Clock(device), CapturedStep.prepare
    predict, append = loop.predict_logits, engine.append_stats

    def timed_prepare(self):
        if not clock.prepared:
            clock.tick(clock.prepared)
            prepare(self)
            clock.tick(clock.prepared)
            ready()
            clock.tick(clock.ends)
        prepare(self)

    def timed_predict(*args, **options):
        clock.tick(clock.begins)
        return predict(*args, **options)

    def timed_append(*args):
        append(*args)
        clock.tick(clock.ends)

    CapturedStep.prepare = timed_prepare
    loop.predict_logits, engine.append_stats = timed_predict, timed_append
    try:
        yield clock
    finally:
        CapturedStep.prepare = prepare
        loop.predict_logits, engine.append_stats = predict, append


def train(data: Dataset, source: MixedSource, config: TrainConfig, runtime: Runtime, ready=lambda: None) -> Clock:
    with tempfile.TemporaryDirectory() as folder, clocked(pick_device(runtime.device), ready) as clock:
        loop.train(data, config, Path(folder) / "run", source, runtime)
    return clock


def images_per_epoch(data: Dataset, config: TrainConfig) -> int:
    real = len(data.train) // config.batch_size * config.batch_size
    return (1 + method(config.method, 10).num_mixed) * real


def compare(data: Dataset, source: MixedSource, config: TrainConfig, runtime: Runtime, num_steps: int) -> None:
    """Print the loop's rate beside its peers'."""
    step = Step(data, source, config, runtime)
    name = f"{config.classifier} {config.method}"
    print(f"{name}: compile and capture {step.prepare():.1f} s", flush=True)
    graphs = counters["stats"]["unique_graphs"]
    bare = step.rate(step.captured, num_steps)
    clock = train(data, source, config, runtime)
    begin, end = clock.prepared
    again = counters["stats"]["unique_graphs"] - graphs
    print(f"{name}: the loop's own network {end - begin:.1f} s, {graphs} + {again} graphs compiled")
    ends = clock.ends[1:]  # the first epoch warms up
    num_images = images_per_epoch(data, config)
    without = [begin - end for end, begin in zip(ends, clock.begins[1:], strict=False)]
    whole = [end - begin for begin, end in pairwise(ends)]
    without, whole = statistics.median(without[: len(whole)]), statistics.median(whole)
    peer = Step(data, source, config, runtime)
    peer.network.to(memory_format=torch.contiguous_format)  # pyright: ignore[reportCallIssue]
    plain = peer.rate(peer.eager, max(num_steps // 5, 1))
    rates = {
        "loop": num_images / without,
        "loop with evaluation": num_images / whole,
        "bare step": bare,
        "plain loop": plain,
    }
    print("\n".join(f"{name}: {rate:,.0f} img/s {kind}" for kind, rate in rates.items()))
    print(
        f"{name}: overhead of the loop {1 - rates['loop'] / bare:.1%}, of evaluation "
        f"{1 - without / whole:.1%}; {rates['loop'] / plain:.2f} x the plain loop"
    )


def profile(data: Dataset, source: MixedSource, config: TrainConfig, runtime: Runtime, num_steps: int = 5) -> None:
    """Print which operations the time of a captured step goes to."""
    step = Step(data, source, config, runtime)
    step.prepare()
    step.captured()
    wait(step.device)
    kind = "cuda" if step.device.type == "cuda" else "cpu"
    with torch.profiler.profile() as trace:
        for _ in range(num_steps):
            step.captured()
        wait(step.device)
    table = trace.key_averages().table(sort_by=f"self_{kind}_time_total", row_limit=40, max_name_column_width=100)
    print(table)


def curve(data, source, config: TrainConfig, runtime: Runtime, num_steps: int, captures: bool) -> torch.Tensor:
    """Return the loss of each step [num_steps], captured or not, from the same seeds."""
    step = Step(data, source, config, runtime)
    step.gradients.captures &= captures
    memory = {name: tensor.clone() for name, tensor in step.rule.state_dict().items()}
    step.prepare()
    step.rule.load_state_dict(memory)
    losses = []
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):  # as when captured
        for seed in range(num_steps):
            torch.manual_seed(seed)
            losses.append(step.captured().clone())
    return torch.stack(losses).cpu()


def compare_curves(data, source, config: TrainConfig, runtime: Runtime, num_steps: int, tolerance: float) -> None:
    """Print how far the captured curve is from the plain one; exit where it is too far."""
    config = replace(config, lr=0.01)  # at 0.1 a difference in rounding soon grows
    captured = curve(data, source, config, runtime, num_steps, captures=True)
    plain = curve(data, source, config, runtime, num_steps, captures=False)
    apart = ((captured - plain).abs() / plain.abs()).max().item()
    print(
        f"{config.classifier} {config.method}: loss {plain[0]:.4f} to {plain[-1]:.4f} in "
        f"{num_steps} steps; captured and plain differ by at most {apart:.2e}"
    )
    if not apart <= tolerance:
        sys.exit(f"more than {tolerance:g}")


def work(args, barrier) -> tuple[float, float, int]:
    """Train beside others; return when all began, when this one was done, and images seen."""
    data, source, config, runtime = setting(args)
    try:
        clock = train(data, source, config, runtime, ready=barrier.wait)
    except BaseException:
        barrier.abort()
        raise
    num_epochs = len(clock.ends) - 1
    return clock.ends[0], clock.ends[-1], num_epochs * images_per_epoch(data, config)


def rate_of_jobs(args, num_jobs: int) -> float:
    """Return images per second of all processes together, from their start to the last end."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(num_jobs, context) as pool:
        barrier = manager.Barrier(num_jobs)
        answers = list(pool.map(work, [args] * num_jobs, [barrier] * num_jobs))
    begins, ends, num_images = zip(*answers, strict=True)  # one clock for all processes
    return sum(num_images) / (max(ends) - min(begins))


def compare_jobs(args) -> None:
    """Print the rate of several trainings at once against one alone."""
    alone = rate_of_jobs(args, 1)
    together = rate_of_jobs(args, args.jobs)
    print(
        f"{args.classifier} {args.method}: {alone:,.0f} img/s alone, {together:,.0f} img/s by "
        f"{args.jobs} processes, {together / alone:.2f} x"
    )


def setting(args) -> tuple[Dataset, MixedSource, TrainConfig, Runtime]:
    config = TrainConfig(method=args.method, classifier=args.classifier, epochs=args.epochs)
    torch.manual_seed(0)
    data = random_data(args.images, args.size)
    return data, random_source(data), config, Runtime(device=args.device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classifier", default="small")
    parser.add_argument("--method", default="csm")
    parser.add_argument("--images", type=int, default=2560, help="training images")
    parser.add_argument("--size", type=int, default=32, help="pixels across")
    parser.add_argument("--epochs", type=int, default=4, help="the first warms up")
    parser.add_argument("--steps", type=int, default=20, help="bare steps; a fifth of it eager")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--same-curve", type=int, metavar="STEPS")
    parser.add_argument("--tolerance", type=float, default=0.05, help="relative, for --same-curve")
    parser.add_argument("--jobs", type=int, help="processes at once")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    machine = describe_environment()
    where = machine["gpu"] or f"{machine['cpu_threads']} CPU threads"
    print(f"torch {machine['torch']}, {where}", flush=True)
    if args.jobs:
        compare_jobs(args)
    elif args.profile:
        profile(*setting(args))
    elif args.same_curve:
        compare_curves(*setting(args), args.same_curve, args.tolerance)
    else:
        compare(*setting(args), args.steps)


if __name__ == "__main__":
    main()
