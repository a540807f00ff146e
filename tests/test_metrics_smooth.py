"""Metrics without bins, against linear programs, quadrature, and sums over all pairs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.optimize import linprog, minimize

from calibrant.core.errors import BoundaryWarning, InputError, NotIdentifiedWarning
from calibrant.metrics.binned import logit
from calibrant.metrics.cox import calibration_in_the_large, calibration_slope_intercept
from calibrant.metrics.gaps import ks_error
from calibrant.metrics.resampling import draw_rows, resampled
from calibrant.metrics.smooth import (
    SMECE_CELLS,
    STEPS,
    CosineTransform,
    kde_ece,
    mmce,
    smce_of_curves,
    smece_of_curves,
    smooth_calibration_error,
    smooth_ece,
)
from calibrant.metrics.top_label import ResidualCurves, TopLabel
from calibrant.predictions.predictions import Predictions

Rows = tuple[NDArray[np.float64], NDArray[np.bool_]]


@st.composite
def rows(draw: st.DrawFn, most: int = 30) -> Rows:
    n = draw(st.integers(1, most))
    values = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1.0, 0.5, 0.25]))
    confidence = draw(st.lists(values, min_size=n, max_size=n))
    correct = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return np.array(confidence), np.array(correct)


def simulated(n: int, seed: int = 0, power: float = 2.0) -> Rows:
    rng = np.random.default_rng(seed)
    c = rng.beta(4, 1, n)
    return c, rng.random(n) < c**power


# --- smCE


def smce_by_linear_program(c: NDArray[np.float64], a: NDArray[np.bool_]) -> float:
    order = np.argsort(c)
    c, residual = c[order], (a - c)[order] / len(c)
    steps = np.diff(np.eye(len(c)), axis=0)
    found = linprog(
        -residual,
        A_ub=np.concatenate([steps, -steps]) if len(c) > 1 else None,
        b_ub=np.tile(np.diff(c), 2) if len(c) > 1 else None,
        bounds=(-1, 1),
        # The solver's own 1e-7 would let w jump between confidences that lie closer than that.
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    return -float(found.fun)


@given(rows())
@example((np.array([0.0, 0.5, 2.0**-24, 0.0]), np.array([False, False, False, True])))
@settings(max_examples=60)
def test_smce_is_the_linear_program(data: Rows):
    assert smooth_calibration_error(*data, kind="confidence") == pytest.approx(
        smce_by_linear_program(*data), abs=1e-9
    )


@pytest.mark.parametrize("seed", range(5))
def test_smce_is_the_linear_program_on_many_rows(seed: int):
    c, a = simulated(400, seed, power=1.0)
    c = np.round(c, 2) if seed % 2 else c
    assert smooth_calibration_error(c, a, kind="confidence") == pytest.approx(
        smce_by_linear_program(c, a), abs=1e-9
    )


def test_smce_on_cells_is_off_by_less_than_promised():
    c, a = simulated(2000)
    curves = TopLabel.sort(c, a).curves()
    for cells in (16, 256):
        off = abs(
            smce_of_curves(curves, cells)[0] - smooth_calibration_error(c, a, kind="confidence")
        )
        assert off <= np.abs(a - c).mean() / (2 * cells)


# --- smECE


def smece_by_quadrature(c: NDArray[np.float64], a: NDArray[np.bool_]) -> float:
    """Return the fixed point of the smoothed error, with the kernel's images spelt out."""
    residual = (c - a) / len(c)

    def smoothed(width: float) -> float:
        t = (np.arange(8192) + 0.5)[:, None] / 8192
        density = np.zeros(len(t))
        for i in range(-3, 4):
            for image in (2 * i + c, 2 * i - c):
                density += np.exp(-0.5 * ((t - image) / width) ** 2) @ residual
        return float(np.abs(density).mean() / (width * np.sqrt(2 * np.pi)))

    low, high = 0.0, 1.0
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if smoothed(middle) > middle else (low, middle)
    return smoothed(high)


@pytest.mark.parametrize(
    "data",
    [
        simulated(25),
        simulated(25, seed=1, power=1.0),
        (np.array([1.0] * 9 + [0.5]), np.array([True] * 7 + [False] * 3)),
        (np.array([0.0, 0.0, 1.0, 1.0, 0.7]), np.array([True, False, False, True, True])),
        (np.array([0.31, 0.64]), np.array([True, False])),
    ],
    ids=["many", "honest", "mass at 1", "mass at both ends", "two"],
)
def test_smece_is_the_fixed_point_by_quadrature(data: Rows):
    # Cells of 1 / 4096 move a row by at most an eighth of a thousandth.
    assert smooth_ece(*data, kind="confidence") == pytest.approx(
        smece_by_quadrature(*data), abs=5e-5
    )


def test_smece_on_the_middles_of_cells_is_exact():
    rng = np.random.default_rng(0)
    c = (rng.integers(0, 4096, 20) + 0.5) / 4096
    a = rng.random(20) < 0.6
    assert smooth_ece(c, a, kind="confidence") == pytest.approx(smece_by_quadrature(c, a), abs=1e-6)


@pytest.mark.parametrize("n", [300, 5000])
def test_smece_of_resamples_needs_few_steps(n: int):
    c, a = simulated(n, power=1.0)
    rows = TopLabel.sort(c, a)
    outcomes = np.random.default_rng(1).random((50, n)) < rows.confidence
    honest = ResidualCurves.with_labels(rows, outcomes)
    for curves in (resampled(rows, draw_rows(np.random.default_rng(0), n, 50)), honest):
        few = smece_of_curves(curves)
        many = smece_of_curves(curves, SMECE_CELLS, STEPS)
        assert np.abs(few - many).max() < 0.02 * many.std()
        assert abs(few.mean() - many.mean()) < 1e-3 * many.std()


def test_mass_at_one_keeps_its_weight_in_smece():
    # All residuals have one sign, so nothing cancels and smECE = mean c - mean a.
    rng = np.random.default_rng(1)
    c = np.ones(1000)
    a = rng.random(1000) < 0.9
    assert smooth_ece(c, a, kind="confidence") == pytest.approx(1 - a.mean(), abs=1e-9)
    c = np.concatenate([np.ones(900), np.full(100, 0.8)])
    a = np.concatenate([np.arange(900) < 810, np.arange(100) < 60])
    assert smooth_ece(c, a, kind="confidence") == pytest.approx(c.mean() - a.mean(), abs=1e-9)


@pytest.mark.parametrize(
    ("name", "value"),
    # relplot 1.0.3 finds .0606 and .0598.
    [
        ("cifar10-resnet50-cross-entropy-test.npz", 0.0434),
        ("cifar100-wideresnet-16-4.npz", 0.0563),
    ],
)
def test_smece_of_real_networks(real_predictions: Callable[[str], Predictions], name: str, value):
    predictions = real_predictions(name)
    found = smooth_ece(predictions.probs, predictions.labels)
    assert found == pytest.approx(value, abs=5e-5)


def test_smece_of_perfect_rows_is_nothing():
    assert smooth_ece(np.array([1.0, 0.0]), np.array([True, False]), kind="confidence") < 1e-4


# --- KS error


@given(rows())
def test_ks_is_its_definition(data: Rows):
    c, a = data
    by_hand = max(abs((c - a)[c <= t].sum()) for t in c) / len(c)
    assert ks_error(c, a, kind="confidence") == pytest.approx(by_hand, abs=1e-12)


def test_ks_of_one_sign_is_the_mean_gap():
    c, a = simulated(5000, power=4.0)
    assert ks_error(c, a, kind="confidence") == pytest.approx(c.mean() - a.mean(), abs=2e-3)


# --- MMCE


@given(rows(), st.sampled_from([0.4, 0.05, 0.002, 10.0]))
def test_mmce_is_the_sum_over_pairs(data: Rows, width: float):
    c, a = data
    e = a - c
    kernel = np.exp(-np.abs(c[:, None] - c) / width)
    square = e @ kernel @ e / len(c) ** 2
    assert mmce(c, a, width, squared=True, kind="confidence") == pytest.approx(square, abs=1e-12)
    root = mmce(c, a, width, kind="confidence")
    assert root**2 == pytest.approx(square, abs=1e-12)


def test_mmce_refuses_a_width_it_can_not_take():
    for width in (0.0, -1.0, np.nan):
        with pytest.raises(InputError, match="width"):
            mmce(np.array([0.5]), np.array([True]), width, kind="confidence")


# --- KDE-ECE


def kde_by_quadrature(c: NDArray[np.float64], a: NDArray[np.bool_], h: float, norm: int) -> float:
    def density(t: float, weight: NDArray[np.float64]) -> float:
        total = 0.0
        for i in (-1, 0, 1):
            for image in (2 * i + c, 2 * i - c):
                total += weight @ np.maximum(1 - ((t - image) / (3 * h)) ** 2, 0.0) ** 3
        return total * 35 / 32 / (3 * h) / len(c)

    def integrand(t: float) -> float:
        p = density(t, np.ones(len(c)))
        return p * abs(t - density(t, a.astype(float)) / p) ** norm if p > 0 else 0.0

    knots = np.linspace(0, 1, 41)
    return sum(quad(integrand, *ends)[0] for ends in pairwise(knots))


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.filterwarnings("ignore::scipy.integrate.IntegrationWarning")
def test_kde_ece_is_its_integral(norm: int):
    c, a = simulated(60)
    found = kde_ece(c, a, 0.05, norm, kind="confidence")
    assert found == pytest.approx(kde_by_quadrature(c, a, 0.05, norm), abs=5e-5)


def test_kde_ece_has_the_papers_bandwidth():
    c, a = simulated(500)
    rule = c[a].std() * (2 * 500) ** -0.2
    assert kde_ece(c, a, kind="confidence") == pytest.approx(
        kde_ece(c, a, rule, kind="confidence"), abs=1e-6
    )


def test_kde_ece_of_equal_confidences_is_their_gap():
    c, a = np.full(10, 0.7), np.arange(10) < 4
    assert kde_ece(c, a, kind="confidence") == pytest.approx(0.3, abs=2e-4)
    assert kde_ece(c, np.zeros(10, bool), kind="confidence") == pytest.approx(0.7, abs=2e-4)
    for bad in ({"bandwidth": -1.0}, {"norm": 0}):
        with pytest.raises(InputError):
            kde_ece(c, a, **bad)


# --- slope and intercept


def test_slope_and_intercept_are_the_logistic_regression():
    for seed in range(5):
        c, a = simulated(300, seed, power=3.0)
        x = logit(c)
        fitted = minimize(
            lambda at, x=x, a=a: (
                np.logaddexp(0, at[0] * x + at[1]) - a * (at[0] * x + at[1])
            ).sum(),
            [1.0, 0.0],
            tol=1e-12,
        )
        assert calibration_slope_intercept(c, a, kind="confidence") == pytest.approx(
            fitted.x, abs=1e-4
        )
        large = calibration_in_the_large(c, a, kind="confidence")
        expected = 1 / (1 + np.exp(-(x + large)))
        assert expected.sum() == pytest.approx(a.sum(), abs=1e-3)


def test_slope_finds_the_temperature_of_two_classes():
    rng = np.random.default_rng(0)
    z = np.abs(rng.normal(0, 2, 100_000))
    a = rng.random(len(z)) < 1 / (1 + np.exp(-z))
    slope, intercept = calibration_slope_intercept(1 / (1 + np.exp(-2 * z)), a, kind="confidence")
    assert slope == pytest.approx(0.5, abs=0.02)
    assert intercept == pytest.approx(0.0, abs=0.03)


@pytest.mark.parametrize(
    ("c", "a"),
    [
        ([0.5, 0.6, 0.7, 0.8], [0, 0, 1, 1]),
        ([0.5, 0.6, 0.7, 0.8], [1, 1, 0, 0]),
        ([0.5, 0.6, 0.6, 0.8], [0, 0, 1, 1]),
        ([0.5, 0.6, 0.7, 0.8], [1, 1, 1, 1]),
        ([0.5], [0]),
        ([1.0, 1.0, 0.0], [1, 1, 0]),
    ],
)
def test_rows_without_an_optimum_give_finite_numbers_and_a_warning(c: list[float], a: list[int]):
    with pytest.warns(BoundaryWarning, match="no finite optimum"):
        found = calibration_slope_intercept(np.array(c), np.array(a), kind="confidence")
    assert np.isfinite(found).all()


def test_equal_confidences_do_not_tell_slope_from_intercept():
    c, a = np.full(4, 0.8), np.array([1, 1, 0, 0])
    with pytest.warns(NotIdentifiedWarning, match="equal"):
        slope, intercept = calibration_slope_intercept(c, a, kind="confidence")
    assert intercept + slope * np.log(4) == pytest.approx(0.0, abs=1e-4)
    assert calibration_in_the_large(c, a, kind="confidence") == pytest.approx(-np.log(4), abs=1e-4)


def test_extreme_confidences_do_not_break_the_fit():
    c = np.array([1.0] * 50 + [0.0] * 50 + [0.5] * 4)
    a = np.array([1] * 49 + [0] + [0] * 49 + [1] + [0, 1, 0, 1])
    slope, intercept = calibration_slope_intercept(c, a, kind="confidence")
    assert slope == pytest.approx(np.log(49) / logit(np.array(1.0)), rel=1e-3)
    assert intercept == pytest.approx(0, abs=1e-6)


# --- what all of them share


@pytest.mark.parametrize(
    "metric",
    [
        smooth_calibration_error,
        smooth_ece,
        ks_error,
        mmce,
        kde_ece,
    ],
)
def test_order_and_dtype_of_rows_do_not_matter(metric: object):
    c, a = simulated(1000)
    c = np.round(c, 2)
    order = np.random.default_rng(5).permutation(1000)
    whole = metric(c, a, kind="confidence")
    assert metric(c[order], a[order], kind="confidence") == pytest.approx(whole, abs=1e-12)
    narrow = metric(c.astype(np.float32), a, kind="confidence")
    # A confidence on the edge of a cell may fall to its other side.
    assert narrow == pytest.approx(whole, abs=3e-4)
    p = np.stack([1 - c, c], axis=1)
    said = c > 0.5
    labels = np.where(a, said, ~said).astype(int)
    top = metric(np.maximum(c, 1 - c), a, kind="confidence")
    assert metric(p, labels) == pytest.approx(top, abs=1e-9)


@pytest.mark.parametrize("cells", [2, 8, 256])
def test_the_cosine_transform_is_the_sum_of_cosines_and_goes_back(cells):
    rng = np.random.default_rng(cells)
    rows, places = rng.normal(size=(3, cells)), np.arange(cells)
    cosines = np.cos(np.pi * np.outer(places + 0.5, places) / cells)
    transform = CosineTransform.of(cells)
    spectrum = transform.forwards(rows)
    assert np.allclose(spectrum, rows @ cosines, rtol=0, atol=1e-12)
    for kept in {1, 2, cells // 2, cells // 2 + 1, cells - 1, cells}:
        back = np.empty_like(rows)
        back[:, transform.order] = transform.backwards(spectrum[:, :kept])
        lower = np.where(places < kept, spectrum, 0.0)
        assert np.allclose(transform.forwards(back), lower, rtol=0, atol=1e-12)
