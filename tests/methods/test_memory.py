"""Methods that remember: CRL its training images' history, CALS what validation taught it."""

import numpy as np
import pytest
import torch

from semmix import SemmixError
from semmix.methods import Batch, method
from semmix.methods.cals import phr_penalty, phr_slope
from semmix.methods.crl import ranking_loss


def identity(images):
    return images


def crl_with(counts, epochs):
    chosen = method("crl", num_classes=5)
    chosen.setup(torch.zeros(len(counts), dtype=torch.int64))
    chosen.load_state_dict({"correct": torch.tensor(counts), "epochs": torch.tensor(epochs)})
    return chosen


def test_crl_golden_value(batch):
    terms = crl_with([3, 0, 2, 3, 1, 2], 3).step(identity, batch)
    assert terms["ranking"].item() == pytest.approx(0.550111, abs=1e-5)
    torch.testing.assert_close(terms["loss"], terms["ce"] + terms["ranking"])


def test_ranking_loss_equals_a_slow_twin(logits):
    conf, history = logits.softmax(-1).amax(-1), torch.tensor([0.2, 0.9, 0.9, 0.1, 0.4, 0.0])
    total = 0.0
    for i in range(6):
        j = (i + 1) % 6
        gap = (history[i] - history[j]).item()
        total += max(0.0, abs(gap) - np.sign(gap) * (conf[i] - conf[j]).item())
    assert ranking_loss(conf, history).item() == pytest.approx(total / 6, abs=1e-7)


def test_crl_history_runs_from_the_least_to_all_epochs(batch):
    counts, epochs = [5, 2, 4, 3, 2, 3], 6
    history = torch.tensor([(count - 2) / (6 - 2) for count in counts])
    terms = crl_with(counts, epochs).step(identity, batch)
    torch.testing.assert_close(terms["ranking"], ranking_loss(batch.images.softmax(-1).amax(-1), history))


def test_crl_ranks_nothing_in_the_first_epoch_and_counts_hits(batch):
    chosen = method("crl", num_classes=5)
    chosen.setup(torch.zeros(9, dtype=torch.int64))
    batch.index = torch.tensor([8, 1, 2, 3, 4, 5])
    right = (batch.images.argmax(-1) == batch.labels).long()
    assert chosen.step(identity, batch)["ranking"].item() == 0
    assert chosen.state_dict()["correct"][batch.index].tolist() == right.tolist()
    assert chosen.state_dict()["correct"].sum() == right.sum()
    chosen.step(identity, batch)
    assert chosen.state_dict()["correct"][batch.index].tolist() == (2 * right).tolist()
    chosen.end_epoch(None, None)
    assert chosen.state_dict()["epochs"].item() == 1


def test_crl_survives_images_that_are_always_right(batch):
    terms = crl_with([4] * 6, 4).step(identity, batch)
    assert terms["ranking"].item() == 0


def test_crl_gradient_equals_differences(batch):
    def loss(images):
        moved = Batch(images=images, labels=batch.labels, index=batch.index)
        return crl_with([3, 0, 2, 3, 1, 2], 3).step(identity, moved)["loss"]

    assert torch.autograd.gradcheck(loss, batch.images.requires_grad_())


def test_phr_golden_values():
    h = torch.tensor([-0.8, -0.3, 0.0, 0.4, 1.2], dtype=torch.float64)
    multiplier, strength = torch.tensor(0.5), torch.tensor(2.0)
    penalty = phr_penalty(h, multiplier, strength)
    assert penalty.tolist() == pytest.approx([-0.0625, -0.0625, 0.0, 0.36, 2.04], abs=1e-6)
    slope = phr_slope(h, multiplier, strength)
    assert slope.tolist() == pytest.approx([0.0, 0.0, 0.5, 1.3, 2.9], abs=1e-6)


def cals_with(multiplier, strength, **options):
    chosen = method("cals", num_classes=5, margin=2.0, **options)
    chosen.setup(torch.zeros(3, dtype=torch.int64))
    chosen.multiplier.copy_(torch.tensor(multiplier))
    chosen.strength.copy_(torch.tensor(strength))
    return chosen


def slow_cals_penalty(z, multiplier, strength, margin=2.0):
    total = 0.0
    for row in z:
        for k, v in enumerate(row):
            h = (max(row) - v - margin) / margin
            m, s = multiplier[k], strength[k]
            inner = ((m + s * h) ** 2 - m**2) / (2 * s) if m + s * h >= 0 else -(m**2) / (2 * s)
            total += inner
    return total / (len(z) * len(z[0]))


MULTIPLIER, STRENGTH = [0.1, 0.5, 1.0, 2.0, 0.01], [1.0, 2.0, 3.0, 4.0, 10.0]


def test_cals_penalty_equals_a_slow_twin_and_its_gradient_differences(batch):
    chosen = cals_with(MULTIPLIER, STRENGTH)
    terms = chosen.step(identity, batch)
    slow = slow_cals_penalty(batch.images.tolist(), MULTIPLIER, STRENGTH)
    assert terms["penalty"].item() == pytest.approx(slow, abs=1e-6)

    def loss(images):
        moved = Batch(images=images, labels=batch.labels, index=batch.index)
        return chosen.step(identity, moved)["loss"]

    assert torch.autograd.gradcheck(loss, batch.images.requires_grad_())


def test_cals_learns_its_multipliers_from_validation(logits, labels):
    chosen = cals_with(MULTIPLIER, STRENGTH)
    chosen.end_epoch(logits, labels)
    z = logits.numpy()
    for k in range(5):
        slopes = [np.clip(MULTIPLIER[k] + STRENGTH[k] * (row.max() - row[k] - 2) / 2, 1e-6, 1e6) for row in z]
        assert chosen.multiplier[k].item() == pytest.approx(np.mean(slopes), rel=1e-5)


def test_cals_grows_penalties_of_classes_that_do_not_improve(logits, labels):
    chosen = cals_with(MULTIPLIER, [1.0] * 5, strength_epochs=2)
    violation = ((logits.amax(-1, keepdim=True) - logits - 2) / 2).mean(0)
    chosen.end_epoch(logits, labels)  # epoch 1: not due
    assert chosen.strength.tolist() == [1.0] * 5
    chosen.end_epoch(logits, labels)  # epoch 2: due, and no constraint has moved
    grown = torch.where(violation > 0.9 * violation.relu(), 1.2, 1.0)
    assert chosen.strength.tolist() == pytest.approx(grown.tolist())
    assert chosen.strength.max() > 1
    chosen.end_epoch(logits, labels)  # epoch 3: not due
    assert chosen.strength.tolist() == pytest.approx(grown.tolist())
    for _ in range(60):
        chosen.end_epoch(logits, labels)
    assert chosen.strength.max().item() == pytest.approx(10.0)


def test_cals_leaves_constraints_that_hold_alone(logits, labels):
    """Within the margin nothing need improve, and multipliers fall to their least value."""
    chosen = cals_with(MULTIPLIER, [1.0] * 5, strength_epochs=1)
    for scale in (0.01, 0.1, 0.2):  # always further from holding well
        chosen.end_epoch(scale * logits, labels)
    assert chosen.strength.tolist() == [1.0] * 5
    assert chosen.multiplier.tolist() == pytest.approx([1e-6] * 5)


@pytest.mark.parametrize("name", ["crl", "cals"])
def test_memory_is_restored_in_place(name, logits, labels, batch):
    def fresh():
        chosen = method(name, num_classes=5)
        chosen.setup(torch.zeros(6, dtype=torch.int64))
        return chosen

    first, second = fresh(), fresh()
    for _ in range(9):  # cals strengthens after the tenth, by what it has seen in the ninth
        first.step(identity, batch)
        first.end_epoch(logits, labels)
    before = second.state_dict()
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(second.state_dict(), first.state_dict())
    assert all(before[name] is tensor for name, tensor in second.state_dict().items())
    terms = []
    for chosen in (first, second):
        chosen.end_epoch(logits, labels)
        terms.append(chosen.step(identity, batch))
    torch.testing.assert_close(terms[0], terms[1])


def test_cals_extreme_logits_stay_finite(batch):
    batch.images = (1e4 * batch.images.sign()).float().requires_grad_()
    loss = cals_with(MULTIPLIER, STRENGTH).step(identity, batch)["loss"]
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(batch.images.grad).all()


def test_user_mistakes():
    chosen = method("cals", num_classes=5)
    chosen.setup(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(SemmixError, match="validation"):
        chosen.end_epoch(None, None)
    with pytest.raises(SemmixError):
        method("cals", num_classes=5, margin=0)


def test_terms_need_no_double_precision(logits):
    conf, history = logits.softmax(-1).amax(-1), torch.linspace(0, 1, 6).double()
    torch.testing.assert_close(ranking_loss(conf.float(), history.float()), ranking_loss(conf, history).float())
    weights = torch.tensor(MULTIPLIER), torch.tensor(STRENGTH)
    torch.testing.assert_close(
        phr_penalty(logits.float(), *weights), phr_penalty(logits, *(w.double() for w in weights)).float()
    )
