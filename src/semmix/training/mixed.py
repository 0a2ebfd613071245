"""From a store of mixed sets and its annotation to what the classifier loop draws from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from semmix.annotation import Annotation, check_fits
from semmix.core.errors import require
from semmix.core.files import digest, read_json
from semmix.data import Dataset
from semmix.mixing.store import MixSets
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
    annotated_with: tuple[str, str | None] | None = None
    """Digests of the training and, for the scale, the validation split that the labels rest on."""
    encoder_trained_on: str | None = None
    """Digest of the split the encoder learned from; None for one from elsewhere."""

    def check(self, data: Dataset, allow_leak: bool = False) -> None:
        """Refuse sets of other shapes or classes, in which other images had a say, or that lack a class."""
        own_shape, own_classes = tuple(self.images.images.shape[2:]), self.images.soft_labels.shape[-1]
        check_fits(own_shape, own_classes, data.image_shape, data.num_classes)
        leaks = self.leaks(data.train.digest, data.val.digest)
        fix = "train the generator and the encoder on this split and annotate with this data set"
        fix += ", or accept the leak with --allow-leak; reports will say so"
        what = "these mixed sets were not made from this data set's training split alone"
        require(allow_leak or not leaks, what, "; ".join(leaks), fix)
        self.images.check_classes(data.train.labels, data.class_names, self.num_excluded)

    def leaks(self, train_digest: str, val_digest: str) -> list[str]:
        """Return which parts of the sets other images than these splits had a say in, in words."""
        train, val = ("training split", train_digest), ("validation split", val_digest)
        found = [("the generator learned from", self.trained_on, train)]
        if self.annotated_with:
            found.append(("the annotation's prototypes come from", self.annotated_with[0], train))
        if self.annotated_with and self.annotated_with[1]:
            found.append(("the annotation's scale comes from", self.annotated_with[1], val))
        if self.encoder_trained_on:
            found.append(("the annotation's encoder learned from", self.encoder_trained_on, train))
        return [f"{who} split {seen}, the {split} is {own}" for who, seen, (split, own) in found if seen != own]


def load_mixed(
    mixsets: MixSets | str | Path,
    annotation: Annotation | str | Path | None,
    labels: str = "reannotated",
    scale: float | None = None,
    exclude: str | Path | None = None,
) -> MixedSource:
    """Return the sets, but for odd ones of the diagnosis.json `exclude`, with labels by scheme; `scale` overrides s."""
    store = mixsets if isinstance(mixsets, MixSets) else MixSets.open(mixsets)
    annotation = Annotation.open(annotation, store) if isinstance(annotation, (str, Path)) else annotation
    fix = "run semmix annotate and pass its folder, or train with --labels requested"
    require(annotation or labels == "requested", f"labels {labels!r} need an annotation", annotation, fix)
    soft_labels = annotation.soft_labels(labels, scale) if annotation else store.soft_labels(store.lam_requested())
    excluded = _odd_sets(exclude, annotation) if exclude else []
    tensors = (store.read_all(), soft_labels, store.pairs())
    if excluded:  # else there is nothing to copy
        kept = torch.ones(store.num_sets, dtype=torch.bool)
        kept[excluded] = False
        tensors = tuple(tensor[kept] for tensor in tensors)
    inputs: dict[str, Any] = {"mixsets": store.digest, "annotation": None, "labels": labels, "scale": None}
    splits = encoder_split = None
    if annotation:
        inputs |= {"annotation": annotation.digest, "scale": annotation.scale_for(labels, scale)}
        splits, encoder_split = annotation.splits_for(labels, scale), annotation.encoder_trained_on
    if excluded:
        inputs["excluded"] = digest(excluded)
    images, drawn_from = MixedImages.build(*tensors), store.generator["trained_on"]
    return MixedSource(images, drawn_from, inputs, len(excluded), splits, encoder_split)


def _odd_sets(diagnosis: str | Path, annotation: Annotation | None) -> list[int]:
    """Return the sets that a diagnosis of this annotation offers for exclusion."""
    content = read_json(Path(diagnosis))
    content = content if isinstance(content, dict) and "odd_sets" in content else {}
    fix = "run semmix annotate --report for this annotation and name its diagnosis.json"
    belongs = annotation and content.get("annotation") == annotation.digest
    require(belongs, "this diagnosis is not one of the annotation in use", diagnosis, fix)
    return content["odd_sets"]
