"""Laws of weights over every metric: whole ones repeat rows, 0 leaves one out, scale is nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.core.errors import InputError
from calibrant.evaluation.cell_sample import merge
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.groups import evaluate_by
from calibrant.evaluation.sample_sources import sample_of
from calibrant.evaluation.uncertainty import Gap
from calibrant.metrics.binned import BinSums
from calibrant.metrics.registry import METRICS
from calibrant.metrics.resampling import Clusters
from calibrant.metrics.top_label import TopLabel
from calibrant.predictions.predictions import Predictions

# It compares rows in pairs, and refuses weights.
REFUSES = {"skce"}
# Cut by ranks, they hang on how many rows there are, and not only on their shares.
COUNT_ROWS = {"debiased_rmsce", "sweep", "aurc", "eaurc", "kde_ece", "adaece"}
COUNT_ROWS |= {"classwise_adaece"}


def rows_of(seed: int, n: int = 60, ties: bool = False, **more) -> Predictions:
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, 3))
    if ties:
        logits = logits.round(0)
    labels = (logits + 2 * rng.gumbel(size=logits.shape)).argmax(axis=1)
    return Predictions.from_logits(logits, labels, **more)


def values(rows: Predictions) -> dict[str, float]:
    found = evaluate(rows, metrics="all", resamples=2)
    return {name: result.value for name, result in found.results.items()}


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), ties=st.booleans())
def test_whole_weights_are_repeated_rows_and_0_is_none(seed: int, ties: bool):
    weights = np.random.default_rng(seed).integers(0, 4, size=60)
    rows = rows_of(seed, ties=ties, sample_weight=weights)
    weighed, repeated = values(rows), values(rows.repeated())
    assert set(repeated) - set(weighed) == REFUSES
    for name, value in weighed.items():
        assert value == pytest.approx(repeated[name], abs=2e-9), name


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10**6), factor=st.floats(1e-3, 1e3))
def test_the_scale_of_weights_is_nothing(seed: int, factor: float):
    weights = np.random.default_rng(seed).exponential(size=60)
    once, scaled = (values(rows_of(seed, sample_weight=w)) for w in (weights, factor * weights))
    assert set(once) == set(METRICS) - REFUSES - {"debiased_rmsce"}
    for name, value in once.items():
        assert value == pytest.approx(scaled[name], abs=1e-9), name


def test_of_whole_weights_the_scale_says_how_many_rows_there_are():
    rows = rows_of(3)
    twice = rows_of(3, sample_weight=np.full(60, 2))
    once, doubled = values(rows), values(twice)
    for name, value in doubled.items():
        if name in COUNT_ROWS:
            continue
        # A regression is held to its start by the weight of a millionth of a row.
        near = 1e-6 if name in ("slope", "intercept") else 1e-9
        assert value == pytest.approx(once[name], abs=near), name
    # Fewer rows leave more noise to be taken off.
    assert doubled["debiased_rmsce"] > once["debiased_rmsce"]


def test_measures_of_the_positive_class_weigh_and_cluster():
    rng = np.random.default_rng(0)
    chance, weights = rng.random(200), rng.integers(0, 3, size=200)
    rows = Predictions.from_binary(chance, rng.random(200) < chance, sample_weight=weights)
    one, other = (evaluate(each, metrics="all", resamples=2) for each in (rows, rows.repeated()))
    assert "ece_positive" in one.results
    for name, result in one.results.items():
        assert result.value == pytest.approx(other[name].value, abs=1e-8), name
    copies = np.repeat(np.arange(200), 3)
    plain = Predictions.from_binary(chance, rng.random(200) < chance)
    clustered_rows = plain.take(copies).with_clusters(copies)
    alone, many = (evaluate(each, resamples=2).positive_gap for each in (plain, clustered_rows))
    assert many == pytest.approx(alone, abs=2e-3)


def test_weights_of_1_change_nothing_at_all():
    plain, weighed = rows_of(5, 200), rows_of(5, 200, sample_weight=np.full(200, 0.25))
    one, other = (evaluate(rows, metrics="all", resamples=20) for rows in (plain, weighed))
    for name, result in one.results.items():
        assert result.as_dict() == other[name].as_dict()
        assert np.array_equal(result.replicates, other[name].replicates)
    assert not other.weighted


def test_a_metric_that_takes_no_weights_says_so():
    found = evaluate(
        rows_of(0, sample_weight=np.linspace(0.1, 1, 60)),
        metrics=["ece", "skce", "debiased_rmsce"],
        resamples=5,
    )
    assert list(found.results) == ["ece"]
    assert "it takes no weights" in found.skipped["skce"]
    assert found.skipped["debiased_rmsce"].endswith("whole numbers, only")
    clustered = evaluate(
        rows_of(0, clusters=np.arange(60) // 2), metrics=["ece", "skce"], resamples=5
    )
    assert "takes no clusters" in clustered.skipped["skce"]


def test_the_mean_of_a_weighted_set_and_its_interval():
    weights = np.array([1.0, 3.0] * 100)
    correct = np.array([True, False] * 100)
    rows = Predictions.from_confidence(
        np.full(200, 0.5), np.zeros(200, int), np.where(correct, 0, 1), sample_weight=weights
    )
    found = evaluate(rows, metrics=["accuracy", "ece"], resamples=2000)
    assert found["accuracy"].value == 0.25
    assert found["ece"].value == pytest.approx(0.25)
    # of a ratio: sum of w^2 (x - mean)^2 over (sum of w)^2
    error = np.sqrt(weights**2 @ (correct - 0.25) ** 2) / weights.sum()
    assert found["accuracy"].replicates.std() == pytest.approx(error, rel=0.1)
    # Honest outcomes of rows with these weights: a mean of +-1/2 with weights.
    spread = 0.5 * np.sqrt(weights @ weights) / weights.sum()
    assert found["ece"].floor == pytest.approx(spread * np.sqrt(2 / np.pi), rel=0.1)
    assert found.effective_rows == pytest.approx(400**2 / 1000)
    assert found.as_dict()["weighted"] is True
    assert "160 rows of equal weight" in str(found)


def test_sums_of_shards_weigh():
    weights = np.random.default_rng(1).exponential(size=60)
    rows = rows_of(1, sample_weight=weights).counted
    whole = evaluate(rows, metrics=["ece", "nll", "smce", "accuracy"], resamples=2)
    parts = [sample_of(rows.take(slice(*ends))) for ends in ((0, 20), (20, 60))]
    shards = evaluate(merge(*parts), metrics=list(whole.results), resamples=2)
    for name in ("ece", "nll", "accuracy"):
        assert shards[name].value == pytest.approx(whole[name].value, abs=1e-12)
    assert shards["smce"].value == pytest.approx(whole["smce"].value, abs=1e-3)
    counted = BinSums.of(TopLabel.sort(*_top(rows), rows.weights))
    assert counted.total == pytest.approx(60)


def _top(rows: Predictions):
    return rows.probs.max(axis=1), rows.probs.argmax(axis=1) == rows.labels


def test_the_gap_of_equal_weights_and_clusters_of_one_is_the_plain_one():
    top = TopLabel.sort(*_top(rows_of(2, 200)))
    plain = Gap.of(top)
    weighed = Gap.of(TopLabel(top.confidence, top.correct, top.order, np.full(200, 7.0)))
    assert weighed == pytest.approx(plain)
    alone = Gap.of(top, clusters=Clusters(np.arange(200), 200))
    assert alone.value == pytest.approx(plain.value)
    assert alone.high - alone.low == pytest.approx(plain.high - plain.low, rel=0.02)


def test_copies_of_rows_in_clusters_are_worth_no_more_than_the_rows():
    rows = rows_of(4, 150)
    copies = rows.take(np.repeat(np.arange(150), 4)).with_clusters(np.repeat(np.arange(150), 4))
    names = ["ece", "smce", "accuracy", "classwise_ece", "nll_calibration"]
    one, naive, other = (
        evaluate(each, metrics=names, resamples=1000)
        for each in (rows, copies.with_clusters(None), copies)
    )
    for name in names:
        assert other[name].value == pytest.approx(one[name].value)
        width = other[name].high - other[name].low
        assert width == pytest.approx(one[name].high - one[name].low, rel=0.15)
        assert naive[name].high - naive[name].low < 0.7 * width
        if one[name].floor is not None:
            assert other[name].floor == pytest.approx(one[name].floor, rel=0.1)
            assert naive[name].floor < 0.7 * one[name].floor
    assert other.clusters == 150
    assert other.correlation > 0.95
    assert "150 clusters" in str(other)


def test_clusters_of_one_row_are_rows():
    rows = rows_of(6, 300)
    one = evaluate(rows, resamples=500)
    other = evaluate(rows.with_clusters(np.arange(300)), resamples=500)
    assert other.correlation == 0
    for name, result in one.results.items():
        assert other[name].value == result.value
        assert other[name].floor == result.floor  # the same draws
        width = result.high - result.low
        assert other[name].high - other[name].low == pytest.approx(width, rel=0.1)


def test_one_cluster_says_nothing_of_what_varies_between_clusters():
    rows = rows_of(6, 50, clusters=np.zeros(50))
    with pytest.raises(InputError, match="all rows belong to one cluster"):
        evaluate(rows)
    site = np.arange(100) % 2
    patients = np.where(site == 0, 0, np.arange(100))
    rows = rows_of(6, 100, clusters=patients)
    grouped = evaluate_by(rows, site, metrics=["ece"], resamples=20)
    assert grouped.skipped == {"0": "all its rows belong to one cluster"}
    assert grouped["1"].clusters == 50


def test_groups_weigh_their_rows():
    weights = np.random.default_rng(0).integers(0, 3, size=200)
    rows = rows_of(7, 200, sample_weight=weights)
    site = np.arange(200) % 2
    weighed = evaluate_by(rows, site, metrics=["ece"], resamples=20)
    repeated = evaluate_by(rows.repeated(), np.repeat(site, weights), metrics=["ece"], resamples=20)
    for name in ("0", "1"):
        assert weighed[name]["ece"].value == pytest.approx(repeated[name]["ece"].value)
