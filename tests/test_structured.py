"""Structured vector and matrix scaling against optima and derivatives worked out apart."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import log_softmax

from calibrant.comparison.compare import compare
from calibrant.core.errors import (
    BoundaryWarning,
    CalibrationWarning,
    ConvergenceWarning,
    InputError,
    NotIdentifiedWarning,
)
from calibrant.posthoc.linear.structured import (
    StructuredMatrixScaling,
    StructuredVectorScaling,
)
from calibrant.posthoc.registry import make_calibrator
from calibrant.posthoc.temperature.single import TemperatureScaling
from calibrant.predictions.predictions import Predictions

both = pytest.mark.parametrize("method", ["svs", "sms"])


def fitted(method: str, logits, labels, **arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        return make_calibrator(method, **arguments).fit(logits, labels)


def drawn(rows: int, weight, bias, seed: int = 0):
    """Logits and labels of a map (I + weight) z' + bias of centred logits that is known."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=2.0, size=(rows, len(bias)))
    centred = logits - logits.mean(axis=1, keepdims=True)
    scores = centred + centred @ np.asarray(weight).T + bias
    return logits, (scores + rng.gumbel(size=scores.shape)).argmax(axis=1), log_softmax(scores, 1)


@both
@pytest.mark.parametrize("ridge", [0.1, 1.0, 30.0])
def test_optimum_is_that_of_the_objective_written_out(method, ridge):
    rows, classes = 60, 3
    logits, labels, _ = drawn(rows, np.diag([0.3, 0, -0.4]), np.array([0.5, 0, 0]), seed=1)
    calibrator = fitted(method, logits, labels, ridge=ridge)
    beta = TemperatureScaling().fit(logits, labels).beta_
    scaled = beta * (logits - logits.mean(axis=1, keepdims=True))

    def objective(vector):
        v, b = vector[:classes], vector[classes : 2 * classes]
        matrix = np.zeros((classes, classes))
        matrix[~np.eye(classes, dtype=bool)] = vector[2 * classes :]
        scores = scaled * (1 + v) + scaled @ matrix.T + b
        nll = -log_softmax(scores, 1)[np.arange(rows), labels].mean()
        off = classes * (classes - 1) * (matrix**2).sum()
        return nll + ridge / rows * (classes * (v @ v + b @ b) + off)

    free = classes * (classes - 1) if method == "sms" else 0

    def padded(vector):
        return objective(np.concatenate([vector, np.zeros(classes * (classes - 1) - free)]))

    start = np.zeros(2 * classes + free)
    brute = minimize(padded, start, method="BFGS", options={"gtol": 1e-9})
    change, bias = calibrator.change_, calibrator.bias_
    if method == "sms":
        off = change[~np.eye(classes, dtype=bool)]
        ours = np.concatenate([np.diag(change), bias, off])
    else:
        ours = np.concatenate([change, bias])
    np.testing.assert_allclose(ours, brute.x, atol=2e-4)
    assert padded(ours) <= brute.fun + 1e-8
    np.testing.assert_allclose(calibrator.fit_report_.value, padded(ours), rtol=1e-9)


@both
def test_a_known_map_is_recovered(method):
    weight = np.diag([0.4, 0.0, -0.3, 0.0])
    if method == "sms":
        weight = weight + 0.3 * np.eye(4)[[1, 2, 3, 0]]
    logits, labels, truth = drawn(30_000, weight, np.array([0.5, 0, 0, -0.5]))
    probs = fitted(method, logits, labels).predict_proba(logits)
    base = fitted("temperature", logits, labels).predict_proba(logits)
    assert np.abs(base - np.exp(truth)).mean() > 0.02
    assert np.abs(probs - np.exp(truth)).mean() < 0.006


@both
def test_few_rows_beside_classes_are_temperature_scaling(method):
    rng = np.random.default_rng(2)
    logits, labels = rng.normal(size=(20, 60)), rng.integers(60, size=20)
    probs = fitted(method, logits, labels).predict_proba(logits)
    base = fitted("temperature", logits, labels).predict_proba(logits)
    np.testing.assert_allclose(probs, base, rtol=0.02)
    tight = fitted(method, logits, labels, ridge=1e9).predict_proba(logits)
    np.testing.assert_allclose(tight, base, atol=1e-8)


@both
@pytest.mark.parametrize("seed", range(3))
def test_never_a_worse_likelihood_than_temperature_on_its_rows(method, seed, labelled_logits):
    logits, labels = labelled_logits(100, 5, seed=seed)
    nll = [
        -np.log(fitted(m, logits, labels).predict_proba(logits)[np.arange(100), labels]).mean()
        for m in (method, "temperature")
    ]
    assert nll[0] <= nll[1] + 1e-9


@both
@settings(max_examples=15)
@given(st.integers(0, 1000), st.floats(1e-2, 1e2), st.floats(-20, 20))
def test_scale_and_origin_of_the_logits_do_not_matter(method, seed, scale, shift):
    logits, labels, _ = drawn(80, np.zeros((4, 4)), np.array([1.0, 0, 0, 0]), seed)
    plain = fitted(method, logits, labels).predict_proba(logits)
    moved = logits * scale + shift
    np.testing.assert_allclose(fitted(method, moved, labels).predict_proba(moved), plain, atol=1e-4)


@both
def test_masked_classes_leave_the_others_their_map(method):
    logits, labels, _ = drawn(500, 0.2 * np.ones((4, 4)), np.zeros(4))
    calibrator = fitted(method, logits, labels)
    row = np.array([[1.0, 2.0, 0.0, -np.inf]])
    centred = np.array([0.0, 1.0, -1.0, 0.0]) * calibrator.beta_
    change = calibrator.change_
    matrix = np.diag(change) if change.ndim == 1 else change
    scores = centred + matrix @ centred + calibrator.bias_
    wanted = np.append(np.exp(log_softmax(scores[:3])), 0.0)
    np.testing.assert_allclose(calibrator.predict_proba(row)[0], wanted, rtol=1e-12)


@both
def test_warnings_are_named(method, labelled_logits):
    logits, labels = labelled_logits(60, 4)
    with pytest.warns(BoundaryWarning):
        make_calibrator(method).fit(logits, logits.argmax(axis=1))
    with pytest.warns(NotIdentifiedWarning):
        make_calibrator(method).fit(np.zeros_like(logits), labels)
    with pytest.warns(ConvergenceWarning, match="stopped after 1 steps"):
        make_calibrator(method, max_iterations=1).fit(logits, labels)


@pytest.mark.parametrize("arguments", [{"ridge": 0}, {"ridge": -1}, {"max_iterations": 0}])
@both
def test_arguments_out_of_range(method, arguments, overconfident):
    with pytest.raises(InputError, match=next(iter(arguments))):
        make_calibrator(method, **arguments).fit(*overconfident)


def test_too_many_classes_for_a_matrix_are_refused():
    logits = np.random.default_rng(0).normal(size=(3, 301))
    with pytest.raises(InputError, match="301 x 301 numbers; beyond most_classes=300"):
        StructuredMatrixScaling().fit(logits, [0, 1, 2])
    sms = StructuredMatrixScaling(max_iterations=1, most_classes=400)
    with pytest.warns(CalibrationWarning):
        sms.fit(logits, [0, 1, 2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = Predictions.from_logits(logits, np.array([0, 1, 2]))
        found = compare(["none", "sms"], fit=rows, test=rows, resamples=10)
    assert "take 'svs'" in found.skipped["sms"]
    assert fitted("svs", logits, [0, 1, 2]).n_parameters == 603


def test_number_of_parameters(overconfident):
    assert StructuredVectorScaling().fit(*overconfident).n_parameters == 11
    assert StructuredMatrixScaling().fit(*overconfident).n_parameters == 31
