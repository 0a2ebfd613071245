"""Soft-labelled mixed sets in Keras, on any of its backends: one network, two inputs, two losses.

semmix fit digits --out demo
KERAS_BACKEND=torch python examples/train_keras.py demo/mixsets demo/annotation
"""

import sys

import keras
import numpy as np
from keras import layers, ops

import semmix
from semmix.training.mixed import load_mixed


def squared_error(soft_labels, probs):
    return ops.sum(ops.square(probs - soft_labels), axis=-1)


def for_keras(images):
    """Channels come last in Keras."""
    return images.flatten(0, -4).permute(0, 2, 3, 1).numpy().astype("float32") / 255


keras.utils.set_random_seed(0)
data = semmix.load_dataset("digits", train_size=100)
mixed = load_mixed(*sys.argv[1:3]).images
mixed_images, soft_labels = for_keras(mixed.images), mixed.soft_labels.flatten(0, 1).numpy()
net = keras.Sequential(
    [
        layers.Conv2D(32, 3, padding="same"),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.Conv2D(64, 3, 2, padding="same"),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.AveragePooling2D(2),
        layers.Flatten(),
        layers.Dense(10, activation="softmax"),
    ]
)
inputs = [keras.Input((8, 8, 1)), keras.Input((8, 8, 1))]
both = keras.Model(inputs, [net(x) for x in inputs])
both.compile(keras.optimizers.Adam(2e-3), ["sparse_categorical_crossentropy", squared_error])
real = np.tile(np.arange(len(data.train)), -(-len(mixed_images) // len(data.train)))
real = real[: len(mixed_images)]  # each mixed image beside a real one
images, labels = for_keras(data.train.images)[real], data.train.labels.numpy()[real]
both.fit([images, mixed_images], [labels, soft_labels], batch_size=50, epochs=12, verbose=0)
probs = net.predict(for_keras(data.test.images), verbose=0)
right = (probs.argmax(1) == data.test.labels.numpy()).mean()
print(f"accuracy {right:.1%}, ECE {semmix.ece(probs, data.test.labels):.1%}")
