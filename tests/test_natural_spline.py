"""The natural spline of log odds: against quadrature, SciPy's optimiser and the laws of splines."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.interpolate import CubicSpline
from scipy.optimize import minimize

import calibrant as cb
from calibrant.core.errors import BoundaryWarning
from calibrant.posthoc.fitting.smooth_logistic import fit_logistic
from calibrant.posthoc.natural_spline import NaturalSpline, bending, natural_basis, spread_knots

knots_of = st.lists(st.integers(-40, 40), min_size=3, max_size=8, unique=True).map(
    lambda values: np.sort(np.array(values) / 7.0)
)


def drawn(n: int, seed: int, bend: float = 1.0):
    """Log odds, and outcomes whose true log odds are 2 x above 0 and, for bend 1, x / 2 below."""
    rng = np.random.default_rng(seed)
    x = rng.normal(scale=2, size=n)
    truth = np.where(x > 0, 2 * x, (2 - 1.5 * bend) * x)
    return x, (rng.random(n) < 1 / (1 + np.exp(-truth))).astype(int)


def fitted(x, labels, **arguments) -> NaturalSpline:
    rows = cb.Predictions.from_binary(x, labels, kind="logit")
    return NaturalSpline(**arguments).fit_predictions(rows)


def log_odds_of(calibrator: NaturalSpline, x):
    probs = calibrator.predict_proba(np.stack([np.zeros_like(x), x], axis=1))
    return np.log(probs[:, 1]) - np.log(probs[:, 0])


@given(knots_of, st.integers(0, 10**6))
def test_the_penalty_is_the_integral_of_the_squared_second_derivative(knots, seed) -> None:
    heights = np.random.default_rng(seed).normal(size=len(knots))
    unit = (knots[-1] - knots[0]) / (len(knots) - 1)
    spline = CubicSpline(knots / unit, heights, bc_type="natural")
    pieces = zip(knots[:-1] / unit, knots[1:] / unit, strict=True)
    integral = sum(quad(lambda t: float(spline(t, 2)) ** 2, *ends)[0] for ends in pieces)
    penalty = bending(knots)
    assert heights @ penalty.rough @ heights == pytest.approx(integral, rel=1e-6, abs=1e-9)
    # A line costs nothing, and the other penalty sees nothing but lines.
    line = 2 * knots - 1
    assert line @ penalty.rough @ line == pytest.approx(0, abs=1e-8 * (1 + line @ line))
    assert line @ penalty.plain @ line == pytest.approx(line @ line)
    np.testing.assert_allclose(penalty.rough @ penalty.plain, 0, atol=1e-7 * penalty.rough.max())


def test_a_penalised_fit_is_the_one_that_a_general_optimiser_finds() -> None:
    x, labels = drawn(400, 1)
    knots = spread_knots(x, 6, None)
    strengths = (3.0, 0.5)
    found = fit_logistic(
        natural_basis(knots, x), x, labels.astype(float), bending(knots), strengths
    )
    at = np.linspace(knots[0], knots[-1], 4001)
    unit = (knots[-1] - knots[0]) / (len(knots) - 1)
    orthonormal = np.linalg.qr(np.stack([np.ones(6), knots], axis=1))[0]

    def objective(heights):  # written out: SciPy's splines, a fine grid for the integral
        spline = CubicSpline(knots, heights, bc_type="natural")
        eta = x + spline(x)
        loss = np.logaddexp(0, eta).sum() - eta @ labels
        bends = np.trapezoid(spline(at, 2) ** 2, at) * unit**3
        return (
            loss
            + (strengths[0] * bends + strengths[1] * ((orthonormal.T @ heights) ** 2).sum()) / 2
        )

    best = minimize(objective, np.zeros(6), method="BFGS", options={"gtol": 1e-7})
    np.testing.assert_allclose(found.weights, best.x, atol=2e-4)


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(2, 20))
def test_the_map_is_a_natural_spline(seed, knots) -> None:
    x, labels = drawn(300, seed)
    calibrator = fitted(x, labels, knots=knots)
    edges = calibrator.knots_
    heights = calibrator.cubics_[:, 0]
    last = log_odds_of(calibrator, edges[-1:])
    spline = CubicSpline(edges, np.append(heights, last), bc_type="natural")
    inside = np.linspace(edges[0], edges[-1], 50)
    np.testing.assert_allclose(log_odds_of(calibrator, inside), spline(inside), atol=1e-8)
    for end, outwards in ((edges[0], -1.0), (edges[-1], 1.0)):
        beyond = end + outwards * np.array([0.0, 1.0, 2.0])
        line = spline(end) + spline(end, 1) * (beyond - end)
        kept = np.abs(line) < 25  # 1 - p would be rounded
        np.testing.assert_allclose(
            log_odds_of(calibrator, beyond)[kept], line[kept], rtol=1e-4, atol=1e-6
        )


def test_it_finds_a_bend_and_leaves_a_line_alone() -> None:
    new, outcomes = drawn(40_000, 3)
    rows = cb.Predictions.from_binary(new, outcomes, kind="logit")

    def nll(method, bend):
        x, labels = drawn(3_000, 2, bend)
        fit = cb.Predictions.from_binary(x, labels, kind="logit")
        test = rows if bend else cb.Predictions.from_binary(*drawn(40_000, 3, 0.0), kind="logit")
        after = cb.make_calibrator(method).fit_predictions(fit).apply_predictions(test)
        return cb.metrics.negative_log_likelihood(after.probs, test.labels)

    assert nll("natural-spline", 1.0) < nll("affine", 1.0) - 0.005
    assert abs(nll("natural-spline", 0.0) - nll("affine", 0.0)) < 0.0005


def test_a_row_of_weight_w_counts_as_w_rows() -> None:
    x, labels = drawn(300, 5)
    weights = np.random.default_rng(0).integers(1, 4, 300)
    weighed = NaturalSpline().fit(x, labels, kind="logits", sample_weight=weights)
    repeated = NaturalSpline().fit(np.repeat(x, weights), np.repeat(labels, weights), kind="logits")
    np.testing.assert_allclose(weighed.knots_, repeated.knots_)
    np.testing.assert_allclose(weighed.cubics_, repeated.cubics_, atol=1e-6)


def test_which_class_is_called_1_makes_no_difference() -> None:
    x, labels = drawn(500, 6)
    new = np.linspace(-5, 5, 21)
    mirrored = log_odds_of(fitted(-x, 1 - labels), -new)
    np.testing.assert_allclose(log_odds_of(fitted(x, labels), new), -mirrored, atol=1e-5)


def test_rows_that_a_threshold_parts_leave_it_a_line() -> None:
    x = np.array([-3.0, -2, -1, 1, 2, 3])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        calibrator = fitted(x, (x > 0).astype(int))
    assert [warning.category for warning in caught] == [BoundaryWarning]
    np.testing.assert_allclose(calibrator.cubics_[:, 2:], 0, atol=1e-12)
    np.testing.assert_allclose(
        calibrator.predict_proba([[0, 9.0], [0, -9.0]]).max(axis=1) < 1, True
    )
