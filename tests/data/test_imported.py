import json
import resource

import pytest
import torch

from semmix import SemmixError
from semmix.data.dataset import Parts
from semmix.data.library import data_root, is_stored, load_parts, save_parts


@pytest.fixture
def parts(make_split):
    splits = {"train": make_split(per_class=500), "test": make_split(seed=1)}
    return Parts(splits, ("a", "b", "c", "d"))


def test_round_trip(parts, tmp_path):
    assert not is_stored("toy", tmp_path)
    save_parts("toy", parts, "toy.npz", tmp_path)
    assert is_stored("toy", tmp_path)
    found = load_parts("toy", tmp_path)
    assert found.class_names == parts.class_names
    for part, split in parts.splits.items():
        assert torch.equal(found.splits[part].images, split.images)
        assert torch.equal(found.splits[part].labels, split.labels)


def test_missing_data_set_says_how_to_get_it(tmp_path):
    with pytest.raises(SemmixError, match="semmix data get cifar10"):
        load_parts("cifar10", tmp_path)


@pytest.mark.parametrize("where", [0.3, 0.999])
def test_a_flipped_bit_is_noticed(parts, tmp_path, where):
    save_parts("toy", parts, "toy.npz", tmp_path)
    path = tmp_path / "toy" / "train.safetensors"
    data = bytearray(path.read_bytes())
    data[int(where * len(data))] ^= 1
    path.write_bytes(data)
    with pytest.raises(SemmixError, match=r"train.safetensors is damaged.*\n.*import .* again"):
        load_parts("toy", tmp_path)


@pytest.mark.parametrize("spoil", [lambda p: p.unlink(), lambda p: p.write_bytes(b"{}")])
def test_an_absent_or_broken_file_is_noticed(parts, tmp_path, spoil):
    save_parts("toy", parts, "toy.npz", tmp_path)
    spoil(tmp_path / "toy" / "test.safetensors")
    with pytest.raises(SemmixError, match=r"test.safetensors cannot be read"):
        load_parts("toy", tmp_path)


def test_a_full_disk_loses_nothing(parts, tmp_path):
    """A limit on the size of files makes the kernel refuse to write, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(SemmixError, match=r"cannot write .*train.safetensors"):
            save_parts("toy", parts, "toy.npz", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not is_stored("toy", tmp_path)
    assert [path.name for path in (tmp_path / "toy").iterdir()] == ["dataset.json"]
    save_parts("toy", parts, "toy.npz", tmp_path)
    assert load_parts("toy", tmp_path).splits["train"].digest == parts.splits["train"].digest


def test_the_manifest_names_source_and_digests(parts, tmp_path):
    save_parts("toy", parts, "toy.npz", tmp_path)
    manifest = json.loads((tmp_path / "toy" / "dataset.json").read_text())
    assert manifest["source"] == "toy.npz"
    assert manifest["parts"]["test"] == {"num_images": 100, "digest": parts.splits["test"].digest}


def test_data_root(monkeypatch, tmp_path):
    monkeypatch.setenv("SEMMIX_DATA", str(tmp_path / "env"))
    assert data_root(tmp_path / "given") == tmp_path / "given"
    assert data_root() == tmp_path / "env"
    monkeypatch.delenv("SEMMIX_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == tmp_path / ".cache" / "semmix" / "datasets"
