"""Multiclass isotonic, temperatures by predicted class and Laplace mixing, computed otherwise."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import isotonic_regression, minimize_scalar

from calibrant.core.errors import CalibrationWarning
from calibrant.posthoc.confidence.isotonic import MulticlassIsotonic, summarize_pairs
from calibrant.posthoc.temperature.mixtures import LaplaceTemperatureScaling
from calibrant.posthoc.temperature.scaling import PredictedClassTemperature, TemperatureScaling
from calibrant.predictions.rows import softmax, summarize

# --- multiclass isotonic


def irm_by_hand(probs: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Isotonic regression on every pair, each a point of its own unless equal."""
    classes = probs.shape[1]
    hit = np.eye(classes)[labels].ravel()
    points, index, count = np.unique(probs.ravel(), return_inverse=True, return_counts=True)
    fit = isotonic_regression(np.bincount(index, hit) / count, weights=count)
    blocks = np.repeat(np.arange(len(fit.blocks) - 1), np.diff(fit.blocks))
    mass, level = np.bincount(blocks, count), fit.x[fit.blocks[:-1]]
    # Two more pairs in each block, their hits such that the mean over all pairs stays 1 / K.
    centre = np.sum(level * mass / (mass + 2)) / np.sum(mass / (mass + 2))
    drawn = (level * mass + 2 * centre) / (mass + 2)
    drawn = (drawn * probs.size + 1 / classes) / (probs.size + 1)
    return points, np.asarray(isotonic_regression(drawn[blocks], weights=count).x)


@pytest.mark.parametrize("classes", [2, 3, 20])
@pytest.mark.parametrize("digits", [1, 15])
@pytest.mark.parametrize("rows", [1, 2, 30, 400])
def test_runs_of_pairs_lose_nothing(rows, classes, digits, labelled_logits):
    logits, labels = labelled_logits(rows, classes, seed=rows)
    logits = logits.round(digits) if digits > 1 else np.sign(logits)
    calibrator = MulticlassIsotonic().fit(logits, labels)
    probs = softmax(logits)
    points, values = irm_by_hand(probs, labels)
    np.testing.assert_allclose(calibrator.map_probability(points) - 1e-9 * points, values)
    raised = values[np.searchsorted(points, probs)] + 1e-9 * probs
    raised[np.arange(rows), logits.argmax(axis=1)] *= 1 + 1e-6
    expected = raised / raised.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(calibrator.predict_proba(logits), expected)
    loss = np.mean((values[np.searchsorted(points, probs)] - np.eye(classes)[labels]) ** 2)
    np.testing.assert_allclose(calibrator.fit_report_.value, loss, atol=1e-12)


def test_runs_of_many_chunks_are_those_of_one(labelled_logits, monkeypatch):
    logits, labels = labelled_logits(500, 7, seed=1)
    whole = summarize_pairs(logits, labels)
    assert whole.pairs.sum() == 3500
    assert whole.hits.sum() == 500
    assert len(whole.pairs) <= 1001
    monkeypatch.setattr(
        "calibrant.posthoc.confidence.isotonic.row_chunks",
        lambda array: (slice(i, min(i + 13, len(array))) for i in range(0, len(array), 13)),
    )
    for kind in (logits, torch.tensor(logits)):
        for ours, theirs in zip(summarize_pairs(kind, labels), whole, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_the_order_of_classes_is_kept_strictly(overconfident):
    logits, labels = overconfident
    calibrator = MulticlassIsotonic().fit(logits, labels)
    probs = calibrator.predict_proba(logits)
    np.testing.assert_array_equal(np.argsort(probs, axis=1), np.argsort(softmax(logits), axis=1))
    # In float32, too, the predicted class is on top alone.
    narrow = logits.astype(np.float32)
    for kind in (narrow, torch.tensor(narrow)):
        single = np.asarray(calibrator.predict_proba(kind))
        np.testing.assert_array_equal(single.argmax(axis=1), narrow.argmax(axis=1))
        assert (np.diff(np.sort(single, axis=1)[:, -2:], axis=1) > 0).all()
    rising = calibrator.map_probability(np.linspace(0, 1, 1001))
    assert (np.diff(rising) > 0).all()
    # The right temperature is known to be 2.
    assert np.abs(probs - softmax(logits, 0.5)).mean() < 0.03
    assert np.abs(softmax(logits) - softmax(logits, 0.5)).mean() > 0.05


# --- temperatures by predicted class


@pytest.mark.parametrize("classes", [2, 4, 80])
@pytest.mark.parametrize("shrinkage", [0.5, 10.0, 1000.0])
def test_each_class_has_its_own_optimum(classes, shrinkage, labelled_logits):
    logits, labels = labelled_logits(600, classes, seed=2)
    predicted = logits.argmax(axis=1)
    logits = logits * np.linspace(0.6, 1.7, classes)[predicted][:, None]
    calibrator = PredictedClassTemperature(shrinkage).fit(logits, labels)
    beta = TemperatureScaling().fit(logits, labels).beta_
    assert calibrator.beta_ == beta
    for k in range(0, classes, max(1, classes // 4)):
        rows = predicted == k

        def loss(ratio: float, rows=rows) -> float:
            chosen = softmax(logits[rows], beta * ratio)[np.arange(rows.sum()), labels[rows]]
            return -np.log(chosen).sum() + shrinkage / 2 * (ratio - 1) ** 2

        brute = minimize_scalar(loss, bounds=(1 / 8, 8), method="bounded", options={"xatol": 1e-9})
        found = calibrator.class_betas_[k] / beta
        np.testing.assert_allclose(found, brute.x, atol=1e-5 if classes < 65 else 1e-3)
    betas = calibrator.class_betas_[predicted]
    np.testing.assert_allclose(calibrator.predict_proba(logits), softmax(logits, betas))
    np.testing.assert_allclose(calibrator.temperatures(logits), 1 / betas)


def test_temperatures_that_differ_by_class_are_found(labelled_logits):
    honest, labels = labelled_logits(20_000, 4, temperature=1.0, seed=3)
    wanted = np.array([0.7, 1.0, 1.5, 3.0])
    logits = honest * wanted[honest.argmax(axis=1)][:, None]
    calibrator = PredictedClassTemperature(shrinkage=10).fit(logits, labels)
    np.testing.assert_allclose(1 / calibrator.class_betas_, wanted, rtol=0.1)


def test_a_class_that_is_never_predicted_takes_the_single_temperature(labelled_logits):
    logits, labels = labelled_logits(300, 4, seed=4)
    logits[:, 2] -= 1e3
    labels[labels == 2] = 0
    calibrator = PredictedClassTemperature().fit(logits, labels)
    assert calibrator.class_betas_[2] == calibrator.beta_
    strong = PredictedClassTemperature(shrinkage=1e12).fit(logits, labels)
    np.testing.assert_allclose(strong.class_betas_, strong.beta_)


def test_a_row_summary_is_enough(overconfident):
    logits, labels = overconfident
    whole = PredictedClassTemperature().fit(logits, labels)
    rows = summarize(logits, labels, curve="table", reference=whole.beta_)
    table = PredictedClassTemperature()
    table.fit_rows(rows)
    np.testing.assert_allclose(table.class_betas_, whole.class_betas_, rtol=1e-3)


# --- Laplace mixing


@pytest.mark.parametrize("rows", [1, 9, 2000])
def test_laplace_mixing(rows, overconfident):
    logits, labels = overconfident[0][:rows], overconfident[1][:rows].copy()
    if rows == 1:
        labels[0] = logits[0].argsort()[-2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        calibrator = LaplaceTemperatureScaling().fit(logits, labels)
        beta = TemperatureScaling().fit(logits, labels).beta_
    scores = np.exp(beta * logits)
    plain = scores / scores.sum(axis=1, keepdims=True)
    expected = (rows * plain + 1 / 5) / (rows + 1)
    np.testing.assert_allclose(calibrator.predict_proba(logits), expected)
    assert calibrator.temperature_ == 1 / beta
    certain = np.array([[1e6, 0, 0, 0, 0.0]])
    np.testing.assert_allclose(calibrator.predict_proba(certain)[0, 1:], 1 / (5 * (rows + 1)))
