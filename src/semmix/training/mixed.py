"""From a store of mixed sets and its annotation to what the classifier loop draws from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from semmix._errors import SemmixError
from semmix._files import digest, read_json
from semmix.annotate import Annotation, check_fits
from semmix.mixsets import MixSets
from semmix.training.batches import MixedImages


@dataclass(frozen=True)
class MixedSource:
    """Soft-labelled sets and where they come from."""

    images: MixedImages
    trained_on: str | None
    """Digest of the split the generator learned from."""
    inputs: dict[str, Any]
    """What a run's manifest records about them."""
    num_excluded: int = 0
    """Sets that a diagnosis left out."""

    def check_fits(self, image_shape: tuple[int, ...], num_classes: int) -> None:
        """Refuse to train on images of another shape or number of classes."""
        own_shape, own_classes = self.images.images.shape[2:], self.images.soft_labels.shape[-1]
        check_fits(tuple(own_shape), own_classes, image_shape, num_classes)


def load_mixed(
    mixsets: str | Path,
    annotation: str | Path | None,
    labels: str = "reannotated",
    scale: float | None = None,
    exclude: str | Path | None = None,
) -> MixedSource:
    """Return the sets with soft labels by scheme `labels`; `scale` overrides the annotation's s.

    `exclude` names a diagnosis.json whose odd sets are left out.
    """
    store = MixSets.open(mixsets)
    notes = Annotation.open(annotation, store) if annotation else None
    if notes is None and labels != "requested":
        fix = "run semmix annotate and pass its folder, or train with --labels requested"
        raise SemmixError(f"labels {labels!r} need an annotation", annotation, fix)
    if notes is None:
        soft_labels = store.soft_labels(store.lam_requested())
    else:
        soft_labels = notes.soft_labels(labels, scale)
    excluded = _odd_sets(exclude, notes) if exclude else []
    kept = torch.ones(store.num_sets, dtype=torch.bool)
    kept[excluded] = False
    images = MixedImages.build(store.read_all()[kept], soft_labels[kept], store.pairs()[kept])
    inputs = {
        "mixsets": store.digest,
        "annotation": notes.digest if notes else None,
        "labels": labels,
        "scale": notes.scale_for(labels, scale) if notes else None,
    }
    if excluded:
        inputs["excluded"] = digest(excluded)
    return MixedSource(images, store.generator["trained_on"], inputs, len(excluded))


def _odd_sets(diagnosis: str | Path, notes: Annotation | None) -> list[int]:
    """Return the sets that a diagnosis of this annotation offers for exclusion."""
    content = read_json(Path(diagnosis))
    if notes is None or content.get("annotation") != notes.digest:
        fix = "run semmix annotate --report for this annotation and name its diagnosis.json"
        raise SemmixError("this diagnosis is not one of the annotation in use", diagnosis, fix)
    return content["odd_sets"]


def check_no_leak(source: MixedSource, train_digest: str) -> None:
    """Refuse sets whose generator saw other images than the training split."""
    if source.trained_on != train_digest:
        raise SemmixError(
            "the generator of these mixed sets did not learn from this training split alone",
            f"generator's split {source.trained_on}, training split {train_digest}",
            "train a generator on this split, or accept the leak with --allow-leak; "
            "reports will say so",
        )
