"""Probit scaling: its optimum, rows whose truth it is, and top-rest scaling behind it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from vote_integrals import direct_shares, share_of, shares

from calibrant.core import numpy_namespace as xnp
from calibrant.core.errors import CalibrationWarning
from calibrant.metrics.proper import negative_log_likelihood
from calibrant.posthoc.chain import ProbitTopRestScaling, is_gain
from calibrant.posthoc.confidence.top_rest import TopRestScaling
from calibrant.posthoc.fitting.cross_validation import held_out_losses
from calibrant.posthoc.noise import (
    COARSE_STEP,
    FINE_STEP,
    GUMBEL_DEVIATION,
    MOST_CLASSES_COARSE,
    REACH,
    ProbitScaling,
    vote_shares,
    vote_tables,
)
from calibrant.posthoc.registry import make_calibrator
from calibrant.posthoc.temperature.scaling import TemperatureScaling
from calibrant.predictions.predictions import Predictions


def fitted(calibrator, logits, labels):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        return calibrator.fit(logits, labels)


def with_truth(rows: int, classes: int, noise: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return logits, four times too large, of labels that normal or Gumbel noise decides."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(scale=2.0, size=(rows, classes))
    drawn = {"normal": rng.normal, "gumbel": rng.gumbel}[noise](size=scores.shape)
    return 4 * scores, (scores + drawn).argmax(axis=1)


@pytest.mark.parametrize("classes", [2, 5])
def test_the_noise_is_that_of_the_greatest_likelihood(classes, labelled_logits):
    logits, labels = labelled_logits(300, classes)
    calibrator = fitted(ProbitScaling(), logits, labels)

    def nll(noise):
        probs = direct_shares(logits, noise, 0.25) * 300 / 301 + 1 / classes / 301
        return negative_log_likelihood(probs, labels)

    near = GUMBEL_DEVIATION * TemperatureScaling().fit(logits, labels).temperature_
    best = min(nll(noise) for noise in near * np.geomspace(1 / 8, 8, 400))
    np.testing.assert_allclose(nll(calibrator.noise_), best, atol=1e-5)
    np.testing.assert_allclose(calibrator.fit_report_.value, best, atol=1e-4)
    assert calibrator.fit_report_.converged
    np.testing.assert_allclose(
        negative_log_likelihood(calibrator.predict_proba(logits), labels), best, atol=1e-5
    )


@pytest.mark.parametrize("classes", [3, 30])
def test_known_noise_is_found_and_the_right_kind_wins(classes):
    for kind in ("normal", "gumbel"):
        logits, labels = with_truth(2000, classes, kind, seed=classes)
        test, truth = with_truth(20_000, classes, kind, seed=classes + 1)
        probit = fitted(ProbitScaling(), logits, labels)
        scaled = fitted(TemperatureScaling(), logits, labels)
        lead = [negative_log_likelihood(c.predict_proba(test), truth) for c in (probit, scaled)]
        assert (lead[0] < lead[1]) == (kind == "normal")
        if kind == "normal":
            np.testing.assert_allclose(probit.noise_, 4, rtol=0.06)


def test_many_rows_are_thinned_evenly():
    logits, labels = with_truth(5000, 4, "normal", seed=0)
    whole = fitted(ProbitScaling(), logits, labels)
    third = fitted(ProbitScaling(), logits[::3], labels[::3])
    np.testing.assert_allclose(whole.noise_, third.noise_, rtol=5e-3)
    assert whole.fit_report_.n == 5000
    assert whole.uniform_ == 1 / 5001


@pytest.mark.parametrize("classes", [2, 7, 300])
def test_classes_that_are_masked_or_far_make_no_difference_to_the_others(classes):
    logits = np.random.default_rng(1).normal(scale=2.0, size=(20, classes))
    wanted = shares(logits, 1.3)
    for value in (-np.inf, -1e300, logits.min() - 1.3 * (REACH + 8)):
        found = shares(np.concatenate([logits, np.full((20, 5), value)], axis=1), 1.3)
        np.testing.assert_allclose(found[:, :classes], wanted, rtol=1e-9, atol=1e-12)
        assert (found[:, classes:] < 1e-30).all()
        if value < -1e299:
            assert (found[:, classes:] == 0).all()


@pytest.mark.parametrize(("classes", "scale"), [(2, 3.0), (10, 4.0), (100, 3.0), (1000, 2.0)])
def test_the_step_is_small_enough(classes, scale):
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=scale, size=(100, classes))
    logits[:, 0] += 10 * rng.random(100)
    finer = vote_shares(xnp, logits, 1.0, vote_tables(FINE_STEP / 2))
    np.testing.assert_allclose(shares(logits, 1.0), finer, atol=1e-9)


@pytest.mark.parametrize("classes", [2, 3, 10, MOST_CLASSES_COARSE, 200, 1000])
def test_classes_level_with_one_another_are_the_hardest_and_exact_all_the_same(classes):
    """One class on top and the others all as far below, whose errors then add up."""
    distances = np.concatenate([[0, 1e-9], np.arange(0.25, 14, 0.25)])
    logits = np.zeros((len(distances), classes)) - distances[:, None]
    logits[:, 0] = 0
    np.testing.assert_allclose(shares(logits, 1.0), direct_shares(logits, 1.0), atol=1e-8)


@pytest.mark.parametrize("spread", [0.3, 3.0, 30.0, 3e5])
@pytest.mark.parametrize("classes", [2, 3, 10, 19, 20, 30, 700])
def test_the_shares_are_the_integral_to_eight_digits(classes, spread):
    rng = np.random.default_rng(classes)
    logits = rng.normal(scale=spread, size=(60, classes))
    logits[:, 0] += 10 * rng.random(60)
    logits[1, :2] = logits[1].max() + 1
    logits[::4, classes // 2] = -np.inf
    found, wanted = shares(logits, 1.3), direct_shares(logits, 1.3)
    np.testing.assert_allclose(found, wanted, atol=1e-8)
    assert (found[logits == -np.inf] == 0).all()
    assert found[1, 0] == found[1, 1]
    # What matters to the likelihood is the relative error of a share that is not all but nothing.
    likely = wanted > 1e-6
    np.testing.assert_allclose(found[likely], wanted[likely], rtol=2e-5)
    best = np.take_along_axis(found, logits.argmax(axis=1)[:, None], axis=1)[:, 0]
    np.testing.assert_array_equal(best, found.max(axis=1))
    of_class = rng.integers(classes, size=60)
    np.testing.assert_allclose(
        share_of(logits, of_class, 1.3), wanted[np.arange(60), of_class], atol=2e-8
    )


@pytest.mark.parametrize("classes", [4, 300])
def test_the_order_of_the_logits_is_kept_and_tied_classes_stay_tied(classes):
    logits = np.sort(np.random.default_rng(3).normal(scale=4.0, size=(200, classes)), axis=1)
    assert (np.diff(shares(logits, 1.0), axis=1) >= 0).all()
    logits[:, 1::2] = logits[:, ::2]
    tied = shares(logits, 1.0)
    np.testing.assert_array_equal(tied[:, 1::2], tied[:, ::2])
    assert (np.diff(tied, axis=1) >= 0).all()


@pytest.mark.parametrize("classes", [3, 40])
def test_rounding_lets_no_class_overtake_the_top(classes):
    rng = np.random.default_rng(6)
    logits = 3 - 4.5e-16 * rng.integers(0, 8, size=(500, classes))
    found = shares(logits, 0.9)
    top = np.take_along_axis(found, logits.argmax(axis=1)[:, None], axis=1)[:, 0]
    np.testing.assert_array_equal(top, found.max(axis=1))


def test_torch_differentiates_the_shares():
    torch = pytest.importorskip("torch")
    xt = pytest.importorskip("array_api_compat.torch")
    tables = {name: torch.as_tensor(array) for name, array in vote_tables(COARSE_STEP).items()}
    rows = np.random.default_rng(0).normal(scale=3.0, size=(6, 5))
    rows[0, 3], rows[1, 2] = rows[0].min() - 60, rows[1].max() + 60
    logits = torch.tensor(rows, requires_grad=True)
    noise = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda z, eps: vote_shares(xt, z, eps, tables), (logits, noise), eps=1e-5, atol=1e-6
    )
    masked = logits.detach().clone()
    masked[:, 1] = -torch.inf
    masked.requires_grad_()
    vote_shares(xt, masked, 1.3, tables)[:, 0].sum().backward()
    assert torch.isfinite(masked.grad).all()
    assert (masked.grad[:, 1] == 0).all()
    assert (masked.grad[:, 0] > 0).any()


def test_few_and_many_classes_are_the_same_method():
    """A class that is masked everywhere brings a fit to the finer step; all stays as it is."""
    logits, labels = with_truth(600, MOST_CLASSES_COARSE, "normal", seed=4)
    masked = np.concatenate([logits, np.full((600, 1), -np.inf)], axis=1)
    few, many = fitted(ProbitScaling(), logits, labels), fitted(ProbitScaling(), masked, labels)
    np.testing.assert_allclose(few.noise_, many.noise_, rtol=3e-3)
    many.noise_ = few.noise_
    found = many.predict_proba(masked)
    np.testing.assert_allclose(found[:, :-1], few.predict_proba(logits), atol=1e-6)


def test_the_second_step_is_top_rest_scaling_of_the_first(labelled_logits):
    logits, labels = labelled_logits(400, 5)
    found = fitted(ProbitTopRestScaling(knots=6, tails="normal"), logits, labels)
    first = fitted(ProbitScaling(), logits, labels)
    scores = np.log(first.predict_proba(logits))
    second = fitted(TopRestScaling(knots=6), scores, labels)
    np.testing.assert_allclose(found.predict_proba(logits), second.predict_proba(scores), rtol=1e-6)
    report = found.fit_report_
    assert report.iterations == first.fit_report_.iterations + second.fit_report_.iterations
    assert found.n_parameters == 1 + second.n_parameters


@pytest.mark.parametrize(("kind", "method"), [("normal", "probit"), ("gumbel", "temperature")])
def test_the_better_tails_are_taken(kind, method):
    logits, labels = with_truth(3000, 10, kind, seed=2)
    found = fitted(ProbitTopRestScaling(), logits, labels)
    assert found.parts()["first_"].method == method
    if method == "temperature":
        plain = fitted(TopRestScaling(), logits, labels)
        np.testing.assert_allclose(
            found.predict_proba(logits), plain.predict_proba(logits), atol=1e-4
        )


def z_score(gain: np.ndarray) -> float:
    return float(gain.mean() / gain.std(ddof=1) * np.sqrt(len(gain)))


def test_it_gains_where_both_parts_are_wrong():
    """Normal noise, and a confidence that is too high at small margins, which hides that noise."""
    rng = np.random.default_rng(5)
    scores = rng.normal(scale=2.0, size=(24_000, 50))
    tops = np.sort(scores, axis=1)
    unsure = np.exp(tops[:, -2] - tops[:, -1])[:, None]
    labels = (scores + (1 + unsure) * rng.normal(size=scores.shape)).argmax(axis=1)
    fit, test = slice(0, 4000), slice(4000, None)
    methods = {
        method: fitted(make_calibrator(method), scores[fit], labels[fit])
        for method in ("temperature", "probit", "top-rest", "probit-top-rest")
    }
    loss = {
        method: -np.log(calibrator.predict_proba(scores[test])[np.arange(20_000), labels[test]])
        for method, calibrator in methods.items()
    }
    # By itself normal noise isn't better; behind it the second step is.
    reports = {method: calibrator.fit_report_.value for method, calibrator in methods.items()}
    assert reports["probit"] > reports["temperature"]
    assert methods["probit-top-rest"].parts()["first_"].method == "probit"
    for other in ("temperature", "probit", "top-rest"):
        assert z_score(loss[other] - loss["probit-top-rest"]) > 3


def test_a_gain_that_one_row_makes_is_none():
    gains = np.random.default_rng(0).normal(loc=0.1, scale=0.3, size=200)
    assert is_gain(gains)
    assert not is_gain(-gains)
    assert not is_gain(np.zeros(50))
    few = np.full(50, -0.01)
    few[7] = 7.0
    assert few.mean() > 0.9 * few.std(ddof=1) / np.sqrt(50)
    assert not is_gain(few)


def test_losses_of_rows_that_were_held_out(labelled_logits):
    logits, labels = labelled_logits(90, 4)
    fold = np.arange(90) % 3
    found = held_out_losses(TopRestScaling(), Predictions.from_logits(logits, labels), fold)
    for part in range(3):
        seen, unseen = fold != part, fold == part
        probs = fitted(TopRestScaling(), logits[seen], labels[seen]).predict_proba(logits[unseen])
        wanted = -np.log(probs[np.arange(30), labels[unseen]])
        np.testing.assert_allclose(found[unseen], wanted, rtol=1e-12)
