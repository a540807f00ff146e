"""What `evaluate` promises of every registered metric: value, interval, floor, laws, streaming."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
from numpy.typing import NDArray

import calibrant as cb
from calibrant.core.errors import UnknownMethodError
from calibrant.evaluation.cell_sample import merge
from calibrant.evaluation.cells import FINE, CellSums
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.formatting import show
from calibrant.evaluation.results import Evaluation
from calibrant.evaluation.sample_sources import sample_of
from calibrant.metrics import debiased, gaps, smooth
from calibrant.metrics.binned import BinSums
from calibrant.metrics.cox import slopes_of_curves
from calibrant.metrics.registry import CORE_METRICS, METRICS, CurveMetric, RowsMetric, metrics_named
from calibrant.metrics.resampling import resampled
from calibrant.metrics.selective import aurc_of_curves
from calibrant.metrics.top_label import ResidualCurves, TopLabel
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax

Labelled = tuple[NDArray[np.float64], NDArray[np.int64]]
CURVE_METRICS = [metric for metric in METRICS.values() if isinstance(metric, CurveMetric)]
by_name = pytest.mark.parametrize("metric", CURVE_METRICS, ids=lambda metric: metric.name)


def simulated(n: int = 2000, seed: int = 0) -> TopLabel:
    rng = np.random.default_rng(seed)
    c = np.concatenate([rng.beta(5, 1, n // 2), 1 - 10.0 ** -rng.uniform(1, 6, n - n // 2)])
    return TopLabel.sort(c, rng.random(n) < c**2)


@pytest.fixture(scope="module")
def everything(overconfident: Labelled) -> Evaluation:
    predictions = Predictions.from_logits(*overconfident)
    return evaluate(predictions, metrics="all", resamples=200)


# --- names


def test_the_core_stays_the_core():
    names = ["ece", "adaece", "smce", "smece", "nll", "brier", "accuracy"]
    assert list(CORE_METRICS) == names
    assert [metric.name for metric in metrics_named(None)] == names
    assert list(METRICS)[:7] == names


def test_all_and_one_and_repeated_names():
    assert metrics_named("all") == metrics_named(["all"]) == list(METRICS.values())
    assert metrics_named("mce") == [METRICS["mce"]]
    assert metrics_named(["nll", "ece", "nll"]) == [METRICS["nll"], METRICS["ece"]]
    assert len(metrics_named(["ks", "all"])) == len(METRICS)


@pytest.mark.parametrize(
    ("name", "hint"), [("ECE", "'ece'"), ("classwise", "classwise"), ("x", "")]
)
def test_an_unknown_name_is_answered_with_a_near_one(name: str, hint: str):
    with pytest.raises(UnknownMethodError, match=rf"no metric is called '{name}'.*{hint}"):
        metrics_named([name])


def test_titles_are_distinct_and_definitions_one_line():
    titles = [metric.title for metric in METRICS.values()]
    assert len(set(titles)) == len(titles)
    assert all(0 < len(metric.definition) < 80 for metric in METRICS.values())


def test_the_cost_of_a_value():
    assert METRICS["ece"].cost(0.1) < METRICS["ece"].cost(0.2)
    assert METRICS["accuracy"].cost(0.9) < METRICS["accuracy"].cost(0.8)
    assert METRICS["slope"].cost(1.1) < METRICS["slope"].cost(0.8)
    assert METRICS["intercept"].cost(0.1) == METRICS["intercept"].cost(-0.1)


# --- evaluate


def test_every_metric_has_a_value_in_its_interval(everything: Evaluation):
    assert list(everything.results) == list(METRICS)
    for name, result in everything.results.items():
        assert math.isfinite(result.value), name
        assert result.low <= result.value <= result.high, name
        assert result.low < result.high, name
        assert len(result.replicates) == 200, name
        # The interval is about as wide as resamples scatter.
        assert (result.high - result.low) == pytest.approx(3.8 * result.replicates.std(), rel=0.35)
    json.dumps(everything.as_dict(), allow_nan=False)
    assert "classwise ECE" in str(everything)


def test_overconfidence_is_seen_by_every_metric_with_a_floor(everything: Evaluation):
    for name, result in everything.results.items():
        if result.floor is None or name in ("mce", "underconfidence"):
            continue
        assert result.value > result.floor_95 > result.floor, name
        assert result.p_value < 0.05, name
    assert everything["slope"].high < 1
    assert everything["underconfidence"].at_floor
    split = everything["nll_calibration"].value + everything["nll_refinement"].value
    assert split == pytest.approx(everything["nll"].value, abs=1e-6)
    both = everything["overconfidence"].value + everything["underconfidence"].value
    assert both == pytest.approx(everything["ece"].value)


def test_honest_rows_are_at_every_floor(overconfident: Labelled):
    rng = np.random.default_rng(4)
    p = softmax(overconfident[0])
    y = (p.cumsum(axis=1) < rng.random((len(p), 1))).sum(axis=1)
    found = evaluate(p, np.minimum(y, 4), metrics="all", resamples=200)
    for name, result in found.results.items():
        if result.p_value is not None:
            assert result.p_value > 0.01, name
    assert found["slope"].low < 1 < found["slope"].high
    assert found["intercept"].low < 0 < found["intercept"].high


def test_the_seed_and_the_row_order_decide_as_they_should(overconfident: Labelled):
    z, y = overconfident
    z, y = z[:300], y[:300]
    first, again, other = (
        evaluate(Predictions.from_logits(z, y), metrics="all", resamples=20, seed=seed)
        for seed in (0, 0, 1)
    )
    order = np.random.default_rng(0).permutation(300)
    shuffled = evaluate(Predictions.from_logits(z[order], y[order]), metrics="all", resamples=20)
    narrow = evaluate(Predictions.from_logits(z.astype(np.float32), y), metrics="all", resamples=20)
    classes = np.array([3, 1, 0, 4, 2])
    renamed = evaluate(
        Predictions.from_logits(z[:, classes], np.argsort(classes)[y]), metrics="all", resamples=20
    )
    for name, result in first.results.items():
        assert np.array_equal(result.replicates, again[name].replicates), name
        assert not np.array_equal(result.replicates, other[name].replicates), name
        for same in (shuffled, renamed):
            assert same[name].value == pytest.approx(result.value, abs=1e-9), name
        assert narrow[name].value == pytest.approx(result.value, abs=2e-4), name


def test_confidences_alone_leave_out_what_needs_rows():
    rng = np.random.default_rng(0)
    c = rng.random(100)
    predictions = Predictions.from_confidence(c, np.zeros(100, int), rng.integers(2, size=100))
    found = evaluate(predictions, metrics="all", resamples=20)
    assert set(found.skipped) == {m.name for m in METRICS.values() if m.needs_classes}
    assert all(m.needs_classes for m in METRICS.values() if isinstance(m, RowsMetric))


@pytest.mark.parametrize("labels", [[0, 1, 0, 1], [1, 0, 1, 0]], ids=["all right", "all wrong"])
def test_degenerate_sets_give_finite_numbers(labels: list[int]):
    z = np.array([[3.0, 0.0], [0.0, 2.0], [1.0, 0.0], [0.0, 4.0]])
    found = evaluate(Predictions.from_logits(z, np.array(labels)), metrics="all", resamples=20)
    json.dumps(found.as_dict(), allow_nan=False)


def test_one_metric_of_whole_rows_alone(overconfident: Labelled):
    z, y = overconfident
    found = evaluate(Predictions.from_logits(z, y), metrics="classwise_ece", resamples=20)
    p = softmax(z)
    expected = cb.metrics.classwise_expected_calibration_error(p, y)
    assert found["classwise_ece"].value == pytest.approx(expected)
    assert "Mean confidence" in str(found) or "verconfident" in str(found)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("skce", -2e-5, "-2.0e-05"),
        ("skce", 0.00012345, "1.2e-04"),
        ("skce", -0.0, "0.0000"),
        ("nll", 0.4774, "0.4774"),
        ("nll", 0.00123, "0.0012"),
        ("ece", 0.0435, "4.35"),
        ("ece", -1e-6, "0.00"),
        ("accuracy", None, ""),
    ],
)
def test_a_number_in_a_table_says_something(name: str, value: float | None, text: str):
    assert show(METRICS[name], value) == text


# --- resamples


@by_name
def test_a_resample_is_what_its_rows_give(metric: CurveMetric):
    rows = simulated(300)
    rng = np.random.default_rng(0)
    counts = np.stack([np.bincount(rng.integers(300, size=300), minlength=300) for _ in range(6)])
    batch = metric.of_curves(resampled(rows, counts))
    assert batch.shape == (6,)
    for found, count in zip(batch, counts, strict=True):
        index = np.repeat(np.arange(300), count)
        drawn = TopLabel.sort(rows.confidence[index], rows.correct[index])
        # `of_curves` may use coarser cells than `exact`, but the same for rows and resamples.
        assert found == pytest.approx(
            float(metric.of_curves(drawn.curves())[0]), rel=0.02, abs=1e-9
        )
        assert found == pytest.approx(metric.value(drawn), rel=0.05, abs=2e-3)


@by_name
def test_a_batch_of_outcomes_is_one_at_a_time(metric: CurveMetric):
    rows = simulated(200)
    outcomes = np.random.default_rng(0).random((4, 200)) < rows.confidence
    batch = metric.of_curves(ResidualCurves.with_labels(rows, outcomes))
    for found, outcome in zip(batch, outcomes, strict=True):
        alone = TopLabel.sort(rows.confidence, outcome).curves()
        assert found == pytest.approx(float(metric.of_curves(alone)[0]), abs=1e-9)


@pytest.mark.parametrize("piled", [True, False])
@by_name
def test_value_and_floor_are_one_statistic(metric: CurveMetric, piled: bool):
    # A floor on coarser cells than the value's would be too low or too high, and its test's false
    # alarms more or fewer than promised. On the same outcomes, the two must agree far more closely
    # than outcomes scatter.
    rng = np.random.default_rng(8)
    confidence = 1 - 0.5 * rng.beta(0.5, 2, 2000) if piled else rng.uniform(0.1, 1, 2000)
    rows = TopLabel.sort(confidence, np.zeros(2000))
    curves = ResidualCurves.with_labels(rows, rng.random((30, 2000)) < rows.confidence)
    coarse = metric.of_curves(curves)
    values = [metric.of_curve(replace(curves, residual=r[None])) for r in curves.residual]
    assert abs(np.mean(values) - coarse.mean()) < 0.06 * np.std(values)


# --- streaming


def streamed(grid: tuple[int, int]) -> tuple[TopLabel, ResidualCurves]:
    """Return rows, and the curve of the sums of three shards of them."""
    rows = simulated(6000)
    order = np.random.default_rng(1).permutation(6000)
    parts = [
        CellSums.of(rows.confidence[i], rows.correct[i].astype(bool), grid)
        for i in np.array_split(order, 3)
    ]
    return rows, (parts[0] + parts[1] + parts[2]).cells().curve()


EXACT_ON_THE_GRID = (
    "ece", "mce", "average_ce", "rmsce", "debiased_rmsce", "overconfidence", "underconfidence",
)  # fmt: skip


@pytest.mark.parametrize("name", EXACT_ON_THE_GRID)
def test_sums_over_aligned_cells_lose_nothing(name: str):
    rows, curve = streamed((3600, 1))
    assert METRICS[name].of_curve(curve) == pytest.approx(METRICS[name].value(rows), abs=1e-10)


@by_name
def test_every_curve_metric_can_be_streamed(metric: CurveMetric):
    rows, curve = streamed(FINE)
    # The standard errors of slope and intercept are 0.05 and 0.09 here.
    tolerance = 2e-3 if metric.name in ("slope", "intercept") else 3e-4
    assert metric.of_curve(curve) == pytest.approx(metric.value(rows), abs=tolerance)
    assert curve.n == 6000


def test_the_grid_is_off_by_less_than_promised():
    for cells in (30, 300):
        rows, curve = streamed((cells, 1))
        width = 1 / cells
        off = {n: METRICS[n].of_curve(curve) - METRICS[n].value(rows) for n in ("smce", "ks")}
        assert abs(off["smce"]) <= width
        cell = np.searchsorted(np.arange(1, cells) / cells, rows.confidence)
        sizes = np.bincount(cell, np.abs(rows.confidence - rows.correct)) / 6000
        assert -sizes.max() <= off["ks"] <= 1e-12
        square = smooth.squared_mmce_of_curves
        assert abs(square(curve)[0] - square(rows.curves())[0]) <= width / 0.4


def test_sums_of_shards_give_the_metrics_of_the_whole(overconfident: Labelled):
    z, y = overconfident
    # Most confidences near 1, as those of a network that is sure of itself.
    whole = Predictions.from_logits(3 * z, y)
    shards = [whole.take(np.arange(start, 2000, 7)) for start in range(7)]
    state = reduce(merge, map(sample_of, shards))
    expected = evaluate(whole, metrics="all", resamples=2)
    found = evaluate(state, metrics="all", resamples=2)
    assert state.n == 2000
    few = ("skce", "classwise_adaece")  # parts of 286 rows begin at their own place 0
    assert list(found.results) == [n for n in METRICS if n not in few]
    for name, value in ((n, r.value) for n, r in found.results.items()):
        # An isotonic fit makes use of every single row at the top, where a cell ties them.
        tolerance = 1e-3 if name.startswith("brier_") else 3e-4
        assert value == pytest.approx(expected[name].value, abs=tolerance), name
        if name in (*EXACT_ON_THE_GRID, "nll", "brier", "accuracy"):
            assert value == pytest.approx(expected[name].value, abs=1e-10), name
    assert "pairs of rows" in found.skipped["skce"]
    with pytest.raises(UnknownMethodError):
        evaluate(state, metrics="no")


def test_a_shard_of_confidences_takes_away_what_it_can_not_give():
    c, said = np.array([0.5, 0.75]), np.array([0, 1])
    from_confidence = sample_of(Predictions.from_confidence(c, said, np.array([0, 0])))
    p = np.stack([1 - c, c], axis=1)
    from_rows = sample_of(Predictions.from_probs(p, np.array([1, 1])))
    assert "nll" in evaluate(from_rows, resamples=2).results
    both = evaluate(merge(from_rows, from_confidence), resamples=2)
    assert "score for every class" in both.skipped["nll"]
    assert both.accuracy == pytest.approx(0.5)
    with pytest.raises(TypeError):
        _ = 1 + from_rows


def test_one_row_streams_too():
    for c in (0.0, 0.5, 1.0):
        for grid in ((100, 1), (1, 100)):
            curve = CellSums.of(np.array([c]), np.array([True]), grid).cells().curve()
            assert METRICS["ece"].of_curve(curve) == pytest.approx(1 - c)
            assert METRICS["smce"].of_curve(curve) == pytest.approx(abs(1 - c))


def test_functions_of_batches_have_one_value_a_row():
    curves = simulated(100).curves()
    assert smooth.smece_of_curves(curves).shape == (1,)
    assert debiased.sweep_of_curves(curves).shape == (1,)
    assert aurc_of_curves(curves).shape == slopes_of_curves(curves).shape == (1,)
    assert gaps.largest_gap(BinSums.of_curves(curves, 5)).shape == (1,)
    assert BinSums.of_curves(curves, 5).accuracy.shape == (1, 5)
