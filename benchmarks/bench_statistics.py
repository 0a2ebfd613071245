"""How sure networks are of real and of mixed images, and by whose batch statistics.

    semmix mix zoo:cifar10 --sets 90 --seed 7 --out sets
    python benchmarks/bench_statistics.py runs/ce-0 runs/csm-0 --dataset cifar10 --mixsets sets

CSM passes real and mixed images through the network apart, so each kind is normalised by its own
batch, and the network can tell them by that. Every line is a network with the statistics it was
saved with, with those of real training images, or with those of the mixed ones. A network that goes
by what images show answers nearly the same with each.

A network may also learn to tell generated images by how they look: the last column says how well
its features do (AUROC of a linear classifier, test images against ends of sets; 50 is chance).
"""

import argparse
from pathlib import Path

import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from semmix.data.config import DatasetConfig
from semmix.mixing.store import MixSets
from semmix.networks.predicting import predict_logits
from semmix.networks.saved import load_classifier
from semmix.training.batches import crop_and_flip

BATCH_SIZE = 120
PAD = 4


def renormalise(network: nn.Module, images: Tensor, num: int) -> None:
    """Replace the batch statistics by those of `num` images, cropped and flipped as CIFAR's are."""
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.reset_running_stats()
            layer.momentum = None  # a plain mean over batches
    network.train()
    order = torch.cat([torch.randperm(len(images)) for _ in range(-(-num // len(images)))])[:num]
    with torch.no_grad():
        for chosen in order.split(BATCH_SIZE):
            network(crop_and_flip(images[chosen], PAD, flip=True))


@torch.no_grad()
def told_apart(network: nn.Module, real: Tensor, generated: Tensor, num_splits: int = 5) -> float:
    """Return the AUROC of telling the images by their features, each by others than itself."""
    network.eval()
    images = torch.cat([real, generated])
    features = torch.cat([network.features(block) for block in images.split(BATCH_SIZE)]).numpy()
    is_generated = torch.arange(len(images)) >= len(real)
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=2000))
    areas = []
    for seed in range(num_splits):
        folds = StratifiedKFold(10, shuffle=True, random_state=seed)
        probs = cross_val_predict(model, features, is_generated, cv=folds, method="predict_proba")
        areas.append(roc_auc_score(is_generated, probs[:, 1]))
    return sum(areas) / num_splits


def confidence(logits: Tensor) -> float:
    return logits.softmax(1).amax(1).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--mixsets", type=Path, required=True, help="store of mixed sets")
    parser.add_argument("--images", type=int, default=3000, help="test images to answer")
    parser.add_argument("--of", type=int, default=5000, help="images the statistics are taken of")
    args = parser.parse_args()

    data = DatasetConfig(dataset=args.dataset).load()
    torch.manual_seed(0)
    real = data.train.images[torch.randperm(len(data.train))[: args.of]]
    test, labels = data.test.images[: args.images], data.test.labels[: args.images]
    sets = MixSets.open(args.mixsets).read_all()
    ends, inner = sets[:, [0, -1]].flatten(0, 1), sets[:, 1:-1].flatten(0, 1)

    print(
        "per cent: test accuracy; confidence in test images, in ends of sets, in other members; "
        "AUROC of test images against ends"
    )
    for run in args.runs:
        network, _ = load_classifier(str(run))
        for whose, images in (("saved", None), ("real", real), ("mixed", sets.flatten(0, 1))):
            if images is not None:
                renormalise(network, images, args.of)
            answers = predict_logits(network, test)
            accuracy = (answers.argmax(1) == labels).float().mean().item()
            rows = (answers, predict_logits(network, ends), predict_logits(network, inner))
            values = (accuracy, *map(confidence, rows), told_apart(network, test[: len(ends)], ends))
            shown = "  ".join(f"{100 * value:5.2f}" for value in values)
            print(f"{run.name:40} {whose:6} {shown}", flush=True)


if __name__ == "__main__":
    main()
