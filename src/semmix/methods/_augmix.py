"""AugMix's nine image operations for a whole batch at once, each image with its own.

Images here hold the values 0, 1, ..., 255 as floats: like the image library the method was built
on, every operation rounds to whole values.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

GEOMETRIC = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")


def coordinates(operation: Tensor, level: Tensor, size: int) -> Tensor:
    """Return the maps `[N, 2, 3]` from new to old coordinates, where an image spans [-1, 1].

    At most one amount differs from zero, so that one formula serves all five operations.
    """
    amount = {name: level * (operation == k) for k, name in enumerate(GEOMETRIC)}
    angle = (amount["rotate"] * 30 / 10).trunc() * (math.pi / 180)
    cos, sin = angle.cos(), angle.sin()
    shear_x, shear_y = (amount[name] * 0.3 / 10 for name in ("shear_x", "shear_y"))
    x, y = (2 / size * (amount[name] * (size / 3) / 10).trunc() for name in ("translate_x", "translate_y"))
    # Images turn about their middle but are sheared from a corner: hence the shears in the shift.
    rows = [cos, shear_x - sin, shear_x + x, shear_y + sin, cos, shear_y + y]
    return torch.stack(rows, -1).view(-1, 2, 3)


def warp(images: Tensor, theta: Tensor) -> Tensor:
    """Return images that show at each place what was at theta's, black where that is outside."""
    x, y = (_centres(size, images) for size in (images.shape[-1], images.shape[-2]))
    rows = theta.view(-1, 2, 3, 1, 1).unbind(1)
    # Written out, since a matrix product may run at low precision and shift every pixel.
    grid = torch.stack([row[:, 0] * x + row[:, 1] * y[:, None] + row[:, 2] for row in rows], -1)
    inside = (grid.abs() <= 1).all(-1)[:, None]  # [N, 1, H, W]
    sampled = F.grid_sample(images, grid, padding_mode="border", align_corners=False)
    return (sampled * inside).round()


def _centres(size: int, like: Tensor) -> Tensor:
    return (2 * torch.arange(size, dtype=like.dtype, device=like.device) + 1) / size - 1


def autocontrast(images: Tensor, level: Tensor) -> Tensor:
    """Return each channel stretched over 0..255."""
    low, high = images.amin((-2, -1), keepdim=True), images.amax((-2, -1), keepdim=True)
    spread = high - low
    stretched = ((images - low) * 255 / spread.clamp(min=1)).floor()
    return torch.where(spread > 0, stretched, images)


def equalize(images: Tensor, level: Tensor) -> Tensor:
    """Return each channel with its values spread by their cumulative histogram."""
    values = images.long().flatten(2)  # [N, C, H * W]
    counts = values.new_zeros(*values.shape[:2], 256)
    counts.scatter_add_(-1, values, torch.ones_like(values))
    last = counts.gather(-1, values.amax(-1, keepdim=True))
    step = (values.shape[-1] - last) // 255
    below = counts.cumsum(-1) - counts
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    spread = table.gather(-1, values).view_as(images).to(images.dtype)
    return torch.where(step[..., None] > 0, spread, images)


def posterize(images: Tensor, level: Tensor) -> Tensor:
    """Return images with only the highest bits of each value: four, fewer at higher levels."""
    bits = 4 - (level * 4 / 10).floor()
    unit = 2 ** (8 - bits)
    return (images / unit).floor() * unit


def solarize(images: Tensor, level: Tensor) -> Tensor:
    """Return images whose values are inverted from a threshold on."""
    threshold = 256 - (level * 256 / 10).floor()
    return torch.where(images < threshold, images, 255 - images)


POINTWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "autocontrast": autocontrast,
    "equalize": equalize,
    "posterize": posterize,
    "solarize": solarize,
}
OPERATIONS = (*GEOMETRIC, *POINTWISE)


def apply_operations(images: Tensor, operation: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Return each square image after the operation of its index (out of range: unchanged).

    `level` lies between 0 and 10, the strongest; `sign` is -1 or 1 and turns geometric
    operations round. All three are `[N]`.
    """
    result = warp(images, coordinates(operation, level * sign, images.shape[-1]))
    for index, change in enumerate(POINTWISE.values(), start=len(GEOMETRIC)):
        changed = change(images, level.view(-1, 1, 1, 1))
        result = torch.where((operation == index).view(-1, 1, 1, 1), changed, result)
    return result
