"""Class temperatures: the cached search against a plain one, the likelihood against another fit."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from calibrant.core.errors import (
    BoundaryWarning,
    CalibrationWarning,
    InputError,
    NotIdentifiedWarning,
)
from calibrant.metrics.binned import expected_calibration_error
from calibrant.posthoc.fitting.cross_validation import fold_numbers
from calibrant.posthoc.linear.class_temperatures import (
    SHRINKAGES,
    ClassTemperatureScaling,
    ColumnSearch,
    GradientClassTemperatureScaling,
)
from calibrant.posthoc.temperature.scaling import TemperatureScaling
from calibrant.predictions.rows import summarize

both = pytest.mark.parametrize(
    "kind", [ClassTemperatureScaling, GradientClassTemperatureScaling], ids=lambda k: k.method
)


def fitted(calibrator, logits, labels):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        return calibrator.fit(logits, labels)


def centred(logits):
    return logits - logits.mean(axis=1, keepdims=True)


def skewed(rows: int, classes: int, seed: int):
    """Logits of which every class wants its own temperature."""
    rng = np.random.default_rng(seed)
    honest = centred(rng.normal(scale=2.0, size=(rows, classes)))
    labels = (honest + rng.gumbel(size=honest.shape)).argmax(axis=1)
    return honest * rng.uniform(1, 3, size=classes), labels


def error(scores, labels, n_bins):
    probs = softmax(scores, axis=1)
    hits = scores.argmax(axis=1) == labels
    return expected_calibration_error(probs, labels, n_bins=n_bins), hits.mean()


def plain_search(logits, labels, calibrator: ClassTemperatureScaling):
    """The greedy search with every candidate's softmax written out."""
    z, classes = centred(logits), logits.shape[1]
    base = TemperatureScaling().fit(logits, labels).beta_
    betas = np.full(classes, base)
    grid = calibrator.span ** np.linspace(-1, 1, calibrator.candidates)
    best, start = error(z * betas, labels, calibrator.n_bins)
    shares = softmax(z * betas, axis=1).mean(axis=0)
    for _ in range(calibrator.sweeps):
        before = betas.copy()
        for k in sorted(set(labels.tolist()), key=lambda k: -shares[k]):
            found = []
            for ratio in grid:
                tried = betas.copy()
                tried[k] = base / ratio
                ece, accuracy = error(z * tried, labels, calibrator.n_bins)
                allowed = accuracy >= start - calibrator.accuracy_loss - 1e-12
                found.append(ece if allowed else np.inf)
            if min(found) < best - 1e-12:
                best, betas[k] = min(found), base / grid[int(np.argmin(found))]
        if (betas == before).all():
            break
    return 1 / betas, best


@pytest.mark.parametrize("classes", [2, 3, 6])
@pytest.mark.parametrize("loss", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("n_bins", [5, 15])
def test_greedy_search_is_the_plain_one(classes, loss, n_bins):
    changed = 0
    for seed in range(3):
        logits, labels = skewed(120, classes, seed)
        calibrator = ClassTemperatureScaling(
            criterion="ece", n_bins=n_bins, span=2.0, candidates=11, sweeps=3, accuracy_loss=loss
        ).fit(logits, labels)
        temperatures, best = plain_search(logits, labels, calibrator)
        changed += len(np.unique(temperatures)) > 1
        np.testing.assert_allclose(calibrator.temperatures_, temperatures, rtol=1e-12)
        np.testing.assert_allclose(calibrator.fit_report_.value, best, atol=1e-12)
        probs = calibrator.predict_proba(logits)
        np.testing.assert_allclose(expected_calibration_error(probs, labels, n_bins=n_bins), best)
    assert changed


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.integers(2, 6), st.sampled_from([0.3, 3.0, 300.0]), st.booleans())
def test_cached_columns_say_what_a_softmax_says(seed, classes, spread, ties):
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=spread, size=(30, classes))
    if ties:
        logits = np.round(logits)
    labels = rng.integers(classes, size=30)
    betas = np.exp(rng.normal(size=classes))
    search = ColumnSearch(logits, labels, betas, 15)
    for _ in range(6):
        k = int(rng.integers(classes))
        tried = np.exp(rng.normal(size=4))
        errors, accuracies = search.try_class(k, tried)
        for i, beta in enumerate(tried):
            now = search.betas.copy()
            now[k] = beta
            ece, accuracy = error(logits * now, labels, 15)
            np.testing.assert_allclose(errors[i], ece, atol=1e-12)
            np.testing.assert_allclose(accuracies[i], accuracy)
        search.take(k, float(tried[0]))
        np.testing.assert_allclose(search.error()[0], errors[0], atol=1e-12)


def test_accuracy_is_kept_on_its_rows_unless_allowed():
    free, kept = [], []
    for seed in range(8):
        logits, labels = skewed(150, 8, seed)
        start = (logits.argmax(axis=1) == labels).mean()
        for loss, found in ((0.0, kept), (1.0, free)):
            calibrator = fitted(
                ClassTemperatureScaling(criterion="ece", accuracy_loss=loss), logits, labels
            )
            hits = calibrator.predict_proba(logits).argmax(axis=1) == labels
            found.append(hits.mean() - start)
    assert min(kept) >= 0
    assert min(free) < 0


def test_a_class_without_a_label_keeps_the_single_temperature():
    logits, labels = skewed(300, 5, 1)
    some = labels != 2
    calibrator = fitted(ClassTemperatureScaling(criterion="ece"), logits[some], labels[some])
    base = TemperatureScaling().fit(logits[some], labels[some]).temperature_
    assert calibrator.temperatures_[2] == base
    assert (calibrator.temperatures_ != base).any()


@pytest.mark.parametrize("inputs", ["log-probabilities", "centred"])
@pytest.mark.parametrize("shrinkage", [0.1, 1.0, 50.0])
@pytest.mark.parametrize("classes", [2, 4])
def test_likelihood_is_that_of_another_optimiser(shrinkage, classes, inputs):
    logits, labels = skewed(200, classes, 3)
    calibrator = GradientClassTemperatureScaling(shrinkage=shrinkage, inputs=inputs)
    calibrator.fit(logits, labels)
    single = TemperatureScaling().fit(logits, labels).temperature_
    x = log_softmax(logits / single, axis=1) if inputs != "centred" else centred(logits) / single

    def objective(logs):
        scores = x / np.exp(logs)
        nll = -log_softmax(scores, axis=1)[np.arange(200), labels].mean()
        return nll + shrinkage * classes / 200 * (logs @ logs)

    brute = minimize(objective, np.zeros(classes), method="BFGS", options={"gtol": 1e-9})
    ours = np.log(calibrator.temperatures_ / single)
    np.testing.assert_allclose(ours, brute.x, atol=1e-4)
    np.testing.assert_allclose(calibrator.fit_report_.value, brute.fun, rtol=1e-9)
    wanted = softmax(x / np.exp(ours), axis=1)
    np.testing.assert_allclose(calibrator.predict_proba(logits), wanted, rtol=1e-9)


def test_known_temperatures_are_recovered():
    rng = np.random.default_rng(0)
    honest = centred(rng.normal(scale=2.0, size=(40_000, 3)))
    labels = (honest + rng.gumbel(size=honest.shape)).argmax(axis=1)
    # Centred again, the rows must still be theirs: one class's factor is made up by the others'.
    calibrator = fitted(GradientClassTemperatureScaling(), 2 * honest, labels)
    np.testing.assert_allclose(calibrator.temperatures_, 2, rtol=0.05)


def penalised(x, labels, pull):
    def objective(logs):
        scores = log_softmax(x / np.exp(logs), axis=1)
        return pull * (logs @ logs) - scores[np.arange(len(labels)), labels].mean()

    return objective


def test_shrinkage_is_that_of_plain_cross_validation():
    rng = np.random.default_rng(0)
    logits = log_softmax(rng.normal(scale=2.0, size=(600, 4)), axis=1)
    scores = logits * np.array([0.6, 0.9, 1.1, 1.4])
    labels = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
    calibrator = ClassTemperatureScaling().fit(logits, labels)
    beta = TemperatureScaling().fit(logits, labels).beta_
    x = log_softmax(beta * logits, axis=1)
    fold = fold_numbers(summarize(logits, labels), 5, seed=0)
    held_out = {}
    for shrinkage in SHRINKAGES:
        total = 0.0
        for part in range(5):
            seen = fold != part

            objective = penalised(x[seen], labels[seen], shrinkage * 4 / seen.sum())
            u = minimize(objective, np.zeros(4), method="BFGS", options={"gtol": 1e-8}).x
            scores = log_softmax(x[~seen] / np.exp(u), axis=1)
            total -= scores[np.arange((~seen).sum()), labels[~seen]].sum()
        held_out[shrinkage] = total
    assert calibrator.shrinkage_ == min(held_out, key=lambda key: held_out[key])
    told = GradientClassTemperatureScaling(shrinkage=calibrator.shrinkage_).fit(logits, labels)
    np.testing.assert_array_equal(calibrator.temperatures_, told.temperatures_)
    np.testing.assert_array_equal(calibrator.predict_proba(logits), told.predict_proba(logits))


def test_classes_without_temperatures_of_their_own_keep_the_single_one():
    kept = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        logits = 2 * rng.normal(size=(200, 10))
        labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        calibrator = ClassTemperatureScaling().fit(2 * logits, labels)
        single = TemperatureScaling().fit(2 * logits, labels)
        if calibrator.shrinkage_ == 0:
            kept += 1
            np.testing.assert_allclose(
                calibrator.predict_proba(logits), single.predict_proba(logits), rtol=1e-12
            )
            assert any("no clear gain" in note for note in calibrator.fit_report_.notes)
    # A standard error is exceeded by chance one time in six.
    assert kept >= 6


@both
def test_scale_does_not_matter(kind):
    logits, labels = skewed(200, 4, 5)
    plain = fitted(kind(), logits, labels).predict_proba(logits)
    for scale in (1e-3, 300.0):
        scaled = fitted(kind(), scale * logits, labels).predict_proba(scale * logits)
        np.testing.assert_allclose(scaled, plain, atol=1e-5)


@both
def test_masked_classes_leave_the_others_their_map(kind):
    logits, labels = skewed(300, 4, 6)
    calibrator = fitted(kind(), logits, labels)
    probs = calibrator.predict_proba(np.array([[1.0, 2.0, 0.0, -np.inf]]))
    x = np.array([0.0, 1.0, -1.0])
    x = log_softmax(x * calibrator.beta_) / calibrator.beta_
    wanted = softmax(x / calibrator.temperatures_[:3])
    np.testing.assert_allclose(probs[0], [*wanted, 0.0], rtol=1e-12)


@both
def test_degenerate_rows_are_named(kind):
    logits, labels = skewed(60, 4, 7)
    with pytest.warns(BoundaryWarning):
        kind().fit(logits, logits.argmax(axis=1))
    with pytest.warns(NotIdentifiedWarning):
        constant = kind().fit(np.zeros_like(logits), labels)
    np.testing.assert_allclose(constant.predict_proba(logits * 0), 1 / 4)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (ClassTemperatureScaling, {"criterion": "brier"}),
        (ClassTemperatureScaling, {"n_bins": 0}),
        (ClassTemperatureScaling, {"span": 1.0}),
        (ClassTemperatureScaling, {"candidates": 1}),
        (ClassTemperatureScaling, {"sweeps": 0}),
        (ClassTemperatureScaling, {"accuracy_loss": 1.5}),
        (GradientClassTemperatureScaling, {"shrinkage": 0.0}),
    ],
)
def test_arguments_out_of_range(kind, arguments, overconfident):
    with pytest.raises(InputError, match=next(iter(arguments))):
        kind(**arguments).fit(*overconfident)
