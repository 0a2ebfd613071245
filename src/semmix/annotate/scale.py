"""The scale s: how sure one may be of a class, given where an image lies on the line to it.

Both curves ask real images that nobody trained on, the validation split. The scale belongs to the
encoder: s = 4 is CLIP's.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from semmix.annotate.algebra import lambda_e, similarity, temperature

SCALES = tuple(np.geomspace(0.5, 64, 141).tolist())
"""Candidates for the scale: 5 % from step to step around the values anybody would use."""


def nearest_positions(features: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
    """Return each feature's nearest class and its lambda_E between the runner-up (0) and it (1).

    The runner-up is the class that comes closest to the nearest one on the line between the two;
    lambda_E is at least 1/2 against every class.
    """
    nearest, positions = [], []
    for chunk in features.double().split(256):  # bounds the memory of [chunk, K, D]
        own = torch.cdist(chunk, prototypes).argmin(1)
        others = torch.stack([torch.arange(len(prototypes))] * len(chunk))
        others = others[others != own[:, None]].view(len(chunk), -1)  # [chunk, K - 1]
        against = lambda_e(chunk[:, None], prototypes[own][:, None], prototypes[others])
        nearest.append(own)
        positions.append(against.min(1).values)
    return torch.cat(nearest), torch.cat(positions)


def scale_curve(features: Tensor, labels: Tensor, prototypes: Tensor) -> Tensor:
    """Return the mean negative log-likelihood of held-out real images at each of `SCALES`.

    lambda states how sure one may be of the class an image resembles most, given where it lies
    between that class and the runner-up. On real images nobody trained on, that can be checked: the
    best scale is the maximum-likelihood slope of P(the nearest class is right | lambda_E).
    """
    nearest, positions = nearest_positions(features, prototypes)
    right = torch.where(nearest == labels, 1.0, -1.0).double()
    losses = [F.softplus(-s * right * (positions - 0.5)).mean() for s in SCALES]
    return torch.stack(losses)


def softmax_curve(features: Tensor, labels: Tensor, prototypes: Tensor) -> Tensor:
    """Return the same for softmax_k(E·P_k / tau), eq. probability_ratio over all classes.

    The candidates are the temperatures that belong to `SCALES`.
    """
    products = similarity(features, prototypes)
    taus = [temperature(prototypes, s) for s in SCALES]
    return torch.stack([F.cross_entropy(products / tau, labels) for tau in taus])


def choose_scale(curve: Tensor) -> float:
    """Return the scale with the best likelihood; the smallest of equals."""
    return SCALES[int(curve.argmin())]
