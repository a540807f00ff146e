"""What FeDLaS rests on: whether the norm of the features tells right from wrong."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray
from calibrant.core.tables import Table
from calibrant.evaluation.over_data_sets import t_interval
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax
from calibrant_studies.losses.runs import Run
from calibrant_studies.losses.statistics import LEVEL

NORMAL = NormalDist().inv_cdf((1 + LEVEL) / 2)
NORM_COLUMNS = (
    "correlation of norm and right",
    "correlation of norm and confidence",
    "AUROC of right by norm",
    "AUROC of right by confidence",
)


class Rows(NamedTuple):
    """(N,) values of the test images of a run."""

    norm: FloatArray
    confidence: FloatArray
    right: FloatArray


class Estimate(NamedTuple):
    """A value and its standard error over test images."""

    value: float
    error: float


def read_rows(test: Predictions) -> Rows:
    """Return L1 norm of the features, confidence and correctness of the test images."""
    logits = np.asarray(test.logits, np.float64)
    return Rows(
        np.abs(np.asarray(test.features, np.float64)).sum(axis=1),
        softmax(logits).max(axis=1),
        (logits.argmax(axis=1) == np.asarray(test.labels)).astype(np.float64),
    )


def correlation(x: FloatArray, y: FloatArray) -> Estimate:
    """Return Pearson's correlation of N rows; its error is that of its influence function."""
    x, y = ((z - z.mean()) / z.std() for z in (x, y))
    value = float((x * y).mean())
    influence = x * y - value * (x**2 + y**2) / 2
    return Estimate(value, float(influence.std() / np.sqrt(len(x))))


def auroc_of_right(scores: FloatArray, right: BoolArray) -> Estimate:
    """Return how often a right row has the larger score than a wrong one, with DeLong's error."""
    better, worse = np.sort(scores[right]), np.sort(scores[~right])
    # Of each row, the share of the other side that it stands above; ties count half.
    above = _mean_rank(worse, scores[right])
    below = 1 - _mean_rank(better, scores[~right])
    variance = above.var(ddof=1) / len(better) + below.var(ddof=1) / len(worse)
    return Estimate(float(above.mean()), float(np.sqrt(variance)))


def _mean_rank(ordered: FloatArray, values: FloatArray) -> FloatArray:
    sides = [np.searchsorted(ordered, values, side) for side in ("left", "right")]
    return (sides[0] + sides[1]) / (2 * len(ordered))


def norm_estimates(test: Predictions) -> list[Estimate]:
    """Return the estimates of one network in the order of `NORM_COLUMNS`."""
    rows = read_rows(test)
    right = rows.right == 1
    return [
        correlation(rows.norm, rows.right),
        correlation(rows.norm, rows.confidence),
        *(auroc_of_right(scores, right) for scores in (rows.norm, rows.confidence)),
    ]


def key_of(column: str) -> str:
    """Return what JSON calls one of `NORM_COLUMNS`."""
    return column.replace(" ", "_")


def norms_by_line(runs: Sequence[Run]) -> dict[str, list[list[Estimate]]]:
    """Return the estimates of every run by its line."""
    found: dict[str, list[list[Estimate]]] = {}
    for run in runs:
        told = run.more.get("feature_norm")
        if told:
            estimates = [Estimate(**told[key_of(name)]) for name in NORM_COLUMNS]
            found.setdefault(run.line, []).append(estimates)
    return found


def norms(runs: Sequence[Run]) -> Table:
    """Return how the norm of the features goes with being right."""
    rows: list[list[str]] = []
    for line, found in norms_by_line(runs).items():
        cells = [_with_interval([each[i] for each in found]) for i in range(len(NORM_COLUMNS))]
        rows.append([f"{line} ({len(found)})", *cells])
    note = "" if rows else "None of the runs has the features of its test images."
    return Table(["loss (seeds)", *NORM_COLUMNS], rows, notes=note)


def _with_interval(found: Sequence[Estimate]) -> str:
    value, low, high = interval(found)
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


def interval(found: Sequence[Estimate]) -> tuple[float, float, float]:
    """Return mean and ends, over seeds or of one seed over test images."""
    values = np.array([each.value for each in found])
    low, high = t_interval(values, LEVEL)
    if low is None or high is None:
        half = NORMAL * found[0].error
        low, high = found[0].value - half, found[0].value + half
    return float(values.mean()), low, high
