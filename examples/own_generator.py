"""Any class-conditional denoiser makes mixed sets: here one that knows each digit's mean image.

Run it with `python examples/own_generator.py`; the sets are in ./own-mixsets afterwards.
"""

import sys

import torch

from semmix import MixPlan, load_dataset
from semmix.diffusion.sampling import MixConfig
from semmix.mixing.draw import mix
from semmix.mixing.plan import all_pairs


class MeanDigits:
    """Pixels of class k are normal around the class mean: then E[clean | x] is a formula."""

    name, image_shape, num_classes = "mean-digits", (1, 8, 8), 10
    digest, device = "1", torch.device("cpu")  # a new digest whenever its images would change

    def __init__(self, split):
        images = split.images / 127.5 - 1  # generators see [-1, 1]
        self.means = torch.stack([images[split.labels == k].mean(0) for k in range(10)])
        self.variance, self.trained_on = images.var(0).mean(), split.digest

    def denoise(self, x, sigma, class_weights):  # [N, C, H, W], [N], [N, K] -> [N, C, H, W]
        mean = torch.tensordot(class_weights, self.means, dims=1)
        trust = self.variance / (self.variance + sigma.reshape(-1, 1, 1, 1) ** 2)
        return mean + trust * (x - mean)


if __name__ == "__main__":
    plan = MixPlan(num_classes=10, num_sets=45, pairs=all_pairs(10))
    out = sys.argv[1] if len(sys.argv) > 1 else "own-mixsets"
    store = mix(MeanDigits(load_dataset("digits").train), plan, MixConfig(), out)
    i, j = store.pair(0)
    print(f"{store.num_sets} sets of {store.plan.set_size}; the first goes from {j} to {i}")
