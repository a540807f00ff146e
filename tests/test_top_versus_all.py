"""Top-versus-all scaling: against the binary cross-entropy written out, and its laws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import approx_fprime, minimize, minimize_scalar

import calibrant as cb
from calibrant.posthoc.linear.top_versus_all import TopLikelihood, TopVersusAll


def binary_cross_entropy(probs, top, correct):
    confidence = probs[np.arange(len(probs)), top]
    return -np.log(np.where(correct, confidence, 1 - confidence)).mean()


def softmax(scores):
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def rows():
    """Overconfident rows of seven classes, of which two are favoured."""
    rng = np.random.default_rng(3)
    logits = 3 * rng.normal(size=(600, 7))
    truth = logits / 2 - np.array([1.0, 0.6, 0, 0, 0, 0, 0])
    return logits, (truth + rng.gumbel(size=logits.shape)).argmax(axis=1)


def test_the_temperature_is_the_one_of_least_binary_cross_entropy(rows) -> None:
    logits, labels = rows
    top = logits.argmax(axis=1)
    best = minimize_scalar(
        lambda log: binary_cross_entropy(softmax(logits * np.exp(log)), top, top == labels),
        bounds=(-3, 3),
        method="bounded",
        options={"xatol": 1e-10},
    )
    found = TopVersusAll().fit(logits, labels)
    assert found.weight_ == pytest.approx(np.full(7, np.exp(best.x)), rel=1e-5)
    assert found.fit_report_.value == pytest.approx(best.fun, abs=1e-10)
    np.testing.assert_allclose(
        found.predict_proba(logits), softmax(logits * np.exp(best.x)), atol=1e-5
    )


def test_the_vector_is_a_least_of_the_penalised_cross_entropy(rows) -> None:
    logits, labels = rows
    top, found = logits.argmax(axis=1), TopVersusAll(scaling="vector").fit(logits, labels)
    beta = found.beta_
    inputs = beta * logits - np.log(np.exp(beta * logits).sum(axis=1, keepdims=True))

    def objective(vector):
        probs = softmax(inputs * (1 + vector[:7]) + vector[7:])
        pull = 7 / len(labels) * (vector @ vector)
        return binary_cross_entropy(probs, top, top == labels) + pull

    place = np.concatenate([found.change_, found.bias_])
    assert found.fit_report_.value == pytest.approx(objective(place), abs=1e-9)
    np.testing.assert_allclose(approx_fprime(place, objective, 1e-7), 0, atol=2e-5)
    best = minimize(objective, np.zeros(14), method="BFGS", options={"gtol": 1e-6})
    np.testing.assert_allclose(place, best.x, atol=2e-3)


def test_likelihood_and_gradient_of_weighted_and_masked_rows(rows) -> None:
    logits, labels = rows[0][:80].copy(), rows[1][:80]
    top = logits.argmax(axis=1)
    logits[np.arange(80), logits.argmin(axis=1)] = -np.inf
    weights = np.random.default_rng(0).uniform(0.5, 2, 80)
    correct = (top == labels).astype(float)
    likelihood = TopLikelihood(
        logits, top, 0.5, square=False, inputs="log-probabilities", weights=weights, correct=correct
    )
    place = np.random.default_rng(1).normal(scale=0.2, size=14)
    known = np.where(logits > -np.inf, logits, -1e9)
    inputs = 0.5 * known - np.log(np.exp(0.5 * known).sum(axis=1, keepdims=True))

    def by_hand(vector):
        probs = softmax(inputs * (1 + vector[:7]) + np.where(logits > -np.inf, vector[7:], 0))
        confidence = probs[np.arange(80), top]
        return float(-(weights * np.log(np.where(correct > 0, confidence, 1 - confidence))).sum())

    value, by_change, by_bias = likelihood.nll(place[:7], place[7:])
    assert value == pytest.approx(by_hand(place), rel=1e-9)
    slopes = approx_fprime(place, by_hand, 1e-7)
    np.testing.assert_allclose(np.concatenate([by_change, by_bias]), slopes, atol=2e-4)


def test_with_two_classes_it_is_temperature_scaling() -> None:
    rows = cb.synthetic.tempered(500, 2).predictions
    plain = cb.TemperatureScaling().fit_predictions(rows)
    found = TopVersusAll().fit_predictions(rows)
    np.testing.assert_allclose(found.weight_, plain.beta_, rtol=1e-5)


def test_one_temperature_keeps_predictions_and_says_so(rows) -> None:
    logits, labels = rows
    kept = TopVersusAll().fit(logits, labels)
    moved = TopVersusAll(scaling="vector").fit(logits, labels)
    assert kept.keeps_prediction
    assert not moved.keeps_prediction
    before = logits.argmax(axis=1)
    assert (kept.predict_proba(logits).argmax(axis=1) == before).all()
    assert (moved.predict_proba(logits).argmax(axis=1) != before).any()
