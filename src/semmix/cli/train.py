"""`semmix train`: train a classifier by any of the methods."""

from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

import torch
from tyro.conf import OmitArgPrefixes

from semmix.annotation.annotation import UNSCALED_SCHEMES
from semmix.cli.options import not_default
from semmix.core.errors import require
from semmix.core.progress import say
from semmix.core.runtime import Runtime
from semmix.data.config import DatasetConfig
from semmix.methods import method_class
from semmix.training.classifier import TrainConfig, train, under_confidence_warning
from semmix.training.mixed import load_mixed


@dataclass(frozen=True, kw_only=True)
class TrainCommand:
    """Train a classifier."""

    data: OmitArgPrefixes[DatasetConfig]
    """The real images."""
    train: OmitArgPrefixes[TrainConfig] = field(default_factory=TrainConfig)
    """The method and how it is trained."""
    mixsets: Path | None = None
    """Store of mixed sets, for methods that learn from them."""
    annotation: Path | None = None
    """Their annotation."""
    labels: str = "reannotated"
    """Of mixed images: reannotated, requested, one_hot, position, biased, encoder_softmax,
    third_class, or the controls requested_matched and smoothed_matched."""
    scale: float | None = None
    """Use this scale s instead of the annotation's."""
    exclude: Path | None = None
    """A diagnosis.json of the annotation: leave out the sets whose ends look like other classes."""
    runtime: OmitArgPrefixes[Runtime] = field(default_factory=Runtime)
    """Where it runs."""
    max_resident_gib: float = 8.0
    """Decode the images of a folder that needs more memory from their files in every epoch."""
    out: Path = Path("run")
    """Folder of the run."""

    def run(self) -> None:
        """Train, or go on training."""
        self._refuse_unused()
        mixed = None
        if self.mixsets:
            mixed = load_mixed(self.mixsets, self.annotation, self.labels, self.scale, self.exclude)
        data = self.data.load(self.max_resident_gib)
        run = train(data, self.train, self.out, mixed, self.runtime)
        if mixed:
            probs, labels = torch.from_numpy(run.val.logits).softmax(1), torch.from_numpy(run.val.labels)
            if warning := under_confidence_warning(probs, labels):
                say(warning)
        say(f"run in {self.out}; next: semmix evaluate {quote(str(self.out))}")

    def _refuse_unused(self) -> None:
        """Raise the error for options of mixed sets that would change nothing."""
        name, options = self.train.method, self.train.options
        given = not_default(self, ("mixsets", "annotation", "labels", "scale", "exclude"))
        fix = "leave these options out, or choose a method that does, such as csm"
        if "num_mixed" in options:
            fix = "use num_mixed >= 1, or leave these options out"
        learns = not given or options.get("num_mixed", method_class(name).num_mixed)
        require(learns, f"method {name} learns from no mixed sets", given, fix)
        fits = self.scale is None or self.labels not in UNSCALED_SCHEMES
        fix = "leave out --scale, or choose labels that have one, such as reannotated"
        require(fits, f"labels {self.labels!r} have no scale", self.scale, fix)
