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
from calibrant.posthoc.linear.vector import (
    StructuredMatrixScaling,
    StructuredVectorScaling,
)
from calibrant.posthoc.loading import load
from calibrant.posthoc.registry import make_calibrator
from calibrant.posthoc.temperature.scaling import TemperatureScaling
from calibrant.predictions.predictions import Predictions
from calibrant.sample import load_sample

both = pytest.mark.parametrize("method", ["svs", "sms"])
both_inputs = pytest.mark.parametrize("inputs", ["log-probabilities", "centred"])


def fitted(method: str, logits, labels, **arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        return make_calibrator(method, **arguments).fit(logits, labels)


def inputs_of(inputs: str, logits, beta: float):
    """beta x of rows that may mask classes, 0 there: log-probabilities or centred logits."""
    free = np.isfinite(logits)
    if inputs == "log-probabilities":
        return np.where(free, log_softmax(beta * logits, axis=1), 0.0)
    mean = np.where(free, logits, 0.0).sum(axis=1, keepdims=True) / free.sum(axis=1, keepdims=True)
    return np.where(free, beta * (logits - mean), 0.0)


def drawn(rows: int, weight, bias, seed: int = 0):
    """Logits and labels of a map (I + weight) z' + bias of centred logits that is known."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=2.0, size=(rows, len(bias)))
    centred = logits - logits.mean(axis=1, keepdims=True)
    scores = centred + centred @ np.asarray(weight).T + bias
    return logits, (scores + rng.gumbel(size=scores.shape)).argmax(axis=1), log_softmax(scores, 1)


@both
@both_inputs
@pytest.mark.parametrize("masks", [False, True], ids=["whole rows", "masked rows"])
@pytest.mark.parametrize("ridge", [0.1, 1.0, 30.0])
def test_optimum_is_that_of_the_objective_written_out(method, inputs, masks, ridge):
    rows, classes = 60, 3
    logits, labels, _ = drawn(rows, np.diag([0.3, 0, -0.4]), np.array([0.5, 0, 0]), seed=1)
    masked = np.zeros(logits.shape, dtype=bool)
    if masks:  # in a third of the rows, a class that is not the label
        some = np.arange(0, rows, 3)
        masked[some, (labels[some] + 1 + some % 2) % classes] = True
    logits[masked] = -np.inf
    calibrator = fitted(method, logits, labels, ridge=ridge, inputs=inputs)
    beta = TemperatureScaling().fit(logits, labels).beta_
    scaled = inputs_of(inputs, logits, beta)

    def objective(vector):
        v, b = vector[:classes], vector[classes : 2 * classes]
        matrix = np.zeros((classes, classes))
        matrix[~np.eye(classes, dtype=bool)] = vector[2 * classes :]
        scores = scaled * (1 + v) + scaled @ matrix.T + b
        scores[masked] = -np.inf
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
    # What comes out is the map written out, of these rows and of others with other masks.
    others = np.vstack([logits, [[1.0, -np.inf, 2.0], [-np.inf, -np.inf, 2.0], [30.0, 0.0, -9.0]]])
    x = inputs_of(inputs, others, beta)
    square = np.diag(change) if change.ndim == 1 else change
    scores = np.where(np.isfinite(others), x + x @ square.T + bias, -np.inf)
    probs = np.exp(log_softmax(scores, axis=1))
    np.testing.assert_allclose(calibrator.predict_proba(others), probs, rtol=1e-9)
    assert (calibrator.predict_proba(others)[~np.isfinite(others)] == 0).all()


@both
def test_a_known_map_is_recovered(method):
    weight = np.diag([0.4, 0.0, -0.3, 0.0])
    if method == "sms":
        weight = weight + 0.3 * np.eye(4)[[1, 2, 3, 0]]
    logits, labels, truth = drawn(30_000, weight, np.array([0.5, 0, 0, -0.5]))
    probs = fitted(method, logits, labels, inputs="centred").predict_proba(logits)
    base = fitted("temperature", logits, labels).predict_proba(logits)
    assert np.abs(base - np.exp(truth)).mean() > 0.02
    assert np.abs(probs - np.exp(truth)).mean() < 0.006


@both
def test_few_rows_beside_classes_are_temperature_scaling(method):
    rng = np.random.default_rng(2)
    logits, labels = rng.normal(size=(20, 60)), rng.integers(60, size=20)
    probs = fitted(method, logits, labels, inputs="centred").predict_proba(logits)
    base = fitted("temperature", logits, labels).predict_proba(logits)
    np.testing.assert_allclose(probs, base, rtol=0.02)
    for inputs in ("centred", "log-probabilities"):
        tight = fitted(method, logits, labels, ridge=1e9, inputs=inputs).predict_proba(logits)
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


@both_inputs
@pytest.mark.parametrize("method", ["svs", "vector"])
def test_a_class_that_every_row_masks_is_as_if_it_were_not_there(method, inputs):
    logits, labels, _ = drawn(300, np.diag([0.3, 0, -0.4]), np.array([0.5, 0, 0]), seed=4)
    wider = np.insert(logits, 1, -np.inf, axis=1)
    # The ridge of svs grows with the classes.
    ridge = 4 / 3 if method == "svs" else 1.0
    plain = fitted(method, logits, labels, ridge=ridge, inputs=inputs)
    masked = fitted(method, wider, labels + (labels > 0), inputs=inputs)
    probs = masked.predict_proba(wider)
    np.testing.assert_array_equal(probs[:, 1], 0)
    np.testing.assert_allclose(probs[:, [0, 2, 3]], plain.predict_proba(logits), atol=1e-6)


def test_svs_reads_log_probabilities_unless_told():
    logits, labels, _ = drawn(200, np.diag([0.3, 0, -0.4]), np.array([0.5, 0, 0]), seed=4)
    for method, usual in (("svs", {}), ("vector", {"guard": False})):
        own = fitted(method, logits, labels, **usual).predict_proba(logits)
        told, other = (
            fitted(method, logits, labels, inputs=inputs, **usual).predict_proba(logits)
            for inputs in ("log-probabilities", "centred")
        )
        np.testing.assert_array_equal(own, told)
        assert np.abs(told - other).max() > 1e-3
    behind = fitted("svs-top-rest", logits, labels)
    assert behind.parts()["svs_"].get_params()["inputs"] == "log-probabilities"


@both
def test_warnings_are_named(method, labelled_logits):
    logits, labels = labelled_logits(60, 4)
    with pytest.warns(BoundaryWarning):
        make_calibrator(method).fit(logits, logits.argmax(axis=1))
    with pytest.warns(NotIdentifiedWarning):
        make_calibrator(method).fit(np.zeros_like(logits), labels)
    with pytest.warns(ConvergenceWarning, match="stopped after 1 steps"):
        make_calibrator(method, max_iterations=1).fit(logits, labels)


@pytest.mark.parametrize(
    "arguments", [{"ridge": 0}, {"ridge": -1}, {"max_iterations": 0}, {"inputs": "logits"}]
)
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


@pytest.mark.parametrize("inputs", ["log-probabilities", "centred"])
def test_sms_takes_the_inputs_that_held_out_rows_speak_for(inputs, tmp_path):
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=2.0, size=(600, 5))
    scores = inputs_of(inputs, logits, 1.0) * (1 + np.array([0.0, 0.0, 0.0, 0.6, -0.6]))
    labels = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
    chosen = StructuredMatrixScaling().fit(logits, labels)
    assert chosen.x_is == inputs
    probs = chosen.predict_proba(logits)
    named = StructuredMatrixScaling(inputs=inputs).fit(logits, labels)
    np.testing.assert_array_equal(named.predict_proba(logits), probs)
    settled = StructuredMatrixScaling().settled(Predictions.from_logits(logits, labels))
    assert settled.inputs == inputs
    chosen.save(tmp_path / "sms.safetensors")
    loaded = load(tmp_path / "sms.safetensors")
    np.testing.assert_array_equal(loaded.predict_proba(logits), probs)


@pytest.mark.parametrize("inputs", ["likelier", "centred"])
def test_sms_keeps_copies_of_a_row_together_if_it_holds_rows_out(inputs):
    rows = load_sample("test").take(slice(60))
    found = StructuredMatrixScaling(inputs=inputs).fit(
        np.repeat(rows.scores, 2, axis=0), np.repeat(rows.labels, 2)
    )
    noted = any("copies of a row are held out together" in n for n in found.fit_report_.notes)
    assert noted == (inputs == "likelier")
