"""Sums at breakpoints: the same numbers as running sums over all rows, for much less work."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.evaluation import bootstrap
from calibrant.evaluation.at_breakpoints import CurvesAtBreakpoints, Resampling
from calibrant.evaluation.bootstrap import Draws, Pieces, floor, honest_curves, numbers_right
from calibrant.evaluation.evaluate import evaluate
from calibrant.metrics import smooth
from calibrant.metrics.binned import adaece_of_curves
from calibrant.metrics.metric_types import values_of_curves
from calibrant.metrics.registry import METRICS, POSITIVE_METRICS, CurveMetric, metrics_named
from calibrant.metrics.resampling import Clusters, draw_rows, resampled
from calibrant.metrics.top_label import DenseBreakpoints, ResidualCurves, TopLabel
from calibrant.predictions.predictions import Predictions

AT_BREAKPOINTS = [
    metric
    for metric in (METRICS | POSITIVE_METRICS).values()
    if isinstance(metric, CurveMetric) and metric.at_breakpoints
]


def sorted_rows(n: int, ties: int = 0, *, weighted: bool = False, seed: int = 0) -> TopLabel:
    """Return rows; `ties` is how many places confidences are rounded to, 0 for not at all."""
    rng = np.random.default_rng(seed)
    c = rng.beta(4, 1, n)
    c = np.round(c, ties) if ties else c
    weight = rng.exponential(size=n) if weighted else None
    return TopLabel.sort(c, rng.random(n) < c - 0.03, weight)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize(("n", "ties"), [(1, 0), (40, 0), (3000, 0), (3000, 1), (3000, 3)])
def test_resamples_have_the_values_of_running_sums(
    n: int, ties: int, clustered: bool, weighted: bool
):
    rows = sorted_rows(n, ties, weighted=weighted)
    rng = np.random.default_rng(1)
    clusters = Clusters(rng.integers(7, size=n), 7) if clustered else None
    counts = draw_rows(np.random.default_rng(2), n, 40, clusters)
    columns, drawn = rows.order, counts.T
    if clusters is not None:
        columns, drawn = clusters.codes[rows.order], draw_rows(np.random.default_rng(2), 7, 40).T
        if not (counts @ (np.ones(n) if rows.weight is None else rows.weight)).all():
            pytest.skip("a resample without rows")
    other = rng.random(n)
    resampling = Resampling.of_rows(rows, columns, drawn.shape[0], [other[rows.order]])
    drawn = np.ascontiguousarray(drawn)
    for honest in (False, True):
        few, whole = resampling.curves(drawn), resampled(rows, counts.take(rows.order, axis=1))
        if honest:
            few.shrink_gaps()
            whole.shrink_gaps()
        np.testing.assert_allclose(few.total, whole.total, rtol=1e-12)
        for metric in AT_BREAKPOINTS:
            found, wanted = metric.of_curves(few), metric.of_curves(whole)
            if weighted and honest and metric.of_curves is adaece_of_curves:
                # Whether the last bin holds rows that weren't drawn, behind all that were, is left
                # to the rounding of running sums: a few hundredths of a percent of the value.
                np.testing.assert_allclose(np.median(np.abs(found - wanted)), 0, atol=1e-11)
                np.testing.assert_allclose(found, wanted, rtol=0.02)
                continue
            np.testing.assert_allclose(found, wanted, atol=1e-11, err_msg=metric.name)
    weighed = counts[:, rows.order] * (np.ones(n) if rows.weight is None else rows.weight)
    means = (weighed * other[rows.order]).sum(axis=1) / weighed.sum(axis=1)
    np.testing.assert_allclose(few.means[0], means, rtol=1e-12)


@pytest.mark.parametrize(("n", "ties"), [(1, 0), (2000, 0), (2000, 2), (428, 2)])
def test_honest_outcomes_have_the_values_of_running_sums(n: int, ties: int):
    rows = sorted_rows(n, ties)
    outcomes = np.random.default_rng(0).random((30, n)) < rows.confidence
    right = np.add.reduceat(outcomes, rows.breakpoints.positions[:-1], axis=1, dtype=np.float64)
    few, whole = honest_curves(rows, right.T), ResidualCurves.with_labels(rows, outcomes)
    for metric in AT_BREAKPOINTS:
        np.testing.assert_allclose(
            metric.of_curves(few), metric.of_curves(whole), atol=1e-12, err_msg=metric.name
        )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 400), min_size=1, max_size=400), st.booleans())
def test_breakpoints_keep_runs_whole_and_stretches_short(values: list[int], dense: bool):
    c = np.sort(np.array(values)) / 400
    rows = TopLabel.sort(c, c > 0.5)
    marks = rows.dense_breakpoints if dense else rows.breakpoints
    assert marks.positions[0] == 0
    assert marks.positions[-1] == rows.n
    assert (np.diff(marks.positions) > 0).all()
    assert np.isin(marks.positions, rows.tie_starts).all()
    runs = np.diff(np.searchsorted(rows.tie_starts, marks.positions))
    if isinstance(marks, DenseBreakpoints):
        np.testing.assert_array_equal(marks.single, runs == 1)
        assert marks.width == np.diff(marks.positions)[~marks.single].max(initial=0)
        assert marks.width < 64


def test_what_is_no_breakpoint_is_refused():
    rows = sorted_rows(3000)
    curves = CurvesAtBreakpoints(
        rows, rows.breakpoints, np.zeros((len(rows.breakpoints.positions), 1))
    )
    with pytest.raises(ValueError, match="breakpoints only"):
        curves.between(curves.cuts(np.arange(1001) / 1000))


@pytest.mark.parametrize("ties", [0, 1])
def test_numbers_of_right_rows_follow_their_distribution(ties: int):
    rows = sorted_rows(500, ties, seed=3)
    pieces = Pieces.of(rows.breakpoints)
    assert np.diff(pieces.bounds).max() <= 64
    stretch, drawn = numbers_right(
        np.random.default_rng(0), rows.confidence, pieces, slice(0, len(pieces.stretch)), 4000
    )
    np.testing.assert_array_equal(stretch, np.arange(rows.breakpoints.stretches))
    cuts = rows.breakpoints.positions[:-1]
    sizes = np.diff(rows.breakpoints.positions)
    assert (drawn >= 0).all()
    assert (drawn <= sizes[:, None]).all()
    mean = np.add.reduceat(rows.confidence, cuts)
    variance = np.add.reduceat(rows.confidence * (1 - rows.confidence), cuts)
    # Each mean of 4 000 within 4.5 of its standard errors, each variance within 25 %.
    assert (np.abs(drawn.mean(axis=1) - mean) <= 4.5 * np.sqrt(variance / 4000) + 1e-9).all()
    wide = variance > 0.2
    np.testing.assert_allclose(drawn.var(axis=1)[wide], variance[wide], rtol=0.25)
    # Stretches are drawn apart from one another.
    total = drawn.sum(axis=0)
    np.testing.assert_allclose(total.var(), variance.sum(), rtol=0.1)


@pytest.mark.parametrize("confidence", ["mixed", "extreme"])
def test_a_number_drawn_by_a_table_is_the_one_that_is_looked_for(confidence: str):
    rng = np.random.default_rng(4)
    chance = np.sort(rng.random(400) if confidence == "mixed" else rng.random(400) ** 40)
    chance[-3:] = 1.0
    bounds = np.array([0, 1, 3, 40, 104, 168, 232, 296, 336, 397, 400])
    below = bootstrap._distribution(chance, bounds)  # pyright: ignore[reportPrivateUsage]
    uniform = rng.random((10, 500))
    uniform[:, :3] = [0.0, 0.5, 1 - 2**-53]  # the ends, and a place of the table itself
    uniform[:, 3] = below[:, 0] % 1
    found = bootstrap._drawn(below, uniform)  # pyright: ignore[reportPrivateUsage]
    for each, table, numbers in zip(found, below, uniform, strict=True):
        np.testing.assert_array_equal(each, np.searchsorted(table, numbers, side="right"))


def test_floors_at_breakpoints_are_those_of_rows_drawn_one_by_one():
    rows = sorted_rows(4000)
    quick = floor(rows, AT_BREAKPOINTS, 600, 0)
    outcomes = np.random.default_rng(0).random((600, rows.n)) < rows.confidence
    slow = values_of_curves(AT_BREAKPOINTS, ResidualCurves.with_labels(rows, outcomes))
    for metric in AT_BREAKPOINTS:
        first, second = quick[metric.name], slow[metric.name]
        assert not np.array_equal(first, second)
        error = np.hypot(first.std(), second.std()) / 600**0.5
        assert abs(first.mean() - second.mean()) < 4 * error, metric.name
        assert 0.85 < first.std() / second.std() < 1.18, metric.name


def test_a_floor_does_not_depend_on_what_else_is_measured(labelled_logits):
    rows = Predictions.from_logits(*labelled_logits(300, 4))
    alone = evaluate(rows, metrics=["ece"], resamples=50)["ece"]
    beside = evaluate(rows, metrics=["ks", "ece", "nll"], resamples=50)["ece"]
    assert (alone.floor, alone.floor_95) == (beside.floor, beside.floor_95)
    np.testing.assert_array_equal(alone.replicates, beside.replicates)


def test_the_usual_metrics_need_no_running_sums():
    usual = [metric for metric in metrics_named(None) if isinstance(metric, CurveMetric)]
    assert all(metric.at_breakpoints for metric in usual)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1, 3, 16, 64]), st.booleans())
def test_smce_of_many_curves_at_once_is_that_of_each(seed: int, cells: int, sparse: bool):
    rng = np.random.default_rng(seed)
    masses = rng.normal(rng.normal(size=(cells, 1)), 1, (cells, 9)) * rng.choice([1e-3, 0.1, 1])
    if sparse:
        masses[rng.random(cells) < 0.6] = 0.0
    middles = (np.arange(cells) + 0.5) / cells
    each = [smooth.max_lipschitz_correlation(middles, mass) for mass in masses.T]
    np.testing.assert_allclose(smooth._on_even_cells(masses), each, atol=1e-12)  # pyright: ignore[reportPrivateUsage]


def test_draws_that_are_kept_are_those_that_are_not():
    draws = Draws.of_rows(300, 2000, 5)
    kept = draws.kept_if_small()
    assert len(draws.sizes) > 1
    assert kept.batches() == draws.batches()
    for batches in draws.batches():
        assert kept.of(batches) is kept.of(batches)
        np.testing.assert_array_equal(kept.of(batches), draws.of(batches))
        assert (draws.of(batches).sum(axis=0) == 300).all()


def test_draws_are_those_of_the_generator():
    counts = draw_rows(np.random.default_rng(3), 50, 4)
    rng = np.random.default_rng(3)
    for each in counts:
        np.testing.assert_array_equal(each, np.bincount(rng.integers(50, size=50), minlength=50))
