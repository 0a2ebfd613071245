"""Class-conditional diffusion models: the protocol, and how one is loaded."""

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from semmix.core.device import pick_device
from semmix.core.errors import require
from semmix.core.zoo import find_zoo, is_zoo_name


class Generator(Protocol):
    """What a class-conditional diffusion model must offer to make mixed sets.

    Plain attributes will do. A model that works in a latent space also has `latent_shape` and
    `decode(latents) -> images in [-1, 1]`. One that takes class weights of zero for "no class",
    because it was trained with label dropout, may say `knows_no_class = True`: it can be guided.
    One that embeds class weights linearly may say `takes_emphasis = True`: these may then be a
    little below 0 or above 1.
    """

    @property
    def name(self) -> str:
        """Named in the stores it fills."""
        ...

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of its images."""
        ...

    @property
    def num_classes(self) -> int:
        """Classes it knows."""
        ...

    @property
    def trained_on(self) -> str | None:
        """Digest of the split it learned from; None when unknown."""
        ...

    @property
    def digest(self) -> str:
        """Changes whenever its images would."""
        ...

    @property
    def device(self) -> torch.device:
        """Where `denoise` wants its tensors."""
        ...

    def denoise(self, x: Tensor, sigma: Tensor, class_weights: Tensor) -> Tensor:
        """Return E[clean image | x, class weights], [N, C, H, W].

        Args:
            x: Clean images in [-1, 1] plus sigma times standard normal noise, [N, C, H, W].
            sigma: Noise levels, [N].
            class_weights: Rows on the simplex, [N, K].
        """
        ...


def load_generator(spec: str | Path, device: str = "auto") -> Generator:
    """Return a trained generator, ready to draw images.

    Args:
        spec: The folder of a generator, or `zoo:NAME` (`semmix zoo list` shows the names). Models of the
            diffusers library are `diffusers:FOLDER`, `dit:FOLDER` and `sd:FOLDER` (docs/adapters.md).
        device: Where it computes, such as `cpu` or `cuda:0`; `auto` takes a GPU if there is one.

    Returns:
        A `Generator`: its `denoise` is what `mix` and `semmix generator sample` draw with.

    Raises:
        SemmixError: If there is no such generator, if it is not finished, or if its weights were changed.

    Example:
        >>> generator = load_generator("zoo:cifar10", device="cpu")
        >>> generator
        Generator('cifar10': 3 x 32 x 32, 10 classes, SongUNet on cpu)
        >>> generator.denoise(torch.zeros(1, 3, 32, 32), torch.ones(1), torch.eye(10)[:1]).shape
        torch.Size([1, 3, 32, 32])
    """
    from semmix.diffusion.adapters import load_adapter
    from semmix.diffusion.stored import load_stored

    if str(spec).startswith(("diffusers:", "dit:", "sd:")):
        return load_adapter(str(spec), pick_device(device))
    return load_stored(find_folder(spec), pick_device(device))


def describe_generator(generator: Generator, network: str) -> str:
    """Return how a generator prints: name, shape, classes, network and device."""
    shape = " x ".join(map(str, generator.image_shape))
    what = f"{shape}, {generator.num_classes} classes, {network} on {generator.device}"
    return f"Generator({generator.name!r}: {what})"


def find_folder(spec: str | Path) -> Path:
    """Return the folder that a path or `zoo:NAME` means."""
    folder = find_zoo(str(spec)) if is_zoo_name(spec) else Path(spec)
    require(folder.is_dir(), "no generator here", folder, "give a folder that holds generator.json, or zoo:NAME")
    return folder
