"""What acting on a probability is worth over thresholds, and what miscalibration costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import calibrant as cb
from calibrant.decision import CostDecision, load_decision, save_decision
from calibrant.decision.cost import useful_range
from calibrant.predictions.predictions import Predictions

COSTS = [[0, 1], [5, 0]]


def binary(n: int, seed: int, sharper: float = 1.0) -> Predictions:
    rng = np.random.default_rng(seed)
    log_odds = rng.normal(-1, 1.5, n)
    happened = rng.random(n) < 1 / (1 + np.exp(-log_odds))
    return Predictions.from_binary(sharper * log_odds, happened, kind="logit")


def as_said(rows: Predictions, **more: object) -> CostDecision:
    other = replace(rows.take(np.arange(200)), weights=None, clusters=None)
    said = cb.make_calibrator("none").fit_predictions(replace(other, source="other rows"))
    new = rows.take(np.arange(200, rows.n))
    return cb.decide(said, new, **({"costs": COSTS} | more))  # pyright: ignore


def test_net_benefit_counts_hits_less_false_alarms_at_their_odds() -> None:
    rows = binary(1200, 0)
    found = as_said(rows).benefit
    new = rows.take(np.arange(200, rows.n))
    p, happened = np.asarray(new.probs)[:, 1], new.labels == 1
    for i, t in enumerate(found["threshold"]):
        hits = sum(1 for a, b in zip(p, happened, strict=True) if a >= t and b)
        alarms = sum(1 for a, b in zip(p, happened, strict=True) if a >= t and not b)
        assert found["benefit"][i] == pytest.approx((hits - alarms * t / (1 - t)) / len(p))
        every = (happened.sum() - (~happened).sum() * t / (1 - t)) / len(p)
        assert found["all"][i] == pytest.approx(every)
        assert found["more"][i] == pytest.approx(found["benefit"][i] - max(every, 0))


@pytest.fixture
def fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their ends scatter by as much as those of a few rows more or less: sixty are looked at."""
    monkeypatch.setattr("calibrant.decision.cost.default_resamples", lambda rows: 300)


@pytest.mark.usefixtures("fewer_resamples")
def test_its_intervals_hold_the_benefit_of_many_rows_as_often_as_they_say() -> None:
    truth = as_said(binary(200_200, 99)).benefit
    inside = []
    for seed in range(60):
        found = as_said(binary(700, seed)).benefit
        inside.append((found["low"] <= truth["benefit"]) & (truth["benefit"] <= found["high"]))
    at = slice(4, 30, 5)  # where enough rows are called
    assert 0.9 <= np.mean(inside, axis=0)[at].mean() <= 0.99


def test_copies_of_a_row_in_one_cluster_tell_no_more_than_the_row() -> None:
    rows, copies = binary(1000, 3), np.repeat(np.arange(1000), 4)
    alone = as_said(rows).benefit
    fourfold = replace(rows.take(copies), clusters=copies)
    said = cb.make_calibrator("none").fit_predictions(binary(300, 4))
    together = cb.decide(said, fourfold.take(np.arange(800, 4000)), costs=COSTS).benefit
    np.testing.assert_allclose(together["benefit"], alone["benefit"], atol=1e-12)
    width, wide = alone["high"] - alone["low"], together["high"] - together["low"]
    np.testing.assert_allclose(wide[:40].mean(), width[:40].mean(), rtol=0.05)


def test_a_row_of_weight_two_counts_as_two() -> None:
    rows = binary(900, 5)
    twice = np.random.default_rng(5).integers(1, 3, 900)
    said = cb.make_calibrator("none").fit_predictions(binary(300, 6))
    weighted = cb.decide(said, replace(rows, weights=twice.astype(float)), costs=COSTS)
    repeated = cb.decide(said, rows.take(np.repeat(np.arange(900), twice)), costs=COSTS)
    for name in ("benefit", "all", "more"):
        np.testing.assert_allclose(weighted.benefit[name], repeated.benefit[name], atol=1e-12)
    assert weighted.miscalibration is not None
    assert weighted.miscalibration.value == 0


def test_noise_is_of_use_at_no_threshold_and_the_truth_over_a_range() -> None:
    real = as_said(binary(3000, 7))
    useful = useful_range(real.benefit)
    assert useful is not None
    assert useful[0] < 0.25 < useful[1]
    assert "beats both calling all rows so and calling none" in str(real).replace("\n", " ")
    labels = np.random.default_rng(8).permutation(binary(3000, 7).labels)
    noise = as_said(replace(binary(3000, 7), known_labels=labels))
    assert useful_range(noise.benefit) is None
    assert "no threshold t is known" in str(noise).replace("\n", " ")


def test_miscalibration_costs_what_the_same_rule_costs_more_by_what_was_said() -> None:
    rows = binary(6000, 9, sharper=4)
    fit, new = rows.take(np.arange(3000)), rows.take(np.arange(3000, 6000))
    scaling = cb.make_calibrator("platt").fit_predictions(fit)
    found = cb.decide(scaling, new, costs=COSTS)
    costs = np.array(COSTS)
    after = np.asarray(scaling.apply_predictions(new).probs)
    paid = [costs[new.labels, (p @ costs).argmin(axis=1)] for p in (np.asarray(new.probs), after)]
    assert found.miscalibration is not None
    assert found.miscalibration.value == pytest.approx((paid[0] - paid[1]).mean())
    assert found.miscalibration.low > 0
    honest = as_said(rows).miscalibration
    assert honest is not None
    assert (honest.value, honest.low, honest.high) == (0, 0, 0)


def test_scores_have_no_cost_of_miscalibration() -> None:
    rng = np.random.default_rng(10)
    score = rng.normal(size=1000)
    correct = rng.random(1000) < 1 / (1 + np.exp(-2 * score))
    rows = Predictions.from_scores(score, correct)
    found = cb.decide("platt", rows, error_cost=5, hand_over_cost=1)
    assert found.miscalibration is None
    assert "uncalibrated" not in str(found)


def test_of_many_classes_it_is_of_being_right_or_of_a_class_that_is_named() -> None:
    scaling = cb.TemperatureScaling().fit_predictions(cb.load_sample("validation"))
    test = cb.load_sample("test")
    right = cb.decide(scaling, test, error_cost=10, hand_over_cost=1)
    of_three = cb.decide(scaling, test, error_cost=10, hand_over_cost=1, of=3)
    probs = np.asarray(scaling.apply_predictions(test).probs)
    correct = probs.argmax(axis=1) == test.labels
    assert right.of is None
    assert right.benefit["all"][24] == pytest.approx(2 * correct.mean() - 1)
    called, is_three = probs[:, 3] >= 0.5, test.labels == 3
    expected = (called & is_three).mean() - (called & ~is_three).mean()
    assert of_three.benefit["benefit"][24] == pytest.approx(expected)
    with pytest.raises(cb.InputError, match="there is no class 'ship'"):
        cb.decide(scaling, test, error_cost=10, hand_over_cost=1, of="ship")


def test_a_file_keeps_it_and_files_without_it_are_read(tmp_path: Path) -> None:
    found = as_said(binary(900, 11))
    save_decision(found, tmp_path / "cost.safetensors")
    read = load_decision(tmp_path / "cost.safetensors")
    assert isinstance(read, CostDecision)
    assert (read.of, read.miscalibration) == (1, found.miscalibration)
    for name, column in found.benefit.items():
        np.testing.assert_array_equal(read.benefit[name], column)
    old = replace(found, benefit={}, miscalibration=None, of=None)
    save_decision(old, tmp_path / "old.safetensors")
    assert load_decision(tmp_path / "old.safetensors").as_dict()["miscalibration"] is None


def test_the_gain_over_what_was_said_is_the_difference_of_two_benefits_and_paired() -> None:
    rows = binary(6000, 11, sharper=4)
    fit, new = rows.take(np.arange(3000)), rows.take(np.arange(3000, 6000))
    scaling = cb.make_calibrator("platt").fit_predictions(fit)
    found = cb.decide(scaling, new, costs=COSTS).benefit
    said = as_said(binary(700, 1)).calibrator
    before = cb.decide(said, new, costs=COSTS).benefit
    np.testing.assert_allclose(found["uncalibrated"], before["benefit"], atol=1e-12)
    np.testing.assert_allclose(found["gain"], found["benefit"] - before["benefit"], atol=1e-12)
    # Of the same rows the difference is known better than either.
    at = slice(4, 40)
    assert (found["gain_high"] - found["gain_low"])[at].mean() < (
        0.8 * (found["high"] - found["low"])[at].mean()
    )
    assert "It beats the uncalibrated probabilities if t is" in str(
        cb.decide(scaling, new, costs=COSTS)
    ).replace("\n", " ")
    honest = as_said(rows)
    assert (honest.benefit["gain"] == 0).all()
    assert "No t is known at which it beats the uncalibrated" in str(honest).replace("\n", " ")


@pytest.mark.usefixtures("fewer_resamples")
def test_intervals_of_the_gain_hold_that_of_many_rows_as_often_as_they_say() -> None:
    scaling = cb.make_calibrator("platt").fit_predictions(binary(20_000, 12, sharper=3))
    truth = cb.decide(scaling, binary(200_000, 13, sharper=3), costs=COSTS).benefit["gain"]
    inside = []
    for seed in range(60):
        found = cb.decide(scaling, binary(500, seed, sharper=3), costs=COSTS).benefit
        inside.append((found["gain_low"] <= truth) & (truth <= found["gain_high"]))
    assert 0.88 <= np.mean(inside, axis=0)[slice(4, 30, 5)].mean() <= 0.99
