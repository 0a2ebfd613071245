"""Plain class samples, and a picture of them."""

from __future__ import annotations

import io
from pathlib import Path

import torch
from torch import Tensor

from semmix.core.errors import SemmixError
from semmix.core.files import write_bytes
from semmix.core.seeds import fold_seed
from semmix.diffusion import Generator
from semmix.diffusion.sampling import MixConfig, check_knows_classes, make_sampler, sample_padded


def sample_classes(generator: Generator, per_class: int, config: MixConfig, seed: int = 0) -> Tensor:
    """Return `per_class` images of every class, uint8 [K, per_class, C, H, W].

    Image m of class k starts from a noise of its own, whatever the other numbers are. Fewer images
    than a batch are drawn as one of their own size.
    """
    if per_class < 1:
        raise SemmixError("no images to draw", f"per_class={per_class}", "ask for at least 1")
    check_knows_classes(generator, 1)
    shape = getattr(generator, "latent_shape", generator.image_shape)
    num_classes = generator.num_classes
    noise = torch.stack(
        [
            torch.randn(shape, generator=torch.Generator().manual_seed(fold_seed("class", seed, k, m)))
            for k in range(num_classes)
            for m in range(per_class)
        ]
    )
    class_weights = torch.eye(num_classes).repeat_interleave(per_class, dim=0)
    sample = make_sampler(generator, config)
    batch_size = min(config.images_at_once(generator.device), len(noise))
    images = sample_padded(sample, noise, class_weights, batch_size)
    return images.unflatten(0, (num_classes, per_class))


def write_grid(path: Path, images: Tensor, pixels: int = 64) -> None:
    """Write uint8 images [rows, columns, C, H, W] as one PNG, each about `pixels` wide."""
    from PIL import Image

    images = torch.nn.functional.pad(images, (0, 1, 0, 1), value=128)  # a grey line between them
    rows, columns, channels, height, width = images.shape
    tall = images.permute(0, 3, 1, 4, 2).reshape(rows * height, columns * width, channels)
    picture = Image.fromarray(tall.squeeze(2).numpy())  # grey images have no channel axis
    zoom = max(1, round(pixels / width))
    picture = picture.resize((columns * width * zoom, rows * height * zoom), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    write_bytes(path, buffer.getvalue())
