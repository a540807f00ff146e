"""Every method and weights: whole ones repeat rows, others weigh or are refused by name."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import calibrant as cb
from calibrant.core.errors import CalibrationWarning, NotApplicableError
from calibrant.core.weights import quantiles
from calibrant.posthoc.fitting.cross_validation import (
    Trial,
    Worth,
    difference_of_losses,
    fold_numbers,
)
from calibrant.posthoc.model_selection import weights_by_likelihood
from calibrant.posthoc.registry import BUILT_IN, METHODS
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import summarize

CLASSES, ROWS, WIDTH = 4, 240, 3
ALONE = [name for name in BUILT_IN if name != "auto"]
# Their folds are drawn over rows: copies of a row would fall into several of them.
BY_FOLDS = {"cts", "matrix", "dirichlet", "svs-top-rest", "probit-top-rest", "logit-clipping"}
WEIGHS = {
    "none",
    "temperature",
    "temperature-laplace",
    "predicted-class",
    "cts-gradient",
    "ets",
    "vector",
    "svs",
    "sms",
    "ridge",
    "mcct",
    "tva",
    "matrix",
    "dirichlet",
    "platt",
    "affine",
    "quadratic",
    "beta",
    "natural-spline",
    "isotonic",
    "histogram",
    "scaling-binning",
    "smart",
    "probit",
    "top-rest",
    "probit-top-rest",
    "svs-top-rest",
    "given-groups",
}
# Small and quick, and without anything that is only noise on few rows.
QUICK = {
    "pts": {"steps": 20},
    "matrix": {"penalty": 0.5},
    "dirichlet": {"penalty": 0.5},
    "ridge": {"ridge": 5.0},
    "sms": {"inputs": "centred"},  # else they are chosen by folds of rows
    "given-groups": {"penalty": 0.5},
}


def rows_of(seed: int = 0, weights=None, n: int = ROWS) -> Predictions:
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(CLASSES, WIDTH))
    features = 2 * rng.normal(size=(n, WIDTH))
    logits = features @ weight.T
    labels = (logits / 1.5 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return Predictions.from_logits(
        logits, labels, features, head=(weight, np.zeros(CLASSES)), sample_weight=weights
    )


def made(method: str):
    kind = METHODS[method]
    known = kind().get_params()
    return kind(**{k: v for k, v in QUICK.get(method, {}).items() if k in known})


def fitted(method: str, rows: Predictions):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        return made(method).fit_predictions(rows)


def applied(calibrator, rows: Predictions) -> np.ndarray:
    return np.asarray(calibrator.predict_proba(rows.logits, rows.features))


@pytest.mark.parametrize("method", [name for name in ALONE if name not in BY_FOLDS])
def test_whole_weights_are_repeated_rows_and_0_is_none(method: str):
    weights = np.random.default_rng(1).integers(0, 4, size=ROWS)
    rows = rows_of(0, weights)
    new = rows_of(1)
    one, other = fitted(method, rows), fitted(method, rows.repeated())
    np.testing.assert_allclose(applied(one, new), applied(other, new), atol=1e-8)
    assert one.fit_report_.value == pytest.approx(other.fit_report_.value, abs=1e-8, nan_ok=True)


@pytest.mark.parametrize("method", sorted(BY_FOLDS))
def test_methods_with_folds_keep_copies_of_a_row_together(method: str):
    weights = np.random.default_rng(1).integers(0, 3, size=ROWS)
    rows = rows_of(0, weights)
    new = rows_of(1)
    one, other = fitted(method, rows), fitted(method, rows.repeated_together())
    np.testing.assert_allclose(applied(one, new), applied(other, new), atol=0.1)


@pytest.mark.parametrize("method", ALONE)
def test_a_method_weighs_rows_or_says_that_it_can_not(method: str):
    weights = np.random.default_rng(2).exponential(size=ROWS)
    rows, new = rows_of(0, weights), rows_of(1)
    assert METHODS[method].weighs == (method in WEIGHS)
    if method not in WEIGHS:
        with pytest.raises(NotApplicableError, match=f"'{method}' takes weights that count"):
            fitted(method, rows)
        return
    once, scaled = fitted(method, rows), fitted(method, rows_of(0, 7.3 * weights))
    np.testing.assert_allclose(applied(once, new), applied(scaled, new), atol=1e-6)
    if method != "none":
        # Weights do matter.
        assert np.abs(applied(once, new) - applied(fitted(method, rows_of(0)), new)).max() > 1e-3


def test_weights_find_the_temperature_of_the_rows_that_they_stand_for():
    """Of two kinds of rows, weights make one as rare as it is where the map will be used."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(40_000, 3)) * 2
    sharp = rng.random(40_000) < 0.5
    honest = logits / np.where(sharp, 0.7, 3.0)[:, None]
    labels = (honest + rng.gumbel(size=logits.shape)).argmax(axis=1)
    population = rng.random(40_000) < np.where(sharp, 0.1, 1.0)
    aim = cb.TemperatureScaling().fit(logits[population], labels[population]).temperature_
    plain = cb.TemperatureScaling().fit(logits, labels).temperature_
    weighed = cb.TemperatureScaling().fit(logits, labels, sample_weight=np.where(sharp, 0.1, 1.0))
    assert weighed.temperature_ == pytest.approx(aim, rel=0.03)
    assert abs(plain - aim) > 0.3


def test_a_summary_of_shards_weighs_as_its_rows_do():
    weights = np.random.default_rng(3).exponential(size=ROWS)
    weights[::7] = 0
    rows = rows_of(0, weights)
    summary = summarize(rows.scores, rows.labels, curve="dense", weights=rows.weights)
    for method in (cb.TemperatureScaling(), cb.posthoc.PredictedClassTemperature(), cb.SMART()):
        other = type(method)()
        one = method.fit_rows(summary).predict_proba(rows.logits)
        np.testing.assert_allclose(
            one, other.fit_predictions(rows).predict_proba(rows.logits), atol=1e-9
        )


def test_too_many_repeats_are_refused():
    rows = rows_of(0, np.full(ROWS, 101) + np.arange(ROWS))
    with pytest.raises(NotApplicableError, match="'bbq' takes no weights and would repeat 240"):
        fitted("bbq", rows)


def test_auto_weighs_its_candidates():
    def probs_of(rows: Predictions) -> np.ndarray:
        auto = cb.AutoCalibrator(candidates="isotonic,svs", folds=2, repeats=1)
        return applied(auto.fit_predictions(rows), rows_of(1))

    whole = np.random.default_rng(3).integers(1, 4, size=400)
    weighed = rows_of(0, whole, n=400)
    assert np.abs(probs_of(weighed) - probs_of(rows_of(0, n=400))).max() > 1e-3
    np.testing.assert_allclose(probs_of(weighed), probs_of(weighed.repeated_together()), atol=0.03)
    halves = probs_of(rows_of(0, whole / 7, n=400))
    # The same weights, but no counts of rows.
    np.testing.assert_allclose(probs_of(weighed), halves, atol=0.05)


def test_folds_keep_clusters_whole_and_are_alike():
    rows = rows_of(0, n=1000)
    clusters = np.random.default_rng(0).integers(90, size=1000)
    fold = fold_numbers(rows.summary, 5, 0, clusters=clusters)
    for cluster in range(90):
        assert len(np.unique(fold[clusters == cluster])) == 1
    shares = [rows.summary.correct[fold == part].mean() for part in range(5)]
    assert max(shares) - min(shares) < 0.15
    assert np.bincount(fold).min() > 120
    assert fold_numbers(rows.summary, 5, 0, clusters=clusters % 3).max() == 2
    with pytest.raises(NotApplicableError, match="all rows belong to one cluster"):
        fold_numbers(rows.summary, 5, 0, clusters=np.zeros(1000, int))


@pytest.mark.parametrize("method", ["auto", "matrix", "cts", "svs-top-rest", "logit-clipping"])
def test_methods_with_folds_take_few_clusters(method: str):
    rows = rows_of(0, n=300).with_clusters(np.arange(300) % 3)
    assert applied(fitted(method, rows), rows).shape == (300, CLASSES)


def test_copies_of_rows_in_clusters_are_no_further_evidence():
    rng = np.random.default_rng(0)
    losses = rng.random(200)
    others = losses - 0.01 + 0.05 * rng.normal(size=200)
    alone = {"a": Trial(losses, 1, True), "b": Trial(others, 1, True)}
    copies = np.repeat(np.arange(200), 4)
    worth = Worth(None, copies)
    many = {
        name: Trial(trial.losses[copies], 1, True, worth=worth) for name, trial in alone.items()
    }
    one, other, naive = (
        weights_by_likelihood(trials, 5, "a")
        for trials in (alone, many, {n: t._replace(worth=Worth()) for n, t in many.items()})
    )
    assert other["b"] == pytest.approx(one["b"], abs=0.01)
    assert naive["b"] > one["b"] + 0.1
    single = difference_of_losses(losses, others, 5)
    assert difference_of_losses(losses[copies], others[copies], 5, worth) == pytest.approx(single)


def test_weighted_quantiles_are_those_of_repeated_values():
    rng = np.random.default_rng(0)
    values, weights = rng.normal(size=50), rng.integers(1, 5, size=50)
    shares = np.linspace(0, 1, 23)
    expected = np.quantile(np.repeat(values, weights), shares)
    np.testing.assert_allclose(quantiles(values, shares, weights.astype(float)), expected)
    np.testing.assert_array_equal(quantiles(values, shares, None), np.quantile(values, shares))
