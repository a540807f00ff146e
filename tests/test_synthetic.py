"""Predictions with a known truth: the facts of the recipes, and what is said to be exact."""

from __future__ import annotations

import numpy as np
import pytest

import calibrant
from calibrant import SMART, TemperatureScaling, synthetic
from calibrant.core.errors import InputError
from calibrant.metrics.binned import expected_calibration_error
from calibrant.metrics.proper import accuracy, negative_log_likelihood
from calibrant.posthoc import IsotonicRegression


@pytest.mark.parametrize(
    ("classes", "facts"),
    [
        (100, {"acc": 0.724, "ece": 0.2053, "nll": 2.048, "honest": 0.0142, "oracle": 1.4003}),
        (1000, {"acc": 0.690, "ece": 0.2688, "nll": 3.457, "honest": 0.0056, "oracle": 2.2185}),
    ],
)
def test_facts_of_the_tempered_recipe(classes, facts):
    truth = synthetic.tempered(10_000, classes, temperature=2.0, seed=2)
    said, labels = truth.predictions.probs, truth.predictions.labels
    assert accuracy(said, labels) == pytest.approx(facts["acc"], abs=5e-4)
    assert expected_calibration_error(said, labels) == pytest.approx(facts["ece"], abs=5e-5)
    assert negative_log_likelihood(said, labels) == pytest.approx(facts["nll"], abs=5e-4)
    honest = truth.honest
    assert expected_calibration_error(honest, labels) == pytest.approx(facts["honest"], abs=5e-5)
    assert negative_log_likelihood(honest, labels) == pytest.approx(facts["oracle"], abs=5e-5)
    assert truth.oracle_nll() == pytest.approx(facts["oracle"], abs=5e-5)
    assert truth.temperature == 2.0
    # Every row is overconfident, so the truth is a mean; labels show it up to their noise.
    assert (said.max(axis=1) >= truth.correct_probability).all()
    assert truth.true_calibration_error() == pytest.approx(facts["ece"], abs=0.01)
    assert truth.true_calibration_error(honest) < 1e-12


@pytest.mark.parametrize(
    "truth",
    [
        synthetic.tempered(40_000, 5, 0.6, seed=3),
        synthetic.margin_tempered(40_000, 5, seed=3),
        synthetic.top_label(40_000, seed=3),
    ],
    ids=["tempered", "margin", "top-label"],
)
def test_labels_come_from_the_truth(truth):
    rows = truth.predictions
    predicted = rows.predicted if rows.kind == "toplabel" else rows.scores.argmax(axis=1)
    right, r = predicted == rows.labels, truth.correct_probability
    # Whatever r says, so many are right: within three standard errors in each tenth.
    for part in np.array_split(np.argsort(r), 10):
        error = np.sqrt((r[part] * (1 - r[part])).mean() / len(part))
        assert abs(right[part].mean() - r[part].mean()) < 3.5 * error
    if rows.kind == "logits":
        counts = np.bincount(rows.labels, minlength=5)
        np.testing.assert_allclose(counts, truth.honest.sum(axis=0), rtol=0.03)
        np.testing.assert_allclose(truth.honest.max(axis=1), r)


def test_the_true_error_is_what_more_and_more_labels_show():
    # Rows on both sides, which share confidences with others: pooled, not summed.
    truth = synthetic.margin_tempered(40_000, 4, seed=4)
    half = truth.predictions.logits / 1.8
    said = np.exp(half) / np.exp(half).sum(axis=1, keepdims=True)
    confidence, predicted = said.max(axis=1), said.argmax(axis=1)
    error = confidence - truth.correct_probability
    assert (error > 0.01).any()
    assert (error < -0.01).any()
    found = truth.true_calibration_error(said)
    assert found == truth.true_calibration_error(confidence)
    assert found < truth.row_calibration_error(said)
    # Each row gets many labels; bins then show the truth without the noise of one.
    rng = np.random.default_rng(0)
    repeats = 60
    right = rng.random((repeats, 40_000)) < truth.correct_probability
    bins = np.digitize(confidence, np.quantile(confidence, np.linspace(0, 1, 101)[1:-1]))
    shown = np.bincount(bins, confidence - right.mean(axis=0))
    assert found == pytest.approx(np.abs(shown).sum() / 40_000, abs=1e-3)
    assert (predicted == truth.predictions.logits.argmax(axis=1)).all()


def test_equal_confidences_are_pooled_and_never_parted():
    truth = synthetic.tempered(5000, 6, seed=5)
    coarse = np.round(truth.predictions.probs.max(axis=1), 1)
    by_hand = sum(
        abs((coarse[coarse == c] - truth.correct_probability[coarse == c]).sum())
        for c in np.unique(coarse)
    )
    assert truth.true_calibration_error(coarse) == pytest.approx(by_hand / 5000, rel=1e-12)


def test_changed_predictions_are_judged_by_their_own_class():
    truth = synthetic.tempered(2000, 3, seed=6)
    turned = np.roll(truth.honest, 1, axis=1)
    label = turned.argmax(axis=1)
    error = turned.max(axis=1) - truth.honest[np.arange(2000), label]
    assert truth.row_calibration_error(turned) == pytest.approx(np.abs(error).mean())


def test_the_temperature_is_found_and_the_margin_needs_more():
    fit, test = (synthetic.tempered(10_000, 100, seed=s) for s in (1, 2))
    scaling = TemperatureScaling().fit(fit.predictions.logits, fit.predictions.labels)
    assert scaling.temperature_ == pytest.approx(2.0085, abs=5e-4)
    scaled = scaling.predict_proba(test.predictions.logits)
    assert test.true_calibration_error(scaled) < 0.003 < 0.2 < test.true_calibration_error()
    fit, test = (synthetic.margin_tempered(10_000, 10, seed=s) for s in (1, 2))
    assert np.isnan(fit.temperature)
    after = {
        kind: test.true_calibration_error(
            kind()
            .fit(fit.predictions.logits, fit.predictions.labels)
            .predict_proba(test.predictions.logits)
        )
        for kind in (TemperatureScaling, SMART, IsotonicRegression)
    }
    assert test.true_calibration_error() > 0.15
    assert after[SMART] < 0.02 < 0.05 < after[TemperatureScaling]
    assert after[IsotonicRegression] < 0.02


@pytest.mark.parametrize("curve", [np.square, np.sqrt, lambda c: 0.2 + 0.6 * c])
def test_top_label_errors_are_those_of_the_curve(curve):
    truth = synthetic.top_label(20_000, curve, low=0.25, high=0.95, seed=7)
    assert truth.predictions.kind == "toplabel"
    at = np.linspace(0.25, 0.95, 100_001)
    exact = np.abs(at - curve(at)).mean()
    assert truth.true_calibration_error() == pytest.approx(exact, abs=0.002)
    # The log loss of correctness, in expectation the entropy of the curve.
    r = curve(at)
    entropy = -(r * np.log(r) + (1 - r) * np.log(1 - r)).mean()
    assert truth.oracle_nll() == pytest.approx(entropy, abs=0.02)
    assert truth.true_calibration_error(truth.correct_probability) == 0
    for request in (lambda: truth.honest, lambda: truth.true_calibration_error(np.ones((2, 2)))):
        with pytest.raises(InputError):
            request()


def test_the_same_seed_gives_the_same_rows_and_another_one_others():
    for make in (synthetic.tempered, synthetic.margin_tempered):
        first, again, other = (make(50, 4, seed=s).predictions for s in (1, 1, 2))
        np.testing.assert_array_equal(first.scores, again.scores)
        np.testing.assert_array_equal(first.labels, again.labels)
        assert not np.array_equal(first.scores, other.scores)
    assert calibrant.synthetic is synthetic


@pytest.mark.parametrize(
    "call",
    [
        lambda: synthetic.tempered(0, 3),
        lambda: synthetic.tempered(3, 1),
        lambda: synthetic.tempered(3, 3, temperature=0),
        lambda: synthetic.tempered(3, 3, temperature=float("nan")),
        lambda: synthetic.margin_tempered(3, 3, near=9, far=1),
        lambda: synthetic.margin_tempered(3, 3, near=1, far=2),
        lambda: synthetic.top_label(3, low=0.9, high=0.1),
        lambda: synthetic.top_label(3, curve=lambda c: 2 + c),
        lambda: synthetic.tempered(3, 3).true_calibration_error(np.ones((3, 4)) / 4),
    ],
)
def test_bad_requests_are_refused(call):
    with pytest.raises(InputError):
        call()
