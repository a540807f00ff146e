"""Selective answers at a promised risk: the test against brute force, the promise against draws."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom
from scripts.promise_of_risk import as_tested, draw, true_risks

import calibrant as cb
from calibrant.cli.app import app
from calibrant.decision.base import DecidedRows, wilson
from calibrant.decision.fixed_sequence import (
    BettingTest,
    BinomialTest,
    last_passed,
    resampled,
    risk_test,
    thresholds,
)
from calibrant.predictions.predictions import Predictions

VAL, TEST = cb.load_sample("validation"), cb.load_sample("test")
SCALING = cb.TemperatureScaling().fit_predictions(VAL)
GRID = thresholds()


def start_by_hand(answers: list[int], n: int, risk: float, chance: float) -> int:
    """Return the place of the first number of rows that could bear two errors, or one, or none."""
    starts = [
        next((i for i, k in enumerate(answers) if binom.cdf(e, k, risk) <= chance), len(answers))
        for e in (2, 1, 0)
    ]
    return next((i for i in starts[:2] if i < len(answers) and answers[i] <= n / 2), starts[2])


def by_hand(rows: DecidedRows, risk: float, sure: float) -> float | None:
    """Return the threshold of the fallback procedure, one threshold after the other."""
    n, taken, in_hand = len(rows.correct), None, 0.0
    answers = [int((rows.confidence >= threshold).sum()) for threshold in GRID]
    start = start_by_hand(answers, n, risk, 1 - sure)
    parts = {}
    for quarter in (1, 2, 3):
        at = next(i for i, k in enumerate(answers) if 4 * k >= quarter * n)
        if at > start and binom.cdf(4, answers[at], risk) <= (1 - sure) / 100:
            parts[at] = (1 - sure) / 100
    if parts:
        start = start_by_hand(answers, n, risk, (1 - sure) * (1 - len(parts) / 100))
    parts[start] = parts.get(start, 0) + (1 - sure) * (1 - len(parts) / 100)
    for place, threshold in enumerate(GRID):
        in_hand += parts.get(place, 0)
        answered = rows.confidence >= threshold
        k, x = int(answered.sum()), int((answered & ~rows.correct).sum())
        if in_hand > 0 and binom.cdf(x, k, risk) <= in_hand:
            taken = threshold
        else:
            in_hand = 0.0
    return taken


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([20, 80, 400, 2000]), st.floats(0.01, 0.4))
def test_the_threshold_is_that_of_testing_one_by_one(seed: int, n: int, risk: float) -> None:
    rows = draw(np.random.default_rng(seed), n, 1)
    seen = as_tested(rows)
    place = last_passed(seen, risk_test(seen, 0.9, 0), risk, 0.9)
    assert (None if place is None else GRID[place]) == by_hand(rows, risk, 0.9)


def test_the_bound_is_that_of_clopper_and_pearson() -> None:
    found = cb.decide(SCALING, TEST, risk=0.05)
    top = SCALING.apply_predictions(TEST).probs
    confidence, right = top.max(axis=1), top.argmax(axis=1) == TEST.labels
    for threshold, bound in zip(found.curve["threshold"], found.curve["bound"], strict=True):
        answered = confidence >= threshold
        k, x = answered.sum(), (answered & ~right).sum()
        assert bound == pytest.approx(beta.ppf(0.95, x + 1, k - x), abs=1e-6)


@pytest.mark.parametrize("size", [1, 5])
def test_the_promise_holds_over_draws(size: int) -> None:
    rng = np.random.default_rng(1)
    truth, draws, broken = true_risks(rng, 400_000), 200, 0
    for seed in range(draws):
        seen = as_tested(draw(rng, 800, size))
        place = last_passed(seen, risk_test(seen, 0.9, seed), 0.1, 0.9)
        broken += place is not None and truth[place] > 0.1
    # 33 of 200 have a chance of 0.2 % where a promise is broken just as often as it may be.
    assert broken <= 32


def test_a_few_wrong_rows_among_the_most_confident_do_not_end_it() -> None:
    odds = np.linspace(6, 0, 2000)
    wrong = np.isin(np.arange(2000), [*range(0, 60, 6), *range(399, 2000, 400)])
    rows = DecidedRows(TEST, 1 / (1 + np.exp(-odds)), ~wrong, None, np.arange(2000), None)
    seen = as_tested(rows)
    place = last_passed(seen, risk_test(seen, 0.95, 0), 0.03, 0.95)
    assert place is not None
    assert (rows.confidence >= GRID[place]).all()
    alone = BinomialTest.of(seen).p_values(0.03, slice(0, len(GRID)))
    assert alone[seen.counts[300]] > 0.05  # one sequence ends before the 300th row


def test_sequences_together_go_wrong_no_more_often_than_promised() -> None:
    rng, broken, draws = np.random.default_rng(6), 0, 1000
    for _ in range(draws):
        confidence = rng.choice([0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99], size=600)
        right = rng.uniform(size=600) >= 0.1  # every threshold is at the risk itself
        seen = as_tested(DecidedRows(TEST, confidence, right, None, np.arange(600), None))
        broken += last_passed(seen, risk_test(seen, 0.9, 0), 0.1, 0.9) is not None
    assert broken <= 128  # 10 % of 1000 and three standard deviations


def test_a_threshold_at_the_measured_risk_breaks_it_in_half_of_the_draws() -> None:
    rng = np.random.default_rng(2)
    truth, broken = true_risks(rng, 400_000), 0
    for _ in range(100):
        rows = draw(rng, 800, 1)
        answered = rows.confidence[:, None] >= GRID
        error = (answered & ~rows.correct[:, None]).sum(0) / np.maximum(answered.sum(0), 1)
        broken += truth[np.flatnonzero(error <= 0.1)[-1]] > 0.1
    assert 30 <= broken <= 70


def test_bets_lose_their_stake_at_most_so_often_at_the_risk_itself() -> None:
    rng, rejected, draws = np.random.default_rng(3), 0, 400
    for seed in range(draws):
        wrong = np.repeat(rng.uniform(size=60) < 0.2, 4)  # whole clusters are wrong together
        confidence, unit = np.full(240, 0.9), np.repeat(np.arange(60), 4)
        weight = rng.uniform(0.5, 1.5, 240)
        rows = DecidedRows(TEST, confidence, ~wrong, weight, unit, 60)
        test = BettingTest.of(as_tested(rows), 0.9, seed)
        rejected += test.p_values(0.2, slice(len(GRID) - 1, len(GRID)))[0] <= 0.1
    assert rejected <= 56  # 10 % of 400 and 2.7 standard deviations


def test_two_hundred_clusters_are_enough_to_answer_many_of_their_rows() -> None:
    rng = np.random.default_rng(0)
    covered: list[float] = []
    for seed in range(30):
        rows = draw(rng, 1000, 5)
        seen = as_tested(rows)
        place = last_passed(seen, risk_test(seen, 0.95, seed), 0.05, 0.95)
        covered.append(0.0 if place is None else float((rows.confidence >= GRID[place]).mean()))
    assert np.mean(covered) > 0.4  # it was 0.12 with small stakes and a start that is too early


def test_clusters_of_one_row_are_rows_to_the_bets_and_copies_are_worth_nothing() -> None:
    some = TEST.take(slice(0, 1500))
    alone = cb.decide(SCALING, replace(some, clusters=np.arange(1500)), risk=0.1)
    assert alone.threshold is not None
    assert alone.clusters == 1500
    copies = some.take(np.repeat(np.arange(1500), 3))
    together = cb.decide(SCALING, replace(copies, clusters=np.repeat(np.arange(1500), 3)), risk=0.1)
    assert together.threshold == alone.threshold
    assert cb.decide(SCALING, copies, risk=0.1).coverage.value > together.coverage.value


def test_a_risk_that_cannot_be_reached_says_from_how_many_rows_it_could_be() -> None:
    few = cb.decide(SCALING, TEST.take(slice(0, 300)), risk=0.01)
    assert few.threshold is None
    assert few.reachable_from is not None
    assert f"About {few.reachable_from} rows" in repr(few)
    low, high = few.reachable_between
    assert low is not None
    assert low <= few.reachable_from <= (high or few.reachable_from)
    enough = cb.decide(SCALING, TEST.take(slice(0, 3 * few.reachable_from)), risk=0.01)
    assert enough.threshold is not None
    hopeless = Predictions.from_confidence(np.full(500, 0.9), np.zeros(500), np.arange(500) % 2)
    never = cb.decide("platt", hopeless, risk=0.05)
    assert never.reachable_from is None
    assert "would not help" in repr(never)
    assert not never.of_rows(hopeless)["answer"].any()
    assert never.lowest_risk is None or never.lowest_risk > 0.4


def test_percent_in_place_of_a_fraction_is_answered_with_the_fraction() -> None:
    with pytest.raises(cb.InputError, match=r"not 5; it is a fraction: 5 % is 0\.05"):
        cb.decide(SCALING, TEST, risk=5)


def test_where_nothing_may_be_answered_the_lowest_risk_that_the_rows_allow_is_told() -> None:
    rows = TEST.take(slice(0, 300))
    none = cb.decide(SCALING, rows, risk=0.01)
    assert none.lowest_risk is not None
    assert f"The lowest risk that these rows allow is {100 * none.lowest_risk:.1f} %" in repr(none)
    low, high = none.lowest_between
    assert low <= none.lowest_risk <= high
    assert f"% (80 % interval: {100 * low:.1f} to {100 * high:.1f})." in repr(none)
    assert "find the threshold on other rows" in none.promise()
    assert cb.decide(SCALING, rows, risk=none.lowest_risk).threshold is not None
    assert cb.decide(SCALING, rows, risk=none.lowest_risk - 0.002).threshold is None
    noisy = Predictions.from_binary(np.full(4000, 0.99), np.arange(4000) % 10 > 0)
    found = cb.decide("temperature", noisy, risk=0.05)  # a tenth is wrong, however sure
    assert found.reachable_from is None
    assert 0.1 < found.lowest_risk < 0.13


def test_resampled_units_keep_their_rows() -> None:
    rng = np.random.default_rng(0)
    seen = as_tested(draw(rng, 300, 5))
    again = resampled(seen, rng)
    sizes = np.bincount(seen.unit)
    assert again.units == seen.units
    for unit in range(0, seen.units, 7):
        own = again.unit == unit
        assert own.sum() in sizes
        # All rows of one unit of the old, in their order.
        assert any(
            np.array_equal(again.counts[own], seen.counts[seen.unit == old])
            and np.array_equal(again.loss[own], seen.loss[seen.unit == old])
            for old in range(seen.units)
        )


def test_rows_of_the_fit_are_refused_and_others_are_not(tmp_path) -> None:
    with pytest.raises(cb.InputError, match=r"100\.0 % of the rows that 'temperature' was"):
        cb.decide(SCALING, VAL, risk=0.05)
    half = Predictions.concatenate([VAL.take(slice(0, 2500)), TEST.take(slice(0, 2500))])
    with pytest.raises(cb.InputError, match="fitted to are among these"):
        cb.decide(SCALING, half, risk=0.05)
    SCALING.save(tmp_path / "t.safetensors")
    kept = cb.load(tmp_path / "t.safetensors")
    assert kept.fitted_to_ == SCALING.fitted_to_
    assert len(kept.fitted_to_) == 64
    with pytest.raises(cb.InputError, match="fitted to are among these"):
        cb.decide(kept, VAL, risk=0.05)
    kept.fitted_to_ = ()
    assert "can't check whether" in cb.decide(kept, VAL, risk=0.05).notes[0]


def test_rounded_rows_of_the_fit_are_known_as_a_whole_in_any_order(tmp_path) -> None:
    rng = np.random.default_rng(0)
    stated = rng.choice([0.6, 0.8, 0.9, 0.95, 1.0], 2000)
    rows = Predictions.from_confidence(stated, np.zeros(2000), 1 * (rng.random(2000) > stated))
    cb.make_calibrator("beta").fit_predictions(rows).save(tmp_path / "beta.safetensors")
    kept = cb.load(tmp_path / "beta.safetensors")
    with pytest.raises(cb.InputError, match=r"100\.0 % of the rows that 'beta' was fitted to"):
        cb.decide(kept, rows.take(rng.permutation(2000)), risk=0.2)
    others = cb.decide(kept, rows.take(slice(1999)), risk=0.2)
    assert "can't check whether" in others.notes[0]


def test_rounded_rows_that_agree_by_chance_are_not_taken_for_those_of_the_fit() -> None:
    rng = np.random.default_rng(0)
    sets = []
    for _ in range(2):
        p = rng.uniform(size=3000).round(2)
        sets.append(Predictions.from_binary(p, rng.uniform(size=3000) < p, kind="prob"))
    assert cb.decide(cb.make_calibrator("platt").fit_predictions(sets[0]), sets[1], risk=0.3).notes


def test_a_method_is_fitted_to_one_half_and_decided_on_the_other() -> None:
    found = cb.decide("temperature", TEST, risk=0.05, seed=3)
    first, second = TEST.split(0.5, 3)
    by_hand_ = cb.decide(cb.TemperatureScaling().fit_predictions(first), second, risk=0.05)
    assert found.threshold == by_hand_.threshold
    assert found.n == second.n
    assert "fitted to 5000 rows" in found.notes[0]


def test_the_interval_of_a_share_is_wilsons_and_clusters_widen_it() -> None:
    assert wilson(0.5, 100, 0.95) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    rows = DecidedRows.of(SCALING, TEST)
    some = rows.confidence > 0.8
    alone = rows.share(some, 0.95)
    copies = TEST.take(np.repeat(np.arange(TEST.n), 2))
    clustered = replace(copies, clusters=np.repeat(np.arange(TEST.n), 2))
    twice = DecidedRows.of(SCALING, clustered)
    found = twice.share(np.repeat(some, 2), 0.95)
    assert found.value == alone.value
    assert found.high - found.low == pytest.approx(alone.high - alone.low, rel=0.02)


def test_a_decision_answers_rows_without_labels_and_has_all_the_faces_of_a_result() -> None:
    found = cb.decide(SCALING, TEST, risk=0.05)
    unlabelled = Predictions.from_logits(TEST.logits, None)
    answer = found.of_rows(unlabelled)["answer"]
    assert answer.mean() == pytest.approx(found.coverage.value)
    wrong = SCALING.predict(TEST.logits)[answer] != TEST.labels[answer]
    assert wrong.mean() == pytest.approx(found.error.value)
    assert json.loads(json.dumps(found.as_dict()))["threshold"] == found.threshold
    assert list(found.to_frame().columns) == ["threshold", "coverage", "error", "bound"]
    assert found.plot().get_xlabel() == "Answered"
    assert "The promise" in str(found)
    assert "|" in found.to_markdown()
    coverages = [found.coverage.value, *(coverage for _, coverage in found.more)]
    assert coverages == sorted(coverages)


@pytest.mark.parametrize(("risk", "sure"), [(0.0, 0.95), (1.0, 0.95), (0.05, 0.3), (0.05, 1.0)])
def test_numbers_out_of_range_are_refused(risk: float, sure: float) -> None:
    with pytest.raises(cb.InputError, match="must"):
        cb.decide(SCALING, TEST, risk=risk, sure=sure)


def test_the_command_says_what_is_answered(tmp_path, capsys) -> None:
    cb.write_predictions(TEST, tmp_path / "test.npz")
    SCALING.save(tmp_path / "t.safetensors")
    words = ["decide", str(tmp_path / "t.safetensors"), str(tmp_path / "test.npz")]
    app([*words, "--risk", "0.05", "--json", "-"], standalone_mode=False)
    document = json.loads(capsys.readouterr().out)
    assert document["threshold"] == cb.decide(SCALING, TEST, risk=0.05).threshold
    app(["decide", "temperature", words[2], "--risk", "0.05"], standalone_mode=False)
    assert capsys.readouterr().out.startswith("For a risk of ")
    with pytest.raises(cb.InputError, match="takes one rule"):
        app(words, standalone_mode=False)


def test_a_risk_of_less_than_a_tenth_of_a_percent_is_said_in_full() -> None:
    found = cb.decide("temperature", cb.load_sample("test"), risk=0.0001)
    assert "a risk of 0.01 % (95.0 % sure)" in found.headline()
