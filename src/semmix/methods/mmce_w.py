"""Maximum mean calibration error, weighted: right and wrong predictions count alike.

Kumar et al., Trainable Calibration Measures, ICML 2018, equation 6, https://proceedings.mlr.press/v80/kumar18a.html
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from semmix.methods._base import Batch, Forward, Method, confidence, hits, laplacian


@dataclass(kw_only=True, eq=False)
class WeightedKernelCalibration(Method):
    """Cross-entropy plus weight * sqrt(S_cc + S_ii - 2 S_ci), sums over (c)orrect, (i)ncorrect."""

    weight: float = 2.0
    """Weight of the calibration error."""
    protocol: Literal["paper", "code"] = "paper"
    """`code` divides the three sums by the numbers of their pairs twice."""

    def step(self, forward: Forward, batch: Batch) -> dict[str, Tensor]:
        logits = forward(batch.images)
        ce = F.cross_entropy(logits, batch.labels)
        mmce = weighted_mmce(logits, batch.labels, twice=self.protocol == "code")
        return {"loss": ce + self.weight * mmce, "ce": ce, "mmce": mmce}


def weighted_mmce(logits: Tensor, labels: Tensor, twice: bool) -> Tensor:
    """Return the rooted error, 0 where all predictions are right or all wrong."""
    conf, right = confidence(logits), hits(logits, labels)
    wrong = 1 - right
    num_right, num_wrong = right.sum(), wrong.sum()
    kernel = laplacian(conf)

    def pair_mean(u: Tensor, v: Tensor, num_pairs: Tensor) -> Tensor:
        mean = (u[:, None] * v * kernel).sum() / num_pairs.clamp(min=1)
        return mean / (num_pairs + 1e-5) if twice else mean

    u, v = right * (1 - conf), wrong * conf
    alike = pair_mean(u, u, num_right * num_right) + pair_mean(v, v, num_wrong * num_wrong)
    square = alike - 2 * pair_mean(u, v, num_right * num_wrong)
    # It is a squared norm; rounding may push it below 0, and the root needs a finite slope there.
    error = (square.clamp(min=0) + 1e-10).sqrt()
    return torch.where(num_right * num_wrong > 0, error, torch.zeros_like(error))
