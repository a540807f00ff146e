"""auto: folds, the paired error, weights and rules by hand, chains, and what it is worth."""

from __future__ import annotations

import re
import warnings
from copy import copy
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from scipy.optimize import minimize

from calibrant.core.errors import (
    CalibrationWarning,
    CalibratorFileError,
    InputError,
    NotApplicableError,
)
from calibrant.metrics.proper import negative_log_likelihood
from calibrant.posthoc import model_selection, registry
from calibrant.posthoc.auto import DEFAULT_CANDIDATES, AutoCalibrator
from calibrant.posthoc.fitting.cross_validation import (
    CrossValidation,
    Trial,
    difference_of_losses,
    fit_to_compare,
    fold_numbers,
    shared_rows_factor,
)
from calibrant.posthoc.loading import load
from calibrant.posthoc.model_selection import (
    SMALLEST_SHARE,
    best_mixture,
    choose,
    weights_by_likelihood,
    weights_of_average,
)
from calibrant.posthoc.needs import copies_of_rows
from calibrant.posthoc.registry import make_calibrator
from calibrant.posthoc.state import Comparison
from calibrant.posthoc.temperature.scaling import Uncalibrated
from calibrant.posthoc.worth import cross_validated
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax, summarize
from calibrant.sample import load_sample
from calibrant.synthetic import margin_tempered, tempered

QUICK = "temperature, ets, top-rest, svs"


def fitted(logits, labels, **arguments) -> AutoCalibrator:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        return AutoCalibrator(**({"candidates": QUICK} | arguments)).fit(logits, labels)


def biased(rows: int, seed: int = 0, classes: int = 4):
    """Logits that favour class 0 by 1.5, so that a map by class does far better than a scale."""
    rng = np.random.default_rng(seed)
    honest = rng.normal(scale=1.5, size=(rows, classes))
    labels = (honest + rng.gumbel(size=honest.shape)).argmax(axis=1)
    return honest + 1.5 * (np.arange(classes) == 0), labels


def nll(calibrator, logits, labels) -> float:
    return float(-np.log(calibrator.predict_proba(logits)[np.arange(len(labels)), labels]).mean())


# --- labels that say nothing


def said_of(logits, labels) -> tuple[AutoCalibrator, list[str]]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        auto = AutoCalibrator().fit_predictions(Predictions.from_logits(logits, labels))
    return auto, sorted({str(warning.message) for warning in heard})


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("bias", [0, 3])
def test_of_labels_that_are_all_the_same_it_takes_temperature_and_says_so_once(classes, bias):
    logits = 2 * np.random.default_rng(0).normal(size=(300, classes))
    logits[:, 0] += bias
    auto, said = said_of(logits, np.zeros(300, dtype=int))
    assert auto.averaged_ == {"temperature": 1.0}
    assert "all 300 labels are the same" in auto.fit_report_.notes[0]
    assert len(said) <= 1
    rows = Predictions.from_logits(logits, np.zeros(300, dtype=int))
    worth = cross_validated(auto, rows)
    assert worth.differences["accuracy"].value == 0
    assert "says nothing about other classes" in str(worth)


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("shares", ["equal", "unequal"])
def test_of_labels_by_chance_it_takes_temperature_and_says_so_once(classes, shares):
    rng = np.random.default_rng(1)
    chances = np.full(classes, 1.0) if shares == "equal" else 1 / np.arange(1.0, classes + 1)
    labels = rng.choice(classes, 300, p=chances / chances.sum())
    auto, said = said_of(2 * rng.normal(size=(300, classes)), labels)
    assert auto.averaged_ == {"temperature": 1.0}
    assert "than the class frequencies do" in auto.fit_report_.notes[0]
    assert len(said) == 1
    assert "chance" in said[0]


def test_logits_of_a_shifted_event_say_more_than_chance_though_no_temperature_can():
    logits, labels = _events(400)
    logits[:, 1] += 9.0
    auto, _ = said_of(logits, labels)
    assert "temperature" not in auto.averaged_
    assert nll(auto, logits, labels) < 0.6


# --- folds and losses


@pytest.mark.parametrize(("rows", "folds"), [(10, 2), (103, 5), (7, 7)])
def test_folds_are_alike_and_belong_to_rows(rows, folds, labelled_logits):
    logits, labels = labelled_logits(rows, 3)
    fold = fold_numbers(summarize(logits, labels), folds, 4)
    for group in (np.ones(rows, bool), logits.argmax(axis=1) == labels):
        counts = np.bincount(fold[group], minlength=folds)
        assert counts.max() - counts.min() <= 1 + (not group.all())
    order = np.random.default_rng(1).permutation(rows)
    moved = fold_numbers(summarize(logits[order], labels[order]), folds, 4)
    np.testing.assert_array_equal(moved, fold[order])
    assert (fold_numbers(summarize(logits, labels), folds, 5) != fold).any()


def _events(rows: int, decimals: int = 9) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rng = np.random.default_rng(2)
    log_odds = rng.normal(scale=2, size=rows).round(decimals)
    labels = (rng.random(rows) < 1 / (1 + np.exp(-0.6 * log_odds))).astype(int)
    return np.stack([np.zeros(rows), log_odds], axis=1), labels


def test_folds_of_two_classes_know_nothing_of_outcomes():
    summary = summarize(*_events(1000))
    right = summary.correct
    shares = {
        blind: [right[fold_numbers(summary, 5, seed, blind=blind) == 0].sum() for seed in range(60)]
        for blind in (None, False)
    }
    # As many right rows as 200 drawn by chance have, given their margins; or always as many.
    by_chance = np.sqrt(200 * 0.8 * (right.mean() * (1 - right.mean())))
    assert 0.6 * by_chance < np.std(shares[None]) < 1.4 * by_chance
    assert np.std(shares[False]) < 1


def test_blind_folds_belong_to_rows_where_scores_are_rounded():
    logits, labels = _events(300, 0)
    order = np.random.default_rng(1).permutation(300)
    fold = fold_numbers(summarize(logits, labels), 5, 4)
    moved = fold_numbers(summarize(logits[order], labels[order]), 5, 4)
    for part in range(5):
        held = [
            sorted(zip(z[f == part, 1].tolist(), y[f == part].tolist(), strict=True))
            for z, y, f in ((logits, labels, fold), (logits[order], labels[order], moved))
        ]
        assert held[0] == held[1]


def test_a_map_of_many_steps_is_not_taken_for_what_folds_tell_of_each_other():
    rows = tempered(3000, 10).predictions
    probs = softmax(rows.logits)
    predicted = probs.argmax(axis=1)
    top = Predictions.from_confidence(probs.max(axis=1), predicted, rows.labels)
    auto = AutoCalibrator().fit_predictions(top)
    # By folds that aren't blind Venn-Abers has more than .99 of the weight, and loses on new rows.
    assert auto.averaged_.get("venn-abers", 0.0) < 0.1


@pytest.mark.parametrize("method", ["temperature", "predicted-class", "svs"])
@pytest.mark.parametrize("classes", [4, 70])
def test_losses_are_those_of_rows_left_out(method, classes, labelled_logits):
    logits, labels = labelled_logits(240, classes)
    folds = CrossValidation(Predictions.from_logits(logits, labels), 3, 2, "nll", seed=1)
    found = folds.trial(make_calibrator(method)).losses
    wanted, rows, comparison = np.zeros(240), folds.predictions, Comparison()
    for fold in folds.assignments:
        for part in range(3):
            seen, unseen = fold != part, fold == part
            fitted = fit_to_compare(make_calibrator(method), rows.take(seen), comparison)
            probs = fitted.predict_proba(logits)
            wanted[unseen] -= np.log(probs[unseen, labels[unseen]]) / 2
    # Many classes share a table of their curves, exact to 2e-5.
    np.testing.assert_allclose(found, wanted, atol=1e-9 if classes == 4 else 2e-3)


def test_brier_losses(labelled_logits):
    logits, labels = labelled_logits(60, 3)
    folds = CrossValidation(Predictions.from_logits(logits, labels), 2, 1, "brier")
    wanted = ((softmax(logits) - np.eye(3)[labels]) ** 2).sum(axis=1)
    np.testing.assert_allclose(folds.trial(Uncalibrated()).losses, wanted)


def test_error_of_a_difference_against_its_spread_over_samples():
    # Temperature scaling on half the rows against all of them: how far do differences of
    # cross-validated losses vary from one sample to the next, and what does the error say?
    values, errors, plain = [], [], []
    for seed in range(60):
        logits, labels = biased(300, seed)
        folds = CrossValidation(Predictions.from_logits(logits, labels), 5, 1, "nll")
        first, second = (folds.trial(make_calibrator(m)).losses for m in ("temperature", "svs"))
        found = difference_of_losses(first, second, 5)
        values.append(found.value)
        errors.append(found.error)
        plain.append((first - second).std(ddof=1) / np.sqrt(300))
    np.testing.assert_allclose(errors, 1.5 * np.array(plain))
    # The raised error is a cautious one, and not by more than it was raised.
    assert 0.9 < np.mean(errors) / np.std(values, ddof=1) < 1.9


def test_the_error_is_paired():
    rng = np.random.default_rng(0)
    hard = rng.exponential(10.0, size=500)
    found = difference_of_losses(hard + 0.1, hard, 5)
    np.testing.assert_allclose(found, (0.1, 0.0), atol=1e-12)
    assert difference_of_losses(hard[:1], hard[:1], 5) == (0.0, 0.0)


# --- the rule


def trials(**means: float) -> dict[str, Trial]:
    """Trials of 100 rows: `means` in units of the standard error of each to `best`."""
    noise = np.resize([1.0, -1.0], 100) * np.sqrt(99 / 100) * 10 / 1.5
    made = {}
    for place, (name, mean) in enumerate(means.items()):
        wobble = np.zeros(100) if name == "best" else noise
        made[name] = Trial(5.0 + mean + wobble, place, True)
    return made


def test_simplest_within_one_standard_error():
    cases = [
        ({"temperature": 0.99, "simple": 0.5, "best": 0.0}, "temperature"),
        ({"temperature": 1.01, "simple": 0.5, "best": 0.0}, "simple"),
        ({"temperature": 1.01, "simple": 1.01, "best": 0.0}, "best"),
        ({"temperature": 1.2, "best": 0.0, "complex": 0.1}, "best"),
        # Close to the best by chance of its own noise, but no better than temperature scaling.
        ({"none": 0.95, "temperature": 0.9, "best": 0.0}, "temperature"),
        ({"none": 0.8, "temperature": 0.9, "best": 0.0}, "none"),
        ({"temperature": 0.0}, "temperature"),
    ]
    for means, wanted in cases:
        assert choose(trials(**means), 5, "temperature").chosen == wanted, means
    noisy = {"temperature": Trial(np.full(9, 1.0), 1, True), "b": Trial(np.full(9, 0.9), 2, True)}
    noisy["a"] = Trial(0.9 + np.resize([9.0, -9.0, 9.3], 9), 3, False)
    assert choose(noisy, 5, "temperature").chosen == "b"


def test_keeping_the_prediction_is_simpler_than_any_number_of_parameters():
    made = trials(temperature=5.0, moves=0.1, keeps=0.2, best=0.0)
    made["moves"] = made["moves"]._replace(parameters=2, keeps_prediction=False)
    made["keeps"] = made["keeps"]._replace(parameters=10_000)
    made["best"] = made["best"]._replace(parameters=3, keeps_prediction=False)
    found = choose(made, 5, "temperature")
    assert found.chosen == "keeps"
    assert list(found.means) == ["temperature", "keeps", "moves", "best"]
    sentence = found.sentence("nll", "5-fold cross-validation")
    assert sentence.startswith("chose keeps, NLL 5.2000 by 5-fold")
    assert "5.0000 of best (difference 0.2000 +- 1.0000)" in sentence
    best = choose(trials(temperature=5.0, other=4.0, best=0.0), 5, "temperature")
    assert "no simpler method is within one" in best.sentence("nll", "")
    assert "runner-up other 9.0000 (above the lowest by 4.0000 +- 1.0000)" in best.sentence(
        "nll", ""
    )


def test_the_lowest_needs_half_a_standard_error_over_temperature_scaling():
    for lead, wanted in ((0.4, "temperature"), (0.6, "best")):
        made = trials(temperature=lead, simple=0.2, best=0.0)
        found = choose(made, 5, "temperature", "lowest")
        assert found.chosen == wanted
        sentence = found.sentence("nll", "folds")
        wording = {
            "temperature": "isn't lower by half a standard error",
            "best": "it has the lowest",
        }
        assert wording[wanted] in sentence


# --- weights


def of_losses(**sums: float) -> dict[str, Trial]:
    """Trials of 50 rows whose losses add up to `sums`."""
    return {name: Trial(np.full(50, total / 50), 1, True) for name, total in sums.items()}


def test_weights_are_likelihoods_with_half_of_the_belief_in_temperature_scaling():
    folds, factor = 5, shared_rows_factor(5)
    assert factor == 2.25
    found = weights_by_likelihood(of_losses(temperature=20.0, a=18.0, b=19.0), folds, "temperature")
    wanted = np.array([0.5, 0.25 * np.exp(2 / factor), 0.25 * np.exp(1 / factor)])
    wanted = wanted - SMALLEST_SHARE * wanted.max()
    np.testing.assert_allclose(list(found.values()), wanted / wanted.sum(), rtol=1e-12)
    assert list(found) == ["temperature", "a", "b"]
    # Equal losses leave what was believed beforehand, less the share that is taken off.
    found = weights_by_likelihood(of_losses(temperature=9.0, a=9.0, b=9.0, c=9.0), 5, "temperature")
    assert 0.5 < found["temperature"] < 0.52
    assert weights_by_likelihood(of_losses(temperature=9.0), 5, "temperature") == {"temperature": 1}


def test_weights_fall_to_nothing_by_degrees():
    def weight(loss: float) -> float:
        made = of_losses(temperature=10.0, a=loss)
        return weights_by_likelihood(made, 5, "temperature")["a"]

    losses = np.linspace(10.0, 25.0, 2001)
    found = np.array([weight(loss) for loss in losses])
    assert found[0] == 0.5
    assert found[-1] == 0
    assert (np.diff(found) <= 0).all()
    assert np.abs(np.diff(found)).max() < 0.001


def apart(rows: int, seed: int = 0) -> np.ndarray:
    """(3, N) log losses: one, and two that are each better on two rows of five."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(5, size=rows)
    first = np.where(kind < 2, 0.2, np.where(kind < 4, 2.0, 1.0))
    second = np.where(kind < 2, 2.0, np.where(kind < 4, 0.2, 1.0))
    return np.stack([np.full(rows, 1.02), first, second])


@pytest.mark.parametrize("seed", range(5))
def test_the_best_mixture_is_that_of_a_general_optimiser(seed):
    rng = np.random.default_rng(seed)
    losses = rng.exponential(size=(4, 200)) + rng.uniform(0, 0.3, size=(4, 1))
    counts = rng.integers(1, 4, size=200)
    found = best_mixture(losses, counts.astype(float))

    def loss(weights):
        return -float(np.log(weights @ np.exp(-losses)) @ counts) / counts.sum()

    wanted = minimize(
        loss,
        np.full(4, 0.25),
        bounds=[(0, 1)] * 4,
        constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1},
        options={"ftol": 1e-14},
    )
    assert found.min() >= 0
    assert found.sum() == pytest.approx(1, abs=1e-12)
    assert loss(found) <= wanted.fun + 1e-9
    np.testing.assert_allclose(found, wanted.x, atol=1e-4)
    # A weight is so many rows; candidates that say the same share what one of them would have.
    np.testing.assert_allclose(best_mixture(np.repeat(losses, counts, axis=1)), found, atol=1e-6)
    twice = best_mixture(np.concatenate([losses, losses[:1]]), counts.astype(float))
    assert twice[[0, 4]].sum() == pytest.approx(found[0], abs=1e-6)
    assert twice[0] == pytest.approx(twice[4], abs=0.01)


def averaged_of(losses: np.ndarray, seed: int = 0) -> tuple[dict[str, float], dict[str, float]]:
    """Return weights with and without a mixture among the candidates."""
    trials = {
        name: Trial(row, 1, True)
        for name, row in zip(("temperature", "a", "b"), losses, strict=True)
    }
    labels = np.random.default_rng(seed).integers(3, size=losses.shape[1])
    contest = CrossValidation(Predictions.from_logits(np.eye(3)[labels], labels), 3, 1, "nll")
    alone = weights_by_likelihood(trials, 3, "temperature")
    return weights_of_average(trials, contest, "temperature"), alone


def test_candidates_that_are_right_on_different_rows_are_mixed_however_many_rows_there_are():
    for rows in (500, 5_000):
        mixed, alone = averaged_of(apart(rows))
        assert max(alone.values()) > 0.9
        assert mixed["temperature"] < 0.01
        assert mixed["a"] == pytest.approx(0.5, abs=0.1)
    # The weights are best by symmetry: half of each.
    np.testing.assert_allclose(best_mixture(apart(100_000))[1:], 0.5, atol=0.01)


def test_a_mixture_that_other_rows_do_not_bear_out_takes_no_weight_from_temperature_scaling():
    for seed in range(20):
        noise = np.random.default_rng(seed).normal(scale=0.05, size=(3, 300))
        mixed, alone = averaged_of(noise + np.array([[1.0], [1.01], [1.01]]), seed)
        assert mixed["temperature"] > alone["temperature"] - 0.05


# --- the calibrator


def test_averages_what_helps_and_says_why():
    logits, labels = biased(1500)
    calibrator = fitted(logits, labels)
    assert calibrator.averaged_ == {"svs": 1.0}
    assert calibrator.keeps_prediction is False
    sentence, scores = calibrator.fit_report_.notes[:2]
    assert sentence.startswith(
        "takes svs; chosen by 5-fold cross-validation, with a held-out NLL of "
    )
    assert scores.startswith("NLL of each, simplest first: temperature")
    # What it gives is that method fitted to all rows.
    alone = make_calibrator("svs").fit(logits, labels)
    np.testing.assert_array_equal(calibrator.predict_proba(logits), alone.predict_proba(logits))
    for one, other in zip(
        calibrator.predict_confidence(logits), alone.predict_confidence(logits), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert calibrator.n_parameters == alone.n_parameters
    kept = fitted(logits, labels, same_prediction=True)
    assert kept.keeps_prediction is True
    assert "left out svs: it may change the predicted class" in kept.fit_report_.notes


def test_an_average_is_the_weighted_sum_of_its_chains(labelled_logits):
    logits, labels = labelled_logits(300, 5)
    calibrator = fitted(logits, labels, candidates="temperature,ets,probit+top-rest,svs")
    weights = calibrator.averaged_
    assert set(weights) == {"temperature", "ets", "probit+top-rest", "svs"}
    np.testing.assert_allclose(sum(weights.values()), 1)
    assert list(weights.values()) == sorted(weights.values(), reverse=True)
    assert calibrator.fit_report_.notes[0].startswith("averages temperature ")
    steps = calibrator.parts()
    assert list(steps) == ["temperature", "ets", "probit", "probit+top-rest", "svs"]
    wanted = sum(
        weights[name] * steps[name].predict_proba(logits) for name in ("temperature", "ets", "svs")
    )
    first = np.log(steps["probit"].predict_proba(logits))
    chain = weights["probit+top-rest"] * steps["probit+top-rest"].predict_proba(first)
    np.testing.assert_allclose(calibrator.predict_proba(logits), wanted + chain, atol=1e-12)
    assert calibrator.n_parameters == sum(step.n_parameters for step in steps.values()) + 3
    assert calibrator.keeps_prediction is False


def test_a_step_learns_from_rows_that_the_step_before_has_not_seen():
    logits, labels = biased(400)
    predictions = Predictions.from_logits(logits, labels)
    contest = CrossValidation(predictions, 5, 2, "nll", seed=3)
    first = contest.trial(make_calibrator("svs"), keep_scores=True)
    found = contest.trial(make_calibrator("top-rest"), first)
    wanted, before, behind = np.zeros(400), make_calibrator("svs"), make_calibrator("top-rest")
    of_first, of_second = Comparison(), Comparison()
    for fold, scores in zip(contest.assignments, first.scores, strict=True):
        for part in range(5):
            seen, unseen = fold != part, fold == part
            fit_to_compare(before, predictions.take(seen), of_first)
            np.testing.assert_allclose(
                np.exp(scores[unseen]), before.predict_proba(logits[unseen]), atol=1e-12
            )
            fit_to_compare(behind, predictions.only_logits(scores).take(seen), of_second)
            probs = behind.predict_proba(scores[unseen])
            wanted[unseen] -= np.log(probs[np.arange(unseen.sum()), labels[unseen]]) / 2
    np.testing.assert_allclose(found.losses, wanted, atol=1e-9)
    assert found.parameters == behind.n_parameters + before.n_parameters
    assert found.keeps_prediction is False


def test_chains_that_keep_the_prediction_keep_it_together():
    rng = np.random.default_rng(2)
    logits = np.round(rng.normal(scale=2.0, size=(600, 6)), 1)
    labels = (logits + 1.5 * rng.normal(size=logits.shape)).argmax(axis=1)
    calibrator = fitted(
        logits, labels, candidates="temperature,top-rest,probit+top-rest", same_prediction=True
    )
    assert calibrator.keeps_prediction is True
    # Ties and near ties too: the first step says the same of both classes, up to rounding.
    close = np.repeat(rng.normal(size=(300, 1)), 6, axis=1)
    close[:, 3] += 1e-15 * rng.integers(0, 3, size=300)
    for rows in (logits, close):
        probs = calibrator.predict_proba(rows)
        top = probs[np.arange(len(rows)), rows.argmax(axis=1)]
        np.testing.assert_allclose(top, probs.max(axis=1), rtol=1e-12)
        np.testing.assert_array_equal(calibrator.predict_confidence(rows)[0], rows.argmax(axis=1))


@pytest.mark.parametrize("rule", ["average", "simplest"])
def test_stays_near_temperature_scaling_where_that_is_the_truth(rule, labelled_logits):
    new, answers = labelled_logits(20_000, 5, seed=999)
    lost = []
    for seed in range(12):
        logits, labels = labelled_logits(150, 5, seed=seed)
        base = make_calibrator("temperature").fit(logits, labels)
        calibrator = fitted(logits, labels, repeats=1, rule=rule)
        lost.append(nll(calibrator, new, answers) - nll(base, new, answers))
    if rule != "average":
        assert np.mean(np.array(lost) == 0) > 0.5
    assert np.mean(lost) < 0.003
    if rule == "average":
        assert np.mean(lost) < 0.001
        assert np.max(lost) < 0.006


@pytest.mark.parametrize("rule", ["lowest", "simplest"])
def test_one_is_taken_if_one_is_asked_for(rule):
    calibrator = fitted(*biased(1500), rule=rule)
    assert calibrator.averaged_ == {"svs": 1.0}
    sentence, scores = calibrator.fit_report_.notes[:2]
    assert sentence.startswith("chose svs, NLL ")
    assert "by 5-fold cross-validation" in sentence
    assert scores.startswith("NLL of each, simplest first: temperature")


@pytest.fixture(scope="module")
def sample_rows():
    return load_sample("validation"), load_sample("test")


@pytest.mark.parametrize("rows", [200, 1000])
def test_on_real_rows_it_costs_next_to_nothing_and_stays_near_the_best(rows, sample_rows):
    """A small form of the study of docs/appendix/calibration-size.md."""
    pool, test = sample_rows
    names = [name.strip() for name in DEFAULT_CANDIDATES.split(",") if "+" not in name]
    losses: dict[str, list[float]] = {name: [] for name in [*names, "svs-top-rest", "auto"]}
    for seed in range(2):
        fit, _ = pool.split(rows, seed)
        for name, found in losses.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CalibrationWarning)
                calibrator = make_calibrator(name).fit(fit.scores, fit.labels)
            found.append(nll(calibrator, test.scores, test.labels))
    means = {name: float(np.mean(found)) for name, found in losses.items()}
    auto_ = means.pop("auto")
    assert auto_ < means["temperature"] + 5e-4
    assert auto_ < min(means.values()) + 0.002


def test_rounding_errors_move_nothing():
    logits, labels = biased(400)
    wobble = 1 + 1e-12 * np.random.default_rng(0).normal(size=logits.shape)
    one, other = (
        fitted(rows, labels, candidates=DEFAULT_CANDIDATES, repeats=1)
        for rows in (logits, logits * wobble)
    )
    np.testing.assert_allclose(one.predict_proba(logits), other.predict_proba(logits), atol=1e-6)


def test_many_logits_are_tried_in_two_folds(monkeypatch):
    logits, labels = biased(400)
    monkeypatch.setattr(model_selection, "MANY_LOGITS", 1599)
    assert "by 2-fold" in fitted(logits, labels, repeats=1).fit_report_.notes[0]
    assert "by 3-fold" in fitted(logits, labels, repeats=1, folds=3).fit_report_.notes[0]
    monkeypatch.setattr(model_selection, "MANY_LOGITS", 1600)
    assert "by 5-fold" in fitted(logits, labels, repeats=1).fit_report_.notes[0]
    with pytest.raises(InputError, match="folds must be at least 2"):
        fitted(logits, labels, folds=1)


def test_many_rows_are_tried_in_three_folds(monkeypatch):
    logits, labels = biased(400)
    monkeypatch.setattr("calibrant.posthoc.auto.ROWS_FOR_FEWER", 400)
    assert "by 3-fold" in fitted(logits, labels, repeats=1).fit_report_.notes[0]


def test_what_can_t_catch_up_is_left_out_and_nothing_is_lost(monkeypatch):
    rng = np.random.default_rng(4)
    honest = 1.5 * rng.normal(size=(600, 5))
    labels = (honest + rng.gumbel(size=honest.shape)).argmax(axis=1)
    mixed = honest @ (np.eye(5) + 0.9 * np.roll(np.eye(5), 1, axis=1))  # classes confused in turn
    names = "temperature, top-rest, svs, svs+top-rest, ridge, ridge+top-rest"
    found = fitted(mixed, labels, candidates=names, repeats=1)
    said = " ".join(found.fit_report_.notes)
    assert "left out svs+top-rest: svs alone is too far behind ridge" in said
    monkeypatch.setattr(model_selection, "OUT_OF_REACH", np.inf)
    every = fitted(mixed, labels, candidates=names, repeats=1)
    assert "left out" not in " ".join(every.fit_report_.notes)
    np.testing.assert_allclose(found.predict_proba(mixed), every.predict_proba(mixed), atol=1e-9)


def test_nothing_is_put_behind_a_hopeless_step(monkeypatch):
    said = margin_tempered(3000, 30).predictions
    logits, labels = said.scores, said.labels
    names = "temperature,probit,probit+top-rest,probit+svs+top-rest,top-rest"
    found = fitted(logits, labels, candidates=names, folds=2)
    assert "probit+" not in found.fit_report_.notes[1]
    why = "probit alone is clearly worse than temperature"
    assert found.fit_report_.notes[2] == f"left out probit+top-rest, probit+svs+top-rest: {why}"
    for threshold in ("HOPELESS", "OUT_OF_REACH"):
        monkeypatch.setattr(model_selection, threshold, np.inf)
    every = fitted(logits, labels, candidates=names, folds=2)
    assert "probit+top-rest" in every.fit_report_.notes[1]
    np.testing.assert_allclose(found.predict_proba(logits), every.predict_proba(logits), atol=0.02)


@pytest.mark.parametrize("kind", ["few rows", "all right", "all wrong"])
def test_falls_back_where_rows_can_not_choose(kind, labelled_logits):
    logits, labels = labelled_logits(model_selection.FEWEST_ROWS - (kind == "few rows"), 4)
    if kind == "all right":
        labels = logits.argmax(axis=1)
    if kind == "all wrong":
        labels = logits.argsort(axis=1)[:, -2]
    calibrator = fitted(logits, labels)
    assert calibrator.averaged_ == {"temperature": 1.0}
    note = calibrator.fit_report_.notes[0]
    assert note.startswith("took temperature without comparing methods: ")
    assert note.endswith({"few rows": "150", "all right": "least 5", "all wrong": "least 5"}[kind])


@dataclass(eq=False)
class _Refuses(Uncalibrated):
    method: ClassVar[str] = "refuses"

    def _fit(self, predictions):
        raise NotApplicableError("not with these rows")


@dataclass(eq=False)
class _Needy(Uncalibrated):
    method: ClassVar[str] = "needy"
    needs: ClassVar[tuple[str, ...]] = ("features",)


def test_candidates_that_can_not_take_part_are_named(monkeypatch, overconfident):
    known = {kind.method: kind for kind in (_Refuses, _Needy)}
    monkeypatch.setattr(registry.Methods, "_plugged_in", lambda self: known)
    names = "refuses,needy, none, refuses+top-rest, temperature+needy"
    calibrator = fitted(*overconfident, candidates=names, repeats=2)
    assert calibrator.averaged_ == {"temperature": 1.0}
    notes = calibrator.fit_report_.notes
    assert "2 x 5-fold" in notes[0]
    assert notes[2:] == (
        "left out needy, temperature+needy: it needs more than logits",
        "left out refuses, refuses+top-rest: not with these rows",
    )
    with pytest.raises(InputError, match="must not hold 'auto'"):
        fitted(*overconfident, candidates="temperature,auto")
    with pytest.raises(InputError, match=r"must not hold 'svs\+auto'"):
        fitted(*overconfident, candidates="svs + auto")
    with pytest.raises(InputError, match="no method is called 'nonsense'"):
        fitted(*overconfident, candidates="nonsense")


# --- the step behind the average


def sure_and_wrong(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits with heavy tails, so that the surest rows are right less often than others."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(6, size=rows)
    logits = 1.3 * rng.standard_t(2.5, size=(rows, 6))
    logits[np.arange(rows), labels] += 5.0
    return logits, labels


@pytest.fixture(scope="module")
def ended() -> AutoCalibrator:
    return fitted(*sure_and_wrong(3_000, 0), candidates="temperature,top-rest,probit")


def test_what_is_wrong_with_the_average_is_mapped_behind_it(ended):
    assert list(ended.steps_)[-1] == "average+natural-spline"
    said = "; natural-spline follows it, which lowers the held-out NLL by "
    assert said in ended.fit_report_.notes[0]
    last = ended.steps_["average+natural-spline"]
    without = copy(ended)
    without.steps_ = {name: step for name, step in ended.steps_.items() if step is not last}
    without.weights_ = ended.weights_[:-1]
    logits, labels = sure_and_wrong(20_000, 1)
    inner, outer = without.predict_proba(logits), ended.predict_proba(logits)
    at = np.arange(len(labels)), labels
    gain = np.log(outer[at] / inner[at])
    assert gain.mean() > 3 * gain.std() / len(gain) ** 0.5
    np.testing.assert_allclose(outer, last.predict_proba(np.log(inner)), atol=1e-12)
    np.testing.assert_array_equal(outer.argmax(axis=1), logits.argmax(axis=1))
    assert ended.keeps_prediction is True
    assert sum(ended.averaged_.values()) == pytest.approx(1)


def test_a_file_holds_the_step_behind_the_average_as_the_last_without_a_weight(ended, tmp_path):
    path, logits = tmp_path / "a.safetensors", sure_and_wrong(50, 2)[0]
    ended.save(path)
    np.testing.assert_array_equal(load(path).predict_proba(logits), ended.predict_proba(logits))
    with safe_open(path, framework="numpy") as file:
        header = file.metadata()
    arrays = load_file(path)
    arrays["weights_"] = np.eye(len(arrays["weights_"]))[-1]
    save_file(arrays, path, metadata=header)
    with pytest.raises(CalibratorFileError, match="must be 0 for the step behind the average"):
        load(path)


def test_the_step_behind_the_average_leaves_in_a_graph(ended):
    run = pytest.importorskip("onnxruntime").InferenceSession
    torch, logits = pytest.importorskip("torch"), sure_and_wrong(50, 2)[0]
    graph = ended.to_onnx(dtype="float64").SerializeToString()
    (probs,) = run(graph).run(["probs"], {"logits": logits})
    np.testing.assert_allclose(probs, ended.predict_proba(logits), atol=1e-10)
    module = ended.to_torch()(torch.tensor(logits))
    np.testing.assert_allclose(module, ended.predict_proba(logits), atol=1e-12)


def test_an_average_that_is_calibrated_is_hardly_changed():
    rows = tempered(2_000, 5, seed=4).predictions
    auto = fitted(rows.scores, rows.labels)
    assert len(auto.averaged_) > 1
    assert [name for name in auto.steps_ if name.startswith("average+")] == ["average+temperature"]
    assert auto.steps_["average+temperature"].beta_ == pytest.approx(1, abs=0.03)
    assert "; temperature follows it" in auto.fit_report_.notes[0]
    few = fitted(rows.scores[:900], rows.labels[:900])
    assert len(few.averaged_) > 1
    assert not any(name.startswith("average+") for name in few.steps_)


def test_where_no_spline_follows_one_temperature_makes_an_average_as_sure_as_it_should_be(
    monkeypatch,
):
    monkeypatch.setattr(model_selection, "clearly_lower", lambda *args: False)
    auto = fitted(*sure_and_wrong(3_000, 0), candidates="temperature,top-rest,probit")
    assert list(auto.steps_)[-1] == "average+temperature"
    without = copy(auto)
    without.steps_ = {name: auto.steps_[name] for name in list(auto.steps_)[:-1]}
    without.weights_ = auto.weights_[:-1]
    new = sure_and_wrong(20_000, 1)
    assert nll(auto, *new) < nll(without, *new)


# --- files


def test_one_file_holds_all_that_is_averaged(tmp_path):
    logits, labels = biased(300)
    calibrator = fitted(logits, labels, candidates="svs,probit+svs+top-rest,svs+top-rest")
    assert len(calibrator.averaged_) > 1
    path = tmp_path / "a.safetensors"
    calibrator.save(path)
    back = load(path)
    assert isinstance(back, AutoCalibrator)
    assert back.averaged_ == calibrator.averaged_
    assert list(back.parts()) == list(calibrator.parts())
    assert back.parts()["svs"].fit_report_ == calibrator.parts()["svs"].fit_report_
    assert back.fit_report_ == calibrator.fit_report_
    assert back.keeps_prediction is False
    assert back.n_parameters == calibrator.n_parameters
    np.testing.assert_array_equal(back.predict_proba(logits), calibrator.predict_proba(logits))
    assert {"svs/change_", "weights_", "svs+top-rest/knots_"} <= set(load_file(path))


@pytest.mark.parametrize(
    ("find", "put", "sentence"),
    [
        ('"method": "svs"', '"method": "magic"', "unknown method 'magic'"),
        ('"method": "svs"', '"method": "temperature"', "has no argument 'ridge'"),
        ('"n_classes": "4"', '"n_classes": "5"', "part 'svs' was fitted for 5 classes, not 4"),
        ('{"svs":', '{"svs+svs":', "made of steps, each behind one that comes before it, but"),
        ('{"svs":', '{"none":', "but the file"),
        ('{"svs": {', '{"svs": {"svs": {', "header is damaged"),
    ],
)
def test_a_part_that_does_not_fit_is_refused(tmp_path, find, put, sentence):
    path = tmp_path / "a.safetensors"
    calibrator = fitted(*biased(1500))
    assert list(calibrator.parts()) == ["svs"]
    calibrator.save(path)
    with safe_open(path, framework="numpy") as file:
        header = file.metadata()
    assert find in header["parts"]
    header["parts"] = header["parts"].replace(find, put, 1)
    save_file(load_file(path), path, metadata=header)
    with pytest.raises(CalibratorFileError, match=sentence):
        load(path)
    header["parts"] = "[" * 100_000
    save_file(load_file(path), path, metadata=header)
    with pytest.raises(CalibratorFileError, match="header is damaged"):
        load(path)


def test_an_array_that_belongs_to_no_part_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    fitted(*biased(1500)).save(path)
    with safe_open(path, framework="numpy") as file:
        header = file.metadata()
    for name in ("svs", "stray", "svs/stray"):
        save_file(load_file(path) | {name: np.zeros(2)}, tmp_path / "b.safetensors", header)
        with pytest.raises(CalibratorFileError, match="but the file"):
            load(tmp_path / "b.safetensors")


@pytest.mark.parametrize("weights", [[2.0, -1.0], [0.5, 0.6], [0.0, 0.0], [1.0], [[0.5, 0.5]], 1.0])
def test_weights_that_are_none_are_refused(tmp_path, weights):
    path = tmp_path / "a.safetensors"
    calibrator = fitted(*biased(900), candidates="svs,svs+top-rest")
    assert len(calibrator.parts()) == 2
    calibrator.save(path)
    with safe_open(path, framework="numpy") as file:
        header = file.metadata()
    save_file(load_file(path) | {"weights_": np.array(weights)}, path, metadata=header)
    with pytest.raises(CalibratorFileError, match="'weights_' must"):
        load(path)


def test_a_step_of_another_method_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    fitted(*biased(1500)).save(path)
    with safe_open(path, framework="numpy") as file:
        header = file.metadata()
    header["parts"] = header["parts"].replace('{"svs":', '{"sms":', 1)
    arrays = {name.replace("svs/", "sms/"): array for name, array in load_file(path).items()}
    save_file(arrays, path, metadata=header)
    with pytest.raises(CalibratorFileError, match="part 'sms' is a 'svs' calibrator"):
        load(path)


@pytest.mark.parametrize("candidates", [["temperature", "vector"], ("temperature", "vector")])
def test_candidates_are_a_sequence_or_a_text(candidates, tmp_path):
    rows, labels = biased(300)
    text = AutoCalibrator(candidates="temperature,vector", folds=2, repeats=1).fit(rows, labels)
    sequence = AutoCalibrator(candidates=candidates, folds=2, repeats=1).fit(rows, labels)
    assert sequence.averaged_ == text.averaged_
    sequence.save(tmp_path / "auto.safetensors")
    again = load(tmp_path / "auto.safetensors").predict_proba(rows)
    np.testing.assert_array_equal(again, text.predict_proba(rows))
    with pytest.raises(InputError, match=r"candidates must be names, .* not 3"):
        AutoCalibrator(candidates=3).fit(rows, labels)


def test_a_candidate_may_have_another_form_than_its_usual_one(tmp_path):
    logits, labels = biased(400)
    calibrator = fitted(
        logits, labels, candidates="temperature, svs+isotonic:one-vs-rest", rule="lowest", repeats=1
    )
    assert list(calibrator.steps_) == ["svs", "svs+isotonic:one-vs-rest"]
    assert calibrator.steps_["svs+isotonic:one-vs-rest"].form == "one-vs-rest"
    calibrator.save(tmp_path / "a.safetensors")
    again = load(tmp_path / "a.safetensors").predict_proba(logits)
    np.testing.assert_array_equal(again, calibrator.predict_proba(logits))
    with pytest.raises(InputError, match="form must be one of top-label, one-vs-rest, not 'odd'"):
        fitted(logits, labels, candidates="isotonic:odd")
    with pytest.raises(InputError, match="method 'svs' has no argument 'form'"):
        fitted(logits, labels, candidates="svs:one-vs-rest")


def test_each_averaged_chain_is_a_calibrator_of_its_own(tmp_path):
    rows = load_sample("validation")
    found = AutoCalibrator().fit_predictions(rows)
    assert len(found.averaged_) > 1
    total, logits = 0.0, np.asarray(rows.logits, dtype=np.float64)  # float32 sums are rounded
    for name, weight in found.averaged_.items():
        path = tmp_path / "chain.safetensors"
        found.chain(name).save(path)
        chain = load(path)
        assert chain.method == name
        total = total + weight * np.asarray(chain.predict_proba(logits))
    behind = found.steps_["average+temperature"]
    total = behind.predict_proba(np.log(total))
    np.testing.assert_allclose(found.predict_proba(logits), total, atol=1e-12)
    assert found.chain().method == next(iter(found.averaged_))
    other = next(n for n in DEFAULT_CANDIDATES.split(", ") if n not in found.averaged_)
    with pytest.raises(InputError, match=f"'{re.escape(other)}' isn't averaged here; there are: "):
        found.chain(other)


def test_a_chain_puts_scores_and_zeros_where_the_average_does():
    rng = np.random.default_rng(0)
    scores = 2 * rng.normal(size=400)
    right = rng.random(400) < 1 / (1 + np.exp(-scores))
    rows = Predictions.from_scores(scores, right)
    auto = AutoCalibrator(rule="simplest").fit_predictions(rows)
    alone = auto.chain().apply_predictions(rows)
    np.testing.assert_allclose(alone.scores, auto.apply_predictions(rows).scores, rtol=1e-12)
    second = 1 / (1 + np.exp(-scores))
    second[second < 0.05] = 0.0
    probs = np.stack([1 - second, second], axis=1)
    auto = AutoCalibrator(rule="simplest").fit(probs, right.astype(int), kind="probs")
    alone = auto.chain().predict_proba(probs, kind="probs")
    np.testing.assert_allclose(alone, auto.predict_proba(probs, kind="probs"), rtol=1e-12)


def test_of_very_many_logits_the_contest_takes_a_sample(monkeypatch, labelled_logits):
    logits, labels = labelled_logits(1200, 5, seed=3)
    rows = Predictions.from_logits(logits, labels)
    monkeypatch.setattr(model_selection, "MANY_LOGITS", 1500)
    monkeypatch.setattr(model_selection, "FEWEST_FOR_MANY", 200)
    some = model_selection.some_rows(rows, seed=0)
    assert some.n == 300
    assert model_selection.some_rows(some, seed=0) is some
    candidates = "temperature, svs+top-rest"
    auto = AutoCalibrator(candidates=candidates).fit_predictions(rows)
    assert "the methods were compared on 300 of 1200 rows" in auto.fit_report_.notes
    # First steps are fitted to all rows.
    assert (
        auto.steps_["temperature"].beta_
        == make_calibrator("temperature").fit_predictions(rows).beta_
    )
    again = AutoCalibrator(candidates=candidates).fit_predictions(rows)
    np.testing.assert_array_equal(auto.weights_, again.weights_)


def two_classes(rows: int, seed: int):
    """Rows of two classes whose log odds are too large, and too high on one side."""
    rng = np.random.default_rng(seed)
    honest = rng.normal(scale=1.8, size=rows)
    labels = (rng.random(rows) < 1 / (1 + np.exp(-honest))).astype(int)
    scores = np.where(honest > 0, 2.2 * honest, honest) + 0.5
    return np.stack([0 * scores, scores], axis=1), labels


def test_two_classes_are_averaged_alike_whether_declared_binary_or_not():
    logits, labels = two_classes(600, 0)
    plain = AutoCalibrator().fit(logits, labels)
    rows = Predictions.from_binary(logits[:, 1], labels, kind="logit")
    declared = AutoCalibrator().fit_predictions(rows)
    assert plain.averaged_ == declared.averaged_
    assert set(plain.averaged_) & {"platt", "beta", "quadratic", "venn-abers"}
    np.testing.assert_array_equal(plain.predict_proba(logits), declared.predict_proba(logits))
    plain_form, declared_form = plain.form_, declared.form_
    assert (plain_form, declared_form) == ("rows", "binary")


def test_which_of_two_classes_comes_first_makes_no_difference_to_it():
    logits, labels = two_classes(600, 1)
    one = AutoCalibrator().fit(logits, labels).predict_proba(logits)
    other = AutoCalibrator().fit(logits[:, ::-1], 1 - labels).predict_proba(logits[:, ::-1])
    np.testing.assert_allclose(other[:, ::-1], one, atol=1e-6)


def _oversampled(rows: int, times: int) -> Predictions:
    return load_sample("validation").take(np.repeat(np.arange(rows), times)).only_logits()


def test_copies_of_a_row_are_held_out_together():
    five = _oversampled(300, 5)
    clusters, several = copies_of_rows(five)
    assert several == 300
    np.testing.assert_array_equal(clusters.reshape(300, 5), np.tile(clusters[::5], (5, 1)).T)
    assert len(np.unique(clusters)) == 300
    fold = fold_numbers(five.summary, 5, 0, clusters=clusters).reshape(300, 5)
    assert (fold == fold[:, :1]).all()
    assert np.bincount(fold[:, 0]).tolist() == [60] * 5
    # Wrong rows of the folds differ by one at most.
    wrong = np.bincount(fold[:, 0], ~five.summary.correct[::5])
    assert wrong.max() - wrong.min() <= 1


def test_rows_that_repeat_by_nature_are_no_copies():
    once = _oversampled(500, 1)
    assert copies_of_rows(once) == (None, 0)
    two = Predictions.from_logits(np.tile([[1.0, 0.0], [0.5, 0.0]], (50, 1)), np.tile([0, 1], 50))
    assert copies_of_rows(two) == (None, 0)
    # The same entries in another order are another row, and so are other features.
    turned = Predictions.from_logits([[3.0, 1.0, 0.0], [3.0, 0.0, 1.0]], [0, 0])
    assert copies_of_rows(turned) == (None, 0)
    seen = Predictions.from_logits([[3.0, 1.0, 0.0]] * 4, [0] * 4, [[1.0], [1.0], [2.0], [3.0]])
    clusters, several = copies_of_rows(seen)
    assert several == 1
    assert clusters[0] == clusters[1]
    assert len(np.unique(clusters)) == 3


@pytest.mark.parametrize("method", ["matrix", "vector", "auto"])
def test_oversampled_rows_teach_no_more_than_they_hold(method):
    test, note = load_sample("test"), "300 rows occur more than once; copies of a row are held out"
    losses = list[float]()
    for times in (1, 5):
        fitted = make_calibrator(method).fit_predictions(_oversampled(300, times))
        losses.append(negative_log_likelihood(fitted.predict_proba(test.logits), test.labels))
        assert any(note in each for each in fitted.fit_report_.notes) == (times == 5)
    assert losses[1] < losses[0] + 0.005


@given(seed=st.integers(0, 2**16), decimals=st.sampled_from([3, 6, 12]))
def test_folds_know_neither_what_classes_are_called_nor_the_origin_of_a_row(seed, decimals):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(60, 5)).round(decimals)  # few decimals: ties of margins
    labels, order = rng.integers(5, size=60), rng.permutation(5)
    rows = summarize(logits, labels)
    assume(rows.margin.min() > 1e-9)  # which of two equal logits is on top, names do decide
    fold = fold_numbers(rows, 5, seed)
    moved = logits + rng.normal(scale=30, size=(60, 1))
    np.testing.assert_array_equal(fold_numbers(summarize(moved, labels), 5, seed), fold)
    renamed = summarize(logits[:, order], np.argsort(order)[labels])
    np.testing.assert_array_equal(fold_numbers(renamed, 5, seed), fold)


@pytest.mark.parametrize("method", ["auto", "svs-top-rest"])
def test_names_of_classes_and_origins_of_rows_move_nothing(method):
    rows = load_sample("validation").take(slice(600))
    logits, labels = np.asarray(rows.logits, dtype=np.float64), rows.labels
    rng = np.random.default_rng(3)
    order, away = rng.permutation(10), rng.normal(scale=5, size=(600, 1))
    plain = make_calibrator(method).fit(logits, labels).predict_proba(logits[:50])
    moved = make_calibrator(method).fit(logits + away, labels)
    np.testing.assert_allclose(moved.predict_proba(logits[:50] + away[:50]), plain, atol=1e-9)
    renamed = make_calibrator(method).fit(logits[:, order], np.argsort(order)[labels])
    named = renamed.predict_proba(logits[:50, order])[:, np.argsort(order)]
    np.testing.assert_allclose(named, plain, atol=1e-9)


def test_a_confused_network_of_many_classes_is_given_a_whole_matrix():
    rng = np.random.default_rng(0)
    honest = tempered(1_500, 12, temperature=1.0).predictions
    confused = honest.logits @ (np.eye(12) + 0.3 * rng.normal(size=(12, 12)))
    auto = AutoCalibrator().fit(confused, honest.labels)
    assert sum(weight for name, weight in auto.averaged_.items() if "ridge" in name) > 0.9
    # The ridge was chosen once, by all rows, and is what the step is fitted with.
    assert auto.steps_["ridge"].ridge == auto.steps_["ridge"].ridge_ > 0


@pytest.mark.parametrize("noise", ["second", "any"])
def test_labels_with_noise_are_given_a_slope_for_each_rank_or_a_share_for_any_class(noise):
    rng = np.random.default_rng(0)
    true = rng.integers(8, size=1500)
    logits = 2 * (np.eye(8)[true] * 4 + rng.normal(size=(1500, 8)))
    others = rng.integers(8, size=1500) if noise == "any" else np.argsort(logits)[:, -2]
    labels = np.where(rng.random(1500) < 0.2, others, true)
    averaged = AutoCalibrator().fit(logits, labels).averaged_
    suits = ("mcct", "ets") if noise == "any" else ("mcct",)
    assert sum(w for name, w in averaged.items() if name.startswith(suits)) > 0.9
