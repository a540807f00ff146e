"""Methods that promise it: on held-out rows none is likelier worse than one temperature."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from calibrant.core.errors import CalibrationWarning
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.predictions import Predictions
from calibrant.sample import load_sample

PROMISING = ["ets", "cts", "logit-clipping"]
# Maps of many numbers, which few rows can't determine.
GUARDED = ["vector", "matrix", "dirichlet", "pts"]
# Fits of a hundred classes take ten times as long.
SPLITS, SPLITS_OF_MANY, SLACK = 5, 3, 5e-4
ROWS = [200, 1000, 5000]


def held_out_nll(method: str, fit: Predictions, test: Predictions) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        calibrator = make_calibrator(method).fit(fit.logits, fit.labels)
    probs = np.asarray(calibrator.predict_proba(test.logits))
    return float(-np.log(probs[np.arange(test.n), test.labels]).mean())


def excess(method: str, pool: Predictions, test: Predictions, rows: int) -> np.ndarray:
    """What the NLL is above that of temperature scaling, in each of some draws of the rows."""
    found: list[float] = []
    for seed in range(SPLITS if pool.n_classes == 10 else SPLITS_OF_MANY):
        fit = pool.take(np.random.default_rng(seed).permutation(pool.n)[:rows])
        found.append(held_out_nll(method, fit, test) - held_out_nll("temperature", fit, test))
    return np.array(found)


def assert_not_worse(differences: np.ndarray) -> None:
    error = differences.std(ddof=1) / np.sqrt(len(differences))
    assert differences.mean() < max(2 * error, 1e-6)
    assert differences.mean() < SLACK


def published(network: str, real_predictions) -> tuple[Predictions, Predictions]:
    if network == "cifar10-resnet50":
        name = "cifar10-resnet50-cross-entropy-{}.npz"
        return real_predictions(name.format("val")), real_predictions(name.format("test"))
    return real_predictions("cifar100-wideresnet-16-4.npz").split(5000, seed=0)


@pytest.mark.parametrize("method", PROMISING)
@pytest.mark.parametrize("rows", ROWS)
def test_on_the_sample(method, rows):
    val, test = (load_sample(part) for part in ("validation", "test"))
    assert_not_worse(excess(method, val, test, rows))


@pytest.mark.parametrize("method", PROMISING)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("network", ["cifar10-resnet50", "cifar100-wideresnet"])
def test_on_published_networks(method, rows, network, real_predictions):
    assert_not_worse(excess(method, *published(network, real_predictions), rows))


@pytest.mark.parametrize("method", GUARDED)
def test_few_rows_of_the_sample_do_no_harm(method):
    val, test = (load_sample(part) for part in ("validation", "test"))
    assert_not_worse(excess(method, val, test, 200))


@pytest.mark.parametrize("method", GUARDED)
@pytest.mark.parametrize("network", ["cifar10-resnet50", "cifar100-wideresnet"])
def test_few_rows_of_published_networks_do_no_harm(method, network, real_predictions):
    assert_not_worse(excess(method, *published(network, real_predictions), 200))


@pytest.mark.parametrize("method", ["vector", "matrix", "dirichlet"])
def test_many_rows_get_past_the_guard(method):
    val, test = (load_sample(part) for part in ("validation", "test"))
    slopes = np.linspace(0.5, 2.0, val.logits.shape[1])
    skewed = [Predictions.from_logits(part.logits * slopes, part.labels) for part in (val, test)]
    gain = held_out_nll("temperature", *skewed) - held_out_nll(method, *skewed)
    assert gain > 0.01


@pytest.mark.parametrize("method", GUARDED)
def test_the_guard_is_what_holds_few_rows_back(method):
    val, test = (load_sample(part) for part in ("validation", "test"))
    fit = val.take(np.arange(200))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        calibrator = make_calibrator(method, guard=False).fit(fit.logits, fit.labels)
    probs = np.asarray(calibrator.predict_proba(test.logits))
    nll = -np.log(probs[np.arange(test.n), test.labels]).mean()
    assert abs(nll - held_out_nll("temperature", fit, test)) > 1e-4


@pytest.mark.parametrize("method", PROMISING)
@pytest.mark.parametrize("rows", [200, 1000])
@pytest.mark.parametrize("classes", [10, 100])
def test_where_one_temperature_is_the_truth(method, rows, classes):
    rng = np.random.default_rng(7)
    honest = rng.normal(scale=2.5, size=(15_000, classes))
    labels = (honest + rng.gumbel(size=honest.shape)).argmax(axis=1)
    every = Predictions.from_logits(2 * honest, labels)
    pool, test = every.take(np.arange(5000)), every.take(np.arange(5000, 15_000))
    assert_not_worse(excess(method, pool, test, rows))


@pytest.mark.parametrize("method", ["cts", "logit-clipping"])
def test_the_published_searches_are_worse_and_so_have_to_be_named(method, real_predictions):
    pool, test = real_predictions("cifar100-wideresnet-16-4.npz").split(5000, seed=0)
    fit = pool.take(np.random.default_rng(0).permutation(pool.n)[:1000])
    published = make_calibrator(method, criterion="ece").set_params(
        **({"accuracy_kept": 0.95} if method == "logit-clipping" else {})
    )
    probs = np.asarray(published.fit(fit.logits, fit.labels).predict_proba(test.logits))
    nll = -np.log(probs[np.arange(test.n), test.labels]).mean()
    assert nll > held_out_nll("temperature", fit, test) + 0.005
