"""Any pretrained network of the timm package, without its head."""

import torch

from semmix.core.errors import SemmixError
from semmix.core.extras import import_extra
from semmix.networks.encoders.preprocess import Preprocess
from semmix.networks.encoders.pretrained import PretrainedEncoder, wrap_network


def load_timm(what: str, device: torch.device) -> PretrainedEncoder:
    """Return the pooled features of a timm network: a name, or `local-dir:FOLDER`."""
    timm = import_extra("timm", "timm", "timm:NAME")
    try:
        network = timm.create_model(what, pretrained=True, num_classes=0)
    except (OSError, RuntimeError, ValueError) as error:
        fix = "see timm.list_models(pretrained=True); a download needs the network"
        raise SemmixError("timm cannot load this network", what, fix) from error
    options = timm.data.resolve_model_data_config(network)
    height, width = options["input_size"][1:]
    preprocess = Preprocess(
        size=int(min(height, width) / options["crop_pct"]),
        crop=(height, width),
        mean=tuple(options["mean"]),
        std=tuple(options["std"]),
        resample=options["interpolation"],
    )
    return wrap_network(f"timm:{what}", network, preprocess, device)
