"""A small network for small images: learns 8x8 digits in seconds on a CPU."""

from torch import Tensor, nn

from semmix.classifiers._base import Body


class Small(Body):
    """Three 3x3 convolutions, each halving the image but the first, and a 2x2 average pool."""

    feature_dim = 256

    def __init__(self, in_channels: int, image_size: int):
        super().__init__()
        self.layers = nn.Sequential(
            *_block(in_channels, 32, stride=1),
            *_block(32, 64, stride=2),
            *_block(64, 64, stride=2),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


def _block(in_channels: int, out_channels: int, stride: int) -> tuple[nn.Module, ...]:
    conv = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
    return conv, nn.BatchNorm2d(out_channels), nn.ReLU()
