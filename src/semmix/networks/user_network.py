"""User networks: a network of the user's code, or an exported program, as a classifier. Names of weights stay."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from semmix.core.errors import SemmixError, explaining, require
from semmix.core.extras import import_object
from semmix.networks import Classifier, per_channel

PROGRAM = ".pt2"
"""How the names of exported programs end."""

Statistics = tuple[Sequence[float], Sequence[float]]
"""Mean and standard deviation of each channel, or one for all; empty where unknown."""


class UserClassifier(Classifier):
    """Images to logits by a user's network, `net`, which takes normalised images."""

    def __init__(self, net: nn.Module, num_classes: int, mean: Sequence[float], std: Sequence[float]):
        super().__init__(num_classes, mean, std)
        self.net = net

    def forward(self, images: Tensor) -> Tensor:
        return self.net(self.normalised(images))

    def features(self, images: Tensor) -> Tensor:
        """Return what the last linear layer receives, `[N, feature_dim]`.

        Without such a layer, as in exported programs, features are the logits.
        """
        seen: list[Tensor] = []
        linear = [layer for layer in self.net.modules() if isinstance(layer, nn.Linear)]
        hooks = [layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])) for layer in linear[-1:]]
        logits = self(images)
        for hook in hooks:
            hook.remove()
        return seen[-1].flatten(1) if seen else logits


class Program(nn.Module):
    """An exported program that can be trained: its batch normalisation and dropout know modes."""

    def __init__(self, module: Any):
        super().__init__()
        self.module = module.requires_grad_(True)
        self.train()

    def forward(self, images: Tensor) -> Tensor:
        return self.module(images)

    def train(self, mode: bool = True) -> Program:
        """Switch the mode, which is an argument of the program's operations."""
        aten = torch.ops.aten
        place_of_mode = {aten.batch_norm.default: 5, aten.dropout.default: 2}
        for node in self.module.graph.nodes:
            if node.target in place_of_mode:
                node.update_arg(place_of_mode[node.target], mode)
        self.module.recompile()
        self.training = mode
        return self


def is_user_network(name: str) -> bool:
    """Return whether a name means a user network: the file of a program, or package.module:name."""
    return name.endswith(PROGRAM) or (":" in name and not name.startswith("timm:"))


def user_classifier(
    name: str,
    num_classes: int,
    image_shape: tuple[int, int, int],
    named: Statistics = ((), ()),
    default: Statistics = ((0.0,), (1.0,)),
) -> Classifier:
    """Return the user network called `name`, with normalisation in front, ready to predict.

    Mean and std are those `named`, else the network's attributes `mean` and `std`, else the `default`. A `Classifier`
    of the user's code normalises by itself.
    """
    net = _load_program(name) if name.endswith(PROGRAM) else _import_network(name)
    if isinstance(net, Classifier):
        return checked(net, num_classes, image_shape, name)
    statistics = []
    for which, given, otherwise in zip(("mean", "std"), named, default, strict=True):
        found = getattr(net, which, ())
        found = torch.as_tensor(found).flatten().tolist() if isinstance(found, Tensor | list | tuple) else ()
        values = list(given or found or otherwise)
        values = values * image_shape[0] if len(values) == 1 else values
        statistics.append(per_channel(which, values, image_shape[0]))
    network = checked(UserClassifier(net, num_classes, *statistics), num_classes, image_shape, name)
    with torch.no_grad():
        network.feature_dim = network.features(torch.zeros(2, *image_shape)).shape[1]
    return network


def checked(network: Classifier, num_classes: int, image_shape: tuple[int, int, int], name: str) -> Classifier:
    """Return the network, ready to predict, if it gives one logit for each class of such images."""
    network.eval()
    for num in (2, 3):
        try:
            with torch.no_grad():
                logits = network(torch.zeros(num, *image_shape))
        except Exception as error:  # a user's code may raise anything
            fix = f"it must take float images {[num, *image_shape]}, in batches of any size"
            raise SemmixError(f"{name} cannot read the images", f"{type(error).__name__}: {error}", fix) from error
        seen = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        fix = f"replace its last layer by one with {num_classes} outputs, one for each class"
        require(seen == [num, num_classes], f"{name} does not give logits {[num, num_classes]}", seen, fix)
    places: dict[int, str] = {}
    for key, tensor in network.state_dict().items():
        other = places.setdefault(tensor.data_ptr(), key) if tensor.numel() else key
        # A file would hold such weights twice, and in training they would part.
        fix = "give each layer its own weights (copy.deepcopy)"
        require(other == key, f"{name} shares weights between layers", f"{other} and {key}", fix)
    return network


def _import_network(name: str) -> nn.Module:
    fix = "write package.module:name of a torch.nn.Module, or of what returns one when called"
    made = import_object(name, "network", f"{fix}; Python must find it from here")
    try:
        made = copy.deepcopy(made) if isinstance(made, nn.Module) else made()
    except Exception as error:  # a user's code may raise anything
        other_fix = "it is called without arguments, and must find the files it needs from here"
        raise SemmixError(f"{name} cannot be called", f"{type(error).__name__}: {error}", other_fix) from error
    require(isinstance(made, nn.Module), f"{name} is not a network", type(made).__name__, fix)
    return made


def _load_program(path: str) -> nn.Module:
    require(Path(path).is_file(), "no exported program here", path, "name a file of torch.export.save")
    fix = "write it with torch.export.save, by the same version of torch"
    with explaining(f"cannot read the exported program {path}", fix, Exception):  # torch raises what its readers do
        return Program(torch.export.load(path).module())
