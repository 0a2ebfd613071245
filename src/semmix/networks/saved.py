"""A trained network as one self-describing file, and networks of the user's code or an exported program (.pt2)."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from semmix.core.errors import SemmixError, explaining, require
from semmix.core.extras import import_object
from semmix.core.files import digest_tensors, whole_file, write_tensors
from semmix.core.zoo import find_zoo, is_zoo_name
from semmix.networks import Classifier, classifier, per_channel

PROGRAM = ".pt2"
"""How the names of exported programs end."""

Statistics = tuple[Sequence[float], Sequence[float]]
"""Mean and standard deviation of each channel, or one for all; empty where unknown."""
WEIGHTS = "weights.safetensors"
SAVED_PROGRAM = f"program{PROGRAM}"
MANIFEST = "model.json"
"""A folder with this file is an exported model, which may come from anybody; one without it is a run."""


def run_folder(spec: str | Path) -> Path:
    """Return the folder that a path means, or `zoo:NAME`: the classifier beside that generator."""
    return find_zoo(str(spec)) / "classifier" if is_zoo_name(spec) else Path(spec)


def save_classifier(network: Classifier, name: str, image_shape: tuple[int, int, int], folder: Path) -> None:
    """Write the weights, and in their header how to build the network again."""
    if name.endswith(PROGRAM):  # copied, so that the folder is all that is needed
        with whole_file(folder / SAVED_PROGRAM) as temporary:
            shutil.copyfile(name, temporary)
        name = SAVED_PROGRAM
    shapes = {"num_classes": network.num_classes, "in_channels": image_shape[0], "image_size": image_shape[1]}
    write_tensors(folder / WEIGHTS, network.state_dict(), {"classifier": name, **shapes})


def load_classifier(folder: str | Path, *, trust_code: bool = False) -> tuple[Classifier, str]:
    """Return the trained network of a folder or `zoo:NAME`, ready to predict, and its weights' digest.

    A user network in a model folder is its maker's code, built only if `trust_code`; a run is taken to be one's own.
    """
    folder = run_folder(folder)
    header, tensors = _read(folder)
    name, num_classes = header["classifier"], header["num_classes"]
    in_channels, size = header["in_channels"], header["image_size"]
    if is_user_network(name):
        if (folder / MANIFEST).exists() and not trust_code:
            raise makers_code(folder, name)
        network = user_classifier(name, num_classes, (in_channels, size, size))
    else:
        network = classifier(name, num_classes, in_channels, size)
    fix = "give the network back the layers it was trained with, or train it again"
    with explaining(f"the weights in {folder} are not of {name}", fix, RuntimeError):
        network.load_state_dict(tensors)
    return network.eval(), digest_tensors(tensors)


def initial_classifier(
    init: str, num_classes: int, image_shape: tuple[int, int, int], named: Statistics, default: Statistics
) -> tuple[Classifier, str]:
    """Return a network to start training from, ready to predict, and the name under which it can be built again.

    `init` is the folder of a run, `zoo:NAME`, an exported program (.pt2), or package.module:name of a user network.
    Networks of runs normalise by themselves; for others see `user_classifier`.
    """
    if run_folder(init).is_dir():
        network, name = load_classifier(init)[0], saved_name(init)
        checked(network, num_classes, image_shape, init)
    else:
        fix = "name the folder of a run, `zoo:NAME`, an exported program (.pt2) or package.module:name"
        require(is_user_network(init), "cannot start from this", repr(init), fix)
        network, name = user_classifier(init, num_classes, image_shape, named, default), init
        if isinstance(network, UserClassifier):
            return network, name
    require(not any(named), f"{init} normalises its images by itself", named, "leave out --init-mean and --init-std")
    return network, name


def copy_classifier(folder: Path, to: Path) -> list[str]:
    """Copy a trained network to another folder; return the names of its files."""
    names = [name for name in (SAVED_PROGRAM, WEIGHTS) if (folder / name).exists()]
    for name in names:
        with whole_file(to / name) as temporary:
            shutil.copyfile(folder / name, temporary)
    return names


def saved_name(folder: str | Path) -> str:
    """Return what the network in a folder is built from: a name of `classifier`, or of a user network."""
    return _read(folder)[0]["classifier"]


def saved_image_shape(folder: str | Path) -> tuple[int, int, int]:
    """Return channels, height and width of the images that the network in a folder takes."""
    header, _ = _read(folder)
    return header["in_channels"], header["image_size"], header["image_size"]


def check_takes(folder: str | Path, image_shape: tuple[int, ...], num_classes: int | None = None) -> None:
    """Refuse images, or a number of classes, that a folder's network was not trained for; grey ones are repeated."""
    shape, known = saved_image_shape(folder), _read(folder)[0]["num_classes"]
    fits = image_shape[0] in (1, shape[0]) and tuple(image_shape[1:]) == shape[1:]
    seen = f"it takes {shape}, they are {tuple(image_shape)}"
    fix = "name a classifier trained on images of this shape"
    require(fits, f"the classifier in {folder} does not fit the images", seen, fix)
    seen, fix = f"it knows {known}, there are {num_classes}", "name a classifier trained on these classes"
    require(num_classes in (None, known), f"the classifier in {folder} has other classes", seen, fix)


def _read(folder: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return how to build the network, and its weights."""
    folder = run_folder(folder)
    fix = "name the folder of a finished training run"
    if (folder / "model" / WEIGHTS).exists():  # as semmix fit leaves it
        fix = f"name the model in it: {folder / 'model'}"
    errors = (OSError, SafetensorError, ValueError, KeyError, TypeError)
    refused = explaining(f"no trained classifier in {folder}", fix, *errors)
    with refused, safe_open(folder / WEIGHTS, framework="pt") as file:
        header = json.loads(file.metadata()["semmix"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if header["classifier"] == SAVED_PROGRAM:
        header["classifier"] = str(folder / SAVED_PROGRAM)
    return header, tensors


def makers_code(folder: str | Path, name: str) -> SemmixError:
    """Return the error for a user network in a folder that may come from anybody."""
    fix = "if you trust its maker, say --trust-code to semmix predict or serve, or load_model(..., trust_code=True)"
    return SemmixError(f"the network in {folder} would run code of its maker", name, fix)


class UserClassifier(Classifier):
    """Images to logits by a user's network, `net`, which takes normalised images."""

    def __init__(self, net: nn.Module, num_classes: int, mean: Sequence[float], std: Sequence[float]):
        super().__init__(num_classes, mean, std)
        self.net = net

    def forward(self, images: Tensor) -> Tensor:
        return self.net(self.normalised(images))

    def features(self, images: Tensor) -> Tensor:
        """Return what the last linear layer receives, `[N, feature_dim]`; the logits without one, as in programs."""
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
