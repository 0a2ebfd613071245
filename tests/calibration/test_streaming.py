"""Batches, processes and machines: merged sums are the same to the last bit."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semmix import SemmixError
from semmix import calibration as cal
from semmix.calibration import TopLabel


def case(num_samples=300, num_classes=3, seed=0):
    random = np.random.default_rng(seed)
    probs = cal.softmax(3 * random.normal(size=(num_samples, num_classes)))
    return probs, random.integers(0, num_classes, num_samples)


def stream_of(probs, labels, cuts=(), **options):
    stream = cal.CalibrationStream(probs.shape[1], **options)
    for part in np.split(np.arange(len(labels)), cuts):
        if len(part):
            stream.update(probs[part], labels[part])
    return stream


def test_equals_the_metrics():
    probs, labels = case()
    table = stream_of(probs, labels, cuts=[10, 11, 200]).compute()
    for name in set(table) - {"acc", "confidence"}:
        assert table[name] == pytest.approx(getattr(cal, name)(probs, labels), abs=1e-13)
    assert table["acc"] == cal.accuracy(probs, labels)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 300), max_size=6), st.randoms(use_true_random=False))
def test_any_split_in_any_order_gives_the_same_bits(cuts, random):
    probs, labels = case()
    order = list(range(300))
    random.shuffle(order)
    parts = [p for p in np.split(np.array(order), sorted(cuts)) if len(p)]
    streams = [stream_of(probs[part], labels[part]) for part in parts]
    random.shuffle(streams)
    merged = cal.CalibrationStream(3)
    for stream in streams:
        merged.merge(stream)
    whole, split = stream_of(probs, labels).compute(), merged.compute()
    assert split.pop("aece") == pytest.approx(whole.pop("aece"), abs=1e-12)
    assert split == whole


def test_sums_do_not_drift():
    """A million tenths in batches: plain float32 sums are off in the third digit."""
    stream = cal.CalibrationStream(2, keep_samples=False)
    probs = np.tile(np.array([[0.9, 0.1]], np.float32), (100_000, 1))
    for _ in range(10):
        stream.update(probs, np.zeros(100_000, int))
    assert stream.compute()["confidence"] == pytest.approx(float(np.float32(0.9)), abs=1e-15)


def test_constant_memory_leaves_out_what_needs_all_samples():
    table = stream_of(*case(), keep_samples=False).compute()
    assert "aece" not in table
    assert table["ece"] == stream_of(*case()).compute()["ece"]


def test_reset():
    stream = stream_of(*case())
    stream.reset()
    with pytest.raises(SemmixError, match="update"):
        stream.compute()
    stream.update([[0.9, 0.1, 0.0]], [0])
    assert stream.compute()["acc"] == 1


def test_options():
    probs, labels = case()
    holes = np.where(labels == 2, 255, labels)
    stream = stream_of(probs, holes, cuts=[50], ignore_index=255)
    stream.update(probs[:2], [255, 255])
    kept = labels != 2
    assert stream.compute()["ece"] == pytest.approx(cal.ece(probs[kept], labels[kept]))
    weighted = stream_of(probs, labels, cuts=[7], class_weights=[1, 2, 3]).compute()
    for name in ("ece", "aece", "nll", "classwise_ece"):
        expected = getattr(cal, name)(probs, labels, class_weights=[1, 2, 3])
        assert weighted[name] == pytest.approx(expected, abs=1e-12)


def test_tensors_and_vectors():
    p, labels = np.array([0.3, 0.8]), np.array([0, 1])
    stream = cal.CalibrationStream(2)
    stream.update(torch.tensor(p), torch.tensor(labels))
    assert stream.compute()["brier"] == pytest.approx(cal.brier(p, labels))


def test_mistakes():
    stream = cal.CalibrationStream(3)
    with pytest.raises(SemmixError, match="number of classes"):
        stream.update([[0.5, 0.5]], [0])
    with pytest.raises(SemmixError, match="streams differ"):
        stream.merge(cal.CalibrationStream(4))


def test_sync_alone_changes_nothing():
    stream = stream_of(*case())
    before = stream.compute()
    stream.sync()
    assert stream.compute() == before


def one_process(rank, path):
    """What each of two processes does: see half the samples, then know of all."""
    torch.distributed.init_process_group("gloo", f"file://{path}/store", rank=rank, world_size=2)
    probs, labels = case()
    stream = stream_of(probs[rank::2], labels[rank::2])
    stream.sync()
    Path(path, f"{rank}.json").write_text(json.dumps(stream.compute()))
    torch.distributed.destroy_process_group()


def test_sync_of_two_processes(tmp_path):
    processes = [subprocess.Popen([sys.executable, __file__, str(rank), str(tmp_path)]) for rank in (0, 1)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    whole = stream_of(*case()).compute()
    for rank in (0, 1):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found == pytest.approx(whole, abs=1e-12)


if __name__ == "__main__":
    one_process(int(sys.argv[1]), sys.argv[2])


def test_a_refused_batch_leaves_nothing():
    probs, labels = case(400_000)
    stream, bad = cal.CalibrationStream(3), probs.astype(np.float32)
    bad[-1, 0] = np.nan
    with pytest.raises(SemmixError, match="row 399999"):
        stream.update(bad, labels)
    stream.update(probs[:300], labels[:300])
    assert stream.compute() == stream_of(probs[:300], labels[:300]).compute()


def test_a_batch_of_weightless_classes_is_no_mistake():
    probs, labels = case()
    weights = [0.0, 1e13, 1e13]
    stream = stream_of(probs, np.sort(labels), cuts=[50], class_weights=weights)
    assert stream.compute()["ece"] == pytest.approx(cal.ece(probs, np.sort(labels), class_weights=weights))


@pytest.mark.parametrize("other", [{"keep_samples": False}, {"class_weights": [1, 2, 3]}])
def test_streams_of_other_kinds_are_not_merged(other):
    probs, labels = case()
    with pytest.raises(SemmixError, match="make them alike"):
        stream_of(probs, labels).merge(stream_of(probs, labels, **other))


def test_samples_that_were_not_kept_cannot_be_had():
    probs, labels = case()
    for stream in (cal.CalibrationStream(3), stream_of(probs, labels, keep_samples=False)):
        with pytest.raises(SemmixError, match="no samples are kept"):
            stream.top_label()


@pytest.mark.parametrize("tied", [False, True])
def test_compressed_confidences_stay_in_their_bins(tied):
    """Those on an edge too: two thirds, as votes of three have it, is the end of bin 10 of 15."""
    confidence = np.repeat([1 / 15, 4 / 15, 1 / 3, 7 / 15, 2 / 3, 0.7, 13 / 15, 1.0], 50)
    correct = np.random.default_rng(0).random(len(confidence)) < confidence
    whole = TopLabel(confidence, correct * 1.0)
    few = whole.compressed(15 * 64, tied)
    for name in ("ece", "oe", "ue", "aece"):
        assert getattr(few, name)() == pytest.approx(getattr(whole, name)(), abs=1e-8), name
    assert few.bin_sums().weight.tolist() == whole.bin_sums().weight.tolist()
    assert few.count == len(confidence)


def test_tied_cells_rank_neither_right_nor_wrong_first():
    whole = TopLabel(np.array([0.612, 0.613, 0.617]), np.array([1.0, 0.0, 1.0]))
    assert whole.compressed(100, tied=True).confidence.tolist() == [0.614, 0.614]
    assert whole.compressed(100).confidence.tolist() == [0.613, 0.6145]
