"""Out-of-distribution detection: scores, and how well they separate.

The higher the score, the further a sample looks from the training data. All measures of separation
depend on the order of the scores alone, and share ties evenly.
"""

from typing import Any, Literal

import numpy as np

from semmix.calibration._inputs import Array, as_logits, as_vector
from semmix.core.errors import require, unknown_name

Score = Literal["entropy", "max-prob", "max-logit", "energy"]


def ood_score(logits: Any, by: Score = "entropy") -> Array:
    """Return the out-of-distribution score of each sample, `[N]`.

    Args:
        logits: `[N, K]`. For a model that gives only probabilities pass their logarithm; then
            `entropy` and `max-prob` keep their meaning.
        by: entropy of the softmax; `max-prob`, 1 less the largest probability; `max-logit`, the
            largest logit negated; `energy`, -log sum exp of the logits (Liu et al. 2020).
    """
    if by not in _SCORES:
        raise unknown_name("score", by, _SCORES)
    return _SCORES[by](as_logits(logits))


def ood_auroc(in_scores: Any, out_scores: Any) -> float:
    """Return the chance that an out-of-distribution sample scores higher; ties count one half.

    Args:
        in_scores: Scores of samples of the known classes, as `ood_score` gives them, `[N]`.
        out_scores: Scores of other samples `[M]`.

    Returns:
        A share: 1 where every other sample scores higher, 0.5 for scores that tell nothing.

    Raises:
        SemmixError: If scores are empty, not finite, or no vectors.

    Example:
        >>> round(ood_auroc([0.1, 0.2, 0.3], [0.3, 0.8]), 4)
        0.9167
    """
    inside, outside = _scores(in_scores, out_scores)
    inside = np.sort(inside)
    lower = np.searchsorted(inside, outside, "left")
    not_higher = np.searchsorted(inside, outside, "right")
    return float((lower + not_higher).sum() / (2 * len(inside) * len(outside)))


def ood_aupr(in_scores: Any, out_scores: Any, positive: Literal["out", "in"] = "out") -> float:
    """Return the average precision of finding the `positive` samples; its base rate is chance."""
    if positive not in ("out", "in"):
        raise unknown_name("positive", positive, ["out", "in"])
    inside, outside = _scores(in_scores, out_scores)
    hits, others = (outside, inside) if positive == "out" else (-inside, -outside)
    scores = np.concatenate([hits, others])
    is_hit = np.arange(len(scores)) < len(hits)
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    found = np.cumsum(is_hit[order])[ends]
    return float(np.dot(np.diff(found, prepend=0), found / (ends + 1)) / len(hits))


def ood_fpr(in_scores: Any, out_scores: Any, recall: float = 0.95) -> float:
    """Return the share of out-of-distribution samples accepted where `recall` of the others must be.

    With the default this is the "FPR95" of Hendrycks and Gimpel 2017 and of ODIN.
    """
    require(0 <= recall <= 1, "recall must lie between 0 and 1", recall, "0.95 is usual")
    inside, outside = _scores(in_scores, out_scores)
    threshold = np.quantile(inside, recall, method="inverted_cdf")
    return float((outside <= threshold).mean())


def _scores(in_scores: Any, out_scores: Any) -> tuple[Array, Array]:
    return as_vector(in_scores, "in_scores"), as_vector(out_scores, "out_scores")


def _behind(logits: Array) -> tuple[Array, Array]:
    """Return how far each logit is behind its row's largest, and exp of it, 0 for that one.

    Sums without the largest keep their digits where it outweighs the others by far.
    """
    behind = logits - logits.max(1, keepdims=True)
    others = np.exp(behind)
    others[np.arange(len(others)), logits.argmax(1)] = 0
    return behind, others


def _entropy(logits: Array) -> Array:
    behind, others = _behind(logits)
    rest = others.sum(1)
    return np.log1p(rest) - np.einsum("nk,nk->n", others, behind) / (1 + rest)


def _rest(logits: Array) -> Array:
    rest = _behind(logits)[1].sum(1)
    return rest / (1 + rest)


_SCORES = {
    "entropy": _entropy,
    "max-prob": _rest,
    "max-logit": lambda logits: -logits.max(1),
    "energy": lambda logits: -np.logaddexp.reduce(logits, axis=1),
}
