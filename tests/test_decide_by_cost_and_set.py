"""Decisions of least expected cost, and sets of classes with a promised coverage."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta

import calibrant as cb
from calibrant.cli.app import app
from calibrant.decision.base import Share
from calibrant.decision.sets import conformal_quantile, odd_scores
from calibrant.predictions.predictions import Predictions

VAL, TEST = cb.load_sample("validation"), cb.load_sample("test")
SCALING = cb.TemperatureScaling().fit_predictions(VAL)
PROBS = SCALING.predict_proba(TEST.logits).astype(np.float64)


def test_each_row_gets_the_decision_of_least_expected_cost() -> None:
    costs = np.random.default_rng(0).uniform(size=(10, 10)) * (1 - np.eye(10))
    found = cb.decide(SCALING, TEST, costs=costs, hand_over_cost=0.1)
    columns = found.of_rows(TEST)
    for row in range(0, 300, 7):
        expected = [sum(PROBS[row, y] * costs[y, d] for y in range(10)) for d in range(10)]
        best = min(*expected, 0.1)
        assert columns["cost"][row] == pytest.approx(best)
        assert columns["answer"][row] == (min(expected) <= 0.1)
        answer = str(np.argmin(expected)) if min(expected) <= 0.1 else ""
        assert columns["decision"][row] == answer


def test_rows_are_answered_from_the_confidence_at_which_that_pays() -> None:
    found = cb.decide(SCALING, TEST, error_cost=10, hand_over_cost=2)
    answer = found.of_rows(TEST)["answer"]
    np.testing.assert_array_equal(answer, PROBS.max(axis=1) >= 1 - 2 / 10)
    wrong = PROBS.argmax(axis=1) != TEST.labels
    paid = np.where(answer, 10.0 * wrong, 2.0)
    assert found.cost.value == pytest.approx(paid.mean())
    saved = 10.0 * wrong - paid
    assert found.saved.value == pytest.approx(saved.mean())
    half = 1.96 * saved.std() / np.sqrt(len(saved))
    assert found.saved.high - found.saved.low == pytest.approx(2 * half, rel=1e-3)


def test_a_rare_event_is_called_by_the_ratio_of_its_costs() -> None:
    rng = np.random.default_rng(1)
    p = rng.uniform(size=4000) ** 3
    rows = Predictions.from_binary(p, rng.uniform(size=4000) < p, kind="prob")
    found = cb.decide(
        cb.make_calibrator("none").fit_predictions(rows.take(np.arange(2000))),
        rows.take(np.arange(2000, 4000)),
        costs=[[0, 1], [5, 0]],
    )
    called = found.of_rows(rows)["decision"]
    np.testing.assert_array_equal(called == "1", p > 1 / 6)
    assert found.saved.low > 0


def test_rows_of_one_number_are_answered_or_handed_over() -> None:
    rows = Predictions.from_confidence(PROBS.max(1), PROBS.argmax(1), TEST.labels)
    found = cb.decide("platt", rows, error_cost=10, hand_over_cost=1)
    columns = found.of_rows(rows)
    after = found.calibrator.apply_predictions(rows).scores
    np.testing.assert_array_equal(columns["answer"], 10 * (1 - after) <= 1)
    with pytest.raises(cb.InputError, match="a probability for every class"):
        cb.decide("platt", rows, costs=np.eye(10))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "takes one rule"),
        ({"risk": 0.1, "cover": 0.9}, "takes one rule"),
        ({"error_cost": 2}, "the predicted class is best"),
        ({"error_cost": -1, "hand_over_cost": 1}, "not negative"),
        ({"costs": np.eye(3)}, r"shape \(10, 10\)"),
        ({"costs": np.eye(10), "error_cost": 1}, "not both"),
        ({"cover": 1.5}, "cover must"),
        ({"cover": 0.9, "score": "best"}, "lac, aps or raps"),
        ({"cover": 0.9999}, "at least 19998 rows"),
    ],
)
def test_what_is_no_rule_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(cb.InputError, match=message):
        cb.decide(SCALING, TEST, **arguments)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["lac", "aps", "raps"]))
def test_scores_are_those_of_the_definition(seed: int, score: str) -> None:
    p = np.random.default_rng(seed).dirichlet(np.full(8, 0.5))
    found = odd_scores(p[None], score)[0]
    ranked = sorted(range(8), key=lambda k: -p[k])
    for rank, k in enumerate(ranked, 1):
        if rank == 1:
            expected = 0.0
        elif score == "lac":
            expected = 1 - p[k]
        else:
            expected = sum(p[j] for j in ranked[:rank])
            expected += 0.01 * max(rank - 5, 0) * (score == "raps")
        assert found[k] == pytest.approx(expected)


def test_the_quantile_is_of_the_rank_that_the_promise_needs() -> None:
    scores = np.arange(1.0, 20)
    assert conformal_quantile(scores, 0.9) == 18
    assert conformal_quantile(scores, 0.95) == 19
    assert conformal_quantile(scores, 0.96) == np.inf


def test_coverage_over_draws_has_the_distribution_that_is_stated() -> None:
    rng = np.random.default_rng(0)
    low, high = beta.ppf([0.025, 0.975], 500 + 1 - 50, 50)
    within = 0
    for _ in range(400):  # of uniform scores the coverage of a quantile is the quantile
        within += low <= conformal_quantile(rng.uniform(size=500), 0.9) <= high
    assert 365 <= within <= 393
    found = cb.decide(SCALING, TEST.take(np.arange(500)), cover=0.9)
    assert (found.range_low, found.range_high) == pytest.approx((low, high))


@pytest.mark.parametrize("score", ["lac", "aps", "raps"])
def test_sets_of_new_rows_hold_their_class_as_often_as_promised(score: str) -> None:
    rng, held = np.random.default_rng(1), []
    for _ in range(20):
        order = rng.permutation(TEST.n)
        found = cb.decide(SCALING, TEST.take(order[:1000]), cover=0.95, score=score)
        sets = found.of_rows(TEST.take(order[1000:3000]))["set"]
        labels = TEST.labels[order[1000:3000]]
        inside = [str(y) in s.split("|") for y, s in zip(labels, sets, strict=True)]
        held.append(np.mean(inside))
    assert np.mean(held) == pytest.approx(0.95, abs=0.006)


def test_measured_coverage_is_that_of_other_rows_and_stands_by_class() -> None:
    found = cb.decide(SCALING, TEST, cover=0.95)
    assert found.coverage.low <= 0.95 <= found.coverage.high
    assert [row[0] for row in found.by_class] == list(range(10))
    assert sum(row[1] for row in found.by_class) == TEST.n
    mean = sum(row[1] * row[2] for row in found.by_class) / TEST.n
    assert mean == pytest.approx(found.coverage.value)
    sizes = found.of_rows(TEST)["set_size"]
    assert sizes.min() == 1
    assert sizes.mean() == pytest.approx(found.size.value, abs=0.02)


def test_every_size_of_a_set_has_its_coverage_and_every_class_the_interval_of_its_size() -> None:
    found = cb.decide(SCALING, TEST, cover=0.95)
    assert sum(row[1] for row in found.by_size) == TEST.n
    mean = sum(row[1] * row[2] for row in found.by_size) / TEST.n
    assert mean == pytest.approx(found.coverage.value)
    assert [row[0] for row in found.by_size] == sorted({row[0] for row in found.by_size})
    assert all(low < size < high for *_, size, low, high in found.by_class)
    assert "sets of 1 " in str(found)
    # A class of many rows has a narrow interval: about as the root of its share of all.
    ratio = (found.size.high - found.size.low) / np.mean([r[7] - r[6] for r in found.by_class])
    assert 0.2 < ratio < 0.5


def test_wider_promises_make_larger_sets_and_lac_the_smallest() -> None:
    sizes = [cb.decide(SCALING, TEST, cover=cover).size.value for cover in (0.9, 0.95, 0.99)]
    assert all(a < b for a, b in pairwise(sizes))
    assert sizes[1] < cb.decide(SCALING, TEST, cover=0.95, score="aps").size.value


def test_a_cluster_is_one_row_of_the_quantile_and_weights_are_refused() -> None:
    codes = np.arange(TEST.n) // 4
    found = cb.decide(SCALING, replace(TEST, clusters=codes), cover=0.9)
    assert found.counted == found.clusters == 2500
    alone = cb.decide(SCALING, TEST, cover=0.9)
    assert found.range_high - found.range_low > 1.5 * (alone.range_high - alone.range_low)
    with pytest.raises(cb.InputError, match="without weights"):
        cb.decide(SCALING, replace(TEST, weights=np.linspace(0.5, 1.5, TEST.n)), cover=0.9)


def test_the_command_knows_all_rules(tmp_path, capsys) -> None:
    cb.write_predictions(TEST, tmp_path / "test.npz")
    words = ["decide", "temperature", str(tmp_path / "test.npz"), "--json", "-"]
    rules = {
        "cost": ["--error-cost", "10", "--hand-over-cost", "1"],
        "set": ["--cover", "0.9", "--score", "aps"],
    }
    for rule, options in rules.items():
        app([*words, *options], standalone_mode=False)
        assert json.loads(capsys.readouterr().out)["rule"] == rule
    with pytest.raises(cb.InputError, match="as many as there are classes"):
        app([*words, "--costs", "0,1;5"], standalone_mode=False)
    with pytest.raises(cb.InputError, match=r"shape \(10, 10\)"):
        app([*words, "--costs", "0,1;5,0"], standalone_mode=False)


@pytest.mark.parametrize("n", [1, 500])
def test_costs_that_are_all_alike_have_an_interval_too(n):
    logits = np.eye(4)[np.arange(n) % 4] * 4
    rows = cb.Predictions.from_logits(logits, logits.argmax(axis=1))
    scaling = cb.TemperatureScaling().fit(np.eye(4)[[0, 1, 2, 3, 0, 1]] * 2.0, [0, 1, 2, 3, 1, 1])
    found = cb.decide(scaling, rows, error_cost=5, hand_over_cost=10)
    assert found.before.value == found.before.low == 0
    # Of so many outcomes without an error, how many errors there may be (Clopper and Pearson).
    np.testing.assert_allclose(found.before.high, 10 * (1 - 0.025 ** (1 / n)))


def test_a_loss_is_told_with_the_ends_of_its_interval_in_order():
    found = cb.decide(SCALING, TEST, error_cost=0.1, hand_over_cost=0.05)
    worse = replace(found, saved=Share(-0.2, -0.3, -0.1))
    assert "it loses 0.2 (0.1 to 0.3) compared" in worse.headline()


def test_two_columns_of_groups_are_refused(tmp_path) -> None:
    path = tmp_path / "rows.npz"
    cb.write_predictions(TEST.take(slice(100)), path)
    words = ["decide", "temperature", str(path), "--risk", "0.1", "--by", "a", "--by", "b"]
    with pytest.raises(cb.InputError, match="decide --by takes one column"):
        app(words, standalone_mode=False)
