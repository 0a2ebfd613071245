"""Read back how much of each class a mixed image shows (paper, section 3.3).

An encoder turns images into features; class prototypes are the mean features of the training split.
lambda_E is where a feature falls on the line from prototype j (0) to prototype i (1), whatever it
shows besides. lambda = sigmoid(s (lambda_E - 1/2)), with one scale s for all classes, is the label.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from semmix._artifact import Artifact, begin_artifact, open_artifact
from semmix._errors import SemmixError, unknown_name
from semmix._files import digest, digest_tensors, write_tensors
from semmix._progress import progress
from semmix.datasets import Split
from semmix.encoders import Encoder
from semmix.mixsets import MixSets

MANIFEST = "annotation.json"
LABEL_SCHEMES = ("reannotated", "requested", "one_hot")
SCALES = tuple(np.geomspace(0.5, 64, 141).tolist())
"""Candidates for the scale: 5 % from step to step around the values anybody would use."""


def lambda_e(features, proto_i, proto_j) -> Tensor:
    """Return the position of features on the line from prototype j (0) to i (1), float64.

    Eq. lambda_E: (E - P_j)·(P_i - P_j) / |P_i - P_j|². Leading shapes broadcast; the last is D.

    >>> lambda_e([0.25, 7.0], [1.0, 0.0], [0.0, 0.0]).item()
    0.25
    """
    features, proto_i, proto_j = (
        torch.as_tensor(x, dtype=torch.float64) for x in (features, proto_i, proto_j)
    )
    line = proto_i - proto_j
    length = (line * line).sum(-1)
    if bool((length == 0).any()):
        fix = "the encoder does not tell the two classes apart; choose another encoder"
        raise SemmixError("two prototypes coincide", "distance 0", fix)
    return ((features - proto_j) * line).sum(-1) / length


def lambda_from(lambda_e, scale: float) -> Tensor:
    """Return the label lambda = sigmoid(scale (lambda_E - 1/2)), eq. lambda_rewrite.

    >>> round(lambda_from(1.0, scale=4.0).item(), 3)
    0.881
    """
    if scale <= 0:
        raise SemmixError("the scale must be positive", scale, "the paper uses 4.0 with CLIP")
    return torch.sigmoid(scale * (torch.as_tensor(lambda_e) - 0.5))


def class_prototypes(features: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return the mean feature of each class, float64 [K, D]."""
    counts = torch.bincount(labels, minlength=num_classes)
    if bool((counts == 0).any()):
        seen = (counts == 0).nonzero().flatten().tolist()
        raise SemmixError("classes without training images", seen, "each class needs one image")
    total = torch.zeros(num_classes, features.shape[1], dtype=torch.float64)
    return total.index_add_(0, labels, features.double()) / counts[:, None]


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
    losses = [torch.nn.functional.softplus(-s * right * (positions - 0.5)).mean() for s in SCALES]
    return torch.stack(losses)


def choose_scale(curve: Tensor) -> float:
    """Return the scale with the best likelihood; the smallest of equals."""
    return SCALES[int(curve.argmin())]


@dataclass(frozen=True)
class Annotation:
    """What the annotate stage left: lambda_E of every image of a store, and the scale."""

    artifact: Artifact
    store: MixSets

    @classmethod
    def open(cls, folder: str | Path, store: MixSets) -> Annotation:
        """Open a finished annotation of `store`."""
        artifact = open_artifact(Path(folder), MANIFEST, "annotation")
        if not artifact.finished:
            raise SemmixError(f"{folder} is not finished", "half done", "run semmix annotate again")
        if artifact.manifest["inputs"]["mixsets"] != store.digest:
            fix = f"annotate {store.folder} into another folder"
            raise SemmixError("this annotation belongs to other mixed sets", folder, fix)
        return cls(artifact, store)

    @cached_property
    def lambda_e(self) -> Tensor:
        """lambda_E of every image, float64 [sets, members]."""
        return load_file(self.artifact.folder / "lambda_e.safetensors")["lambda_e"]

    @property
    def scale(self) -> float:
        """The scale s."""
        return self.artifact.manifest["scale"]

    @property
    def digest(self) -> str:
        """Names the annotation by what it was made from and its values."""
        return self.artifact.manifest["digest"]

    def lam(self, labels: str = "reannotated", scale: float | None = None) -> Tensor:
        """Return the lambda each image is trained with, float32 [sets, members], by scheme.

        `reannotated`: read back by the encoder; `requested`: what the generator was asked for;
        `one_hot`: the nearer end of what the generator was asked for.
        """
        if labels == "reannotated":
            return lambda_from(self.lambda_e, scale or self.scale).float()
        if labels == "requested":
            return self.store.lam_requested()
        if labels == "one_hot":
            return (self.store.lam_requested() >= 0.5).float()
        raise unknown_name("label scheme", labels, LABEL_SCHEMES)


def annotate_mixsets(
    store: MixSets,
    encoder: Encoder,
    train: Split,
    val: Split,
    out: str | Path,
    scale: float | None = None,
) -> Annotation:
    """Read lambda_E of every image with `encoder`, and choose the scale on `val` unless given.

    Shards already read are kept, so a stopped run goes on where it was.
    """
    inputs = {
        "mixsets": store.digest,
        "encoder": {"name": encoder.name, "digest": encoder.digest},
        "train": train.digest,
        "val": val.digest,
        "scale": scale,
    }
    artifact = begin_artifact(Path(out), MANIFEST, "annotation", inputs)
    if not artifact.finished:
        prototypes = class_prototypes(
            embed_all(encoder, train.images, "prototypes"), train.labels, store.plan.num_classes
        )
        positions = _read_shards(store, encoder, prototypes, artifact.folder)
        _finish(artifact, positions, prototypes, encoder, val, scale)
    _drop_parts(artifact.folder)
    return Annotation(artifact, store)


def embed_all(encoder: Encoder, images: Tensor, title: str, batch_size: int = 1024) -> Tensor:
    """Return the features of all images, float32 [N, D], with a progress bar."""
    parts = []
    with progress(title, len(images)) as bar:
        for batch in images.split(batch_size):
            parts.append(encoder.embed(batch).float().cpu())
            bar.advance(len(batch))
    return torch.cat(parts)


def _read_shards(store: MixSets, encoder: Encoder, prototypes: Tensor, folder: Path) -> Tensor:
    """Return lambda_E of all sets, float64 [sets, members]; one file for each shard read."""
    for k in range(store.plan.num_shards):
        if not _part(folder, k).exists():
            images = store.read_shard(k)
            title = f"annotate shard {k + 1} of {store.plan.num_shards}"
            features = embed_all(encoder, images.flatten(0, 1), title)
            features = features.unflatten(0, images.shape[:2])  # [sets, members, D]
            pairs = torch.tensor([store.pair(n) for n in store.plan.shard(k)])
            proto_i, proto_j = prototypes[pairs].unsqueeze(2).unbind(1)  # [sets, 1, D]
            write_tensors(_part(folder, k), {"lambda_e": lambda_e(features, proto_i, proto_j)})
    shards = range(store.plan.num_shards)
    return torch.cat([load_file(_part(folder, k))["lambda_e"] for k in shards])


def _finish(
    artifact: Artifact,
    positions: Tensor,
    prototypes: Tensor,
    encoder: Encoder,
    val: Split,
    scale: float | None,
) -> None:
    curve = scale_curve(embed_all(encoder, val.images, "scale"), val.labels, prototypes)
    tensors = {"lambda_e": positions, "prototypes": prototypes, "scale_curve": curve}
    write_tensors(artifact.folder / "lambda_e.safetensors", tensors)
    chosen: dict[str, Any] = {"scale": scale or choose_scale(curve)}
    content = {"inputs": artifact.manifest["inputs"], **chosen, "tensors": digest_tensors(tensors)}
    artifact.finish(**chosen, scale_chosen_by="user" if scale else "auto", digest=digest(content))


def _part(folder: Path, k: int) -> Path:
    return folder / f"part-{k:05d}.safetensors"


def _drop_parts(folder: Path) -> None:
    for part in folder.glob("part-*.safetensors"):
        part.unlink()
