"""The annotate stage: from a store of mixed sets to an annotation, by one process or many."""

import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from semmix.annotation.algebra import (
    check_scale,
    choose_scale,
    class_prototypes,
    count_classes,
    ends_warning,
    lambda_e,
    nearest_class,
    scale_curve,
    scale_warning,
    similarity,
    softmax_curve,
)
from semmix.annotation.annotation import MANIFEST, TENSORS, Annotation, annotation_digest
from semmix.core.artifact import Artifact, begin_artifact, open_artifact
from semmix.core.device import rank_and_world
from semmix.core.errors import SemmixError, require
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
        _annotate(artifact, store, encoder, train, val, scale, rank, world_size)
    if rank == 0:
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
        check_scale(scale)
    num_classes = store.plan.num_classes
    for split in (train, val):
        seen_classes = len(split.class_counts(num_classes))  # or more, where labels go beyond
        check_fits(store.image_shape, num_classes, tuple(split.images.shape[1:]), seen_classes)
    count_classes(train.labels, num_classes)


def _has_pure_ends(store: MixSets) -> bool:
    lams = store.plan.set_lams(0)
    return (lams[0], lams[-1]) == (0, 1)


def _annotate(
    artifact: Artifact,
    store: MixSets,
    encoder: Encoder,
    train: Split,
    val: Split,
    scale: float | None,
    rank: int,
    world_size: int,
) -> None:
    """Read the shards of this process; the first process puts all parts together, the others wait for it."""
    folder, plan = artifact.folder, store.plan
    missing = _missing(folder, plan.shards_of(rank, world_size))
    prototypes = class_prototypes(embed_split(encoder, train, "prototypes"), train.labels, plan.num_classes)
    with progress("annotate", plan.set_size * sum(len(plan.shard(k)) for k in missing)) as bar:
        for k in missing:
            _read_shard(store, encoder, prototypes, folder, k, bar)

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


def _read_shard(store: MixSets, encoder: Encoder, prototypes: Tensor, folder: Path, k: int, bar: Progress) -> None:
    """Write the part of shard `k`: lambda_E [sets, members] and E·P_k [sets, members, K]."""
    images = store.read_shard(k)
    features = embed_with(bar, encoder, images.flatten(0, 1)).unflatten(0, images.shape[:2])  # [sets, members, D]
    pairs = torch.tensor([store.pair(n) for n in store.plan.shard(k)])
    proto_i, proto_j = prototypes[pairs].unsqueeze(2).unbind(1)  # [sets, 1, D]
    tensors = {"lambda_e": lambda_e(features, proto_i, proto_j), "similarity": similarity(features, prototypes).float()}
    write_tensors(_part(folder, k), tensors)


def _finish(
    artifact: Artifact, store: MixSets, prototypes: Tensor, encoder: Encoder, val: Split, scale: float | None
) -> None:
    """Put the parts together and choose both scales on the validation split."""
    fix = "delete {} and run the same command again, it makes just that"
    paths = [_part(artifact.folder, k) for k in range(store.plan.num_shards)]
    parts = [read_tensors(path, fix.format(path)) for path in paths]
    positions, products = (torch.cat([part[name] for part in parts]) for name in ("lambda_e", "similarity"))
    features = embed_split(encoder, val, "scale")
    nearest = nearest_class(similarity(features, prototypes), prototypes)
    accuracy = float((nearest == val.labels).double().mean())
    tensors = {
        "lambda_e": positions,
        "similarity": products,
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
    warning = scale_warning(chosen["scale"], accuracy) if scale is None else None
    if warning is None and _has_pure_ends(store):
        recognised = nearest_class(products[:, [-1, 0]], prototypes) == store.pairs()  # [sets, 2]
        warning = ends_warning(float(recognised.double().mean()), accuracy)
    if warning:
        say(warning)
    artifact.finish(
        **chosen,
        scale_chosen_by="auto" if scale is None else "user",
        # Beside the inputs: they name annotations from before it was recorded.
        encoder_trained_on=getattr(encoder, "trained_on", None),
        digest=annotation_digest(artifact.manifest["inputs"], chosen, tensors),
    )
