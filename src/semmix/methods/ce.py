"""Cross-entropy: the plain baseline."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from semmix.methods._base import Batch, Forward, Method


@dataclass(kw_only=True, eq=False)
class CrossEntropy(Method):
    """The mean of -log p_y."""

    def step(self, forward: Forward, batch: Batch) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(forward(batch.images), batch.labels)}
