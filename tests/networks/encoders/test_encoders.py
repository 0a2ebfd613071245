"""Every kind of encoder, on small random networks in its own file format."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from semmix import SemmixError
from semmix.cli.main import run_command
from semmix.networks import classifier
from semmix.networks.encoders import backbone, imagenet, list_encoders, load_encoder
from semmix.networks.encoders.imagenet import IMAGENET, build_mobilenet
from semmix.networks.saved import save_classifier

OPTIONS = {"size": 16, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("clip")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.CLIPConfig(
        vision_config={**sizes, "image_size": 32, "patch_size": 8, "projection_dim": 12},
        text_config={**sizes, "vocab_size": 20, "projection_dim": 12},
        projection_dim=12,
    )
    torch.manual_seed(0)
    transformers.CLIPModel(config).eval().save_pretrained(folder)
    settings = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    transformers.CLIPImageProcessorPil(**settings).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def dino_folder(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("dino")
    config = transformers.Dinov2Config(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=7
    )
    torch.manual_seed(0)
    transformers.Dinov2Model(config).eval().save_pretrained(folder)
    settings = {"size": {"shortest_edge": 32}, "crop_size": {"height": 28, "width": 28}}
    transformers.BitImageProcessorPil(**settings, resample=3).save_pretrained(folder)
    return folder


def library_inputs(processor, images):
    pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]
    return processor(pictures, return_tensors="pt")


def test_clip_gives_the_librarys_image_features(clip_folder, draw_images):
    import transformers

    images = draw_images()
    encoder = load_encoder(f"clip:{clip_folder}")
    model = transformers.CLIPVisionModelWithProjection.from_pretrained(clip_folder).eval()
    processor = transformers.CLIPImageProcessorPil.from_pretrained(clip_folder)
    with torch.inference_mode():
        expected = model(**library_inputs(processor, images)).image_embeds
    assert encoder.dim == 12
    assert torch.allclose(encoder.embed(images), expected, atol=1e-4)


def test_half_precision_files_are_computed_in_float32(clip_folder, tmp_path, draw_images):
    import transformers

    whole = transformers.CLIPModel.from_pretrained(clip_folder)
    whole.half().save_pretrained(tmp_path)
    settings = (clip_folder / "preprocessor_config.json").read_text()
    (tmp_path / "preprocessor_config.json").write_text(settings)
    images = draw_images()
    whole = transformers.CLIPVisionModelWithProjection.from_pretrained(tmp_path, dtype=torch.float32).eval()
    processor = transformers.CLIPImageProcessorPil.from_pretrained(clip_folder)
    with torch.inference_mode():
        expected = whole(**library_inputs(processor, images)).image_embeds
    assert torch.allclose(load_encoder(f"clip:{tmp_path}").embed(images), expected, atol=1e-5)


def test_dino_gives_the_librarys_class_token(dino_folder, draw_images):
    import transformers

    images = draw_images()
    encoder = load_encoder(f"dino:{dino_folder}")
    model = transformers.Dinov2Model.from_pretrained(dino_folder).eval()
    processor = transformers.BitImageProcessorPil.from_pretrained(dino_folder)
    with torch.inference_mode():
        expected = model(**library_inputs(processor, images)).pooler_output
    assert encoder.dim == 16
    assert torch.allclose(encoder.embed(images), expected, atol=1e-4)


def test_the_digest_names_weights_and_preprocessing(clip_folder, tmp_path):
    import transformers

    first, again = (load_encoder(f"clip:{clip_folder}") for _ in range(2))
    assert first.digest == again.digest
    model = transformers.CLIPModel.from_pretrained(clip_folder)
    model.visual_projection.weight.data[0, 0] += 1
    model.save_pretrained(tmp_path)
    settings = json.loads((clip_folder / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    other_weights = load_encoder(f"clip:{tmp_path}")
    settings["image_mean"] = [0.5, 0.5, 0.5]
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    other_mean = load_encoder(f"clip:{tmp_path}")
    assert len({first.digest, other_weights.digest, other_mean.digest}) == 3


def test_a_folder_without_a_model_is_refused(tmp_path):
    pytest.importorskip("transformers")
    for kind in ("clip", "dino"):
        with pytest.raises(SemmixError, match="cannot load this encoder"):
            load_encoder(f"{kind}:{tmp_path}")


def copy_settings(source, folder):
    settings = (source / "preprocessor_config.json").read_text()
    (folder / "preprocessor_config.json").write_text(settings)


def test_weights_that_are_missing_are_not_made_up(clip_folder, dino_folder, tmp_path):
    import transformers

    with pytest.raises(SemmixError, match=r"weights of this encoder are missing(.|\n)*dino:"):
        load_encoder(f"clip:{dino_folder}")
    whole = transformers.CLIPVisionModelWithProjection.from_pretrained(clip_folder)
    transformers.CLIPVisionModel.from_pretrained(clip_folder).save_pretrained(tmp_path)
    copy_settings(clip_folder, tmp_path)
    with pytest.raises(SemmixError, match=r"lacks 1, such as visual_projection"):
        load_encoder(f"clip:{tmp_path}")
    whole.config.hidden_size, whole.config.projection_dim = 24, 6
    whole.config.save_pretrained(tmp_path)
    with pytest.raises(SemmixError, match="cannot load this encoder"):
        load_encoder(f"clip:{tmp_path}")


def test_a_dino_model_may_lack_the_pooler_that_is_not_used(dino_folder, tmp_path, draw_images):
    import transformers

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.ViTConfig(**sizes, image_size=28, patch_size=7)
    transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    copy_settings(dino_folder, tmp_path)
    first, again = (load_encoder(f"dino:{tmp_path}") for _ in range(2))
    assert first.digest == again.digest
    assert torch.equal(first.embed(draw_images()), again.embed(draw_images()))


def test_a_model_of_another_kind_is_refused_in_words(clip_folder, dino_folder, tmp_path):
    import transformers

    with pytest.raises(SemmixError, match=r"dino:.* cannot read an image"):
        load_encoder(f"dino:{clip_folder}")  # wants texts too
    transformers.Dinov2Model.from_pretrained(dino_folder).save_pretrained(tmp_path)
    settings = json.loads((dino_folder / "preprocessor_config.json").read_text())
    for broken in ({"image_mean": None}, {"size": {"longest_edge": 32}}):
        beside = tmp_path / "preprocessor_config.json"
        beside.write_text(json.dumps({**settings, **broken}))
        with pytest.raises(SemmixError, match="preprocessing is not understood"):
            load_encoder(f"dino:{tmp_path}")


def write_onnx(path, batch, flatten=True):
    """Write a network that averages 8 x 8 tiles of a 16 x 16 image: 12 features."""
    onnx = pytest.importorskip("onnx")
    kinds, make = onnx.TensorProto.FLOAT, onnx.helper
    nodes = [make.make_node("AveragePool", ["image"], ["tiles"], kernel_shape=[8, 8], strides=[8, 8])]
    shape = [batch, 12] if flatten else [batch, 3, 2, 2]
    nodes.append(make.make_node("Flatten" if flatten else "Identity", ["tiles"], ["features"]))
    graph = make.make_graph(
        nodes,
        "tiles",
        [make.make_tensor_value_info("image", kinds, [batch, 3, 16, 16])],
        [make.make_tensor_value_info("features", kinds, shape)],
    )
    opset = [make.make_opsetid("", 17)]
    onnx.save(make.make_model(graph, opset_imports=opset, ir_version=8), path)
    path.with_suffix(".json").write_text(json.dumps(OPTIONS))
    return f"onnx:{path}"


@pytest.mark.parametrize("batch", ["N", 1, 2])
def test_onnx_file_of_any_batch(tmp_path, batch, draw_images):
    pytest.importorskip("onnxruntime")
    encoder = load_encoder(write_onnx(tmp_path / "tiles.onnx", batch))
    images = draw_images(size=16)
    mean, std = (np.array(OPTIONS[name]).reshape(3, 1, 1) for name in ("mean", "std"))
    for image, feature in zip(images.numpy(), encoder.embed(images), strict=True):
        pixels = (image / 255 - mean) / std
        tiles = pixels.reshape(3, 2, 8, 2, 8).mean((2, 4)).ravel()
        assert feature.tolist() == pytest.approx(tiles.tolist(), abs=1e-5)


def test_onnx_complaints(tmp_path):
    pytest.importorskip("onnxruntime")
    with pytest.raises(SemmixError, match="gives no features"):
        load_encoder(write_onnx(tmp_path / "flat.onnx", "N", flatten=False))
    name = write_onnx(tmp_path / "tiles.onnx", "N")
    beside = tmp_path / "tiles.json"
    for options in ({**OPTIONS, "colour": "blue"}, []):
        beside.write_text(json.dumps(options))
        with pytest.raises(SemmixError, match=r"tiles.json is not understood"):
            load_encoder(name)
    for option, value in (
        ("size", "16"),
        ("size", 32.5),
        ("size", [16]),
        ("size", [16, 16, 3]),
        ("size", None),
        ("crop", 16),
        ("crop", [16]),
        ("crop", [0, 8]),
        ("crop", "16"),
        ("mean", 0.5),
        ("mean", ["a", "b", "c"]),
        ("std", [0.5, None, 0.5]),
        ("std", None),
    ):
        beside.write_text(json.dumps({**OPTIONS, option: value}))
        with pytest.raises(SemmixError, match=r"tiles.json: .* needs? ") as caught:
            load_encoder(name)
        assert option in ("size", "crop") or option in str(caught.value.seen)
    beside.unlink()
    with pytest.raises(SemmixError, match="how to prepare images"):
        load_encoder(name)
    (tmp_path / "tiles.onnx").write_bytes(b"no network")
    with pytest.raises(SemmixError, match="cannot read"):
        load_encoder(name)


def test_onnx_says_which_size_it_takes(tmp_path, draw_images):
    pytest.importorskip("onnxruntime")
    name = write_onnx(tmp_path / "tiles.onnx", "N")
    encoder = load_encoder(name)  # the shorter edge of a square becomes 16, as the network likes
    wide = draw_images(size=16)[:, :, :8]
    with pytest.raises(SemmixError, match=r"16 x 32 pixels, where it takes .*3, 16, 16"):
        encoder.embed(wide)
    (tmp_path / "tiles.json").write_text(json.dumps({**OPTIONS, "size": 20}))
    with pytest.raises(SemmixError, match=r"20 x 20 pixels(.|\n)*JSON file"):
        load_encoder(name)


def test_onnx_weights_in_a_file_of_their_own_are_part_of_the_digest(tmp_path):
    pytest.importorskip("onnxruntime")
    name = write_onnx(tmp_path / "tiles.onnx", "N")
    alone = load_encoder(name).digest
    (tmp_path / "tiles.onnx.data").write_bytes(b"weights")
    assert load_encoder(name).digest != alone
    odd = write_onnx(tmp_path / "m[1].onnx", "N")
    alone = load_encoder(odd).digest
    (tmp_path / "m[1].onnx.data").write_bytes(b"weights")
    assert load_encoder(odd).digest != alone


def test_mobilenet_reads_a_weights_file(tmp_path, draw_images):
    torch.manual_seed(0)
    network = build_mobilenet().eval()
    tensors = {**network.state_dict(), "classifier.1.weight": torch.zeros(1000, 1280)}
    # Two names of torchvision's file, for the layout of blocks with and without a widening layer.
    assert tensors["features.1.conv.1.weight"].shape == (16, 32, 1, 1)
    assert tensors["features.2.conv.2.weight"].shape == (24, 96, 1, 1)
    assert sum(t.numel() for t in network.parameters()) == 2_223_872
    torch.save(tensors, tmp_path / "weights.pth")
    encoder = load_encoder(f"mobilenet:{tmp_path / 'weights.pth'}")
    with torch.inference_mode():
        expected = network(IMAGENET(draw_images(2)))
    assert expected.shape == (2, 1280)
    torch.testing.assert_close(encoder.embed(draw_images(2)), expected, rtol=1e-4, atol=1e-4)
    torch.save({"features.0.0.weight": torch.zeros(1)}, tmp_path / "weights.pth")
    with pytest.raises(SemmixError, match="not the weights of this network"):
        load_encoder(f"mobilenet:{tmp_path / 'weights.pth'}")
    with pytest.raises(SemmixError, match="cannot read weights"):
        load_encoder(f"mobilenet:{tmp_path / 'none.pth'}")


def test_inception_preprocessing_matches_the_slow_twin(draw_images):
    images = draw_images(1, 1, size=5)
    prepared = imagenet.InceptionPreprocess()(images)
    assert prepared.shape == (1, 3, 299, 299)
    pixels = images[0, 0].double().numpy()
    for row, column in [(0, 0), (10, 200), (298, 298), (150, 61)]:
        y, x = row * 5 / 299, column * 5 / 299
        top, left = int(y), int(x)
        below, right = min(top + 1, 4), min(left + 1, 4)
        upper = pixels[top, left] * (1 - x + left) + pixels[top, right] * (x - left)
        lower = pixels[below, left] * (1 - x + left) + pixels[below, right] * (x - left)
        value = upper * (1 - y + top) + lower * (y - top)
        assert prepared[0, 2, row, column].item() == pytest.approx((value - 128) / 128, abs=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_only_the_known_torchscript_file_is_run(tmp_path, monkeypatch):
    class Mean(torch.nn.Module):
        def forward(self, images):
            return images.mean((2, 3))

    path = tmp_path / "network.pt"
    torch.jit.script(Mean()).save(path)
    with pytest.raises(SemmixError, match="known to be safe"):
        load_encoder(f"inception:{path}")
    monkeypatch.setattr(imagenet, "SHA256", imagenet.digest_file(path))
    encoder = load_encoder(f"inception:{path}")
    assert encoder.dim == 3
    assert encoder.digest == load_encoder(f"inception:{path}").digest
    with pytest.raises(SemmixError, match="no file here"):
        load_encoder(f"inception:{tmp_path / 'none.pt'}")


def test_timm_network_from_a_folder(tmp_path, draw_images):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    network = timm.create_model("test_resnet", pretrained=False)
    timm.models.save_for_hf(network, tmp_path, safe_serialization=True)
    encoder = load_encoder(f"timm:local-dir:{tmp_path}")
    assert encoder.embed(draw_images(2)).shape == (2, network.num_features)


def test_names_are_checked():
    assert {"clip", "efficientnet", "resnet50"} < set(list_encoders())
    with pytest.raises(SemmixError, match="did you mean 'clip'"):
        load_encoder("clap:x")
    with pytest.raises(SemmixError, match="kind:what"):
        load_encoder("clip:")


def test_the_help_names_every_kind(capsys):
    with pytest.raises(SystemExit):
        run_command("annotate", ["--help"])
    shown = capsys.readouterr().out
    assert [kind for kind in list_encoders() if kind not in shown] == []


def test_a_run_says_what_it_learned_from_and_a_model_does_not(tmp_path):
    """Nor does a model beside whose weights somebody put a config.json of another kind."""
    save_classifier(classifier("small", 3, 1, 8), "small", (1, 8, 8), tmp_path)
    name, config = f"classifier:{tmp_path}", tmp_path / "config.json"
    assert load_encoder(name).trained_on is None
    config.write_text('{"model_type": "resnet"}')
    assert load_encoder(name).trained_on is None
    config.write_text('{"kind": "run", "inputs": {"train": "split"}}')
    assert load_encoder(name).trained_on == "split"


def test_the_classifier_of_a_zoo_entry_is_named_by_the_entry(tmp_path, monkeypatch, draw_images):
    monkeypatch.setenv("SEMMIX_ZOO", str(tmp_path))
    folder = tmp_path / "owls" / "classifier"
    save_classifier(classifier("small", 3, 3, 32), "small", (3, 32, 32), folder)
    (folder / "config.json").write_text('{"kind": "run", "inputs": {"train": "split"}}')
    (tmp_path / "owls" / "generator.json").write_text("{}")
    by_name, by_path = load_encoder("classifier:zoo:owls"), load_encoder(f"classifier:{folder}")
    images = draw_images(2)
    assert by_name.name == "classifier:zoo:owls"
    assert by_name.trained_on == "split"
    assert by_name.digest == by_path.digest
    assert torch.equal(by_name.embed(images), by_path.embed(images))
    with pytest.raises(SemmixError, match="did you mean 'owls'"):
        load_encoder("classifier:zoo:owl")


def test_a_run_or_its_folder_is_a_backbone(tmp_path):
    save_classifier(classifier("small", 3, 1, 8), "small", (1, 8, 8), tmp_path)
    by_name = backbone(f"classifier:{tmp_path}", device="cpu")
    for given in (tmp_path, SimpleNamespace(folder=tmp_path)):
        encoder = backbone(given, device="cpu")
        assert (encoder.name, encoder.digest) == (by_name.name, by_name.digest)
    assert repr(by_name) == f"Encoder(classifier:{tmp_path}: 256 features)"
