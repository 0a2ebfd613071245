"""Data sets in memory: digits, CIFAR, Tiny-ImageNet, Fashion-MNIST and any folder of images."""

from semmix.datasets.dataset import Dataset, Split
from semmix.datasets.folder import FolderReport, Problem
from semmix.datasets.load import list_datasets, load_dataset

__all__ = ["Dataset", "FolderReport", "Problem", "Split", "list_datasets", "load_dataset"]
