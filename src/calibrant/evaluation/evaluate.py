"""Measure predictions: every metric with its interval and its floor, in one pass over the rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from hashlib import sha256
from typing import Any, cast

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.errors import InputError
from calibrant.core.progress import Watcher, watched
from calibrant.evaluation.bootstrap import drawn_once
from calibrant.evaluation.cell_sample import CellSample
from calibrant.evaluation.results import Evaluation, MetricResult, result_of
from calibrant.evaluation.sample import RowSample, Sample
from calibrant.evaluation.sample_sources import sample_of
from calibrant.evaluation.uncertainty import DEFAULT_LEVEL, ENOUGH, check_drawing
from calibrant.metrics.metric_types import MeanMetric, Measured, Metric, RowsMetric, values_of_curve
from calibrant.metrics.registry import BINARY_METRICS, metrics_named
from calibrant.metrics.resampling import cluster_stretch
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import RowScores
from calibrant.scale.engines import Engine
from calibrant.scale.shards import Shards

__all__ = ["Evaluation", "MetricResult", "evaluate", "evaluate_sample"]

# How intervals of cells are made, which their results say.
CELLS = "Intervals are resampled from counts of rows in narrow ranges of confidence."
CLUSTERS = "Intervals resample whole clusters"
INDEPENDENT_FLOORS = "Floors assume that outcomes within a cluster are independent."
RARE = (
    f"Fewer than {ENOUGH} rows are wrong, or right, so these intervals may be too narrow; those of "
    "a single file allow for that."
)


# Parameters: what arrays, files and draws need, each by name; a class of options would hide them.
def evaluate(
    predictions: Predictions | Shards | Sample | Array,
    labels: Array | None = None,
    *,
    sample_weight: Array | None = None,
    clusters: Array | str | None = None,
    metrics: Sequence[str] | str | None = None,
    resamples: int | None = None,
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
    engine: Engine | None = None,
    skip_broken: bool = False,
    watch: Watcher | None = None,
) -> Evaluation:
    """Measure predictions: each metric with a bootstrap interval and, where it has one, the floor.

    For `Shards` it makes one pass over the files, in bounded memory. The numbers then don't depend
    on how the rows are split into files, on the engine, or on the number of its workers.

    Args:
        predictions: a `Predictions`, the files of `Shards`, a sample (see `sample_of`), or an
            (N, K) array of probabilities (not logits; for those pass
            ``Predictions.from_logits(logits, labels)``).
        labels: (N,) true classes, with an array.
        sample_weight: (N,) how much each row counts, with an array; whole numbers count rows; of
            other weights only the ratios matter.
        clusters: (N,) names of clusters, whose rows aren't independent of one another, with an
            array. With `Shards`, the column that names them; None takes the column that they are
            read with, and more than 512 clusters are merged. Intervals, floors and p-values then
            resample whole clusters.
        metrics: names of metrics, or ``"all"``; None for the seven of `CORE_METRICS`, with those of
            the positive class for binary predictions.
        resamples: bootstrap resamples, and simulated calibrated data sets; None for 1 000, or fewer
            for more than 100 000 rows in memory, but at least 100.
        level: nominal coverage of the intervals, in (0, 1).
        seed: the same seed gives the same intervals, and pairs them over calibrators.
        engine: what reads `Shards`; None for processes on all cores. Rows in memory don't use it.
        skip_broken: leave out files that can't be read, and name them in the result.
        watch: called with a `Progress` as files are done; rows in memory are one step.

    Raises:
        PredictionsError: unusable arrays, or a row of a file that can't be used, by its number.
        UnknownMethodError: no such metric.
        InputError: resamples or level out of range, rows of one cluster only, or no readable file.

    Examples:
        >>> import calibrant as cb
        >>> honest = cb.synthetic.tempered(5_000, 10, temperature=1.0).predictions
        >>> ece = cb.evaluate(honest, metrics=["ece"], resamples=200)["ece"]
        >>> ece.value > 0.005, ece.value < ece.floor_95  # it isn't 0, but no more than noise
        (True, True)

        Of many files:

        >>> for i in range(2):
        ...     cb.write_predictions(honest.take(slice(2500 * i, 2500 * i + 2500)), f"{i}.npz")
        >>> found = cb.evaluate(cb.Shards("*.npz"), metrics=["ece"], engine=cb.Engine(workers=1))
        >>> abs(found["ece"].value - ece.value) < 1e-12
        True
    """
    check_drawing(2 if resamples is None else resamples, level, seed)
    sample = sample_of(
        predictions,
        labels,
        sample_weight=sample_weight,
        clusters=clusters,
        metrics=metrics,
        seed=seed,
        engine=engine,
        skip_broken=skip_broken,
        watch=watch,
    )
    # Of files most of the work is done by now, and was reported.
    with watched(None if isinstance(predictions, Shards) else watch, sample.n):
        return evaluate_sample(sample, metrics, resamples, level, seed)


def evaluate_sample(
    sample: Sample,
    metrics: Sequence[str] | str | None = None,
    resamples: int | None = None,
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
) -> Evaluation:
    """Return every metric that a sample carries; see `evaluate`."""
    resamples = sample.resamples_of(sample.n) if resamples is None else resamples
    check_drawing(resamples, level, seed)
    if sample.n == 0:
        raise InputError(f"{sample.source}: 'weight' must be above 0 for at least one row")
    if sample.clusters == 1:
        raise InputError(
            f"{sample.source}: all rows belong to one cluster, and an interval needs at least 2; "
            "leave the clusters out, or give more of them"
        )
    wanted, skipped = list[Metric](), dict[str, str]()
    for metric in metrics_named(metrics, binary=sample.binary, ranks=sample.facts.ranks):
        reason = sample.refusal(metric)
        wanted += [metric] if reason is None else []
        skipped |= {} if reason is None else {metric.name: reason}
    top = [metric for metric in wanted if not metric.of_positive]
    with drawn_once() if sample.binary else nullcontext():
        results = _results(sample, top, resamples, level, seed)
        if sample.binary:
            others = [metric for metric in wanted if metric.of_positive]
            results |= _results(sample.of_positive(), others, resamples, level, seed)
    found = Evaluation(
        sample.source,
        sample.kind,
        sample.n_classes,
        {metric.name: results[metric.name] for metric in wanted},
        skipped,
        level,
        sample.for_pictures(),
        clipped_nll_rows=sample.clipped if sample.kind in ("probs", "prob") else 0,
        label_names=sample.label_names,
        printed=BINARY_METRICS if metrics is None and sample.binary else (),
    )
    if not isinstance(sample, CellSample):
        return found
    return replace(
        found, shards=sample.shards, broken=sample.broken, intervals=_intervals_of(sample)
    )


def _results(
    sample: Sample, metrics: Sequence[Metric], resamples: int, level: float, seed: int
) -> dict[str, MetricResult]:
    """Return the results of all metrics; those of one type share their resamples."""
    whole = [metric for metric in metrics if isinstance(metric, RowsMetric)]
    others = [metric for metric in metrics if not isinstance(metric, RowsMetric)]
    drawn = sample.resample(others, resamples, seed)
    honest = sample.honest(others, resamples, seed)
    beyond = sample.beyond(metrics, level, seed)
    found = sample.whole_rows(whole, resamples, seed)
    means = {m.name: sample.mean(m) for m in others if isinstance(m, MeanMetric)}
    for name, value in (means | values_of_curve(others, sample.curve())).items():
        found[name] = Measured(value, drawn[name], honest.get(name), name in honest)
    if sample.clusters is not None:
        wider = cluster_stretch(sample.clusters, level)
        found = {name: each.scattered(wider) for name, each in found.items()}
    return {metric.name: result_of(metric, found[metric.name], level, beyond) for metric in metrics}


def _intervals_of(sample: CellSample) -> str:
    """Return how intervals of cells were made, in a sentence or two."""
    text = CELLS
    if sample.blocks:
        number = f"{len(sample.blocks)} in all"
        if sample.folded:
            number = f"put together into {len(sample.blocks)} by the hashes of their names"
        text = f"{CLUSTERS}, {number}. {INDEPENDENT_FLOORS}"
    right = sample.cells.right
    return f"{text} {RARE}" if min(right, sample.n - right) < ENOUGH else text


def sharing(found: Iterable[Evaluation]) -> list[Evaluation]:
    """Return the same evaluations; of arrays that are alike they hold one, in memory and in files.

    Methods that keep the predicted classes are right in the same rows, and labels of one file have
    the same row numbers.
    """
    known: dict[tuple[str, tuple[int, ...], bytes], Any] = {}

    def shared(of: Any) -> Any:
        own, fields = copy(of), cast("dict[str, Any]", vars(of))
        for name, value in fields.items():
            if isinstance(value, np.ndarray):
                array: Any = np.ascontiguousarray(cast("Any", value))
                key = array.dtype.str, array.shape, sha256(array).digest()
                vars(own)[name] = known.setdefault(key, array)
            elif isinstance(value, RowSample | RowScores):
                vars(own)[name] = shared(value)
        return own

    return [shared(evaluation) for evaluation in found]
