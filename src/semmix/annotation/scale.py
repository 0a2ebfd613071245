"""The scale s: how sure one may be of a class, given where an image lies on the line to it.

Both curves ask real images that nobody trained on, the validation split. The scale belongs to the
encoder: s = 4 is CLIP's, which is reported to recognise 88 % of CIFAR-10 or more; it gives an end
at lambda_E = 1 the label sigmoid(4 / 2) = 0.88.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from semmix.annotation.algebra import similarity, temperature

SCALES = tuple(np.geomspace(0.5, 64, 141).tolist())
"""Candidates for the scale: 3.5 % from step to step around the values anybody would use."""
UNSURE = 0.6
"""About how sure the softest of them leaves a clear end of its class."""
POOR = 0.85
"""Ends that are recognised so much more rarely than real images hardly show their classes."""


def scale_curve(lambda_e: Tensor, accuracy: float) -> Tensor:
    """Return how far the labels of pure ends are from being right on average, at each of `SCALES`.

    A pure end (first or last member of a set) stands for a real image of its class. Of such images
    nobody trained on, the share `accuracy` is recognised: so sure, on average, should the label of
    an end be of its own class. Too sharp a scale teaches over-confidence, too soft a one the
    opposite.

    Args:
        lambda_e: Positions [sets, members], members in rising order of requested lambda.
        accuracy: How often the nearest prototype is right on real validation images.
    """
    own = torch.cat([lambda_e[:, -1], 1 - lambda_e[:, 0]])
    means = torch.stack([torch.sigmoid(s * (own - 0.5)).mean() for s in SCALES])
    return (means - accuracy).abs()


def doubt(scale: float, accuracy: float) -> str | None:
    """Return what to tell a person about a chosen scale that lies at an end of `SCALES`."""
    if scale not in (SCALES[0], SCALES[-1]):
        return None
    if accuracy < UNSURE:
        why = (
            f"real images are recognised so rarely ({accuracy:.0%}) that labels between two "
            "classes cannot be as unsure: a better encoder may do better"
        )
    else:
        why = (
            "no scale makes the pure ends of sets as sure of their classes as real images are "
            f"recognised ({accuracy:.0%}): they hardly show them, and a generator that is trained "
            "longer may do better"
        )
    return f"s = {scale:g} is the last of the scales tried: {why} (or give a scale)"


def doubt_ends(recognised: float, accuracy: float) -> str | None:
    """Return what to tell a person of pure ends recognised so rarely, real images so often."""
    if recognised >= POOR * accuracy:
        return None
    return (
        f"pure ends of sets are recognised on {recognised:.0%}, real images on {accuracy:.0%}: "
        "ends hardly show their classes, so a classifier may learn nothing good from these sets; "
        "a generator that is trained longer may do better"
    )


def softmax_curve(features: Tensor, labels: Tensor, prototypes: Tensor) -> Tensor:
    """Return the validation NLL of softmax_k(E·P_k / tau), eq. probability_ratio over all classes.

    The candidates are the temperatures that belong to `SCALES`.
    """
    products = similarity(features, prototypes)
    taus = [temperature(prototypes, s) for s in SCALES]
    return torch.stack([F.cross_entropy(products / tau, labels) for tau in taus])


def choose_scale(curve: Tensor) -> float:
    """Return the scale at the lowest point of a curve; the smallest of equals."""
    return SCALES[int(curve.argmin())]
