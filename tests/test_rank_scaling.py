"""A slope and an offset for each rank (MCCT): against a general optimiser, and the law of order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import LinearConstraint, approx_fprime, minimize

import calibrant as cb
from calibrant.posthoc.linear.by_rank import Ranked, RankScaling
from calibrant.predictions.predictions import Predictions


def rows_of(n, classes, seed, masked=False, tied=False):
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(n, classes)) - 5
    if tied:
        logits = np.round(logits)
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    if masked:
        hidden = rng.random(logits.shape) < 0.3
        hidden[np.arange(n), labels] = hidden[np.arange(n), (labels + 1) % classes] = False
        logits[hidden] = -np.inf
    return logits, labels


def scores_by_hand(logits, slopes, offsets):
    """Every row and class by itself: its rank, tied ones the lower, and a_r (z - o) + b_r."""
    found = np.full(logits.shape, -np.inf)
    for i, row in enumerate(logits):
        known = np.sort(row[row > -np.inf])[::-1]
        origin = known[: len(slopes)][-1]
        for k, z in enumerate(row):
            if z > -np.inf:
                rank = min(int((row >= z).sum()), len(slopes)) - 1
                found[i, k] = slopes[rank] * (z - origin) + offsets[rank]
    return found


def nll_by_hand(logits, labels, slopes, offsets, weights=None):
    scores = scores_by_hand(logits, slopes, offsets)
    scores = scores - scores.max(axis=1, keepdims=True)
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(labels)), labels]
    return np.average(losses, weights=weights)


@pytest.mark.parametrize("classes", [2, 3, 8])
@pytest.mark.parametrize("case", ["plain", "masked", "tied"])
def test_likelihood_and_derivatives_are_those_of_rows_mapped_one_by_one(classes, case) -> None:
    logits, labels = rows_of(60, classes, 1, case == "masked", case == "tied")
    weights = np.random.default_rng(0).uniform(0.5, 2, 60)
    rows = Predictions.from_logits(logits, labels, sample_weight=weights).counted
    ranks = min(4, classes)
    beta = 0.7
    ranked = Ranked.of(rows, rows.summary, beta, ranks)
    slopes = np.linspace(1.5, 0.4, ranks)
    offsets = np.append(np.linspace(1.0, 0.3, ranks - 1), 0.0)
    value, gradient, curvature = ranked.nll(slopes, offsets)

    def by_hand(vector):
        return nll_by_hand(logits, labels, beta * vector[:ranks], vector[ranks:], weights)

    place = np.concatenate([slopes, offsets])
    assert value == pytest.approx(by_hand(place), rel=1e-10)
    slope = approx_fprime(place, by_hand, 1e-7)
    np.testing.assert_allclose(gradient, slope, atol=2e-6)
    for k, column in enumerate(curvature.T[:-1]):  # the last offset is always 0
        step = 1e-5 * np.eye(2 * ranks)[k]
        ends = (ranked.nll(*np.split(place + sign * step, 2))[1] for sign in (1, -1))
        np.testing.assert_allclose(column, np.subtract(*ends) / 2e-5, atol=1e-7)


def test_the_optimum_is_the_one_that_a_constrained_optimiser_finds() -> None:
    logits, labels = rows_of(250, 6, 2)
    ranks = 3
    rows = Predictions.from_logits(logits, labels)
    found = RankScaling(ranks=ranks).fit_predictions(rows)
    beta = rows.temperature.beta

    def objective(vector):
        slopes, offsets = vector[:ranks], np.append(vector[ranks:], 0.0)
        pull = ((slopes - 1) ** 2).sum() + (offsets**2).sum()
        return nll_by_hand(logits, labels, beta * slopes, offsets) + pull / len(labels)

    falls = np.eye(2 * ranks - 1) - np.eye(2 * ranks - 1, k=1)
    falls[ranks - 1, ranks] = 0  # the last slope is above 0, and so is the last offset

    best = minimize(
        objective,
        np.append(np.ones(ranks), np.zeros(ranks - 1)),
        method="SLSQP",
        constraints=LinearConstraint(falls, 0, np.inf),
        options={"ftol": 1e-12, "maxiter": 300},
    )
    assert best.success
    assert found.fit_report_.value == pytest.approx(best.fun, abs=1e-7)
    slopes = np.cumsum(found.steps_[::-1])[::-1]
    np.testing.assert_allclose(slopes, best.x[:ranks], atol=2e-3)


@pytest.mark.parametrize("case", ["plain", "masked", "tied"])
def test_the_map_is_that_of_rows_mapped_one_by_one(case) -> None:
    logits, labels = rows_of(200, 7, 3, case == "masked", case == "tied")
    found = RankScaling(ranks=4).fit(logits, labels)
    slopes = found.beta_ * np.cumsum(found.steps_[::-1])[::-1]
    offsets = np.append(np.cumsum(found.lifts_[::-1])[::-1], 0.0)
    scores = scores_by_hand(logits, slopes, offsets)
    wanted = np.exp(scores - scores.max(axis=1, keepdims=True))
    wanted /= wanted.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found.predict_proba(logits), wanted, atol=1e-12)


@settings(max_examples=100)
@given(
    hnp.arrays(np.float32, (4, 6), elements=st.floats(-50, 50, width=32)),
    hnp.arrays(float, 4, elements=st.floats(0, 5)),
    hnp.arrays(float, 3, elements=st.floats(0, 5)),
    st.sampled_from([np.float32, np.float64]),
)
def test_no_two_classes_ever_change_places(logits, steps, lifts, dtype) -> None:
    found = RankScaling(ranks=4).fit(*rows_of(20, 6, 0))
    found.steps_, found.lifts_ = steps, lifts
    logits = logits.astype(dtype)
    probs = found.predict_proba(logits)
    order = np.argsort(logits, axis=1, kind="stable")
    assert (np.diff(np.take_along_axis(probs, order, axis=1), axis=1) >= 0).all()


def test_with_the_origin_of_negative_logits_they_would() -> None:
    # As published: slopes that rise with the rank times the logits as they are.
    logits, slopes = np.array([-2.0, -1.0]), np.array([0.1, 1.0])
    assert (slopes * logits).argmax() != logits.argmax()


def test_a_strong_ridge_is_temperature_scaling() -> None:
    logits, labels = rows_of(300, 5, 4)
    ranked = RankScaling(ridge=1e9).fit(logits, labels).predict_proba(logits)
    plain = cb.TemperatureScaling().fit(logits, labels).predict_proba(logits)
    np.testing.assert_allclose(ranked, plain, atol=1e-6)


def test_it_finds_slopes_that_differ_by_rank() -> None:
    rng = np.random.default_rng(5)
    logits = 2 * rng.normal(size=(5_000, 5))
    truth = scores_by_hand(logits, np.array([2.0, 1.0, 0.5]), np.array([1.0, 0.5, 0.0]))
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)
    found = RankScaling(ranks=3).fit(logits, labels)
    np.testing.assert_allclose(
        found.beta_ * np.cumsum(found.steps_[::-1])[::-1], [2.0, 1.0, 0.5], atol=0.25
    )
    np.testing.assert_allclose(np.cumsum(found.lifts_[::-1])[::-1], [1.0, 0.5], atol=0.25)


def test_many_classes_by_a_table_are_those_by_hand() -> None:
    logits, labels = rows_of(300, 90, 6)
    found = RankScaling().fit(logits, labels)
    slopes = found.beta_ * np.cumsum(found.steps_[::-1])[::-1]
    offsets = np.append(np.cumsum(found.lifts_[::-1])[::-1], 0.0)
    pull = ((slopes / found.beta_ - 1) ** 2).sum() + (offsets**2).sum()
    by_hand = nll_by_hand(logits, labels, slopes, offsets) + pull / 300
    assert found.fit_report_.value == pytest.approx(by_hand, abs=1e-6)
