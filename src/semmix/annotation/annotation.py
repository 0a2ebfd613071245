"""What the annotate stage leaves, and the labels that can be made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semmix.annotation import algebra
from semmix.annotation.algebra import lambda_from, sharpness
from semmix.core.artifact import Artifact, open_artifact
from semmix.core.errors import require, unknown_name
from semmix.core.files import digest, digest_tensors, read_tensors
from semmix.mixing.store import MixSets

MANIFEST = "annotation.json"
TENSORS = "lambda_e.safetensors"
CHOSEN = ("scale", "softmax_scale", "prototype_accuracy")
"""What the manifest says that is part of the annotation's digest."""
UNSCALED_SCHEMES = ("requested", "one_hot", "position")
"""Label schemes without a scale."""
MATCHED_SCHEMES = ("requested_matched", "smoothed_matched")
"""Controls: labels that do not look at the images, but are as sharp as `reannotated`."""
PAIR_SCHEMES = ("reannotated", *UNSCALED_SCHEMES, *MATCHED_SCHEMES, "biased")
"""Label schemes that speak of the pair's two classes only."""
LABEL_SCHEMES = (*PAIR_SCHEMES, "encoder_softmax", "third_class")


@dataclass(frozen=True)
class Annotation:
    """What the annotate stage left: lambda_E of every image of a store, and the scale."""

    artifact: Artifact
    store: MixSets

    @classmethod
    def open(cls, folder: str | Path, store: MixSets) -> Annotation:
        """Open a finished annotation of `store`."""
        artifact = open_artifact(Path(folder), MANIFEST, "annotation")
        require(artifact.finished, f"{folder} is not finished", "half done", "run semmix annotate again")
        fix = f"annotate {store.folder} into another folder"
        same = artifact.manifest["inputs"]["mixsets"] == store.digest
        require(same, "this annotation belongs to other mixed sets", folder, fix)
        return cls(artifact, store)

    def __repr__(self) -> str:
        recognised = self.artifact.manifest["prototype_accuracy"]
        encoder = self.artifact.manifest["inputs"]["encoder"]["kind"]
        return (
            f"Annotation({str(self.artifact.folder)!r}: {self.store.num_sets:,} sets, scale {self.scale:.2f}, "
            f"{encoder} right on {recognised:.1%} of real images)"
        )

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """All that was read, checked with the scales against the annotation's digest when it is first read.

        They are lambda_e, similarity, prototypes, scale_curve and softmax_curve.
        """
        folder, manifest = self.artifact.folder, self.artifact.manifest
        fix = f"delete {folder} and run semmix annotate again"
        tensors = read_tensors(folder / TENSORS, fix)
        sound = annotation_digest(manifest["inputs"], manifest, tensors) == self.digest
        require(sound, "labels and scales do not match the annotation's digest", folder / TENSORS, fix)
        return tensors

    @property
    def lambda_e(self) -> Tensor:
        """lambda_E of every image, float64 [sets, members]."""
        return self.tensors["lambda_e"]

    @property
    def similarity(self) -> Tensor:
        """E·P_k of every image and class, float32 [sets, members, classes]."""
        return self.tensors["similarity"]

    @property
    def prototypes(self) -> Tensor:
        """The class prototypes, float64 [classes, D]."""
        return self.tensors["prototypes"]

    @property
    def scale(self) -> float:
        """The scale s."""
        return self.artifact.manifest["scale"]

    @property
    def digest(self) -> str:
        """Names the annotation by what it was made from and its values."""
        return self.artifact.manifest["digest"]

    def splits_for(self, labels: str, scale: float | None = None) -> tuple[str, str | None]:
        """Return digests of the splits a scheme's labels rest on: training and validation.

        The second is None if the labels need no scale, or if validation images did not choose it.
        """
        inputs, by = self.artifact.manifest["inputs"], self.artifact.manifest["scale_chosen_by"]
        chosen = labels == "encoder_softmax" or by == "auto"
        asked = chosen and scale is None and labels not in UNSCALED_SCHEMES
        return inputs["train"], inputs["val"] if asked else None

    @property
    def encoder_trained_on(self) -> str | None:
        """Digest of the split the encoder learned from; None when unknown."""
        return self.artifact.manifest.get("encoder_trained_on")

    def scale_for(self, labels: str, scale: float | None = None) -> float | None:
        """Return the scale a scheme uses, None where it uses none; `scale` overrides the choice."""
        return None if labels in UNSCALED_SCHEMES else self._scale(labels, scale)

    def _scale(self, labels: str, scale: float | None) -> float:
        chosen = "softmax_scale" if labels == "encoder_softmax" else "scale"
        return self.artifact.manifest[chosen] if scale is None else scale

    def lam(self, labels: str = "reannotated", scale: float | None = None) -> Tensor:
        """Return the lambda each image is trained with, float32 [sets, members], by scheme.

        `reannotated`: read back by the encoder; `requested`: what the generator was asked for; `one_hot`: the nearer
        end of what the generator was asked for; `position`: lambda_E itself, cut to [0, 1], so that no scale is needed;
        `biased`: read back, with the bias of class norms and distances that `reannotated` removes. Two controls have
        the average sharpness of `reannotated` and none of its knowledge: `requested_matched`, requested lambdas through
        a sigmoid, and `smoothed_matched`, smoothed `one_hot`.
        """
        if labels not in LABEL_SCHEMES:
            raise unknown_name("label scheme", labels, LABEL_SCHEMES)
        fix = f"ask for soft_labels, or for one of {', '.join(PAIR_SCHEMES)}"
        require(labels in PAIR_SCHEMES, "these labels are no single lambda", labels, fix)
        requested = self.store.lam_requested()
        if labels == "requested":
            return requested
        if labels == "one_hot":
            return (requested >= 0.5).float()
        if labels == "position":
            return self.lambda_e.clamp(0, 1).float()
        scale = self._scale(labels, scale)
        reannotated = lambda_from(self.lambda_e, scale).float()
        if labels == "reannotated":
            return reannotated
        if labels == "requested_matched":
            return lambda_from(requested, algebra.scale_as_sharp(requested, sharpness(reannotated)))
        if labels == "smoothed_matched":
            largest = sharpness(reannotated)
            return torch.where(requested >= 0.5, largest, 1 - largest)
        proto_i, proto_j = self.prototypes[self.store.pairs()].unsqueeze(2).unbind(1)  # [S, 1, D]
        tau = algebra.temperature(self.prototypes, scale)
        return algebra.biased_lambda(self.lambda_e, proto_i, proto_j, tau).float()

    def soft_labels(self, labels: str = "reannotated", scale: float | None = None) -> Tensor:
        """Return the soft labels by scheme, float32 [sets, members, classes].

        Besides the schemes of `lam`, `encoder_softmax`: softmax_k(E·P_k / tau) over all classes; `third_class`:
        `reannotated`, joined by the class an image shows besides its pair.
        """
        if labels == "encoder_softmax":
            tau = algebra.temperature(self.prototypes, self._scale(labels, scale))
            return torch.softmax(self.similarity.double() / tau, -1).float()
        if labels == "third_class":
            scale = self._scale(labels, scale)
            of_pair = self.store.soft_labels(self.lam("reannotated", scale))
            pairs = self.store.pairs()
            return algebra.add_third_class(of_pair, self.similarity, self.prototypes, pairs, scale)
        return self.store.soft_labels(self.lam(labels, scale))


def annotation_digest(inputs: dict[str, Any], chosen: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return what names an annotation: what it was made from, what was chosen and what was read."""
    values = {name: chosen[name] for name in CHOSEN}
    return digest({"inputs": inputs, **values, "tensors": digest_tensors(tensors)})
