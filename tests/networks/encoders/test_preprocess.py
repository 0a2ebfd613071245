"""Our tensor preprocessing against Pillow and against the library's own."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

from semmix import SemmixError
from semmix.networks.encoders.pretrained import Preprocess, resize

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def draw_images(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def to_pillow(image):
    return Image.fromarray(image.permute(1, 2, 0).numpy())


@pytest.mark.parametrize("resample", FILTERS)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((32, 32), (224, 224)),
        ((64, 64), (37, 37)),
        ((8, 8), (224, 224)),
        ((48, 30), (80, 50)),
        ((300, 200), (33, 22)),
        ((32, 32), (32, 32)),
        ((5, 5), (1, 1)),
    ],
)
def test_resize_equals_pillow_to_the_last_bit(resample, old, new):
    images = draw_images(2, 3, *old)
    ours = resize(images, new, resample)
    for image, resized in zip(images, ours, strict=True):
        expected = np.asarray(to_pillow(image).resize(new[::-1], FILTERS[resample]))
        assert np.array_equal(resized.permute(1, 2, 0).numpy(), expected)


def make_settings(**changes):
    mean, std = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    return {"image_mean": mean, "image_std": std, "resample": 3, **changes}


@pytest.mark.parametrize(
    ("library", "settings"),
    [
        ("CLIPImageProcessorPil", make_settings(size=224, crop_size=224)),  # OpenAI's own file
        ("CLIPImageProcessorPil", make_settings(size={"shortest_edge": 40}, crop_size=36)),
        (
            "BitImageProcessorPil",
            make_settings(size={"shortest_edge": 256}, crop_size={"height": 224, "width": 224}),
        ),  # DINOv2
        ("ViTImageProcessorPil", make_settings(size={"height": 48, "width": 48}, resample=2)),
        ("ViTImageProcessorPil", make_settings(size=48)),  # DINO
    ],
)
@pytest.mark.parametrize("shape", [(32, 32), (90, 60), (60, 90)])
def test_preprocessing_equals_the_librarys(library, settings, shape):
    transformers = pytest.importorskip("transformers")
    from semmix.networks.encoders.libraries import read_settings

    if library.startswith("ViT") and shape != (32, 32):
        shape = (96, 96)  # there the aspect would change
    processor = getattr(transformers, library)(**settings)
    images = draw_images(3, 3, *shape)
    expected = processor([to_pillow(image) for image in images], return_tensors="pt")
    ours = read_settings(settings)(images)
    assert ours.shape == expected["pixel_values"].shape
    assert torch.allclose(ours, expected["pixel_values"], atol=1e-4)


def test_preprocessing_that_is_not_understood_is_refused():
    from semmix.networks.encoders.libraries import read_settings

    for changes in ({"resample": 0}, {"do_normalize": False}, {"do_resize": False}):
        with pytest.raises(SemmixError, match="not understood"):
            read_settings(make_settings(size=24, **changes))


def test_a_crop_is_cut_out_of_the_middle():
    images = draw_images(2, 3, 9, 12)
    cut = Preprocess(size=(9, 12), crop=(4, 6), mean=(0, 0, 0), std=(1, 1, 1))(images)
    assert torch.equal(cut, images[:, :, 2:6, 3:9].float() / 255)
    assert Preprocess(size=1, crop=(1, 1), **IMAGENET)(images).shape == (2, 3, 1, 1)


def test_grey_images_are_repeated():
    grey = draw_images(2, 1, 8, 8)
    prepare = Preprocess(size=16, **IMAGENET)
    assert torch.equal(prepare(grey), prepare(grey.expand(-1, 3, -1, -1)))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"size": 8, "resample": "nearest"}, "unknown resampling"),
        ({"size": 0}, "need a size"),
        ({"size": (8,)}, "need a size"),
        ({"size": (8, 0)}, "need a size"),
        ({"size": (8, 8.0)}, "need a size"),
        ({"size": 8, "crop": (9, 8)}, "crop is larger"),
        ({"size": (9, 8), "crop": (8, 9)}, "crop is larger"),
        ({"size": 8, "crop": [8, 8]}, "crop needs a size"),
        ({"size": 8, "crop": (0, 8)}, "crop needs a size"),
        ({"size": 8, "std": (1.0, 0.0, 1.0)}, "three channels"),
        ({"size": 8, "std": (1.0, 1.0)}, "three channels"),
        ({"size": 8, "mean": (0.5,)}, "three channels"),
        ({"size": 8, "mean": [0.5, 0.5, 0.5]}, "three channels"),
        ({"size": 8, "mean": (0.5, 0.5, "0.5")}, "three channels"),
        ({"size": 8, "mean": (0.5, 0.5, math.nan)}, "three channels"),
    ],
)
def test_senseless_settings_are_refused(options, complaint):
    with pytest.raises(SemmixError, match=complaint):
        Preprocess(**{**IMAGENET, **options})
