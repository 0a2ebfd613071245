"""How good are generated images? Fréchet and kernel distance, copies, recognised classes.

A distance means something only together with the extractor of its features, the number of samples
and the reference it was measured against: `Score` keeps them together, and every printed line names
them. The Fréchet distance in features of the usual Inception network is what is called FID.

References: Heusel et al. 2017, https://arxiv.org/abs/1706.08500 (Fréchet distance);
Bińkowski et al. 2018, https://arxiv.org/abs/1801.01401 (kernel distance).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from semmix.core.errors import SemmixError, require
from semmix.data import Dataset
from semmix.diffusion import Generator
from semmix.diffusion.sampling import MixConfig, sample_classes
from semmix.networks import Classifier
from semmix.networks.encoders import Encoder
from semmix.networks.encoders.pretrained import embed_all, embed_split
from semmix.networks.predicting import predict_logits

MIN_SAMPLES = 2048  # a covariance of Inception's 2,048 features has full rank from here on
SUBSETS, SUBSET_SIZE = 100, 1000  # of the kernel distance, as published
NEIGHBOUR_QUERIES = 2048  # images whose nearest training image is sought
NEAR = 0.01  # share of held-out images that count as near a training image
CHUNK = 1024


class FeatureStatistics(NamedTuple):
    """What the Fréchet distance needs of a set of features."""

    num: int
    mean: Tensor  # float64 [D]
    covariance: Tensor  # float64 [D, D], divided by num - 1


def feature_statistics(batches: Iterable[Tensor]) -> FeatureStatistics:
    """Return the statistics of features [n, D] in batches, merged one by one by Chan, Golub and LeVeque's update."""
    num, mean, scatter = 0, torch.tensor(0.0), torch.tensor(0.0)
    for batch in batches:
        batch = batch.double()
        batch_mean = batch.mean(0)
        centred, shift = batch - batch_mean, batch_mean - mean
        total = num + len(batch)
        scatter = scatter + centred.T @ centred
        scatter = scatter + torch.outer(shift, shift) * (num * len(batch) / total)
        mean = mean + shift * (len(batch) / total)
        num = total
    require(num >= 2, "a covariance needs features", f"{num} rows", "pass at least 2")
    return FeatureStatistics(num, mean, scatter / (num - 1))


def frechet_distance(mean1: Tensor, cov1: Tensor, mean2: Tensor, cov2: Tensor) -> float:
    """Return |m1 - m2|² + tr(C1 + C2 - 2 (C1 C2)^½), the squared distance of two normals.

    The trace of the root is the sum of the roots of the eigenvalues of C1^½ C2 C1^½, which is
    symmetric: no root of a general matrix is needed, and covariances may be singular.

    >>> one, two = torch.eye(2), 4 * torch.eye(2)
    >>> round(frechet_distance(torch.zeros(2), one, torch.ones(2), two), 6)
    4.0
    """
    mean1, cov1, mean2, cov2 = (x.double() for x in (mean1, cov1, mean2, cov2))
    values, vectors = torch.linalg.eigh(cov1)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    root_trace = torch.linalg.eigvalsh(root @ cov2 @ root).clamp(min=0).sqrt().sum()
    distance = (mean1 - mean2).square().sum() + cov1.trace() + cov2.trace() - 2 * root_trace
    return max(0.0, float(distance))  # rounding can leave -1e-12


def kernel_distance(
    features1: Tensor, features2: Tensor, num_subsets: int = SUBSETS, subset_size: int = SUBSET_SIZE, seed: int = 0
) -> tuple[float, float]:
    """Return mean and standard deviation of the unbiased squared MMD, kernel (x·y / D + 1)³, over random subsets."""
    smaller = min(len(features1), len(features2))
    seen = f"subset_size={subset_size}, {smaller} features"
    require(2 <= subset_size <= smaller, "subsets do not fit the features", seen, f"use 2 to {smaller}")
    random = torch.Generator().manual_seed(seed)

    def subset(features: Tensor) -> Tensor:
        rows = torch.randperm(len(features), generator=random)[:subset_size]
        return features[rows.to(features.device)].double()

    distances = torch.stack([_squared_mmd(subset(features1), subset(features2)) for _ in range(num_subsets)])
    return float(distances.mean()), float(distances.std(correction=0))


def _squared_mmd(x: Tensor, y: Tensor) -> Tensor:
    """Return the unbiased squared MMD of equally many rows: pairs of a row with itself are out."""
    num, (of_x, of_y) = len(x), (cubic_kernel(z, z) for z in (x, y))
    within = (of_x.sum() - of_x.trace()) + (of_y.sum() - of_y.trace())
    return within / (num * (num - 1)) - 2 * cubic_kernel(x, y).mean()


def cubic_kernel(x: Tensor, y: Tensor) -> Tensor:
    """Return (x·y / D + 1)³ of all rows of `x` with all rows of `y`."""
    return (x @ y.T / x.shape[1] + 1) ** 3


def nearest_neighbours(queries: Tensor, pool: Tensor) -> tuple[Tensor, Tensor]:
    """Return each query's Euclidean distance to its nearest row of `pool`, and which row that is; both are [n, D]."""
    distances, rows = [], []
    for chunk in queries.split(CHUNK):
        nearest = _nearest_rows(chunk, pool)
        # the fast search cancels digits of small distances, so those found are measured anew
        distances.append(torch.linalg.vector_norm(chunk - pool[nearest], dim=1))
        rows.append(nearest)
    return torch.cat(distances), torch.cat(rows)


def _nearest_rows(queries: Tensor, pool: Tensor) -> Tensor:
    best, rows = queries.new_full((len(queries),), math.inf), None
    for start in range(0, len(pool), 8 * CHUNK):
        distance, row = torch.cdist(queries, pool[start : start + 8 * CHUNK]).min(1)
        rows = row if rows is None else torch.where(distance < best, row + start, rows)
        best = torch.minimum(best, distance)
    if rows is None:
        raise SemmixError("nothing to find neighbours in", "0 rows", "pass a larger pool")
    return rows


@dataclass(frozen=True)
class Copying:
    """Are samples nearer to training images than other real images are?"""

    samples: float  # median distance of a sample to its nearest training image
    held_out: float  # the same for real images that were not trained on
    near: float  # share of samples as near as the nearest 1 % of held-out images; copies make it large

    def line(self, space: str) -> str:
        """Return the numbers in words; `space` is that of the distances."""
        return (
            f"distance to the nearest training image in {space}: samples {self.samples:.4g}, held-out images "
            f"{self.held_out:.4g}; {self.near:.1%} of samples are as near as the nearest {NEAR:.0%} of held-out images"
        )


def measure_copying(samples: Tensor, held_out: Tensor, train: Tensor) -> Copying:
    """Return how near samples and held-out images come to training images, all [n, D]."""
    of_samples, of_held_out = (nearest_neighbours(_spread(x, NEIGHBOUR_QUERIES), train)[0] for x in (samples, held_out))
    near = (of_samples <= of_held_out.quantile(NEAR)).double().mean()
    # of an even number, torch's own median is the smaller of the middle two
    samples, held_out = (distances.quantile(0.5) for distances in (of_samples, of_held_out))
    return Copying(float(samples), float(held_out), float(near))


def recognition_rate(network: Classifier, images: Tensor, labels: Tensor) -> float:
    """Return how often a trained classifier sees an image's own class."""
    predicted = predict_logits(network, images, CHUNK).argmax(1).cpu()
    return float((predicted == labels).double().mean())


@dataclass(frozen=True, kw_only=True)
class Score:
    """Numbers about generated images, and all that is needed to compare them with others'."""

    generator: str  # name of the generator
    generator_digest: str  # names its weights
    sampler: MixConfig  # how the samples were drawn
    seed: int  # of their noise
    num_samples: int  # samples, equally many of each class
    extractor: str  # name of the encoder whose features are compared
    extractor_digest: str  # names its weights
    reference: str  # the data set and split compared with
    reference_digest: str  # names its images
    num_reference: int  # images in it
    frechet: float  # Fréchet distance
    kernel: float  # kernel distance, mean over subsets
    kernel_std: float  # its standard deviation over subsets
    feature_copying: Copying  # nearness to training images in the extractor's features
    pixel_copying: Copying  # nearness to training images in pixels between 0 and 1
    recognised: float | None = None  # share of samples that a classifier sees as their class
    recognised_real: float | None = None  # the same for held-out real images

    def lines(self) -> list[str]:
        """Return one line for each number, each complete in itself."""
        features = f"features of {self.extractor} {self.extractor_digest[:12]}"
        count = f"{self.num_samples} samples of {self.generator} {self.generator_digest[:12]}"
        against = f"against {self.num_reference} images of {self.reference}"
        given = f"{features}, {count} {against}"
        lines = [
            f"Fréchet distance {self.frechet:.4g} ({given})",
            f"kernel distance {self.kernel:.3g} ± {self.kernel_std:.2g} ({given})",
            f"{self.feature_copying.line('features')} ({features}, {count})",
            f"{self.pixel_copying.line('pixels')} ({count})",
        ]
        if self.recognised is not None:
            real = f"held-out real images {self.recognised_real:.1%}"
            lines.append(f"recognised as their class {self.recognised:.1%}, {real} ({count})")
        return lines


def score_generator(
    generator: Generator,
    data: Dataset,
    encoder: Encoder,
    *,
    num_samples: int = 50_000,
    sampler: MixConfig,
    reference: str = "train",
    classifier: Classifier | None = None,
    seed: int = 0,
    few: bool = False,
) -> Score:
    """Return the score of class samples drawn from `generator`.

    Args:
        generator: Trained on `data.train`.
        data: Real images; `val` stands for those the generator has not seen.
        encoder: Extractor of the features.
        num_samples: Rounded up to equally many of each class.
        sampler: How they are drawn.
        reference: Split of `data` whose features are compared.
        classifier: Trained on real images; measures how often class samples are recognised.
        seed: Of the samples' noise.
        few: Allow fewer than 2,048 images, whose distances say little.
    """
    split = data.splits[reference]
    _check_match(generator, data, classifier)
    num, fix = min(num_samples, len(split)), f"use {MIN_SAMPLES} or more samples and reference images, or say --few"
    require(num >= MIN_SAMPLES or few, "too few images for a distance that compares", num, fix)
    # Real images first: what cannot read them fails before the samples, which may take hours.
    train, val = (embed_split(encoder, x, "features") for x in (data.train, data.val))
    other = train if reference == "train" else embed_split(encoder, split, "features")
    recognised = partial(recognition_rate, classifier) if classifier is not None else lambda *_: None
    recognised_real = recognised(data.val.images, data.val.labels)
    per_class = math.ceil(num_samples / generator.num_classes)
    images = sample_classes(generator, per_class, sampler, seed).flatten(0, 1)
    labels = torch.arange(generator.num_classes).repeat_interleave(per_class)
    features = embed_all(encoder, images, "features of samples")
    subset_size = max(2, min(SUBSET_SIZE, min(len(features), len(other)) // 2))  # larger ones would be much alike
    one, two = (feature_statistics(x.split(CHUNK)) for x in (features, other))
    kernel, kernel_std = kernel_distance(features, other, subset_size=subset_size)
    pixels = (x.flatten(1).float() / 255 for x in (images, data.val.images, data.train.images))
    described: dict[str, Any] = {"generator": generator.name, "generator_digest": generator.digest, "seed": seed}
    described |= {"sampler": sampler.resolve(generator.device), "num_samples": len(images)}
    described |= {"extractor": encoder.name, "extractor_digest": encoder.digest, "num_reference": len(split)}
    described |= {"reference": f"{data.name} {reference}", "reference_digest": split.digest}
    described |= {"recognised": recognised(images, labels), "recognised_real": recognised_real}
    return Score(
        **described,
        frechet=frechet_distance(one.mean, one.covariance, two.mean, two.covariance),
        kernel=kernel,
        kernel_std=kernel_std,
        feature_copying=measure_copying(features, val, train),
        pixel_copying=measure_copying(*pixels),
    )


def _spread(rows: Tensor, num: int) -> Tensor:
    """Return at most `num` rows, evenly spread, so that every class has its share."""
    return rows[torch.linspace(0, len(rows) - 1, min(num, len(rows))).long()]


def _check_match(generator: Generator, data: Dataset, classifier: Classifier | None) -> None:
    seen = f"{generator.image_shape} and {generator.num_classes} classes in the generator, "
    seen += f"{data.image_shape} and {data.num_classes} in {data.name}"
    alike = (generator.image_shape, generator.num_classes) == (data.image_shape, data.num_classes)
    require(alike, "generator and data differ", seen, "score it on what it learned from")
    fix = "choose the data set and split it was trained with: copies are sought in that split"
    known = generator.trained_on in (None, data.train.digest)
    require(known, "the generator learned from another split", generator.trained_on, fix)
    if classifier is not None:
        seen = f"it knows {classifier.num_classes}, {data.name} has {data.num_classes}"
        same = classifier.num_classes == data.num_classes
        require(same, "the classifier has other classes", seen, "pass one trained on these classes")
