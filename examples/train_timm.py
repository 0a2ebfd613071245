"""Soft-labelled mixed sets with a network, optimizer and schedule of timm, read by semmix.

semmix fit digits --out demo
python examples/train_timm.py demo/mixsets demo/annotation
"""

import sys

import timm
import torch
import torch.nn.functional as F
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler

import semmix
from semmix.training.mixed import load_mixed

torch.manual_seed(0)
data = semmix.load_dataset("digits", train_size=100)
mixed = load_mixed(*sys.argv[1:3]).images
net = timm.create_model("resnet10t", num_classes=10, in_chans=1)
optimizer = create_optimizer_v2(net, "adamw", lr=2e-3, weight_decay=0.05)
scheduler = CosineLRScheduler(optimizer, t_initial=20)


def enlarged(images):
    """timm's networks halve images five times: 8 x 8 pixels are too few for them."""
    return F.interpolate(images / 255, size=32, mode="bilinear")


for epoch in range(20):
    for index in torch.randperm(len(data.train)).split(25):
        images, labels = data.train.images[index], data.train.labels[index]
        # For each image the pure end of its class and one inner member of a set that contains it.
        mixed_images, soft_labels = mixed.draw(labels, num_mixed=2)
        off = net(enlarged(mixed_images)).softmax(1) - soft_labels
        loss = F.cross_entropy(net(enlarged(images)), labels) + off.square().sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scheduler.step(epoch + 1)
with torch.no_grad():
    probs = net.eval()(enlarged(data.test.images)).softmax(1)
right = (probs.argmax(1) == data.test.labels).float().mean()
print(f"accuracy {right:.1%}, ECE {semmix.ece(probs, data.test.labels):.1%}")
