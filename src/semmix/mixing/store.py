"""The store of mixed sets: safetensors shards and a manifest.

    mixsets/manifest.json              the plan, the generator's digest, the sampler's settings
    mixsets/shard-00000.safetensors    images, uint8 [sets, members, C, H, W]

The plan says which pair, seed and requested lambda a set has, so a shard holds pixels only. Its header names the store
it belongs to and the checksum of its pixels; a shard is written whole or not at all, by the process that owns it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from semmix.core.artifact import Artifact, begin_artifact, open_artifact
from semmix.core.errors import SemmixError, explaining, require
from semmix.core.files import digest, digest_tensors, write_tensors
from semmix.core.settings import plain
from semmix.mixing.plan import MixPlan, mix_labels

MANIFEST = "manifest.json"
MAKE_AGAIN = "run the same mix command again, it makes just the shards that are missing"


@dataclass
class MixSets:
    """Mixed sets on disk, read one set or one shard at a time.

    Example:
        >>> sets = MixSets.open("demo/mixsets")  # doctest: +SKIP
        >>> sets  # doctest: +SKIP
        MixSets('demo/mixsets': 900 sets of 11 images 1 x 8 x 8, 10 classes)
        >>> sets.pair(0), sets.read_set(0).shape  # doctest: +SKIP
        ((0, 1), torch.Size([11, 1, 8, 8]))
    """

    artifact: Artifact
    plan: MixPlan
    image_shape: tuple[int, int, int]
    _verified: set[int] = field(default_factory=set)

    @classmethod
    def create(
        cls, folder: str | Path, plan: MixPlan, image_shape: tuple[int, int, int], generator: dict, sampler: dict
    ) -> MixSets:
        """Start a store or resume it; refuse one made from another plan, generator or sampler."""
        inputs = {"plan": plain(plan), "image_shape": list(image_shape), "generator": generator, "sampler": sampler}
        store = cls(begin_artifact(Path(folder), MANIFEST, "mixsets", inputs), plan, image_shape)
        if store.finished and not store.artifact.finished:  # stopped just before
            store.artifact.finish(digest=store.digest)
        return store

    @classmethod
    def open(cls, folder: str | Path) -> MixSets:
        """Open a store whose shards are all there; pixels are checked against their checksum when first read."""
        artifact = open_artifact(Path(folder), MANIFEST, "mixsets")
        inputs = artifact.manifest["inputs"]
        store = cls(artifact, MixPlan.from_json(inputs["plan"]), tuple(inputs["image_shape"]))
        missing = store.missing()
        names = ", ".join(store.shard_path(k).name for k in missing[:5])
        seen = f"{len(missing)} of {store.plan.num_shards} missing: {names}"
        require(not missing, f"{folder} lacks shards", seen, MAKE_AGAIN)
        return store

    def __repr__(self) -> str:
        shape, plan = " x ".join(map(str, self.image_shape)), self.plan
        images = f"{plan.num_sets:,} sets of {plan.set_size} images {shape}"
        return f"MixSets({str(self.folder)!r}: {images}, {plan.num_classes} classes)"

    @property
    def folder(self) -> Path:
        """Where the store lies."""
        return self.artifact.folder

    @property
    def generator(self) -> dict[str, Any]:
        """Digest, name and training split of the generator that drew the images."""
        return self.artifact.manifest["inputs"]["generator"]

    @property
    def num_sets(self) -> int:
        """Sets in the store."""
        return self.plan.num_sets

    @property
    def finished(self) -> bool:
        """Whether every shard is there."""
        return not self.missing()

    @cached_property
    def _store(self) -> str:
        return digest(self.artifact.manifest["inputs"])

    @property
    def digest(self) -> str:
        """Names the store by all it was made from and the checksum of every shard."""
        sums = [self._header(k)["sha256"] for k in range(self.plan.num_shards)]
        return digest({"store": self._store, "shards": sums})

    def shard_path(self, k: int) -> Path:
        """The file of shard `k`."""
        return self.folder / f"shard-{k:05d}.safetensors"

    def missing(self, rank: int = 0, world_size: int = 1) -> list[int]:
        """Shards that process `rank` of `world_size` still has to make."""
        return [k for k in self.plan.shards_of(rank, world_size) if not self.shard_path(k).exists()]

    def write_shard(self, k: int, images: Tensor) -> None:
        """Write shard `k`, uint8 [sets, members, C, H, W]; the last one finishes the store."""
        expected = (len(self.plan.shard(k)), self.plan.set_size, *self.image_shape)
        fits = images.dtype == torch.uint8 and tuple(images.shape) == expected
        seen = f"{images.dtype} {tuple(images.shape)}"
        require(fits, f"shard {k} has the wrong shape", seen, f"pass uint8 {expected}")
        tensors = {"images": images}
        header = {"store": self._store, "shard": k, "sha256": digest_tensors(tensors)}
        write_tensors(self.shard_path(k), tensors, header)
        if self.finished:
            self.artifact.finish(digest=self.digest)

    def read_shard(self, k: int) -> Tensor:
        """Return the images of shard `k`, uint8 [sets, members, C, H, W], checksum verified."""
        images = self._open_shard(k).get_tensor("images")
        if k not in self._verified:
            sound = digest_tensors({"images": images}) == self._header(k)["sha256"]
            require(sound, *self._damaged(k, "its pixels do not match its checksum"))
            self._verified.add(k)
        return images

    def read_set(self, n: int) -> Tensor:
        """Return the images of set `n`, uint8 [members, C, H, W], without loading the others."""
        require(0 <= n < self.num_sets, "no such set", n, f"sets go from 0 to {self.num_sets - 1}")
        k, row = divmod(n, self.plan.sets_per_shard)
        if k not in self._verified:
            self.read_shard(k)
        return self._open_shard(k).get_slice("images")[row]

    def read_all(self) -> Tensor:
        """Return every image, uint8 [sets, members, C, H, W]."""
        images = torch.empty(self.num_sets, self.plan.set_size, *self.image_shape, dtype=torch.uint8)
        for k in range(self.plan.num_shards):  # one by one: all of them may fill half of the memory
            sets = self.plan.shard(k)
            images[sets.start : sets.stop] = self.read_shard(k)
        return images

    def pair(self, n: int) -> tuple[int, int]:
        """The classes (i, j) of set `n`; lam = 1 is class i."""
        return self.plan.pair(n)

    def pairs(self) -> Tensor:
        """Return the pair of every set, int64 [sets, 2]."""
        return torch.tensor([self.plan.pair(n) for n in range(self.num_sets)])

    def lam_requested(self) -> Tensor:
        """Return the lambda every image was asked to show, float32 [sets, members]."""
        return torch.tensor([self.plan.set_lams(n) for n in range(self.num_sets)])

    def verify(self) -> list[str]:
        """Return what is wrong, one line per shard; an empty list means all is well."""
        problems = []
        for k in range(self.plan.num_shards):
            try:
                self._verified.discard(k)
                self.read_shard(k)
            except SemmixError as error:
                problems.append(str(error))
        return problems

    def soft_labels(self, lam: Tensor) -> Tensor:
        """Return the soft labels for lambdas [sets, members], float32 [sets, members, classes]."""
        i, j = self.pairs().unsqueeze(-1).unbind(1)
        return mix_labels(i, j, lam, self.plan.num_classes)

    def _open_shard(self, k: int):
        what, _, fix = self._damaged(k, "")
        with explaining(what, fix, OSError, SafetensorError):
            shard = safe_open(self.shard_path(k), framework="pt")
            shard.get_slice("images")
        return shard

    def _header(self, k: int) -> dict[str, Any]:
        metadata = self._open_shard(k).metadata() or {}
        what, seen, fix = self._damaged(k, "its header is not readable")
        with explaining(what, fix, KeyError, ValueError, seen=seen):
            header = json.loads(metadata["semmix"])
        own = (header.get("store"), header.get("shard")) == (self._store, k)
        require(own, *self._damaged(k, "it belongs to another store or place"))
        return header

    def _damaged(self, k: int, seen: str) -> tuple[str, str, str]:
        path = self.shard_path(k)
        return f"{path.name} cannot be used", seen, f"delete {path}; {MAKE_AGAIN}"
