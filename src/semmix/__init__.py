"""semmix makes an image classifier say how sure it really is.

Public names are loaded on first use, so that `import semmix` costs no more than torch and numpy.
"""

from importlib import import_module
from typing import Any

import numpy as _numpy  # noqa: F401  (the two packages every part of semmix needs)
import torch as _torch  # noqa: F401

__version__ = "0.1.0"

# public name -> module that defines it
_PUBLIC = {
    "SemmixError": "semmix.core.errors",
    **dict.fromkeys(
        (
            "ece",
            "aece",
            "oe",
            "ue",
            "classwise_ece",
            "mce",
            "smooth_ece",
            "debiased_ece",
            "nll",
            "brier",
            "accuracy",
            "piece",
            "ood_auroc",
            "interval",
            "TemperatureScaler",
        ),
        "semmix.calibration",
    ),
    "mix_labels": "semmix.mixing.labels",
    "lambda_grid": "semmix.mixing.labels",
    "lambda_e": "semmix.annotation",
    "lambda_from": "semmix.annotation",
    "confidence_balance": "semmix.calibration.balance",
    "method": "semmix.methods",
    "list_methods": "semmix.methods",
    "classifier": "semmix.networks",
    "list_classifiers": "semmix.networks",
    "load_generator": "semmix.diffusion",
    "MixSets": "semmix.mixing.store",
    "MixPlan": "semmix.mixing.plan",
    "load_dataset": "semmix.data",
    "export_model": "semmix.deploy",
    "load_model": "semmix.deploy",
}

__all__ = ["__version__", *_PUBLIC]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'semmix' has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
