"""Top-rest scaling: a known map comes back, the optimum is one, intervals say what they can."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import BSpline
from scipy.optimize import minimize

from calibrant.core.errors import (
    BoundaryWarning,
    CalibrationWarning,
    InputError,
    NotIdentifiedWarning,
)
from calibrant.posthoc.confidence.top_rest import TopRestScaling
from calibrant.posthoc.fitting.smooth_logistic import (
    PENALTY_GRID,
    Penalty,
    fit_by_evidence,
    fit_logistic,
    spline_basis,
    spline_knots,
)
from calibrant.posthoc.loading import load
from calibrant.posthoc.temperature.scaling import TemperatureScaling
from calibrant.predictions.rows import softmax


def fitted(logits, labels, **arguments) -> TopRestScaling:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        return TopRestScaling(**arguments).fit(logits, labels)


def drawn(rows: int, seed: int, classes: int = 8):
    """Logits, labels and the true confidence: honest for the rest, too high at middling margins."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=2.0, size=(rows, classes))
    probs = softmax(logits)
    top, order = probs.argmax(axis=1), np.sort(logits, axis=1)
    confidence = probs.max(axis=1)
    log_odds = np.log(confidence / (1 - confidence))
    bump = np.exp(-(((np.log(order[:, -1] - order[:, -2] + 1e-3) - 0.3) / 0.6) ** 2))
    truth = 1 / (1 + np.exp(-(0.8 * log_odds - 1.2 * bump)))
    index = np.arange(rows)
    probs[index, top] = 0
    probs *= ((1 - truth) / probs.sum(axis=1))[:, None]
    probs[index, top] = truth
    labels = (probs.cumsum(axis=1) > rng.random((rows, 1))).argmax(axis=1)
    return logits, labels, truth


def top_loss(calibrator, logits, labels) -> float:
    confidence = calibrator.predict_proba(logits).max(axis=1)
    right = logits.argmax(axis=1) == labels
    return float(-np.log(np.where(right, confidence, 1 - confidence)).mean())


def nll(calibrator, logits, labels) -> float:
    return float(-np.log(calibrator.predict_proba(logits)[np.arange(len(labels)), labels]).mean())


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=40), st.integers(1, 12))
def test_basis_is_that_of_scipy_and_constant_beyond(values, inner):
    x = np.array(values)
    knots = spline_knots(x, inner)
    wanted = BSpline.design_matrix(np.clip(x, knots[0], knots[-1]), knots, 3).toarray()
    np.testing.assert_allclose(spline_basis(x, knots), wanted, atol=1e-9)
    ends = spline_basis(np.array([knots[0] - 9, knots[0], knots[-1], knots[-1] + 9]), knots)
    np.testing.assert_array_equal(ends[0], ends[1])
    np.testing.assert_array_equal(ends[2], ends[3])
    np.testing.assert_allclose(ends.sum(axis=1), 1)


def regression(rows: int, seed: int):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=rows)
    columns = np.concatenate([x[:, None], spline_basis(x, spline_knots(x, 4))], axis=1)
    offset = 0.5 * x
    correct = (rng.random(rows) < 1 / (1 + np.exp(-offset - np.sin(2 * x)))).astype(float)
    return columns, offset, correct, Penalty.second_differences(columns.shape[1] - 1)


def test_newton_ends_at_the_optimum_of_scipy():
    columns, offset, correct, penalty = regression(80, 0)
    precision = penalty.at((3.0, 0.2))
    found = fit_logistic(columns, offset, correct, penalty, (3.0, 0.2))

    def loss(w):
        eta = offset + columns @ w
        return np.logaddexp(0, eta).sum() - correct @ eta + w @ precision @ w / 2

    brute = minimize(loss, np.zeros(columns.shape[1]), method="BFGS", options={"gtol": 1e-8})
    np.testing.assert_allclose(found.weights, brute.x, atol=1e-4)
    assert loss(found.weights) <= brute.fun + 1e-10
    # The posterior is the inverse of the second derivative, here by differences.
    step, size = 1e-3, len(found.weights)
    hessian = np.empty((size, size))
    for i in range(size):
        for j in range(size):
            a, b = step * np.eye(size)[i], step * np.eye(size)[j]
            w = found.weights
            hessian[i, j] = (
                loss(w + a + b) - loss(w + a - b) - loss(w - a + b) + loss(w - a - b)
            ) / (4 * step * step)
    np.testing.assert_allclose(found.covariance @ hessian, np.eye(size), atol=2e-3)


def test_penalty_sees_every_direction_once():
    penalty = Penalty.second_differences(9)
    np.testing.assert_allclose(penalty.rough @ penalty.plain, 0, atol=1e-12)
    assert np.linalg.matrix_rank(penalty.rough) == 7
    assert np.linalg.matrix_rank(penalty.plain) == 3


@pytest.mark.parametrize("rows", [30, 300, 3000])
def test_penalties_are_averaged_by_their_evidence(rows):
    columns, offset, correct, penalty = regression(rows, 1)
    found = fit_by_evidence(columns, offset, correct, penalty)
    fits = [
        fit_logistic(columns, offset, correct, penalty, (float(a), float(b)))
        for a in PENALTY_GRID
        for b in PENALTY_GRID
    ]
    best = max(fits, key=lambda fit: fit.log_evidence)
    assert found.strengths == best.strengths
    shares = np.exp([fit.log_evidence - best.log_evidence for fit in fits])
    shares /= shares.sum()
    mean = np.tensordot(shares, [fit.weights for fit in fits], 1)
    # The search leaves out places that hardly count.
    np.testing.assert_allclose(found.weights, mean, atol=0.02)
    second = np.tensordot(shares, [f.covariance + np.outer(f.weights, f.weights) for f in fits], 1)
    np.testing.assert_allclose(found.covariance, second - np.outer(mean, mean), atol=0.05)


def test_evidence_is_the_integral_of_the_likelihood():
    # One coefficient's worth of information: Laplace against quadrature along the slope.
    columns, offset, correct, _ = regression(200, 2)
    slope = columns[:, :1]
    penalty = Penalty(np.zeros((1, 1)), np.eye(1))
    found = fit_logistic(slope, offset, correct, penalty, (1.0, 4.0))
    grid = np.linspace(-4, 4, 4001)
    eta = offset[:, None] + slope * grid
    log_likelihood = (correct[:, None] * eta - np.logaddexp(0, eta)).sum(axis=0)
    prior = np.exp(-2 * grid**2) * np.sqrt(4 / (2 * np.pi))
    exact = np.log(np.trapezoid(np.exp(log_likelihood) * prior, grid))
    np.testing.assert_allclose(found.log_evidence, exact, atol=0.02)


def test_a_known_map_is_recovered():
    logits, labels, _ = drawn(20_000, 0)
    new, _, truth = drawn(4000, 1)
    errors = []
    for kind in (TemperatureScaling, TopRestScaling):
        confidence = kind().fit(logits, labels).predict_proba(new).max(axis=1)
        errors.append(float(np.sqrt(np.mean((confidence - truth) ** 2))))
    assert errors[0] > 0.08
    assert errors[1] < 0.015


def test_the_better_map_has_the_better_likelihood_on_new_rows():
    new, answers, _ = drawn(20_000, 50)
    gains = []
    for seed in range(8):
        logits, labels, _ = drawn(1000, seed)
        base = TemperatureScaling().fit(logits, labels)
        gains.append(nll(base, new, answers) - nll(fitted(logits, labels), new, answers))
    assert np.mean(gains) > 4 * np.std(gains, ddof=1) / np.sqrt(8)


@pytest.mark.parametrize("rows", [20, 50, 200, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_never_worse_than_temperature_on_the_rows_it_saw(rows, seed):
    logits, labels, _ = drawn(rows, seed)
    calibrator, base = fitted(logits, labels), TemperatureScaling().fit(logits, labels)
    assert calibrator.fit_report_.value <= top_loss(base, logits, labels) + 1e-9
    assert nll(calibrator, logits, labels) <= nll(base, logits, labels) + 1e-6


def test_a_large_penalty_is_temperature_scaling():
    logits, labels, _ = drawn(500, 3)
    base = TemperatureScaling().fit(logits, labels).predict_proba(logits)
    away = [
        np.abs(fitted(logits, labels, penalty=p).predict_proba(logits) - base).max()
        for p in (1.0, 100.0, 1e4, 1e12)
    ]
    assert away == sorted(away, reverse=True)
    assert away[0] > 0.01
    assert away[-1] < 1e-8


def test_rows_that_temperature_describes_stay_close_to_it(labelled_logits):
    gaps = []
    for seed in range(10):
        logits, labels = labelled_logits(300, 6, seed=seed)
        new, _ = labelled_logits(2000, 6, seed=99)
        base = TemperatureScaling().fit(logits, labels).predict_proba(new)
        gaps.append(np.abs(fitted(logits, labels).predict_proba(new) - base).max(axis=1).mean())
    assert np.mean(gaps) < 0.02


@settings(max_examples=20)
@given(st.integers(0, 1000), st.floats(1e-3, 1e3), st.floats(-50, 50))
def test_scale_and_origin_of_the_logits_do_not_matter(seed, scale, shift):
    logits, labels, _ = drawn(100, seed)
    plain = fitted(logits, labels).predict_proba(logits)
    moved = logits * scale + shift * scale
    np.testing.assert_allclose(fitted(moved, labels).predict_proba(moved), plain, atol=1e-5)


def test_other_classes_keep_their_proportions():
    logits, labels, _ = drawn(1000, 4)
    calibrator = fitted(logits, labels)
    base = softmax(logits, calibrator.beta_)
    probs, top = calibrator.predict_proba(logits), logits.argmax(axis=1)
    rest = np.arange(logits.shape[1]) != top[:, None]
    ratio = (probs / base)[rest].reshape(len(logits), -1)
    np.testing.assert_allclose(ratio, np.broadcast_to(ratio[:, :1], ratio.shape), rtol=2e-6)
    np.testing.assert_array_equal(probs.argmax(axis=1), top)


def test_confidence_is_raised_to_the_second_class_and_no_further():
    # Rows of small margin are always wrong, so the map wants them below their second class.
    rng = np.random.default_rng(5)
    logits = np.zeros((2000, 3))
    logits[:, 0], logits[:, 1] = rng.choice([0.2, 4.0], size=2000), 0.0
    logits[:, 2] = -3
    labels = np.where(logits[:, 0] < 1, 1, np.where(rng.random(2000) < 0.9, 0, 1))
    calibrator = fitted(logits, labels)
    probs = calibrator.predict_proba(np.array([[0.2, 0.0, -3.0], [4.0, 0.0, -3.0]]))
    np.testing.assert_allclose(probs[0, 0], probs[0, 1], rtol=1e-5)
    assert probs[0, 0] > probs[0, 1]
    assert probs[0, 2] < probs[0, 1]
    np.testing.assert_allclose(probs[1, 0], 0.9, atol=0.02)


@pytest.mark.parametrize(("rows", "least"), [(1000, 0.9), (5000, 0.92)])
def test_intervals_cover_the_true_confidence(rows, least):
    # Averaged over rows; a smooth is biased where the truth bends most, so a little short of 95 %.
    new, _, truth = drawn(1000, 77)
    covered, width = [], []
    for seed in range(12):
        logits, labels, _ = drawn(rows, seed)
        low, high = fitted(logits, labels).confidence_interval(new)
        covered.append(np.mean((low <= truth) & (truth <= high)))
        width.append(float(np.mean(high - low)))
    assert least < np.mean(covered) <= 1
    assert np.mean(width) < 5 / np.sqrt(rows)


def test_margins_beyond_any_exponent_are_certain(overconfident):
    calibrator = fitted(*overconfident)
    rows = np.array([[1e6, 0, 0, 0, 0], [3e4, 1, 2, 3, 4]])
    for dtype in (np.float32, np.float64):
        probs = calibrator.predict_proba(rows.astype(dtype))
        np.testing.assert_allclose(probs, np.eye(5)[[0, 0]], atol=1e-9)
        low, high = calibrator.confidence_interval(rows.astype(dtype))
        assert ((low > 0.9) & (high <= 1)).all()


def test_intervals_hold_the_confidence_and_nest(overconfident):
    calibrator = fitted(*overconfident)
    _, confidence = calibrator.predict_confidence(overconfident[0])
    low, high = calibrator.confidence_interval(overconfident[0], 0.8)
    wide_low, wide_high = calibrator.confidence_interval(overconfident[0], 0.99)
    assert ((low <= confidence) & (confidence <= high)).all()
    assert ((wide_low <= low) & (high <= wide_high)).all()
    assert ((wide_low >= 0) & (wide_high <= 1)).all()
    assert (high - low > 0).all()
    for level in (0, 1, -1, 95, float("nan")):
        with pytest.raises(InputError, match="level must lie between 0 and 1"):
            calibrator.confidence_interval(overconfident[0], level)


def test_interval_after_loading_and_with_masked_classes(tmp_path, overconfident):
    logits, labels = overconfident
    calibrator = fitted(logits, labels)
    calibrator.save(tmp_path / "a.safetensors")
    back = load(tmp_path / "a.safetensors")
    assert isinstance(back, TopRestScaling)
    masked = logits[:3].copy()
    masked[0, masked[0].argmin()] = -np.inf
    masked[1, np.arange(5) != masked[1].argmax()] = -np.inf
    for ours, theirs in zip(
        calibrator.confidence_interval(masked), back.confidence_interval(masked), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
        assert np.isfinite(ours).all()
    np.testing.assert_array_equal(calibrator.predict_proba(masked)[1].max(), 1.0)


def test_nothing_to_learn_is_temperature_scaling_with_a_word(labelled_logits):
    logits, _ = labelled_logits(60, 6)
    for labels, kind in (
        (logits.argmax(axis=1), BoundaryWarning),
        (logits.argmin(axis=1), NotIdentifiedWarning),
    ):
        with pytest.warns(kind):
            calibrator = TopRestScaling().fit(logits, labels)
        base = TemperatureScaling()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CalibrationWarning)
            base.fit(logits, labels)
        np.testing.assert_allclose(
            calibrator.predict_proba(logits), base.predict_proba(logits), atol=1e-9
        )
        assert any(kind.__name__ in note for note in calibrator.fit_report_.notes)
    second = np.argsort(logits, axis=1)[:, -2]
    with pytest.warns(NotIdentifiedWarning, match="are wrong"):
        TopRestScaling().fit(logits, second)


@pytest.mark.parametrize("arguments", [{"knots": 0}, {"penalty": -1}, {"penalty": float("nan")}])
def test_arguments_out_of_range(arguments, overconfident):
    with pytest.raises(InputError, match=next(iter(arguments))):
        TopRestScaling(**arguments).fit(*overconfident)
