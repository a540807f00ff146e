"""Parameterised temperature scaling: gradients, its optimum's neighbours, what it must keep."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from calibrant.core.errors import (
    BoundaryWarning,
    CalibrationWarning,
    InputError,
    NotIdentifiedWarning,
)
from calibrant.metrics.proper import negative_log_likelihood
from calibrant.posthoc.temperature.parameterised import LayeredNetwork, ParameterisedTemperature
from calibrant.posthoc.temperature.scaling import TemperatureScaling
from calibrant.posthoc.temperature.smart.fitting import Penalised, brier, fit_network
from calibrant.predictions.rows import softmax, summarize


def fitted(logits, labels, **arguments) -> ParameterisedTemperature:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        return ParameterisedTemperature(**arguments).fit(logits, labels)


def rows_of_two_sharpnesses(rows: int, classes: int = 6, seed: int = 0):
    """Logits that want T = 1 where the top class stands alone, and T = 4 where two compete."""
    rng = np.random.default_rng(seed)
    honest = rng.normal(size=(rows, classes))
    rival = rng.random(rows) < 0.5
    honest[:, 0] += 2
    honest[rival, 1] = honest[rival, 0]
    labels = (honest + rng.gumbel(size=honest.shape)).argmax(axis=1)
    return honest * np.where(rival, 4.0, 1.0)[:, None], labels


def test_the_networks_gradient_and_its_size():
    rng = np.random.default_rng(0)
    inputs, direction = rng.normal(size=(30, 10)), rng.normal(size=30)
    start = LayeredNetwork.constant((10, 5, 5, 1), rng)
    assert len(start.weights) == 91  # the paper's
    np.testing.assert_allclose(start.forward(inputs)[0], 1)
    network = LayeredNetwork(start.weights + rng.normal(scale=0.2, size=91), start.sizes)
    _, tape = network.forward(inputs)
    gradient = network.backward(tape, direction)
    for i, step in enumerate(1e-6 * np.eye(91)):
        up, down = (
            direction @ LayeredNetwork(network.weights + s * step, start.sizes).forward(inputs)[0]
            for s in (1, -1)
        )
        np.testing.assert_allclose(gradient[i], (up - down) / 2e-6, atol=1e-6)
    seen, start = inputs[0], 0
    for read, given in ((10, 5), (5, 5), (5, 1)):
        kernel, bias = np.split(network.weights[start : start + (read + 1) * given], [read * given])
        raw = kernel.reshape(given, read) @ seen + bias
        seen, start = np.maximum(raw, 0), start + (read + 1) * given
    np.testing.assert_allclose(network.forward(inputs)[0][0], np.log1p(np.exp(raw[0])) + 0.1)


def test_objective_is_the_squared_error_with_decay(labelled_logits):
    logits, labels = labelled_logits(200, 5)
    found = fitted(logits, labels, weight_decay=0.7, guard=False)
    probs = found.predict_proba(logits)
    error = ((probs - np.eye(5)[labels]) ** 2).sum(axis=1).mean()
    network = LayeredNetwork(found.network_, (5, 5, 5, 1))
    decay = network.kernels() @ network.weights**2
    assert network.kernels().sum() == 5 * 5 + 5 * 5 + 5
    np.testing.assert_allclose(found.fit_report_.value, error + 0.7 / 200 * decay, rtol=1e-9)
    long = fitted(logits, labels, weight_decay=0.7, max_iterations=3000, guard=False)
    assert long.fit_report_.converged
    assert long.fit_report_.value <= found.fit_report_.value + 1e-9


def test_restarts_keep_the_best(labelled_logits):
    logits, labels = rows_of_two_sharpnesses(300)
    single = TemperatureScaling().fit(logits, labels).beta_
    rows = summarize(logits, labels, curve="dense")
    many = fitted(logits, labels, restarts=4, weight_decay=1.0, guard=False)
    one = fitted(logits, labels, restarts=1, weight_decay=1.0, guard=False)
    assert many.fit_report_.value <= one.fit_report_.value
    values = []
    rng = np.random.default_rng(0)
    inputs = np.clip(
        (many._largest(logits, many.reference_) - many.mean_) / many.deviation_,
        many.low_,
        many.high_,
    )
    for _ in range(4):
        start = LayeredNetwork.constant((6, 5, 5, 1), rng)
        loss = Penalised(rows, single, brier, 0.0, 0.0)
        values.append(fit_network(start, inputs, loss, 100, start.kernels() / 300).value)
    assert np.ptp(values) > 0
    np.testing.assert_allclose(many.fit_report_.value, min(values), rtol=1e-3)


def test_two_sharpnesses_are_found():
    logits, labels = rows_of_two_sharpnesses(3000)
    new, truth = rows_of_two_sharpnesses(3000, seed=1)
    ours = fitted(logits, labels).predict_proba(new)
    base = TemperatureScaling().fit(logits, labels).predict_proba(new)
    assert negative_log_likelihood(ours, truth) < negative_log_likelihood(base, truth) - 0.03


@pytest.mark.parametrize("classes", [2, 3, 10, 40])
def test_fewer_classes_than_inputs(classes, labelled_logits):
    logits, labels = labelled_logits(200, classes)
    found = fitted(logits, labels)
    assert len(found.network_) == 5 * min(classes, 10) + 41
    assert found.n_parameters in (1, len(found.network_))
    np.testing.assert_allclose(
        found.predict_proba(logits), softmax(logits, 1 / found.temperatures(logits))
    )
    assert len(fitted(logits, labels, inputs=2).network_) == 51


def test_scale_and_far_rows(labelled_logits):
    logits, labels = labelled_logits(300, 12)
    found = fitted(logits, labels)
    scaled = fitted(100 * logits, labels)
    np.testing.assert_allclose(
        scaled.predict_proba(100 * logits), found.predict_proba(logits), atol=1e-4
    )
    # Beyond the calibration rows the inputs are clamped, the logits are not: no ties come about.
    far = 1e3 * logits
    probs = found.predict_proba(far)
    np.testing.assert_array_equal(probs.argmax(axis=1), far.argmax(axis=1))
    seen = found.temperatures(far)
    assert seen.min() >= 0.1 / found.reference_
    assert np.isfinite(seen).all()


def test_strong_decay_is_temperature_scaling(labelled_logits):
    logits, labels = labelled_logits(500, 5)
    base = TemperatureScaling().fit(logits, labels)
    strong = fitted(logits, labels, weight_decay=1e6)
    # A constant network still takes the temperature of least squared error.
    spread = strong.temperatures(logits)
    np.testing.assert_allclose(spread, spread[0], rtol=1e-5)
    np.testing.assert_allclose(spread[0], base.temperature_, rtol=0.15)


def test_rows_that_say_nothing_leave_the_single_temperature(labelled_logits):
    logits, labels = labelled_logits(60, 4)
    for warning, scores, truth in (
        (BoundaryWarning, logits, logits.argmax(axis=1)),
        (NotIdentifiedWarning, np.zeros_like(logits), labels),
    ):
        with pytest.warns(warning):
            found = ParameterisedTemperature().fit(scores, truth)
        np.testing.assert_allclose(found.temperatures(logits), 1 / found.reference_)


@pytest.mark.parametrize(
    "arguments",
    [{"inputs": 0}, {"weight_decay": -1.0}, {"restarts": 0}, {"max_iterations": 0}, {"seed": -1}],
)
def test_arguments_out_of_range(arguments, overconfident):
    with pytest.raises(InputError, match=next(iter(arguments))):
        ParameterisedTemperature(**arguments).fit(*overconfident)


def test_better_than_one_temperature_on_a_published_network(real_predictions):
    val, test = (
        real_predictions(f"cifar10-resnet50-cross-entropy-{part}.npz") for part in ("val", "test")
    )
    ours = fitted(val.logits, val.labels).predict_proba(test.logits)
    base = TemperatureScaling().fit(val.logits, val.labels).predict_proba(test.logits)
    nll = [negative_log_likelihood(probs, test.labels) for probs in (ours, base)]
    assert nll[0] < nll[1] - 0.005
