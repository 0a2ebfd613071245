"""The three propositions on a dense grid, and the solver against formulas and other solvers."""

import math
import sys
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from semmix import SemmixError, confidence_balance
from semmix.calibration.balance import (
    Row,
    balance_table,
    closed_form_beta,
    cross_entropy,
    focal,
    load_loss,
    minima,
    spread_deltas,
    squared_error,
    verdict,
)
from semmix.cli.balance import BalanceCommand

SOFTER, SHARPER = (0.5, 0.6, 0.7, 0.8, 0.9), (0.51, 0.65, 0.75, 0.85, 0.95, 0.999)
ALPHAS = [(a1, a2) for a1, a2 in product(SHARPER, SOFTER) if a1 > a2]
SHARES = [1e-6, 0.01, 0.1, 0.3, 0.6, 0.9, 0.999]
focal1 = partial(focal, gamma=1.0)


def distance(alpha1, alpha2):
    return 2 * (alpha1 - alpha2) ** 2


def grid(num_classes):
    """Return (alphas, delta) with 0 < delta < the labels' distance; fewer for many classes."""
    every = 1 if num_classes == 2 else 11
    return [(a, share * distance(*a)) for a, share in product(ALPHAS, SHARES)][::every]


@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_cross_entropy_leans_to_the_sharper_label(num_classes):
    for alphas, delta in grid(num_classes):
        beta = confidence_balance(cross_entropy, *alphas, delta, num_classes).beta
        assert beta < 0
        assert beta == pytest.approx(closed_form_beta("ce", *alphas, delta), abs=1e-9)


@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_focal_loss_leans_to_the_softer_label(num_classes):
    for alphas, delta in grid(num_classes):
        assert confidence_balance(focal1, *alphas, delta, num_classes).beta > 0


@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_squared_error_is_balanced_at_every_delta(num_classes):
    every = 1 if num_classes == 2 else 11
    for alphas, share in list(product(ALPHAS, [0.0, *SHARES, 1.0, 2.0]))[::every]:
        delta = share * distance(*alphas)
        beta, p1, p2 = confidence_balance(squared_error, *alphas, delta, num_classes)
        assert abs(beta) < 1e-8
        # Interpolations: p1 = lam q1 + (1 - lam) q2 with 2 lam - 1 = sqrt(delta / distance).
        lam = (1 + min(np.sqrt(share), 1)) / 2
        assert p1[0] == pytest.approx(lam * alphas[0] + (1 - lam) * alphas[1], abs=1e-10)
        assert p2[0] == pytest.approx(lam * alphas[1] + (1 - lam) * alphas[0], abs=1e-10)


def test_cross_entropy_is_balanced_at_delta_zero_and_from_the_labels_distance_on():
    for alphas, share in product(ALPHAS, [0.0, 1.0, 3.0]):
        beta = confidence_balance(cross_entropy, *alphas, share * distance(*alphas)).beta
        assert abs(beta) < 1e-10


def test_the_formula_holds_for_all_labels():
    for alpha1, alpha2 in product(np.arange(10, 20) / 20, repeat=2):
        if alpha1 > alpha2:
            assert closed_form_beta("ce", alpha1, alpha2, 0.0) == pytest.approx(0, abs=1e-12)
            delta = distance(alpha1, alpha2) / 3
            found = confidence_balance(cross_entropy, alpha1, alpha2, delta).beta
            assert closed_form_beta("ce", alpha1, alpha2, delta) == pytest.approx(found, abs=1e-8)


def test_the_formula_is_zero_once_predictions_are_free_and_for_l2_always():
    free = distance(0.9, 0.6)
    assert closed_form_beta("ce", 0.9, 0.6, 0.9 * free) < -1e-4
    for delta in (0.01, 0.9 * free, 1.01 * free, 2.0):
        assert closed_form_beta("l2", 0.9, 0.6, delta) == 0
        assert closed_form_beta("focal", 0.9, 0.6, delta) is None
        assert (closed_form_beta("ce", 0.9, 0.6, delta) == 0) == (delta > free)


def test_focal_loss_may_lean_to_the_sharper_label_once_predictions_are_free():
    assert confidence_balance(focal1, 0.9, 0.6, 2.0).beta == pytest.approx(0.0278314, abs=1e-6)
    assert confidence_balance(focal1, 0.95, 0.8, 2.0).beta == pytest.approx(-0.0011617, abs=1e-6)
    assert confidence_balance(focal1, 0.999, 0.9, 2.0).beta == pytest.approx(-0.0305812, abs=1e-6)


def test_focal_predictions_solve_the_papers_equation():
    """Where the distance binds, p2 is the root of g(x)."""
    for alphas, share in product(ALPHAS[::3], [1e-6, 0.01, 0.1]):
        a1, a2 = alphas
        delta = share * distance(*alphas)
        eps = np.sqrt(delta / 2)

        def half(a, x):
            low, high = (1 - x) / x - np.log(x), x / (1 - x) - np.log(1 - x)
            return (1 - a) * high - a * low

        root = brentq(lambda x: half(a1, x + eps) + half(a2, x), 1e-9, 1 - eps - 1e-9, xtol=1e-14)  # noqa: B023
        _, p1, p2 = confidence_balance(focal1, *alphas, delta)
        assert p1[0] - p2[0] == pytest.approx(eps, abs=1e-12)
        assert p2[0] == pytest.approx(root, abs=1e-9)


def test_no_small_gamma_balances_focal_loss():
    small = partial(focal, gamma=0.1)
    assert confidence_balance(small, 0.9, 0.6, 0.0018).beta > 1e-3
    assert confidence_balance(small, 0.9, 0.6, 0.0540).beta < -1e-3


def test_larger_gamma_leans_further():
    betas = [confidence_balance(partial(focal, gamma=gamma), 0.9, 0.6, 0.05).beta for gamma in range(6)]
    assert betas == sorted(betas)
    assert betas[0] == pytest.approx(closed_form_beta("ce", 0.9, 0.6, 0.05), abs=1e-9)


def test_a_loss_may_be_written_in_numpy_or_torch():
    in_torch = confidence_balance(lambda p, q: -(q * torch.log(p)).sum(), 0.9, 0.6, 0.05)
    in_numpy = confidence_balance(lambda p, q: -np.sum(q * np.log(p)), 0.9, 0.6, 0.05)
    assert in_torch.beta == pytest.approx(in_numpy.beta, abs=1e-12)


def smoothed(p, q, eps=0.1):
    target = (1 - eps) * q + eps / len(q)
    return -(target * np.log(p)).sum()


def test_a_loss_may_want_classes_no_label_names():
    _, p1, p2 = confidence_balance(smoothed, 0.9, 0.6, 2.0, num_classes=5)
    assert p1 == pytest.approx([0.83, 0.11, 0.02, 0.02, 0.02], abs=1e-6)
    assert p2 == pytest.approx([0.56, 0.38, 0.02, 0.02, 0.02], abs=1e-6)
    _, p1, p2 = confidence_balance(smoothed, 0.9, 0.6, 2.0, num_classes=3)
    assert p1 == pytest.approx([0.81 + 0.1 / 3, 0.09 + 0.1 / 3, 0.1 / 3], abs=1e-6)
    assert p2 == pytest.approx([0.54 + 0.1 / 3, 0.36 + 0.1 / 3, 0.1 / 3], abs=1e-6)


@pytest.mark.parametrize(
    ("loss", "best"),
    [
        (lambda p, q: -p[0], [1, 0]),
        (lambda p, q: -p[1], [0, 1]),
        (lambda p, q: -(p * q).sum(), [1, 0]),
        (lambda p, q: (p * q).sum(), [0, 1]),
    ],
)
@pytest.mark.parametrize("delta", [0.02, 0.5, 4.0])
def test_predictions_stay_probabilities_where_a_loss_would_go_on(loss, best, delta):
    _, p1, p2 = confidence_balance(loss, 0.9, 0.6, delta)
    assert p1 == pytest.approx(best, abs=1e-9)
    assert p2 == pytest.approx(best, abs=1e-9)


def test_the_softer_label_may_get_the_sharper_prediction():
    """A loss that wants the classes exchanged: all predictions of squared_error, mirrored."""
    for delta in (0.0, 0.02, distance(0.9, 0.6), 1.0):
        _, p1, p2 = confidence_balance(squared_error, 0.9, 0.6, delta)
        beta, mirrored1, mirrored2 = confidence_balance(lambda p, q: squared_error(p, q[::-1]), 0.9, 0.6, delta)
        assert mirrored1 == pytest.approx(p1[::-1], abs=1e-9)
        assert mirrored2 == pytest.approx(p2[::-1], abs=1e-9)
        assert beta == pytest.approx(2 * ((0.1 - p1[0]) ** 2 - (0.4 - p2[0]) ** 2), abs=1e-9)


def test_no_feasible_step_improves_a_constrained_optimum_over_all_classes():
    delta = 0.02
    _, p1, p2 = confidence_balance(smoothed, 0.9, 0.6, delta, num_classes=4)
    assert squared_error(p1, p2) == pytest.approx(delta, abs=1e-9)
    q1, q2 = np.array([0.9, 0.1, 0, 0]), np.array([0.6, 0.4, 0, 0])
    best = smoothed(p1, q1) + smoothed(p2, q2)
    rng = np.random.default_rng(0)
    tried = 0
    for _ in range(2000):
        moves = 10 ** rng.uniform(-5, -2) * rng.normal(size=(2, 4))
        other1, other2 = p1 + moves[0] - moves[0].mean(), p2 + moves[1] - moves[1].mean()
        if squared_error(other1, other2) <= delta and min(other1.min(), other2.min()) > 0:
            tried += 1
            assert smoothed(other1, q1) + smoothed(other2, q2) > best - 1e-9
    assert tried > 300


def test_minima_finds_every_valley_and_both_ends():
    valleys = minima(lambda x: np.cos(6 * np.pi * x), 0, 1)
    assert valleys == pytest.approx([1 / 6, 1 / 2, 5 / 6], abs=1e-9)
    assert minima(lambda x: x, 0, 1) == pytest.approx([0], abs=1e-9)
    assert minima(lambda x: -x, 0, 1) == pytest.approx([1], abs=1e-9)
    assert minima(lambda x: (x - 0.3) ** 2, 0.25, 0.25) == pytest.approx([0.25], abs=1e-9)


def test_table_figure_and_verdict(tmp_path, capsys):
    path = tmp_path / "balance.svg"
    command = BalanceCommand(loss="ce", num_deltas=3, figure=path)
    command.run()
    rows = command.rows(command.asked)
    assert [row.delta for row in rows] == spread_deltas(0.9, 0.6, 3)
    assert all(row.beta == pytest.approx(row.closed_form, abs=1e-9) for row in rows)
    printed = capsys.readouterr().out
    assert f"{rows[1].beta:.6e}" in printed
    assert "leans to the sharper label" in printed
    assert b"<svg" in path.read_bytes()


def test_verdicts():
    deltas = spread_deltas(0.9, 0.6, 3)
    words = {"l2": "balanced", "ce": "sharper", "focal": "softer"}
    for name, word in words.items():
        assert word in verdict(balance_table({name: load_loss(name)}, 0.9, 0.6, deltas))
    assert closed_form_beta("focal", 0.9, 0.6, 0.01) is None


@pytest.mark.parametrize(
    ("betas", "words"),
    [
        ((0, -9e-9, 9e-9), "balanced"),
        ((0, -2e-8, 9e-9), "the sharper label"),
        ((0, 2e-8, -9e-9), "the softer label"),
        ((0, 2e-8, -2e-8), "either side"),
    ],
)
def test_verdicts_look_at_every_beta(betas, words):
    assert words in verdict([Row("x", 0.0, beta, None, 0.5, 0.5) for beta in betas])


def test_the_table_is_of_the_loss_and_the_labels_asked_for(capsys):
    config = BalanceCommand(loss="focal", gamma=2, alpha1=0.8, alpha2=0.5, num_classes=3, num_deltas=5, figure=None)
    rows = config.rows(config.asked)
    config.run()
    deltas = [distance(0.8, 0.5) * share for share in (0, 1 / 16, 1 / 4, 9 / 16, 1)]
    assert [row.delta for row in rows] == pytest.approx(deltas)
    for row in rows:
        beta, p1, p2 = confidence_balance(partial(focal, gamma=2), 0.8, 0.5, row.delta, 3)
        assert row == ("focal 2", row.delta, beta, None, p1[0], p2[0])
    assert "leans to the softer label" in capsys.readouterr().out


def test_a_users_own_loss_by_import_path(tmp_path, monkeypatch, capsys):
    (tmp_path / "their_losses.py").write_text("def fourth(p, q):\n    return ((p - q) ** 4).sum()")
    monkeypatch.syspath_prepend(tmp_path)
    BalanceCommand(loss="their_losses:fourth", num_deltas=3, figure=None).run()
    assert "balanced" in capsys.readouterr().out
    sys.modules.pop("their_losses")


def test_a_loss_that_is_no_number_gets_no_verdict():
    """0 log 0 is not a number, unless somebody says so."""

    def divergence(p, q):
        return (q * np.log(q / p)).sum()

    def divergence_done_right(p, q):
        return (torch.xlogy(q, q) - torch.xlogy(q, p)).sum()

    with pytest.raises(SemmixError, match=r"nan at p = .*\n.*torch.xlogy"):
        confidence_balance(divergence, 0.9, 0.6, 0.01, num_classes=3)
    right = confidence_balance(divergence_done_right, 0.9, 0.6, 0.01, num_classes=3)
    for loss, num_classes in ((cross_entropy, 3), (divergence, 2)):
        beta = confidence_balance(loss, 0.9, 0.6, 0.01, num_classes).beta
        assert beta == pytest.approx(right.beta, abs=1e-6)
    edged = confidence_balance(  # no number where a share is all but zero: not the best prediction
        lambda p, q: squared_error(p, q) + 0 * np.sqrt(p - 1e-9).sum(), 0.9, 0.6, 0.01
    )
    assert edged.beta == pytest.approx(0, abs=1e-9)
    with pytest.raises(SemmixError, match="no finite least value"):
        confidence_balance(lambda p, q: (p - np.log(q)).sum(), 0.9, 0.6, 0.01, num_classes=3)
    for gamma in (math.nan, math.inf):
        with pytest.raises(SemmixError, match="gamma"):
            BalanceCommand(loss="focal", gamma=gamma, figure=None).run()


def test_user_mistakes():
    with pytest.raises(SemmixError, match=r"end its name in \.svg"):
        BalanceCommand(figure=Path("x.foo"))
    disordered = [(0.6, 0.9, 0.1), (0.7, 0.7, 0.1), (0.9, 0.4, 0.1), (1.0, 0.6, 0.1)]
    for wrong in [*disordered, (0.9, 0.6, -1.0)]:
        with pytest.raises(SemmixError):
            confidence_balance(squared_error, *wrong)
    with pytest.raises(SemmixError, match="num_classes >= 2"):
        confidence_balance(squared_error, 0.9, 0.6, 0.1, num_classes=1)
    with pytest.raises(SemmixError, match="two probability vectors"):
        confidence_balance(lambda p: p, 0.9, 0.6, 0.1)
    with pytest.raises(SemmixError, match="did you mean 'focal'"):
        load_loss("fokal")
    with pytest.raises(SemmixError, match=r"package\.module:function"):
        load_loss("semmix.calibration.balance:missing")
    for num_deltas in (1, 2):  # of two, both ends, ce would be called balanced
        with pytest.raises(SemmixError, match="num_deltas"):
            BalanceCommand(loss="ce", num_deltas=num_deltas)
    with pytest.raises(SemmixError, match="gamma belongs to focal: gamma=4, loss=ce"):
        BalanceCommand(loss="ce", gamma=4)
