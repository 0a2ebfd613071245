"""Labels that look wrong, and whether images may be mirrored: asked of a quick model.

The quick model compares small copies of the images with patches cut from them at random and reads
the classes off by least squares (Coates et al. 2011: random patches, two-sided rectifiers, sums
over the image's four quarters). It is trained five times, each time without a fifth of the images
(copies of an image always together), and asked about that fifth: no image is judged by a model
that has seen it. A label is suspected as in confident learning (Northcutt et al. 2021,
https://arxiv.org/abs/1911.00068): another class is at least as likely as it is for its own images,
and the given one is very unlikely.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from semmix.calibration import TemperatureScaler
from semmix.core.seeds import fold_seed
from semmix.data import Split

NUM_FOLDS = 5
SIDE = 16
PATCH = 4
NUM_PATCHES = 128
RIDGES = (1e-3, 1e-2, 1e-1, 1.0)
MAX_IMAGES = 20_000
"""More images are not all looked at; the finding says so."""
UNLIKELY, OF_CHANCE = 0.02, 0.2
"""A label is very unlikely below the first, and below this part of what guessing would give it:
with a hundred classes 0.02 is twice that."""
MIRRORED_ACCURACY = 0.85
"""Images may be mirrored if the quick model is nearly as often right on mirrored ones."""
SURE_ERRORS = 5
"""Or if the difference is within so many standard errors: few images must not forbid it."""
CHUNK = 2048


@dataclass(frozen=True)
class Suspect:
    """An image whose label looks wrong."""

    row: int
    label: int
    looks_like: int
    probability: float


@dataclass(frozen=True)
class SecondOpinion:
    """What the quick model says of a data set."""

    num_images: int
    """Images it was asked about."""
    accuracy: float
    """How often it is right on images it has not seen."""
    mirrored_accuracy: float
    """The same on mirrored images."""
    suspects: list[Suspect]
    """The most suspicious first."""

    @property
    def may_mirror(self) -> bool:
        """Whether a mirrored image still shows its class, as far as so few images can tell."""
        p, q = self.accuracy, self.mirrored_accuracy
        chance = SURE_ERRORS * math.sqrt((p * (1 - p) + q * (1 - q)) / self.num_images)
        return q >= MIRRORED_ACCURACY * p or p - q <= chance


def second_opinion(split: Split, groups: Tensor, num_classes: int) -> SecondOpinion:
    """Return what the quick model says; `groups` int64 [N] holds copies of an image together."""
    rows = torch.arange(len(split))
    if len(split) > MAX_IMAGES:
        draw = torch.Generator().manual_seed(fold_seed("second opinion"))
        rows = torch.randperm(len(split), generator=draw)[:MAX_IMAGES].sort().values
    images, labels = split.images[rows], split.labels[rows]
    folds = torch.tensor([fold_seed("fold", group) % NUM_FOLDS for group in groups[rows].tolist()])  # shared by copies
    patches = _patches(images)
    inputs, turned = features(images, patches), features(images.flip(3), patches)
    mean, std = inputs.mean(0), inputs.std(0).clamp(min=1e-6)
    inputs, turned = (F.pad((x - mean) / std, (0, 1), value=1.0) for x in (inputs, turned))
    scores, mirrored = cross_validated_scores(inputs, turned, labels, folds, num_classes)
    probs = torch.from_numpy(TemperatureScaler().fit(scores.numpy(), labels.numpy()).transform(scores.numpy()))
    return SecondOpinion(
        num_images=len(rows),
        accuracy=_accuracy(scores, labels),
        mirrored_accuracy=_accuracy(mirrored, labels),
        suspects=[replace(s, row=int(rows[s.row])) for s in suspected(probs, labels)],
    )


def suspected(probs: Tensor, labels: Tensor) -> list[Suspect]:
    """Return which labels (int64 [N]) look wrong by probabilities [N, K] of unseen images, most suspicious first."""
    num_classes = probs.shape[1]
    own = probs.gather(1, labels[:, None]).squeeze(1)
    sums = torch.zeros(num_classes, dtype=probs.dtype).index_add_(0, labels, own)
    usual = sums / torch.bincount(labels, minlength=num_classes).clamp(min=1)  # [K]
    beyond = torch.where(probs >= usual.clamp(min=1 / num_classes), probs, 0.0)
    best, other = beyond.max(1)
    is_unlikely = own < min(UNLIKELY, OF_CHANCE / num_classes)
    rows = ((best > 0) & (other != labels) & is_unlikely).nonzero().squeeze(1)
    rows = rows[torch.argsort(own[rows] - best[rows], stable=True)]
    return [Suspect(int(n), int(labels[n]), int(other[n]), float(best[n])) for n in rows]


def features(images: Tensor, patches: Tensor) -> Tensor:
    """Return how much each quarter of an image looks like each patch, [N, 8 * patches]."""
    found = []
    for chunk in images.split(CHUNK):
        likeness = F.conv2d(_small(chunk), patches)
        both = torch.cat([F.relu(likeness), F.relu(-likeness)], 1)
        found.append(F.adaptive_avg_pool2d(both, 2).flatten(1))
    return torch.cat(found)


def cross_validated_scores(
    inputs: Tensor, mirrored: Tensor, labels: Tensor, folds: Tensor, num_classes: int
) -> tuple[Tensor, Tensor]:
    """Return scores [N, K] of images and of mirrored ones, each by a model that lacks the image.

    The models are least squares with a ridge: the one of several that makes them most often right on such images.
    """
    targets = F.one_hot(labels, num_classes).float()
    shape = (len(RIDGES), len(labels), num_classes)
    scores, turned = torch.zeros(shape), torch.zeros(shape)
    for fold in folds.unique():
        out = folds == fold
        for k, weights in enumerate(_ridge_weights(inputs[~out], targets[~out])):
            scores[k, out], turned[k, out] = inputs[out] @ weights, mirrored[out] @ weights
    best = int(np.argmax([_accuracy(s, labels) for s in scores]))
    return scores[best], turned[best]


def _ridge_weights(x: Tensor, y: Tensor) -> list[Tensor]:
    """Return the weights [D, K] of least squares from x [N, D] to y [N, K] for each ridge."""
    if len(x) == 0:  # all images are copies of each other: nothing speaks for any class
        return [x.new_zeros(x.shape[1], y.shape[1]) for _ in RIDGES]
    if len(x) < x.shape[1]:  # the same weights, from the smaller system of equations
        gram, eye = x @ x.T / len(x), torch.eye(len(x))
        return [x.T @ torch.linalg.solve(gram + r * eye, y) / len(x) for r in RIDGES]
    gram, cross, eye = x.T @ x / len(x), x.T @ y / len(x), torch.eye(x.shape[1])
    return [torch.linalg.solve(gram + r * eye, cross) for r in RIDGES]


def _small(images: Tensor) -> Tensor:
    """Return small float copies, each with mean 0 and contrast 1."""
    small = F.adaptive_avg_pool2d(images.float(), SIDE)
    mean, std = small.mean((1, 2, 3), keepdim=True), small.std((1, 2, 3), keepdim=True)
    return (small - mean) / (std + 1)


def _patches(images: Tensor) -> Tensor:
    """Return random patches of the images, whitened, [NUM_PATCHES, C, PATCH, PATCH]."""
    draw = torch.Generator().manual_seed(fold_seed("patches"))
    chosen = torch.randint(len(images), (20 * NUM_PATCHES,), generator=draw)
    windows = F.unfold(_small(images[chosen]), PATCH)  # [n, C * PATCH^2, places]
    place = torch.randint(windows.shape[2], (len(chosen), 1, 1), generator=draw)
    flat = windows.gather(2, place.expand(-1, windows.shape[1], 1)).squeeze(2)
    flat = flat - flat.mean(0)
    values, vectors = torch.linalg.eigh(flat.T @ flat / len(flat))
    whiten = vectors @ torch.diag((values + 0.05).rsqrt()) @ vectors.T
    picked = F.normalize(flat[:NUM_PATCHES] @ whiten, dim=1) @ whiten
    return picked.reshape(NUM_PATCHES, images.shape[1], PATCH, PATCH)


def _accuracy(scores: Tensor, labels: Tensor) -> float:
    return float((scores.argmax(1) == labels).double().mean())
