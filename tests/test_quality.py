"""How good the calibrators are: on the sample that ships, and on the larger real data if there."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest

from calibrant.core.arrays import FloatArray
from calibrant.core.errors import CalibrationWarning
from calibrant.evaluation.evaluate import evaluate
from calibrant.metrics.binned import adaptive_calibration_error, expected_calibration_error
from calibrant.metrics.proper import accuracy, negative_log_likelihood
from calibrant.posthoc.registry import METHODS, make_calibrator
from calibrant.predictions.predictions import Predictions
from calibrant.sample import load_sample

CIFAR_10 = "cifar10-resnet50-cross-entropy-{}.npz"
CIFAR_100 = "cifar100-wideresnet-16-4.npz"
Real = Callable[[str], Predictions]


def calibrated(method: str, fit: Predictions, test: Predictions, **arguments) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        calibrator = make_calibrator(method, **arguments).fit_predictions(fit)
    return calibrator.predict_proba(test.logits, test.features, kind="logits")


def errors(probs: np.ndarray, test: Predictions) -> tuple[float, float, float]:
    """Return ECE and AdaECE in percent, and the NLL."""
    return (
        100 * expected_calibration_error(probs, test.labels),
        100 * adaptive_calibration_error(probs, test.labels),
        negative_log_likelihood(probs, test.labels),
    )


def assert_same_classes(probs: np.ndarray, test: Predictions) -> None:
    np.testing.assert_array_equal(probs.argmax(axis=1), test.logits.argmax(axis=1))
    raw = calibrated("none", test, test)
    assert accuracy(probs, test.labels) == accuracy(raw, test.labels)


# --- the sample that ships


# Logit clipping has a test of its own: it can't do what a temperature does.
@pytest.mark.parametrize(
    "method", [name for name in METHODS if name not in ("none", "vector", "logit-clipping")]
)
def test_calibration_improves_on_the_sample(method):
    fit, test = load_sample("validation"), load_sample("test")
    raw, scaled = (errors(calibrated(m, fit, test), test) for m in ("none", "temperature"))
    probs = calibrated(method, fit, test)
    ece, adaece, nll = errors(probs, test)
    assert raw[0] > 6
    assert ece < 0.3 * raw[0]
    assert adaece < 0.3 * raw[1]
    # A few dozen steps cost some likelihood.
    assert raw[2] - nll > 0.75 * (raw[2] - scaled[2])
    if METHODS[method].keeps_prediction:
        # In float32, so that near ties do not hide a change of class.
        assert_same_classes(probs, test)


def test_logit_clipping_by_ece_improves_on_the_sample_but_less():
    fit, test = load_sample("validation"), load_sample("test")
    raw, scaled = (errors(calibrated(m, fit, test), test) for m in ("none", "temperature"))
    published = {"criterion": "ece", "accuracy_kept": 0.95}
    by_ece = errors(calibrated("logit-clipping", fit, test, **published), test)
    assert scaled[0] < by_ece[0] < 0.3 * raw[0]
    # What the binned error likes may cost likelihood, even compared to doing nothing.
    assert by_ece[2] > raw[2]


def test_logit_clipping_by_likelihood_is_temperature_scaling_on_the_sample():
    fit, test = load_sample("validation"), load_sample("test")
    clipping = make_calibrator("logit-clipping", criterion="nll").fit_predictions(fit)
    assert clipping.clip_ == 0
    wanted = calibrated("temperature", fit, test)
    np.testing.assert_allclose(clipping.predict_proba(test.logits), wanted, atol=1e-6)


def test_smart_is_better_than_one_temperature_on_the_sample():
    fit, test = load_sample("validation"), load_sample("test")
    one, many = (errors(calibrated(m, fit, test), test) for m in ("temperature", "smart"))
    assert many[0] < one[0]
    assert many[2] < 1.02 * one[2]


# --- published networks


def test_temperatures_of_published_networks(real_predictions: Real):
    val = real_predictions(CIFAR_10.format("val"))
    calibrator = make_calibrator("temperature").fit(val.logits, val.labels)
    np.testing.assert_allclose(calibrator.temperature_, 2.50, atol=0.01)
    fit, _ = real_predictions(CIFAR_100).split(5000, seed=0)
    calibrator = make_calibrator("temperature").fit(fit.logits, fit.labels)
    np.testing.assert_allclose(calibrator.temperature_, 1.11, atol=0.03)


def test_errors_of_temperature_scaling_are_the_known_ones(real_predictions: Real):
    val, test = (real_predictions(CIFAR_10.format(part)) for part in ("val", "test"))
    np.testing.assert_allclose(errors(calibrated("none", val, test), test)[0], 4.35, atol=0.01)
    np.testing.assert_allclose(
        errors(calibrated("temperature", val, test), test)[0], 1.37, atol=0.03
    )


def test_smart_on_cifar_10(real_predictions: Real):
    val, test = (real_predictions(CIFAR_10.format(part)) for part in ("val", "test"))
    reference = errors(calibrated("temperature", val, test), test)
    found = []
    for seed in range(5):
        probs = calibrated("smart", val, test, seed=seed)
        assert_same_classes(probs, test)
        found.append(errors(probs, test))
    ece, adaece, nll = np.mean(found, axis=0)
    assert ece <= 0.80
    assert adaece <= 1.0
    assert nll <= 1.02 * reference[2]


def test_smart_on_cifar_100(real_predictions: Real):
    whole = real_predictions(CIFAR_100)
    found, reference = [], []
    for seed in range(5):
        fit, test = whole.split(5000, seed=seed)
        probs = calibrated("smart", fit, test)
        assert_same_classes(probs, test)
        found.append(errors(probs, test))
        reference.append(errors(calibrated("temperature", fit, test), test))
    ece, _, nll = np.mean(found, axis=0)
    assert ece <= 1.6
    assert nll <= 1.02 * np.mean(reference, axis=0)[2]


# Reference values were computed apart, with one split of CIFAR-100 that isn't known here; splits
# differ by 0.2 points of ECE.
@pytest.mark.parametrize(
    ("name", "temperature", "raw", "scaled", "floor", "floor_95", "slack"),
    [
        (CIFAR_10, 2.498, 4.35, 1.37, 0.37, 0.56, 0.03),
        (CIFAR_100, 1.108, 5.64, 4.16, 1.31, 1.79, 0.25),
    ],
)
def test_reference_values_of_one_temperature(
    name, temperature, raw, scaled, floor, floor_95, slack, real_predictions: Real
):
    if name == CIFAR_10:
        sets = [(real_predictions(name.format("val")), real_predictions(name.format("test")))]
    else:
        sets = [real_predictions(name).split(5000, seed=seed) for seed in range(3)]
    found = []
    for fit, test in sets:
        calibrator = make_calibrator("temperature").fit(fit.logits, fit.labels)
        probs = calibrator.predict_proba(test.logits)
        ece = evaluate(Predictions.from_probs(probs, test.labels), metrics=["ece"])["ece"]
        before = errors(calibrated("none", fit, test), test)[0]
        found.append(
            [
                calibrator.temperature_,
                before,
                *(100 * np.array([ece.value, ece.floor, ece.floor_95])),
            ]
        )
    mean = np.mean(found, axis=0)
    np.testing.assert_allclose(mean[0], temperature, atol=slack / 20)
    np.testing.assert_allclose(mean[1:3], [raw, scaled], atol=slack)
    np.testing.assert_allclose(mean[3:], [floor, floor_95], atol=0.05)


# The published value of the first is .70, and 1.10 for CIFAR-100, where honest confidences show up
# to 1.79 in 95 % of cases: lower values say nothing.
@pytest.mark.parametrize(
    ("name", "charbonnier", "nll", "brier", "slack"),
    [(CIFAR_10, 0.90, 1.23, 0.72, 0.2), (CIFAR_100, 1.79, 3.08, 3.45, 0.35)],
)
def test_reference_values_of_smart_objectives(
    name, charbonnier, nll, brier, slack, real_predictions: Real
):
    if name == CIFAR_10:
        fit, test = (real_predictions(name.format(part)) for part in ("val", "test"))
    else:
        fit, test = real_predictions(name).split(5000, seed=1)

    def found(objective: str, seeds: int) -> FloatArray:
        # The objective alone, without the terms that this package adds.
        plain = {"likelihood_weight": 0, "shrinkage": 0}
        fits = [
            calibrated("smart", fit, test, objective=objective, seed=seed, **plain)
            for seed in range(seeds)
        ]
        return np.median([errors(fitted, test) for fitted in fits], axis=0)

    # The paper's has many optima: after 100 steps seeds end at 1.1 to 2.2 on CIFAR-100.
    ours, by_nll = found("charbonnier", 5), found("nll", 1)
    assert ours[0] < charbonnier
    np.testing.assert_allclose(by_nll[0], nll, atol=slack)
    np.testing.assert_allclose(found("brier", 1)[0], brier, atol=slack)
    # It buys a lower ECE with likelihood.
    assert ours[0] < by_nll[0]
    assert ours[2] > by_nll[2]


@pytest.mark.parametrize("method", ["temperature", "smart"])
def test_fifty_rows_do_no_harm(method, real_predictions: Real):
    val, test = (real_predictions(CIFAR_10.format(part)) for part in ("val", "test"))
    sets = [(val, test), real_predictions(CIFAR_100).split(5000, seed=0)]
    for fit, other in sets:
        before = errors(calibrated("none", fit, other), other)[0]
        after = [
            errors(calibrated(method, fit.split(50, seed=seed)[0], other), other)[0]
            for seed in range(20)
        ]
        assert np.mean(after) <= before


@pytest.mark.parametrize(
    ("method", "rows", "most"),
    # ECE in percent: the published maps give 2.7, 1.3, .9 and 1.7 here on average over 40 draws.
    [
        ("histogram", 200, 2.4),
        ("histogram", 500, 1.25),
        ("histogram", 1000, 0.9),
        ("isotonic", 500, 1.5),
    ],
)
def test_few_rows_make_better_bins_than_the_published_ones(
    method, rows, most, real_predictions: Real
):
    fit, test = (real_predictions(CIFAR_10.format(split)) for split in ("val", "test"))
    found: list[tuple[float, float]] = []
    for seed in range(25):
        chosen = np.random.default_rng(seed).choice(fit.n, rows, replace=False)
        probs = calibrated(method, fit.take(chosen), test)
        gap = probs.max(axis=1).mean() - accuracy(probs, test.labels)
        found.append((100 * expected_calibration_error(probs, test.labels), 100 * gap))
    ece, gap = np.mean(found, axis=0)
    assert ece < most
    assert abs(gap) < 1
