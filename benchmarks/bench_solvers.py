"""How closely solvers follow a generator's path, against the solution of many Heun steps.

    python benchmarks/bench_solvers.py --generator zoo:cifar10

Root mean square over the pixels in [-1, 1] of one class sample for each class, in float32.
"""

import argparse

import torch

from semmix.generators import load_generator
from semmix.sampling.solvers import adams, dpmpp_2m, heun, karras_sigmas

REFERENCE_STEPS = 60
TRIALS = {
    "heun 18 (35 evaluations)": (heun, karras_sigmas(18)),
    "dpmpp_2m 18": (dpmpp_2m, karras_sigmas(18)),
    "dpmpp_2m 35": (dpmpp_2m, karras_sigmas(35)),
    "adams 18": (adams, karras_sigmas(18)),
    "adams 18, rho 12, sigma_min 0.01": (adams, karras_sigmas(18, sigma_min=0.01, rho=12.0)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="How closely solvers follow a generator's path.")
    parser.add_argument("--generator", default="zoo:cifar10", help="a folder or zoo:NAME")
    parser.add_argument("--seed", type=int, default=3, help="of the noise")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    generator = load_generator(args.generator, args.device)
    torch.manual_seed(args.seed)
    noise = torch.randn(generator.num_classes, *generator.image_shape).to(generator.device)
    classes = torch.eye(generator.num_classes, device=generator.device)

    @torch.no_grad()
    def denoise(x: torch.Tensor, sigma: float) -> torch.Tensor:
        return generator.denoise(x, x.new_full((len(x),), sigma), classes)

    def solve(solver, sigmas: list[float]) -> torch.Tensor:
        return solver(denoise, noise * sigmas[0], sigmas)

    solution = solve(heun, karras_sigmas(REFERENCE_STEPS))
    for name, trial in TRIALS.items():
        apart = (solve(*trial) - solution).square().mean((1, 2, 3)).sqrt().mean().item()
        print(f"{name}: {apart:.4f}", flush=True)


if __name__ == "__main__":
    main()
