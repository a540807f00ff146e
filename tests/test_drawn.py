"""Resamples of very many rows, kept as what was drawn: the same numbers as whole running sums."""

from __future__ import annotations

import numpy as np
import pytest

from calibrant.evaluation import at_breakpoints as drawn_module
from calibrant.evaluation.at_breakpoints import DrawnCurve, draw_counts, draw_outcomes
from calibrant.evaluation.bootstrap import bootstrap, floor
from calibrant.metrics.registry import METRICS, CurveMetric, metrics_named
from calibrant.metrics.resampling import resampled
from calibrant.metrics.top_label import ResidualCurves, TopLabel
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import score_rows

ROWS = 700


def sorted_rows(tied: bool, seed: int = 0) -> TopLabel:
    rng = np.random.default_rng(seed)
    c = rng.beta(4, 2, ROWS)
    c = np.round(c, 2) if tied else c
    return TopLabel.sort(c, rng.random(ROWS) < c - 0.05)


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch):
    monkeypatch.setattr(drawn_module, "STRETCH", 64)


def test_draws_are_those_of_the_generator():
    counts = draw_counts(np.random.default_rng(3), ROWS)
    whole = np.random.default_rng(3).integers(ROWS, size=ROWS)
    np.testing.assert_array_equal(counts, np.bincount(whole, minlength=ROWS))
    c = np.linspace(0, 1, ROWS)
    outcomes = draw_outcomes(np.random.default_rng(4), c)
    np.testing.assert_array_equal(outcomes, np.random.default_rng(4).random(ROWS) < c)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("drawing", ["counts", "outcomes", "neither"])
def test_every_metric_is_that_of_whole_running_sums(tied: bool, drawing: str):
    rows = sorted_rows(tied)
    assert (rows.distinct < ROWS) == tied
    assert rows.distinct == len(np.unique(rows.confidence)) == len(rows.tie_starts) - 1
    rng = np.random.default_rng(1)
    if drawing == "counts":
        counts = draw_counts(rng, ROWS)
        lean = DrawnCurve(rows, counts)
        whole = resampled(rows, counts[None])
    elif drawing == "outcomes":
        outcomes = draw_outcomes(rng, rows.confidence)
        lean = DrawnCurve(rows, outcomes=outcomes)
        whole = ResidualCurves.with_labels(rows, outcomes[None])
    else:
        lean, whole = DrawnCurve(rows), rows.curves()
    for metric in METRICS.values():
        if isinstance(metric, CurveMetric):
            np.testing.assert_allclose(
                metric.of_curves(lean), metric.of_curves(whole), atol=1e-12, err_msg=metric.name
            )
    every = np.arange(ROWS + 1)
    np.testing.assert_allclose(lean.at_ranks(every), whole.at_ranks(every), atol=1e-10)
    for name in ("below", "above", "share"):
        found, wanted = (getattr(curve.crossing(every), name) for curve in (lean, whole))
        if drawing == "counts" or tied:
            np.testing.assert_allclose(found, wanted, atol=1e-10)


@pytest.mark.parametrize("metrics", [None, ["nll"], ["ece", "ks"]])
def test_many_rows_have_the_replicates_of_few(metrics, labelled_logits, monkeypatch):
    predictions = Predictions.from_logits(*labelled_logits(ROWS, 4))
    scores = score_rows(predictions)
    rows = TopLabel.sort(scores.confidence, scores.correct)
    wanted = metrics_named(metrics)
    # One resample a batch, kept whole or as what was drawn.
    monkeypatch.setattr("calibrant.evaluation.bootstrap.BATCH_ROWS", ROWS)
    whole = bootstrap(scores, rows, wanted, 5, 2), floor(rows, wanted, 5, 2)
    monkeypatch.setattr("calibrant.evaluation.bootstrap.BATCH_ROWS", ROWS - 1)
    lean = bootstrap(scores, rows, wanted, 5, 2), floor(rows, wanted, 5, 2)
    for first, second in zip(whole, lean, strict=True):
        assert set(first) == set(second)
        for name, values in first.items():
            np.testing.assert_allclose(second[name], values, atol=1e-12, err_msg=name)
