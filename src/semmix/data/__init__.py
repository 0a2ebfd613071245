"""Data sets in memory: digits, CIFAR, Tiny-ImageNet, Fashion-MNIST and any folder of images."""

from semmix.data.dataset import Dataset, Split
from semmix.data.library import check_data, get_data, import_data, list_data
from semmix.data.listing import FolderReport, Problem
from semmix.data.load import list_datasets, load_dataset
from semmix.data.splitting import long_tail_counts

__all__ = ["Dataset", "FolderReport", "Problem", "Split", "check_data", "get_data", "import_data", "list_data"]
__all__ += ["list_datasets", "load_dataset", "long_tail_counts"]
