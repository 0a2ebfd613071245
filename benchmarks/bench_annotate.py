"""Annotation speed: the whole stage against a loop that encodes one image at a time.

    python benchmarks/bench_annotate.py --images 160000            # a GPU, ViT-B/32-sized CLIP
    python benchmarks/bench_annotate.py --encoder small --images 16000   # a CPU

Both use the same encoder on the same machine, one after the other. Weights are random, which
changes the labels and not the speed. The stage reads shards from disk, checks them, encodes, and
writes its annotation; the loop only encodes. Nothing is downloaded.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import torch

from semmix import MixPlan, MixSets, classifier
from semmix.annotation import annotate
from semmix.core.device import describe_environment, pick_device
from semmix.data import Split
from semmix.mixing.plan import all_pairs
from semmix.networks.encoders import load_encoder
from semmix.networks.saved import save_classifier

CLIP_SETTINGS = {
    "size": 224,
    "crop_size": 224,
    "resample": 3,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


def random_images(num: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (num, 3, 32, 32), generator=generator, dtype=torch.uint8)


def write_clip(folder: Path) -> str:
    """Write a CLIP image encoder of ViT-B/32's size with random weights; return its name."""
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    config = CLIPVisionConfig(patch_size=32, projection_dim=512)  # the rest is ViT-B by default
    CLIPVisionModelWithProjection(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(CLIP_SETTINGS))
    return f"clip:{folder}"


def write_classifier(name: str, folder: Path) -> str:
    """Write a classifier of ours with random weights; return its name as an encoder."""
    network = classifier(name, num_classes=10, in_channels=3, image_size=32)
    save_classifier(network, name, (3, 32, 32), folder)
    return f"classifier:{folder}"


def write_encoder(name: str, folder: Path) -> str:
    return write_clip(folder) if name == "clip" else write_classifier(name, folder)


def write_store(folder: Path, num_images: int) -> MixSets:
    plan = MixPlan(num_classes=10, num_sets=num_images // 8, pairs=all_pairs(10))
    store = MixSets.create(folder, plan, (3, 32, 32), {"digest": "random", "trained_on": None}, {})
    for k in range(plan.num_shards):
        num_sets = len(plan.shard(k))
        store.write_shard(k, random_images(8 * num_sets, k).unflatten(0, (num_sets, 8)))
    return store


def time_loop(encoder, images: torch.Tensor) -> float:
    """Return images per second of a loop that encodes one image at a time."""
    for image in images[:10]:
        encoder.embed(image[None]).cpu()
    start = time.perf_counter()
    for image in images:
        encoder.embed(image[None]).cpu()
    return len(images) / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", default="clip", help="clip, or the name of a classifier")
    parser.add_argument("--images", type=int, default=16_000, help="mixed images to annotate")
    parser.add_argument("--loop", type=int, default=500, help="images the loop encodes")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    torch.manual_seed(0)
    device = pick_device(options.device)
    where = describe_environment()
    print(f"torch {where['torch']}, {where['gpu'] or 'cpu'}, {where['cpu_threads']} threads")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["SEMMIX_CACHE"] = temporary
        encoder = load_encoder(write_encoder(options.encoder, folder / "encoder"), device)
        store = write_store(folder / "mixsets", options.images)
        split = Split(random_images(100, 1), torch.arange(100) % 10)
        loop = time_loop(encoder, random_images(options.loop, 2))
        start = time.perf_counter()
        annotate(store, encoder, (split, split), folder / "annotation")
        seconds = time.perf_counter() - start
    num_images = 8 * store.num_sets
    print(f"stage: {num_images} images in {seconds:.1f} s, {num_images / seconds:.0f} images/s")
    print(f"loop: {loop:.0f} images/s; the stage is {num_images / seconds / loop:.1f} times as fast")


if __name__ == "__main__":
    main()
