"""Agreement with people: predictions against the distribution of human labels, `[N, K]` each.

The cross-entropy is `nll(probs, human)`; the least it can be is the humans' own entropy, so the
Kullback-Leibler divergence is what the model could still gain.
"""

from typing import Any

import numpy as np

from semmix.calibration._inputs import Array, Rows, check_samples, prob_blocks
from semmix.calibration.metrics import entropies, log_losses
from semmix.core.errors import require


def kl_divergence(probs: Any, human: Any) -> float:
    """Return the mean KL(human || probs) in nats."""
    probs, human = _pair(probs, human)
    return float(np.mean(log_losses(probs, human) - entropies(human)))


def total_variation(probs: Any, human: Any) -> float:
    """Return the mean of half the sum of |p_k - q_k|, between 0 and 1."""
    probs, human = _pair(probs, human)
    distances = [np.abs(block - human[where]).sum(1) for where, block in prob_blocks(probs)]
    return float(np.concatenate(distances).mean() / 2)


def entropy_correlation(probs: Any, human: Any) -> float:
    """Return Spearman's correlation of entropies: is the model uncertain where people are?

    NaN when either entropy is constant.
    """
    from scipy.stats import rankdata

    probs, human = _pair(probs, human)
    # Rounded, so that the same votes for other classes tie as they should.
    model, people = (rankdata(entropies(rows).round(12)) for rows in (probs, human))
    spread = model.std() * people.std()
    if spread == 0:
        return float("nan")
    return float(np.mean((model - model.mean()) * (people - people.mean())) / spread)


def human_agreement(probs: Any, human: Any) -> dict[str, float]:
    """Return all measures of agreement by name."""
    rows, targets = _pair(probs, human)
    return {
        "cross_entropy": float(np.mean(log_losses(rows, targets))),
        "kl_divergence": kl_divergence(rows, targets),
        "total_variation": total_variation(rows, targets),
        "entropy_correlation": entropy_correlation(rows, targets),
    }


def _pair(probs: Any, human: Any) -> tuple[Rows, Array]:
    probs, human = check_samples(probs, human)
    fix = "pass one distribution over classes per sample, [N, K]"
    require(human.ndim != 1, "human labels must be distributions", f"shape {human.shape}", fix)
    return probs, human
