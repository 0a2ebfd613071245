"""Own images: `fit` looks at them, plans, prepares, trains candidates, chooses and ships."""

from semmix.fitting.fit import Fitted, fit
from semmix.fitting.recipes import FitConfig

__all__ = ["FitConfig", "Fitted", "fit"]
