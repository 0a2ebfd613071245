"""Metrics against golden values and slow twins written as plain loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import semmix
from semmix import calibration as cal
from semmix.calibration._bins import bin_index

BINS = 15


def softmax(logits):
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    return exponentials / exponentials.sum(1, keepdims=True)


def golden():
    """The fixture whose values were derived twice: N=1000, K=10, a quarter of the labels moved."""
    i, k = np.arange(1000), np.arange(10)
    logits = 4 * np.sin(0.37 * i[:, None] + 1.3 * k + 0.01 * i[:, None] * k)
    labels = np.where(i % 4 == 0, (7 * i + i % 13) % 10, logits.argmax(1))
    return softmax(logits), labels


def random_case(seed, num_samples=200, num_classes=4, sharp=3.0):
    random = np.random.default_rng(seed)
    probs = softmax(sharp * random.normal(size=(num_samples, num_classes)))
    return probs, random.integers(0, num_classes, num_samples)


# --- slow twins: plain loops over samples and bins ------------------------------------------------


def slow_bin(confidence, bins=BINS):
    return next((m for m in range(bins) if confidence <= (m + 1) / bins), bins - 1)


def slow_bins(probs, labels, bins=BINS, weights=None):
    """Return for each bin its weight, summed confidence and summed correctness."""
    table = [[0.0, 0.0, 0.0] for _ in range(bins)]
    for i, (row, label) in enumerate(zip(probs, labels, strict=True)):
        weight = 1.0 if weights is None else weights[i]
        entry = table[slow_bin(max(row), bins)]
        entry[0] += weight
        entry[1] += weight * max(row)
        entry[2] += weight * (int(np.argmax(row)) == label)
    return table


def slow_gaps(probs, labels, weights=None):
    """Return (share, confidence, accuracy) of each bin that holds a sample."""
    table = [entry for entry in slow_bins(probs, labels, weights=weights) if entry[0] > 0]
    total = sum(entry[0] for entry in table)
    return [(w / total, c / w, a / w) for w, c, a in table]


def slow_ece(probs, labels, weights=None):
    return sum(s * abs(c - a) for s, c, a in slow_gaps(probs, labels, weights))


def slow_oe(probs, labels):
    return sum(s * max(c - a, 0) for s, c, a in slow_gaps(probs, labels))


def slow_ue(probs, labels):
    return sum(s * max(a - c, 0) for s, c, a in slow_gaps(probs, labels))


def slow_weighted_oe(probs, labels):
    return sum(s * c * max(c - a, 0) for s, c, a in slow_gaps(probs, labels))


def slow_weighted_ue(probs, labels):
    return sum(s * c * max(a - c, 0) for s, c, a in slow_gaps(probs, labels))


def slow_mce(probs, labels):
    return max(abs(c - a) for _, c, a in slow_gaps(probs, labels))


def slow_aece(probs, labels):
    """Sort, split into chunks; right only where no confidences are equal."""
    order = sorted(range(len(labels)), key=lambda i: max(probs[i]))
    total = 0.0
    for chunk in np.array_split(np.array(order), BINS):
        gaps = [max(probs[i]) - (int(np.argmax(probs[i])) == labels[i]) for i in chunk]
        total += abs(sum(gaps))
    return total / len(labels)


def slow_classwise_ece(probs, labels):
    errors = []
    for k in range(probs.shape[1]):
        table = [[0, 0.0, 0] for _ in range(BINS)]
        for row, label in zip(probs, labels, strict=True):
            entry = table[slow_bin(row[k])]
            entry[0] += 1
            entry[1] += row[k]
            entry[2] += label == k
        errors.append(sum(abs(c - a) for n, c, a in table if n) / len(labels))
    return sum(errors) / len(errors)


def slow_nll(probs, labels):
    return -sum(math.log(row[y]) for row, y in zip(probs, labels, strict=True)) / len(labels)


def slow_brier(probs, labels):
    total = 0.0
    for row, label in zip(probs, labels, strict=True):
        total += sum((p - (k == label)) ** 2 for k, p in enumerate(row))
    return total / len(labels)


def slow_accuracy(probs, labels):
    return sum(int(np.argmax(r)) == y for r, y in zip(probs, labels, strict=True)) / len(labels)


def slow_aurc(probs, labels):
    order = sorted(range(len(labels)), key=lambda i: -max(probs[i]))
    errors, total = 0, 0.0
    for count, i in enumerate(order, 1):
        errors += int(np.argmax(probs[i])) != labels[i]
        total += errors / count
    return total / len(labels)


def slow_smooth_ece(probs, labels):
    """Smooth on a fine grid with mirror images of each sample; halve the bandwidth bracket."""
    confidence = probs.max(1)
    gaps = (confidence - (probs.argmax(1) == labels)) / len(labels)
    grid = (np.arange(2000) + 0.5) / 2000

    def error(sigma):
        density = np.zeros(len(grid))
        for c, g in zip(confidence, gaps, strict=True):
            for shift in (-2, 0, 2):
                for centre in (c + shift, -c + shift):
                    density += g * np.exp(-0.5 * ((grid - centre) / sigma) ** 2)
        return np.abs(density).mean() / (sigma * math.sqrt(2 * math.pi))

    low, high = 1e-3, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if error(middle) > middle else (low, middle)
    return low


TWINS = {
    cal.accuracy: slow_accuracy,
    cal.ece: slow_ece,
    cal.aece: slow_aece,
    cal.oe: slow_oe,
    cal.ue: slow_ue,
    cal.weighted_oe: slow_weighted_oe,
    cal.weighted_ue: slow_weighted_ue,
    cal.mce: slow_mce,
    cal.classwise_ece: slow_classwise_ece,
    cal.nll: slow_nll,
    cal.brier: slow_brier,
    cal.aurc: slow_aurc,
}


@pytest.mark.parametrize("metric", TWINS, ids=lambda metric: metric.__name__)
@pytest.mark.parametrize(("seed", "num_samples", "num_classes"), [(0, 200, 4), (1, 37, 11), (2, 1, 3)])
def test_twin(metric, seed, num_samples, num_classes):
    probs, labels = random_case(seed, num_samples, num_classes)
    assert metric(probs, labels) == pytest.approx(TWINS[metric](probs, labels), abs=1e-12)


def test_smooth_ece_twin():
    probs, labels = random_case(3, num_samples=60)
    slow = slow_smooth_ece(probs, labels)
    assert cal.smooth_ece(probs, labels) == pytest.approx(slow, abs=1e-4)


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        (cal.accuracy, 0.789),
        (cal.ece, 0.370857),
        (cal.aece, 0.370857),
        (cal.oe, 0.0),
        (cal.ue, 0.370857),
        (cal.weighted_oe, 0.0),
        (cal.weighted_ue, 0.145089),
        (cal.classwise_ece, 0.056396),
    ],
)
def test_golden(metric, value):
    assert metric(*golden()) == pytest.approx(value, abs=1e-6)


def test_brier_golden():
    i, k = np.arange(6)[:, None], np.arange(5)
    probs = softmax(3 * np.sin(1 + 3 * i + 7 * k))
    assert semmix.brier(probs, (2 * np.arange(6) + 1) % 5) == pytest.approx(1.192220, abs=1e-6)
    assert semmix.nll(probs, (2 * np.arange(6) + 1) % 5) == pytest.approx(2.640136, abs=1e-6)


@pytest.mark.parametrize("metric", TWINS, ids=lambda metric: metric.__name__)
def test_kinds_of_arrays(metric):
    probs, labels = random_case(4)
    value = metric(probs, labels)
    assert isinstance(value, float)
    assert metric(torch.tensor(probs), torch.tensor(labels)) == value
    assert metric(probs.tolist(), labels.tolist()) == value
    assert metric(np.asfortranarray(probs), labels.astype(np.int8)) == pytest.approx(value)
    assert metric(probs.astype(">f8"), labels.astype(float)) == value
    readonly = probs.copy()
    readonly.flags.writeable = False
    assert metric(readonly, labels) == value
    assert metric(torch.tensor(probs, requires_grad=True), labels) == value
    assert metric(torch.tensor(probs, dtype=torch.float32), labels) == pytest.approx(value, abs=1e-6)
    assert metric(torch.tensor(probs).half(), labels) == pytest.approx(value, abs=2e-2)


def test_round_confidences_fall_into_the_same_bin_in_every_type():
    """0.6 and 0.8 are edges; in float32 they are larger than in float64, yet still the edges."""
    probs = np.array([[0.6, 0.4], [0.59, 0.41], [0.8, 0.2], [0.79, 0.21]])
    labels = [0, 1, 0, 1]
    expected = cal.ece(probs, labels)
    assert cal.ece(probs.astype(np.float32), labels) == pytest.approx(expected, abs=1e-6)
    assert cal.reliability(probs, labels).count[[8, 11]].tolist() == [2, 2]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_rounding_moves_a_value_across_an_edge(dtype):
    """The product of value and bins may be rounded onto a whole number, or off it."""
    for bins in range(1, 40):
        edges = (np.arange(bins + 1) / bins).astype(dtype)
        values = np.concatenate([edges, np.nextafter(edges, dtype(0)), np.nextafter(edges, dtype(1))])
        expected = [next(m for m in range(bins) if value <= edges[m + 1]) for value in values]
        assert bin_index(values, bins).tolist() == expected


def test_edges_belong_to_the_lower_bin():
    table = cal.reliability([[0.2, 0.8, 0.0], [0.0, 0.8, 0.2], [1.0, 0.0, 0.0]], [1, 1, 1], bins=5)
    assert table.count.tolist() == [0, 0, 0, 2, 1]
    assert table.accuracy[3:].tolist() == [1.0, 0.0]
    assert np.isnan(table.confidence[:3]).all()
    assert (table.lower[3], table.upper[3]) == (0.6, 0.8)


def test_binary_vector_is_the_second_column():
    p = np.array([0.1, 0.7, 0.95, 0.5])
    labels = np.array([0, 1, 0, 1])
    columns = np.stack([1 - p, p], 1)
    for metric in (cal.ece, cal.nll, cal.brier, cal.classwise_ece, cal.accuracy):
        assert metric(p, labels) == metric(columns, labels)
        assert metric(torch.tensor(p), labels) == metric(columns, labels)


def test_ignored_samples_do_not_count():
    probs, labels = random_case(5)
    holes = np.where(np.arange(200) % 3 == 0, -100, labels)
    kept = holes != -100
    for metric in (*TWINS, cal.smooth_ece, cal.debiased_ece):
        expected = metric(probs[kept], labels[kept])
        assert metric(probs, holes, ignore_index=-100) == expected
        assert metric(torch.tensor(probs), torch.tensor(holes), ignore_index=-100) == expected


def test_ignored_samples_may_hold_anything():
    assert cal.ece([[0.9, 0.1], [np.nan, 3.0]], [0, 255], ignore_index=255) == pytest.approx(0.1)


def test_class_weights_count_like_copies():
    probs, labels = random_case(6)
    copies = np.repeat(np.arange(200), np.array([1, 3, 2, 1])[labels])
    for metric in (*TWINS, cal.smooth_ece):
        if metric in (cal.aece, cal.aurc):  # these depend on the number of samples
            continue
        expected = metric(probs[copies], labels[copies])
        weighted = metric(probs, labels, class_weights=[1, 3, 2, 1])
        assert weighted == pytest.approx(expected, abs=1e-12), metric.__name__


def test_weights_that_sum_to_any_number_are_shares():
    probs, labels = random_case(19)
    top = cal.top_label(probs, labels)
    tripled = top.reweighted(np.full(200, 3.0))
    for name in ("ece", "aece", "mce", "aurc", "smooth_ece", "accuracy"):
        assert getattr(tripled, name)() == pytest.approx(getattr(top, name)(), abs=1e-12), name


def test_weightless_classes_do_not_count():
    probs, labels = random_case(20)
    kept, weights = labels != 2, [1, 1, 0, 1]
    for metric in (*TWINS, cal.smooth_ece):
        if metric in (cal.aece, cal.aurc):  # these depend on the number of samples
            continue
        weighted = metric(probs, labels, class_weights=weights)
        assert weighted == pytest.approx(metric(probs[kept], labels[kept]), abs=1e-12)
    curve = cal.risk_coverage([[0.9, 0.1], [0.2, 0.8]], [0, 1], class_weights=[0, 1])
    assert (curve.coverage.tolist(), curve.risk.tolist()) == ([1.0], [0.0])


@pytest.mark.parametrize("soft", [False, True])
def test_blocks_of_rows_do_not_matter(soft, monkeypatch):
    probs, labels = random_case(21)
    targets = 0.8 * np.eye(4)[labels] + 0.05 if soft else labels
    measures = (*TWINS, cal.smooth_ece, cal.debiased_ece, cal.brier_decomposition)
    whole = [metric(probs, targets, class_weights=[1, 3, 2, 1]) for metric in measures]
    monkeypatch.setattr("semmix.calibration._inputs.BLOCK_ELEMENTS", 28)
    for metric, expected in zip(measures, whole, strict=True):
        in_blocks = metric(probs, targets, class_weights=[1, 3, 2, 1])
        assert in_blocks == pytest.approx(expected, abs=1e-12), metric.__name__


@pytest.mark.parametrize("power", [1, 2])
def test_debiasing_counts_samples_however_classes_are_weighted(power):
    """A bin of ten under any weights is a bin of ten: copies would be more."""
    probs, labels = [[0.9, 0.1]] * 10, [0] * 8 + [1] * 2
    weighted = cal.debiased_ece(probs, labels, power=power, class_weights=[1, 6])
    # Of ten samples, 0.4 are right by weight.
    assert weighted == pytest.approx(cal.debiased_ece(probs, [0] * 4 + [1] * 6, power=power), abs=1e-12)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("scale", [1e-3, 10.0])
def test_debiasing_takes_weights_for_shares(power, scale):
    probs, labels = random_case(5, 2000, 5)
    plain = cal.debiased_ece(probs, labels, power=power)
    weighted = cal.debiased_ece(probs, labels, power=power, class_weights=np.full(5, scale))
    assert weighted == pytest.approx(plain)


def test_scale_of_class_weights_does_not_matter():
    probs, labels = random_case(7, num_samples=150)
    for metric in (*TWINS, cal.smooth_ece):
        weighted = metric(probs, labels, class_weights=[0.2, 0.2, 0.2, 0.2])
        assert weighted == pytest.approx(metric(probs, labels), abs=1e-12), metric.__name__


def test_soft_labels_that_are_hard():
    probs, labels = random_case(8)
    onehot = np.eye(4)[labels]
    for metric in (*TWINS, cal.smooth_ece):
        assert metric(probs, onehot) == pytest.approx(metric(probs, labels), abs=1e-14)


def test_soft_labels_by_hand():
    probs, soft = [[0.7, 0.3], [0.2, 0.8]], [[0.5, 0.5], [0.1, 0.9]]
    assert cal.accuracy(probs, soft) == pytest.approx((0.5 + 0.9) / 2)
    assert cal.ece(probs, soft) == pytest.approx((0.2 + 0.1) / 2)
    expected = -(math.log(0.7) + math.log(0.3)) / 2 - (0.1 * math.log(0.2) + 0.9 * math.log(0.8))
    assert cal.nll(probs, soft) == pytest.approx(expected / 2)
    assert cal.brier(probs, soft) == pytest.approx((2 * 0.04 + 2 * 0.01) / 2)


def test_soft_labels_mix_the_weights_of_their_classes():
    probs, soft = [[0.7, 0.3], [0.2, 0.8]], [[0.6, 0.4], [0.1, 0.9]]
    weights = np.array([0.6 + 3 * 0.4, 0.1 + 3 * 0.9])
    expected = np.average([0.6, 0.9], weights=weights)
    assert cal.accuracy(probs, soft, class_weights=[1, 3]) == pytest.approx(expected)


def test_nll_of_an_impossible_label_is_finite():
    assert cal.nll([[1.0, 0.0]], [1]) == pytest.approx(-math.log(np.finfo(np.float64).tiny))
    single = np.array([[1.0, 0.0]], np.float32)
    assert cal.nll(single, [1]) == pytest.approx(-math.log(np.finfo(np.float32).tiny))
    for half in (single.astype(np.float16), torch.tensor(single).half()):
        assert cal.nll(half, [1]) == pytest.approx(-math.log(2**-24))
    wide = torch.tensor(single).bfloat16()  # reaches as far down as float32
    assert cal.nll(wide, [1]) == cal.nll(single, [1])


def test_entropy():
    assert cal.entropy([[0.5, 0.5], [1.0, 0.0]]) == pytest.approx(math.log(2) / 2)


def test_brier_decomposition_adds_up():
    probs, labels = golden()
    parts = cal.brier_decomposition(probs, labels)
    assert parts["brier"] == cal.brier(probs, labels)
    rest = parts["reliability"] - parts["resolution"] + parts["uncertainty"] + parts["within_bins"]
    assert rest == pytest.approx(parts["brier"], abs=1e-15)
    rates = np.bincount(labels) / len(labels)
    assert parts["uncertainty"] == pytest.approx(1 - (rates**2).sum())
    many_bins = cal.brier_decomposition(probs, labels, bins=20_000)
    assert abs(many_bins["within_bins"]) < 0.01 * abs(parts["within_bins"])


def test_brier_decomposition_with_weights_and_soft_labels():
    probs, labels = random_case(22)
    copies = np.repeat(np.arange(200), np.array([1, 3, 2, 1])[labels])
    soft = np.array([[0.9, 0.1, 0.0, 0.0], [0.0, 0.6, 0.4, 0.0], [0.1, 0.0, 0.7, 0.2], [0, 0, 0, 1]])
    weighted = cal.brier_decomposition(probs, labels, class_weights=[1, 3, 2, 1])
    assert weighted == pytest.approx(cal.brier_decomposition(probs[copies], labels[copies]))
    parts = cal.brier_decomposition(probs, soft[labels], class_weights=[1, 3, 2, 1])
    shares = (soft[labels] @ [1, 3, 2, 1])[:, None] / (soft[labels] @ [1, 3, 2, 1]).sum()
    spread = (shares * soft[labels] ** 2).sum() - ((shares * soft[labels]).sum(0) ** 2).sum()
    assert parts["uncertainty"] == pytest.approx(spread)


def test_brier_decomposition_of_bin_centres_is_murphys():
    """Where all probabilities of a bin are equal nothing is hidden within bins."""
    probs = np.array([[0.7, 0.3]] * 10 + [[0.2, 0.8]] * 5)
    labels = np.array([0] * 6 + [1] * 4 + [1] * 5)
    parts = cal.brier_decomposition(probs, labels)
    assert parts["within_bins"] == pytest.approx(0, abs=1e-15)
    assert parts["reliability"] == pytest.approx(2 * (10 * 0.1**2 + 5 * 0.2**2) / 15)


def test_summary_agrees_with_each_metric():
    probs, labels = golden()
    table = cal.summary(probs, labels)
    assert list(table) == ["acc", "ece", "aece", "oe", "ue", "classwise_ece", "mce", "nll", "brier", "confidence"]
    for name in set(table) - {"acc", "confidence"}:
        assert table[name] == pytest.approx(getattr(cal, name)(probs, labels), abs=1e-13)
    assert table["acc"] == cal.accuracy(probs, labels)
    assert table["confidence"] == pytest.approx(probs.max(1).mean())


def test_debiasing_removes_what_chance_adds():
    """A calibrated model: ECE of 500 samples is mostly noise, the debiased value mostly not."""
    random = np.random.default_rng(9)
    plain, debiased, root = [], [], []
    for _ in range(200):
        p = random.uniform(0.5, 1, 500)
        labels = (random.random(500) < p).astype(int)
        plain.append(cal.ece(p, labels))
        debiased.append(cal.debiased_ece(p, labels))
        root.append(cal.debiased_ece(p, labels, power=2))
    assert np.mean(debiased) < 0.65 * np.mean(plain)
    assert np.mean(root) < 0.65 * np.mean(plain)


def test_debiased_ece_by_hand():
    """One bin: confidence 0.9, accuracy 0.6 of ten; the noise is far smaller than the gap."""
    probs, labels = [[0.9, 0.1]] * 10, [0] * 6 + [1] * 4
    assert cal.debiased_ece(probs, labels, power=2) == pytest.approx(math.sqrt(0.09 - 0.24 / 9))
    deviation = math.sqrt(0.24 / 10)
    ratio = 0.3 / deviation
    noise = deviation * math.sqrt(2 / math.pi) * math.exp(-0.5 * ratio**2)
    folded = noise + 0.3 * math.erf(ratio / math.sqrt(2))
    assert cal.debiased_ece(probs, labels) == pytest.approx(0.6 - folded)


@pytest.mark.parametrize("power", [1, 2])
def test_debiasing_leaves_what_shows_no_noise(power):
    """All right at 0.7, and one alone: nothing tells of a noise to take away."""
    probs, labels = [[0.7, 0.3]] * 9 + [[0.95, 0.05]], [0] * 9 + [1]
    gaps = np.array([0.3] * 9 + [0.95])
    expected = (gaps**power).mean() ** (1 / power)
    assert cal.debiased_ece(probs, labels, power=power) == pytest.approx(expected)


def test_constant_confidence_in_any_order():
    for labels in ([0] * 6 + [1] * 4, [1] * 4 + [0] * 6, [1, 0, 0, 1, 0, 0, 1, 0, 0, 1]):
        assert semmix.aece([[0.9, 0.1]] * 10, labels) == pytest.approx(0.3, abs=1e-12)
        assert semmix.ece([[0.9, 0.1]] * 10, labels) == pytest.approx(0.3, abs=1e-12)
        assert semmix.smooth_ece([[0.9, 0.1]] * 10, labels) == pytest.approx(0.3, abs=1e-3)
    assert semmix.smooth_ece([[1.0, 0.0]] * 10, [0] * 10) == 0


def test_no_sample_is_dropped_by_aece():
    """Published code never counts the least confident sample."""
    assert cal.aece([[0.6, 0.4]], [1]) == pytest.approx(0.6)
    assert cal.aece([[0.6, 0.4], [1.0, 0.0]], [1, 0]) == pytest.approx(0.3)


def test_class_that_is_never_predicted_nor_seen():
    probs = np.array([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0]])
    assert cal.classwise_ece(probs, [0, 1]) == pytest.approx(((0.1 + 0.2) / 2 + (0.1 + 0.2) / 2) / 3)


def test_one_class():
    assert cal.ece([[1.0], [1.0]], [0, 0]) == 0
    assert cal.summary([[1.0]], [0])["acc"] == 1


def test_ties_go_to_the_first_class():
    for num_classes in (2, 3, 100):
        even = np.full((1, num_classes), 1 / num_classes)
        assert cal.accuracy(even, [0]) == 1
        assert cal.accuracy(even, [num_classes - 1]) == 0


def test_aurc_shares_ties():
    """Two equal confidences, one wrong: half a mistake at coverage one half, one at the end."""
    for labels in ([0, 1], [1, 0]):
        assert cal.aurc([[0.8, 0.2], [0.8, 0.2]], labels) == pytest.approx((0.5 + 0.5) / 2)


def test_risk_coverage():
    probs = [[0.9, 0.1], [0.8, 0.2], [0.8, 0.2], [0.6, 0.4]]
    curve = cal.risk_coverage(probs, [0, 0, 1, 1])
    assert curve.coverage.tolist() == [0.25, 0.75, 1.0]
    assert curve.risk.tolist() == pytest.approx([0, 1 / 3, 0.5])


# --- properties -----------------------------------------------------------------------------------

cases = st.builds(
    random_case,
    seed=st.integers(0, 10_000),
    num_samples=st.integers(1, 60),
    num_classes=st.integers(2, 6),
    sharp=st.sampled_from([0.0, 0.5, 3.0, 40.0]),  # constant, soft, usual, saturated confidences
)


@settings(max_examples=60, deadline=None)
@given(cases, st.randoms(use_true_random=False))
def test_order_does_not_matter(case, random):
    probs, labels = case
    probs = np.round(probs, 1) / np.round(probs, 1).sum(1, keepdims=True)  # many ties
    order = list(range(len(labels)))
    random.shuffle(order)
    for metric in (*TWINS, cal.smooth_ece, cal.debiased_ece):
        assert metric(probs[order], labels[order]) == pytest.approx(metric(probs, labels), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(cases, st.integers(1, 30))
def test_relations(case, bins):
    probs, labels = case
    top = cal.top_label(probs, labels)
    assert top.oe(bins) + top.ue(bins) == pytest.approx(top.ece(bins), abs=1e-12)
    assert top.ece(bins) <= top.mce(bins) + 1e-12
    assert top.ece(1) == pytest.approx(abs(top.mean_confidence() - top.accuracy()), abs=1e-12)
    assert top.ece(bins) >= top.ece(1) - 1e-12
    assert top.aece(bins) >= top.aece(1) - 1e-12
    assert top.smooth_ece() <= 1
    assert top.weighted_oe(bins) <= top.oe(bins) + 1e-12
    assert cal.piece(probs, labels, np.sin(np.arange(len(labels))), bins) >= top.ece(bins) - 1e-12


@settings(max_examples=60, deadline=None)
@given(cases)
def test_ranges(case):
    probs, labels = case
    for name, value in cal.summary(probs, labels).items():
        most = {"nll": 1e3, "brier": 2.0}.get(name, 1.0)
        assert 0 <= value <= most + 1e-12
