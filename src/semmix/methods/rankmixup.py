"""RankMixup: the more an image is mixed, the lower its confidence should be.

Noh et al., RankMixup: Ranking-Based Mixup Training for Network Calibration, https://arxiv.org/abs/2308.11990
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from semmix.core.checks import check_positive
from semmix.methods._base import Batch, Forward, Method, confidence, draw_beta, mix_batch, soft_labels


@dataclass(kw_only=True, eq=False)
class RankMixup(Method):
    """Cross-entropy on real images plus a ranking of confidences over their mixups."""

    ranking: Literal["mndcg", "mrl"] = "mndcg"
    """`mndcg` compares confidences with a mixup's purity; `mrl` asks for a margin of logits."""
    alpha: float = 2.0
    """lam is drawn from Beta(alpha, alpha), one per mixup of the batch: 2 for CIFAR, 1 for Tiny."""
    num_mixups: int = 3
    """Mixups of each image; published with 3 for mndcg and 1 for mrl."""
    weight: float = 0.1
    """Weight of the ranking term."""
    margin: float = 2.0
    """How far a mixup's largest logit should lie below the real image's (mrl only)."""
    protocol: Literal["paper", "code"] = "paper"
    """`code` does not leave out mixups within one class from mrl, though it means to."""

    def __post_init__(self):
        check_positive(alpha=self.alpha, num_mixups=self.num_mixups)

    def step(self, forward: Forward, batch: Batch) -> dict[str, Tensor]:
        logits = forward(batch.images)
        images, targets = [], []
        for lam in draw_beta(self.alpha, self.num_mixups, batch.images):
            mixed, partners = mix_batch(batch, lam)
            images.append(mixed)
            targets.append(soft_labels(batch.labels, partners, lam, logits))
        labels = torch.stack(targets)  # [Q, B, K]
        mixed_logits = forward(torch.cat(images)).view_as(labels)
        ce = F.cross_entropy(logits, batch.labels)
        purity = labels.amax(-1)  # [Q, B]
        if self.ranking == "mndcg":
            term = mndcg(confidence(logits), confidence(mixed_logits), purity)
        else:
            term = margin_ranking(logits, mixed_logits, purity, self.margin, self.protocol == "code")
        return {"loss": ce + self.weight * term, "ce": ce, "ranking": term}


def mndcg(conf: Tensor, mixed_conf: Tensor, purity: Tensor) -> Tensor:
    """Return the mean of 1 - min(DCG / IDCG, IDCG / DCG); the real image always ranks first."""
    purity, order = purity.sort(dim=0, descending=True, stable=True)
    gains = torch.cat([conf[None], mixed_conf.gather(0, order)])  # [1 + Q, B]
    ideal = torch.cat([torch.ones_like(conf)[None], purity])
    ranks = torch.arange(len(gains), device=conf.device, dtype=conf.dtype)
    discount = (ranks + 2).log2()[:, None]
    ratio = (gains / discount).sum(0) / (ideal / discount).sum(0)
    return (1 - torch.minimum(ratio, 1 / ratio)).mean()


def margin_ranking(logits: Tensor, mixed_logits: Tensor, purity: Tensor, margin: float, broadcast: bool) -> Tensor:
    """Return the mean of max(0, max z_mixed - max z_real + margin) over truly mixed images.

    `broadcast` multiplies every image's term with every image's mask, as the published code does.
    """
    excess = (mixed_logits.amax(-1) - logits.amax(-1) + margin).relu()  # [Q, B]
    mixed = (purity < 1 - 1e-6).to(excess.dtype)  # lam + (1 - lam) may round below 1
    return mixed.mean() * excess.mean() if broadcast else (mixed * excess).mean()
