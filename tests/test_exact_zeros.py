"""Probabilities of exactly 0, as forests say them: what a fit raises them to."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import calibrant as cb
from calibrant.posthoc.needs import HIGHEST_FLOOR, half_of_least
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.binary import SMALLEST_PROBABILITY
from calibrant.predictions.predictions import Predictions

pytest.importorskip("sklearn")


@cache
def forest(classes: int, trees: int = 30, seed: int = 0) -> tuple[Predictions, Predictions]:
    """Rows that a small forest hasn't seen: 400 to fit to, and 3 000 others."""
    from sklearn.datasets import make_classification
    from sklearn.ensemble import RandomForestClassifier

    inputs, labels = make_classification(
        4000, 12, n_informative=6, n_classes=classes, flip_y=0.1, random_state=seed
    )
    made = RandomForestClassifier(trees, random_state=seed).fit(inputs[:600], labels[:600])
    probs = made.predict_proba(inputs[600:])
    assert (probs == 0).any()
    rows = Predictions.from_probs(probs, labels[600:])
    return rows.take(slice(400)), rows.take(slice(400, None))


@cache
def boosted(classes: int, seed: int = 0) -> tuple[Predictions, Predictions]:
    """Rows that boosted trees, which know theirs by heart, haven't seen: 400, and 3 000 others."""
    from sklearn.datasets import make_classification
    from sklearn.ensemble import HistGradientBoostingClassifier

    inputs, labels = make_classification(
        4000, 12, n_informative=6, n_classes=classes, flip_y=0.1, random_state=seed
    )
    trees = HistGradientBoostingClassifier(max_iter=100, random_state=seed)
    probs = trees.fit(inputs[:600], labels[:600]).predict_proba(inputs[600:])
    rows = Predictions.from_probs(probs, labels[600:])
    return rows.take(slice(400)), rows.take(slice(400, None))


def losses(rows: Predictions) -> np.ndarray:
    of_label = np.asarray(rows.scores)[np.arange(rows.n), rows.labels]
    return -np.log(np.maximum(of_label, SMALLEST_PROBABILITY))


def excess(first: Predictions, second: Predictions) -> tuple[float, float]:
    """Return the mean difference of log losses and its standard error."""
    gap = losses(first) - losses(second)
    return float(gap.mean()), float(gap.std(ddof=1) / np.sqrt(len(gap)))


def applied(method: str, classes: int, seed: int = 0) -> Predictions:
    fit, test = forest(classes, seed=seed)
    return make_calibrator(method).fit_predictions(fit).apply_predictions(test)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("method", ["temperature", "platt", "affine", "beta", "auto"])
def test_of_a_forest_no_method_is_worse_than_the_forest_by_more_than_noise(method, classes, seed):
    worse, error = excess(applied(method, classes, seed), forest(classes, seed=seed)[1])
    assert worse < 2 * error


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("seed", [0, 1])
def test_of_boosted_trees_every_map_gains_and_auto_is_as_good_as_temperature(classes, seed):
    fit, test = boosted(classes, seed)
    maps = {
        method: make_calibrator(method).fit_predictions(fit).apply_predictions(test)
        for method in ("temperature", "affine", "smart", "auto")
    }
    for mapped in maps.values():
        gain, error = excess(test, mapped)
        assert gain > 5 * error
    worse, error = excess(maps["auto"], maps["temperature"])
    assert worse < 2 * error


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("method", ["platt", "temperature"])
def test_of_a_forest_a_map_of_log_odds_is_as_good_as_scikit_learns(method, seed):
    from scipy.optimize import minimize
    from scipy.special import log_softmax

    fit, test = forest(2, seed=seed)
    p, y = np.asarray(fit.scores), fit.labels
    if method == "platt":  # a sigmoid of the probability itself
        peer = make_calibrator("platt", inputs="probability").fit(np.log(p + 1e-300), y)
        other = Predictions.from_probs(
            peer.predict_proba(np.log(np.asarray(test.scores) + 1e-300)), test.labels
        )
    else:  # log(p + eps of the type)

        def logs(probs):
            return np.log(probs + np.finfo(np.float64).eps)

        def loss(log_beta):
            scaled = log_softmax(np.exp(log_beta[0]) * logs(p), axis=1)
            return -scaled[np.arange(len(y)), y].mean()

        beta = np.exp(minimize(loss, [0.0]).x[0])
        probs = np.exp(log_softmax(beta * logs(np.asarray(test.scores)), axis=1))
        other = Predictions.from_probs(probs, test.labels)
    worse, error = excess(applied(method, 2, seed), other)
    assert worse < max(2 * error, 0.002)


def test_the_floor_is_half_of_a_vote_or_more_and_costs_honest_rows_nothing():
    fit, _ = forest(4)
    scaling = cb.TemperatureScaling().fit_predictions(fit)
    (floor,) = scaling.placing_
    assert half_of_least(np.asarray(fit.scores)) <= floor <= HIGHEST_FLOOR * (1 + 1e-9)
    assert "exactly 0 counts as" in " ".join(scaling.fit_report_.notes)
    # Zeros of a class that no row is of: nothing speaks for a floor above the least there is.
    honest = cb.synthetic.tempered(2000, 3, temperature=1.0).predictions
    logits = np.concatenate([honest.logits, np.full((2000, 1), -200.0)], axis=1)
    probs = np.exp(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
    probs[:, 3] = 0
    scaling = cb.TemperatureScaling().fit_predictions(Predictions.from_probs(probs, honest.labels))
    assert scaling.temperature_ == pytest.approx(1.0, abs=0.05)


def test_rows_without_a_zero_and_logits_have_no_floor():
    rows = cb.load_sample("validation").take(slice(300))
    for given in (rows, Predictions.from_probs(rows.probs, rows.labels)):
        assert cb.TemperatureScaling().fit_predictions(given).placing_ is None
    none = make_calibrator("none").fit_predictions(forest(4)[0])
    assert none.placing_ is None
    after = none.apply_predictions(forest(4)[1]).scores
    np.testing.assert_allclose(after, forest(4)[1].scores, atol=1e-12)


def test_the_floor_of_very_many_rows_knows_no_order_of_them_either(monkeypatch):
    monkeypatch.setattr("calibrant.posthoc.needs.FLOOR_ROWS", 120)
    fit, _ = forest(3)
    floors = set()
    for seed in range(4):
        rows = fit.take(np.random.default_rng(seed).permutation(fit.n))
        floors.add(make_calibrator("temperature").fit_predictions(rows).placing_)
    assert len(floors) == 1


def test_the_floor_knows_no_order_of_rows_nor_names_of_classes():
    fit, _ = forest(4)
    usual = cb.TemperatureScaling().fit_predictions(fit)
    turned = Predictions.from_probs(np.asarray(fit.scores)[::-1, ::-1], 3 - fit.labels[::-1])
    other = cb.TemperatureScaling().fit_predictions(turned)
    assert other.placing_ == usual.placing_
    assert other.temperature_ == pytest.approx(usual.temperature_, rel=1e-9)


@pytest.mark.parametrize("form", ["rows", "binary", "toplabel"])
def test_a_file_and_an_exported_map_raise_zeros_as_the_calibrator_does(form, tmp_path):
    torch = pytest.importorskip("torch")
    if form == "rows":
        fit, test = forest(4)
    elif form == "binary":
        fit, test = (
            Predictions.from_binary(np.asarray(r.scores)[:, 1], r.labels) for r in forest(2)
        )
    else:
        tops = [(np.asarray(r.scores).max(axis=1).round(1), r) for r in forest(4)]
        fit, test = (
            Predictions.from_confidence(top, np.asarray(r.scores).argmax(axis=1), r.labels)
            for top, r in tops
        )
        assert (fit.scores == 1).any()
    made = cb.TemperatureScaling().fit_predictions(fit)
    assert made.placing_ is not None
    made.save(tmp_path / "made.safetensors")
    again = cb.load(tmp_path / "made.safetensors")
    assert again.placing_ == made.placing_
    wanted = np.asarray(made.apply_predictions(test).scores)
    np.testing.assert_array_equal(again.apply_predictions(test).scores, wanted)
    given = np.asarray(test.one_score if form == "binary" else test.scores)
    found = np.asarray(made.predict_proba(given))
    module = made.to_torch()(torch.tensor(given)).numpy()
    np.testing.assert_allclose(module, found, atol=1e-6)
    if form == "rows":
        np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_many_files_with_zeros_are_fitted_as_one_is(tmp_path):
    fit, _ = forest(4)
    for place in range(2):
        part = fit.take(slice(200 * place, 200 * (place + 1)))
        np.savez(tmp_path / f"{place}.npz", probs=part.scores, labels=part.labels)
    shards = cb.Shards(str(tmp_path / "*.npz"))
    made = cb.TemperatureScaling().fit_predictions(shards, engine=cb.Engine(workers=1))
    whole = cb.TemperatureScaling().fit_predictions(fit)
    assert made.placing_ == pytest.approx(whole.placing_, rel=1e-6)
    assert made.temperature_ == pytest.approx(whole.temperature_, rel=1e-6)


def test_compare_raises_zeros_as_a_fit_does():
    fit, test = forest(4)
    found = cb.compare(["none", "temperature"], fit=fit, test=test, resamples=20)
    nll = {r["method"]: r["value"] for r in found.records() if r["metric"] == "nll"}
    assert nll["temperature"] == pytest.approx(losses(applied("temperature", 4)).mean(), abs=1e-6)
    assert nll["none"] > 1.5 * nll["temperature"]


def test_a_file_whose_floor_is_no_probability_is_refused(tmp_path):
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    path = tmp_path / "made.safetensors"
    cb.TemperatureScaling().fit_predictions(forest(4)[0]).save(path)
    with safe_open(path, "numpy") as file:
        header = file.metadata()
    save_file(load_file(path), path, metadata=header | {"placing": "[2.0]"})
    with pytest.raises(cb.CalibrantError, match="damaged"):
        cb.load(path)
