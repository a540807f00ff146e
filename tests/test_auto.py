"""The choice of a method: the rule by hand, folds, the paired error, and what it is worth."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from calibrant.core.errors import (
    CalibrationWarning,
    CalibratorFileError,
    InputError,
    NotApplicableError,
)
from calibrant.posthoc import auto, registry
from calibrant.posthoc.auto import AutoCalibrator, choose
from calibrant.posthoc.fitting.cross_validation import (
    CrossValidation,
    Trial,
    difference_of_losses,
    fold_numbers,
)
from calibrant.posthoc.loading import load
from calibrant.posthoc.registry import make_calibrator
from calibrant.posthoc.temperature.uncalibrated import Uncalibrated
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax, summarize

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


@pytest.mark.parametrize("method", ["temperature", "predicted-class", "svs"])
@pytest.mark.parametrize("classes", [4, 70])
def test_losses_are_those_of_rows_left_out(method, classes, labelled_logits):
    logits, labels = labelled_logits(240, classes)
    folds = CrossValidation(Predictions.from_logits(logits, labels), 3, 2, "nll", seed=1)
    found = folds.trial(make_calibrator(method)).losses
    wanted = np.zeros(240)
    for fold in folds.assignments:
        for part in range(3):
            seen, unseen = fold != part, fold == part
            probs = make_calibrator(method).fit(logits[seen], labels[seen]).predict_proba(logits)
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
    assert sentence.startswith("chose keeps, nll 5.2000 by 5-fold")
    assert "5.0000 of best (difference 0.2000 +- 1.0000)" in sentence
    best = choose(trials(temperature=5.0, other=4.0, best=0.0), 5, "temperature")
    assert "no simpler method is within one" in best.sentence("nll", "")
    assert "runner-up other 9.0000 (above the lowest by 4.0000 +- 1.0000)" in best.sentence("x", "")


# --- the calibrator


def test_takes_what_helps_and_says_why():
    logits, labels = biased(1500)
    calibrator = fitted(logits, labels)
    assert calibrator.chosen_.method == "svs"
    assert calibrator.keeps_prediction is False
    sentence, scores = calibrator.fit_report_.notes[:2]
    assert sentence.startswith("chose svs, nll ")
    assert "1 x 5-fold cross-validation" in sentence
    assert scores.startswith("nll of all, simplest first: temperature")
    # What it gives is its choice fitted to all rows.
    alone = make_calibrator("svs").fit(logits, labels)
    np.testing.assert_array_equal(calibrator.predict_proba(logits), alone.predict_proba(logits))
    assert calibrator.n_parameters == alone.n_parameters
    kept = fitted(logits, labels, same_prediction=True)
    assert kept.keeps_prediction is True
    assert "left out svs: it may change the predicted class" in kept.fit_report_.notes


def test_stays_at_temperature_scaling_where_that_is_the_truth(labelled_logits):
    new, answers = labelled_logits(20_000, 5, seed=999)
    lost = []
    for seed in range(20):
        logits, labels = labelled_logits(150, 5, seed=seed)
        base = make_calibrator("temperature").fit(logits, labels)
        calibrator = fitted(logits, labels, repeats=1)
        lost.append(nll(calibrator, new, answers) - nll(base, new, answers))
    assert np.mean(np.array(lost) == 0) > 0.5
    assert np.mean(lost) < 0.003


@pytest.mark.parametrize("kind", ["few rows", "all right", "all wrong"])
def test_falls_back_where_rows_can_not_choose(kind, labelled_logits):
    logits, labels = labelled_logits(auto.FEWEST_ROWS - (kind == "few rows"), 4)
    if kind == "all right":
        labels = logits.argmax(axis=1)
    if kind == "all wrong":
        labels = logits.argsort(axis=1)[:, -2]
    calibrator = fitted(logits, labels)
    assert calibrator.chosen_.method == "temperature"
    note = calibrator.fit_report_.notes[0]
    assert note.startswith("took temperature without a contest: ")
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
    for kind in (_Refuses, _Needy):
        monkeypatch.setitem(registry.BUILT_IN, kind.method, kind)
    calibrator = fitted(*overconfident, candidates="refuses,needy, none", repeats=2)
    assert calibrator.chosen_.method == "temperature"
    notes = calibrator.fit_report_.notes
    assert "2 x 5-fold" in notes[0]
    assert notes[2:] == (
        "left out needy: it needs more than logits",
        "left out refuses: not with these rows",
    )
    with pytest.raises(InputError, match="must not hold 'auto'"):
        fitted(*overconfident, candidates="temperature,auto")
    with pytest.raises(InputError, match="no method is called 'nonsense'"):
        fitted(*overconfident, candidates="nonsense")


# --- files


def test_one_file_holds_the_choice(tmp_path):
    logits, labels = biased(800)
    calibrator = fitted(logits, labels, candidates="svs-top-rest")
    assert calibrator.chosen_.method == "svs-top-rest"
    path = tmp_path / "a.safetensors"
    calibrator.save(path)
    back = load(path)
    assert isinstance(back, AutoCalibrator)
    assert back.chosen_.method == "svs-top-rest"
    assert back.chosen_.fit_report_ == calibrator.chosen_.fit_report_
    assert back.fit_report_ == calibrator.fit_report_
    assert back.keeps_prediction is False
    np.testing.assert_array_equal(back.predict_proba(logits), calibrator.predict_proba(logits))
    assert "chosen_/vector_/change_" in load_file(path)


@pytest.mark.parametrize(
    ("find", "put", "sentence"),
    [
        ('"method": "svs"', '"method": "magic"', "unknown method 'magic'"),
        ('"method": "svs"', '"method": "temperature"', "has no argument 'ridge'"),
        ('"classes": "4"', '"classes": "5"', "part 'chosen_' was fitted for 5 classes, not 4"),
        ('{"chosen_":', '{"other_":', "made of chosen_, but the file of other_"),
        ('{"chosen_": {', '{"chosen_": {"chosen_": {', "header is damaged"),
    ],
)
def test_a_part_that_does_not_fit_is_refused(tmp_path, find, put, sentence):
    path = tmp_path / "a.safetensors"
    calibrator = fitted(*biased(800))
    assert calibrator.chosen_.method == "svs"
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
    fitted(*biased(800)).save(path)
    with safe_open(path, framework="numpy") as file:
        header = file.metadata()
    for name in ("chosen_", "stray", "chosen_/stray"):
        save_file(load_file(path) | {name: np.zeros(2)}, tmp_path / "b.safetensors", header)
        with pytest.raises(CalibratorFileError, match="but the file"):
            load(tmp_path / "b.safetensors")
