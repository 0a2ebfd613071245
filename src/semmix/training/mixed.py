"""From a store of mixed sets and its annotation to what the classifier loop draws from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semmix._errors import SemmixError
from semmix.annotate import Annotation
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


def load_mixed(
    mixsets: str | Path,
    annotation: str | Path | None,
    labels: str = "reannotated",
    scale: float | None = None,
) -> MixedSource:
    """Return the sets with soft labels by scheme `labels`; `scale` overrides the annotation's s."""
    store = MixSets.open(mixsets)
    notes = Annotation.open(annotation, store) if annotation else None
    if notes is None and labels != "requested":
        fix = "run semmix annotate and pass its folder, or train with --labels requested"
        raise SemmixError(f"labels {labels!r} need an annotation", annotation, fix)
    lam = store.lam_requested() if notes is None else notes.lam(labels, scale)
    images = MixedImages.build(store.read_all(), store.soft_labels(lam), store.pairs())
    used_scale = notes.scale if notes and scale is None else scale
    inputs = {
        "mixsets": store.digest,
        "annotation": notes.digest if notes else None,
        "labels": labels,
        "scale": used_scale if labels == "reannotated" else None,
    }
    return MixedSource(images, store.generator["trained_on"], inputs)


def check_no_leak(source: MixedSource, train_digest: str) -> None:
    """Refuse sets whose generator saw other images than the training split."""
    if source.trained_on != train_digest:
        raise SemmixError(
            "the generator of these mixed sets did not learn from this training split alone",
            f"generator's split {source.trained_on}, training split {train_digest}",
            "train a generator on this split, or accept the leak with --allow-leak; "
            "reports will say so",
        )
