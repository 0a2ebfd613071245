"""Other libraries on the same predictions: agreement where they are right, ours where they err."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from semmix import calibration as cal

HERE = Path(__file__).parent
PEERS = json.loads((HERE / "peers.json").read_text())["values"]

spec = importlib.util.spec_from_file_location("record_peers", HERE / "record_peers.py")
fixtures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fixtures)


@pytest.mark.parametrize(
    ("metric", "peer", "tolerance"),
    [
        (cal.ece, "netcal_ece", 1e-12),
        (cal.ece, "uncertainty_calibration_ece", 1e-12),
        (cal.ece, "torchmetrics_ece", 1e-6),  # it sums in float32
        (cal.mce, "netcal_mce", 1e-12),
        (cal.mce, "torchmetrics_mce", 1e-6),
        (cal.smooth_ece, "relplot_smooth_ece", 1e-3),  # it stops its search at 1e-3
        (lambda p, y: cal.debiased_ece(p, y, power=2), "uncertainty_calibration_debiased_l2", 1e-12),
        (cal.debiased_ece, "uncertainty_calibration_debiased_l1", 2e-4),  # it draws the noise
    ],
)
def test_agreement(metric, peer, tolerance):
    assert metric(*fixtures.plain()) == pytest.approx(PEERS[peer], abs=tolerance)


def test_confidence_one_shares_the_last_bin():
    """torchmetrics puts it into a bin of its own and sees 0.275."""
    assert cal.ece(*fixtures.saturated()) == pytest.approx(0.225, abs=1e-12)
    assert PEERS["netcal_saturated_ece"] == pytest.approx(0.225, abs=1e-12)
    assert PEERS["torchmetrics_saturated_ece"] == pytest.approx(0.275, abs=1e-6)


def test_four_million_samples():
    """Sums in float32 are off by more than one percent here; ours are exact."""
    confidence, correct = fixtures.many()
    order = np.argsort(confidence)
    gaps = (confidence[order].astype(np.longdouble) - correct[order]).cumsum()
    edges = (np.arange(1, 16) / 15).astype(np.float32)
    ends = np.searchsorted(confidence[order], edges, "right")
    at_ends = np.append(0, gaps)[ends]
    exact = float(np.abs(np.diff(at_ends, prepend=0)).sum() / len(confidence))
    probs = np.stack([1 - confidence, confidence], 1)
    assert cal.ece(probs, correct.astype(int)) == pytest.approx(exact, rel=1e-12)
    assert abs(PEERS["torchmetrics_many_ece"] / exact - 1) > 0.01


def test_scikit_learn_losses():
    probs, labels = fixtures.plain()
    assert cal.nll(probs, labels) == pytest.approx(sklearn_metrics.log_loss(labels, probs))
    assert cal.accuracy(probs, labels) == sklearn_metrics.accuracy_score(labels, probs.argmax(1))
    positive = (labels == 1).astype(int)
    brier = sklearn_metrics.brier_score_loss(positive, probs[:, 1])
    assert cal.brier(probs[:, 1], positive) == pytest.approx(2 * brier)  # both classes count


def test_scikit_learn_ranking():
    scores = np.round(np.sin(np.arange(400.0)), 2)  # with ties
    inside, outside = scores[:250], scores[250:] + 0.3
    labels = np.repeat([0, 1], [250, 150])
    together = np.concatenate([inside, outside])
    assert cal.ood_auroc(inside, outside) == pytest.approx(sklearn_metrics.roc_auc_score(labels, together))
    assert cal.ood_aupr(inside, outside) == pytest.approx(sklearn_metrics.average_precision_score(labels, together))
    assert cal.ood_aupr(inside, outside, positive="in") == pytest.approx(
        sklearn_metrics.average_precision_score(1 - labels, -together)
    )
