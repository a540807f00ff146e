"""Platt, affine, quadratic and beta maps, held to scikit-learn, betacal and probmetrics."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import calibrant as cb
from calibrant.core.errors import BoundaryWarning
from calibrant.posthoc.log_odds import fit_event

calibration = pytest.importorskip("sklearn.calibration")
linear_model = pytest.importorskip("sklearn.linear_model")
isotonic = pytest.importorskip("sklearn.isotonic")

NEW = np.linspace(0.05, 0.95, 7)


@pytest.fixture(scope="module")
def scores():
    """300 probabilities and labels; a beta distribution for each outcome."""
    rng = np.random.default_rng(7)
    labels = (rng.random(300) < 0.4).astype(int)
    return np.where(labels, rng.beta(3.0, 1.2, 300), rng.beta(1.3, 2.0, 300)), labels


def log_odds(probs):
    return np.log(probs) - np.log1p(-probs)


def mapped(calibrator, scores, new):
    """What a calibrator that was fitted to probabilities and labels makes of new probabilities."""
    calibrator.fit_predictions(cb.Predictions.from_binary(*scores))
    return calibrator.apply_predictions(cb.Predictions.from_binary(new, None)).positive_probs


def by_likelihood(columns, labels):
    """scikit-learn's logistic regression to its last digits."""
    regression = linear_model.LogisticRegression(
        C=np.inf, fit_intercept=False, tol=1e-12, max_iter=10_000
    )
    return regression.fit(columns, labels)


def test_platt_is_scikit_learns_sigmoid_on_log_odds_and_on_probabilities(scores):
    probs, labels = scores
    for inputs, of in (("log-odds", log_odds), ("probability", np.asarray)):
        sigmoid = calibration._SigmoidCalibration().fit(of(probs), labels)
        ours = mapped(cb.posthoc.PlattScaling(inputs=inputs), scores, NEW)
        np.testing.assert_allclose(ours, sigmoid.predict(of(NEW)), atol=1e-6)


def test_platt_weighs_rows_as_scikit_learn_does(scores):
    probs, labels = scores
    weight = np.random.default_rng(1).integers(1, 5, len(labels)).astype(float)
    sigmoid = calibration._SigmoidCalibration().fit(log_odds(probs), labels, weight)
    columns = np.stack([log_odds(probs), np.ones(len(labels))], axis=1)
    slope, intercept = fit_event(columns, labels.astype(float), weight, smoothed=True).weights
    np.testing.assert_allclose([slope, intercept], [-sigmoid.a_, -sigmoid.b_], atol=1e-5)


def test_affine_and_quadratic_are_logistic_regression(scores):
    x, new = log_odds(scores[0]), log_odds(NEW)
    for calibrator, columns in (
        (cb.posthoc.AffineScaling(), lambda x: np.stack([x, np.ones_like(x)], axis=1)),
        (cb.posthoc.QuadraticScaling(), lambda x: np.stack([x * x, x, np.ones_like(x)], axis=1)),
    ):
        theirs = by_likelihood(columns(x), scores[1]).predict_proba(columns(new))[:, 1]
        np.testing.assert_allclose(mapped(calibrator, scores, NEW), theirs, atol=1e-6)


@pytest.mark.parametrize("form", ["abm", "am", "ab"])
def test_beta_is_betacals_in_all_three_forms(form, scores):
    betacal = pytest.importorskip("betacal")
    rng = np.random.default_rng(0)
    labels = (rng.random(2000) < 0.5).astype(int)
    probs = np.where(labels, rng.beta(3, 1.5, 2000), rng.beta(1.5, 2.5, 2000))
    with warnings.catch_warnings():  # it switches all warnings off, for good
        theirs = betacal.BetaCalibration(parameters=form).fit(probs, labels).predict(NEW)
    calibrator = cb.posthoc.BetaCalibration(form=form)
    ours = mapped(calibrator, (probs, labels), NEW)
    # Its optimiser stops at a gradient of 1e-4.
    np.testing.assert_allclose(ours, theirs, atol=3e-4)
    p, one = probs[:, None], np.ones((2000, 1))
    columns = {
        "abm": [np.log(p), -np.log1p(-p), one],
        "am": [log_odds(p), one],
        "ab": [np.log(2 * p), -np.log(2 * (1 - p))],
    }[form]
    exact = by_likelihood(np.hstack(columns), labels)
    again = mapped(calibrator, (probs, labels), probs)
    np.testing.assert_allclose(
        again, exact.predict_proba(np.hstack(columns))[:, 1], rtol=0, atol=1e-6
    )


def test_the_middle_of_beta_is_where_it_says_one_half(scores):
    calibrator = cb.posthoc.BetaCalibration()
    mapped(calibrator, scores, NEW)
    middle = mapped(calibrator, scores, [calibrator.midpoint_])
    np.testing.assert_allclose(middle, 0.5, atol=1e-9)
    assert mapped(cb.posthoc.BetaCalibration(form="ab"), scores, [0.5]) == pytest.approx(
        0.5, abs=1e-12
    )


def test_isotonic_of_binary_predictions_is_scikit_learns(scores):
    theirs = isotonic.IsotonicRegression(out_of_bounds="clip").fit(*scores)
    ours = mapped(cb.posthoc.IsotonicRegression(prior_strength=0), scores, NEW)
    np.testing.assert_allclose(ours, theirs.predict(NEW), atol=1e-12)


def test_what_probmetrics_gives_is_given(scores):
    """Its values, from probmetrics 1.3.0, which needs what this project's tests don't install.

    from probmetrics.calibrators import get_calibrator
    both = lambda p: np.stack([1 - p, p], axis=1)
    get_calibrator(name).fit(both(probs), labels).predict_proba(both(NEW))[:, 1]

    It works in float32 and stops early, so three digits agree. Its "platt" is scikit-learn's
    sigmoid of probabilities; what it calls Platt scaling of logits is "affine-scaling" (its
    "platt-logits" ends in an error).
    """
    expected = {
        "platt": [0.037491, 0.082086, 0.170339, 0.320362, 0.519741, 0.713025, 0.850844],
        "affine": [0.018531, 0.094083, 0.193833, 0.321260, 0.482338, 0.683262, 0.922271],
        "quadratic": [0.006259, 0.074213, 0.190362, 0.339756, 0.510765, 0.693102, 0.883205],
        "isotonic": [0.0, 0.085714, 0.217391, 0.346154, 0.486486, 0.666667, 0.956522],
        "beta": [0.005600, 0.070322, 0.190834, 0.346018, 0.515638, 0.688573, 0.879678],
    }
    arguments = {"platt": {"inputs": "probability"}, "isotonic": {"prior_strength": 0}}
    for name, values in expected.items():
        ours = mapped(cb.make_calibrator(name, **arguments.get(name, {})), scores, NEW)
        np.testing.assert_allclose(ours, values, atol=3e-4)


@pytest.mark.parametrize("method", ["platt", "affine", "quadratic", "beta", "isotonic", "auto"])
def test_which_class_is_called_positive_makes_no_difference(method, scores):
    probs, labels = scores
    one = mapped(cb.make_calibrator(method), (probs, labels), NEW)
    other = mapped(cb.make_calibrator(method), (1 - probs, 1 - labels), 1 - NEW)
    np.testing.assert_allclose(one, 1 - other, atol=1e-6)


def test_beta_never_falls_where_scores_say_the_opposite(scores):
    probs, labels = scores
    for form in ("abm", "am", "ab"):
        calibrator = cb.posthoc.BetaCalibration(form=form)
        ours = mapped(calibrator, (probs, 1 - labels), NEW)
        assert (np.diff(ours) >= 0).all()
        assert (calibrator.weights_[:2] >= 0).all()
    # One of both is negative: the better of what is left, which betacal takes too.
    x = log_odds(probs)
    bent = 1 / (1 + np.exp(-np.where(x > 0, 6 * x, 0.1 * x)))
    ours = mapped(cb.posthoc.BetaCalibration(), (bent, labels), NEW)
    assert (np.diff(ours) >= 0).all()


@pytest.mark.parametrize("method", ["affine", "quadratic", "beta"])
def test_rows_without_an_error_end_in_a_warning_and_no_certainty(method):
    rows = cb.Predictions.from_binary([0.2, 0.3, 0.6, 0.9] * 10, [0, 0, 1, 1] * 10)
    with pytest.warns(BoundaryWarning, match="without an error"):
        calibrator = cb.make_calibrator(method).fit_predictions(rows)
    assert calibrator.fit_report_.notes
    after = calibrator.apply_predictions(rows).positive_probs
    # Platt's targets of twenty rows of either kind.
    assert 0.5 < after[3] < 1 - 1e-3


def test_more_classes_are_mapped_by_the_log_odds_of_the_top_label(overconfident):
    logits, labels = overconfident
    rows = cb.Predictions.from_logits(logits, labels)
    for method in ("platt", "affine", "quadratic", "beta"):
        calibrator = cb.make_calibrator(method).fit_predictions(rows)
        assert calibrator.keeps_prediction
        probs = calibrator.predict_proba(logits)
        np.testing.assert_array_equal(probs.argmax(axis=1), logits.argmax(axis=1))
        top = rows.probs.max(axis=1)
        event = (top, (logits.argmax(axis=1) == labels).astype(int))
        np.testing.assert_allclose(
            probs.max(axis=1),
            np.maximum(mapped(cb.make_calibrator(method), event, top), 0.2),
            atol=1e-5,
        )
