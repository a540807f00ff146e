"""Logit clipping against a plain search; consistency against drawn noise and known integrals."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.special import ndtr
from scipy.stats import norm
from vote_integrals import direct_shares, share_of, shares

from calibrant.core.errors import (
    BoundaryWarning,
    CalibrationWarning,
    InputError,
    NotIdentifiedWarning,
)
from calibrant.metrics.binned import binned_gap, binned_gaps, expected_calibration_error
from calibrant.metrics.proper import negative_log_likelihood
from calibrant.posthoc.noise import GUMBEL_DEVIATION, ConsistencyCalibration
from calibrant.posthoc.temperature.logit_clipping import LogitClipping, clipped_rows
from calibrant.posthoc.temperature.scaling import TemperatureScaling
from calibrant.predictions.rows import softmax


def fitted(calibrator, logits, labels):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        return calibrator.fit(logits, labels)


def centred(logits):
    return logits - logits.mean(axis=1, keepdims=True)


@settings(max_examples=50)
@given(st.integers(0, 10_000), st.integers(1, 20), st.booleans())
def test_quick_ece_is_the_ece(seed, n_bins, edges):
    rng = np.random.default_rng(seed)
    confidence, correct = rng.random((3, 50)), (rng.random((3, 50)) < 0.7).astype(float)
    if edges:
        confidence = rng.integers(0, n_bins + 1, size=(3, 50)) / n_bins
    # Two classes, of which the first is said with the confidence, right or not.
    for i, value in enumerate(binned_gaps(confidence, correct, n_bins)):
        cell = np.clip(np.ceil(confidence[i] * n_bins - 1e-12) - 1, 0, n_bins - 1)
        plain = sum(abs((confidence[i] - correct[i])[cell == b].sum()) / 50 for b in range(n_bins))
        np.testing.assert_allclose(value, plain, atol=1e-12)
        assert binned_gap(confidence[i], correct[i], n_bins) == value


# --- logit clipping


@pytest.mark.parametrize("criterion", ["ece", "nll"])
@pytest.mark.parametrize("kept", [0.0, 0.95, 0.999])
def test_the_clip_is_that_of_a_plain_search(criterion, kept, labelled_logits):
    logits, labels = clipped_wants(600)
    calibrator = LogitClipping(criterion=criterion, candidates=40, accuracy_kept=kept)
    calibrator.fit(logits, labels)
    z = centred(logits)
    grid = np.geomspace(np.abs(z).max(), np.quantile(z, 0.8), 40)
    scores, betas = [], []
    for clip in grid:
        clipped = np.clip(z, -clip, clip)
        betas.append(1.0)
        if criterion == "nll":
            betas[-1] = minimize_scalar(
                lambda beta, z=clipped: negative_log_likelihood(softmax(z, beta), labels),
                bounds=(1e-3, 10),
                method="bounded",
                options={"xatol": 1e-8},
            ).x
        probs = softmax(clipped, betas[-1])
        tied = clipped == clipped.max(axis=1, keepdims=True)
        right = tied[np.arange(600), labels] / tied.sum(axis=1)
        edges = np.ceil(probs.max(axis=1) * 15)
        gaps = [(probs.max(axis=1) - right)[edges == b].sum() for b in range(1, 16)]
        ece, nll = np.abs(gaps).sum() / 600, negative_log_likelihood(probs, labels)
        start = (z.argmax(axis=1) == labels).mean()
        allowed = clip == grid[0] or right.mean() > kept * start
        scores.append((ece if criterion == "ece" else nll) if allowed else np.inf)
    best = int(np.argmin(scores))
    assert calibrator.clip_ == pytest.approx(grid[best], rel=1e-12)
    assert calibrator.beta_ == pytest.approx(betas[best], rel=1e-5)
    assert calibrator.clip_ < grid[0]
    np.testing.assert_allclose(calibrator.fit_report_.value, min(scores), atol=1e-9)
    clipped = np.clip(z, -calibrator.clip_, calibrator.clip_)
    wanted = softmax(clipped, calibrator.beta_)
    np.testing.assert_allclose(calibrator.predict_proba(logits), wanted, atol=1e-12)


def clipped_wants(rows: int, seed: int = 0):
    """Logits whose truth is what clipping and a temperature make of them."""
    rng = np.random.default_rng(seed)
    logits = centred(5 * rng.standard_t(3, size=(rows, 5)))
    return logits, (np.clip(logits, -6, 6) / 3 + rng.gumbel(size=logits.shape)).argmax(axis=1)


def test_nothing_is_clipped_where_a_temperature_is_all_that_it_takes(labelled_logits):
    clipped = 0
    for seed in range(10):
        logits, labels = labelled_logits(500, 5, temperature=3.0, seed=seed)
        calibrator = fitted(LogitClipping(), logits, labels)
        clipped += calibrator.clip_ > 0
        if calibrator.clip_ == 0:
            single = TemperatureScaling().fit(logits, labels).predict_proba(10 * logits)
            np.testing.assert_allclose(calibrator.predict_proba(10 * logits), single, atol=1e-12)
            assert any("nothing is clipped" in note for note in calibrator.fit_report_.notes)
    assert clipped <= 4


def test_ties_count_by_their_share():
    logits = np.array([[5.0, 4.0, 0.0, 0.0], [3.0, 1.0, 0.0, 0.0]])
    confidence, correct = clipped_rows(logits, np.array([1, 1]), 2.0)
    top = np.exp(2) / np.array([2 * np.exp(2) + 2, np.exp(2) + np.exp(1) + 2])
    np.testing.assert_allclose(confidence, top)
    np.testing.assert_allclose(correct, [0.5, 0.0])


@pytest.mark.parametrize("criterion", ["ece", "nll"])
def test_confidence_is_bounded_and_masks_stay(criterion):
    logits, labels = clipped_wants(600)
    calibrator = fitted(LogitClipping(criterion=criterion), logits, labels)
    sure = np.array([[1e6, 0.0, 0.0, 0.0, 0.0], [1e6, 0.0, -np.inf, 0.0, 0.0]])
    probs = calibrator.predict_proba(sure)
    bound = 1 / (1 + 4 * np.exp(-2 * calibrator.clip_ * calibrator.beta_))
    np.testing.assert_allclose(probs[0, 0], bound)
    assert probs[1, 2] == 0
    scaled = fitted(LogitClipping(criterion=criterion), 100 * logits, labels)
    np.testing.assert_allclose(scaled.clip_, 100 * calibrator.clip_, rtol=0.5)


def test_constant_logits_are_not_clipped():
    with pytest.warns(NotIdentifiedWarning, match="logits are constant"):
        calibrator = LogitClipping(criterion="ece").fit(np.ones((4, 3)), [0, 1, 2, 0])
    np.testing.assert_allclose(calibrator.predict_proba(np.ones((1, 3))), 1 / 3)


# --- consistency


def test_shares_are_those_of_drawn_noise():
    rng = np.random.default_rng(0)
    logits = np.array([[0.0, 1.0, 2.5, -1.0], [0.3, 0.2, 0.1, 0.0], [9.0, 0.0, 0.0, 8.0]])
    for noise in (0.5, 1.5, 6.0):
        shaken = logits + noise * rng.normal(size=(200_000, 1, 4))
        votes = np.stack([(shaken.argmax(axis=2) == k).mean(axis=0) for k in range(4)], axis=1)
        np.testing.assert_allclose(shares(logits, noise), votes, atol=0.005)


def test_two_classes_are_a_probit():
    logits = np.array([[0.0, gap] for gap in (0.0, 0.1, 1.0, 4.0, 8.0)])
    wanted = ndtr(logits[:, 1] / (0.8 * np.sqrt(2)))
    np.testing.assert_allclose(shares(logits, 0.8)[:, 1], wanted, atol=1e-9)


@pytest.mark.parametrize("classes", [3, 50, 1000])
def test_shares_are_the_integral(classes):
    logits = np.random.default_rng(classes).normal(size=(1, classes))
    found = shares(logits, 0.7)[0]
    gaps = (logits.max() - logits[0]) / 0.7
    top = int(logits.argmax())

    def integrand(t):
        return norm.pdf(t) * np.prod(ndtr(t + np.delete(gaps, top)))

    wanted = quad(integrand, -8, 9, epsabs=1e-12, limit=200)[0]
    np.testing.assert_allclose(found[top], wanted, rtol=1e-7)


def test_one_class_of_each_row_is_that_of_all():
    logits = np.random.default_rng(4).normal(scale=2, size=(60, 7))
    logits[:10, 3] = -np.inf
    # The predicted class and another that isn't masked: the largest shares and smaller ones.
    for classes in (logits.argmax(axis=1), np.where(logits[:, 0] == logits.max(axis=1), 1, 0)):
        wanted = shares(logits, 0.7)[np.arange(60), classes]
        np.testing.assert_allclose(share_of(logits, classes, 0.7), wanted, rtol=1e-6)


def test_ties_masks_and_far_classes():
    found = shares(np.array([[1.0, 1.0, -np.inf, -1e9]]), 1.0)[0]
    np.testing.assert_allclose(found, [0.5, 0.5, 0, 0], atol=1e-12)
    np.testing.assert_allclose(shares(np.zeros((1, 7)), 3.0), 1 / 7)


@pytest.mark.parametrize("criterion", ["ece", "nll"])
def test_the_noise_found_is_about_the_best(criterion, labelled_logits):
    logits, labels = labelled_logits(400, 4)
    calibrator = fitted(ConsistencyCalibration(criterion=criterion), logits, labels)
    near = GUMBEL_DEVIATION * TemperatureScaling().fit(logits, labels).temperature_
    scores = []
    for noise in near * np.geomspace(1 / 8, 8, 60):
        probs = direct_shares(logits, noise, 0.25) * 400 / 401 + 1 / 4 / 401
        nll = negative_log_likelihood(probs, labels)
        ece = expected_calibration_error(probs, labels)
        scores.append(ece if criterion == "ece" else nll)
    # A step function may have a narrow notch that one grid hits and another misses.
    slack = 1e-4 if criterion == "nll" else 0.01
    assert calibrator.fit_report_.value <= min(scores) + slack
    assert 0.5 * near < calibrator.noise_ < 2 * near


def test_no_probability_is_zero_and_scale_does_not_matter(labelled_logits):
    logits, labels = labelled_logits(300, 5)
    calibrator = fitted(ConsistencyCalibration(), logits, labels)
    far = np.array([[1e4, 0.0, 1.0, -1e4, 5.0]])
    np.testing.assert_allclose(calibrator.predict_proba(far)[0, 1:], 1 / 301 / 5, rtol=1e-6)
    scaled = fitted(ConsistencyCalibration(), 100 * logits, labels)
    np.testing.assert_allclose(
        scaled.predict_proba(100 * logits), calibrator.predict_proba(logits), atol=1e-6
    )


def test_rows_that_say_nothing_take_the_noise_like_their_temperature(labelled_logits):
    logits, labels = labelled_logits(60, 4)
    with pytest.warns(BoundaryWarning):
        sure = ConsistencyCalibration().fit(logits, logits.argmax(axis=1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BoundaryWarning)
        base = TemperatureScaling().fit(logits, logits.argmax(axis=1))
    np.testing.assert_allclose(sure.noise_, GUMBEL_DEVIATION * base.temperature_)
    with pytest.warns(NotIdentifiedWarning):
        ConsistencyCalibration().fit(np.zeros_like(logits), labels)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (LogitClipping, {"criterion": "brier"}),
        (LogitClipping, {"n_bins": 0}),
        (LogitClipping, {"candidates": 1}),
        (LogitClipping, {"accuracy_kept": 1.0}),
        (ConsistencyCalibration, {"criterion": "brier"}),
        (ConsistencyCalibration, {"n_bins": 0}),
    ],
)
def test_arguments_out_of_range(kind, arguments, overconfident):
    with pytest.raises(InputError, match=next(iter(arguments))):
        kind(**arguments).fit(*overconfident)
