"""Calibration-aware Semantic Mixing: learn real images hard and semantically mixed ones soft."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from semmix.core.errors import SemmixError, require
from semmix.methods._base import Batch, Forward, Method, check_gamma, soft_loss


@dataclass(kw_only=True, eq=False)
class SemanticMixing(Method):
    """Cross-entropy on real images plus a soft-label loss on mixed ones."""

    loss: Literal["l2", "ce", "focal"] = "l2"
    """What fits the soft labels; only l2 favours neither sharper nor softer ones."""
    gamma: float = 3.0
    """Exponent of the focal loss."""
    weight: float = 1.0
    """Weight of the mixed images' term."""
    num_mixed: int = 2
    """Mixed images per real one: an end of its own class, the rest interior members."""
    protocol: Literal["code", "paper"] = "code"
    """`code` sums l2 over classes, as the published results did; `paper` divides it by K."""
    batch_statistics: Literal["both", "real", "joint"] = "both"
    """Real and mixed images go through the network apart, and prediction normalises by the
    statistics of `both`, as published, or of `real` ones alone; or they go together, `joint`."""

    def __post_init__(self):
        check_gamma(self.gamma)
        require(self.num_mixed >= 1, "csm learns from mixed images", self.num_mixed, "use num_mixed >= 1")

    @property
    def first_pass_predicts(self) -> bool:
        return self.batch_statistics == "real"

    def step(self, forward: Forward, batch: Batch) -> dict[str, Tensor]:
        logits, mixed_logits = self._forward(forward, batch)
        assert batch.mixed_labels is not None
        real = F.cross_entropy(logits, batch.labels)
        mixed = soft_loss(self.loss, mixed_logits, batch.mixed_labels, self.gamma)
        if self.loss == "l2" and self.protocol == "paper":
            mixed = mixed / self.num_classes
        return {"loss": real + self.weight * mixed, "real": real, "mixed": mixed}

    def _forward(self, forward: Forward, batch: Batch) -> tuple[Tensor, Tensor]:
        if batch.mixed_images is None:
            raise SemmixError("csm got no mixed images", None, "give training a store of mixed sets")
        if self.batch_statistics != "joint":
            return forward(batch.images), forward(batch.mixed_images)
        logits = forward(torch.cat([batch.images, batch.mixed_images]))
        real, mixed = logits.split([len(batch.images), len(batch.mixed_images)])
        return real, mixed
