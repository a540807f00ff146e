"""Measure predictions: every metric with its interval and its floor, in one pass over the rows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from calibrant.core.arrays import Array
from calibrant.core.errors import InputError
from calibrant.evaluation.bootstrap import bootstrap, drawn_once, floor
from calibrant.evaluation.rare_outcomes import stretched
from calibrant.evaluation.results import Evaluation, MetricResult, result_of
from calibrant.evaluation.uncertainty import DEFAULT_LEVEL, check_drawing, default_resamples
from calibrant.metrics.full_rows import Measured
from calibrant.metrics.metric_types import Metric, RowsMetric, values_of_rows
from calibrant.metrics.registry import metrics_named
from calibrant.metrics.resampling import Clusters, HonestDraws
from calibrant.metrics.shared_terms import each_once
from calibrant.metrics.top_label import TopLabel
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import RowScores, score_rows

__all__ = ["Evaluation", "MetricResult", "evaluate"]


def evaluate(
    predictions: Predictions | Array,
    labels: Array | None = None,
    *,
    sample_weight: Array | None = None,
    clusters: Array | None = None,
    metrics: Sequence[str] | str | None = None,
    resamples: int | None = None,
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
) -> Evaluation:
    """Measure predictions: each metric with a bootstrap interval and, where it has one, the floor.

    Args:
        predictions: a `Predictions`, or an (N, K) array of probabilities (not logits; for those
            pass ``Predictions.from_logits(logits, labels)``).
        labels: (N,) true classes, with an array.
        sample_weight: (N,) how much each row counts, with an array; whole numbers count rows, of
            others only the ratios matter.
        clusters: (N,) names of clusters, whose rows aren't independent of one another, with an
            array. Intervals, floors and p-values then resample whole clusters.
        metrics: names of metrics, or ``"all"``; the seven of `CORE_METRICS` for None, and of binary
            predictions also those of the positive class.
        resamples: bootstrap resamples, and simulated honest data sets; None for 1 000, or fewer
            for more than 100 000 rows, but at least 100.
        level: nominal coverage of the intervals, in (0, 1).
        seed: the same seed gives the same intervals, and pairs them over calibrators.

    Raises:
        PredictionsError: unusable arrays.
        UnknownMethodError: no such metric.
        InputError: resamples or level out of range, or rows of one cluster only.

    Examples:
        >>> import calibrant as cb
        >>> honest = cb.synthetic.tempered(5_000, 10, temperature=1.0).predictions
        >>> ece = cb.evaluate(honest, metrics=["ece"], resamples=200)["ece"]
        >>> ece.value > 0.005, ece.value < ece.floor_95  # it isn't 0, but no more than noise
        (True, True)
    """
    if not isinstance(predictions, Predictions):
        if labels is None:
            raise InputError("evaluate needs labels with an array of probabilities")
        predictions = Predictions.from_probs(
            predictions, labels, sample_weight=sample_weight, clusters=clusters
        )
    elif sample_weight is not None or clusters is not None:
        raise InputError("weights and clusters go into the Predictions when it is made of arrays")
    predictions = predictions.counted
    if resamples is None:
        resamples = default_resamples(predictions.n)
    check_drawing(resamples, level, seed)
    clusters_of_rows = Clusters.of(predictions.clusters)
    if clusters_of_rows is not None and clusters_of_rows.number < 2:
        raise InputError(
            f"{predictions.source}: all rows belong to one cluster, and what varies between "
            "clusters can't be told from one; leave the clusters out, or give at least 2"
        )
    scores = score_rows(predictions)
    rows = TopLabel.sort(scores.confidence, scores.correct, scores.weights)
    named, skipped = metrics_named(metrics, binary=predictions.binary), dict[str, str]()
    wanted: list[Metric] = []
    for metric in named:
        reason = metric.refusal(predictions)
        wanted += [metric] if reason is None else []
        skipped |= {} if reason is None else {metric.name: reason}
    honest = HonestDraws.like(rows, clusters_of_rows)
    top = [metric for metric in wanted if not metric.of_positive]
    positive = None
    with drawn_once() if predictions.binary else nullcontext():
        found = _results(top, predictions, scores, rows, resamples, level, seed, honest)
        if predictions.binary:
            scored = scores.of_positive()
            positive = TopLabel.sort(scored.confidence, scored.correct, scored.weights)
            others = [metric for metric in wanted if metric.of_positive]
            draws = HonestDraws.like(positive, clusters_of_rows)
            found |= _results(others, predictions, scored, positive, resamples, level, seed, draws)
    results = {metric.name: found[metric.name] for metric in wanted}
    of = (predictions.source, predictions.form, predictions.n_classes, results, skipped, scores)
    return Evaluation(*of, rows, level, honest, positive, predictions.label_names)


def _results(
    wanted: Sequence[Metric],
    predictions: Predictions,
    scores: RowScores,
    rows: TopLabel,
    resamples: int,
    level: float,
    seed: int,
    draws: HonestDraws,
) -> dict[str, MetricResult]:
    """Return the results of all metrics; those of one shape share their resamples."""
    whole = [metric for metric in wanted if isinstance(metric, RowsMetric)]
    others = [metric for metric in wanted if not isinstance(metric, RowsMetric)]
    clusters = Clusters.of(predictions.clusters)
    drawn = bootstrap(scores, rows, others, resamples, seed, clusters)
    honest = floor(rows, others, resamples, seed, draws)
    beyond = stretched(wanted, predictions, scores, level, seed)
    found = each_once({m.name: m.measure for m in whole}, predictions, resamples, seed)
    for name, value in values_of_rows(others, scores, rows).items():
        found[name] = Measured(value, drawn[name], honest.get(name), name in honest)
    if clusters is not None:
        wider = clusters.stretch(level)
        found = {name: each.scattered(wider) for name, each in found.items()}
    return {metric.name: result_of(metric, found[metric.name], level, beyond) for metric in wanted}
