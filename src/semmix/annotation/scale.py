"""The scale s: how far a label is from one half, given where an image lies on the line between its classes.

Both curves ask real images that nobody trained on, the validation split. The scale belongs to the encoder: s = 4 is
CLIP's, which is reported to recognise 88 % of CIFAR-10 or more; it gives an end at lambda_E = 1 the label
sigmoid(4 / 2) = 0.88.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from semmix.annotation.algebra import similarity, temperature

SCALES = tuple(np.geomspace(0.5, 64, 141).tolist())
"""Candidates for the scale: 3.5 % from step to step around the values anybody would use."""
LEAST_CONFIDENT = 0.6
"""About the label that the smallest of `SCALES` gives to an end at lambda_E = 1 (sigmoid(0.5 / 2) = 0.56)."""
POOR = 0.85
"""Pure ends recognised less often than this share of the accuracy on real images hardly show their classes."""


def scale_curve(lambda_e: Tensor, accuracy: float) -> Tensor:
    """Return how far the labels of pure ends are from being right on average, at each of `SCALES`.

    A pure end (first or last member of a set) stands for a real image of its class. Of such images, if nobody trained
    on them, the share `accuracy` is recognised: so the average label of an end should give this probability to its own
    class. Too large a scale teaches over-confidence, too small a one under-confidence.

    Args:
        lambda_e: Positions [sets, members], members in rising order of requested lambda.
        accuracy: How often the nearest prototype is right on real validation images.
    """
    own = torch.cat([lambda_e[:, -1], 1 - lambda_e[:, 0]])
    means = torch.stack([torch.sigmoid(s * (own - 0.5)).mean() for s in SCALES])
    return (means - accuracy).abs()


def scale_warning(scale: float, accuracy: float) -> str | None:
    """Return a warning about a chosen scale that is the first or the last of `SCALES`."""
    if scale not in (SCALES[0], SCALES[-1]):
        return None
    why = (
        f"at no scale are labels of pure ends as confident as the encoder is accurate on real images ({accuracy:.0%}): "
        "the ends hardly show their classes, and a generator that is trained longer may do better"
    )
    if accuracy < LEAST_CONFIDENT:
        why = (
            f"real images are recognised so rarely ({accuracy:.0%}) that no label between two classes has so little "
            "confidence: a better encoder may do better"
        )
    return f"s = {scale:g} is the last of the scales tried: {why} (or give a scale)"


def ends_warning(recognised: float, accuracy: float) -> str | None:
    """Return a warning about pure ends that are recognised much less often than real images."""
    if recognised >= POOR * accuracy:
        return None
    return (
        f"pure ends of sets are recognised on {recognised:.0%}, real images on {accuracy:.0%}: ends hardly show "
        "their classes, so a classifier may learn nothing good from these sets; a generator that is trained longer "
        "may do better"
    )


def softmax_curve(features: Tensor, labels: Tensor, prototypes: Tensor) -> Tensor:
    """Return the validation NLL of softmax_k(E·P_k / tau), eq. probability_ratio over all classes.

    The candidates are the temperatures that belong to `SCALES`.
    """
    products = similarity(features, prototypes)
    return torch.stack([F.cross_entropy(products / temperature(prototypes, s), labels) for s in SCALES])


def choose_scale(curve: Tensor) -> float:
    """Return the scale at the lowest point of a curve; the smallest of equals."""
    return SCALES[int(curve.argmin())]
