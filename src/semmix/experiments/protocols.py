"""Every switch between the paper and its code, and every published setting, in one place."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from semmix.core.errors import unknown_name
from semmix.diffusion.sampling import MixConfig
from semmix.fitting.recipes import demo
from semmix.methods import method_options
from semmix.runs import Search
from semmix.training.classifier import TrainConfig
from semmix.training.generator import GeneratorConfig

_CONFIGURED = {"cifar10": 2.0, "cifar100": 2.0, "tiny-imagenet": 1.0}
_WRITTEN = {"cifar10": 1.0, "cifar100": 1.0, "tiny-imagenet": 2.0}


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """One answer to each question on which the paper and its published code differ.

    The defaults are what is mathematically right or produced the published results (docs/design.md).
    """

    split: Literal["code", "paper"] = "code"
    """Images to train, choose and test on: 45,000/5,000/10,000 or 50,000/5,000/5,000."""
    l2: Literal["code", "paper"] = "code"
    """CSM's loss: summed over the classes, or divided by their number."""
    ecp: Literal["code", "paper"] = "paper"
    """ECP's entropy: averaged over the classes too, or summed."""
    rankmixup_alpha: Mapping[str, float] = field(default_factory=lambda: _CONFIGURED)
    """RankMixup's Beta by data set; CSM's paper and RankMixup's configuration swap the two."""
    overconfidence: Literal["plain", "weighted"] = "plain"
    """OE and UE: gaps alone (then OE + UE = ECE), or gaps times confidence."""
    temperature: Search = "nll"
    """How T is found on validation images: the least NLL, or the least ECE among 0.1, 0.2, ..., 10."""


PROTOCOLS = {
    "semmix": Protocol(),
    "code": Protocol(ecp="code", overconfidence="weighted", temperature="ece-grid"),
    "paper": Protocol(split="paper", l2="paper", rankmixup_alpha=_WRITTEN, temperature="ece-grid"),
}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the paper trains on one data set."""

    image_shape: tuple[int, int, int]
    num_classes: int
    num_images: int
    """Images of the official training part."""
    classifiers: tuple[str, ...]
    """Networks of the main table."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """Epochs, batch size, schedule."""
    train_size: int | None = None
    """Training images to use; all by default."""
    clip_scale: float = 4.0
    """The scale s for CLIP ViT-B/32; for other encoders it is chosen on validation images."""
    own_scale: float | None = None
    """The scale s for an encoder of our own, where it was chosen by training with several."""
    joint_scale: float | None = None
    """The same where real and mixed images share their batch statistics."""
    num_mixed: int = 2
    """N_aug: mixed images for each real one."""
    sets_per_pair: int
    """Mixed sets for each pair of classes."""
    margin: float = 6.0
    """MbLS's margin."""
    generator: GeneratorConfig = field(
        default_factory=lambda: GeneratorConfig(network="compact32", minutes=25, flip=True)
    )
    """Ours: the paper takes published weights, whose training split is not that of the table."""
    sampler: MixConfig = field(default_factory=MixConfig)
    """How mixed sets are drawn."""
    needs: str = ""
    """What users must bring before this can run."""


_DEMO = demo()

RECIPES = {
    "cifar10": Recipe(
        image_shape=(3, 32, 32),
        num_classes=10,
        num_images=50_000,
        classifiers=("resnet50", "resnet101"),
        sets_per_pair=444,
        # Of 3 to 8 (joint: 3 to 5), the one whose confidence is nearest to its accuracy on
        # validation images: ResNet-18, seed 0 (docs/results.md).
        own_scale=5.0,
        joint_scale=3.0,
        sampler=MixConfig(solver="heun", num_steps=20),
    ),
    "cifar100": Recipe(
        image_shape=(3, 32, 32),
        num_classes=100,
        num_images=50_000,
        classifiers=("resnet50", "resnet101"),
        clip_scale=2.3,
        sets_per_pair=4,
        own_scale=2.0,  # of 2 to 6 and 8, likewise
        sampler=MixConfig(solver="heun", num_steps=25),
    ),
    "tiny-imagenet": Recipe(
        image_shape=(3, 64, 64),
        num_classes=200,
        num_images=100_000,
        classifiers=("resnet50", "resnet101"),
        num_mixed=1,
        sets_per_pair=2,
        margin=10.0,
        train=TrainConfig(epochs=100, batch_size=64),
        sampler=MixConfig(solver="heun", num_steps=25),
    ),
    "imagenet": Recipe(
        image_shape=(3, 224, 224),
        num_classes=1000,
        num_images=1_281_167,
        classifiers=("timm:resnet50",),
        sets_per_pair=1,
        margin=10.0,
        train=TrainConfig(batch_size=256),
        needs="ImageNet as an image folder and a generator for it; the paper does not give its training settings",
    ),
    "digits": Recipe(
        image_shape=(1, 8, 8),
        num_classes=10,
        num_images=1_797,
        classifiers=("small",),
        train=_DEMO.train,
        train_size=_DEMO.data.train_size,
        sets_per_pair=_DEMO.sets_per_pair,
        generator=_DEMO.generator,
        sampler=_DEMO.sampler,
    ),
}
"""Published settings, and the demo's for `digits`, of which the paper knows nothing."""


def recipe_for(dataset: str) -> Recipe:
    """Return how the tables train on `dataset`."""
    if dataset not in RECIPES:
        raise unknown_name("data set of the tables", dataset, RECIPES)
    return RECIPES[dataset]


def protocol_called(name: str) -> Protocol:
    """Return a protocol by its name."""
    if name not in PROTOCOLS:
        raise unknown_name("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]


def method_settings(method: str, dataset: str, protocol: Protocol) -> dict[str, object]:
    """Return a method's options as the paper's comparison used them on `dataset`.

    MMCE, CRL and CPC, whose weights the paper does not give, keep their authors'.

    >>> method_settings("mbls", "tiny-imagenet", PROTOCOLS["semmix"])
    {'margin': 10.0, 'alpha': 0.1}
    """
    recipe = recipe_for(dataset)
    settings: dict[str, dict[str, object]] = {
        "ecp": {"weight": 0.1, "protocol": protocol.ecp},
        "ls": {"alpha": 0.05},
        "fl": {"gamma": 3.0},
        "mbls": {"margin": recipe.margin, "alpha": 0.1},
        "fcl": {"gamma": 3.0, "weight": 0.5},
        "mixup": {"alpha": 0.2},
        "regmixup": {"alpha": 10.0},
        "augmix": {"weight": 1.0},
        "rankmixup": {"alpha": protocol.rankmixup_alpha.get(dataset, 2.0), "weight": 0.1},
        "unimix": {"tau": -0.1 if dataset == "cifar100" else -0.5},
        "csm": {"num_mixed": recipe.num_mixed, "protocol": protocol.l2},
    }
    return settings.get(method, {})


def training_config(method: str, dataset: str, protocol: Protocol, options: Mapping[str, object]) -> TrainConfig:
    """Return the training of `method` on `dataset`; `options` come on top of the published.

    A default that is written out changes nothing, so it gives the run no other name.
    """
    published, defaults = method_settings(method, dataset, protocol), method_options(method)
    asked = {k: v for k, v in options.items() if k in published or v != defaults.get(k)}
    # Published are the weights of the best validation accuracy.
    return replace(recipe_for(dataset).train, method=method, options={**published, **asked}, select="best")
