"""Soft-labelled mixed sets in Lightning, from the Parquet file of `semmix export`.

semmix fit digits --out demo
semmix export demo/mixsets --annotation demo/annotation --format parquet --out sets.parquet
python examples/train_lightning.py sets.parquet
"""

import io
import sys

import lightning
import numpy as np
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from lightning.pytorch.utilities import CombinedLoader
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

import semmix


class Mixing(lightning.LightningModule):
    """Cross-entropy on real images plus L2 on mixed ones."""

    def __init__(self):
        super().__init__()
        self.net = semmix.classifier("small", num_classes=10, in_channels=1, image_size=8)

    def training_step(self, batch, number):
        (images, labels), (mixed_images, soft_labels) = batch["real"], batch["mixed"]
        off = self.net(mixed_images).softmax(1) - soft_labels
        return F.cross_entropy(self.net(images), labels) + off.square().sum(1).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)


lightning.seed_everything(0, verbose=False)
data = semmix.load_dataset("digits", train_size=100)
rows = pq.read_table(sys.argv[1]).to_pylist()
pixels = np.stack([np.array(Image.open(io.BytesIO(row["image"]["bytes"]))) for row in rows])
mixed = TensorDataset(torch.from_numpy(pixels)[:, None] / 255, torch.tensor([row["soft_label"] for row in rows]))
real = TensorDataset(data.train.images / 255, data.train.labels)
loaders = {"real": DataLoader(real, 25, shuffle=True), "mixed": DataLoader(mixed, 50, shuffle=True)}
model = Mixing()
trainer = lightning.Trainer(max_epochs=60, logger=False, enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(model, CombinedLoader(loaders, "min_size"))
probs = model.net.cpu().eval()(data.test.images).softmax(1).detach()
right = (probs.argmax(1) == data.test.labels).float().mean()
print(f"accuracy {right:.1%}, ECE {semmix.ece(probs, data.test.labels):.1%}")
