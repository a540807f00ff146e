"""Awkward inputs whose right answer is known: every method answers rightly, or says why it can't.

Labels are drawn from softmax(z*), and 2 z* are reported: the right temperature is 2, and 2.004 is
that of the greatest likelihood on these rows.
"""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import pytest
from feature_rows import QUICK

from calibrant import synthetic
from calibrant.core.errors import (
    BoundaryWarning,
    CalibrationWarning,
    MisreadWarning,
    NotApplicableError,
    NotIdentifiedWarning,
    PredictionsError,
)
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.registry import METHODS, make_calibrator
from calibrant.predictions.rows import softmax

TRUTH = synthetic.tempered(2000, 10, seed=43)
LOGITS, LABELS = TRUTH.predictions.scores, TRUTH.predictions.labels
NARROW = LOGITS.astype(np.float32)
MASKED = np.where(np.arange(10) == 3, -np.inf, NARROW)
OTHERS, SEEN = LABELS != 3, LABELS != 9

# The input, the right temperature and how close a fit has to come.
TRAPS = {
    "plain": (NARROW, LABELS, 2.004, 1e-3),
    "float64": (LOGITS, LABELS, 2.004, 1e-3),
    "float16": (LOGITS.astype(np.float16), LABELS, 2.004, 1e-3),
    "logits x 50": (50 * NARROW, LABELS, 100.2, 0.1),
    "logits / 50": (NARROW / 50, LABELS, 0.0401, 1e-4),
    "every logit + 1000": (NARROW + 1000, LABELS, 2.004, 1e-3),
    "a masked class": (MASKED[OTHERS], LABELS[OTHERS], 2.0, 0.02),
    "a mask in some rows": (
        np.where(np.arange(len(LABELS))[:, None] % 2 * OTHERS[:, None], MASKED, NARROW),
        LABELS,
        2.0,
        0.02,
    ),
    "last class absent": (NARROW[SEEN], LABELS[SEEN], 2.0, 0.01),
    "uint8 labels": (NARROW, LABELS.astype(np.uint8), 2.004, 1e-3),
}
# Here likelihood has no finite optimum, or none that is told from chance.
EXTREMES = {
    "all right": (NARROW, LOGITS.argmax(axis=1), BoundaryWarning, (1e-3, 0.5)),
    "random labels": (
        NARROW,
        np.random.default_rng(0).integers(10, size=len(LABELS)),
        NotIdentifiedWarning,
        (20, 2e4),
    ),
}
every_method = pytest.mark.parametrize("method", METHODS)


def fitted(method: str, logits, labels) -> tuple[Calibrator, set[type[Warning]]]:
    """Fit, and return what was warned of as well."""
    kind = METHODS[method]
    if getattr(kind, "needs", ()):
        pytest.skip(f"it needs {' and '.join(kind.needs)}, which the traps don't have")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            calibrator = make_calibrator(method, **QUICK.get(method, {})).fit(logits, labels)
        except NotApplicableError as reason:
            pytest.skip(str(reason))
    assert all(issubclass(w.category, CalibrationWarning) for w in caught)
    return calibrator, {w.category for w in caught}


@cache
def fitted_to(trap: str, method: str) -> tuple[Calibrator, set[type[Warning]]]:
    return fitted(method, *TRAPS[trap][:2])


def single_temperature(calibrator: Calibrator) -> float | None:
    """The one temperature that a method rests on, if it does."""
    beta = getattr(calibrator, "beta_", getattr(calibrator, "reference_", None))
    return None if beta is None or np.ndim(beta) else 1 / float(beta)


def assert_distributions(probs: np.ndarray, logits: np.ndarray) -> None:
    assert np.isfinite(probs).all()
    assert (probs >= 0).all()
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(probs[logits == -np.inf], 0)


def gap_of_means(probs: np.ndarray, labels) -> float:
    """Return how far mean confidence lies from accuracy."""
    return abs(probs.max(axis=1).mean() - (probs.argmax(axis=1) == labels).mean())


@every_method
@pytest.mark.parametrize("trap", TRAPS)
def test_traps_are_answered_rightly(method, trap):
    logits, labels, wanted, tolerance = TRAPS[trap]
    calibrator, warned = fitted_to(trap, method)
    # Similarities look like logits that were divided by so much.
    assert warned == ({MisreadWarning} if trap in ("logits / 50", "logits x 50") else set())
    found = single_temperature(calibrator)
    if found is not None:
        assert found == pytest.approx(wanted, abs=tolerance)
    probs = np.asarray(calibrator.predict_proba(logits))
    assert_distributions(probs, logits)
    # Whatever a method can do, the mean confidence of its rows becomes their accuracy; clipping
    # can only bound it, so it is held to its control.
    if method == "logit-clipping":
        assert gap_of_means(probs, labels) <= gap_of_means(softmax(logits), labels) + 0.02
    elif method != "none":
        right = probs.argmax(axis=1) == labels
        # "irm" maps probabilities one by one, and flat rows change when they are normalised.
        flat = method == "irm" and trap == "logits / 50"
        # These rows have the tails of Gumbel noise, which "probit" doesn't.
        allowed = 0.1 if flat else 0.05 if method == "probit" else 0.02
        assert abs(probs.max(axis=1).mean() - right.mean()) < allowed
    if calibrator.keeps_prediction:
        np.testing.assert_array_equal(
            calibrator.predict_confidence(logits)[0], logits.argmax(axis=1)
        )


@every_method
@pytest.mark.parametrize("extreme", EXTREMES)
def test_extremes_are_bounded_and_said_aloud(method, extreme):
    logits, labels, warning, (low, high) = EXTREMES[extreme]
    calibrator, warned = fitted(method, logits, labels)
    found = single_temperature(calibrator)
    if found is not None:
        assert low < found < high
        assert warning in warned
        assert calibrator.fit_report_.notes[0].startswith(f"{warning.__name__}: ")
    probs = np.asarray(calibrator.predict_proba(logits))
    assert_distributions(probs, logits)
    if method == "logit-clipping":
        assert gap_of_means(probs, labels) <= gap_of_means(softmax(logits), labels)
    elif method != "none":
        accuracy = (logits.argmax(axis=1) == labels).mean()
        assert abs(probs.max(axis=1).mean() - accuracy) < 0.05


@every_method
def test_a_masked_class_is_as_if_it_were_not_there(method):
    left = np.delete(np.arange(10), 3)
    without, _ = fitted(method, NARROW[OTHERS][:, left], np.searchsorted(left, LABELS[OTHERS]))
    masked, _ = fitted_to("a masked class", method)
    expected = without.predict_proba(NARROW[:, left])
    found = masked.predict_proba(MASKED)
    # Penalties and the uniform share that small bins are mixed with count the classes.
    exact = method in ("none", "temperature", "temperature-laplace", "ets", "smart", "top-rest")
    tolerance = 1e-5 if exact else 2e-2
    np.testing.assert_allclose(found[:, left], expected, atol=tolerance)
    np.testing.assert_array_equal(found[:, 3], 0)


@every_method
def test_a_mask_at_apply_only(method):
    calibrator, _ = fitted_to("plain", method)
    probs = calibrator.predict_proba(MASKED)
    assert_distributions(probs, MASKED)
    # Hardly any class is left: all mass goes there, also where it is not on top elsewhere.
    few = np.full((3, 10), -np.inf, dtype=np.float32)
    few[:, 5] = 0.0
    few[1, 6], few[2, 7] = 0.0, -1e-3
    left = calibrator.predict_proba(few)
    assert_distributions(left, few)
    assert left[0, 5] == 1
    if calibrator.keeps_prediction:
        np.testing.assert_array_equal(left.argmax(axis=1)[[0, 2]], 5)


def test_methods_that_take_masks_say_so():
    refusing = [name for name, kind in METHODS.items() if not kind.fits_masked]
    for method in refusing:
        if not getattr(METHODS[method], "needs", ()):
            with pytest.raises(NotApplicableError, match="mask"):
                make_calibrator(method).fit(MASKED[OTHERS], LABELS[OTHERS])
    assert "temperature" not in refusing


@pytest.mark.parametrize(
    ("row", "label", "message"),
    [
        ([0.0, -np.inf, -np.inf], 0, "at least 2 classes that aren't -inf, but row 2 has 1"),
        ([-np.inf] * 3, 0, "at least 2 classes that aren't -inf, but row 2 has 0"),
        (
            [0.0, -np.inf, 1.0],
            1,
            "must not mask the true class with -inf, but row 2 masks its class 1",
        ),
        ([0.0, -np.inf, np.inf], 0, "row 2, column 2 holds inf"),
        ([0.0, -np.inf, np.nan], 0, "row 2, column 2 holds nan"),
    ],
)
def test_masks_that_leave_nothing_to_learn_are_refused(row, label, message):
    logits = np.array([[0.0, 1.0, 2.0], [0.0, -np.inf, 1.0], row])
    with pytest.raises(PredictionsError, match=message):
        make_calibrator("temperature").fit(logits, [0, 0, label])


def test_the_oracle_of_masked_rows():
    # Masking is conditioning: the honest probabilities of the others, in their proportions.
    probs = softmax(MASKED, 0.5)
    honest = TRUTH.honest.copy()
    honest[:, 3] = 0
    np.testing.assert_allclose(probs, honest / honest.sum(axis=1, keepdims=True), atol=1e-5)
