"""One sample: what a metric declares is all that rows, files, weights and clusters need."""

from __future__ import annotations

import functools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibrant as cb
from calibrant.core.arrays import FloatArray
from calibrant.core.errors import InputError
from calibrant.core.progress import Progress
from calibrant.evaluation.cell_sample import CellSample
from calibrant.metrics import registry
from calibrant.metrics.metric_types import CurveMetric, MeanMetric
from calibrant.metrics.top_label import ResidualCurves
from calibrant.predictions.scoring import RowScores

N, ONE = 6_000, cb.Engine(workers=1)


def regret_of_rows(rows: RowScores) -> FloatArray:
    """Return a number of either sign: what a bet at the stated odds loses."""
    return rows.confidence - rows.correct


def square_gap_of_curves(curves: ResidualCurves) -> FloatArray:
    """Return the square of the mean gap."""
    whole = curves.between(curves.cuts(np.array([0.0, 1.0])))[:, 0] / curves.total
    return whole**2


REGRET = MeanMetric(
    name="regret", title="regret", definition="mean of c - a", per_row=regret_of_rows
)
SQUARE_GAP = CurveMetric(
    name="square_gap",
    title="squared gap",
    definition="square of the mean of c - a",
    of_curves=square_gap_of_curves,
)
MADE_UP = ["regret", "square_gap"]


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    for metric in (REGRET, SQUARE_GAP):
        registry.register_metric(metric)


@pytest.fixture(scope="module")
def whole() -> cb.Predictions:
    return cb.synthetic.tempered(N, 5, temperature=1.6, seed=3).predictions


def files(
    rows: cb.Predictions, folder: Path, weights: FloatArray | None = None, parts: int = 3
) -> cb.Shards:
    """Write the rows to files, with clusters of ten rows and weights if there are any."""
    for i, part in enumerate(np.array_split(np.arange(rows.n), parts)):
        columns = {} if weights is None else {"weight": weights[part]}
        np.savez(
            folder / f"{i}.npz",
            logits=rows.scores[part],
            labels=rows.labels[part],
            document=part // 10,
            **columns,
        )
    return cb.Shards(folder)


def test_a_made_up_metric_is_measured_in_memory_with_weights_and_clusters(
    whole: cb.Predictions,
) -> None:
    plain = cb.evaluate(whole, metrics=MADE_UP, resamples=100)
    assert plain["regret"].value == pytest.approx(plain.gap.value, abs=1e-12)
    assert plain["square_gap"].value == pytest.approx(plain.gap.value**2, abs=1e-12)
    assert plain["regret"].floor is None
    assert plain["square_gap"].floor is not None
    for options in ({"sample_weight": np.arange(N) % 3 + 0.5}, {"clusters": np.arange(N) // 10}):
        rows = cb.Predictions.from_logits(whole.scores, whole.labels, **options)
        found = cb.evaluate(rows, metrics=MADE_UP, resamples=100)
        assert found["regret"].value == pytest.approx(found.gap.value, abs=1e-12)
        assert found["regret"].low < found["regret"].value < found["regret"].high


def test_a_made_up_metric_is_measured_over_files(whole: cb.Predictions, tmp_path: Path) -> None:
    direct = cb.evaluate(whole, metrics=MADE_UP, resamples=1000)
    found = cb.evaluate(files(whole, tmp_path), metrics=MADE_UP, resamples=1000, engine=ONE)
    for name in MADE_UP:
        ours, theirs = found[name], direct[name]
        assert ours.value == pytest.approx(theirs.value, abs=1e-12), name
        width = theirs.high - theirs.low
        assert ours.low == pytest.approx(theirs.low, abs=width / 8)
        assert ours.high == pytest.approx(theirs.high, abs=width / 8)
    assert found["regret"].value != pytest.approx(found.accuracy, abs=0.1)
    assert found["square_gap"].floor == pytest.approx(direct["square_gap"].floor, rel=0.2)


def test_a_made_up_metric_is_measured_over_files_with_weights_clusters_and_groups(
    whole: cb.Predictions, tmp_path: Path
) -> None:
    weights = np.random.default_rng(0).lognormal(size=N)
    shards = files(whole, tmp_path, weights)
    rows = cb.Predictions.from_logits(whole.scores, whole.labels, sample_weight=weights)
    options = {"metrics": MADE_UP, "resamples": 50}
    direct = cb.evaluate(rows, **options)
    clustered = cb.evaluate(shards, clusters="document", **options, engine=ONE)
    for found in (cb.evaluate(shards, **options, engine=ONE), clustered):
        for name in MADE_UP:
            assert found[name].value == pytest.approx(direct[name].value, rel=1e-11)
    groups = cb.evaluate_by(shards, "predicted", **options, engine=ONE)
    apart = cb.evaluate_by(rows, "predicted", **options)
    for name, group in apart.groups.items():
        assert groups[name]["regret"].value == pytest.approx(group["regret"].value, rel=1e-10)


def test_numbers_of_either_sign_and_any_size_add_up(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=500) * 10.0 ** rng.integers(-25, 25, 500)
    values[:3] = 0.0, 1e-300, -1e-300
    from calibrant.evaluation.cells import NumberCells

    parts = [NumberCells.of(part) for part in np.array_split(values, 7)]
    whole, backwards = (functools.reduce(NumberCells.__add__, p) for p in (parts, parts[::-1]))
    assert whole.mean == backwards.mean
    assert whole.mean == pytest.approx(values.mean(), rel=1e-12)


def test_samples_of_files_and_of_rows_merge_in_any_order(
    whole: cb.Predictions, tmp_path: Path
) -> None:
    samples = [cb.scale.sample_of(whole.take(part)) for part in np.array_split(np.arange(N), 4)]
    merged = [functools.reduce(cb.scale.merge, each) for each in (samples, samples[::-1])]
    options = {"metrics": ["ece", "nll", "regret"], "resamples": 30}
    first, second = (cb.evaluate(each, **options).as_dict()["metrics"] for each in merged)
    assert first == second
    direct = cb.evaluate(whole, **options)
    for name, result in direct.results.items():
        assert first[name]["value"] == pytest.approx(result.value, abs=1e-12)
    of_files = cb.scale.sample_of(files(whole, tmp_path), metrics="all", engine=ONE)
    assert isinstance(of_files, CellSample)
    both = cb.evaluate(cb.scale.merge(of_files, samples[0]), **options)
    assert both.n == N + N // 4


def test_samples_of_other_things_dont_merge(whole: cb.Predictions, tmp_path: Path) -> None:
    weighted = cb.Predictions.from_logits(
        whole.scores, whole.labels, sample_weight=np.arange(N) + 1.0
    )
    clustered = cb.Predictions.from_logits(whole.scores, whole.labels, clusters=np.arange(N) // 2)
    with pytest.raises(InputError, match="only if they have the same metrics"):
        cb.scale.merge(cb.scale.sample_of(whole), cb.scale.sample_of(weighted))
    with pytest.raises(InputError, match="merged only by the names of their clusters"):
        cb.scale.merge(cb.scale.sample_of(clustered), cb.scale.sample_of(clustered))
    kept = cb.evaluate(whole, metrics=["ece"], resamples=2).sample
    with pytest.raises(InputError, match="doesn't keep its rows"):
        cb.scale.merge(kept, kept)
    with pytest.raises(InputError, match="give its name"):
        cb.evaluate(files(whole, tmp_path), clusters=np.arange(N), engine=ONE)


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.SharedRowsWarning")
def test_rows_and_files_take_the_same_arguments(whole: cb.Predictions, tmp_path: Path) -> None:
    scaling = cb.TemperatureScaling().fit_predictions(whole)
    steps: dict[str, list[tuple[int, int]]] = {}
    (tmp_path / "in").mkdir()
    for name, rows in (("memory", whole), ("files", files(whole, tmp_path / "in"))):
        seen: list[Progress] = []
        how: Any = {"engine": ONE, "skip_broken": True, "watch": seen.append}
        cb.evaluate(rows, resamples=2, **how)
        cb.TemperatureScaling().fit_predictions(rows, **how)
        scaling.apply_predictions(rows, tmp_path / f"{name}.npz", **how)
        assert seen[-1].rows == seen[-1].of_rows == N
        steps[name] = [(one.done, one.of) for one in seen]
        cb.evaluate_by(rows, "predicted", resamples=2, **how)
        assert str(seen[-1]) == "4"  # the last class
        cb.compare(["none"], fit=rows, test=whole.take(np.arange(99)), resamples=2, **how)
        assert str(seen[-1]) == "none"
    assert steps["memory"] == [(0, 1), (1, 1)] * 3
    written = cb.read_predictions(tmp_path / "memory.npz")
    np.testing.assert_array_equal(written.scores, scaling.apply_predictions(whole).scores)


def test_files_are_measured_by_the_clusters_they_are_read_with(
    whole: cb.Predictions, tmp_path: Path
) -> None:
    by_name = cb.evaluate(files(whole, tmp_path), clusters="document", resamples=20, engine=ONE)
    shards = cb.Shards(tmp_path, cluster="document")
    read = cb.evaluate(shards, resamples=20, engine=ONE)
    assert read.as_dict() == by_name.as_dict()
    with pytest.raises(InputError, match="either groups or clusters"):
        cb.evaluate_by(shards, "label", engine=ONE)
    for refuse in (
        lambda: cb.TemperatureScaling().fit_predictions(shards, engine=ONE),
        lambda: cb.compare(["none"], fit=shards, test=whole, engine=ONE),
    ):
        with pytest.raises(InputError, match="clusters are for intervals only"):
            refuse()
    with pytest.raises(InputError, match="a sample is drawn of Shards only"):
        cb.TemperatureScaling().fit_predictions(whole, sample=9)


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.SharedRowsWarning")
def test_a_comparison_of_files_is_that_of_their_rows(
    whole: cb.Predictions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = files(whole, tmp_path)
    fit = whole.take(np.arange(N)[::-1])
    one = cb.compare(["none", "temperature"], fit=fit, test=whole, resamples=50)
    other = cb.compare(["none", "temperature"], fit=fit, test=shards, resamples=50, engine=ONE)
    for method, read in zip(one.methods, other.methods, strict=True):
        assert method.evaluation.as_dict()["metrics"] == read.evaluation.as_dict()["metrics"]
    assert other.test_source.startswith(f"{N} of {N} rows of ")
    bad = tmp_path / "z.npz"
    np.savez(bad, logits=np.full((5, whole.n_classes), np.nan), labels=np.zeros(5, int))
    broken = cb.Shards([*(shard.where for shard in shards), str(bad)])
    with pytest.warns(cb.CalibrationWarning, match=r"left out: .*z\.npz"):
        cb.compare(["none"], fit=fit, test=broken, resamples=2, engine=ONE, skip_broken=True)
    by = cb.evaluate_by(broken, "predicted", resamples=2, engine=ONE, skip_broken=True)
    assert "1 file couldn't be read:" in str(by).split("z.npz")[0]
    monkeypatch.setattr("calibrant.comparison.compare.COMPARED_ROWS", 99)
    few = cb.compare(["none"], fit=fit, test=shards, resamples=2, engine=ONE)
    assert few.test_rows == 99


def test_clusters_of_files_are_said_in_the_result(whole: cb.Predictions, tmp_path: Path) -> None:
    shards = files(whole, tmp_path)
    found = cb.evaluate(shards, clusters="document", metrics=["ece"], resamples=50, engine=ONE)
    said = found.as_dict()
    assert 300 < said["clusters"] <= 512  # of 600, put together by their hashes
    assert f"put together into {said['clusters']}" in said["intervals"]
    assert said["correlation"] == 0.0  # floors are drawn as if outcomes were independent
    assert f"{said['clusters']} clusters" in str(found)
    alone = cb.evaluate(shards, metrics=["ece"], resamples=50, engine=ONE).as_dict()
    assert alone["clusters"] is None
    assert alone["correlation"] is None


def test_pictures_of_files_are_of_all_their_rows(tmp_path: Path) -> None:
    rows = cb.synthetic.tempered(40_000, 4, temperature=1.5, seed=0).predictions
    found = cb.evaluate(files(rows, tmp_path), metrics=["ece"], resamples=20, engine=ONE)
    direct = cb.evaluate(rows, metrics=["ece"], resamples=20)
    pytest.importorskip("matplotlib").use("Agg")
    from calibrant.report.series import binned_reliability, confidence_histogram

    ours, theirs = (binned_reliability(one.top) for one in (found, direct))
    for name in ("count", "confidence", "accuracy", "low", "high"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), atol=1e-9)
    counts = [confidence_histogram(one.top).count for one in (found, direct)]
    np.testing.assert_allclose(counts[0], counts[1])
    assert found.plot() is not None
    assert found.plot(strategy="smooth") is not None


def test_the_finding_of_files_comes_back_from_a_pickle(
    whole: cb.Predictions, tmp_path: Path
) -> None:
    found = cb.evaluate(files(whole, tmp_path), resamples=20, engine=ONE)
    assert pickle.loads(pickle.dumps(found)).as_dict() == found.as_dict()


def test_a_metric_goes_by_one_name(whole: cb.Predictions) -> None:
    with pytest.raises(ValueError, match="called 'ece' already"):
        registry.register_metric(MeanMetric(**vars(REGRET) | {"name": "ece"}))
    registry.register_metric(REGRET)  # twice is once
    assert registry.described("regret").as_dict()["function"] is None
    assert "regret" in cb.evaluate(whole, metrics="all", resamples=2).results


def test_rows_needed_are_those_of_the_confidences(whole: cb.Predictions, tmp_path: Path) -> None:
    confidence = np.asarray(whole.probs).max(axis=1)
    plain = cb.rows_needed(confidence, ece=0.03)
    assert cb.rows_needed(whole, ece=0.03) == plain
    of_files = cb.rows_needed(files(whole, tmp_path), ece=0.03)
    assert of_files.rows == pytest.approx(plain.rows, rel=0.02)
    weights = np.arange(N) % 4 + 1.0
    weighted = cb.Predictions.from_logits(whole.scores, whole.labels, sample_weight=weights)
    worth = N / cb.evaluate(weighted, metrics=["ece"], resamples=2).effective_rows
    assert cb.rows_needed(weighted, ece=0.03).rows == pytest.approx(plain.rows * worth, rel=0.1)
    with pytest.raises(InputError, match="have their own weights"):
        cb.rows_needed(whole, ece=0.03, weights=weights)


def test_a_result_of_ten_thousand_rows_pickles_small() -> None:
    found = cb.evaluate(cb.load_sample("test"))
    assert (found.n, len(found.results)) == (10_000, 7)
    assert len(pickle.dumps(found)) <= 300_000
