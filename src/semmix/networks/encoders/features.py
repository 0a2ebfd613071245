"""Features of many images, kept between runs for encoders that are slow."""

from contextlib import suppress

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from semmix.core.errors import SemmixError
from semmix.core.files import cache_folder, digest, write_tensors
from semmix.core.progress import Progress, progress, say
from semmix.data import Split
from semmix.networks.encoders import Encoder


def embed_all(encoder: Encoder, images: Tensor, title: str, batch_size: int = 1024) -> Tensor:
    """Return the features of all images, float32 [N, D], with a progress bar of their own."""
    with progress(title, len(images)) as bar:
        return embed_with(bar, encoder, images, batch_size)


def embed_with(bar: Progress, encoder: Encoder, images: Tensor, batch_size: int = 1024) -> Tensor:
    """Return the features of all images, float32 [N, D], and advance a bar that is there."""
    parts = []
    for batch in images.split(batch_size):
        parts.append(encoder.embed(batch).float().cpu())
        bar.advance(len(batch))
    return torch.cat(parts)


def embed_split(encoder: Encoder, split: Split, title: str) -> Tensor:
    """Return the features of a split; those of encoders with a `cache_key` are read only once."""
    key = getattr(encoder, "cache_key", None)
    if key is None:
        return embed_all(encoder, split.images, title)
    path = cache_folder("features") / f"{digest([key, split.digest])}.safetensors"
    with suppress(OSError, SafetensorError, KeyError):
        return load_file(path)["features"]
    features = embed_all(encoder, split.images, title)
    try:
        write_tensors(path, {"features": features})
    except SemmixError as error:  # only the cache is missing
        say(f"features are not kept for next time ({error.what}); SEMMIX_CACHE names the folder")
    return features
