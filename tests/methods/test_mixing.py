"""Methods that mix images within the batch: golden values, twins, and the draws themselves."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from semmix import SemmixError
from semmix.methods import Batch, method
from semmix.methods._base import blend, draw_beta, permutation, soft_labels
from semmix.methods.rankmixup import margin_ranking, mndcg
from semmix.methods.unimix import draw_partners

SEED = 1


def run(name, batch, **options):
    """Return a step's terms, and what the network (here the identity) was shown."""
    chosen = method(name, num_classes=5, **options)
    chosen.setup(torch.tensor([0] * 40 + [1] * 20 + [2] * 10 + [3] * 5 + [4]))
    shown = []

    def forward(images):
        shown.append(images)
        return images

    torch.manual_seed(SEED)
    return chosen.step(forward, batch), shown


def draws(batch, alpha):
    """Return the lam and the order that mixup draws after the same seed."""
    torch.manual_seed(SEED)
    lam = draw_beta(alpha, 1, batch.images)
    order = permutation(len(batch.images), batch.images.device)
    assert (batch.labels[order] != batch.labels).any()  # else nothing would be mixed
    return lam, order


@pytest.mark.parametrize("loss", ["ce", "l2", "focal"])
def test_mixup_is_the_weighted_loss_of_both_labels(batch, loss):
    terms, (mixed,) = run("mixup", batch, alpha=0.7, loss=loss)
    lam, order = draws(batch, 0.7)
    torch.testing.assert_close(mixed, lam * batch.images + (1 - lam) * batch.images[order])
    targets = lam * torch.eye(5)[batch.labels] + (1 - lam) * torch.eye(5)[batch.labels[order]]
    p = mixed.softmax(-1)
    twin = {"ce": -targets * p.log(), "l2": (p - targets) ** 2, "focal": -targets * (1 - p) ** 3 * p.log()}[loss]
    torch.testing.assert_close(terms["loss"], twin.sum(1).mean())


@pytest.mark.parametrize(("protocol", "scale"), [("code", 0.5), ("paper", 1.0)])
def test_regmixup_adds_mixup_to_cross_entropy(batch, protocol, scale):
    terms, shown = run("regmixup", batch, protocol=protocol)
    lam, order = draws(batch, 10.0)
    mixed = blend(batch.images, batch.images[order], lam)
    torch.testing.assert_close(shown, [torch.cat([batch.images, mixed])])
    real = F.cross_entropy(batch.images, batch.labels)
    both = lam * F.cross_entropy(mixed, batch.labels)
    both += (1 - lam) * F.cross_entropy(mixed, batch.labels[order])
    torch.testing.assert_close(terms["loss"], scale * (real + both.squeeze()))


def test_golden_value_of_regmixup(logits, labels, mixed_logits):
    targets = soft_labels(labels, labels.roll(-1), torch.tensor(0.7), logits)
    terms = F.cross_entropy(logits, labels) + F.cross_entropy(mixed_logits[0], targets)
    assert 0.5 * terms.item() == pytest.approx(2.733033, abs=1e-5)


def purity_of(labels, lams=(0.7, 0.4, 0.9)):
    rows = [
        soft_labels(labels, labels.roll(-1 - q), torch.tensor(lam, dtype=torch.float64), eye(5))
        for q, lam in enumerate(lams)
    ]
    return torch.stack(rows).amax(-1)


def eye(num):
    return torch.eye(num, dtype=torch.float64)


def slow_mndcg(conf, mixed_conf, purity):
    total = 0.0
    for i in range(len(conf)):
        ranked = sorted(range(len(purity)), key=lambda q: -purity[q][i])
        gains = [conf[i]] + [mixed_conf[q][i] for q in ranked]
        ideal = [1.0] + [purity[q][i] for q in ranked]
        dcg = sum(g / math.log2(r + 2) for r, g in enumerate(gains))
        idcg = sum(g / math.log2(r + 2) for r, g in enumerate(ideal))
        total += 1 - min(dcg / idcg, idcg / dcg)
    return total / len(conf)


def test_mndcg_golden_value_and_twin(logits, labels, mixed_logits):
    conf = logits.softmax(-1).amax(-1)
    mixed_conf = torch.stack(mixed_logits).softmax(-1).amax(-1)
    purity = purity_of(labels)
    value = mndcg(conf, mixed_conf, purity).item()
    assert value == pytest.approx(0.323865, abs=1e-5)
    slow = slow_mndcg(conf.tolist(), mixed_conf.tolist(), purity.tolist())
    assert value == pytest.approx(slow, abs=1e-7)
    sure = torch.ones_like(conf), torch.ones_like(mixed_conf)  # too sure costs too
    slow = slow_mndcg(*(values.tolist() for values in sure), purity.tolist())
    assert mndcg(*sure, purity).item() == pytest.approx(slow, abs=1e-7)
    assert F.cross_entropy(logits, labels).item() + 0.1 * value == pytest.approx(2.672522, abs=1e-5)


def test_margin_ranking_leaves_out_mixups_within_one_class(logits, mixed_logits):
    # A mixup within one class may round to less than 1.
    mixed, purity = mixed_logits[0][None], torch.tensor([[1.0, 0.7, 0.7, 1 - 6e-8, 0.6, 0.9]])
    total = 0.0
    for i in range(6):
        if purity[0, i] < 0.99:
            total += max(0.0, (mixed[0, i].max() - logits[i].max() + 2).item())
    assert margin_ranking(logits, mixed, purity, 2.0, broadcast=False).item() == pytest.approx(total / 6)
    excess = (mixed[0].amax(-1) - logits.amax(-1) + 2).relu()
    code = margin_ranking(logits, mixed, purity, 2.0, broadcast=True)
    torch.testing.assert_close(code, (4 / 6) * excess.mean())


@pytest.mark.parametrize("ranking", ["mndcg", "mrl"])
def test_rankmixup_shows_real_and_mixed_images_apart(batch, ranking):
    terms, shown = run("rankmixup", batch, ranking=ranking, num_mixups=2)
    assert [len(images) for images in shown] == [6, 12]
    assert terms["ce"].item() == pytest.approx(2.640136, abs=1e-5)
    torch.testing.assert_close(terms["loss"], terms["ce"] + 0.1 * terms["ranking"])


def test_remix_gives_the_label_to_the_rarer_class():
    chosen = method("remix", num_classes=3)
    chosen.setup(torch.tensor([0] * 60 + [1] * 20 + [2] * 10))
    labels, partners = torch.tensor([0, 0, 1, 2, 2, 0]), torch.tensor([1, 2, 0, 0, 1, 0])
    few = chosen._label_lam(torch.tensor([0.2]), labels, partners)
    assert few.tolist() == pytest.approx([0.0, 0.0, 0.2, 0.2, 0.2, 0.2])
    many = chosen._label_lam(torch.tensor([0.8]), labels, partners)
    assert many.tolist() == pytest.approx([0.8, 0.8, 1.0, 1.0, 0.8, 0.8])


def test_remix_equals_a_slow_twin(batch):
    terms, (mixed,) = run("remix", batch)
    lam, order = draws(batch, 1.0)
    counts, log_p, total = [40, 20, 10, 5, 1], mixed.log_softmax(-1), 0.0
    for i, j in enumerate(order.tolist()):
        a, b, weight = batch.labels[i].item(), batch.labels[j].item(), lam.item()
        if counts[a] / counts[b] >= 3 and lam < 0.5:
            weight = 0.0
        elif counts[a] / counts[b] <= 1 / 3 and 1 - lam < 0.5:
            weight = 1.0
        total -= (weight * log_p[i, a] + (1 - weight) * log_p[i, b]).item()
    assert terms["loss"].item() == pytest.approx(total / 6)


def test_unimix_equals_a_slow_twin(batch):
    terms, (mixed,) = run("unimix", batch)
    counts = torch.tensor([40.0, 20, 10, 5, 1], dtype=torch.float64)
    torch.manual_seed(SEED)
    partner = draw_partners(counts[batch.labels] ** -0.5)
    noise = draw_beta(0.8, 6, batch.images)
    total = 0.0
    for i, j in enumerate(partner.tolist()):
        n_i, n_j = counts[batch.labels[i]], counts[batch.labels[j]]
        lam = noise[i] + n_j / (n_i + n_j)
        lam = lam - 1 if lam > 1 else lam
        torch.testing.assert_close(mixed[i], lam * batch.images[i] + (1 - lam) * batch.images[j])
        log_p = (mixed[i] + (counts / 76).log()).log_softmax(-1)
        total -= (lam * log_p[batch.labels[i]] + (1 - lam) * log_p[batch.labels[j]]).item()
    assert terms["loss"].item() == pytest.approx(total / 6)


@pytest.mark.parametrize("name", ["remix", "unimix"])
def test_a_class_without_training_images_counts_as_one(name, batch):
    losses = []
    for train_labels in ([0] * 40 + [1] * 20 + [2] * 10 + [3], [0] * 40 + [1] * 20 + [2] * 10 + [3, 4]):
        chosen = method(name, num_classes=5)
        chosen.setup(torch.tensor(train_labels))
        torch.manual_seed(SEED)
        losses.append(chosen.step(lambda images: images, batch)["loss"].item())
    assert losses[0] == losses[1]


def test_partners_are_drawn_in_proportion_to_their_weights():
    torch.manual_seed(0)
    weights = torch.tensor([1.0, 2.0, 5.0]).repeat(500)
    share = draw_partners(weights).remainder(3).bincount() / 1500
    assert share.tolist() == pytest.approx([0.125, 0.25, 0.625], abs=0.04)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 10.0])
def test_lam_is_drawn_from_beta(alpha):
    torch.manual_seed(0)
    lam = draw_beta(alpha, 20_000, torch.zeros(1))
    assert lam.mean().item() == pytest.approx(0.5, abs=0.02)
    assert lam.var().item() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.05)


def test_permutation_is_one():
    assert sorted(permutation(50, torch.device("cpu")).tolist()) == list(range(50))


CASES = [
    ("mixup", {}),
    ("mixup", {"loss": "l2"}),
    ("mixup", {"loss": "focal"}),
    ("regmixup", {}),
    ("rankmixup", {}),
    ("rankmixup", {"ranking": "mrl"}),
    ("remix", {}),
    ("unimix", {}),
]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_gradients_equal_differences(batch, name, options):
    def loss(images):
        moved = Batch(images=images, labels=batch.labels, index=batch.index)
        return run(name, moved, **options)[0]["loss"]

    assert torch.autograd.gradcheck(loss, batch.images.requires_grad_())


@pytest.mark.parametrize(("name", "options"), CASES)
def test_extreme_logits_stay_finite(batch, name, options):
    batch.images = (1e4 * batch.images.sign()).float().requires_grad_()
    loss = run(name, batch, **options)[0]["loss"]
    loss.backward()
    assert np.isfinite(loss.item())
    assert torch.isfinite(batch.images.grad).all()


def test_user_mistakes():
    for name, wrong in [
        ("mixup", {"alpha": 0}),
        ("mixup", {"loss": "hinge"}),
        ("regmixup", {"protocol": "mine"}),
        ("rankmixup", {"ranking": "best"}),
        ("rankmixup", {"num_mixups": 0}),
        ("remix", {"kappa": -1}),
        ("unimix", {"alpha": 0}),
    ]:
        with pytest.raises(SemmixError):
            method(name, num_classes=5, **wrong)


def test_ranking_terms_need_no_double_precision(logits, labels, mixed_logits):
    mixed, purity = torch.stack(mixed_logits), purity_of(labels)

    def terms(real, mixed, purity):
        conf, mixed_conf = real.softmax(-1).amax(-1), mixed.softmax(-1).amax(-1)
        margin = margin_ranking(real, mixed, purity, 2.0, broadcast=False)
        return torch.stack([mndcg(conf, mixed_conf, purity), margin])

    single = terms(logits.float(), mixed.float(), purity.float())
    torch.testing.assert_close(single, terms(logits, mixed, purity).float())
