"""How good are the labels? What an annotation shows about its sets, its classes and its encoder."""

from typing import Any

import torch
from torch import Tensor

from semmix.annotation.algebra import SCALES, nearest_class, squared_distances
from semmix.annotation.annotation import Annotation

STILL_MONOTONE = 0.05
"""A set is monotone when lambda_E falls by no more than this in any step, and rises more in all."""
ABRUPT = 0.5
"""A set is abrupt when one step covers more than this share of its whole range of lambda_E."""


def diagnose(annotation: Annotation) -> dict[str, Any]:
    """Return statistics of an annotation as plain JSON values.

    Places count the members of a set from class j (first) to class i (last); the middle is all between. `odd_sets` are
    those with an end that does not look like its own class: another class's prototype is nearer. They are offered for
    exclusion.
    """
    flags, residual = _flags(annotation), annotation.lambda_e - annotation.lambda_e.mean(0)
    return {
        "annotation": annotation.digest,
        "num_sets": annotation.store.num_sets,
        "encoder": annotation.artifact.manifest["inputs"]["encoder"],
        "prototype_accuracy": annotation.artifact.manifest["prototype_accuracy"],
        **{f"{name}_share": _share(flags[name]) for name in ("monotone", "abrupt", "odd", "swapped")},
        "third_class_share": _share(flags["third_class"][:, 1:-1]),
        "rank_correlation": _rank_correlation(annotation.lambda_e),
        # How much of the variance around each place's mean is shared by a whole set.
        "offset_share": float(residual.mean(1).square().mean() / residual.square().mean().clamp(min=1e-30)),
        "bias": _bias(annotation),
        "scale": {
            "chosen": annotation.scale,
            "chosen_by": annotation.artifact.manifest["scale_chosen_by"],
            "softmax": annotation.scale_for("encoder_softmax"),
            "candidates": list(SCALES),
            "gap": annotation.tensors["scale_curve"].tolist(),
            "softmax_nll": annotation.tensors["softmax_curve"].tolist(),
        },
        "places": _places(annotation, flags),
        "pairs": _pairs(annotation, flags),
        "classes": _classes(annotation, flags),
        "odd_sets": flags["odd"].nonzero().flatten().tolist(),
    }


def _flags(annotation: Annotation) -> dict[str, Tensor]:
    """Return what is true of each set [S], and of each image [S, L] (`third_class`) or end."""
    lambda_e, pairs = annotation.lambda_e, annotation.store.pairs()
    steps = lambda_e.diff(dim=1)
    nearest = nearest_class(annotation.similarity, annotation.prototypes)  # [S, L]
    looks_right = nearest[:, [-1, 0]] == pairs  # [S, 2]
    spread = lambda_e.amax(1) - lambda_e.amin(1)
    return {
        "monotone": (steps >= -STILL_MONOTONE).all(1) & (steps.sum(1) > STILL_MONOTONE),
        "abrupt": (steps.abs() > ABRUPT * spread[:, None]).any(1),
        "odd": ~looks_right.all(1),
        "swapped": (lambda_e[:, -1] < 0.5) | (lambda_e[:, 0] > 0.5),
        "end_looks_right": looks_right,
        "third_class": (nearest[:, :, None] != pairs[:, None]).all(-1),
    }


def _rank_correlation(lambda_e: Tensor) -> float:
    """Return Spearman's correlation of requested lambda and lambda_E within a set, mean of sets."""
    # Signs of all differences sum to centred ranks, in which ties share a place.
    ranks = (lambda_e[:, :, None] - lambda_e[:, None]).sign().sum(-1).double()
    asked = torch.arange(lambda_e.shape[1], dtype=torch.float64)
    asked = asked - asked.mean()
    spread = (ranks.square().sum(1) * asked.square().sum()).sqrt()
    # A set that does not move at all has correlation 0.
    return float(((ranks * asked).sum(1) / spread.clamp(min=1)).mean())


def _bias(annotation: Annotation) -> dict[str, float]:
    """Return the biases that eq. lambda_rewrite removes, and how far that moves lambda."""
    norms, (i, j) = annotation.prototypes.norm(dim=1), annotation.store.pairs().unbind(1)
    of_pairs = squared_distances(annotation.prototypes).sqrt()[i, j]
    return {
        "largest_to_smallest_norm": float(norms.max() / norms.min()),
        "largest_to_smallest_distance": float(of_pairs.max() / of_pairs.min()),
        "mean_move": float((annotation.lam("biased") - annotation.lam()).abs().mean()),
    }


def _places(annotation: Annotation, flags: dict[str, Tensor]) -> list[dict[str, Any]]:
    requested, lambda_e, lam = annotation.store.lam_requested(), annotation.lambda_e, annotation.lam()
    return [
        {
            "requested": float(requested[:, place].mean()),
            "lambda_e": float(lambda_e[:, place].mean()),
            "lambda_e_sd": float(lambda_e[:, place].std(correction=0)),
            "lam": float(lam[:, place].mean()),
            "third_class": _share(flags["third_class"][:, place]),
        }
        for place in range(lambda_e.shape[1])
    ]


def _pairs(annotation: Annotation, flags: dict[str, Tensor]) -> list[dict[str, Any]]:
    pairs, lam = annotation.store.pairs(), annotation.lam()
    distances = squared_distances(annotation.prototypes).sqrt()
    sets = ((pair, (pairs == torch.tensor(pair)).all(1)) for pair in dict.fromkeys(annotation.store.plan.pairs))
    return [
        {
            "pair": list(pair),
            "num_sets": int(of_pair.sum()),
            "first": float(lam[of_pair, 0].mean()),
            "last": float(lam[of_pair, -1].mean()),
            "lambda_e_sd": float(annotation.lambda_e[of_pair].std(0, correction=0).mean()),
            "third_class": _share(flags["third_class"][of_pair, 1:-1]),
            "distance": float(distances[pair]),
            **{name: _share(flags[name][of_pair]) for name in ("monotone", "abrupt", "odd")},
        }
        for pair, of_pair in sets
        if of_pair.any()
    ]


def _classes(annotation: Annotation, flags: dict[str, Tensor]) -> list[dict[str, Any]]:
    distances = squared_distances(annotation.prototypes).sqrt().fill_diagonal_(torch.inf)
    pairs = annotation.store.pairs()
    return [
        {
            "norm": float(annotation.prototypes[c].norm()),
            "nearest": int(distances[c].argmin()),
            "distance": float(distances[c].min()),
            "ends_look_right": _share(flags["end_looks_right"][pairs == c]),
        }
        for c in range(len(distances))
    ]


def _share(flags: Tensor) -> float | None:
    """Return the share that is true; None of nothing."""
    return float(flags.double().mean()) if flags.numel() else None
