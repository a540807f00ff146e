"""h-calibration: its error of windows against loops, its map by hand, and the law of order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import approx_fprime

import calibrant as cb
from calibrant.posthoc.h_calibration import SMOOTH, HCalibration, bends


def rows_of(n, classes, seed, masked=False):
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(n, classes))
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    if masked:
        logits[np.arange(n), (labels + 1) % classes] = -np.inf
    return logits, labels


def log_softmax(scores):
    gaps = scores - scores.max(axis=1, keepdims=True)
    return gaps - np.log(np.exp(gaps).sum(axis=1, keepdims=True))


def mapped_by_hand(logits, beta, slopes):
    starts = bends(len(slopes))
    knots = np.append(starts, starts[-1] + 1e3)
    heights = np.append(0.0, np.cumsum(np.diff(knots) * slopes))
    surprise = -log_softmax(beta * logits)
    surprise[~np.isfinite(surprise)] = 0
    scores = -np.interp(surprise, knots, heights)
    return np.exp(log_softmax(np.where(logits > -np.inf, scores, -np.inf)))


def error_by_hand(logits, labels, beta, slopes, window, n_bins, epsilon):
    before, after = np.exp(log_softmax(beta * logits)), mapped_by_hand(logits, beta, slopes)
    pairs = []
    for i in range(len(logits)):
        for k in range(logits.shape[1]):
            if logits[i, k] > -np.inf:
                true = float(labels[i] == k)
                pairs.append((before[i, k], true, after[i, k] - true))
    pairs.sort()
    count = max(1, round(len(pairs) / window))
    bins = {}
    for w in range(count):
        mine = [pair for place, pair in enumerate(pairs) if place * count // len(pairs) == w]
        middle = np.mean([pair[0] for pair in mine])
        over = max(abs(np.mean([pair[2] for pair in mine])) - epsilon, 0)
        cell = min(int(middle * n_bins), n_bins - 1)
        bins.setdefault(cell, []).append(np.sqrt(over**2 + SMOOTH**2) - SMOOTH)
    return float(np.mean([np.mean(errors) for errors in bins.values()]))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("epsilon", [0.0, 0.02])
def test_the_error_and_its_gradient_are_those_of_windows_one_by_one(masked, epsilon) -> None:
    logits, labels = rows_of(80, 5, 1, masked)
    method = HCalibration(segments=5, window=20, n_bins=7)
    method.beta_ = 0.6
    windows = method._windows(cb.Predictions.from_logits(logits, labels))
    slopes = np.array([1.3, 0.7, 1.0, 0.8, 1.2])
    value, gradient = windows.error(slopes, epsilon)

    def by_hand(slopes):
        return error_by_hand(logits, labels, 0.6, slopes, 20, 7, epsilon)

    assert value == pytest.approx(by_hand(slopes), rel=1e-9)
    np.testing.assert_allclose(gradient, approx_fprime(slopes, by_hand, 1e-8), atol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_the_map_is_the_broken_line_of_log_probabilities(masked) -> None:
    logits, labels = rows_of(300, 6, 2, masked)
    found = HCalibration().fit(logits, labels)
    wanted = mapped_by_hand(logits, found.beta_, found.slopes_)
    np.testing.assert_allclose(found.predict_proba(logits), wanted, atol=1e-12)


@settings(max_examples=60)
@given(
    hnp.arrays(np.float32, (4, 6), elements=st.floats(-60, 60, width=32)),
    hnp.arrays(float, 8, elements=st.floats(0.01, 5)),
    st.sampled_from([np.float32, np.float64]),
)
def test_no_two_classes_ever_change_places(logits, slopes, dtype) -> None:
    found = HCalibration().fit(*rows_of(30, 6, 0))
    found.slopes_, logits = slopes, logits.astype(dtype)
    order = np.argsort(logits, axis=1, kind="stable")
    probs = np.take_along_axis(found.predict_proba(logits), order, axis=1)
    assert (np.diff(probs, axis=1) >= 0).all()


def test_slopes_of_one_are_temperature_scaling_and_a_strong_ridge_gives_them() -> None:
    logits, labels = rows_of(300, 5, 3)
    found = HCalibration(ridge=1e9).fit(logits, labels)
    plain = cb.TemperatureScaling().fit(logits, labels)
    np.testing.assert_allclose(found.predict_proba(logits), plain.predict_proba(logits), atol=1e-6)


def test_it_undoes_a_bend_that_one_temperature_can_not() -> None:
    rng = np.random.default_rng(4)
    honest = log_softmax(2 * rng.normal(size=(8_000, 4)))
    labels = (honest + rng.gumbel(size=honest.shape)).argmax(axis=1)
    bent = np.where(honest > -2, honest, -2 + 4 * (honest + 2))  # too sure of what is unlikely
    fit, test = slice(0, 4_000), slice(4_000, None)
    errors = []
    for method in (cb.TemperatureScaling(), HCalibration()):
        probs = method.fit(bent[fit], labels[fit]).predict_proba(bent[test])
        errors.append(np.abs(probs - np.exp(honest[test])).mean())
    assert errors[1] < errors[0] / 2
