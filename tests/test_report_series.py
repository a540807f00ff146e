"""The numbers behind the charts of a report, against brute force."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

import calibrant as cb
from calibrant.core.errors import InputError
from calibrant.evaluation.uncertainty import Gap, wilson_interval
from calibrant.metrics.top_label import TopLabel
from calibrant.posthoc.temperature.scaling import margin_temperature
from calibrant.predictions.scoring import RowScores
from calibrant.report.classes import class_table, classes_to_show
from calibrant.report.document import short
from calibrant.report.series import (
    RiskCoverage,
    binned_reliability,
    confidence_histogram,
    margin_groups,
    risk_coverage,
    smoothed_reliability,
)


def draw_rows(n: int = 3000, ties: bool = False, seed: int = 0) -> TopLabel:
    rng = np.random.default_rng(seed)
    confidence = rng.beta(3, 1.5, n)
    if ties:
        confidence = np.round(confidence, 1)
    return TopLabel.sort(confidence, rng.random(n) < confidence**1.5)


@pytest.fixture(scope="module")
def sets(labelled_logits: Callable[..., Any]) -> tuple[cb.Predictions, cb.Predictions]:
    fit = cb.Predictions.from_logits(*labelled_logits(1500, 5, seed=1), source="fit set")
    test = cb.Predictions.from_logits(*labelled_logits(2000, 5, seed=2), source="test set")
    return fit, test


def test_wilson_inverts_the_score_test() -> None:
    successes, trials = np.array([0.0, 1, 7, 50, 50]), np.array([10.0, 10, 12, 50, 400])
    z = NormalDist().inv_cdf(0.975)
    low, high = wilson_interval(successes, trials)
    for end in (low, high):
        inner = (end > 0) & (end < 1)
        distance = np.abs(successes / trials - end)[inner]
        np.testing.assert_allclose(distance, (z * np.sqrt(end * (1 - end) / trials))[inner])
    assert low[0] == 0
    assert high[3] == 1
    assert high[0] == pytest.approx(0.2775, abs=1e-4)
    assert np.isnan(wilson_interval(np.zeros(1), np.zeros(1))[0])


def test_uniform_points_are_the_bins_of_the_ece() -> None:
    rows = draw_rows()
    points = binned_reliability(rows)
    for i, upper in enumerate(np.arange(1, 16) / 15):
        inside = (rows.confidence > upper - 1 / 15 + 1e-12) & (rows.confidence <= upper + 1e-12)
        if inside.any():
            at = np.argmin(np.abs(points.confidence - rows.confidence[inside].mean()))
            assert points.count[at] == inside.sum(), i
            assert points.accuracy[at] == pytest.approx(rows.correct[inside].mean())
    error = (points.count * np.abs(points.confidence - points.accuracy)).sum() / rows.n
    assert error == pytest.approx(
        cb.metrics.expected_calibration_error(rows.confidence, rows.correct > 0, kind="confidence")
    )
    assert (points.low <= points.accuracy).all()
    assert (points.accuracy <= points.high).all()


def test_quantile_points_are_the_bins_of_adaece() -> None:
    rows = draw_rows(1003)
    points = binned_reliability(rows, 10, strategy="quantile")
    parts = np.array_split(np.arange(rows.n), 10)
    np.testing.assert_allclose(points.count, [len(part) for part in parts])
    np.testing.assert_allclose(points.confidence, [rows.confidence[p].mean() for p in parts])
    np.testing.assert_allclose(points.accuracy, [rows.correct[p].mean() for p in parts], atol=1e-12)
    assert len(binned_reliability(draw_rows(3), 10, strategy="quantile").count) == 3


def test_quantile_points_ignore_the_order_of_ties() -> None:
    rows = draw_rows(500, ties=True)
    other = np.random.default_rng(1).permutation(rows.n)
    shuffled = TopLabel.sort(rows.confidence[other], rows.correct[other])
    one, two = (
        binned_reliability(rows, strategy="quantile"),
        binned_reliability(shuffled, strategy="quantile"),
    )
    np.testing.assert_allclose(one.accuracy, two.accuracy, atol=1e-12)


def test_smoothed_curve_is_the_kernel_regression_of_the_residual() -> None:
    rows = draw_rows(800)
    curve = smoothed_reliability(rows, width=0.05)
    for x, y in zip(curve.confidence[::7], curve.accuracy[::7], strict=True):
        weight = np.exp(-0.5 * ((x - rows.confidence) / 0.05) ** 2)
        expected = x + np.average(rows.correct - rows.confidence, weights=weight)
        assert y == pytest.approx(min(max(expected, 0), 1), abs=1e-3)
    assert (curve.low <= curve.accuracy + 1e-9).all()
    assert (curve.accuracy <= curve.high + 1e-9).all()


def test_smoothed_curve_of_exactly_calibrated_rows_is_the_diagonal() -> None:
    levels = np.repeat([0.5, 0.75, 0.9, 1.0], 400)
    correct = np.concatenate([np.arange(400) < 400 * c for c in (0.5, 0.75, 0.9, 1.0)])
    curve = smoothed_reliability(TopLabel.sort(levels, correct))
    # At the end, where all rows are on one side, too; and no curve where there are no rows.
    assert curve.confidence.min() > 0.3
    assert curve.confidence.max() == 1.0
    np.testing.assert_allclose(curve.accuracy, curve.confidence, atol=1e-9)


def test_smoothed_band_matches_a_bootstrap_of_rows() -> None:
    rows = draw_rows(400)
    curve = smoothed_reliability(rows, width=0.1, points=11, resamples=2000)
    at = len(curve.confidence) // 2
    x = curve.confidence[at]
    weight = np.exp(-0.5 * ((x - rows.confidence) / 0.1) ** 2)
    drawn = np.random.default_rng(5).integers(rows.n, size=(2000, rows.n))
    residual = (rows.correct - rows.confidence) * weight
    found = x + residual[drawn].sum(axis=1) / weight[drawn].sum(axis=1)
    low, high = np.quantile(found, [0.025, 0.975])
    assert curve.low[at] == pytest.approx(low, abs=0.015)
    assert curve.high[at] == pytest.approx(high, abs=0.015)


def test_smoothed_curve_refuses_nonsense() -> None:
    with pytest.raises(InputError):
        smoothed_reliability(draw_rows(50), width=0)


def test_histogram_counts_every_row_once() -> None:
    rows = draw_rows(700)
    histogram = confidence_histogram(rows, 20)
    expected, _ = np.histogram(rows.confidence, np.arange(21) / 20)
    np.testing.assert_array_equal(histogram.count, expected)
    assert histogram.correct.sum() == rows.correct.sum()
    assert histogram.confidence == pytest.approx(rows.confidence.mean())


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n", [1, 7, 999])
def test_risk_coverage_counts_what_a_threshold_accepts(n: int, ties: bool) -> None:
    rows = draw_rows(n, ties)
    curve = risk_coverage(rows, points=50)
    for threshold, accepted, wrong in zip(
        curve.threshold, curve.accepted, curve.wrong, strict=True
    ):
        taken = rows.confidence >= threshold
        assert accepted == taken.sum()
        assert wrong == (1 - rows.correct[taken]).sum()
    assert curve.coverage[-1] == 1
    assert len(curve.threshold) <= 50
    assert (np.diff(curve.accepted) > 0).all()
    if n == 999 and not ties:
        assert np.abs(np.diff(curve.coverage) - 1 / 50).max() < 2 / n


def test_gap_is_the_mean_residual_with_its_score_interval() -> None:
    rows = draw_rows()
    gap = Gap.of(rows)
    residual = rows.confidence - rows.correct
    assert gap.value == pytest.approx(residual.mean())
    # An end is as far away as z of the standard errors that rows of that gap would have.
    p = rows.correct.mean()
    for end in (gap.low, gap.high):
        q = p + gap.value - end
        variance = residual.var() + q * (1 - q) - p * (1 - p)
        assert (end - gap.value) ** 2 == pytest.approx(1.959964**2 * variance / rows.n, rel=1e-6)


def test_classes_are_counted_by_prediction() -> None:
    rng = np.random.default_rng(3)
    predicted, confidence = rng.integers(6, size=500), rng.random(500)
    correct = rng.random(500) < 0.5
    scores = RowScores(confidence, predicted, correct, *(np.full((2, 500), np.nan)))
    table = class_table(scores, np.array([0, 2, 5, 9]))
    for i, label in enumerate([0, 2, 5]):
        mine = predicted == label
        assert table.count[i] == mine.sum()
        assert table.gap[i] == pytest.approx(confidence[mine].mean() - correct[mine].mean())
        assert table.low[i] <= table.gap[i] <= table.high[i]
    assert table.count[3] == 0
    assert np.isnan(table.gap[3])
    labels, total = classes_to_show([scores], None)
    assert labels.tolist() == list(range(6))
    assert total == 6
    worst, total = classes_to_show([scores], 6, limit=3)
    contribution = class_table(scores, labels).contribution
    assert set(worst) == set(np.argsort(-contribution)[:3])
    assert total == 6


def test_margin_groups_split_the_rows_by_quantile(sets: tuple[cb.Predictions, ...]) -> None:
    test = sets[1]
    margin = test.margins
    ordered = np.sort(test.scores, axis=1)
    np.testing.assert_allclose(margin, ordered[:, -1] - ordered[:, -2])
    scores = cb.evaluate(test, metrics=["ece"], resamples=2).scores
    groups = margin_groups(scores, margin)
    for group, rows in zip(
        groups, np.array_split(np.argsort(margin, kind="stable"), 4), strict=True
    ):
        assert group.rows == len(rows)
        assert group.margin == (margin[rows[0]], margin[rows[-1]])
        assert group.gap == pytest.approx(
            scores.confidence[rows].mean() - scores.correct[rows].mean()
        )
        assert group.low <= group.accuracy <= group.high
        assert group.points.count.sum() == pytest.approx(len(rows))
    assert len(margin_groups(scores, np.zeros(test.n))) == 1
    with pytest.raises(InputError, match="margins"):
        margin_groups(scores, margin[:-1])


def test_margin_temperature_knows_a_function_from_a_cloud(sets: tuple[cb.Predictions, ...]) -> None:
    fit, test = sets
    margin = test.margins
    smart = cb.SMART().fit(fit.logits, fit.labels)
    curve = margin_temperature(smart, test.logits, margin, points=60)
    assert curve.is_function
    assert len(curve.margin) <= 60
    assert curve.margin[0] == margin.min()
    assert curve.margin[-1] == margin.max()
    full = smart.temperatures(test.logits)
    for m, t in zip(curve.margin, curve.temperature, strict=True):
        assert t in full[margin == m]
    single = cb.TemperatureScaling().fit(fit.logits, fit.labels)
    assert margin_temperature(single, test.logits, margin).is_function
    entropy = cb.SMART(indicator="entropy").fit(fit.logits, fit.labels)
    assert not margin_temperature(entropy, test.logits, margin).is_function


def test_short_keeps_whole_numbers_and_marks_what_is_missing() -> None:
    assert short(np.array([2.0, 0.123456789, np.nan])) == [2, 0.12346, None]


def test_the_bound_of_the_risk_is_that_of_clopper_and_pearson() -> None:
    from scipy.stats import binomtest

    found = RiskCoverage(
        np.array([0.9, 0.8, 0.7, 0.6]), np.array([3, 10, 40, 80]), np.array([0, 10, 2, 9]), 80
    )
    for accepted, wrong, bound in zip(found.accepted, found.wrong, found.bound(0.95), strict=True):
        exact = binomtest(int(wrong), int(accepted)).proportion_ci(0.9, "exact").high
        assert bound == pytest.approx(exact)
