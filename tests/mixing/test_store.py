"""The store: same bytes whatever the order, and no damage goes unnoticed."""

import io
import json
import subprocess
import weakref

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from semmix import MixPlan, MixSets, SemmixError
from semmix.mixing.export import export_folder, export_parquet, png_bytes
from semmix.mixing.plan import all_pairs

PLAN = MixPlan(num_classes=3, num_sets=7, pairs=all_pairs(3), sets_per_shard=3)
GENERATOR = {"digest": "abc", "name": "toy", "trained_on": "train"}


def shard_images(k: int) -> torch.Tensor:
    shape = (len(PLAN.shard(k)), PLAN.set_size, 3, 4, 4)
    generator = torch.Generator().manual_seed(k)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def create(folder, **changes) -> MixSets:
    settings = {"image_shape": (3, 4, 4), "generator": GENERATOR, "sampler": {"steps": 5}}
    return MixSets.create(folder, PLAN, **{**settings, **changes})


def filled(folder, order=(0, 1, 2)) -> MixSets:
    store = create(folder)
    for k in order:
        store.write_shard(k, shard_images(k))
    return MixSets.open(folder)


def test_what_is_written_is_read(tmp_path):
    store = filled(tmp_path)
    everything = torch.cat([shard_images(k) for k in range(3)])
    assert torch.equal(store.read_all(), everything)
    assert store.read_all().dtype == torch.uint8
    for n in (0, 3, 6):
        assert torch.equal(store.read_set(n), everything[n])
    assert store.pairs().tolist()[3] == [0, 1]
    assert store.lam_requested().shape == (7, 8)
    assert store.verify() == []


def test_all_images_are_in_memory_once(tmp_path, monkeypatch):
    """No shard is held while the next is read."""
    store, read_shard, shards = filled(tmp_path), MixSets.read_shard, []

    def watched(self, k):
        assert all(shard() is None for shard in shards)
        images = read_shard(self, k)
        shards.append(weakref.ref(images))
        return images

    monkeypatch.setattr(MixSets, "read_shard", watched)
    store.read_all()
    assert len(shards) == 3


def test_bytes_do_not_depend_on_the_order(tmp_path):
    first, second = filled(tmp_path / "a"), filled(tmp_path / "b", order=(2, 0, 1))
    for path in sorted(first.folder.iterdir()):
        assert path.read_bytes() == (second.folder / path.name).read_bytes()
    assert first.digest == second.digest


def test_resume_asks_for_missing_shards_only(tmp_path):
    store = create(tmp_path)
    store.write_shard(1, shard_images(1))
    again = create(tmp_path)
    assert again.missing() == [0, 2]
    assert again.missing(rank=1, world_size=2) == []
    assert not again.finished
    assert not again.artifact.finished


def test_a_store_stopped_before_its_manifest_was_written_finishes(tmp_path):
    whole = (filled(tmp_path).folder / "manifest.json").read_bytes()
    manifest = {**json.loads(whole), "finished": False}
    del manifest["digest"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    create(tmp_path)
    assert (tmp_path / "manifest.json").read_bytes() == whole


def test_unfinished_store_is_not_opened(tmp_path):
    create(tmp_path).write_shard(0, shard_images(0))
    with pytest.raises(SemmixError, match=r"2 of 3 missing.*shard-00001"):
        MixSets.open(tmp_path)


@pytest.mark.parametrize("place", [0.02, 0.5, 0.99])
def test_flipped_byte_is_found(tmp_path, place):
    store = filled(tmp_path)
    path = store.shard_path(1)
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 0xFF
    path.write_bytes(data)
    damaged = MixSets.open(tmp_path)
    with pytest.raises(SemmixError, match="shard-00001"):
        damaged.read_set(3)
    assert len(damaged.verify()) == 1
    assert torch.equal(damaged.read_set(0), shard_images(0)[0])  # the others stay usable


def test_deleted_shard_is_named_and_made_again(tmp_path):
    store = filled(tmp_path)
    before, digest = store.shard_path(2).read_bytes(), store.digest
    store.shard_path(2).unlink()
    with pytest.raises(SemmixError, match="shard-00002"):
        MixSets.open(tmp_path)
    create(tmp_path).write_shard(2, shard_images(2))
    again = MixSets.open(tmp_path)
    assert again.shard_path(2).read_bytes() == before
    assert again.digest == digest


def test_damage_after_reading_is_found(tmp_path):
    store = filled(tmp_path)
    store.read_all()
    data = bytearray(store.shard_path(1).read_bytes())
    data[-1] ^= 0xFF
    store.shard_path(1).write_bytes(data)
    assert ["shard-00001" in line for line in store.verify()] == [True]


@pytest.mark.parametrize(("name", "words"), [("images", "header is not readable"), ("pixels", "images")])
def test_a_foreign_file_in_the_place_of_a_shard_is_named(tmp_path, name, words):
    store = filled(tmp_path)
    save_file({name: shard_images(0)}, store.shard_path(0))
    with pytest.raises(SemmixError, match=rf"shard-00000.*{words}"):
        store.read_set(0)


@pytest.mark.parametrize("n", [-1, 7])
def test_a_set_beyond_the_last_is_refused(tmp_path, n):
    with pytest.raises(SemmixError, match=r"no such set.*\n.*from 0 to 6"):
        filled(tmp_path).read_set(n)


def test_truncated_shard_is_found(tmp_path):
    path = filled(tmp_path).shard_path(0)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(SemmixError, match=r"^shard-00000\.safetensors cannot be used: ") as caught:
        MixSets.open(tmp_path).read_all()
    assert caught.value.fix.startswith(f"delete {path}; run the same mix command again")


def test_shard_of_another_store_is_found(tmp_path):
    store = filled(tmp_path / "a")
    other = create(tmp_path / "b", generator={**GENERATOR, "digest": "other"})
    other.write_shard(0, shard_images(0))
    store.shard_path(0).write_bytes(other.shard_path(0).read_bytes())
    with pytest.raises(SemmixError, match="another store"):
        MixSets.open(tmp_path / "a").read_shard(0)


def test_shard_of_the_same_store_under_another_number_is_found(tmp_path):
    store = filled(tmp_path)
    store.shard_path(1).write_bytes(store.shard_path(0).read_bytes())
    again = MixSets.open(tmp_path)
    with pytest.raises(SemmixError, match=r"shard-00001(.|\n)*another store or place"):
        again.read_shard(1)
    assert torch.equal(again.read_shard(0), shard_images(0))


def test_another_generator_is_refused(tmp_path):
    filled(tmp_path)
    with pytest.raises(SemmixError, match="made from other inputs") as error:
        create(tmp_path, generator={**GENERATOR, "digest": "other"})
    assert "other" in str(error.value)
    assert len(MixSets.open(tmp_path).read_all()) == 7


def test_wrong_shape_is_refused(tmp_path):
    for images in (shard_images(0).float(), shard_images(2)):
        with pytest.raises(SemmixError, match="wrong shape"):
            create(tmp_path).write_shard(0, images)


def test_full_disk_loses_nothing(tmp_path):
    """On a real, tiny file system: the failed shard leaves no trace, the first one stays."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=12k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting needs root")
    try:
        store = create(tmp_path)
        store.write_shard(2, shard_images(2))
        store.write_shard(0, shard_images(0))
        with pytest.raises(SemmixError, match="No space left"):
            store.write_shard(1, shard_images(1))
        assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]
        assert torch.equal(create(tmp_path).read_shard(2), shard_images(2))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_export_folder(tmp_path):
    store = filled(tmp_path / "store")
    out = export_folder(store, store.soft_labels(store.lam_requested()), tmp_path / "out")
    rows = [json.loads(line) for line in (out / "labels.jsonl").read_text().splitlines()]
    assert len(rows) == 7 * 8
    row = rows[8 * 4 + 2]  # set 4 has the pair (0, 2)
    assert row["pair"] == [0, 2]
    assert row["lam_requested"] == pytest.approx(2 / 7)
    assert row["soft_label"] == pytest.approx([2 / 7, 0, 5 / 7])
    pixels = torch.tensor(list(Image.open(out / row["file"]).convert("RGB").tobytes()))
    assert torch.equal(pixels, store.read_set(4)[2].permute(1, 2, 0).flatten())


def test_an_interrupted_export_leaves_no_labels_of_other_images(tmp_path, monkeypatch):
    store = filled(tmp_path / "store")
    soft_labels = store.soft_labels(store.lam_requested())
    out = export_folder(store, soft_labels, tmp_path / "out")

    def cut(path, data):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("semmix.mixing.export.write_bytes", cut)
        with pytest.raises(KeyboardInterrupt):
            export_folder(store, soft_labels.flip(0), out)
    assert not (out / "labels.jsonl").exists()
    assert export_folder(store, soft_labels, out).joinpath("labels.jsonl").exists()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SemmixError, match="cannot write"):
        export_folder(store, soft_labels, tmp_path / "file")


def test_export_parquet(tmp_path):
    import pyarrow.parquet as pq

    store = filled(tmp_path / "store")
    path = export_parquet(store, store.soft_labels(store.lam_requested()), tmp_path / "sets.parquet")
    table = pq.read_table(path)
    assert table.num_rows == 56
    assert b"huggingface" in table.schema.metadata
    assert table.column("image")[0].as_py()["bytes"].startswith(b"\x89PNG")
    assert sum(table.column("soft_label")[17].as_py()) == pytest.approx(1)


def test_parquet_holds_what_the_folder_does(tmp_path, monkeypatch):
    import pyarrow.parquet as pq

    monkeypatch.setattr("semmix.mixing.export.ROWS_PER_GROUP", 10)
    store = filled(tmp_path / "store")
    soft_labels = store.soft_labels(store.lam_requested())
    out = export_folder(store, soft_labels, tmp_path / "out")
    lines = [json.loads(line) for line in (out / "labels.jsonl").read_text().splitlines()]
    rows = pq.read_table(export_parquet(store, soft_labels, tmp_path / "a.parquet")).to_pylist()
    assert [(row["set"], row["member"]) for row in rows] == [divmod(k, 8) for k in range(56)]
    for row, line in zip(rows, lines, strict=True):
        assert row.pop("image") == {"bytes": (out / line.pop("file")).read_bytes(), "path": None}
        assert row.pop("soft_label") == pytest.approx(line.pop("soft_label"))
        assert row == line


@pytest.mark.parametrize("channels", [1, 3])
def test_png_keeps_every_pixel(channels):
    image = shard_images(0)[0, 0, :channels, :, :3]
    pixels = np.asarray(Image.open(io.BytesIO(png_bytes(image)))).reshape(4, 3, channels)
    assert np.array_equal(pixels, image.permute(1, 2, 0))


def test_shards_are_plain_safetensors(tmp_path):
    assert load_file(filled(tmp_path).shard_path(0))["images"].shape == (3, 8, 3, 4, 4)
