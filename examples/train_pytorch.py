"""Soft-labelled mixed sets in a plain PyTorch loop, from the PNG files of `semmix export`.

semmix fit digits --out demo
semmix export demo/mixsets --annotation demo/annotation --out sets
python examples/train_pytorch.py sets
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import semmix


class MixedImages(Dataset):
    """Grey images in [0, 1] and their soft labels."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.rows = [json.loads(line) for line in (folder / "labels.jsonl").open()]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, n):
        pixels = np.array(Image.open(self.folder / self.rows[n]["file"]))
        return torch.from_numpy(pixels)[None] / 255, torch.tensor(self.rows[n]["soft_label"])


torch.manual_seed(0)
data = semmix.load_dataset("digits", train_size=100)
real = TensorDataset(data.train.images / 255, data.train.labels)
mixed = MixedImages(Path(sys.argv[1]))
net = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1),
    nn.BatchNorm2d(64),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(256, 10),
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
for _ in range(60):
    pairs = zip(DataLoader(real, 25, shuffle=True), DataLoader(mixed, 50, shuffle=True), strict=False)
    for (images, labels), (mixed_images, soft_labels) in pairs:
        off = net(mixed_images).softmax(1) - soft_labels
        loss = F.cross_entropy(net(images), labels) + off.square().sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
probs = net.eval()(data.test.images / 255).softmax(1).detach()
right = (probs.argmax(1) == data.test.labels).float().mean()
print(f"accuracy {right:.1%}, ECE {semmix.ece(probs, data.test.labels):.1%}")
