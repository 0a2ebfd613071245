"""From features and prototypes to labels: the paper's equations; and the scale s, chosen on validation images.

The scale says how far a label is from one half, given where an image lies on the line between its classes. It belongs
to the encoder: s = 4 is CLIP's, which is reported to recognise 88 % of CIFAR-10 or more; it gives an end at
lambda_E = 1 the label sigmoid(4 / 2) = 0.88.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from semmix.core.errors import require

SCALES = tuple(np.geomspace(0.5, 64, 141).tolist())
"""Candidates for the scale: 3.5 % from step to step around the values anybody would use."""
LEAST_CONFIDENT = 0.6
"""About the label that the smallest of `SCALES` gives to an end at lambda_E = 1 (sigmoid(0.5 / 2) = 0.56)."""
POOR = 0.85
"""Pure ends recognised less often than this share of the accuracy on real images hardly show their classes."""


def lambda_e(features, proto_i, proto_j) -> Tensor:
    """Return lambda_E: the position of features on the line from prototype j (0) to prototype i (1), float64 [...].

    This is (E - P_j)·(P_i - P_j) / |P_i - P_j|², eq. lambda_E of the paper.

    Args:
        features: Features E of images, [..., D]; lists, arrays and tensors are accepted, leading shapes broadcast.
        proto_i: Prototypes P_i, [..., D].
        proto_j: Prototypes P_j, [..., D].

    Raises:
        SemmixError: If two prototypes are equal: there is no line between them.

    Example:
        >>> lambda_e([0.25, 7.0], [1.0, 0.0], [0.0, 0.0]).item()
        0.25
    """
    features, proto_i, proto_j = (torch.as_tensor(x, dtype=torch.float64) for x in (features, proto_i, proto_j))
    line = proto_i - proto_j
    length = (line * line).sum(-1)
    fix = "the encoder does not tell the two classes apart; choose another encoder"
    require(bool((length != 0).all()), "two prototypes coincide", "distance 0", fix)
    return ((features - proto_j) * line).sum(-1) / length


def lambda_from(lambda_e, scale: float) -> Tensor:
    """Return the labels lambda = sigmoid(scale (lambda_E - 1/2)), eq. lambda_rewrite of the paper.

    Args:
        lambda_e: Positions from `lambda_e`, of any shape.
        scale: The scale s, positive; 4.0 for CLIP ViT-B/32.

    Raises:
        SemmixError: If the scale is not positive and finite.

    Example:
        >>> round(lambda_from(1.0, scale=4.0).item(), 3)
        0.881
    """
    check_scale(scale)
    return torch.sigmoid(scale * (torch.as_tensor(lambda_e) - 0.5))


def sharpness(lams: Tensor) -> float:
    """Return the mean of max(lam, 1 - lam) over sets [S, L]; ends and interior weigh alike, as N_aug = 2 draws them.

    >>> round(sharpness(torch.tensor([[0.0, 0.4, 1.0]])), 3)
    0.8
    """
    larger = torch.maximum(lams, 1 - lams).double()
    ends, interior = larger[:, [0, -1]], larger[:, 1:-1]
    return float((ends.mean() + interior.mean()) / 2 if interior.numel() else ends.mean())


def scale_as_sharp(positions: Tensor, wanted: float) -> float:
    """Return the scale at which sigmoid(scale (positions - 1/2)) has the sharpness `wanted`, by bisection."""
    low, high = 1e-6, 1e6
    for _ in range(100):
        middle = (low * high) ** 0.5
        too_soft = sharpness(lambda_from(positions, middle)) < wanted
        low, high = (middle, high) if too_soft else (low, middle)
    return high


def check_scale(scale: float) -> None:
    """Refuse a scale that is not positive, or no number."""
    require(0 < scale < math.inf, "the scale must be positive and finite", scale, "the paper uses 4.0 with CLIP")


def class_prototypes(features: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return the mean feature of each class, float64 [K, D]."""
    counts = count_classes(labels, num_classes)
    total = torch.zeros(num_classes, features.shape[1], dtype=torch.float64)
    return total.index_add_(0, labels, features.double()) / counts[:, None]


def count_classes(labels: Tensor, num_classes: int) -> Tensor:
    """Return how many images each class has, int64 [K]; refuse classes without any."""
    counts = torch.bincount(labels, minlength=num_classes)
    empty = (counts == 0).nonzero().flatten().tolist()
    fix = "each class of the mixed sets needs an image: name the data set they were made for"
    require(not empty, "classes without training images", empty, fix)
    return counts


def similarity(features: Tensor, prototypes: Tensor) -> Tensor:
    """Return E·P_k of every class, float64 [..., K]."""
    return features.double() @ prototypes.T


def squared_distances(prototypes: Tensor) -> Tensor:
    """Return |P_a - P_b|² of every two classes, [K, K]."""
    return torch.cdist(prototypes, prototypes).square()


def temperature(prototypes: Tensor, scale: float) -> float:
    """Return tau at which the slope |P_i - P_j|² / tau of eq. lambda_expressed is on average s (lambda_rewrite)."""
    check_scale(scale)
    num_classes = len(prototypes)
    mean = squared_distances(prototypes).sum() / (num_classes * (num_classes - 1))
    return float(mean) / scale


def nearest_class(similarity: Tensor, prototypes: Tensor) -> Tensor:
    """Return the class whose prototype is nearest, from E·P_k [..., K]."""
    # |E - P_k|² = |E|² - 2 (E·P_k - |P_k|² / 2)
    return (similarity.double() - prototypes.square().sum(1) / 2).argmax(-1)


def positions_against(similarity: Tensor, prototypes: Tensor, of: Tensor) -> Tensor:
    """Return lambda_E of every class k (1) against class `of` (0), float64 [..., K]; that of `of` has no meaning."""
    similarity, products = similarity.double(), prototypes @ prototypes.T
    own = similarity.gather(-1, of[..., None])
    from_own = products.diagonal()[of][..., None] - products[of]  # |P_m|² - P_m·P_k
    return (similarity - own + from_own) / squared_distances(prototypes)[of]


def biased_lambda(lambda_e: Tensor, proto_i: Tensor, proto_j: Tensor, tau: float) -> Tensor:
    """Return eq. lambda_expressed: biased by class norms and distances, as sigmoid((E·P_i - E·P_j) / tau) is."""
    distance = (proto_i - proto_j).square().sum(-1)
    norms = proto_i.square().sum(-1) - proto_j.square().sum(-1)
    return torch.sigmoid((distance * (lambda_e - 0.5) + norms / 2) / tau)


def add_third_class(labels: Tensor, similarity: Tensor, prototypes: Tensor, pairs: Tensor, scale: float) -> Tensor:
    """Return two-class labels [S, L, K] with the class an image shows besides its pair [S, 2].

    The ratio of the pair stays. By eq. lambda_rewrite class k has the ratio q_k / q_i = exp(scale (lambda_E - 1/2)) to
    class i, lambda_E running from i (0) to k (1), and likewise to class j. log q_k is the mean of what the two say,
    weighted by lambda and 1 - lambda; the class with the largest q_k joins, and labels are scaled to sum to one.
    """
    log_weight = torch.zeros_like(similarity, dtype=torch.float64)
    for c in pairs[:, :, None].expand(-1, -1, labels.shape[1]).unbind(1):  # [S, L]
        share = labels.double().gather(-1, c[..., None])
        ratio = scale * (positions_against(similarity, prototypes, c) - 0.5)
        log_weight += torch.xlogy(share, share) + share * ratio
    of_pair = pairs[:, None].expand(*labels.shape[:2], 2)
    strongest, third = log_weight.scatter(-1, of_pair, -torch.inf).max(-1, keepdim=True)
    shift = strongest.clamp(min=0)  # so that the largest weight cannot overflow
    joined = labels.double() * (-shift).exp()
    joined = joined.scatter_add(-1, third, (strongest - shift).exp())
    return (joined / joined.sum(-1, keepdim=True)).to(labels.dtype)


def scale_curve(lambda_e: Tensor, accuracy: float) -> Tensor:
    """Return how far the labels of pure ends [sets, first and last] are from right on average, at each of `SCALES`.

    A pure end (first or last member of a set) stands for a real image of its class. Of such images, if nobody trained
    on them, the share `accuracy` is recognised: so the average label of an end should give this probability to its own
    class. Too large a scale teaches over-confidence, too small a one under-confidence.
    """
    own = torch.cat([lambda_e[:, -1], 1 - lambda_e[:, 0]])
    means = torch.stack([torch.sigmoid(s * (own - 0.5)).mean() for s in SCALES])
    return (means - accuracy).abs()


def scale_warning(scale: float, accuracy: float) -> str | None:
    """Return a warning about a chosen scale that is the first or the last of `SCALES`."""
    if scale not in (SCALES[0], SCALES[-1]):
        return None
    seen = "at no scale are labels of pure ends as confident as the encoder is accurate on real images"
    seen += f" ({accuracy:.0%})"
    why = "the ends hardly show their classes, and a generator that is trained longer may do better"
    if accuracy < LEAST_CONFIDENT:
        seen = f"real images are recognised so rarely ({accuracy:.0%}) that no label between two classes has so little"
        seen, why = f"{seen} confidence", "a better encoder may do better"
    return f"s = {scale:g} is the last of the scales tried: {seen}: {why} (or give a scale)"


def ends_warning(recognised: float, accuracy: float) -> str | None:
    """Return a warning about pure ends that are recognised much less often than real images."""
    if recognised >= POOR * accuracy:
        return None
    seen = f"pure ends of sets are recognised on {recognised:.0%}, real images on {accuracy:.0%}"
    why = "ends hardly show their classes, so a classifier may learn nothing good from these sets"
    return f"{seen}: {why}; a generator that is trained longer may do better"


def softmax_curve(features: Tensor, labels: Tensor, prototypes: Tensor) -> Tensor:
    """Return the validation NLL of softmax_k(E·P_k / tau), eq. probability_ratio, at the temperatures of `SCALES`."""
    products = similarity(features, prototypes)
    return torch.stack([F.cross_entropy(products / temperature(prototypes, s), labels) for s in SCALES])


def choose_scale(curve: Tensor) -> float:
    """Return the scale at the lowest point of a curve; the smallest of equals."""
    return SCALES[int(curve.argmin())]
