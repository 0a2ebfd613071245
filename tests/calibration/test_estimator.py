"""The calibrated classifier is a scikit-learn estimator in every respect it checks."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import check_estimator

from semmix import SemmixError
from semmix import calibration as cal


def test_check_estimator():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # checks skip what is not installed, with a warning
        results = check_estimator(cal.CalibratedClassifier(), on_fail=None)
    failed = [r["check_name"] for r in results if r["status"] not in ("passed", "skipped")]
    assert failed == []
    assert sum(r["status"] == "passed" for r in results) > 40


@pytest.mark.parametrize("calibrator", [None, cal.IsotonicCalibrator(), cal.BetaCalibrator()])
def test_overconfident_bayes_is_mended(calibrator):
    X, y = make_classification(3000, n_features=30, n_redundant=20, n_classes=3, n_informative=5, random_state=0)
    names = np.array(["ant", "bee", "cat"])[y]
    plain = GaussianNB().fit(X[:2000], names[:2000]).predict_proba(X[2000:])
    model = cal.CalibratedClassifier(GaussianNB(), calibrator).fit(X[:2000], names[:2000])
    probs = model.predict_proba(X[2000:])
    assert cal.ece(probs, y[2000:]) < 0.5 * cal.ece(plain, y[2000:])
    assert set(model.predict(X[2000:])) == {"ant", "bee", "cat"}


def test_one_fold_is_no_cross_validation():
    X, y = make_classification(30, random_state=0)
    with pytest.raises(SemmixError, match="two folds: cv=1"):
        cal.CalibratedClassifier(cv=1).fit(X, y)


def test_every_fold_but_its_own_teaches(monkeypatch):
    sizes = []
    fit = GaussianNB.fit
    monkeypatch.setattr(GaussianNB, "fit", lambda self, X, y: sizes.append(len(X)) or fit(self, X, y))
    X, y = make_classification(30, random_state=0)
    cal.CalibratedClassifier(GaussianNB(), cv=3).fit(X, y)
    assert sizes == [20, 20, 20, 30]


def test_decision_values_will_do():
    X, y = make_classification(300, random_state=0)
    probs = cal.CalibratedClassifier(LinearSVC()).fit(X, y).predict_proba(X)
    assert probs.sum(1) == pytest.approx(1)
    assert cal.accuracy(probs, y) > 0.8


@pytest.mark.parametrize("model", [DecisionTreeClassifier(random_state=0), KNeighborsClassifier(5)])
def test_zeros_of_trees_and_neighbours_do_not_rule(model):
    """They give probabilities of exactly 0 and are wrong at times: no reason for T = 100."""
    X, y = make_classification(3000, n_features=20, n_classes=3, n_informative=5, random_state=0)
    plain = model.fit(X[:2000], y[:2000]).predict_proba(X[2000:])
    fitted = cal.CalibratedClassifier(model).fit(X[:2000], y[:2000])
    assert cal.ece(fitted.predict_proba(X[2000:]), y[2000:]) < cal.ece(plain, y[2000:])
    assert cal.nll(fitted.predict_proba(X[2000:]), y[2000:]) < 0.7


def test_a_small_class_lowers_the_number_of_folds():
    X = np.random.default_rng(0).normal(size=(40, 3))
    for smallest, folds in ((3, 3), (2, 2), (7, 5)):
        y = (np.arange(40) < smallest).astype(int)
        sizes = []

        class Counted(GaussianNB):
            def fit(self, X, y, sizes=sizes):
                sizes.append(len(X))
                return super().fit(X, y)

        cal.CalibratedClassifier(Counted()).fit(X, y)
        assert len(sizes) == folds + 1
    with pytest.raises(SemmixError, match=r"2 class\(es\), the smallest of 1 sample"):
        cal.CalibratedClassifier().fit(X, (np.arange(40) < 1).astype(int))
    with pytest.raises(SemmixError, match=r"1 class\(es\)"):
        cal.CalibratedClassifier().fit(X, np.zeros(40, int))


def test_what_a_user_passes_stays_as_it_is():
    X, y = make_classification(60, random_state=0)
    estimator, calibrator = GaussianNB(), cal.TemperatureScaler()
    model = cal.CalibratedClassifier(estimator, calibrator).fit(X, y)
    assert not hasattr(calibrator, "state_")
    assert not hasattr(estimator, "classes_")
    assert model.calibrator_.temperature > 0
