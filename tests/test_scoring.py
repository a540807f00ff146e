"""The pass over the rows that metrics rest on."""

import numpy as np
import pytest

from calibrant.core.arrays import ascending, largest_entries
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import score_rows


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_confidences_next_to_one_do_not_depend_on_the_dtype(library):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2000, 80)).astype(np.float32)
    logits[np.arange(2000), rng.integers(80, size=2000)] += 22
    labels = rng.integers(80, size=2000)
    narrow, wide = logits, logits.astype(np.float64)
    if library == "torch":
        torch = pytest.importorskip("torch")
        narrow, wide = torch.asarray(narrow), torch.asarray(wide)
    single = score_rows(Predictions.from_logits(narrow, labels))
    double = score_rows(Predictions.from_logits(wide, labels))
    assert len(np.unique(single.confidence)) > 1900
    # What is left of the confidence is right to float32, however small it is.
    np.testing.assert_allclose(1 - single.confidence, 1 - double.confidence, rtol=1e-5, atol=1e-15)
    np.testing.assert_allclose(single.nll, double.nll, rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(single.brier, double.brier, atol=1e-6)


def test_scores_of_probabilities_are_those_of_their_logits():
    logits = np.random.default_rng(1).normal(size=(50, 4))
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = np.arange(50) % 4
    one = score_rows(Predictions.from_logits(logits, labels))
    other = score_rows(Predictions.from_probs(probs, labels))
    for name in ("confidence", "predicted", "correct", "nll", "brier"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("classes", [1, 2, 10, 24, 25])
def test_the_largest_entry_is_the_first_of_tied_ones_however_it_is_found(classes, dtype):
    rng = np.random.default_rng(classes)
    for n in (3, 500):
        rows = rng.integers(-3, 3, size=(n, classes)).astype(dtype)
        rows[::3] = -np.inf
        for hole in (False, True):
            rows[1, classes // 2] = np.nan if hole else 0.0
            index, most = largest_entries(rows)
            np.testing.assert_array_equal(index, rows.argmax(axis=1))
            np.testing.assert_array_equal(most, rows.max(axis=1))


def test_numbers_are_put_in_order_with_tied_ones_as_they_stand() -> None:
    rng = np.random.default_rng(5)
    numbers = rng.normal(size=3_000)
    for values in (
        numbers,
        np.round(numbers, 1),  # runs of many, and -0.0 beside 0.0
        np.float64(np.float32(0.5) + np.float32(1e-7) * rng.integers(20, size=3_000)),
        np.where(rng.random(3_000) < 0.1, np.nan, np.round(numbers, 2)),
        np.full(300, 0.25),
        np.empty(0),
    ):
        np.testing.assert_array_equal(ascending(values), np.argsort(values, kind="stable"))
