"""Proper scores, what they split into, and the refitted temperature."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression, minimize_scalar
from scipy.special import log_softmax

from calibrant.core.errors import InputError
from calibrant.metrics.binned import BinSums
from calibrant.metrics.decomposition import corp_decomposition, murphy_decomposition
from calibrant.metrics.proper import (
    accuracy,
    brier_score,
    negative_log_likelihood,
    top_label_nll,
)
from calibrant.metrics.refit import (
    measure_calibration,
    measure_refinement,
    refinement_split,
    refinement_split_of,
)
from calibrant.metrics.top_label import TopLabel
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax

Labelled = tuple[NDArray[np.float64], NDArray[np.int64]]


@pytest.fixture(scope="module")
def probs(overconfident: Labelled) -> Labelled:
    return softmax(overconfident[0]), overconfident[1]


# --- NLL, Brier, accuracy


def test_scores_are_their_definitions(probs: Labelled):
    p, y = probs
    onehot = np.eye(p.shape[1])[y]
    assert negative_log_likelihood(p, y) == pytest.approx(-np.log(p[onehot > 0]).mean())
    assert brier_score(p, y) == pytest.approx(((p - onehot) ** 2).sum(axis=1).mean())
    assert accuracy(p, y) == (p.argmax(axis=1) == y).mean()


def test_scores_have_laws(probs: Labelled):
    p, y = probs
    rng = np.random.default_rng(0)
    rows, classes = rng.permutation(len(y)), rng.permutation(p.shape[1])
    for metric in (negative_log_likelihood, brier_score, accuracy):
        value = metric(p, y)
        assert metric(p[rows], y[rows]) == pytest.approx(value)
        assert metric(p[:, classes], np.argsort(classes)[y]) == pytest.approx(value)
        assert metric(p.astype(np.float32), y) == pytest.approx(value, rel=1e-5)
        assert metric(torch.tensor(p), torch.tensor(y)) == pytest.approx(value)


def test_the_ranges_of_the_brier_score():
    certain = np.eye(2)
    assert brier_score(certain, np.array([0, 1])) == 0.0
    assert brier_score(certain, np.array([1, 0])) == 2.0
    assert brier_score(np.full((1, 4), 0.25), np.array([0])) == pytest.approx(0.75)


def test_an_impossible_label_costs_the_clip_and_not_infinity():
    p = np.array([[1.0, 0.0], [0.5, 0.5]])
    clip = -np.log(np.finfo(np.float32).tiny)
    assert negative_log_likelihood(p, np.array([1, 0])) == pytest.approx((clip + np.log(2)) / 2)
    narrow = negative_log_likelihood(p.astype(np.float16), np.array([1, 0]))
    assert narrow == pytest.approx((clip + np.log(2)) / 2)


def test_logits_lose_nothing_to_the_clip():
    z = np.array([[0.0, -500.0]])
    split = refinement_split_of(Predictions.from_logits(z, np.array([1])))
    assert split.nll == pytest.approx(500.0)


# --- splits of the top-label score


@st.composite
def rows(draw: st.DrawFn) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    n = draw(st.integers(1, 40))
    values = st.one_of(st.floats(0.001, 0.999), st.sampled_from([0.5, 0.25]))
    confidence = draw(st.lists(values, min_size=n, max_size=n))
    return np.array(confidence), np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))


@given(rows(), st.sampled_from(["brier", "log"]))
def test_corp_is_isotonic_recalibration(data: tuple[NDArray[np.float64], NDArray[np.bool_]], score):
    c, a = data

    def mean_score(p: NDArray[np.float64]) -> float:
        if score == "brier":
            return float(((p - a) ** 2).mean())
        return float(-np.log(np.maximum(np.where(a, p, 1 - p), 1e-300)).mean())

    # Ties are one observation; so they are averaged first.
    values, member = np.unique(c, return_inverse=True)
    weight = np.bincount(member)
    recalibrated = isotonic_regression(np.bincount(member, a) / weight, weights=weight).x[member]
    found = corp_decomposition(c, a, score, kind="confidence")
    base = mean_score(np.full(len(c), a.mean()))
    assert len(values) == len(weight)
    assert found.score == pytest.approx(mean_score(c))
    assert found.refinement == pytest.approx(mean_score(recalibrated), abs=1e-9)
    assert found.uncertainty == pytest.approx(base, abs=1e-9)
    assert found.miscalibration >= 0
    assert found.discrimination >= 0
    parts = found.miscalibration - found.discrimination + found.uncertainty
    assert parts == pytest.approx(found.score, abs=1e-9)


def test_a_recalibrated_forecast_has_no_miscalibration():
    c = np.array([0.25] * 4 + [0.5] * 4)
    a = np.array([1, 0, 0, 0, 1, 1, 0, 0])
    for split in (
        corp_decomposition(c, a, kind="confidence"),
        murphy_decomposition(c, a, kind="confidence"),
    ):
        assert split.miscalibration == pytest.approx(0.0, abs=1e-15)
        assert split.discrimination == pytest.approx(1 / 64)
        assert split.uncertainty == pytest.approx(3 / 8 * 5 / 8)


def test_murphy_is_exact_for_the_means_of_bins():
    rng = np.random.default_rng(0)
    c = rng.beta(3, 1, 1000)
    a = rng.random(1000) < c**2
    sums = BinSums.of(TopLabel.sort(c, a))
    means = sums.mean_confidence[np.clip(np.ceil(c * 15).astype(int) - 1, 0, 14)]
    found = murphy_decomposition(c, a, kind="confidence")
    assert found.score == pytest.approx(((means - a) ** 2).mean())
    parts = found.miscalibration - found.discrimination + found.uncertainty
    assert parts == pytest.approx(found.score)


def test_an_unknown_score_is_refused():
    with pytest.raises(InputError, match="score"):
        corp_decomposition(np.array([0.5]), np.array([True]), "spherical")


# --- the refitted temperature


def test_the_split_is_the_best_temperature(overconfident: Labelled):
    z, y = overconfident

    def loss(beta: float) -> float:
        return float(-log_softmax(beta * z, axis=1)[np.arange(len(y)), y].mean())

    best = minimize_scalar(loss, bounds=(0.05, 5), method="bounded", options={"xatol": 1e-9})
    found = refinement_split_of(Predictions.from_logits(z, y))
    assert found.refinement == pytest.approx(best.fun, abs=1e-9)
    assert found.inverse_temperature == pytest.approx(best.x, rel=1e-4)
    assert found.inverse_temperature == pytest.approx(0.5, abs=0.03)
    assert found.nll == pytest.approx(loss(1.0))
    assert found.calibration + found.refinement == pytest.approx(found.nll)
    again = refinement_split(softmax(z), y)
    assert again.calibration == pytest.approx(found.calibration, abs=1e-6)


def test_the_split_stops_at_the_ends_of_its_range():
    z = np.eye(3)[[0, 1, 2]] * 4.0
    perfect = refinement_split_of(Predictions.from_logits(z, np.array([0, 1, 2])))
    assert perfect.inverse_temperature == pytest.approx(16.0)
    hopeless = refinement_split_of(Predictions.from_logits(z, np.array([1, 2, 0])))
    assert hopeless.inverse_temperature == pytest.approx(1 / 16)
    assert hopeless.calibration > 0


def test_what_is_refitted_needs_no_temperature(overconfident: Labelled):
    z, y = overconfident
    first = refinement_split_of(Predictions.from_logits(z, y))
    again = refinement_split_of(Predictions.from_logits(first.inverse_temperature * z, y))
    assert again.calibration == pytest.approx(0.0, abs=1e-8)
    assert again.refinement == pytest.approx(first.refinement)


@pytest.mark.parametrize("classes", [5, 100])
def test_resampled_splits_are_refits(labelled_logits: Callable[..., Labelled], classes: int):
    z, y = labelled_logits(300, classes)
    predictions = Predictions.from_logits(z, y)
    split = refinement_split_of(predictions)
    calibration, refinement = (
        measure(predictions, 50, 0) for measure in (measure_calibration, measure_refinement)
    )
    assert calibration.value == pytest.approx(split.calibration)
    assert refinement.value == pytest.approx(split.refinement)
    rng = np.random.default_rng([0, 3])
    for i in range(5):
        counts = np.bincount(rng.integers(300, size=300), minlength=300)
        drawn = predictions.take(np.repeat(np.arange(300), counts))
        exact = refinement_split_of(drawn)
        assert calibration.replicates[i] == pytest.approx(exact.calibration, rel=2e-3)
        assert refinement.replicates[i] == pytest.approx(exact.refinement, rel=2e-4)
    # One parameter fits about 1 / (2 N) nats of noise.
    assert calibration.honest is not None
    assert calibration.honest.mean() == pytest.approx(1 / 600, rel=0.6)
    assert split.calibration > np.quantile(calibration.honest, 0.95)


# --- the log loss of being right


@given(st.lists(st.tuples(st.floats(0.01, 0.99), st.booleans()), min_size=1, max_size=30))
def test_the_top_label_nll_is_that_of_the_event_that_the_label_is_right(
    rows: list[tuple[float, bool]],
):
    said, right = np.array([c for c, _ in rows]), np.array([r for _, r in rows])
    by_hand = -np.mean([np.log(c if r else 1 - c) for c, r in rows])
    value = top_label_nll(said, right, kind="confidence")
    assert value == pytest.approx(by_hand)
    both = np.stack([1 - said, said], axis=1)
    assert value == pytest.approx(negative_log_likelihood(both, right.astype(int)))
    weight = np.arange(1.0, len(rows) + 1)
    repeated = np.repeat(np.arange(len(rows)), np.arange(1, len(rows) + 1))
    again = top_label_nll(said[repeated], right[repeated], kind="confidence")
    assert top_label_nll(said, right, kind="confidence", sample_weight=weight) == pytest.approx(
        again
    )


def test_no_constant_beats_the_accuracy_in_top_label_nll():
    right = np.arange(100) < 73
    tried = {c: top_label_nll(np.full(100, c), right, kind="confidence") for c in (0.6, 0.73, 0.8)}
    assert min(tried, key=lambda c: tried[c]) == 0.73


def test_of_two_classes_the_top_label_nll_is_the_nll(overconfident: Labelled):
    probs = softmax(overconfident[0][:, :2])
    labels = overconfident[1] % 2
    assert top_label_nll(probs, labels) == pytest.approx(negative_log_likelihood(probs, labels))
    assert top_label_nll(probs[:, 1], labels, kind="prob") == pytest.approx(
        negative_log_likelihood(probs, labels)
    )


def test_a_wrong_row_whose_confidence_was_rounded_to_1_costs_a_step_of_float32():
    step = np.nextafter(np.float32(1), np.float32(0), dtype=np.float32)
    sure, nearly = (top_label_nll([c], [False], kind="confidence") for c in (1.0, float(step)))
    assert sure == pytest.approx(nearly + np.log(2))  # half of a step is what 1 may hide
    assert top_label_nll([1.0], [True], kind="confidence") == 0
