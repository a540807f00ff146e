"""How many rows it takes to see a calibration error."""

import numpy as np
import pytest

import calibrant as cb
from calibrant.evaluation.power import _BinLaw, smallest_visible_error
from calibrant.metrics.top_label import TopLabel

CONFIDENCE = 1 - 0.5 * np.random.default_rng(0).beta(0.5, 2.0, 5000)


def test_a_smaller_error_takes_more_rows_and_about_the_square_of_them():
    wide, narrow = (cb.rows_needed(CONFIDENCE, ece).rows for ece in (0.04, 0.01))
    assert wide is not None
    assert narrow is not None
    assert 6 < narrow / wide < 40


def test_the_test_has_the_power_and_the_false_alarms_that_were_asked_for():
    found = cb.rows_needed(CONFIDENCE, 0.03, power=0.8, significance=0.05)
    assert found.rows is not None
    rng = np.random.default_rng(1)

    def share_seen(gap):
        seen = 0
        for _ in range(120):
            drawn = rng.choice(CONFIDENCE, found.rows)
            right = rng.random(found.rows) < drawn - gap
            result = cb.evaluate(
                cb.Predictions.from_confidence(drawn, np.zeros(found.rows, int), ~right * 1),
                metrics=["ece"],
                resamples=200,
            )
            seen += not result["ece"].at_floor
        return seen / 120

    # Standard errors .037 and .02.
    assert share_seen(0.03) == pytest.approx(0.8, abs=0.15)
    assert share_seen(0.0) < 0.12


@pytest.mark.parametrize("ece", [0.02, 0.15])
def test_the_answer_hardly_depends_on_the_seed(ece):
    rows = [cb.rows_needed(CONFIDENCE, ece, seed=seed).rows for seed in range(4)]
    assert max(rows) <= 1.1 * min(rows)


def test_simulated_errors_are_those_of_rows():
    # Rows drawn one by one, sorted into bins and measured, have the same mean and the same tail.
    rng = np.random.default_rng(2)
    for shift, rows in ((0.0, 60), (0.08, 60), (0.08, 1500)):
        drawn = rng.choice(CONFIDENCE, (1500, rows))
        right = rng.random(drawn.shape) < drawn - shift
        slow = [
            cb.metrics.expected_calibration_error(c, a, kind="confidence")
            for c, a in zip(drawn, right, strict=True)
        ]
        quick = _BinLaw.of(CONFIDENCE, shift).simulated_ece(rows, seed=0)
        spread = np.std(slow)
        assert abs(np.mean(slow) - quick.mean()) < 4 * spread / np.sqrt(1500)
        np.testing.assert_allclose(np.std(quick), spread, rtol=0.1)
        assert abs(np.quantile(slow, 0.95) - np.quantile(quick, 0.95)) < 0.3 * spread


def test_the_smallest_visible_error_is_the_other_way_round():
    rows = cb.rows_needed(CONFIDENCE, 0.04).rows
    assert smallest_visible_error(CONFIDENCE, rows) == pytest.approx(0.04, rel=0.05)
    assert smallest_visible_error(np.full(10, 0.6), 1) is None


def test_an_error_that_no_feasible_number_of_rows_shows():
    found = cb.rows_needed(TopLabel.sort(CONFIDENCE, CONFIDENCE > 0).confidence, 1e-5)
    assert found.rows is None
    assert "more than" in str(found)


@pytest.mark.parametrize("arguments", [{"ece": 0.0}, {"ece": 0.99}, {"ece": 0.01, "power": 1.0}])
def test_arguments_out_of_range_are_refused(arguments):
    with pytest.raises(cb.InputError):
        cb.rows_needed(CONFIDENCE, **arguments)
