"""Losses of logits and labels: golden values, and a slow twin in plain loops for each."""

from itertools import product

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from semmix import SemmixError
from semmix.methods import Batch, cpc, method

GOLDEN = [
    ("ce", {}, 2.640136),
    ("ls", {}, 2.633024),
    ("ecp", {}, 2.540351),
    ("ecp", {"protocol": "code"}, 2.620179),
    ("mmce", {}, 2.776379),
    ("mmce_w", {"weight": 1.0}, 2.996730),
    ("mmce_w", {"weight": 1.0, "protocol": "code"}, 3.081376),
    ("fl", {}, 2.162892),
    ("flsd", {}, 1.971764),
    ("cpc", {}, 3.486718),
    ("mbls", {}, 2.640136),
    ("mbls", {"margin": 2.0}, 2.706343),
    ("fcl", {}, 2.759002),
]


def loss_of(name, logits, labels, **options):
    batch = Batch(images=logits, labels=labels, index=torch.arange(len(labels)))
    chosen = method(name, num_classes=logits.shape[-1], **options)
    return chosen.step(lambda images: images, batch)["loss"]


@pytest.mark.parametrize(("name", "options", "golden"), GOLDEN)
def test_golden_values(logits, labels, name, options, golden):
    assert loss_of(name, logits, labels, **options).item() == pytest.approx(golden, abs=1e-5)


def test_golden_terms_of_cpc(batch):
    terms = method("cpc", num_classes=5).step(lambda images: images, batch)
    assert terms["discrimination"].item() == pytest.approx(1.254723, abs=1e-5)
    assert terms["exclusion"].item() == pytest.approx(0.721109, abs=1e-5)


# Slow twins: one function per method, plain loops over probabilities p [B, K] and labels y [B].


def ce(p, y, z):
    return np.mean([-np.log(p[i, y[i]]) for i in range(len(y))])


def ls(p, y, z, alpha=0.05):
    rows = range(len(y))
    spread = np.mean([-np.mean(np.log(p[i])) for i in rows])
    return (1 - alpha) * ce(p, y, z) + alpha * spread


def ecp(p, y, z):
    return ce(p, y, z) - 0.1 * np.mean([-sum(q * np.log(q) for q in row) for row in p])


def kernel(a, b):
    return np.exp(-abs(a - b) / 0.4)


def mmce(p, y, z):
    c, right, total = p.max(1), p.argmax(1) == y, 0.0
    for i, j in product(range(len(y)), repeat=2):
        total += (right[i] - c[i]) * (right[j] - c[j]) * kernel(c[i], c[j])
    return ce(p, y, z) + total / len(y) ** 2


def mmce_w(p, y, z):
    c, right = p.max(1), p.argmax(1) == y
    yes, no = [c[i] for i in np.flatnonzero(right)], [c[i] for i in np.flatnonzero(~right)]
    if not yes or not no:
        return ce(p, y, z)
    s_cc = np.mean([(1 - a) * (1 - b) * kernel(a, b) for a, b in product(yes, yes)])
    s_ii = np.mean([a * b * kernel(a, b) for a, b in product(no, no)])
    s_ci = np.mean([(1 - a) * b * kernel(a, b) for a, b in product(yes, no)])
    return ce(p, y, z) + 2 * np.sqrt(s_cc + s_ii - 2 * s_ci + 1e-10)


def fl(p, y, z, gamma=3):
    return np.mean([-((1 - p[i, y[i]]) ** gamma) * np.log(p[i, y[i]]) for i in range(len(y))])


def flsd(p, y, z):
    rows = range(len(y))
    return np.mean([fl(p[[i]], y[[i]], z, 5 if p[i, y[i]] < 0.2 else 3) for i in rows])


def fcl(p, y, z):
    brier = np.mean([sum((p[i] - np.eye(p.shape[1])[y[i]]) ** 2) for i in range(len(y))])
    return fl(p, y, z) + 0.5 * brier


def mbls(p, y, z):
    return ce(p, y, z) + 0.1 * np.mean([max(0, row.max() - v - 6) for row in z for v in row])


def softplus(x):
    return np.log1p(np.exp(x))


def cpc_twin(p, y, z):
    num, classes = z.shape
    bdc = bec = 0.0
    for i in range(num):
        others = [k for k in range(classes) if k != y[i]]
        bdc += sum(softplus(z[i, j] - z[i, y[i]]) for j in others)
        bec += sum(softplus(z[i, k] - z[i, j]) for j, k in product(others, others))
    bdc, bec = bdc / (num * (classes - 1)), bec / (2 * num * (classes - 1) * (classes - 2))
    return ce(p, y, z) + 0.1 * bdc + bec


TWINS = {
    "ce": ce,
    "ls": ls,
    "ecp": ecp,
    "mmce": mmce,
    "mmce_w": mmce_w,
    "fl": fl,
    "flsd": flsd,
    "fcl": fcl,
    "mbls": mbls,
    "cpc": cpc_twin,
}


def random_problem(seed, num, classes, spread=3.0):
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(num, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(classes, (num,), generator=generator)


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize(("num", "classes"), [(1, 3), (7, 4), (16, 70)])
def test_equals_a_slow_twin(name, num, classes):
    logits, labels = random_problem(num, num, classes)
    z, y = logits.numpy(), labels.numpy()
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    assert loss_of(name, logits, labels).item() == pytest.approx(TWINS[name](p, y, z), abs=1e-10)


def test_flsd_turns_at_a_fifth():
    p = np.array([[0.19, 0.81], [0.21, 0.79]])
    expected = (-(0.81**5) * np.log(0.19) - 0.79**3 * np.log(0.21)) / 2
    loss = loss_of("flsd", torch.tensor(p).log(), torch.tensor([0, 0]))
    assert loss.item() == pytest.approx(expected)


@pytest.mark.parametrize(("name", "options"), [case[:2] for case in GOLDEN])
def test_gradients_equal_differences(name, options):
    logits, labels = random_problem(3, 5, 4, spread=1.5)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: loss_of(name, z, labels, **options), logits)


@pytest.mark.parametrize(("name", "options"), [case[:2] for case in GOLDEN])
def test_single_precision_is_enough(name, options):
    logits, labels = random_problem(4, 32, 20)
    double = loss_of(name, logits, labels, **options)
    single = loss_of(name, logits.float(), labels, **options)
    assert single.dtype == torch.float32
    assert single.item() == pytest.approx(double.item(), rel=2e-5, abs=2e-5)


@pytest.mark.parametrize(("name", "options"), [case[:2] for case in GOLDEN])
@pytest.mark.parametrize("scale", [0.0, 1e4])
def test_extreme_logits_stay_finite(name, options, scale):
    logits, labels = random_problem(5, 8, 6)
    logits = (scale * logits.sign()).float().requires_grad_()
    loss = loss_of(name, logits, labels, **options)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("all_right", [True, False])
@pytest.mark.parametrize("protocol", ["paper", "code"])
def test_weighted_mmce_is_zero_without_both_groups(all_right, protocol):
    logits = 5 * torch.eye(4)
    labels = torch.arange(4) if all_right else (torch.arange(4) + 1) % 4
    loss = loss_of("mmce_w", logits, labels, protocol=protocol)
    torch.testing.assert_close(loss, loss_of("ce", logits, labels))


class LargestTensor(TorchDispatchMode):
    """Remembers the size of the largest tensor any operation returned."""

    num_elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.num_elements = max(self.num_elements, tensor.numel())
        return result


def test_cpc_never_holds_all_pairs(monkeypatch):
    logits, labels = random_problem(6, 4, 200)
    logits.requires_grad_()
    with LargestTensor() as largest:
        whole = loss_of("cpc", logits, labels)
        whole.backward()
    assert largest.num_elements == 4 * 200 * cpc.CHUNK
    monkeypatch.setattr(cpc, "CHUNK", 7)
    torch.testing.assert_close(loss_of("cpc", logits, labels), whole)


@pytest.mark.parametrize("name", ["csm", "mixup", "fl", "fcl"])
def test_a_focal_exponent_has_a_gradient_everywhere(name):
    for gamma in (0.5, 0.99, -1.0):
        with pytest.raises(SemmixError, match=f"no finite gradient: {gamma}\n.*choose 0, or at least 1"):
            method(name, num_classes=5, gamma=gamma)
    for gamma in (0.0, 1.0):
        assert method(name, num_classes=5, gamma=gamma).gamma == gamma


def test_user_mistakes():
    for alpha in (1.0, 1.5, -0.1):
        with pytest.raises(SemmixError, match="alpha must be a share of the label"):
            method("ls", num_classes=5, alpha=alpha)
    method("ls", num_classes=5, alpha=0.0)
    with pytest.raises(SemmixError, match="3 classes or more"):
        method("cpc", num_classes=2)
    method("cpc", num_classes=3)
