"""What a training-time calibration method sees, and what it must return."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

Forward = Callable[[Tensor], Tensor]
"""Images [N, C, H, W] in [0, 1] to float32 logits [N, K]; mixed precision stays inside."""


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
