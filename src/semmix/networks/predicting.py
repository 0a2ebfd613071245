"""A classifier over many images: the only loop for it, and the only precision."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from semmix.core.progress import Progress
from semmix.data.decoding import StreamedImages
from semmix.networks import Classifier

Images = Tensor | StreamedImages
"""uint8 [N, C, H, W], in memory or in files."""


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute without gradients, in full float32: a GPU's convolutions round to TF32 otherwise."""
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def predict_logits(
    network: Classifier, images: Images, batch_size: int = 1000, fast: bool = False, bar: Progress | None = None
) -> Tensor:
    """Return float32 logits [N, K] in evaluation mode, on the network's device; the network keeps its mode.

    `fast` computes in bfloat16 on a GPU, as training does, instead of full float32; `bar` is told what is done.
    """
    device = network.mean.device
    with torch.autocast(device.type, torch.bfloat16, enabled=fast and device.type == "cuda"):
        return over_batches(network, network, images, batch_size, bar)


def over_batches(
    network: Classifier, function: Callable, images: Images, batch_size: int = 1000, bar: Progress | None = None
) -> Tensor:
    """Return what a function by `network` gives for all images, float32 [N, ...]; see `predict_logits`."""
    was_training, results = network.training, []
    network.eval()
    with full_precision():
        for batch in images.split(batch_size):
            results.append(function(batch.to(network.mean.device)).float())
            if bar:
                bar.advance(len(batch))
    network.train(was_training)
    return torch.cat(results)
