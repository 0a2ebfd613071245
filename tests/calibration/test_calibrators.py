"""Post-hoc calibrators: better where they should be, never worse where they were fitted."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from semmix import SemmixError, TemperatureScaler
from semmix import calibration as cal
from semmix.calibration.one_vs_rest import _beta_inputs
from semmix.calibration.scaling import BOUNDS, GRID

PROXIMITY_BASED = (
    cal.DensityRatioCalibrator(),
    cal.BinMeanShiftCalibrator(),
    cal.BinMeanShiftCalibrator(curve="histogram"),
)
LOGIT_BASED = (
    TemperatureScaler(),
    TemperatureScaler(search="ece-grid"),
    cal.VectorScaler(),
    cal.MatrixScaler(),
    cal.DirichletCalibrator(),
    cal.HistogramBinning(),
    cal.IsotonicCalibrator(),
    cal.BetaCalibrator(),
)
ALL = LOGIT_BASED + PROXIMITY_BASED
PRESERVING = (TemperatureScaler(), *PROXIMITY_BASED)


def overconfident(seed=0, num_samples=600, num_classes=4, sharpness=2.5):
    """Logits `sharpness` times too large, labels drawn from the true probabilities."""
    random = np.random.default_rng(seed)
    logits = 1.5 * random.normal(size=(num_samples, num_classes))
    noise = random.gumbel(size=logits.shape)
    return sharpness * logits, (logits + noise).argmax(1)


def context(calibrator, num_samples, seed=0):
    near = np.random.default_rng(seed).random(num_samples)
    return (near,) if calibrator in PROXIMITY_BASED else ()


def fitted(calibrator, logits, labels):
    return clone(calibrator).fit(logits, labels, *context(calibrator, len(labels)))


@pytest.mark.parametrize("calibrator", ALL, ids=str)
def test_it_calibrates_unseen_samples(calibrator):
    fit_logits, fit_labels = overconfident(0, 2000)
    logits, labels = overconfident(1, 2000)
    after = fitted(calibrator, fit_logits, fit_labels).transform(logits, *context(calibrator, 2000))
    before = cal.softmax(logits)
    assert cal.ece(after, labels) < 0.4 * cal.ece(before, labels)
    assert cal.brier(after, labels) < cal.brier(before, labels)
    assert after.sum(1) == pytest.approx(1)
    assert after.min() >= 0


@pytest.mark.parametrize("calibrator", ALL, ids=str)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 999), size=st.sampled_from([1, 2, 9, 40]), scale=st.sampled_from([0.1, 1.0, 30.0]))
def test_never_worse_than_identity_on_the_fitting_samples(calibrator, seed, size, scale):
    logits, labels = overconfident(seed, size, 3, scale)
    near = context(calibrator, size)
    after = clone(calibrator).fit(logits, labels, *near).transform(logits, *near)
    measure = calibrator._criterion()
    assert measure(after, labels) <= measure(cal.softmax(logits), labels) + 1e-12


@pytest.mark.parametrize("calibrator", PRESERVING, ids=str)
def test_predictions_are_preserved(calibrator):
    logits, labels = overconfident(2)
    after = fitted(calibrator, logits, labels).transform(logits, *context(calibrator, len(labels)))
    assert (after.argmax(1) == logits.argmax(1)).all()


@pytest.mark.parametrize("calibrator", ALL, ids=str)
def test_no_row_looks_at_the_others(calibrator):
    """What is known of all samples comes from those it was fitted on."""
    model = fitted(calibrator, *overconfident(3, 300))
    logits, near = overconfident(4, 40)[0], context(calibrator, 40, seed=1)
    together = model.transform(logits, *near)
    alone = [model.transform(logits[[i]], *(values[[i]] for values in near)) for i in range(40)]
    np.testing.assert_allclose(np.concatenate(alone), together, atol=1e-12)


@pytest.mark.parametrize("calibrator", ALL, ids=str)
def test_saved_and_loaded(calibrator, tmp_path):
    logits, labels = overconfident(3, 200)
    near = context(calibrator, 200)
    first = fitted(calibrator, logits, labels)
    first.save(tmp_path)
    second = cal.load_calibrator(tmp_path)
    assert second == calibrator  # same kind, same settings
    assert np.array_equal(second.transform(logits, *near), first.transform(logits, *near))
    about = json.loads((tmp_path / "calibrator.json").read_text())
    assert about["kind"] == type(calibrator).__name__
    assert {path.name for path in tmp_path.iterdir()} == {"calibrator.json", "calibrator.safetensors"}


def test_load_refuses_the_unknown(tmp_path):
    TemperatureScaler().fit(*overconfident()).save(tmp_path)
    file = tmp_path / "calibrator.json"
    file.write_text(file.read_text().replace("TemperatureScaler", "TemperatureScalar"))
    with pytest.raises(SemmixError, match="TemperatureScaler"):
        cal.load_calibrator(tmp_path)


def test_load_refuses_half_a_calibrator(tmp_path):
    TemperatureScaler().fit(*overconfident()).save(tmp_path)
    (tmp_path / "calibrator.safetensors").unlink()
    with pytest.raises(SemmixError, match=r"cannot read .*calibrator\.safetensors"):
        cal.load_calibrator(tmp_path)
    (tmp_path / "calibrator.json").write_text("{}")
    with pytest.raises(SemmixError, match="no whole calibrator: KeyError\\('kind'\\)"):
        cal.load_calibrator(tmp_path)


@pytest.mark.parametrize("calibrator", LOGIT_BASED, ids=str)
def test_kinds_of_arrays(calibrator):
    logits, labels = overconfident(4, 100)
    model = fitted(calibrator, torch.tensor(logits), torch.tensor(labels))
    probs = model.transform(logits)
    assert probs.dtype == np.float64
    tensor = model.transform(torch.tensor(logits, dtype=torch.float32))
    assert tensor.dtype == torch.float32
    # float32 may round a logit into the neighbouring histogram bin
    assert np.median(np.abs(tensor.numpy() - probs)) < 1e-6
    assert np.array_equal(fitted(calibrator, logits, labels).transform(logits), probs)


@pytest.mark.parametrize("calibrator", LOGIT_BASED, ids=str)
def test_binary_log_odds(calibrator):
    logits, labels = overconfident(5, 300, 2)
    odds = logits[:, 1] - logits[:, 0]
    columns = np.stack([np.zeros(300), odds], 1)
    one, two = fitted(calibrator, odds, labels), fitted(calibrator, columns, labels)
    assert one.transform(odds) == pytest.approx(two.transform(columns)[:, 1])


@pytest.mark.parametrize("calibrator", ALL, ids=str)
def test_extreme_logits_stay_finite(calibrator):
    logits, labels = overconfident(6, 200, sharpness=400.0)
    model = fitted(calibrator, logits, labels)
    for sample in (logits, 1e4 * logits):
        probs = model.transform(sample, *context(calibrator, 200))
        assert np.isfinite(probs).all()
        assert probs.sum(1) == pytest.approx(1)


# --- temperature ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sharpness", [0.1, 0.7, 1.0, 2.5, 20.0])
def test_temperature_is_recovered(sharpness):
    logits, labels = overconfident(7, 20_000, sharpness=sharpness)
    assert TemperatureScaler().fit(logits, labels).temperature == pytest.approx(sharpness, rel=0.03)


def test_temperature_is_the_minimum():
    logits, labels = overconfident(8, 300)
    best = TemperatureScaler().fit(logits, labels).temperature

    def loss(temperature):
        return cal.nll(cal.softmax(logits / temperature), labels)

    grid = best * np.exp(np.linspace(-0.01, 0.01, 21))
    assert best == pytest.approx(grid[np.argmin([loss(t) for t in grid])], rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 9999), st.sampled_from([1, 3, 50]), st.sampled_from([0.01, 1.0, 100.0]))
def test_temperature_keeps_accuracy_and_does_not_raise_nll(seed, size, sharpness):
    logits, labels = overconfident(seed, size, 3, sharpness)
    scaler = TemperatureScaler().fit(logits, labels)
    probs = scaler.transform(logits)
    assert cal.accuracy(probs, labels) == cal.accuracy(cal.softmax(logits), labels)
    assert cal.nll(probs, labels) <= cal.nll(cal.softmax(logits), labels) + 1e-12
    assert BOUNDS[0] <= scaler.temperature <= BOUNDS[1] * (1 + 1e-9)


def test_published_grid():
    logits, labels = overconfident(9, 500)
    scaler = TemperatureScaler(search="ece-grid").fit(logits, labels)
    errors = [cal.ece(cal.softmax(logits / t), labels) for t in GRID]
    assert GRID[0] == 0.1
    assert GRID[-1] == 10.0
    assert len(GRID) == 100
    assert scaler.temperature == GRID[int(np.argmin(errors))]


def test_published_grid_keeps_what_lowers_the_ece_alone():
    """By the NLL, 1 would be better than 1.2."""
    logits, labels = overconfident(8, 200, sharpness=1.0)
    scaler = TemperatureScaler(search="ece-grid").fit(logits, labels)
    assert scaler.temperature == 1.2
    before, after = cal.softmax(logits), scaler.transform(logits)
    assert cal.ece(after, labels) < cal.ece(before, labels)
    assert cal.nll(after, labels) > cal.nll(before, labels)


@pytest.mark.parametrize("search", ["nll", "ece-grid"])
@pytest.mark.parametrize("sharpness", [0.1, 3.0, 300.0])
def test_samples_that_are_all_right_do_not_make_a_classifier_surer(search, sharpness):
    """They do not say how sharp to be: noise would be answered with 100 % as well."""
    logits = sharpness * np.eye(4)
    scaler = TemperatureScaler(search=search).fit(logits, np.arange(4))
    assert scaler.temperature == 1
    np.testing.assert_array_equal(scaler.transform(logits), cal.softmax(logits))


def test_one_wrong_sample_is_enough_to_fit():
    logits = 0.1 * np.eye(4)[np.arange(20) % 4]
    labels = np.arange(20) % 4
    assert TemperatureScaler().fit(logits, labels).temperature == 1
    labels[0] = 1
    assert TemperatureScaler().fit(logits, labels).temperature < 0.1


def test_a_hopeless_classifier_stops_at_the_bound():
    """Always sure, always wrong: the hotter, the better."""
    logits = 300 * np.eye(3)
    fitted = TemperatureScaler().fit(logits, [1, 2, 0])
    assert fitted.temperature == pytest.approx(BOUNDS[1])


def test_the_last_newton_step_is_not_taken_for_a_step_too_far():
    """Some of these end on a step that rounds to nothing, which the bracket used to refuse."""
    for seed in range(100, 160):
        random = np.random.default_rng(seed)
        logits = 3 * random.normal(size=(200, 10))
        right = random.random(200) < 0.7
        labels = np.where(right, logits.argmax(1), random.integers(10, size=200))
        best = TemperatureScaler().fit(logits, labels).temperature
        losses = [cal.nll(cal.softmax(logits / t), labels) for t in (best / 1.001, best, best * 1.001)]
        assert losses[1] < min(losses[0], losses[2]), seed


@pytest.mark.parametrize("scale", [1e-3, 1e3, 1e160])
def test_temperature_follows_the_scale_of_the_logits(scale):
    logits, labels = overconfident(4, 400)
    plain = TemperatureScaler().fit(logits, labels).temperature
    scaled = TemperatureScaler().fit(scale * logits, labels).temperature
    if scale < 1e4:
        assert scaled == pytest.approx(scale * plain, rel=1e-6)
    else:
        assert np.isfinite(scaled)


def test_constant_logits_have_nothing_to_say():
    assert TemperatureScaler().fit(np.ones((6, 3)), [0, 1, 2, 0, 1, 2]).temperature == 1


# --- the others -----------------------------------------------------------------------------------


def test_vector_scaling_undoes_scales_and_shifts():
    logits, labels = overconfident(10, 20_000, 3, sharpness=1.0)
    scale, shift = np.array([2.0, 1.0, 0.5]), np.array([1.0, 0.0, -1.0])
    state = cal.VectorScaler().fit(logits * scale + shift, labels).state_
    assert state["scale"] == pytest.approx(1 / scale, rel=0.1)


def test_matrix_scaling_is_held_near_the_diagonal():
    logits, labels = overconfident(11, 200, 10)
    tight = cal.MatrixScaler(off_diagonal_deviation=1e-4).fit(logits, labels).state_["matrix"]
    loose = cal.MatrixScaler(off_diagonal_deviation=1.0).fit(logits, labels).state_["matrix"]
    off_diagonal = ~np.eye(10, dtype=bool)
    assert np.abs(tight[off_diagonal]).max() < 1e-3 < np.abs(loose[off_diagonal]).max()


@pytest.mark.parametrize("calibrator", [cal.MatrixScaler(), cal.DirichletCalibrator()], ids=str)
def test_matrix_and_bias_are_the_most_probable(calibrator):
    """NLL of all samples less the log of the prior, as defined: no entry can be moved for less."""
    logits, labels = overconfident(18, 100, 3)
    logits[:, 0] += 1 + 0.3 * logits[:, 1]
    logits += np.random.default_rng(0).normal(size=(100, 1))  # which a softmax does not see
    of_probs = isinstance(calibrator, cal.DirichletCalibrator)
    inputs = np.log(cal.softmax(logits)) if of_probs else logits
    model = clone(calibrator).fit(logits, labels)

    def answers(matrix, bias):
        return cal.softmax(np.array([matrix @ row + bias for row in inputs]))

    def loss(matrix, bias):
        off_diagonal = (matrix - np.diag(np.diag(matrix))) / 0.02
        at_mean = (bias + (matrix - np.eye(3)) @ inputs.mean(0)) / 1.0
        prior = ((off_diagonal**2).sum() + (at_mean**2).sum()) / 2
        return 100 * cal.nll(answers(matrix, bias), labels) + prior

    matrix, bias = model.state_["matrix"], model.state_["bias"]
    np.testing.assert_allclose(model.transform(logits), answers(matrix, bias), atol=1e-12)
    least = loss(matrix, bias)
    for step in 0.01 * np.vstack([np.eye(12), -np.eye(12)]):
        assert loss(matrix + step[:9].reshape(3, 3), bias + step[9:]) > least


def test_histogram_by_hand():
    """Ten equal predictions of 0.9, six right, and one sample of both classes alike."""
    logits = np.log([[0.9, 0.1]] * 10)
    model = cal.HistogramBinning().fit(logits, [0] * 6 + [1] * 4)
    assert model.transform(logits)[0] == pytest.approx([6.5 / 11, 4.5 / 11])


@pytest.mark.parametrize("calibrator", [cal.HistogramBinning(), cal.IsotonicCalibrator()], ids=str)
def test_counting_calibrators_rule_nothing_out(calibrator):
    """A class never seen at some probability keeps 1 / (K (N + 1)); who is right is untouched."""
    logits, labels = overconfident(16, 200, 10)
    unseen, truth = overconfident(17, 2000, 10)
    after = fitted(calibrator, logits, labels).transform(unseen)
    assert after.min() > 0.1 / (10 * 201)
    assert cal.nll(after, truth) < 3


def test_isotonic_is_monotone_per_class():
    logits, labels = overconfident(12, 400, 2)
    model = cal.IsotonicCalibrator().fit(logits, labels)
    odds = np.linspace(-20, 20, 200)
    assert (np.diff(model.transform(odds)) >= -1e-12).all()


def test_beta_recovers_a_shift():
    """Log-odds moved by one: the beta curve moves them back."""
    random = np.random.default_rng(13)
    odds = 2 * random.normal(size=20_000)
    labels = (random.random(20_000) < 1 / (1 + np.exp(-odds))).astype(int)
    after = cal.BetaCalibrator().fit(odds + 1, labels).transform(odds + 1)
    assert np.abs(after - 1 / (1 + np.exp(-odds))).max() < 0.03


def test_beta_never_turns_the_order_round():
    """Where the surer are the more often wrong, a falling curve would fit better."""
    random = np.random.default_rng(19)
    odds = 2 * random.normal(size=2000)
    labels = (random.random(2000) < 1 / (1 + np.exp(odds))).astype(int)
    after = cal.BetaCalibrator().fit(odds, labels).transform(np.linspace(-5, 5, 50))
    assert (np.diff(after) >= -1e-12).all()
    assert after == pytest.approx(np.full(50, labels.mean()), abs=0.01)


def test_density_ratio_twin():
    """Kernel densities of right and wrong samples, written as sums of products of normals."""
    logits, labels = overconfident(14, 80, 3)
    near = np.random.default_rng(0).random(80)
    model = cal.DensityRatioCalibrator().fit(logits, labels, near)
    probs = cal.softmax(logits)
    points, correct = np.stack([probs.max(1), near], 1), probs.argmax(1) == labels

    def density(point, sample):
        width = 1.06 * sample.std(0) * len(sample) ** (-1 / 6)
        kernels = np.exp(-0.5 * ((point - sample) / width) ** 2) / (width * np.sqrt(2 * np.pi))
        return kernels.prod(1).mean()

    after = model.transform(logits, near)
    for i in range(5):
        right = density(points[i], points[correct]) * correct.sum()
        wrong = density(points[i], points[~correct]) * (~correct).sum()
        confidence = right / (right + wrong)
        if confidence > 0.51:  # below, the predicted class might need protection
            assert after[i].max() == pytest.approx(confidence)


def test_density_ratio_without_mistakes_keeps_the_predictions():
    logits = 5 * np.eye(3)[[0, 1, 2, 0]]
    near = np.array([0.1, 0.2, 0.3, 0.4])
    model = cal.DensityRatioCalibrator().fit(logits, [0, 1, 2, 0], near)
    assert np.array_equal(model.transform(logits, near), cal.softmax(logits))


def test_bin_mean_shift_treats_groups_apart():
    """Sure where dense and right, sure where sparse and wrong half the time."""
    logits = np.log([[0.9, 0.1]] * 40)
    near = np.repeat([0.9, 0.1], 20)
    labels = np.array([0] * 20 + [0, 1] * 10)
    model = cal.BinMeanShiftCalibrator(proximity_bins=2).fit(logits, labels, near)
    after = model.transform(logits[:2], np.array([0.95, 0.05]))
    assert after[:, 0] == pytest.approx([1.0, 0.5], abs=1e-9)


def test_bin_mean_shift_by_histogram():
    """Bins end at 0.6, 0.7, ...: 0.7 itself belongs below; an empty bin says its middle."""
    fitted_on = np.log([[0.7, 0.3]] * 10 + [[0.95, 0.05]] * 10)
    labels = [0] * 6 + [1] * 4 + [0] * 9 + [1]
    model = cal.BinMeanShiftCalibrator(curve="histogram", proximity_bins=1)
    model.fit(fitted_on, labels, np.full(20, 0.5))
    logits = np.log([[0.7, 0.3], [0.65, 0.35], [0.95, 0.05], [0.82, 0.18]])
    after = model.transform(logits, np.full(4, 0.5))
    assert after[:, 0] == pytest.approx([0.6, 0.6, 0.9, 0.85])


def test_full_confidence_leaves_the_others_something_to_share():
    from semmix.calibration.procal import with_confidence

    assert with_confidence(np.array([[1.0, 0.0, 0.0]]), np.array([0.6])).tolist() == [[0.6, 0.2, 0.2]]


# --- how they are used ----------------------------------------------------------------------------


def test_settings_like_scikit_learn():
    scaler = TemperatureScaler(search="ece-grid")
    assert scaler.get_params() == {"search": "ece-grid"}
    assert clone(scaler) == scaler
    assert scaler.set_params(search="nll").search == "nll"
    assert replace(cal.HistogramBinning(), bins=3).bins == 3
    with pytest.raises(SemmixError, match="search"):
        scaler.set_params(serch="nll")


def test_mistakes():
    logits, labels = overconfident(15, 50)
    scaler = TemperatureScaler()
    with pytest.raises(SemmixError, match="fit"):
        scaler.transform(logits)
    with pytest.raises(SemmixError, match="fit"):
        _ = scaler.temperature
    with pytest.raises(SemmixError, match=r"np\.log"):
        scaler.fit(cal.softmax(logits), labels)
    with pytest.raises(SemmixError, match="soft"):
        scaler.fit(logits, cal.softmax(logits))
    with pytest.raises(SemmixError, match="NaN"):
        scaler.fit(logits * np.nan, labels)
    with pytest.raises(SemmixError, match="out of range"):
        scaler.fit(logits, labels + 4)
    with pytest.raises(SemmixError, match="same model"):
        scaler.fit(logits, labels).transform(logits[:, :2])
    with pytest.raises(SemmixError, match="one per sample"):
        cal.DensityRatioCalibrator().fit(logits, labels, np.ones(3))
    with pytest.raises(SemmixError, match="search"):
        TemperatureScaler(search="brier").fit(logits, labels)
    with pytest.raises(SemmixError, match="isotonic"):
        cal.BinMeanShiftCalibrator(curve="isotonik").fit(logits, labels, np.ones(50))


def test_beta_inputs_go_on_where_one_less_p_rounds_to_nothing():
    margins = np.array([0.0, 1.0, 36.0, 37.0, 300.0])
    inputs = _beta_inputs(np.column_stack([margins, np.zeros(5)]))
    assert inputs[:, 0, 1] == pytest.approx(np.logaddexp(0, margins))  # -log(1 - p)
    assert inputs[:, 1, 1] == pytest.approx(np.logaddexp(0, -margins))
    three = np.random.default_rng(0).normal(size=(50, 3))
    assert _beta_inputs(three)[:, :, 1] == pytest.approx(-np.log(1 - cal.softmax(three)))


def test_calibrators_print_what_they_learnt():
    logits, labels = np.array([[2.0, 0.0]] * 4 + [[0.0, 2.0]] * 4), np.array([0, 0, 0, 1, 1, 1, 1, 0])
    scaler = cal.TemperatureScaler()
    assert repr(scaler) == "TemperatureScaler()"
    assert repr(scaler.fit(logits, labels)) == "TemperatureScaler(temperature=1.82)"
    grid = cal.TemperatureScaler(search="ece-grid").fit(logits, labels)
    assert repr(grid) == f"TemperatureScaler(search='ece-grid', temperature={grid.temperature:.4g})"
    assert repr(cal.VectorScaler().fit(logits, labels)) == "VectorScaler(scale=[2], bias=[2])"
    unlearnt = cal.BinMeanShiftCalibrator(bins=7)
    unlearnt.state_ = {}
    assert repr(unlearnt) == "BinMeanShiftCalibrator(bins=7)"


@dataclass(repr=False)
class Certain(cal.Calibrator):
    """Predicts class 0 with near certainty, whatever it is given."""

    def _learn(self, logits, labels):
        return {"probs": np.array([1 - 1e-7, 1e-7])}

    def _apply(self, state, logits):
        return np.tile(state["probs"], (len(logits), 1))


class CertainByBrier(Certain):
    by_brier = True


def test_the_criterion_decides_what_is_kept():
    """Nine of ten are right: near certainty lowers the Brier score, and the NLL explodes."""
    logits, labels = np.log([[0.6, 0.4]] * 10), [0] * 9 + [1]
    assert Certain().fit(logits, labels).transform(logits) == pytest.approx(np.exp(logits))
    assert CertainByBrier().fit(logits, labels).transform(logits)[0, 0] == 1 - 1e-7
    by_brier = {type(calibrator).__name__ for calibrator in ALL if calibrator.by_brier}
    expected = {"HistogramBinning", "IsotonicCalibrator", "DensityRatioCalibrator", "BinMeanShiftCalibrator"}
    assert by_brier == expected
