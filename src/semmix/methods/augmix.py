"""AugMix: the predictions for an image and for two augmented views of it should agree.

Its nine image operations work on a whole batch at once, each image with its own. Images there hold the values 0, 1,
..., 255 as floats: like the image library the method was built on, every operation rounds to whole values.

Hendrycks et al., AugMix, https://arxiv.org/abs/1912.02781
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Dirichlet

from semmix.core.checks import check_positive
from semmix.methods._base import Batch, Forward, Method, blend, draw_beta

NUM_CHAINS = 3
MAX_DEPTH = 3
GEOMETRIC = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")


@dataclass(kw_only=True, eq=False)
class AugMix(Method):
    """Cross-entropy on real images plus the divergence between them and two augmented views."""

    weight: float = 1.0
    """Weight of the Jensen-Shannon divergence: 12 in AugMix's paper, 1 in CSM's comparison."""
    severity: float = 3.0
    """Strongest level of an operation, out of 10."""

    def __post_init__(self):
        check_positive(severity=self.severity)

    def step(self, forward: Forward, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            views = augment(batch.images.repeat(2, 1, 1, 1), self.severity)
        logits = forward(torch.cat([batch.images, views])).chunk(3)
        ce = F.cross_entropy(logits[0], batch.labels)
        divergence = jensen_shannon(logits)
        return {"loss": ce + self.weight * divergence, "ce": ce, "divergence": divergence}


def jensen_shannon(logits: tuple[Tensor, ...]) -> Tensor:
    """Return the mean over views and batch of KL(p_view || mean of all views)."""
    log_p = torch.stack(logits).log_softmax(-1)  # [V, B, K]
    p = log_p.exp()
    log_mean = p.mean(0).clamp(1e-7, 1).log()
    return (p * (log_p - log_mean)).sum(-1).mean()


def augment(images: Tensor, severity: float) -> Tensor:
    """Return each image blended with a random mixture of three chains of operations."""
    num = len(images)
    chains = chain(images.repeat(NUM_CHAINS, 1, 1, 1), severity).view(NUM_CHAINS, *images.shape)
    ones = torch.ones(num, NUM_CHAINS, device=images.device, dtype=images.dtype)
    weights = Dirichlet(ones, validate_args=False).sample().T.view(NUM_CHAINS, num, 1, 1, 1)
    return blend((weights * chains).sum(0), images, draw_beta(1.0, num, images))


def chain(images: Tensor, severity: float) -> Tensor:
    """Return each image after one to three random operations."""
    num, device = len(images), images.device
    depth = torch.randint(1, MAX_DEPTH + 1, (num,), device=device)
    result = (images * 255).round()
    for k in range(MAX_DEPTH):
        operation = torch.randint(len(OPERATIONS), (num,), device=device)
        level = torch.rand_like(result[:, 0, 0, 0]) * (severity - 0.1) + 0.1
        sign = torch.randint(2, (num,), device=device) * 2 - 1
        operation = torch.where(k < depth, operation, len(OPERATIONS))  # past the end: no change
        result = apply_operations(result, operation, level, sign)
    return result / 255


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
    return (F.grid_sample(images, grid, padding_mode="border", align_corners=False) * inside).round()


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


POINTWISE = (autocontrast, equalize, posterize, solarize)
OPERATIONS = (*GEOMETRIC, *(change.__name__ for change in POINTWISE))


def apply_operations(images: Tensor, operation: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Return each square image after the operation of its index (out of range: unchanged).

    `level` lies between 0 and 10, the strongest; `sign` is -1 or 1 and turns geometric operations round.
    """
    result = warp(images, coordinates(operation, level * sign, images.shape[-1]))
    for index, change in enumerate(POINTWISE, start=len(GEOMETRIC)):
        changed = change(images, level.view(-1, 1, 1, 1))
        result = torch.where((operation == index).view(-1, 1, 1, 1), changed, result)
    return result
