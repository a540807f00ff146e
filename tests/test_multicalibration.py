"""The worst group of several columns, its family-wise p-value, and the step that mends it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts.groups_beside_mcgrad import predictions, simulated

import calibrant as cb
from calibrant.cli.app import app
from calibrant.metrics import multicalibration
from calibrant.posthoc import GivenGroups
from calibrant.posthoc.features.given_groups import MOST_CELLS, MOST_PAIRED, QUANTILES, cells_of
from calibrant.predictions.predictions import Predictions

FIRST, SECOND = (simulated(np.random.default_rng(seed), 3000) for seed in (0, 1))
ROWS = predictions(SECOND)
FITTED = GivenGroups().fit_predictions(predictions(FIRST))


def by_hand(p: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    """Return the largest gap of any stretch of unlike confidences, over all weight."""
    values = np.unique(p)
    gaps = [0.0]
    for i in range(len(values)):
        for j in range(i, len(values)):
            inside = (p >= values[i]) & (p <= values[j])
            gaps.append(abs(float((w * (p - y))[inside].sum())))
    return max(gaps) / float(w.sum())


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_the_error_is_that_of_the_worst_stretch_of_confidences(seed: int, weighted: bool) -> None:
    rng = np.random.default_rng(seed)
    p = rng.integers(1, 12, size=60) / 12
    y, column = rng.integers(2, size=60), rng.integers(2, size=60)
    weights = rng.uniform(0.5, 2, size=60) if weighted else np.ones(60)
    rows = Predictions.from_binary(p, y, kind="prob", sample_weight=weights if weighted else None)
    found = multicalibration(rows, {"a": column}, min_rows=1, draws=20)
    for each in found.groups:
        inside = (
            np.ones(60, dtype=bool) if each.group == "all rows" else column == int(each.group[2:])
        )
        assert each.error == pytest.approx(by_hand(p[inside], y[inside], weights[inside]))
        sigma = np.sqrt((weights**2 * p * (1 - p))[inside].sum()) / weights[inside].sum()
        assert each.sigmas == pytest.approx(each.error / sigma)


def test_the_order_of_rows_and_names_of_columns_do_not_matter() -> None:
    groups = SECOND[2]
    order = np.random.default_rng(2).permutation(ROWS.n)
    one = multicalibration(ROWS, groups, draws=50)
    other = multicalibration(ROWS.take(order), {n: g[order] for n, g in groups.items()}, draws=50)
    assert [each.group for each in one.groups] == [each.group for each in other.groups]
    np.testing.assert_allclose(
        [each.error for each in one.groups], [each.error for each in other.groups]
    )


def test_honest_groups_raise_an_alarm_as_often_as_stated() -> None:
    rng, alarms, draws = np.random.default_rng(3), 0, 120
    for seed in range(draws):
        p = rng.beta(4, 1, size=400)
        rows = Predictions.from_binary(p, rng.uniform(size=400) < p, kind="prob")
        columns = {name: rng.integers(4, size=400) for name in "ab"}
        alarms += bool(multicalibration(rows, columns, draws=99, seed=seed).miscalibrated)
    assert alarms <= 13  # 5 % of 120, and three standard deviations


def test_groups_that_depend_by_clusters_raise_no_more() -> None:
    rng, alarms = np.random.default_rng(4), [0, 0]
    for seed in range(40):
        codes = np.repeat(np.arange(80), 5)
        latent = 0.7 * np.repeat(rng.normal(size=80), 5) + 0.51**0.5 * rng.normal(size=400)
        rows = Predictions.from_binary(np.full(400, 0.5), latent < 0, kind="prob")
        column = codes % 4
        for place, given_ in enumerate((rows, replace(rows, clusters=codes))):
            found = multicalibration(given_, {"a": column}, draws=99, seed=seed)
            alarms[place] += bool(found.miscalibrated)
    assert alarms[1] <= 6 < alarms[0]


def test_a_pair_is_found_that_no_column_shows() -> None:
    rng = np.random.default_rng(5)
    a, b, p = rng.integers(2, size=4000), rng.integers(2, size=4000), rng.uniform(size=4000)
    shift = np.where(a == b, 0.8, -0.8) * p * (1 - p)
    rows = Predictions.from_binary(p, rng.uniform(size=4000) < p + shift, kind="prob")
    found = multicalibration(rows, {"a": a, "b": b}, draws=200)
    pairs = {f"a={i} & b={j}" for i in (0, 1) for j in (0, 1)}
    assert {each.group for each in found.miscalibrated} == pairs
    alone = multicalibration(rows, {"a": a, "b": b}, pairs=False, draws=200)
    assert not alone.miscalibrated


def test_small_groups_are_named_and_bad_columns_refused() -> None:
    few = np.where(np.arange(ROWS.n) < 7, "rare", "other")
    found = multicalibration(ROWS, {"a": few}, draws=20)
    assert found.left_out == {"a=rare": 7}
    assert "a=rare (7)" in str(found)
    for groups, message in (
        ({}, "must name at least one column"),
        ({"a": "label"}, "no floor"),
        ({"a": np.arange(ROWS.n)}, "at most 200"),
    ):
        with pytest.raises(cb.InputError, match=message):
            multicalibration(ROWS, groups)
    with pytest.raises(cb.PredictionsError, match="shape"):
        multicalibration(ROWS, {"a": np.zeros(3)})


def test_the_step_mends_the_groups_on_rows_that_it_has_not_seen() -> None:
    after = FITTED.apply_predictions(ROWS)
    worst = [
        multicalibration(each, SECOND[2], draws=100) for each in (ROWS, replace(after, binary=True))
    ]
    assert worst[1].worst.error < worst[0].worst.error / 2
    assert len(worst[1].miscalibrated) < len(worst[0].miscalibrated) / 2
    losses = [
        -np.log(np.asarray(each.probs)[np.arange(ROWS.n), ROWS.labels]) for each in (ROWS, after)
    ]
    gain = losses[0] - losses[1]
    assert gain.mean() > 3 * gain.std() / np.sqrt(ROWS.n)


def test_its_objective_is_that_of_a_ridge_logistic_regression() -> None:
    from scipy.optimize import minimize

    small = predictions(simulated(np.random.default_rng(6), 300))
    fitted = GivenGroups(pairs=False, penalty=2.0).fit_predictions(small)
    features = np.asarray(small.features)
    inside = [
        (features[:, c[0]] == low[0]) for c, low in zip(fitted.columns_, fitted.low_, strict=True)
    ]
    x = np.asarray(small.logits)[:, 1]
    basis = np.stack([np.ones(300), *inside], axis=1).astype(float)
    columns = np.concatenate([basis, basis * (x / fitted.scale_)[:, None]], axis=1)

    def objective(w: np.ndarray) -> float:
        eta = x + columns @ w
        return np.logaddexp(0, (1 - 2 * small.labels) * eta).sum() + w @ w

    best = minimize(objective, np.zeros(columns.shape[1]), method="L-BFGS-B")
    assert objective(fitted.weights_) <= best.fun + 1e-4
    np.testing.assert_allclose(fitted.weights_, best.x, atol=0.01)


def test_rows_of_no_known_group_get_the_map_of_all_and_many_values_are_cut() -> None:
    logits = np.array([[0.0, 1.0], [0.0, 1.0]])
    strange = FITTED.predict_proba(logits, np.array([[77.0, 99.0], [88.0, 77.0]]))
    assert strange[0, 1] == strange[1, 1]
    ages = np.random.default_rng(7).normal(size=(500, 1))
    cells, notes = cells_of(ages, pairs=True)
    assert len(cells.low) == QUANTILES
    inside = (ages >= cells.low[:, 0]) & (ages <= cells.high[:, 0])
    assert (inside.sum(axis=1) == 1).all()
    assert notes == ()
    many = np.random.default_rng(8).integers(15, size=(5000, 4)).astype(float)
    assert len(cells_of(many, pairs=True)[0].low) == MOST_CELLS


def test_pairs_of_many_columns_are_left_out_and_the_report_says_so() -> None:
    wide = np.random.default_rng(0).normal(size=(100, MOST_PAIRED + 1))
    logits, labels = wide[:, :3], wide[:, 3:6].argmax(axis=1)
    of_all = GivenGroups().fit(logits, labels, wide)
    assert any("21 columns have too many pairs" in note for note in of_all.fit_report_.notes)
    assert (of_all.columns_[:, 0] == of_all.columns_[:, 1]).all()
    of_some = GivenGroups().fit(logits, labels, np.sign(wide[:, :MOST_PAIRED]))
    assert (of_some.columns_[:, 0] != of_some.columns_[:, 1]).any()


def test_it_stands_behind_another_map_and_in_a_file(tmp_path) -> None:
    chain = cb.make_calibrator("platt+given-groups").fit_predictions(predictions(FIRST))
    chain.save(tmp_path / "c.safetensors")
    kept = cb.load(tmp_path / "c.safetensors")
    some = ROWS.take(slice(0, 50))
    np.testing.assert_array_equal(
        kept.apply_predictions(some).probs, chain.apply_predictions(some).probs
    )


def test_measure_takes_by_twice(tmp_path, capsys) -> None:
    file = tmp_path / "rows.csv"
    lines = [
        f"{p},{y},{r},{a}" for p, y, r, a in zip(*SECOND[:2], *SECOND[2].values(), strict=True)
    ]
    file.write_text("\n".join(["prob,label,region,age", *lines]))
    words = ["measure", str(file), "--are", "prob", "--scores", "prob"]
    words = [*words, "--by", "region", "--by", "age", "--resamples", "50"]
    app([*words, "--json", "-"], standalone_mode=False)
    document = json.loads(capsys.readouterr().out)
    expected = multicalibration(ROWS, SECOND[2], draws=50)
    assert document["groups"][0]["group"] == expected.worst.group
    assert document["groups"][0]["error"] == pytest.approx(expected.worst.error, abs=1e-6)
    app(words, standalone_mode=False)
    assert capsys.readouterr().out.startswith("The worst of 20 groups is")
    for more, message in ((["--metrics", "ece"], "leave out --metrics"),):
        with pytest.raises(cb.InputError, match=message):
            app([*words, *more], standalone_mode=False)


def test_many_files_have_the_same_groups_as_one_and_a_page(tmp_path, capsys) -> None:
    for part, at in enumerate(np.array_split(np.arange(ROWS.n), 2)):
        names = np.array(["north", "east", "south", "west"])[SECOND[2]["region"][at]]
        np.savez(
            tmp_path / f"rows-{part}.npz",
            prob=SECOND[0][at],
            labels=SECOND[1][at],
            region=names,
            age=SECOND[2]["age"][at],
        )
    shards = cb.Shards(str(tmp_path / "rows-*.npz"), are="prob", scores="prob")
    found = multicalibration(shards, {"region": "region", "age": "age"}, draws=50)
    whole = multicalibration(ROWS, SECOND[2], draws=50)
    np.testing.assert_allclose(
        sorted(each.error for each in found.groups), sorted(each.error for each in whole.groups)
    )
    assert found.worst.group.startswith("region=")
    page = tmp_path / "page.html"
    words = ["measure", str(tmp_path / "rows-*.npz"), "--are", "prob", "--scores", "prob"]
    words = [*words, "--by", "region", "--by", "age", "--resamples", "50", "--report", str(page)]
    app(words, standalone_mode=False)
    assert "The worst of 20 groups is region=" in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert text.count('class="bar"') == 20
    assert "Calibration of groups" in text
    with pytest.raises(cb.InputError, match="margins aren't kept"):
        multicalibration(shards, {"m": "margin"})
