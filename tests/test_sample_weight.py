"""`sample_weight` of the metric functions: whole weights are repeated rows, 0 is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calibrant as cb
from calibrant.core.errors import InputError, PredictionsError

# Of confidences with what was right.
OF_PAIRS: dict[str, Callable[..., Any]] = {
    name: getattr(cb.metrics, name)
    for name in (
        "adaptive_calibration_error",
        "aurc",
        "average_calibration_error",
        "calibration_in_the_large",
        "calibration_slope_intercept",
        "corp_decomposition",
        "debiased_expected_calibration_error",
        "debiased_rms_calibration_error",
        "eaurc",
        "ece_sweep",
        "expected_calibration_error",
        "kde_ece",
        "ks_error",
        "maximum_calibration_error",
        "mmce",
        "murphy_decomposition",
        "overconfidence_error",
        "rms_calibration_error",
        "smooth_calibration_error",
        "smooth_ece",
        "underconfidence_error",
    )
}
OF_ROWS = {
    name: getattr(cb.metrics, name)
    for name in ("negative_log_likelihood", "brier_score", "accuracy")
}


def numbers(found: Any) -> np.ndarray:
    """Return what a function found as an array."""
    return np.asarray(list(vars(found).values()) if hasattr(found, "__dict__") else found, float)


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    confidence = rng.beta(4, 2, size=300)
    return confidence, rng.random(300) < confidence - 0.05, rng.integers(0, 4, size=300)


@pytest.mark.parametrize("name", OF_PAIRS)
def test_whole_weights_are_repeated_rows(name: str, rows) -> None:
    confidence, right, weight = rows
    weighed = OF_PAIRS[name](confidence, right, kind="confidence", sample_weight=weight)
    repeated = OF_PAIRS[name](
        np.repeat(confidence, weight), np.repeat(right, weight), kind="confidence"
    )
    np.testing.assert_allclose(numbers(weighed), numbers(repeated), rtol=1e-6, atol=2e-9)
    plain = OF_PAIRS[name](confidence, right, kind="confidence")
    assert not np.allclose(numbers(weighed), numbers(plain), rtol=1e-6)


@pytest.mark.parametrize("name", OF_ROWS)
def test_means_of_rows_are_weighted(name: str, rows) -> None:
    weight = rows[2]
    rng = np.random.default_rng(1)
    probs = rng.dirichlet(np.ones(4), size=300)
    labels = rng.integers(4, size=300)
    weighed = OF_ROWS[name](probs, labels, sample_weight=weight)
    repeated = OF_ROWS[name](np.repeat(probs, weight, axis=0), np.repeat(labels, weight))
    assert weighed == pytest.approx(repeated, rel=1e-12)


def test_curves_and_thresholds_are_weighted(rows) -> None:
    confidence, right, weight = rows
    again = np.repeat(confidence, weight), np.repeat(right, weight)
    for function, argument in (
        (cb.metrics.risk_at_coverage, 0.4),
        (cb.metrics.coverage_at_risk, 0.2),
    ):
        weighed = function(confidence, right, argument, kind="confidence", sample_weight=weight)
        assert weighed == pytest.approx(function(*again, argument, kind="confidence"))
    left = cb.metrics.expected_calibration_error(
        confidence, right, 7, "left-closed", kind="confidence", sample_weight=weight
    )
    wanted = cb.metrics.expected_calibration_error(*again, 7, "left-closed", kind="confidence")
    assert left == pytest.approx(wanted)


def test_wrong_weights_are_one_sentence(rows) -> None:
    confidence, right, weight = rows
    for wrong, sentence in (
        (-1.0 * weight, "must be finite and not negative, but row"),
        (0 * weight, "must be above 0 for at least one row"),
        (weight[:5], "sample_weight"),
    ):
        with pytest.raises(PredictionsError, match=sentence):
            cb.metrics.expected_calibration_error(
                confidence, right, kind="confidence", sample_weight=wrong
            )
    with pytest.raises(PredictionsError, match=r"must be whole numbers, but row 0 holds 0\.5"):
        cb.metrics.debiased_rms_calibration_error(
            confidence, right, kind="confidence", sample_weight=np.full(300, 0.5)
        )
    with pytest.raises(InputError, match="takes no weights"):
        cb.metrics.adaptive_calibration_error(
            confidence, right, 15, "focal", kind="confidence", sample_weight=weight
        )
