"""Intervals where hardly any row is wrong, or hardly any right, and where rows are few."""

import numpy as np
import pytest

import calibrant as cb
from calibrant.evaluation.uncertainty import Gap, wilson_interval
from calibrant.metrics.registry import METRICS
from calibrant.metrics.top_label import TopLabel

EQUAL = np.tile([0.9, 0.1], (50, 1))
NOUGHTS = np.zeros(50, dtype=int)
# Metrics whose value doesn't depend on how many rows are right: over-confidence here is none.
FLAT = {"overconfidence"}


def of_pairs(confidence, correct, **more) -> cb.Evaluation:
    pairs = cb.Predictions.from_confidence(confidence, np.zeros(len(correct), int), 1 - correct)
    return cb.evaluate(pairs, **more)


@pytest.mark.parametrize("labels", [NOUGHTS, NOUGHTS + 1], ids=["right", "wrong"])
@pytest.mark.parametrize("seed", [0, 1])
def test_rows_that_are_all_alike_get_intervals_of_some_width(labels, seed):
    found = cb.evaluate(EQUAL, labels, metrics="all", resamples=50, seed=seed)
    narrow = {name for name, r in found.results.items() if not r.high > r.low}
    assert narrow <= (FLAT if labels[0] == 0 else {"underconfidence"})
    for result in found.results.values():
        assert result.low <= result.value <= result.high
        assert np.isfinite([result.low, result.high]).all()
    # All of 50 right: the Clopper-Pearson bound is 92.9 %, which 46 rows fall short of.
    accuracy = found["accuracy"]
    if labels[0] == 0:
        assert (accuracy.low, accuracy.high) == (0.92, 1.0)
        assert found["ece"].low == pytest.approx(0.02)
        assert found["nll"].high == pytest.approx(-0.92 * np.log(0.9) - 0.08 * np.log(0.1))
        assert found["brier"].high == pytest.approx(0.92 * 0.02 + 0.08 * 1.62)


def test_one_row_says_next_to_nothing():
    found = cb.evaluate(EQUAL[:1], NOUGHTS[:1], resamples=50)
    assert (found["accuracy"].low, found["accuracy"].high) == (0, 1)
    assert (found["ece"].low, found["ece"].high) == (pytest.approx(0.1), pytest.approx(0.9))


def test_a_gap_of_equal_confidences_has_wilsons_interval():
    for hits in (0, 3, 17, 20):
        correct = np.repeat([1.0, 0.0], [hits, 20 - hits])
        rows = TopLabel.sort(np.full(20, 0.7), correct)
        low, high = wilson_interval(np.array([hits]), np.array([20]), 0.9)
        expected = (0.7 - hits / 20, 0.7 - high[0], 0.7 - low[0])
        np.testing.assert_allclose(Gap.of(rows, 0.9), expected, atol=1e-12)


def test_a_gap_of_many_rows_has_the_normal_interval():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.3, 1, 20_000)
    rows = TopLabel.sort(confidence, rng.random(20_000) < confidence - 0.1)
    residual = rows.confidence - rows.correct
    half = 1.96 * residual.std() / np.sqrt(20_000)
    expected = residual.mean(), residual.mean() - half, residual.mean() + half
    np.testing.assert_allclose(Gap.of(rows, 0.95), expected, atol=1e-4)


def test_intervals_of_an_accurate_model_hold_the_truth():
    # 60 rows of a model that is right in 97 of 100: one in six sets has no error at all.
    rng = np.random.default_rng(1)
    draws = [rng.random(60) < 0.97 for _ in range(600)]
    confidence = np.full(60, 0.99)
    expected = float(np.mean([abs(0.99 - correct.mean()) for correct in draws]))
    held = np.zeros(3)
    for correct in draws[:150]:
        found = of_pairs(confidence, correct.astype(int), metrics=["ece", "accuracy"], resamples=60)
        ece, accuracy, gap = found["ece"], found["accuracy"], found.gap
        held += (
            ece.low <= expected <= ece.high,
            accuracy.low <= 0.97 <= accuracy.high,
            (gap[1] <= 0.02 <= gap[2]),
        )
    # Resamples alone held it in 81 to 85 % of the sets.
    assert (held >= 0.92 * 150).all()


def test_enough_rows_of_both_outcomes_change_nothing(overconfident):
    logits, labels = overconfident
    found = cb.evaluate(cb.Predictions.from_logits(logits, labels), metrics="nll", resamples=80)
    low, high = np.quantile(found["nll"].replicates, [0.025, 0.975])
    # Replicates are kept to seven digits.
    assert (found["nll"].low, found["nll"].high) == pytest.approx((low, high), rel=2.0**-23)


def test_few_rows_are_said_to_tell_nothing():
    rng = np.random.default_rng(2)
    confidence = rng.uniform(0.6, 0.99, 5)
    text = of_pairs(confidence, np.array([1, 1, 0, 1, 1]), resamples=100).headline()
    assert text.startswith("Not distinguishable from perfectly calibrated with 5 rows")
    assert "So few rows prove little: they mostly miss an ECE below" in text
    one = of_pairs(np.array([0.6]), np.array([1]), resamples=100).headline()
    assert "with 1 row (" in one
    assert "even a model that is never right would pass" in one
    confidence = rng.uniform(0.6, 0.99, 5000)
    correct = (rng.random(5000) < confidence).astype(int)
    assert "can't tell" not in of_pairs(confidence, correct, resamples=100).headline()


def test_every_metric_is_among_them():
    found = cb.evaluate(EQUAL, NOUGHTS, metrics="all", resamples=20)
    assert set(found.results) == set(METRICS)


def test_more_parameters_than_rows_are_named(overconfident):
    logits, labels = overconfident
    few, many = (cb.SMART().fit(logits[:n], labels[:n]) for n in (6, 500))
    said = "6 rows can't determine the 49 parameters of 'smart'; a method with fewer is safer"
    assert said in few.fit_report_.notes
    assert not any("can't determine" in note for note in many.fit_report_.notes)
