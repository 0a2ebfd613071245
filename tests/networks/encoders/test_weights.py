"""Files of weights from outside: what they hold comes back, and bad ones are named."""

import json
import os
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from semmix import SemmixError
from semmix.networks.encoders.imagenet import fill, read_state_dict, read_tfjs

ARRAYS = {
    "conv/kernel": np.arange(24).reshape(2, 3, 1, 4) / 7,
    "conv/bias": np.array([1.5, -2.5, 1e-30, 1e30]),
    "scalar": np.array(3.25),
}


@pytest.fixture
def model(tmp_path, write_tfjs):
    return write_tfjs(tmp_path, ARRAYS, shard_bytes=46)  # shards end inside numbers


def change(path, edit):
    content = json.loads(path.read_text())
    edit(content["weightsManifest"][0])
    path.write_text(json.dumps(content))


def test_tfjs_weights_come_back(model):
    assert len(list(model.parent.glob("*.bin"))) == 3
    tensors = read_tfjs(model)
    assert list(tensors) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert tensors[name].dtype == torch.float32
        assert np.array_equal(tensors[name].numpy(), array.astype(np.float32))


def test_tfjs_groups_have_shards_of_their_own(model):
    content = json.loads(model.read_text())
    (model.parent / "more.bin").write_bytes(np.array([7.0, 8.0], "<f4").tobytes())
    more = {"name": "more", "shape": [2], "dtype": "float32"}
    content["weightsManifest"].append({"paths": ["more.bin"], "weights": [more]})
    model.write_text(json.dumps(content))
    tensors = read_tfjs(model)
    assert tensors["more"].tolist() == [7.0, 8.0]
    assert tensors["scalar"].item() == 3.25


def test_tfjs_shards_must_be_whole(model):
    shard = model.parent / "group1-shard2of3.bin"
    whole = shard.read_bytes()
    for wrong in (whole[:-1], whole + b"\0\0\0\0"):
        shard.write_bytes(wrong)
        with pytest.raises(SemmixError, match=r"wrong length: \d+ bytes in 3 shards, not 116"):
            read_tfjs(model)
    shard.unlink()
    with pytest.raises(SemmixError, match=r"a shard is missing: .*group1-shard2of3\.bin"):
        read_tfjs(model)
    change(model, lambda group: group["paths"].clear())
    with pytest.raises(SemmixError, match="wrong length: 0 bytes in 0 shards, not 116"):
        read_tfjs(model)


@pytest.mark.parametrize("name", ["../secret.bin", "/etc/passwd", "folder/shard.bin", ".."])
def test_tfjs_shards_lie_beside_the_manifest(model, name):
    (model.parent.parent / "secret.bin").write_bytes(b"1234")
    change(model, lambda group: group["paths"].insert(0, name))
    with pytest.raises(SemmixError, match=r"shard in another folder|a shard is missing"):
        read_tfjs(model)


@pytest.mark.parametrize(
    "entry", [{"dtype": "float16"}, {"dtype": "int32"}, {"quantization": {"dtype": "uint8", "scale": 0.1, "min": 0}}]
)
def test_tfjs_weights_must_be_plain_float32(model, entry):
    change(model, lambda group: group["weights"][1].update(entry))
    with pytest.raises(SemmixError, match="only plain float32 weights are read: conv/bias"):
        read_tfjs(model)


@pytest.mark.parametrize(
    "edit",
    [
        lambda group: group["weights"][0].pop("shape"),
        lambda group: group["weights"][0].update(shape=[-2, 3, -1, 4]),
        lambda group: group["weights"][0].update(shape=[2.0, 12]),
        lambda group: group["weights"][0].update(shape=24),
        lambda group: group["weights"].append("bias"),
        lambda group: group.pop("paths"),
        lambda group: group.update(paths=3),
        lambda group: group.update(paths=[3]),
    ],
)
def test_tfjs_manifests_that_make_no_sense_are_refused(model, edit):
    change(model, edit)
    with pytest.raises(SemmixError, match=r"model\.json is not understood"):
        read_tfjs(model)


def test_tfjs_needs_its_model_json(model):
    for content in ("[]", "{}", '"weightsManifest"', '{"weightsManifest": [1]}'):
        model.write_text(content)
        with pytest.raises(SemmixError, match=r"model\.json is not understood"):
            read_tfjs(model)
    model.write_text("no JSON")
    with pytest.raises(SemmixError, match="cannot read"):
        read_tfjs(model)
    with pytest.raises(SemmixError, match="no file here"):
        read_tfjs(model.parent)


class Trap:
    """A pickle that makes a folder when it is loaded without care."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("zipped", [True, False])
def test_state_dicts_are_read_whole_or_not_at_all(tmp_path, zipped):
    path = tmp_path / "weights.pth"
    torch.save({"a": torch.arange(1000)}, path, _use_new_zipfile_serialization=zipped)
    assert read_state_dict(path)["a"].tolist() == list(range(1000))
    whole = path.read_bytes()
    for num_bytes in (0, 1, 30, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:num_bytes])
        with pytest.raises(SemmixError, match=r"cannot read weights: .*weights\.pth"):
            read_state_dict(path)


def test_only_tensors_are_read_from_state_dicts(tmp_path):
    path, trap = tmp_path / "weights.pth", Trap(tmp_path / "sprung")
    path.write_text("no weights")
    with pytest.raises(SemmixError, match="cannot read weights"):
        read_state_dict(path)
    with pytest.raises(SemmixError, match="cannot read weights"):
        read_state_dict(tmp_path / "none.pth")
    torch.save({"a": trap}, path)
    with pytest.raises(SemmixError, match="cannot read weights"):
        read_state_dict(path)
    path.write_bytes(pickle.dumps(trap, protocol=2))
    with pytest.raises(SemmixError, match="cannot read weights"):
        read_state_dict(path)
    assert not trap.folder.exists()
    for other in ([torch.zeros(1)], {"epoch": 3}):
        torch.save(other, path)
        with pytest.raises(SemmixError, match="other things than tensors"):
            read_state_dict(path)


def test_a_network_takes_exactly_its_weights():
    network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    tensors = {name: torch.rand(t.shape) for name, t in network.state_dict().items()}
    del tensors["1.num_batches_tracked"]
    fill(network, tensors, "fix")
    assert torch.equal(network.state_dict()["1.running_var"], tensors["1.running_var"])
    for wrong, complaint in [
        ({**tensors, "0.bias": torch.zeros(4)}, r"0\.bias is \(4,\), not \(3,\)"),
        ({**tensors, "2.bias": torch.zeros(4)}, r"2\.bias is \(4,\), not expected"),
        ({k: t for k, t in tensors.items() if k != "0.bias"}, r"0\.bias is missing, not \(3,\)"),
    ]:
        with pytest.raises(SemmixError, match=complaint):
            fill(network, wrong, "fix")
