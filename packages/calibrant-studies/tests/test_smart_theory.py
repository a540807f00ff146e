"""Laws of the SMART paper's theory, and the places where the paper's text is off."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.optimize import brentq, linprog
from scipy.sparse import diags_array, vstack

from calibrant.core.errors import InputError
from calibrant_studies import smart_theory as theory

LAWS = settings(deadline=None, max_examples=100, derandomize=True)
SEEDS = st.integers(0, 2**32 - 1)
SHARPNESSES = st.floats(-3, 4).map(lambda power: 10.0**power)
DELTAS = st.sampled_from([0.0, 1e-9, 1e-3, 0.05, 2.0])


def softmax(t):
    e = np.exp(t - t.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def confidence(row, temperature):
    return softmax(row / temperature).max()


def smooth_calibration_error(p, a, kind="confidence"):
    """Solve the linear program over w in [-1, 1] that moves no faster than p."""
    points, index = np.unique(p, return_inverse=True)
    weights = np.bincount(index, a - p) / len(p)
    if len(points) == 1:
        return abs(weights[0])
    n, steps = len(points), np.diff(points)
    slope = diags_array([-np.ones(n - 1), np.ones(n - 1)], offsets=[0, 1], shape=(n - 1, n))
    chain = vstack([slope, -slope]).tocsr()
    found = linprog(-weights, A_ub=chain, b_ub=np.r_[steps, steps], bounds=(-1, 1))
    assert found.status == 0
    return -found.fun


def random_slice(seed, rows=12, classes=5):
    """Return logits, labels, temperatures and the slice of the larger margins."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=rng.uniform(0.5, 4), size=(rows, classes))
    ordered = np.sort(logits, axis=1)
    margin = ordered[:, -1] - ordered[:, -2]
    labels = rng.integers(classes, size=rows)
    return logits, labels, rng.uniform(0.5, 2, rows), margin >= np.median(margin)


def central_difference(function, h=1e-3):
    """Return the derivative at s = 1, to fourth order in h."""
    first = function(1 + h) - function(1 - h)
    second = function(1 + 2 * h) - function(1 - 2 * h)
    return (8 * first - second) / (12 * h)


# Feasible temperatures (App. A.1)


@LAWS
@given(SEEDS, st.integers(2, 30), st.floats(0.001, 0.999))
def test_the_temperature_that_reaches_the_confidence_is_in_the_interval(seed, classes, share):
    row = np.random.default_rng(seed).normal(scale=3, size=classes)
    margin = np.diff(np.sort(row))[-1]
    target = 1 / classes + share * (1 - 1 / classes)
    log_t = brentq(lambda x: confidence(row, np.exp(x)) - target, -40, 40, xtol=1e-13)
    low, high = theory.feasible_temperatures(margin, target, classes)
    assert low * (1 - 1e-9) <= np.exp(log_t) <= high * (1 + 1e-9)


@LAWS
@given(st.floats(0.01, 50), st.integers(2, 1000), st.floats(0.001, 0.999))
def test_extreme_rows_attain_both_ends(margin, classes, share):
    target = 1 / classes + share * (1 - 1 / classes)
    low, high = theory.feasible_temperatures(margin, target, classes)
    tied = np.full(classes, -margin)
    tied[0] = 0
    assert_allclose(confidence(tied, low), target, rtol=1e-12)
    if target <= 0.5:
        assert np.isinf(high)
    else:
        vanishing = np.full(classes, -1e9)
        vanishing[:2] = 0, -margin
        assert_allclose(confidence(vanishing, high), target, rtol=1e-9)


@LAWS
@given(st.floats(1e-6, 1e6), st.floats(0.5, 1, exclude_min=True, exclude_max=True))
def test_two_classes_determine_the_temperature(margin, target):
    low, high = theory.feasible_temperatures(margin, target, 2)
    assert low == high > 0


@LAWS
@given(st.floats(0.01, 50), st.integers(3, 1000), st.floats(0.51, 0.999))
def test_width_grows_with_the_margin_in_t_and_shrinks_in_inverse_t(margin, classes, target):
    # Section 3.2 says that the width in T "decreases as m grows"; it is proportional to m.
    low, high = theory.feasible_temperatures([margin, 3 * margin], target, classes)
    assert_allclose((high - low)[1], 3 * (high - low)[0])
    assert_allclose((high / low)[1], (high / low)[0])
    assert_allclose(1 / low - 1 / high, np.log(classes - 1) / np.array([margin, 3 * margin]))


def test_width_shrinks_as_confidence_grows():
    low, high = theory.feasible_temperatures(2.0, np.linspace(0.51, 0.999, 50), 10)
    assert (np.diff(high - low) < 0).all()


@pytest.mark.parametrize(
    ("margin", "target", "classes", "expected"),
    [
        (0.0, 1 / 49, 49, (0, np.inf)),
        (1.0, 1 / 49, 49, (np.nan, np.nan)),
        (0.0, 0.3, 4, (0, np.inf)),
        (0.0, 0.5, 2, (0, np.inf)),
        (0.0, 0.6, 4, (np.nan, np.nan)),
        (1.0, 0.5, 2, (np.nan, np.nan)),
        (1.0, 0.5, 4, (1 / np.log(3), np.inf)),
        (1.0, np.nextafter(1 / 49, 1), 49, (np.inf, np.inf)),
    ],
)
def test_edges_of_the_interval(margin, target, classes, expected):
    found = theory.feasible_temperatures(margin, target, classes)
    if classes == 49 and np.isinf(expected[0]):
        assert found[0] > 1e13
        expected = (found[0], np.inf)
    assert_allclose(found, expected)


def test_the_interval_broadcasts():
    margins, targets = np.array([[0.0], [1.0], [2.0]]), np.array([0.3, 0.6, 0.9, 0.99])
    low, high = theory.feasible_temperatures(margins, targets, 4)
    assert low.shape == high.shape == (3, 4)
    assert low[2, 3] == theory.feasible_temperatures(2.0, 0.99, 4)[0]


# The kernel's radius (Theorem 3.1)


@LAWS
@given(SHARPNESSES)
def test_radius_is_the_supremum_of_brute_quadrature_and_under_its_bound(sharpness):
    p = np.linspace(0, 1, 41)
    u = (np.arange(20_000) + 0.5) / 20_000
    kernel = np.exp(-sharpness * (p[:, None] - u) ** 2)
    brute = (kernel * abs(p[:, None] - u)).sum(axis=1) / kernel.sum(axis=1)
    assert_allclose(theory.kernel_radius_at(p, sharpness), brute, rtol=1e-4)
    fine = theory.kernel_radius_at(np.linspace(0, 1, 4001), sharpness)
    radius, bound = theory.kernel_radius(sharpness), theory.kernel_radius_bound(sharpness)
    assert_allclose(radius, fine.max(), rtol=1e-14)
    assert_allclose(fine[[0, -1]], radius, rtol=1e-14)
    assert 0 < radius <= min(0.5, bound)
    if bound < 1:
        assert_allclose(bound / radius, 2 / -np.expm1(-sharpness))


def test_the_constant_of_the_papers_bound():
    # Eq. 18: C = 2 / (sqrt(pi) erf(1)) = 1.339, the value at sharpness 1 before the cap.
    sharpness = np.logspace(0.3, 6, 30)
    assert all(theory.kernel_radius_bound(v) <= 1.3391 / np.sqrt(v) for v in sharpness)
    assert_allclose(2 * theory.kernel_radius(200), 0.0798, atol=5e-5)
    assert_allclose(theory.kernel_radius(1e-9), 0.5)


# Charbonnier-SoftECE (Eq. 6)


@pytest.mark.parametrize("sharpness", [1e-3, 5.0, 200.0, 5000.0])
@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.05, 2.0])
def test_objective_against_a_brute_riemann_sum(sharpness, delta):
    u = (np.arange(1_000_000) + 0.5) / 1_000_000
    for p, a in [(0.0, 0), (0.002, 0), (0.63, 1), (1.0, 0)]:
        kernel = np.exp(-sharpness * (p - u) ** 2)
        brute = (kernel * np.sqrt((a - u) ** 2 + delta**2)).sum() / kernel.sum()
        assert abs(theory.charbonnier_calibration([p], [a], sharpness, delta) - brute) < 1e-8


@LAWS
@given(SEEDS, st.integers(1, 400), SHARPNESSES, DELTAS)
def test_laws_of_the_objective(seed, rows, sharpness, delta):
    rng = np.random.default_rng(seed)
    p, a = rng.random(rows), rng.integers(0, 2, rows)
    value = theory.charbonnier_calibration(p, a, sharpness, delta)
    flat = theory.charbonnier_calibration(p, a, sharpness, 0.0)
    assert flat <= value <= flat + delta * (1 + 1e-12)
    assert_allclose(theory.charbonnier_calibration(1 - p, 1 - a, sharpness, delta), value)
    single = [
        theory.charbonnier_calibration(p[i : i + 1], a[i : i + 1], sharpness, delta)
        for i in range(min(rows, 5))
    ]
    head = theory.charbonnier_calibration(p[:5], a[:5], sharpness, delta)
    assert_allclose(head, np.mean(single), rtol=1e-12)


def test_many_rows_in_chunks_give_the_mean_of_their_parts():
    rng = np.random.default_rng(0)
    p, a = rng.random(3000), rng.random(3000) < 0.5
    parts = [theory.charbonnier_calibration(p[i::3], a[i::3]) for i in range(3)]
    assert_allclose(theory.charbonnier_calibration(p, a), np.mean(parts), rtol=1e-12)


@pytest.mark.parametrize(("chance", "best"), [(0.6, 1.0), (0.9, 1.0), (0.4, 0.0)])
def test_the_objective_is_not_a_proper_score(chance, best):
    grid = np.linspace(0, 1, 101)
    expected = [
        chance * theory.charbonnier_calibration([p], [1], delta=0.0)
        + (1 - chance) * theory.charbonnier_calibration([p], [0], delta=0.0)
        for p in grid
    ]
    assert grid[np.argmin(expected)] == best
    if chance == 0.6:
        assert_allclose([expected[60], expected[100]], [0.480, 0.408], atol=5e-4)


# Theorem 3.1


@LAWS
@given(
    SEEDS,
    st.integers(1, 150),
    st.sampled_from([1.0, 20.0, 200.0, 1e4]),
    DELTAS,
    st.sampled_from(["calibrated", "overconfident", "unrelated", "few values"]),
)
def test_smooth_calibration_error_is_under_the_bound(seed, rows, sharpness, delta, shape):
    rng = np.random.default_rng(seed)
    p = rng.random(rows) ** rng.uniform(0.1, 3)
    if shape == "few values":
        p = np.round(p, 1)
    chance = {"overconfident": p**3, "unrelated": rng.random(rows)}.get(shape, p)
    a = (rng.random(rows) < chance).astype(float)
    found = theory.smce_bound(p, a, sharpness, delta)
    assert found.bound == found.objective + 2 * found.radius
    error = smooth_calibration_error(p, a, kind="confidence")
    assert error <= found.bound + 1e-9
    # The proof passes through this: one radius is enough, and it isn't about calibration.
    assert error <= abs(a - p).mean() + 1e-9 <= found.objective + found.radius + 2e-9


def test_the_bound_is_far_from_a_calibrated_classifiers_error():
    rng = np.random.default_rng(0)
    p = rng.uniform(0.5, 1, 2000)
    a = rng.random(2000) < p
    assert smooth_calibration_error(p, a, kind="confidence") < 0.03
    assert theory.smce_bound(p, a).bound > 0.4


# Lemma 1 and what follows (App. A.3)


@LAWS
@given(SEEDS, st.integers(2, 8))
def test_nll_derivative_has_the_sign_of_eq_25_not_of_eq_3(seed, classes):
    logits, labels, temperatures, inside = random_slice(seed, classes=classes)
    rows = np.arange(len(labels))

    def nll(s):
        t = logits * (np.where(inside, s, 1) / temperatures)[:, None]
        return -np.log(softmax(t)[rows, labels]).mean()

    found = theory.nll_slice_derivative(logits, labels, temperatures, inside)
    slope = central_difference(nll)
    assert_allclose(found, slope, rtol=1e-6, atol=1e-7)
    t = logits / temperatures[:, None]
    eq_3 = (inside * (t[rows, labels] - (softmax(t) * t).sum(axis=1))).mean()
    assert_allclose(eq_3, -slope, rtol=1e-6, atol=1e-7)


@LAWS
@given(SEEDS, st.integers(2, 8), st.booleans())
def test_calibration_derivative_against_differences(seed, classes, use_labels):
    logits, labels, temperatures, inside = random_slice(seed, classes=classes)
    chance = np.random.default_rng(seed).random(len(labels))
    r = (logits.argmax(axis=1) == labels) if use_labels else chance

    def functional(s):
        t = logits * (np.where(inside, s, 1) / temperatures)[:, None]
        p = softmax(t).max(axis=1)
        return ((r - p) * np.sin(3 * p) / 3).mean()

    found = theory.calibration_slice_derivative(
        logits, r, temperatures, inside, lambda p: np.sin(3 * p) / 3, lambda p: np.cos(3 * p)
    )
    assert_allclose(found, central_difference(functional), rtol=1e-6, atol=1e-8)


@LAWS
@given(SEEDS, st.integers(2, 50))
def test_margin_bounds_the_advantage_of_the_top_logit(seed, classes):
    logits, _, temperatures, _ = random_slice(seed, classes=classes)
    left, right = theory.margin_advantage_bound(logits, temperatures)
    t = logits / temperatures[:, None]
    q = softmax(t)
    assert_allclose(left, t.max(axis=1) - (q * t).sum(axis=1), rtol=1e-9, atol=1e-12)
    ordered = np.sort(t, axis=1)
    gap = ordered[:, -1] - ordered[:, -2]
    assert_allclose(right, (1 - q.max(axis=1)) * gap, rtol=1e-9, atol=1e-12)
    assert (left >= right * (1 - 1e-12)).all()
    if classes == 2:
        assert_allclose(left, right)


def test_advantage_keeps_its_digits_when_the_classifier_is_sure():
    left, right = theory.margin_advantage_bound([[60.0, 0.0, 0.0]], 1.0)
    assert_allclose([left, right], 120 * np.exp(-60.0), rtol=1e-12)


@LAWS
@given(SEEDS, st.integers(2, 12), st.floats(0.05, 5))
def test_per_row_bound_of_the_nll_derivative(seed, classes, concentration):
    logits, _, temperatures, inside = random_slice(seed, classes=classes)
    rng = np.random.default_rng(seed)
    eta = rng.dirichlet(np.full(classes, concentration), size=len(logits))
    t = logits / temperatures[:, None]
    exact = ((softmax(t) - eta) * t).sum(axis=1)
    bound = theory.nll_slice_bound(logits, eta, temperatures)
    assert (exact <= bound + 1e-12).all()
    if classes == 2:
        assert_allclose(bound, exact, atol=1e-12)
    # The label-averaged derivative is the mean of the exact rows, so Eq. 30 follows.
    spread = np.sort(t, axis=1)[:, -2] - t.min(axis=1)
    p, top = softmax(t).max(axis=1), logits.argmax(axis=1)
    gap = t.max(axis=1) - np.sort(t, axis=1)[:, -2]
    r = eta[np.arange(len(eta)), top]
    eq_30 = (inside * (p - r) * gap).mean() + spread[inside].max() * inside.mean()
    assert (inside * exact).mean() <= (inside * bound).mean() + 1e-12 <= eq_30 + 2e-12


def test_proposition_a2_does_not_hold():
    # Two classes, T = 1, the whole population as slice; condition 31 holds with room to spare and
    # sharpening lowers the NLL, but smCE falls: its best probe isn't the one in the proof.
    p = np.r_[np.repeat(np.linspace(0.59, 0.61, 21), 9), np.linspace(0.79, 0.81, 21)]
    under = p < 0.7
    r = np.where(under, 0.9, 0.7)
    margin = np.log(p / (1 - p))
    share, over = under.mean(), 1 - under.mean()
    rho_under, rho_over = (r - p)[under].min(), (p - r)[~under].min()
    assert min(rho_under, rho_over) > 0
    assert rho_under * margin.min() * share > margin.max() * rho_over * over
    eta = np.stack([r, 1 - r], axis=1)
    logits = np.stack([margin, np.zeros_like(margin)], axis=1)
    assert theory.nll_slice_bound(logits, eta, 1.0).mean() < 0  # K = 2: this is dNLL/ds
    sharper = 1 / (1 + np.exp(-1.01 * margin))
    after, before = (smooth_calibration_error(c, r, kind="confidence") for c in (sharper, p))
    assert after < before


# Bad input

LOGITS = [[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.feasible_temperatures(1, 0.5, 1), "n_classes"),
        (lambda: theory.feasible_temperatures(1, 0.5, 2.5), "n_classes"),
        (lambda: theory.feasible_temperatures(-1, 0.5, 3), "margin"),
        (lambda: theory.feasible_temperatures(np.nan, 0.5, 3), "margin"),
        (lambda: theory.feasible_temperatures("wide", 0.5, 3), "margin"),
        (lambda: theory.feasible_temperatures(1, 0.2, 3), "confidence"),
        (lambda: theory.feasible_temperatures(1, 1.0, 3), "confidence"),
        (lambda: theory.feasible_temperatures([1, 2], [0.5, 0.6, 0.7], 3), "broadcast"),
        (lambda: theory.kernel_radius(0), "sharpness"),
        (lambda: theory.kernel_radius_at(1.2, 5), "confidence"),
        (lambda: theory.kernel_radius_bound(np.inf), "sharpness"),
        (lambda: theory.charbonnier_calibration([], []), "confidence"),
        (lambda: theory.charbonnier_calibration([0.5], [0.5]), "correct"),
        (lambda: theory.charbonnier_calibration([0.5], [0, 1]), "correct"),
        (lambda: theory.charbonnier_calibration([1.5], [1]), "confidence"),
        (lambda: theory.charbonnier_calibration([0.5], [1], delta=-1), "delta"),
        (lambda: theory.smce_bound([0.5], [1], sharpness=-2), "sharpness"),
        (lambda: theory.nll_slice_derivative(LOGITS, [0, 3], 1.0, [1, 1]), "labels"),
        (lambda: theory.nll_slice_derivative(LOGITS, [0, 1], 1.0, [1, 2]), "in_slice"),
        (lambda: theory.nll_slice_derivative(LOGITS, [0, 1], [1.0, 0.0], [1, 1]), "temperatures"),
        (lambda: theory.margin_advantage_bound(LOGITS, [1.0, 1.0, 1.0]), "temperatures"),
        (lambda: theory.margin_advantage_bound([1.0, 2.0], 1.0), "logits"),
        (lambda: theory.margin_advantage_bound([[1e300, -1e300]], 1e-300), "finite"),
        (lambda: theory.nll_slice_bound(LOGITS, [[0.5, 0.5]], 1.0), "class_probabilities"),
        (lambda: theory.nll_slice_bound(LOGITS, LOGITS, 1.0), "class_probabilities"),
    ],
)
def test_bad_input_is_refused_by_name(call, message):
    with pytest.raises(InputError, match=message):
        call()
