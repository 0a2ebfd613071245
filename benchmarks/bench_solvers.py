"""How solvers compare: how closely each follows a generator's path, how real its images look.

    python benchmarks/bench_solvers.py --generator zoo:cifar10
    python benchmarks/bench_solvers.py --extractor inception:FILE --dataset cifar10 --samples 200

Path: root mean square over the pixels in [-1, 1] of one class sample for each class, in float32,
against the solution of many Heun steps. With an extractor, instead: the kernel distance of class
samples to training images, less that of Heun's samples of the same noises, with its bootstrap
standard deviation over the noises; and contrast, the root mean square difference of neighbouring
pixels, in bfloat16.
"""

import argparse
from dataclasses import replace

import torch

from semmix.data.config import DatasetConfig
from semmix.diffusion import load_generator
from semmix.diffusion.quality import cubic_kernel
from semmix.diffusion.sampling import MixConfig, make_solver, to_uint8
from semmix.networks.encoders import load_encoder

REFERENCE = "heun 18"
SOLUTION = MixConfig(solver="heun", num_steps=60, precision="float32")
ADAMS = MixConfig(solver="adams", sigma_min=0.01, rho=12.0)
TRIALS = {
    REFERENCE: MixConfig(solver="heun"),
    "dpmpp_2m 18": MixConfig(),
    "dpmpp_2m 35": MixConfig(num_steps=35),
    "adams 18": MixConfig(solver="adams"),
    "adams 18, rho 12, sigma_min 0.01": ADAMS,
    "the same with grain 0.045": replace(ADAMS, grain=0.045),
    "adams 22, rho 12, sigma_min 0.01": replace(ADAMS, num_steps=22),
    "the same with grain 0.08": replace(ADAMS, num_steps=22, grain=0.08),
}
NUM_BOOTSTRAPS = 200


def compare_paths(generator, trials: dict[str, MixConfig], seed: int) -> None:
    """Print each trial's distance to the solution."""
    torch.manual_seed(seed)
    noise = torch.randn(generator.num_classes, *generator.image_shape)
    classes = torch.eye(generator.num_classes)
    solution = make_solver(generator, SOLUTION)(noise, classes)
    for name, config in trials.items():
        found = make_solver(generator, replace(config, precision="float32"))(noise, classes)
        apart = (found - solution).square().mean((1, 2, 3)).sqrt().mean().item()
        print(f"{name}: {apart:.4f}", flush=True)


def contrast(images: torch.Tensor) -> float:
    images = images.float()
    return (images[..., 1:] - images[..., :-1]).square().mean().sqrt().item()


class Distance:
    """The part of samples' kernel distance to real images that depends on the samples."""

    def __init__(self, samples: torch.Tensor, real: torch.Tensor):
        samples, real = samples.double(), real.double()
        self.within = cubic_kernel(samples, samples)
        self.between = cubic_kernel(samples, real).mean(1)

    def of(self, rows: torch.Tensor) -> float:
        """Return it for some of the samples, drawn with replacement."""
        others = rows[:, None] != rows[None]
        within = self.within[rows][:, rows][others].mean()
        return (within - 2 * self.between[rows].mean()).item()


def compare_looks(generator, encoder, real: torch.Tensor, trials, num_samples: int) -> None:
    """Print each trial's kernel distance less the reference's, and its contrast."""
    classes = torch.eye(generator.num_classes)
    blocks = [torch.Generator().manual_seed(n) for n in range(num_samples // len(classes))]
    noises = [torch.randn(len(classes), *generator.image_shape, generator=g) for g in blocks]
    rows = torch.arange(len(noises) * len(classes))
    random = torch.Generator().manual_seed(0)
    again = [torch.randint(len(rows), rows.shape, generator=random) for _ in range(NUM_BOOTSTRAPS)]
    reals = encoder.embed(real).cpu()
    print(f"real images: contrast {contrast(real):.2f}", flush=True)
    reference = None
    for name, config in trials.items():
        solve = make_solver(generator, replace(config, precision="bfloat16"))
        images = torch.cat([to_uint8(solve(noise, classes)).cpu() for noise in noises])
        found = Distance(encoder.embed(images).cpu(), reals)
        reference = reference or found
        less = found.of(rows) - reference.of(rows)
        spread = torch.tensor([found.of(k) - reference.of(k) for k in again]).std()
        print(f"{name}: {less:+.5f} ± {spread:.5f}, contrast {contrast(images):.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generator", default="zoo:cifar10", help="a folder or zoo:NAME")
    parser.add_argument("--seed", type=int, default=3, help="of the path's noise")
    parser.add_argument("--extractor", help="encoder of the features, as kind:what")
    parser.add_argument("--dataset", default="cifar10", help="of the real images")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--real", type=int, default=600, help="real images")
    parser.add_argument("--trials", nargs="+", default=list(TRIALS), choices=list(TRIALS))
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    generator = load_generator(args.generator, args.device)
    trials = {name: TRIALS[name] for name in TRIALS if name in args.trials or name == REFERENCE}
    if not args.extractor:
        compare_paths(generator, trials, args.seed)
        return
    images = DatasetConfig(dataset=args.dataset).load().train.images
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))[: args.real]
    encoder = load_encoder(args.extractor, generator.device)
    compare_looks(generator, encoder, images[chosen], trials, args.samples)


if __name__ == "__main__":
    main()
