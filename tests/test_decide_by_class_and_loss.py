"""Precision, recall and any loss at a promised risk; rows of many files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom
from scripts.promise_of_risk import chances, draw

import calibrant as cb
from calibrant.cli.app import app
from calibrant.core.arrays import FloatArray
from calibrant.decision import RiskDecision, load_decision, save_decision
from calibrant.decision.fixed_sequence import last_passed, risk_test, thresholds
from calibrant.decision.risk import in_sequence
from calibrant.predictions.predictions import Predictions, rows_of_first_part

VAL, TEST = cb.load_sample("validation"), cb.load_sample("test")
SCALING = cb.TemperatureScaling().fit_predictions(VAL)
PROBS = SCALING.predict_proba(TEST.logits).astype(np.float64)
GRID = thresholds()


def one_by_one(
    p: FloatArray, truth: FloatArray, measure: str, risk: float, sure: float
) -> float | None:
    """Return the threshold of fixed-sequence testing for precision or recall, by hand."""
    taken, begun = None, False
    grid = GRID if measure == "precision" else GRID[::-1]
    counts = [int(truth.sum() if measure == "recall" else (p >= t).sum()) for t in grid]
    starts = [
        next((k for k in counts if binom.cdf(e, k, risk) <= 1 - sure), counts[-1] + 1)
        for e in (2, 1, 0)
    ]
    start = next((k for k in starts[:2] if k <= counts[-1] / 2), starts[2])
    for threshold in grid:
        called = p >= threshold
        k = int(called.sum() if measure == "precision" else truth.sum())
        x = int((called & ~truth).sum() if measure == "precision" else (truth & ~called).sum())
        begun = begun or k >= start
        if begun:
            if binom.cdf(x, k, risk) > 1 - sure:
                break
            taken = float(threshold)
    return taken


def of_event(seed: int, n: int) -> tuple[FloatArray, FloatArray, Predictions]:
    rng = np.random.default_rng(seed)
    p = rng.beta(0.5, 1.0, n)
    truth = rng.uniform(size=n) < p**1.3
    return p, truth, Predictions.from_binary(p, truth, kind="prob")


AS_IT_IS = cb.make_calibrator("none").fit_predictions(of_event(99, 400)[2])


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([40, 300, 1500]),
    st.sampled_from(["precision", "recall"]),
    st.floats(0.02, 0.4),
)
def test_the_threshold_of_a_class_is_that_of_testing_one_by_one(
    seed: int, n: int, measure: str, risk: float
) -> None:
    _, truth, rows = of_event(seed, n)
    # What the calibrator gives, to the last bit: a threshold may be one of the probabilities.
    p = AS_IT_IS.apply_predictions(rows).positive_probs
    found: RiskDecision = cb.decide(AS_IT_IS, rows, sure=0.9, **{measure: 1 - risk})
    expected = one_by_one(np.asarray(p, dtype=np.float64), truth, measure, found.risk, 0.9)
    assert found.threshold == expected


@pytest.mark.parametrize("measure", ["precision", "recall"])
def test_precision_and_recall_are_promised_as_often_as_said(measure: str) -> None:
    p, truth, _ = of_event(0, 400_000)
    order = np.argsort(-p)
    grid_called = np.searchsorted(-p[order], -GRID, side="right")
    hits = np.append(0, np.cumsum(truth[order]))[grid_called]
    whole = {"precision": np.maximum(grid_called, 1), "recall": truth.sum()}[measure]
    value = dict(zip(GRID.tolist(), (hits / whole).tolist(), strict=True))
    broken, draws = 0, 150
    for seed in range(1, draws + 1):
        found: RiskDecision = cb.decide(
            AS_IT_IS, of_event(seed, 500)[2], sure=0.9, **{measure: 0.8}
        )
        broken += found.threshold is not None and value[found.threshold] < 0.8
    # 26 of 150 have a chance of 0.3 % where it is broken just as often as it may be.
    assert broken <= 25


def test_a_loss_of_errors_is_the_error_but_for_the_test() -> None:
    wrong = (PROBS.argmax(axis=1) != TEST.labels).astype(np.float64)
    as_errors = cb.decide(SCALING, TEST, risk=0.05)
    assert cb.decide(SCALING, TEST, risk=0.05, loss=wrong).threshold == as_errors.threshold
    halved = cb.decide(SCALING, TEST, risk=0.05, loss=wrong / 2)
    doubled = cb.decide(SCALING, TEST, risk=0.1)
    assert halved.error.value == pytest.approx(wrong[PROBS.max(1) >= halved.threshold].mean() / 2)
    # Bets are no sharper than the exact test.
    assert as_errors.coverage.value < halved.coverage.value <= doubled.coverage.value
    by_function = cb.decide(
        SCALING, TEST, risk=0.05, loss=lambda rows: (rows.probs.argmax(1) != rows.labels) / 2
    )
    assert by_function.threshold == halved.threshold


def test_a_mean_loss_is_promised_as_often_as_said() -> None:
    rng, broken, draws, risk = np.random.default_rng(4), 0, 120, 0.05
    confidence, right = chances(rng, 400_000, 1)
    order = np.argsort(-confidence)
    mean = np.cumsum((1 - right[order]) * 0.5) / np.arange(1, 400_001)
    last = np.searchsorted(-confidence[order], -GRID, side="right") - 1
    truth = np.where(last >= 0, mean[last], 0)
    for seed in range(draws):
        rows = draw(rng, 600, 1)
        loss = ~rows.correct * rng.uniform(size=600)  # 0.5 of an error on average
        seen = in_sequence(rows, rows.confidence, loss, "loss")
        place = last_passed(seen, risk_test(seen, 0.9, seed), risk, 0.9)
        broken += place is not None and truth[place] > risk
    assert broken <= 21


def test_rows_weigh_and_cluster_in_recall_as_they_do_elsewhere() -> None:
    some = TEST.take(slice(0, 1500))
    copies = some.take(np.repeat(np.arange(1500), 3))
    together = cb.decide(
        SCALING, replace(copies, clusters=np.repeat(np.arange(1500), 3)), recall=0.8, of=3
    )
    alone = cb.decide(SCALING, replace(some, clusters=np.arange(1500)), recall=0.8, of=3)
    assert together.threshold == alone.threshold is not None
    doubled = replace(some, weights=np.where(some.labels == 3, 2.0, 1.0))
    assert cb.decide(SCALING, doubled, recall=0.8, of=3).coverage.value > alone.coverage.value


def test_what_is_called_is_what_the_file_and_the_words_say(tmp_path) -> None:
    found = cb.decide(SCALING, TEST, precision=0.95, of="3")
    called = found.of_rows(TEST)["called"]
    np.testing.assert_array_equal(called, PROBS[:, 3] >= found.threshold)
    assert found.error.value == pytest.approx((TEST.labels[called] != 3).mean())
    assert "call rows class 3 with a\nprobability of" in str(found)
    missed = cb.decide(SCALING, TEST, recall=0.9, of=3)
    not_called = ~missed.of_rows(TEST)["called"][TEST.labels == 3]
    assert missed.error.value == pytest.approx(not_called.mean())
    assert missed.curve["bound"][missed.curve["threshold"] == missed.threshold] <= 0.1
    for each in (found, missed):
        save_decision(each, tmp_path / "d.safetensors")
        kept = load_decision(tmp_path / "d.safetensors")
        assert kept.as_dict() == each.as_dict()
        assert str(kept) == str(each)


def test_rows_of_many_files_give_the_same_as_in_memory(tmp_path, capsys) -> None:
    cuts = np.array_split(np.arange(TEST.n), 3)
    for i, part in enumerate(cuts):
        cb.write_predictions(TEST.take(part), tmp_path / f"part-{i}.npz")
    shards = cb.Shards(str(tmp_path / "part-*.npz"))
    rules = (
        {"risk": 0.05},
        {"precision": 0.9, "of": 3},
        {"recall": 0.9, "of": 3},
        {"error_cost": 10, "hand_over_cost": 1},
        {"cover": 0.9},
        {"risk": 0.02, "loss": np.linspace(0, 1, TEST.n) * (PROBS.argmax(1) != TEST.labels)},
    )
    for rule in rules:
        many, one = cb.decide(SCALING, shards, **rule), cb.decide(SCALING, TEST, **rule)
        assert many.as_dict() | {"source": ""} == one.as_dict() | {"source": ""}
    fit = cb.TemperatureScaling().fit_predictions(TEST)
    with pytest.raises(cb.InputError, match="fitted to are among these"):
        cb.decide(fit, shards, risk=0.05)
    with pytest.raises(cb.InputError, match="calibrant fit FILES --method temperature"):
        cb.decide("temperature", shards, risk=0.05)
    SCALING.save(tmp_path / "t.safetensors")
    words = ["decide", str(tmp_path / "t.safetensors"), str(tmp_path / "part-*.npz")]
    app([*words, "--recall", "0.9", "--of", "3"], standalone_mode=False)
    assert "call rows class 3 with a\nprobability of" in capsys.readouterr().out


def test_a_column_is_a_loss_on_the_command_line_also_of_a_method(tmp_path, capsys) -> None:
    rng = np.random.default_rng(0)
    loss = (PROBS.argmax(1) != TEST.labels) * rng.uniform(size=TEST.n)
    np.savez(tmp_path / "rows.npz", logits=TEST.logits, labels=TEST.labels, harm=loss)
    words = ["decide", "temperature", str(tmp_path / "rows.npz"), "--risk", "0.03"]
    app([*words, "--loss", "harm", "--seed", "2"], standalone_mode=False)
    assert "mean loss" in capsys.readouterr().out
    by_hand = TEST.split(0.5, 2)
    first = cb.TemperatureScaling().fit_predictions(by_hand[0])
    places = np.flatnonzero(~rows_of_first_part(TEST.n, 0.5, 2, None, ""))
    found = cb.decide("temperature", TEST, risk=0.03, loss=loss, seed=2)
    same = cb.decide(first, by_hand[1], risk=0.03, loss=loss[places], seed=2)
    assert found.threshold == same.threshold


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"precision": 0.9}, "name the class"),
        ({"precision": 0.9, "of": "cat"}, "there is no class 'cat'"),
        ({"recall": 1.0, "of": 1}, "recall must"),
        ({"risk": 0.1, "of": 1}, "of names the class for precision or recall"),
        ({"cover": 0.9, "loss": np.zeros(TEST.n)}, "loss needs risk"),
        ({"risk": 0.1, "loss": np.full(TEST.n, 2.0)}, "row 0 has 2"),
        ({"risk": 0.1, "loss": np.zeros(3)}, r"shape \(10000,\)"),
        ({"risk": 0.1, "precision": 0.9, "of": 1}, "one rule"),
    ],
)
def test_classes_and_losses_that_are_none_are_refused(
    arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(cb.InputError, match=message):
        cb.decide(SCALING, TEST, **arguments)


def test_a_class_without_rows_can_not_be_found() -> None:
    none = TEST.take(np.flatnonzero(TEST.labels != 3))
    found = cb.decide(SCALING, none, recall=0.9, of=3)
    assert found.threshold is None
    assert "there is no row of the class" in repr(found)
