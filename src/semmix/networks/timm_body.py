"""Any network of the timm package as the body of a classifier."""

from torch import Tensor

from semmix.core.errors import SemmixError
from semmix.core.extras import import_extra
from semmix.networks.base_classifier import Body


class TimmBody(Body):
    """A timm network without its head, freshly initialised."""

    def __init__(self, name: str, in_channels: int, image_size: int):
        super().__init__()
        timm = import_extra("timm", "timm", "timm:NAME")
        if not timm.is_model(name):
            raise SemmixError("timm does not know this network", name, "see timm.list_models(), and timm:NAME")
        fixed = getattr(timm.get_pretrained_cfg(name), "fixed_input_size", False)
        size = {"img_size": image_size} if fixed else {}
        self.net = timm.create_model(name, num_classes=0, in_chans=in_channels, **size)
        self.feature_dim = getattr(self.net, "head_hidden_size", None) or self.net.num_features

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)
