"""Test-time augmentation: the mean prediction over shifted and mirrored views of each image."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from semmix.core.errors import require


@torch.no_grad()
def tta_probs(forward: Callable[[Tensor], Tensor], images: Tensor, padding: int = 4, flip: bool = True) -> Tensor:
    """Return the mean over all `views` of softmax(forward(view)), float64 `[N, K]`.

    Args:
        forward: the classifier in evaluation mode, images `[N, C, H, W]` to logits `[N, K]`.
        images: `[N, C, H, W]`, as the classifier expects them.
        padding: pixels by which views are shifted; 0 for none.
        flip: add the mirror image of every view.
    """
    probs = [forward(view).double().softmax(1) for view in views(images, padding, flip)]
    return torch.stack(probs).mean(0)


def views(images: Tensor, padding: int = 4, flip: bool = True) -> Iterator[Tensor]:
    """Yield the image and its four corner crops after zero padding, each also mirrored."""
    require(images.ndim == 4, "images must be [N, C, H, W]", tuple(images.shape), "add a batch axis")
    height, width = images.shape[-2:]
    padded = functional.pad(images, [padding] * 4)
    corners = [(y, x) for y in (0, 2 * padding) for x in (0, 2 * padding)] if padding else []
    for y, x in [(padding, padding), *corners]:
        view = padded[..., y : y + height, x : x + width]
        yield view
        if flip:
            yield view.flip(-1)
