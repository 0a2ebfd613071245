"""The annotate stage: from a store of mixed sets to an annotation, by one process or many."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from semmix.annotation.algebra import check_scale, class_prototypes, count_classes, lambda_e, nearest_class, similarity
from semmix.annotation.annotation import MANIFEST, TENSORS, Annotation, annotation_digest
from semmix.annotation.scale import choose_scale, doubt, doubt_ends, scale_curve, softmax_curve
from semmix.core.artifact import Artifact, begin_artifact, open_artifact
from semmix.core.device import rank_and_world
from semmix.core.errors import SemmixError
from semmix.core.files import read_tensors, write_tensors
from semmix.core.progress import Progress, progress, say
from semmix.data import Dataset, Split
from semmix.mixing.store import MixSets
from semmix.networks.encoders import Encoder, backbone
from semmix.networks.encoders.features import embed_split, embed_with


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
    own shards and the first one puts them together. What another command finishes there meanwhile is taken as it is.

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
    if scale is None:
        _check_ends(store)
    else:
        check_scale(scale)
    _check_data(store, train, val)
    inputs = {
        "mixsets": store.digest,
        "encoder": {"kind": encoder.name.partition(":")[0], "digest": encoder.digest},
        "train": train.digest,
        "val": val.digest,
        "scale": scale,
    }
    artifact = begin_artifact(Path(out), MANIFEST, "annotation", inputs)
    rank, world_size = rank_and_world()
    if not artifact.finished:
        missing = _missing(artifact.folder, store.plan.shards_of(rank, world_size))
        features = embed_split(encoder, train, "prototypes")
        prototypes = class_prototypes(features, train.labels, store.plan.num_classes)
        with progress("annotate", sum(_num_images(store, k) for k in missing)) as bar:
            for k in missing:
                _read_shard(store, encoder, prototypes, artifact.folder, k, bar)
        if rank == 0:
            every_shard = range(store.plan.num_shards)
            _wait_until(lambda: not _missing(artifact.folder, every_shard) or _is_done(artifact))
            try:
                _finish(artifact, store, prototypes, encoder, val, scale)
            except SemmixError:  # another command that finishes drops the parts
                if not _is_done(artifact):
                    raise
        else:
            _wait_until(lambda: _is_done(artifact))
    if rank == 0:
        _drop_parts(artifact.folder)
    return Annotation.open(artifact.folder, store)


def check_fits(own_shape: tuple[int, ...], own_classes: int, image_shape: tuple[int, ...], num_classes: int) -> None:
    """Refuse mixed sets of another shape or number of classes than the real images."""
    if (own_shape, own_classes) == (image_shape, num_classes):
        return
    sets, images = str(tuple(own_shape)), str(tuple(image_shape))
    if own_classes != num_classes:
        sets, images = f"{sets} in {own_classes} classes", f"{images} in {num_classes} classes"
    fix = "name the data set the sets were made for"
    if own_classes == num_classes and own_shape[0] == image_shape[0]:
        fix = f"give their --size {own_shape[-1]}, or {fix}"
    raise SemmixError("the mixed sets do not fit these images", f"sets {sets}, images {images}", fix)


def _check_data(store: MixSets, train: Split, val: Split) -> None:
    """Refuse images the sets were not made for, before the folder is claimed."""
    num_classes = store.plan.num_classes
    for split in (train, val):
        seen_classes = len(split.class_counts(num_classes))  # or more, where labels go beyond
        check_fits(store.image_shape, num_classes, tuple(split.images.shape[1:]), seen_classes)
    count_classes(train.labels, num_classes)


def _check_ends(store: MixSets) -> None:
    """Refuse to choose a scale by ends that were never asked to be pure."""
    if not _has_pure_ends(store):
        fix, lams = "give a scale, or make sets whose lams go from 0 to 1", store.plan.set_lams(0)
        raise SemmixError("sets without pure ends cannot choose the scale", lams, fix)


def _has_pure_ends(store: MixSets) -> bool:
    lams = store.plan.set_lams(0)
    return (lams[0], lams[-1]) == (0, 1)


def _is_done(artifact: Artifact) -> bool:
    """Return whether any process has finished the annotation by now."""
    return open_artifact(artifact.folder, MANIFEST, "annotation").finished


def _missing(folder: Path, shards: range) -> list[int]:
    """Return the shards of which no part is there."""
    return [k for k in shards if not _part(folder, k).exists()]


def _num_images(store: MixSets, k: int) -> int:
    """Return how many images shard `k` holds."""
    return len(store.plan.shard(k)) * store.plan.set_size


def _read_shard(store: MixSets, encoder: Encoder, prototypes: Tensor, folder: Path, k: int, bar: Progress) -> None:
    """Write the part of shard `k`: lambda_E [sets, members] and E·P_k [sets, members, K]."""
    images = store.read_shard(k)
    features = embed_with(bar, encoder, images.flatten(0, 1))
    features = features.unflatten(0, images.shape[:2])  # [sets, members, D]
    pairs = torch.tensor([store.pair(n) for n in store.plan.shard(k)])
    proto_i, proto_j = prototypes[pairs].unsqueeze(2).unbind(1)  # [sets, 1, D]
    tensors = {"lambda_e": lambda_e(features, proto_i, proto_j), "similarity": similarity(features, prototypes).float()}
    write_tensors(_part(folder, k), tensors)


def _wait_until(is_done: Callable[[], bool], seconds: float = 0.2) -> None:
    """Return once other processes have done their part; torchrun ends all when one fails."""
    while not is_done():
        time.sleep(seconds)


def _finish(
    artifact: Artifact, store: MixSets, prototypes: Tensor, encoder: Encoder, val: Split, scale: float | None
) -> None:
    """Put the parts together and choose both scales on the validation split."""
    parts = [_read_part(artifact.folder, k) for k in range(store.plan.num_shards)]
    features = embed_split(encoder, val, "scale")
    nearest = nearest_class(similarity(features, prototypes), prototypes)
    accuracy = float((nearest == val.labels).double().mean())
    positions = torch.cat([part["lambda_e"] for part in parts])
    tensors = {
        "lambda_e": positions,
        "similarity": torch.cat([part["similarity"] for part in parts]),
        "prototypes": prototypes,
        "scale_curve": scale_curve(positions, accuracy),
        "softmax_curve": softmax_curve(features, val.labels, prototypes),
    }
    write_tensors(artifact.folder / TENSORS, tensors)
    chosen = {
        "scale": choose_scale(tensors["scale_curve"]) if scale is None else scale,
        "softmax_scale": choose_scale(tensors["softmax_curve"]),
        "prototype_accuracy": accuracy,
    }
    chosen_by = "auto" if scale is None else "user"
    words = doubt(chosen["scale"], accuracy) if scale is None else None
    if words is None and _has_pure_ends(store):
        words = doubt_ends(_recognised_ends(store, tensors["similarity"], prototypes), accuracy)
    if words:
        say(words)
    # Beside the inputs, which name annotations from before it was recorded.
    encoder_trained_on = getattr(encoder, "trained_on", None)
    artifact.finish(
        **chosen,
        scale_chosen_by=chosen_by,
        encoder_trained_on=encoder_trained_on,
        digest=annotation_digest(artifact.manifest["inputs"], chosen, tensors),
    )


def _recognised_ends(store: MixSets, products: Tensor, prototypes: Tensor) -> float:
    """Return how often the nearest prototype to an end is that of its class."""
    nearest = nearest_class(products[:, [-1, 0]], prototypes)  # [sets, 2]
    return float((nearest == store.pairs()).double().mean())


def _part(folder: Path, k: int) -> Path:
    return folder / f"part-{k:05d}.safetensors"


def _read_part(folder: Path, k: int) -> dict[str, Tensor]:
    path = _part(folder, k)
    return read_tensors(path, f"delete {path} and run the same command again, it makes just that")


def _drop_parts(folder: Path) -> None:
    for part in folder.glob("part-*.safetensors"):
        part.unlink()
