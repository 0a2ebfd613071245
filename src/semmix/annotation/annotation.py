"""The annotate stage, by one process or many; what it leaves, and the labels that can be made of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semmix.annotation import algebra
from semmix.annotation.algebra import lambda_from, sharpness
from semmix.core.artifact import Artifact, begin_artifact, open_artifact
from semmix.core.device import rank_and_world
from semmix.core.errors import SemmixError, require, unknown_name
from semmix.core.files import digest, digest_tensors, read_tensors, write_tensors
from semmix.core.progress import progress, say
from semmix.data import Dataset, Split
from semmix.mixing.store import MixSets
from semmix.networks.encoders import Encoder, backbone
from semmix.networks.encoders.pretrained import embed_split, embed_with

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
        folder, manifest = str(self.artifact.folder), self.artifact.manifest
        right = f"{manifest['inputs']['encoder']['kind']} right on {manifest['prototype_accuracy']:.1%} of real images"
        return f"Annotation({folder!r}: {self.store.num_sets:,} sets, scale {self.scale:.2f}, {right})"

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
            return algebra.add_third_class(of_pair, self.similarity, self.prototypes, self.store.pairs(), scale)
        return self.store.soft_labels(self.lam(labels, scale))


def annotation_digest(inputs: dict[str, Any], chosen: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return what names an annotation: what it was made from, what was chosen and what was read."""
    return digest({"inputs": inputs, **{name: chosen[name] for name in CHOSEN}, "tensors": digest_tensors(tensors)})


def annotate(
    store: MixSets | str | Path,
    encoder: Encoder | str,
    data: Dataset | tuple[Split, Split],
    out: str | Path = "annotation",
    scale: float | None = None,
    *,
    device: str = "auto",
) -> Annotation:
    """Read lambda_E of every mixed image with an encoder, and choose the scale unless it is given.

    Shards already read are kept, so a stopped run goes on where it was. Started by `torchrun`, each process reads its
    own shards and the first one puts them together. If another command finishes the same annotation meanwhile, its
    result is used.

    Args:
        store: The mixed sets, or their folder.
        encoder: An encoder, or its name for `backbone`, such as `classifier:runs/ce-0`.
        data: The real images; or their training split, which gives the prototypes, and their validation split, which
            chooses the scale.
        out: Folder of the annotation.
        scale: The scale s of lambda = sigmoid(s (lambda_E - 1/2)).
        device: Where an encoder that is named computes; `auto` takes a GPU if there is one.

    Raises:
        SemmixError: If the images are not those the sets were made for, or `out` holds another annotation.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from semmix import MixPlan, load_dataset
        >>> class Pixels:
        ...     name, dim, digest = "pixels", 64, "1"
        ...     def embed(self, images):
        ...         return images.flatten(1).float()
        >>> data, plan = load_dataset("digits"), MixPlan(num_classes=10, num_sets=1, pairs=((3, 8),))
        >>> with TemporaryDirectory() as folder:  # real images in place of mixed ones
        ...     sets = MixSets.create(f"{folder}/mixsets", plan, data.image_shape, {}, {})
        ...     sets.write_shard(0, data.test.images[None, :8])
        ...     annotate(sets, Pixels(), data, f"{folder}/annotation", scale=4.0).soft_labels().shape
        prototypes: ...
        torch.Size([1, 8, 10])
    """
    store = store if isinstance(store, MixSets) else MixSets.open(store)
    encoder = backbone(encoder, device) if isinstance(encoder, str) else encoder
    train, val = (data.train, data.val) if isinstance(data, Dataset) else data
    _check(store, train, val, scale)
    by = {"kind": encoder.name.partition(":")[0], "digest": encoder.digest}
    inputs = {"mixsets": store.digest, "encoder": by, "train": train.digest, "val": val.digest, "scale": scale}
    artifact = begin_artifact(Path(out), MANIFEST, "annotation", inputs)
    if not artifact.finished:
        _annotate(artifact, store, encoder, train, val, scale)
    if rank_and_world()[0] == 0:
        for part in artifact.folder.glob("part-*.safetensors"):
            part.unlink()
    return Annotation.open(artifact.folder, store)


def check_fits(own_shape: tuple[int, ...], own_classes: int, image_shape: tuple[int, ...], num_classes: int) -> None:
    """Refuse mixed sets of another shape or number of classes than the real images."""
    sets, images = str(tuple(own_shape)), str(tuple(image_shape))
    fix = "name the data set the sets were made for"
    if own_classes != num_classes:
        sets, images = f"{sets} in {own_classes} classes", f"{images} in {num_classes} classes"
    elif own_shape[0] == image_shape[0]:
        fix = f"give their --size {own_shape[-1]}, or {fix}"
    require(sets == images, "the mixed sets do not fit these images", f"sets {sets}, images {images}", fix)


def _check(store: MixSets, train: Split, val: Split, scale: float | None) -> None:
    """Refuse a scale or images that the sets do not fit, before the folder is claimed."""
    if scale is None:
        fix = "give a scale, or make sets whose lams go from 0 to 1"
        require(_has_pure_ends(store), "sets without pure ends cannot choose the scale", store.plan.set_lams(0), fix)
    else:
        algebra.check_scale(scale)
    num_classes = store.plan.num_classes
    for split in (train, val):
        seen_classes = len(split.class_counts(num_classes))  # or more, where labels go beyond
        check_fits(store.image_shape, num_classes, tuple(split.images.shape[1:]), seen_classes)
    algebra.count_classes(train.labels, num_classes)


def _has_pure_ends(store: MixSets) -> bool:
    lams = store.plan.set_lams(0)
    return (lams[0], lams[-1]) == (0, 1)


def _annotate(
    artifact: Artifact, store: MixSets, encoder: Encoder, train: Split, val: Split, scale: float | None
) -> None:
    """Read the shards of this process; the first process puts all parts together, the others wait for it."""
    folder, plan, (rank, world_size) = artifact.folder, store.plan, rank_and_world()
    missing = _missing(folder, plan.shards_of(rank, world_size))
    prototypes = algebra.class_prototypes(embed_split(encoder, train, "prototypes"), train.labels, plan.num_classes)
    with progress("annotate", plan.set_size * sum(len(plan.shard(k)) for k in missing)) as bar:
        for k in missing:
            images = store.read_shard(k)
            rows = embed_with(bar, encoder, images.flatten(0, 1))
            features = rows.unflatten(0, images.shape[:2])  # [sets, members, D]
            pairs = torch.tensor([store.pair(n) for n in plan.shard(k)])
            proto_i, proto_j = prototypes[pairs].unsqueeze(2).unbind(1)  # [sets, 1, D]
            positions = algebra.lambda_e(features, proto_i, proto_j)  # [sets, members]
            products = algebra.similarity(features, prototypes).float()  # E·P_k [sets, members, K]
            write_tensors(_part(folder, k), {"lambda_e": positions, "similarity": products})

    def is_done() -> bool:
        return open_artifact(folder, MANIFEST, "annotation").finished  # by any process

    if rank > 0:
        _wait_until(is_done)
        return
    _wait_until(lambda: not _missing(folder, range(plan.num_shards)) or is_done())
    try:
        _finish(artifact, store, prototypes, encoder, val, scale)
    except SemmixError:  # another command that finishes drops the parts
        if not is_done():
            raise


def _wait_until(holds: Callable[[], bool]) -> None:
    """Return once other processes have done their part; torchrun ends all when one fails."""
    while not holds():
        time.sleep(0.2)


def _part(folder: Path, k: int) -> Path:
    return folder / f"part-{k:05d}.safetensors"


def _missing(folder: Path, shards: range) -> list[int]:
    """Return the shards of which no part is there."""
    return [k for k in shards if not _part(folder, k).exists()]


def _finish(
    artifact: Artifact, store: MixSets, prototypes: Tensor, encoder: Encoder, val: Split, scale: float | None
) -> None:
    """Put the parts together and choose both scales on the validation split."""
    fix = "delete {} and run the same command again, it makes just that"
    paths = [_part(artifact.folder, k) for k in range(store.plan.num_shards)]
    parts = [read_tensors(path, fix.format(path)) for path in paths]
    positions, products = (torch.cat([part[name] for part in parts]) for name in ("lambda_e", "similarity"))
    features = embed_split(encoder, val, "scale")
    nearest = algebra.nearest_class(algebra.similarity(features, prototypes), prototypes)
    accuracy = float((nearest == val.labels).double().mean())
    tensors = {"lambda_e": positions, "similarity": products, "prototypes": prototypes}
    tensors["scale_curve"] = algebra.scale_curve(positions, accuracy)
    tensors["softmax_curve"] = algebra.softmax_curve(features, val.labels, prototypes)
    write_tensors(artifact.folder / TENSORS, tensors)
    chosen = {
        "scale": algebra.choose_scale(tensors["scale_curve"]) if scale is None else scale,
        "softmax_scale": algebra.choose_scale(tensors["softmax_curve"]),
        "prototype_accuracy": accuracy,
    }
    warning = algebra.scale_warning(chosen["scale"], accuracy) if scale is None else None
    if warning is None and _has_pure_ends(store):
        recognised = algebra.nearest_class(products[:, [-1, 0]], prototypes) == store.pairs()  # [sets, 2]
        warning = algebra.ends_warning(float(recognised.double().mean()), accuracy)
    if warning:
        say(warning)
    artifact.finish(
        **chosen,
        scale_chosen_by="auto" if scale is None else "user",
        # Beside the inputs: they name annotations from before it was recorded.
        encoder_trained_on=getattr(encoder, "trained_on", None),
        digest=annotation_digest(artifact.manifest["inputs"], chosen, tensors),
    )
