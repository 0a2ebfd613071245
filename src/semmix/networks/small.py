"""A small network for small images: learns 8x8 digits in seconds on a CPU."""

from torch import Tensor, nn

from semmix.networks.base_classifier import Body, conv_bn


class Small(Body):
    """Three 3x3 convolutions, each halving the image but the first, and a 2x2 average pool."""

    feature_dim = 256

    def __init__(self, in_channels: int, image_size: int):
        super().__init__()
        self.layers = nn.Sequential(
            *conv_bn(in_channels, 32, 3),
            nn.ReLU(),
            *conv_bn(32, 64, 3, stride=2),
            nn.ReLU(),
            *conv_bn(64, 64, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)
