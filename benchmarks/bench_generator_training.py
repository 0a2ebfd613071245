"""Training speed of generator networks: images per second of whole steps (draw to EMA).

    python benchmarks/bench_generator_training.py --networks compact32 --batch-sizes 256 512

Each line is one network at one batch size, on random images: what counts is the shape.
"""

import argparse
import time

import torch
import torch._inductor.config
from torch.utils.flop_counter import FlopCounterMode

from semmix.core.device import describe_environment, pick_device, to_device
from semmix.core.seeds import fold_seed
from semmix.diffusion.edm import PRESETS, EDMConfig, EDMDenoiser, network_preset
from semmix.training.generator import GeneratorConfig, PowerEMA, gradient_step

# Networks of about the same cost as the compact preset, to find what the hardware likes.
CANDIDATES = {
    "c128-122": {"model_channels": 128, "channel_mult": (1, 2, 2), "num_blocks": 2},
    "c64-124": {"model_channels": 64, "channel_mult": (1, 2, 4), "num_blocks": 2},
    "c96-123": {"model_channels": 96, "channel_mult": (1, 2, 3), "num_blocks": 2},
}


def network_of(name: str) -> EDMConfig:
    if name in PRESETS:
        return network_preset(name, (3, 32, 32), 10)
    return EDMConfig(resolution=32, channels=3, num_classes=10, **CANDIDATES[name])


def forward_flops(config: EDMConfig) -> int:
    with torch.device("meta"):
        network = EDMDenoiser(config).eval()
        x, labels = torch.empty(1, 3, 32, 32), torch.empty(1, 10)
        with FlopCounterMode(display=False) as counter:
            network(x, torch.empty(1), labels)
    return counter.get_total_flops()


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure(name: str, batch_size: int, num_steps: int, device: torch.device) -> None:
    config = GeneratorConfig(num_images=1, batch_size=batch_size, flip=True)
    network_config = network_of(name)
    torch.manual_seed(0)
    images = torch.randint(0, 256, (5000, 3, 32, 32), dtype=torch.uint8, device=device)
    classes = torch.eye(10, device=device)[torch.arange(5000, device=device) % 10]
    network = to_device(EDMDenoiser(network_config), device).train()
    weights = {key: p.detach() for key, p in network.named_parameters()}
    optimizer = torch.optim.Adam(network.parameters(), config.lr, fused=True)
    emas = [PowerEMA(weights, length) for length in config.ema_lengths]
    gradients = gradient_step(network, images, classes, config)

    def train_step(step: int) -> torch.Tensor:
        torch.manual_seed(fold_seed("benchmark", step))
        loss = gradients()
        optimizer.step()
        for ema in emas:
            ema.update(weights, step + 1)
        return loss

    start = time.perf_counter()
    gradients.prepare()
    train_step(0)
    synchronize(device)
    ready = time.perf_counter() - start
    for step in range(1, 4):
        train_step(step)
    synchronize(device)
    start = time.perf_counter()
    for step in range(4, 4 + num_steps):
        loss = train_step(step)
    synchronize(device)
    rate = num_steps * batch_size / (time.perf_counter() - start)
    parameters = sum(p.numel() for p in network.parameters()) / 1e6
    speed = 3 * forward_flops(network_config) * rate / 1e12  # backward costs about two forwards
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
    print(
        f"{name:12s} {parameters:6.1f} M  batch {batch_size:5d}  {rate:9,.0f} img/s  "
        f"{speed:6.1f} TFLOP/s  {memory:5.1f} GiB  ready after {ready:4.0f} s  loss {loss:.3f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=["compact32", *CANDIDATES])
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[256, 512])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--max-autotune", action="store_true", help="let the compiler search longer")
    args = parser.parse_args()
    device = pick_device(args.device)
    torch._inductor.config.max_autotune = args.max_autotune
    print({key: describe_environment()[key] for key in ("torch", "gpu", "cpu_threads")})
    for name in args.networks:
        for batch_size in args.batch_sizes:
            measure(name, batch_size, args.steps, device)
            torch._dynamo.reset()
            if device.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
