"""The choice of a data set, as every command takes it."""

from dataclasses import dataclass, field
from pathlib import Path

from tyro.conf import Positional

from semmix.core.settings import unnamed
from semmix.data.dataset import Dataset
from semmix.data.load import load_dataset


@dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    """Which images, and how they are split."""

    dataset: Positional[str]
    """A data set (semmix data list), a folder of class folders, or a .csv or .jsonl of paths."""
    root: Path | None = field(default=None, metadata=unnamed())
    """Where imported data sets live; $SEMMIX_DATA or ~/.cache/semmix/datasets by default."""
    protocol: str = "code"
    """Split of the published code (45,000/5,000/10,000) or of the paper (50,000/5,000/5,000)."""
    split_seed: int = 0
    """Seed of the split."""
    train_size: int | None = None
    """Use this many training images, the classes in their proportions; all by default."""
    imbalance: float | None = None
    """Make a long tail: size of the largest class over that of the smallest."""
    size: int | None = None
    """Scale and crop the images to this height and width; needed where a folder's sizes differ."""
    strict: bool = False
    """Refuse an image folder with unusable files instead of skipping them."""

    def load(self, max_resident_gib: float | None = None) -> Dataset:
        """Return the data set; a folder that needs more memory than allowed stays in its files."""
        names = ("root", "protocol", "train_size", "imbalance", "size", "strict")
        settings = {name: getattr(self, name) for name in names}
        return load_dataset(self.dataset, seed=self.split_seed, max_resident_gib=max_resident_gib, **settings)
