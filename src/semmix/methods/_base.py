"""What a training-time calibration method sees and must return, and what several of them share: losses and mixing.

Nothing here waits for the device, so that a step can be captured in a CUDA graph.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Beta

from semmix.core.errors import require

Forward = Callable[[Tensor], Tensor]
"""Images [N, C, H, W] in [0, 1] to float32 logits [N, K]; mixed precision stays inside."""
BANDWIDTH = 0.4
"""Of the kernel in both forms of MMCE."""


@dataclass(kw_only=True)
class Batch:
    """One step's data, all on one device; images are already cropped and flipped."""

    images: Tensor
    """Real images, floats in [0, 1]: [B, C, H, W]."""
    labels: Tensor
    """Their classes, int64: [B]."""
    index: Tensor
    """Their positions in the training split, int64: [B]."""
    mixed_images: Tensor | None = None
    """Semantically mixed images, where the method asks for them: [B * num_mixed, C, H, W]."""
    mixed_labels: Tensor | None = None
    """Their soft labels, rows on the simplex: [B * num_mixed, K]."""


@dataclass(kw_only=True, eq=False)
class Method:
    """Base of all methods: a dataclass of options with one loss.

    A step may be captured in a CUDA graph. So it keeps shapes fixed, never waits for the device (no
    `.item()`, no boolean indexing), draws only from torch's default generator, which the loop
    seeds for every step, and changes its memory in place.
    """

    num_mixed: ClassVar[int] = 0
    """Mixed images wanted per real one."""

    num_classes: int
    """Classes the network tells apart."""

    @property
    def first_pass_predicts(self) -> bool:
        """Whether prediction normalises by the statistics of a step's first pass alone."""
        return False

    def setup(self, train_labels: Tensor) -> None:
        """Look at the training split's labels once before training (int64 `[N]`, on the device)."""

    def step(self, forward: Forward, batch: Batch) -> dict[str, Tensor]:
        """Return named loss terms; the one called `loss` is minimised."""
        raise NotImplementedError

    def end_epoch(self, val_logits: Tensor | None, val_labels: Tensor | None) -> None:
        """Learn from an epoch, and from the validation split's logits [N, K] and labels [N]."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the memory a resumed run needs: tensors only, empty for most methods."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Copy a saved memory into the present one, in place."""
        for name, tensor in self.state_dict().items():
            tensor.copy_(state[name])


def l2_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over the batch of ||p - q||^2, summed over classes (the Brier score)."""
    return (logits.softmax(-1) - targets).square().sum(-1).mean()


def focal_loss(logits: Tensor, targets: Tensor, gamma: float | Tensor) -> Tensor:
    """Return the mean over the batch of sum_k q_k (1 - p_k)^gamma (-log p_k), for soft labels q."""
    log_p = logits.log_softmax(-1)
    # 1 - p by expm1 stays exact where p is almost one.
    return -(targets * (-torch.expm1(log_p)) ** gamma * log_p).sum(-1).mean()


def soft_loss(name: str, logits: Tensor, targets: Tensor, gamma: float) -> Tensor:
    """Return the loss called `name` on soft labels `[N, K]`; `gamma` belongs to focal."""
    if name == "l2":
        return l2_loss(logits, targets)
    return focal_loss(logits, targets, gamma) if name == "focal" else F.cross_entropy(logits, targets)


def check_gamma(gamma: float) -> None:
    """Refuse a focal exponent below 1, other than 0: its gradient is infinite at p = 1."""
    require(gamma == 0 or gamma >= 1, "focal gamma has no finite gradient", gamma, "choose 0, or at least 1")


def one_hot(labels: Tensor, like: Tensor) -> Tensor:
    """Return labels `[N]` as rows of zeros and a one, in the shape and type of logits `[N, K]`."""
    return F.one_hot(labels, like.shape[-1]).to(like.dtype)


def confidence(logits: Tensor) -> Tensor:
    """Return the largest softmax probability of each row."""
    return logits.softmax(-1).amax(-1)


def margin_excess(logits: Tensor, margin: float) -> Tensor:
    """Return how much more than `margin` each logit lies below its row's largest."""
    return logits.amax(-1, keepdim=True) - logits - margin


def laplacian(conf: Tensor) -> Tensor:
    """Return k(c_i, c_j) = exp(-|c_i - c_j| / 0.4) for all pairs: `[B, B]`."""
    return (-(conf[:, None] - conf).abs() / BANDWIDTH).exp()


def hits(logits: Tensor, labels: Tensor) -> Tensor:
    """Return 1 where the prediction is right, else 0; no gradient flows through it."""
    return (logits.argmax(-1) == labels).to(logits.dtype)


def draw_beta(alpha: float, num: int, like: Tensor) -> Tensor:
    """Return `num` draws of Beta(alpha, alpha), on the device and in the type of `like`."""
    shape = torch.full((num,), alpha, dtype=like.dtype, device=like.device)
    return Beta(shape, shape, validate_args=False).sample()


def permutation(num: int, device: torch.device) -> Tensor:
    """Return a random order of 0..num-1; unlike randperm, CUDA graphs can capture it."""
    return torch.rand(num, device=device).argsort()


def blend(a: Tensor, b: Tensor, lam: Tensor) -> Tensor:
    """Return lam * a + (1 - lam) * b, one lam for each row or one for all."""
    lam = lam.view(-1, *[1] * (a.ndim - 1))
    return lam * a + (1 - lam) * b


def mix_batch(batch: Batch, lam: Tensor) -> tuple[Tensor, Tensor]:
    """Return each image blended with that of a random partner in the batch, and the partners' labels."""
    order = permutation(len(batch.images), batch.images.device)
    return blend(batch.images, batch.images[order], lam), batch.labels[order]


def soft_labels(labels: Tensor, partners: Tensor, lam: Tensor, like: Tensor) -> Tensor:
    """Return lam * onehot(labels) + (1 - lam) * onehot(partners), shaped like logits `[N, K]`."""
    return blend(one_hot(labels, like), one_hot(partners, like), lam)


def class_counts(labels: Tensor, num_classes: int) -> Tensor:
    """Return how many training images each class has, at least 1 so that ratios stay finite."""
    counts = labels.new_zeros(num_classes)
    return counts.index_add_(0, labels, torch.ones_like(labels)).clamp(min=1)
