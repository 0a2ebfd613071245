"""Record what other calibration libraries say of fixed predictions, for test_peers.py.

They are too heavy for the test environment, so their values are kept in peers.json. To make it
anew, in an environment of its own:

    pip install torch torchmetrics==1.9.0 netcal==1.4.0 relplot==1.0.3 \\
        uncertainty-calibration==0.1.4
    python tests/calibration/record_peers.py > tests/calibration/peers.json
"""

import json
from importlib.metadata import version

import numpy as np


def plain():
    """Over- and underconfident predictions without ties or saturation, N=2000, K=5."""
    i, k = np.arange(2000)[:, None], np.arange(5)
    logits = (1 + 3 * np.sin(0.11 * i) ** 2) * np.sin(0.37 * i + 1.3 * k + 0.01 * i * k)
    labels = np.where(np.arange(2000) % 5 < 2, (3 * np.arange(2000)) % 5, logits.argmax(1))
    exponentials = np.exp(logits)
    return exponentials / exponentials.sum(1, keepdims=True), labels


def saturated():
    """Confidence 0.95, always right, and confidence 1, half right: one bin, gap 0.975 - 0.75."""
    probs = np.array([[0.95, 0.05, 0.0]] * 10 + [[1.0, 0.0, 0.0]] * 10)
    return probs, np.array([0] * 15 + [1] * 4 + [2])


def many(num=4_000_000):
    """Confidences of a binary classifier and whether it was right: enough to break float32 sums."""
    i = np.arange(num)
    confidence = (0.5001 + 0.4998 * np.abs(np.sin(0.7 * i))).astype(np.float32)
    return confidence, (i * 7919) % 1000 < 880


def main():
    import calibration as uncertainty_calibration
    import relplot
    import torch
    from calibration import utils
    from netcal.metrics import ECE, MCE
    from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

    probs, labels = plain()
    tensors = torch.tensor(probs), torch.tensor(labels)
    confidence, correct = probs.max(1), probs.argmax(1) == labels
    edges = (np.arange(15) + 1) / 15
    pairs = list(zip(confidence, correct.astype(float), strict=True))
    binned = [members for members in utils.bin(pairs, edges) if len(members)]
    np.random.seed(0)
    values = {
        "torchmetrics_ece": float(multiclass_calibration_error(*tensors, 5, n_bins=15)),
        "torchmetrics_mce": float(multiclass_calibration_error(*tensors, 5, n_bins=15, norm="max")),
        "netcal_ece": float(ECE(15).measure(probs, labels)),
        "netcal_mce": float(MCE(15).measure(probs, labels)),
        "relplot_smooth_ece": float(relplot.smECE(confidence, correct.astype(float))),
        "uncertainty_calibration_ece": float(uncertainty_calibration.get_ece(probs, labels, num_bins=15)),
        "uncertainty_calibration_debiased_l2": float(utils.unbiased_l2_ce(binned)),
        "uncertainty_calibration_debiased_l1": float(utils.normal_debiased_ce(binned, power=1, resamples=20_000)),
    }
    sure, sure_labels = saturated()
    values["torchmetrics_saturated_ece"] = float(
        multiclass_calibration_error(torch.tensor(sure), torch.tensor(sure_labels), 3, n_bins=15)
    )
    values["netcal_saturated_ece"] = float(ECE(15).measure(sure, sure_labels))
    lots, right = many()
    # As class 1 of two: the confidence is the probability, "right" the label.
    values["torchmetrics_many_ece"] = float(
        binary_calibration_error(torch.tensor(lots), torch.tensor(right), n_bins=15)
    )
    names = ("torch", "torchmetrics", "netcal", "relplot", "uncertainty-calibration")
    versions = {name: version(name) for name in names}
    print(json.dumps({"versions": versions, "values": values}, indent=2))


if __name__ == "__main__":
    main()
