"""BBQ, spline, scaling-binning and Venn-Abers against computations of another kind."""

from __future__ import annotations

from itertools import pairwise
from math import lgamma

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression, minimize

from calibrant.posthoc.confidence.base import ConfidenceMap
from calibrant.posthoc.confidence.binning import (
    BayesianBinning,
    ScalingBinning,
    before_the_elbow,
    candidate_numbers_of_bins,
)
from calibrant.posthoc.confidence.isotonic import VennAbers
from calibrant.posthoc.confidence.spline import SplineCalibration
from calibrant.predictions.rows import softmax

pairs = st.lists(st.tuples(st.integers(5, 20), st.booleans()), min_size=1, max_size=25)
NEW = [BayesianBinning, ScalingBinning, SplineCalibration, VennAbers]


def fit_map(calibrator, confidence, correct, classes: int = 4):
    """Fit a map on bare confidences and outcomes."""
    order = np.argsort(confidence, kind="stable")
    calibrator.n_classes_ = classes
    calibrator._fit_map(
        np.asarray(confidence, dtype=float)[order], np.asarray(correct, dtype=float)[order]
    )
    return calibrator


def draw(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Confidences and outcomes that are right with probability c^2."""
    rng = np.random.default_rng(seed)
    confidence = np.sort(rng.uniform(0.3, 1, rows))
    return confidence, (rng.uniform(size=rows) < confidence**2).astype(float)


@pytest.mark.parametrize("kind", NEW)
def test_the_truth_is_found(kind):
    calibrator = fit_map(kind(), *draw(20_000))
    at = np.linspace(0.35, 0.95, 50)
    np.testing.assert_allclose(calibrator.map_confidence(at), at**2, atol=0.06)


@pytest.mark.parametrize("kind", NEW)
@settings(max_examples=60)
@given(rows=pairs, seed=st.integers(0, 100))
def test_order_of_tied_rows_does_not_matter(kind, rows, seed):
    confidence, correct = np.array([c / 20 for c, _ in rows]), np.array([a for _, a in rows])
    order = np.random.default_rng(seed).permutation(len(rows))
    at = np.linspace(0, 1, 201)
    plain = fit_map(kind(), confidence, correct).map_confidence(at)
    mixed = fit_map(kind(), confidence[order], correct[order]).map_confidence(at)
    np.testing.assert_allclose(mixed, plain, atol=1e-9)
    assert (plain > 0).all()
    assert (plain < 1).all()


# --- BBQ


def bbq_by_hand(confidence, correct, strength: float, elbow: float, at, classes: int):
    """The average over binnings, bin by bin, with the bins as sets of rows."""
    n, models = len(confidence), {}
    root = n ** (1 / 3)
    for n_bins in range(max(1, int(root / 10)), min(-(-n // 5), int(np.ceil(10 * root))) + 1):
        edges = [0.0]
        for cut in np.cumsum([len(part) for part in np.array_split(confidence, n_bins)])[:-1]:
            if confidence[cut - 1] < confidence[cut]:
                edges.append((confidence[cut - 1] + confidence[cut]) / 2)
        edges.append(1.0)
        log, values = 0.0, []
        for low, high in pairwise(edges):
            inside = (confidence > low) & (confidence <= high)
            total, hits = inside.sum(), correct[inside].sum()
            q = (low + high) / 2
            prior = min(max(q, 0.005), 0.995)
            log += lgamma(strength) - lgamma(total + strength)
            log += lgamma(hits + strength * prior) - lgamma(strength * prior)
            log += lgamma(total - hits + strength * (1 - prior)) - lgamma(strength * (1 - prior))
            pseudo = ((confidence * correct)[inside].sum() + q) / (hits + 1)
            values.append((hits + pseudo) / (total + 1))
        models[tuple(edges)] = log, values
    ranked = sorted(models.items(), key=lambda model: -model[1][0])
    weights = np.exp([log - ranked[0][1][0] for _, (log, _) in ranked])
    kept = 1
    while kept < len(weights) and weights[kept - 1] - weights[kept] > elbow * weights.var():
        kept += 1
    mean = np.zeros(len(at))
    for weight, (edges, (_, values)) in zip(weights[:kept], ranked[:kept], strict=True):
        for i, x in enumerate(at):
            bin_ = next(b for b in range(len(values)) if x <= edges[b + 1])
            mean[i] += weight / weights[:kept].sum() * values[bin_]
    return (mean * n + 1 / classes) / (n + 1)


@pytest.mark.parametrize("rows", [5, 60, 333])
@pytest.mark.parametrize(("strength", "elbow"), [(2.0, 0.001), (0.7, 0.0), (2.0, 5.0)])
@pytest.mark.parametrize("digits", [2, 12])
def test_bbq_is_the_weighted_average(rows, strength, elbow, digits):
    confidence, correct = draw(rows, seed=rows)
    confidence = confidence.round(digits)
    at = np.linspace(0.001, 1, 97)
    calibrator = fit_map(BayesianBinning(strength, elbow), confidence, correct)
    expected = bbq_by_hand(confidence, correct, strength, elbow, at, 4)
    np.testing.assert_allclose(calibrator.map_confidence(at), expected, atol=1e-10)
    np.testing.assert_allclose(calibrator.weights_.sum(), 1)
    assert (np.diff(calibrator.weights_) <= 0).all()


def test_numbers_of_bins_and_elbow():
    assert candidate_numbers_of_bins(1) == range(1, 2)
    assert candidate_numbers_of_bins(10) == range(1, 3)
    assert candidate_numbers_of_bins(27_000) == range(3, 301)
    assert candidate_numbers_of_bins(26_999) == range(2, 301)
    assert candidate_numbers_of_bins(27_001) == range(3, 302)
    for root in range(1, 200):
        # Cubes, where the last bit of a root in floating point would decide.
        bins = candidate_numbers_of_bins(root**3)
        assert bins[0] == max(1, root // 10)
        assert bins[-1] == max(1, min(-(-(root**3) // 5), 10 * root))
    assert before_the_elbow(np.array([1.0]), 0.001) == 1
    assert before_the_elbow(np.array([1.0, 1.0, 1.0]), 0.001) == 3
    # The variance is 0.18; the drop from 0.2 is below 1 % of it.
    assert before_the_elbow(np.array([1.0, 0.2, 0.199, 0.0]), 0.01) == 2


# --- spline


def natural_basis(t: np.ndarray, knots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A natural cubic basis of truncated powers, and its derivative."""
    last = knots[-1]

    def truncated(k: float, power: int) -> np.ndarray:
        return (np.maximum(t - k, 0) ** power - np.maximum(t - last, 0) ** power) / (last - k)

    value, slope = [np.ones_like(t), t], [np.zeros_like(t), np.ones_like(t)]
    for k in knots[:-2]:
        value.append(truncated(k, 3) - truncated(knots[-2], 3))
        slope.append(3 * (truncated(k, 2) - truncated(knots[-2], 2)))
    return np.stack(value, 1), np.stack(slope, 1)


@pytest.mark.parametrize("rows", [10, 17, 400])
@pytest.mark.parametrize("knots", [2, 3, 6])
def test_spline_is_the_slope_of_a_least_squares_natural_spline(rows, knots):
    confidence, correct = draw(rows, seed=rows + 1)
    calibrator = fit_map(SplineCalibration(knots), confidence, correct)
    t, running = np.arange(rows) / (rows - 1), np.cumsum(correct - confidence) / rows
    used = min(knots, max(2, rows // 5))
    value, slope = natural_basis(t, np.linspace(0, 1, used))
    weights = np.linalg.lstsq(value, running, rcond=None)[0]
    raw = np.clip(confidence + slope @ weights, 0, 1)
    expected = (rows * raw + 1 / 4) / (rows + 1)
    np.testing.assert_allclose(calibrator.map_confidence(confidence), expected, atol=1e-9)
    # Nine tenths of the way are nine tenths of the way, not one tenth.
    low, high, ninth = confidence[3], confidence[4], confidence[3] * 0.1 + confidence[4] * 0.9
    inside = calibrator.map_confidence(np.array([low, high, ninth]))
    np.testing.assert_allclose(inside[2], 0.1 * inside[0] + 0.9 * inside[1], atol=1e-12)
    # Beyond the rows the map is constant.
    ends = calibrator.map_confidence(np.array([0.0, 1.0]))
    np.testing.assert_allclose(ends, expected[[0, -1]], atol=1e-9)


def test_equal_confidences_get_one_value():
    # One level: H is a line of slope (accuracy - c) (N - 1) / N.
    correct = np.repeat([1.0, 0.0], [30, 10])
    calibrator = fit_map(SplineCalibration(), np.full(40, 0.9), correct)
    expected = (40 * (0.9 + (0.75 - 0.9) * 39 / 40) + 1 / 4) / 41
    np.testing.assert_allclose(calibrator.map_confidence(np.array([0.2, 0.9, 1])), expected)
    # Two: pieces of the spline are averaged over the rows of each before anything is clipped.
    confidence = np.repeat([0.5, 1.0], [10, 40])
    correct = np.concatenate([np.tile([1.0, 0.0], 5), np.ones(40)])
    calibrator = fit_map(SplineCalibration(2), confidence, correct)
    expected = (50 * np.array([0.5, 1.0]) + 1 / 4) / 51
    np.testing.assert_allclose(calibrator.map_confidence(np.array([0.5, 1.0])), expected)


def test_a_table_of_many_rows_stays_close():
    confidence, correct = draw(20_000, seed=4)
    calibrator = fit_map(SplineCalibration(), confidence, correct)
    assert len(calibrator.knots_) == 1024
    value, slope = natural_basis(np.linspace(0, 1, 20_000), np.linspace(0, 1, 6))
    running = np.cumsum(correct - confidence) / 20_000
    raw = confidence + slope @ np.linalg.lstsq(value, running, rcond=None)[0]
    np.testing.assert_allclose(calibrator.map_confidence(confidence), raw, atol=4e-4)


# --- scaling-binning


@pytest.mark.parametrize("rows", [30, 500])
@pytest.mark.parametrize("split", ["none", "thirds"])
def test_scaling_binning_averages_the_sigmoid(rows, split):
    confidence, correct = draw(rows, seed=rows + 2)
    calibrator = fit_map(ScalingBinning(5, split), confidence, correct)
    parts = [slice(i, None, 3) if split == "thirds" else slice(None) for i in range(3)]
    x, a = np.log(confidence / (1 - confidence))[parts[0]], correct[parts[0]]
    target = np.where(a == 1, (a.sum() + 1) / (a.sum() + 2), 1 / ((1 - a).sum() + 2))

    def loss(v):
        p = 1 / (1 + np.exp(-(v[0] * x + v[1])))
        return -np.sum(target * np.log(p) + (1 - target) * np.log(1 - p))

    brute = minimize(loss, [1.0, 0.0], method="BFGS", options={"gtol": 1e-8})
    np.testing.assert_allclose([calibrator.slope_, calibrator.offset_], brute.x, atol=2e-3)
    g = 1 / (1 + np.exp(-(brute.x[0] * np.log(confidence / (1 - confidence)) + brute.x[1])))
    edges = calibrator.edges_
    sizes = np.histogram(confidence[parts[1]], edges)[0]
    assert sizes.max() - sizes.min() <= 1
    for low, high in pairwise(edges):
        inside = (confidence[parts[2]] > low) & (confidence[parts[2]] <= high)
        if inside.any():
            mean = (rows * g[parts[2]][inside].mean() + 1 / 4) / (rows + 1)
            found = calibrator.map_confidence(confidence[parts[2]][inside])
            np.testing.assert_allclose(found, mean, atol=1e-3)


@pytest.mark.parametrize("outcome", [0.0, 1.0])
def test_a_sigmoid_of_one_outcome_stays_finite(outcome):
    confidence, _ = draw(50)
    calibrator = fit_map(ScalingBinning(), confidence, np.full(50, outcome))
    assert np.abs(calibrator.map_confidence(confidence) - outcome).max() < 0.05
    assert np.abs([calibrator.slope_, calibrator.offset_]).max() < 10


# --- Venn-Abers


def venn_abers_by_hand(confidence, correct, at: float) -> list[float]:
    """p0 and p1: isotonic regression with the new row as a wrong and as a right one."""
    ends = []
    for outcome in (0.0, 1.0):
        points = np.unique([*confidence, at])
        ours, all_correct = np.append(confidence, at), np.append(correct, outcome)
        mean = np.array([all_correct[ours == p].mean() for p in points])
        count = np.array([(ours == p).sum() for p in points], dtype=float)
        fit = isotonic_regression(mean, weights=count).x
        ends.append(float(fit[points == at][0]))
    return ends


@settings(max_examples=100)
@given(pairs)
def test_venn_abers_is_two_isotonic_regressions(rows):
    confidence, correct = np.array([c / 20 for c, _ in rows]), np.array([a for _, a in rows])
    calibrator = fit_map(VennAbers(), confidence, correct)
    at = np.arange(8, 42) / 40  # on calibration rows, between and beyond them
    found = np.stack(calibrator.interval_of(at), axis=1)
    expected = [venn_abers_by_hand(confidence, correct, x) for x in at]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    merged = calibrator.map_confidence(at)
    assert (found[:, 0] < found[:, 1]).all()
    assert ((found[:, 0] < merged) & (merged < found[:, 1])).all()
    # Least regret: the same loss over the better of both, whichever outcome comes.
    regret = np.log(found[:, 1] / merged), np.log((1 - found[:, 0]) / (1 - merged))
    np.testing.assert_allclose(*regret, atol=1e-9)


def test_venn_abers_of_many_rows(labelled_logits):
    logits, labels = labelled_logits(3000, 10, seed=3)
    calibrator = VennAbers().fit(logits, labels)
    confidence, correct = softmax(logits).max(axis=1), logits.argmax(axis=1) == labels
    low, high = calibrator.intervals(logits)
    for row in range(0, 3000, 250):
        expected = venn_abers_by_hand(confidence, correct.astype(float), confidence[row])
        np.testing.assert_allclose([low[row], high[row]], expected, atol=1e-12)
    assert (np.diff(calibrator.lower_) >= 0).all()
    assert (np.diff(calibrator.upper_) >= 0).all()
    # More rows, narrower intervals.
    few = VennAbers().fit(logits[:100], labels[:100]).intervals(logits)
    assert np.mean(high - low) < 0.3 * np.mean(few[1] - few[0])
    # Half an ulp of float32 must not change the side of a jump.
    narrow = logits.astype(np.float32)
    single = VennAbers().fit(narrow, labels)
    wide = single.intervals(narrow.astype(np.float64))
    np.testing.assert_allclose(wide[0], single.intervals(narrow)[0], atol=1e-3)


def crowded(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 logits and labels of a network that is nearly certain of most rows."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, 10)).astype(np.float32)
    logits[:, 0] += rng.gamma(6.0, 2.0, size=rows).astype(np.float32)
    labels = np.where(rng.random(rows) < 0.06, rng.integers(1, 10, rows), 0)
    return logits, labels


def test_venn_abers_tells_apart_confidences_crowded_next_to_one():
    fit, labels = crowded(5000, 0)
    new, _ = crowded(400, 1)
    calibrator = VennAbers().fit(fit, labels)

    def confidence(logits: np.ndarray) -> np.ndarray:
        shifted = logits.astype(float) - logits.max(axis=1, keepdims=True)
        return 1 / np.exp(shifted).sum(axis=1)

    known, correct = confidence(fit), (fit.argmax(axis=1) == labels).astype(float)
    assert np.median(1 - known) < 1e-3
    # New rows, and rows that are more doubtful than a calibration row by one part in 100 000.
    at = np.concatenate([confidence(new), 1 - (1 - known[:200]) * (1 + 1e-5)])
    found = np.stack(calibrator.interval_of(at), axis=1)
    # By hand each takes a tenth of a second, so that every twentieth does.
    expected = [venn_abers_by_hand(known, correct, x) for x in at[::20]]
    np.testing.assert_allclose(found[::20], expected, atol=1e-9)
    # A row that was fitted on is the same row in float32 and float64, alone and among others.
    ends = np.stack(calibrator.intervals(fit))
    np.testing.assert_array_equal(ends, np.stack(calibrator.intervals(fit.astype(float))))
    for row in range(20):
        np.testing.assert_array_equal(ends[:, [row]], calibrator.intervals(fit[[row]]))


def test_all_are_of_one_family():
    assert all(issubclass(kind, ConfidenceMap) for kind in NEW)
