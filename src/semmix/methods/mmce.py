"""Maximum mean calibration error, unweighted: a kernel estimate of how far confidence is off.

Kumar et al., Trainable Calibration Measures, ICML 2018, https://proceedings.mlr.press/v80/kumar18a.html
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from semmix.methods._base import Batch, Forward, Method, confidence, hits, laplacian


@dataclass(kw_only=True, eq=False)
class KernelCalibration(Method):
    """Cross-entropy plus weight / B^2 sum_ij (a_i - c_i)(a_j - c_j) k(c_i, c_j).

    a is 1 where the prediction is right and c its confidence. The square is not rooted.
    """

    weight: float = 1.0
    """Weight of the squared calibration error."""

    def step(self, forward: Forward, batch: Batch) -> dict[str, Tensor]:
        logits = forward(batch.images)
        ce = F.cross_entropy(logits, batch.labels)
        conf = confidence(logits)
        gap = hits(logits, batch.labels) - conf
        mmce = (gap[:, None] * gap * laplacian(conf)).mean()
        return {"loss": ce + self.weight * mmce, "ce": ce, "mmce": mmce}
