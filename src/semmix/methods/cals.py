"""Class-adaptive label smoothing: a margin penalty whose weight each class learns on validation.

Liu et al., Class Adaptive Network Calibration, https://arxiv.org/abs/2211.15088
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from semmix.core.checks import check_positive
from semmix.core.errors import SemmixError
from semmix.methods._base import Batch, Forward, Method, margin_excess

MULTIPLIERS = (1e-6, 1e6)
PENALTIES = (1.0, 10.0)


@dataclass(kw_only=True, eq=False)
class ClassAdaptive(Method):
    """Cross-entropy plus the mean over images and classes of an augmented Lagrangian penalty.

    The constraint is h_ik = (max_j z_ij - z_ik - margin) / margin <= 0. Memory: a multiplier and a
    penalty strength for each class, updated after every epoch from the validation logits.
    """

    margin: float = 10.0
    """Free distance below the largest logit."""
    growth: float = 1.2
    """Factor of a class's penalty strength when its constraint did not improve."""
    improvement: float = 0.9
    """A constraint improved if it fell below this share of the last epoch's."""
    strength_epochs: int = 10
    """Epochs between updates of the penalty strengths."""

    def __post_init__(self):
        check_positive(margin=self.margin, strength_epochs=self.strength_epochs)

    def setup(self, train_labels: Tensor) -> None:
        values = (MULTIPLIERS[0], PENALTIES[0], torch.inf)
        filled = (torch.full((self.num_classes,), value, device=train_labels.device) for value in values)
        self.multiplier, self.strength, self.violation = filled
        self.epochs = train_labels.new_zeros(())

    def step(self, forward: Forward, batch: Batch) -> dict[str, Tensor]:
        logits = forward(batch.images)
        ce = F.cross_entropy(logits, batch.labels)
        h = margin_excess(logits, self.margin) / self.margin
        penalty = phr_penalty(h, self.multiplier, self.strength).mean()
        return {"loss": ce + penalty, "ce": ce, "penalty": penalty}

    def end_epoch(self, val_logits: Tensor | None, val_labels: Tensor | None) -> None:
        if val_logits is None:
            raise SemmixError("cals learns from validation", None, "keep a validation split")
        h = margin_excess(val_logits, self.margin) / self.margin
        self.multiplier.copy_(phr_slope(h, self.multiplier, self.strength).clamp(*MULTIPLIERS).mean(0))
        self.epochs += 1
        violation = h.mean(0)
        worse = violation > self.improvement * self.violation.relu()
        due = self.epochs % self.strength_epochs == 0
        grown = (self.growth * self.strength).clamp(*PENALTIES)
        self.strength.copy_(torch.where(worse & due, grown, self.strength))
        self.violation.copy_(violation)

    def state_dict(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in ("multiplier", "strength", "violation", "epochs")}


def phr_penalty(h: Tensor, multiplier: Tensor, strength: Tensor) -> Tensor:
    """Return (max(0, m + s h)^2 - m^2) / 2s: Powell, Hestenes and Rockafellar's penalty."""
    return (phr_slope(h, multiplier, strength).square() - multiplier.square()) / (2 * strength)


def phr_slope(h: Tensor, multiplier: Tensor, strength: Tensor) -> Tensor:
    """Return the penalty's derivative by h, which is the next multiplier."""
    return (multiplier + strength * h).relu()
