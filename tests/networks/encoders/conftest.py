"""What tests of several encoders share."""

import json

import pytest
import torch


@pytest.fixture(scope="session")
def draw_images():
    def draw(num=5, channels=3, size=12, seed=0):
        generator = torch.Generator().manual_seed(seed)
        shape = (num, channels, size, size)
        return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)

    return draw


@pytest.fixture(scope="session")
def write_tfjs():
    def write(folder, arrays, shard_bytes):
        """Write float32 arrays as a TensorFlow.js layers model and return its model.json."""
        data = b"".join(array.astype("<f4").tobytes() for array in arrays.values())
        shards = [data[k : k + shard_bytes] for k in range(0, len(data), shard_bytes)]
        names = [f"group1-shard{k + 1}of{len(shards)}.bin" for k in range(len(shards))]
        for name, shard in zip(names, shards, strict=True):
            (folder / name).write_bytes(shard)
        weights = [{"name": name, "shape": list(array.shape), "dtype": "float32"} for name, array in arrays.items()]
        manifest = [{"paths": names, "weights": weights}]
        path = folder / "model.json"
        path.write_text(json.dumps({"format": "layers-model", "weightsManifest": manifest}))
        return path

    return write
