"""`semmix fit`: from a folder of images, or a data set, to a calibrated model and a report."""

from __future__ import annotations

from collections.abc import Sequence

from semmix.fitting.choose import FitConfig, fit, recipe_for


class FitCommand(FitConfig):
    """From a folder of images, or a data set, to a calibrated model and a report."""

    @classmethod
    def defaults(cls, arguments: Sequence[str]) -> FitCommand:
        """Return the settings of the images that the arguments name."""
        return cls(**vars(recipe_for(arguments)))

    def run(self) -> None:
        """Walk the path; what is finished already is not done again."""
        fit(self)
