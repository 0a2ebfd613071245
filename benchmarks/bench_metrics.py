"""Speed and exactness of the metrics against torchmetrics, netcal and probmetrics, in one run.

    pip install torchmetrics==1.9.0 netcal==1.4.0 'probmetrics[extra]==1.3.0'
    python benchmarks/bench_metrics.py [--threads 2] [--rounds 15]

Times are the best of several rounds in which all take turns, after a warm-up. `error` is the
relative error against sums in extended precision; "x ours", how many times as long a peer takes.
Peers that are not installed are left out.
"""

import argparse
import time
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import torch

from semmix import calibration as cal


def best_times(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the shortest time of each work in seconds; works take turns, so all share the luck."""
    times = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            times[name] = min(times[name], time.perf_counter() - start)
    return times


def predictions(num_samples: int, num_classes: int, dtype=np.float32):
    """Return logits of a fairly good, overconfident classifier, and labels."""
    random = np.random.default_rng(0)
    logits = random.normal(size=(num_samples, num_classes)).astype(dtype) * 2
    labels = random.integers(0, num_classes, num_samples)
    right = random.random(num_samples) < 0.8
    logits[right, labels[right]] += 6
    return logits, labels


def exact_ece(probs, labels, bins: int = 15) -> float:
    """Return the ECE with sums in extended precision."""
    confidence, correct = probs.max(1), probs.argmax(1) == labels
    edges = (np.arange(1, bins) / bins).astype(confidence.dtype)
    gaps = confidence.astype(np.longdouble) - correct
    index = np.searchsorted(edges, confidence, "left")
    return float(sum(abs(gaps[index == m].sum()) for m in range(bins)) / len(labels))


def report(title: str, works: dict[str, Callable[[], object]], rounds: int, exact=None) -> None:
    """Time every work, ours first, and print a table."""
    print(f"\n{title}")
    results = {name: work() for name, work in works.items()}
    times = best_times(works, rounds)
    ours = next(iter(times.values()))
    for name, seconds in times.items():
        line = f"  {name:24} {1e3 * seconds:9.2f} ms  {seconds / ours:7.2f} x ours"
        if exact is not None:
            value = float(results[name])
            line += f"   value {value:.8f}  error {abs(value / exact - 1):.1e}"
        print(line, flush=True)


def bench_ece(num_samples: int, num_classes: int, rounds: int) -> None:
    logits, labels = predictions(num_samples, num_classes)
    probs = torch.from_numpy(logits).softmax(1)
    array, target = probs.numpy(), torch.from_numpy(labels)
    works: dict[str, Callable[[], object]] = {
        "semmix (array)": lambda: cal.ece(array, labels),
        "semmix (tensor)": lambda: cal.ece(probs, target),
    }
    if find_spec("torchmetrics"):
        from torchmetrics.functional.classification import multiclass_calibration_error

        works["torchmetrics"] = lambda: multiclass_calibration_error(probs, target, num_classes)
        works["torchmetrics unchecked"] = lambda: multiclass_calibration_error(
            probs, target, num_classes, validate_args=False
        )
    if find_spec("netcal"):
        from netcal.metrics import ECE

        works["netcal"] = lambda: ECE(15).measure(array, labels)
    if find_spec("probmetrics"):
        from probmetrics.metrics import Metrics

        metrics = Metrics.from_names(["ece-15"])
        works["probmetrics"] = lambda: metrics.compute_all_from_labels_probs(target, probs)["ece-15"]
    report(f"ECE, N={num_samples:,}, K={num_classes}", works, rounds, exact_ece(array, labels))


def bench_temperature(rounds: int) -> None:
    logits, labels = predictions(5000, 100, np.float64)
    probs = cal.softmax(logits)
    works: dict[str, Callable[[], object]] = {"semmix": lambda: cal.TemperatureScaler().fit(logits, labels).temperature}
    if find_spec("probmetrics"):
        from probmetrics.calibrators import get_calibrator

        works["probmetrics"] = lambda: get_calibrator("temp-scaling").fit(probs, labels)
    if find_spec("netcal"):
        from netcal.scaling import TemperatureScaling

        works["netcal"] = lambda: TemperatureScaling().fit(probs, labels)
    report("temperature, 5,000 x 100", works, rounds)


def bench_interval(rounds: int) -> None:
    logits, labels = predictions(10_000, 10)
    probs = cal.softmax(logits)
    works = {
        f"{metric.__name__}": lambda metric=metric: cal.interval(metric, probs, labels)
        for metric in (cal.ece, cal.aece, cal.nll, cal.smooth_ece)
    }
    report("1,000 bootstrap resamples, N=10,000", works, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    bench_ece(1_000_000, 10, options.rounds)
    bench_ece(100_000, 1000, options.rounds)
    bench_temperature(options.rounds)
    bench_interval(min(options.rounds, 5))


if __name__ == "__main__":
    main()
