"""Decisions by groups: each as if alone at its part of the sureness, all under one promise."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import beta

import calibrant as cb
from calibrant.cli.app import app
from calibrant.decision import decide_by
from calibrant.decision.by_groups import large_enough, place_of
from calibrant.predictions.predictions import Predictions

VAL, TEST = cb.load_sample("validation"), cb.load_sample("test")
SCALING = cb.TemperatureScaling().fit_predictions(VAL)
GROUPS = np.where(np.arange(TEST.n) < 40, "few", np.array(["a", "b", "c"])[np.arange(TEST.n) % 3])
RISK = decide_by(SCALING, TEST, GROUPS, risk=0.05)
SETS = decide_by(SCALING, TEST, GROUPS, cover=0.9)


def test_each_group_is_decided_as_alone_at_its_part_of_the_sureness() -> None:
    for name in "abc":
        rows = TEST.take(name == GROUPS)
        alone = cb.decide(SCALING, rows, risk=0.05, sure=1 - 0.05 / 3)
        assert RISK.groups[name].threshold == alone.threshold
    assert RISK.too_small == {"few": 40}
    assert RISK.needed == 80  # .95^80 < .05 / 3 < .95^79
    assert "Too small, with fewer than 80 rows or clusters: few (40)." in str(RISK)
    assert "98.33 % sure" in RISK.promise()


def test_the_place_of_a_quantile_is_that_of_the_beta_law() -> None:
    place = place_of(500, 0.9, 0.99)
    assert beta.cdf(0.9, place, 501 - place) <= 0.01 < beta.cdf(0.9, place - 1, 502 - place)
    assert place_of(20, 0.9, 0.99) == 21  # no place will do


def test_sets_of_a_group_keep_its_coverage_in_nearly_all_draws() -> None:
    rng, broken, draws = np.random.default_rng(0), 0, 400
    place = place_of(120, 0.9, 0.95)
    for _ in range(draws):
        broken += np.sort(rng.uniform(size=120))[place - 1] < 0.9
    assert broken <= 33  # 5 % of 400 and three standard deviations
    assert min(each.coverage.value for each in SETS.groups.values()) > 0.9


def test_the_promise_holds_for_all_groups_at_once_over_draws() -> None:
    rng, broken, draws = np.random.default_rng(1), 0, 100
    for seed in range(draws):
        group = rng.integers(4, size=1600)
        # In group 3 confidences say less than in the others.
        odds = rng.normal(2.5, 1.5, size=1600)
        right = 1 / (1 + np.exp(-odds * np.where(group == 3, 0.6, 1.0)))
        correct = rng.uniform(size=1600) < right
        rows = Predictions.from_confidence(1 / (1 + np.exp(-odds)), np.zeros(1600), 1 - correct)
        if seed == 0:
            none = cb.make_calibrator("none").fit_predictions(rows)
            none.fitted_to_ = ()
        found = decide_by(none, rows, group, risk=0.15, sure=0.9)
        bad = False
        for name, each in found.groups.items():
            if each.threshold is not None:
                inside = (group == int(name)) & (1 / (1 + np.exp(-odds)) >= each.threshold)
                bad |= bool((1 - right)[inside].mean() > 0.15)
        broken += bad
    assert broken <= 19  # 10 % of 100 and three standard deviations


def test_groups_are_counted_by_their_sizes_alone() -> None:
    names, needed = large_enough({"a": 100, "b": 70, "c": 5}, 0.05, 0.95)
    assert names == ["a"]  # two groups would take 72 rows each
    assert needed == 59
    assert large_enough({"a": 30}, 0.05, 0.95) == ([], 59)


def test_rows_of_other_groups_are_not_answered_and_get_all_classes() -> None:
    groups = np.array(["a", "few", "new"])[np.arange(TEST.n) % 3]
    answer = RISK.of_rows(TEST, groups)["answer"]
    assert not answer[groups != "a"].any()
    alone = RISK.groups["a"].of_rows(TEST)["answer"]
    np.testing.assert_array_equal(answer[groups == "a"], alone[groups == "a"])
    columns = SETS.of_rows(TEST, groups)
    assert (columns["set_size"][groups != "a"] == 10).all()
    assert columns["set"][1] == "0|1|2|3|4|5|6|7|8|9"
    sets = SETS.groups["a"].of_rows(TEST)["set"]
    np.testing.assert_array_equal(columns["set"][groups == "a"], sets[groups == "a"])


def test_clusters_are_the_units_and_what_cannot_be_is_refused() -> None:
    codes = np.arange(TEST.n) // 50
    with pytest.raises(cb.InputError, match="no group is large enough"):
        decide_by(SCALING, replace(TEST, clusters=codes), np.arange(TEST.n) // 1000, risk=0.05)
    for how, message in (
        ({}, "one rule"),
        ({"risk": 0.1, "cover": 0.9}, "one rule"),
        ({"risk": 0.1, "sure": 0.2}, "must"),
    ):
        with pytest.raises(cb.InputError, match=message):
            decide_by(SCALING, TEST, GROUPS, **how)
    with pytest.raises(cb.InputError, match="true label of a new row"):
        decide_by(SCALING, TEST, "label", risk=0.05)
    with pytest.raises(cb.InputError, match="fitted to are among these"):
        decide_by(SCALING, VAL, "predicted", risk=0.05)


def test_the_command_decides_by_classes_and_by_a_column(tmp_path, capsys) -> None:
    np.savez(tmp_path / "t.npz", logits=TEST.logits, labels=TEST.labels, site=GROUPS)
    SCALING.save(tmp_path / "c.safetensors")
    words = ["decide", str(tmp_path / "c.safetensors"), str(tmp_path / "t.npz"), "--by", "site"]
    app([*words, "--risk", "0.05", "--json", "-"], standalone_mode=False)
    document = json.loads(capsys.readouterr().out)
    assert document["groups"]["a"]["threshold"] == RISK.groups["a"].threshold
    app([*words[:-1], "class", "--cover", "0.9"], standalone_mode=False)
    assert capsys.readouterr().out.startswith("Sets that hold the true class in 90.0 %")
    assert "|" in RISK.to_markdown()
    assert len(SETS.records()) == 3
    for more, message in (
        (["--risk", "0.05", "--out", str(tmp_path / "d.safetensors")], "drop --out"),
        (["--error-cost", "10"], "costs make none"),
    ):
        with pytest.raises(cb.InputError, match=message):
            app([*words, *more], standalone_mode=False)
    with pytest.raises(cb.InputError, match="give its file"):
        app(["decide", "temperature", *words[2:], "--risk", "0.05"], standalone_mode=False)
