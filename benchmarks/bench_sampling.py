"""Mixing speed: images per second, end to end into the store, against the reference sampler.

    python benchmarks/bench_sampling.py                        # the official network and the zoo's
    python benchmarks/bench_sampling.py --networks zoo:cifar10 --check --profile

The reference is EDM's sampler as published: float32, eager, Heun with 18 steps (35 evaluations).
Networks are presets, with random weights, which changes the pictures and not the speed; or
generators' folders, or zoo:NAME. With `edm-vp` in the run, the others are also compared with the
reference of that official network. With `--check` the fast store is made twice, in new processes,
and compared byte by byte. Targets on one H200: `edm-vp` 5 x its reference, the zoo's 20 x that.
"""

import argparse
import math
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch._inductor.config

from semmix.core.artifact import begin_artifact
from semmix.core.device import describe_environment, pick_device, to_device
from semmix.diffusion import load_generator
from semmix.diffusion.edm import PRESETS, EDMDenoiser, network_preset
from semmix.diffusion.sampling import MixConfig
from semmix.diffusion.solvers import SOLVERS
from semmix.diffusion.stored import MANIFEST, save_generator
from semmix.mixing.draw import mix
from semmix.mixing.plan import MixPlan, all_pairs

OFFICIAL = "edm-vp"
REFERENCE = MixConfig(solver="heun", num_steps=18, precision="float32", compile="off")
ADAMS = MixConfig(solver="adams", rho=12.0, sigma_min=0.01, grain=0.045, precision="bfloat16", compile="on")
FAST = {
    "dpmpp_2m 18, bfloat16, compiled": MixConfig(precision="bfloat16", compile="on"),
    **{f"adams {num} with grain, bfloat16, compiled": replace(ADAMS, num_steps=num) for num in (17, 18, 20, 22)},
    "heun 18, bfloat16, compiled": replace(REFERENCE, precision="bfloat16", compile="on"),
}


def random_generator(preset: str, folder: Path) -> Path:
    """Write a generator with random weights, as `convert` or training would."""
    torch.manual_seed(0)
    config = network_preset(preset, (3, 32, 32), 10)
    artifact = begin_artifact(folder, MANIFEST, "generator", {"preset": preset})
    save_generator(artifact, config, EDMDenoiser(config).state_dict(), None)
    return folder


class Utilisation:
    """Samples the GPU's utilisation while the body runs."""

    def __enter__(self):
        self.samples, self.done = [], threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self):
        ask = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-i", "0"]
        while torch.cuda.is_available() and not self.done.wait(0.5):
            self.samples.append(int(subprocess.check_output(ask)))

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()

    def __str__(self):
        return f"GPU {sum(self.samples) / len(self.samples):.0f} %" if self.samples else "GPU -"


def plan_of(num_sets: int, batch_size: int) -> MixPlan:
    return MixPlan(num_classes=10, num_sets=num_sets, pairs=all_pairs(10), sets_per_shard=batch_size // 8)


def rate(generator, config: MixConfig, num_sets: int, folder: Path) -> float:
    """Return images per second into the store, without the first batch (compilation).

    Part of a batch costs as much as a whole one, so the last one is filled up.
    """
    per_batch = config.batch_size // 8
    mix(generator, plan_of(per_batch, config.batch_size), config, folder / "0")
    num_sets = math.ceil(num_sets / per_batch) * per_batch
    plan = plan_of(num_sets, config.batch_size)
    with Utilisation() as gpu:
        start = time.perf_counter()
        mix(generator, plan, config, folder / "1")
        seconds = time.perf_counter() - start
    print(f"    {num_sets * 8} images in {seconds:.1f} s, {gpu}", flush=True)
    return num_sets * 8 / seconds


def profile(generator, config: MixConfig, num_sets: int, folder: Path) -> None:
    """Print where the time goes."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as trace:
        mix(generator, plan_of(num_sets, config.batch_size), config, folder)
    by = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    print(trace.key_averages().table(sort_by=by, row_limit=20))


def check_bytes(spec: str, batch_size: int, folder: Path) -> None:
    """Print whether two new processes make the same store."""
    for name in ("a", "b"):
        command = [sys.executable, __file__, "--networks", spec, "--make", str(folder / name)]
        subprocess.run([*command, "--batch-size", str(batch_size)], check=True)
    a, b = ({p.name: p.read_bytes() for p in (folder / name).iterdir()} for name in ("a", "b"))
    print(f"    two processes: {'same bytes' if a == b else 'DIFFERENT bytes'}", flush=True)


def bench(spec: str, args: argparse.Namespace, folder: Path, official: float | None) -> float:
    """Print the rates of one network; return that of the reference."""
    generator = load_generator(spec, args.device)
    print(f"{generator.name}", flush=True)
    print("  reference: heun 18, float32, eager, batch 512", flush=True)
    generator.network.to(memory_format=torch.contiguous_format)  # as in the published code
    reference = rate(generator, REFERENCE, args.reference_sets, folder / "reference")
    to_device(generator.network, generator.device)
    print(f"    {reference:,.0f} img/s", flush=True)
    if args.peer_only and generator.name == OFFICIAL:
        return reference
    settings = {k: v for k, v in FAST.items() if v.solver in args.solvers}
    for k, (title, config) in enumerate(settings.items()):
        config = replace(config, batch_size=args.batch_size)
        print(f"  {title}, batch {args.batch_size}", flush=True)
        fast = rate(generator, config, args.sets, folder / str(k))
        against = f", {fast / official:.1f} x the official network's" if official else ""
        print(f"    {fast:,.0f} img/s, {fast / reference:.1f} x the reference{against}", flush=True)
    if args.profile:
        config = replace(FAST["dpmpp_2m 18, bfloat16, compiled"], batch_size=args.batch_size)
        profile(generator, config, args.batch_size // 8, folder / "profile")
    if args.check:
        check_bytes(spec, args.batch_size, folder / "check")
    return reference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=[OFFICIAL, "zoo:cifar10"])
    parser.add_argument("--sets", type=int, default=2048)
    parser.add_argument("--solvers", nargs="+", default=list(SOLVERS), choices=list(SOLVERS))
    parser.add_argument("--peer-only", action="store_true", help="of the official network, the reference alone")
    parser.add_argument("--reference-sets", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--cudnn-benchmark", action="store_true", help="may change bytes")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--make", help="only make one batch of the fast store here")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--max-autotune", action="store_true", help="let the compiler search longer")
    args = parser.parse_args()
    pick_device(args.device)
    torch._inductor.config.max_autotune = args.max_autotune
    torch.backends.cudnn.benchmark = args.cudnn_benchmark
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if args.make:
            generator = load_generator(args.networks[0], args.device)
            config = MixConfig(batch_size=args.batch_size)
            plan = plan_of(args.batch_size // 8, args.batch_size)
            mix(generator, plan, config, args.make)
            return
        print({key: describe_environment()[key] for key in ("torch", "gpu", "cpu_threads")})
        official = None
        for name in args.networks:
            spec = str(random_generator(name, folder / name)) if name in PRESETS else name
            stores = folder / "stores" / Path(name).name.replace(":", "-")
            reference = bench(spec, args, stores, official)
            official = reference if name == OFFICIAL else official


if __name__ == "__main__":
    main()
