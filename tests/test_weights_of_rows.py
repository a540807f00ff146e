"""Weights and clusters of rows: taken in, kept by whatever takes rows, written and read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import calibrant as cb
from calibrant.core.errors import PredictionsError
from calibrant.core.weights import effective_rows
from calibrant.files import read_predictions, write_predictions
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import RowSummary, summarize

ROWS = 6
LOGITS = np.random.default_rng(0).normal(size=(ROWS, 3))
LABELS = np.array([0, 1, 2, 0, 1, 2])
WEIGHTS = np.array([1.0, 0.0, 2.5, 1.0, 3.0, 0.5])
NAMES = np.array(["b", "a", "b", "c", "a", "c"])


def everything() -> list[Predictions]:
    more = {"sample_weight": WEIGHTS, "clusters": NAMES}
    probs = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    return [
        Predictions.from_logits(LOGITS, LABELS, **more),
        Predictions.from_probs(probs, LABELS, **more),
        Predictions.from_confidence(probs.max(axis=1), LABELS[::-1].copy(), LABELS, **more),
    ]


@pytest.mark.parametrize("rows", everything(), ids=lambda rows: rows.kind)
def test_weights_and_clusters_go_with_their_rows(rows: Predictions):
    assert np.array_equal(rows.weights, WEIGHTS)
    assert rows.clusters.tolist() == [1, 0, 1, 2, 0, 2]
    taken = rows.take([4, 2])
    assert taken.weights.tolist() == [3.0, 2.5]
    assert taken.clusters.tolist() == [0, 1]
    if rows.kind != "toplabel":
        assert np.array_equal(rows.as_logits().weights, WEIGHTS)
        assert np.array_equal(rows.only_logits().clusters, rows.clusters)
        assert np.array_equal(rows.summary.weights, WEIGHTS)


def test_rows_of_weight_0_are_those_that_do_not_count():
    rows = everything()[0]
    left = np.array([1.0, 2.5, 1.0, 3.0, 0.5])
    np.testing.assert_allclose(rows.counted.weights, left / left.mean(), rtol=1e-15)
    assert rows.counted.labels.tolist() == [0, 2, 0, 1, 2]
    assert rows.counted.counted.n == 5


def test_whole_weights_count_rows_and_of_others_only_ratios_matter():
    counts, alike, ratios = (
        Predictions.from_logits(LOGITS, LABELS, sample_weight=weights).counted.weights
        for weights in ([3, 1, 2, 1, 1, 1], np.full(ROWS, 0.3), np.arange(1, 7) / 10)
    )
    assert counts.tolist() == [3, 1, 2, 1, 1, 1]
    assert alike is None
    np.testing.assert_allclose(ratios, np.arange(1, 7) / 3.5)


def test_whole_weights_repeat_rows():
    rows = Predictions.from_logits(LOGITS, LABELS, sample_weight=[1, 0, 2, 0, 0, 1])
    assert rows.repeated().labels.tolist() == [0, 2, 2, 2]
    assert rows.repeated().weights is None
    with pytest.raises(PredictionsError, match=r"whole weights only, but row 2 has 2\.5$"):
        everything()[0].repeated()


@pytest.mark.parametrize("seed", range(5))
def test_a_split_keeps_clusters_whole(seed: int):
    clusters = np.random.default_rng(seed).integers(40, size=300)
    rows = Predictions.from_probs(np.full((300, 2), 0.5), np.zeros(300, int), clusters=clusters)
    first, second = rows.split(100, seed)
    assert not set(first.clusters) & set(second.clusters)
    assert first.n + second.n == 300
    assert 80 < first.n <= 100
    assert np.array_equal(rows.split(100, seed)[0].clusters, first.clusters)


def test_what_can_not_be_split_into_whole_clusters_is_refused():
    rows = everything()[0]
    with pytest.raises(PredictionsError, match="both the shares of the labels and whole clusters"):
        rows.split(2, stratify=True)
    with pytest.raises(PredictionsError, match="all rows belong to one cluster"):
        rows.with_clusters(np.ones(ROWS)).split(2)
    first, second = rows.with_clusters([1, 1, 1, 1, 1, 2]).split(1)
    assert {first.n, second.n} == {1, 5}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"sample_weight": [1, 1, -0.5, 1, 1, 1]}, r"not negative, but row 2 holds -0\.5$"),
        ({"sample_weight": [1, np.nan, 1, 1, 1, 1]}, r"must be finite .* row 1 holds nan$"),
        ({"sample_weight": [1, np.inf, 1, 1, 1, 1]}, r"must be finite .* row 1 holds inf$"),
        ({"sample_weight": np.zeros(6)}, r"above 0 for at least one row, but all 6 are 0$"),
        ({"sample_weight": np.ones(5)}, r"'weight' has 5 entries, but there are 6 rows"),
        ({"sample_weight": np.ones((6, 2))}, r"'weight' must have shape \(N,\)"),
        ({"sample_weight": NAMES}, r"'weight' must hold numbers"),
        ({"clusters": NAMES[:4]}, r"'cluster' has 4 entries, but there are 6 rows"),
        ({"clusters": [1, 2, 2.5, 1, 1, 1]}, r"whole numbers or text, but row 2 holds 2\.5$"),
        ({"clusters": [1, 2, np.nan, 1, 1, 1]}, r"whole numbers or text, but row 2 holds nan$"),
        ({"clusters": np.array(["a", " ", "a", "b", "b", "b"])}, r"no cluster in row 1$"),
        ({"clusters": np.ones((2, 3))}, r"'cluster' must have shape \(N,\)"),
    ],
)
def test_unusable_weights_and_clusters_are_refused_in_a_sentence(arrays, message):
    with pytest.raises(PredictionsError, match=r"\Aval.npz: [^\n]*" + message):
        Predictions.from_logits(LOGITS, LABELS, source="val.npz", **arrays)


def test_shards_keep_their_weights_when_they_are_joined():
    parts = [
        summarize(LOGITS[part], LABELS[part], weights=WEIGHTS[part])
        for part in (slice(0, 4), slice(4, 6))
    ]
    whole = RowSummary.concatenate(parts)
    assert np.array_equal(whole.weights, WEIGHTS)
    assert np.array_equal(whole.take([5, 0]).weights, WEIGHTS[[5, 0]])
    with pytest.raises(Exception, match="with weights can't be joined with ones that have none"):
        RowSummary.concatenate([parts[0], summarize(LOGITS, LABELS)])


@pytest.mark.parametrize("extension", [".npz", ".npy", ".csv", ".parquet", ".safetensors"])
@pytest.mark.parametrize("rows", everything(), ids=lambda rows: rows.kind)
def test_files_hold_weights_and_clusters(tmp_path: Path, rows: Predictions, extension: str):
    stem = {"logits": "logits", "probs": "probs", "toplabel": "confidence"}[rows.kind]
    path = tmp_path / (f"val_{stem}.npy" if extension == ".npy" else f"val{extension}")
    write_predictions(rows, path)
    back = read_predictions(path, cluster=None if extension == ".npy" else "cluster")
    assert np.array_equal(back.weights, WEIGHTS)
    if extension != ".npy":
        assert np.array_equal(back.clusters, rows.clusters)
        assert read_predictions(path).clusters is None


def test_a_column_of_text_may_name_the_clusters(tmp_path: Path):
    path = tmp_path / "val.csv"
    lines = [f"{label},0.5,0.5,{name}" for label, name in zip(LABELS % 2, NAMES, strict=True)]
    path.write_text("label,prob_0,prob_1,patient\n" + "\n".join(lines) + "\n")
    assert read_predictions(path, cluster="patient").clusters.tolist() == [1, 0, 1, 2, 0, 2]
    with pytest.raises(PredictionsError, match="there is no column 'doctor'"):
        read_predictions(path, cluster="doctor")


def test_a_bad_weight_in_a_table_is_found_by_its_line(tmp_path: Path):
    path = tmp_path / "val.csv"
    path.write_text("label,prob_0,prob_1,weight\n0,0.5,0.5,1\n1,0.5,0.5,-2\n")
    expected = r"line 3, column 'weight': expected a finite number of at least 0, found '-2'$"
    with pytest.raises(PredictionsError, match=expected):
        read_predictions(path)


def test_the_effective_number_of_rows():
    assert effective_rows(4, None) == 4
    assert effective_rows(4, np.full(4, 1e300)) == 4
    assert effective_rows(3, np.array([1.0, 1.0, 2.0])) == pytest.approx(16 / 6)
    clusters = np.array([0, 0, 0, 7])
    assert effective_rows(4, None, clusters) == pytest.approx(16 / 10)


@pytest.mark.parametrize("weight", [2.0**62, 1e300, 1e-310])
def test_weights_of_any_size_that_are_all_the_same_are_none(weight: float):
    # Beyond 2^53 every float64 is a whole number, and yet no number of rows.
    plain = Predictions.from_logits(LOGITS, LABELS)
    weighed = Predictions.from_logits(LOGITS, LABELS, sample_weight=np.full(ROWS, weight))
    found, wanted = (cb.evaluate(rows, resamples=20) for rows in (weighed, plain))
    for name in ("ece", "adaece", "smce", "nll"):
        assert found[name].value == pytest.approx(wanted[name].value, rel=1e-9)


def test_weights_whose_sum_is_no_number_are_refused_whole_and_in_batches(tmp_path):
    weight = np.full(ROWS, 1e308)
    with pytest.raises(PredictionsError, match=r"'weight' must be at most 1e\+300, but row 0"):
        Predictions.from_logits(LOGITS, LABELS, sample_weight=weight)
    np.savez(tmp_path / "rows.npz", logits=LOGITS, labels=LABELS, weight=weight)
    with pytest.raises(PredictionsError, match=r"'weight' must be at most 1e\+300, but row 0"):
        cb.evaluate(cb.Shards(tmp_path / "rows.npz"), metrics=["ece"])


def test_large_weights_of_files_give_what_they_give_in_memory(tmp_path):
    weight = np.where(np.arange(ROWS) % 2, 1e300, 2e299)
    whole = Predictions.from_logits(LOGITS, LABELS, sample_weight=weight)
    np.savez(tmp_path / "rows.npz", logits=LOGITS, labels=LABELS, weight=weight)
    names = ["nll", "accuracy", "brier"]
    one = cb.evaluate(whole, metrics=names, resamples=20)
    other = cb.evaluate(cb.Shards(tmp_path / "rows.npz"), metrics=names, resamples=20)
    for name in names:
        assert other[name].value == pytest.approx(one[name].value, rel=1e-9)
