"""Data sets in memory: digits, CIFAR, Tiny-ImageNet, Fashion-MNIST and any folder of images."""

from semmix.data.dataset import Dataset, Split
from semmix.data.folder_report import FolderReport, Problem
from semmix.data.library import check_data, get_data, import_data, list_data
from semmix.data.load import list_datasets, load_dataset
from semmix.data.splitting import long_tail_counts

__all__ = [
    "Dataset",
    "FolderReport",
    "Problem",
    "Split",
    "check_data",
    "get_data",
    "import_data",
    "list_data",
    "list_datasets",
    "load_dataset",
    "long_tail_counts",
]
