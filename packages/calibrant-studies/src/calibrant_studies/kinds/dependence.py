"""What intervals and floors hold of their promises when rows have weights or clusters.

Clusters: confidences lie higher in some clusters than in others, and whether rows are right depends
on a normal effect of the cluster on their log odds, of standard deviation 1; over clusters a row of
confidence c is right with probability c - gap all the same. Each set is measured as if its rows
stood alone, and with its clusters.

Weights: rows of two kinds, one of them calibrated otherwise than the other, where weights of 1 and
9 make up for how they were sampled; and rows that were collected into few lines of a table, with
weights that count them. Each is measured with weights, and with rows repeated as often as they say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from calibrant._version import __version__
from calibrant.core.arrays import FloatArray, IntArray
from calibrant.evaluation.evaluate import evaluate
from calibrant.metrics.registry import metrics_named
from calibrant.predictions.predictions import Predictions
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import Measure, Simulated
from calibrant_studies.kinds.coverage import share

NAMES = ("ece", "smce", "accuracy")
GAP, EFFECT = 0.05, 1.0
# Where the mean over effects of the sigmoid is tabulated.
LOG_ODDS = np.linspace(-12, 12, 2001)
NODES = 64


def means_over_effects() -> FloatArray:
    """Return the mean of sigmoid(x + effect) over effects, at each x of `LOG_ODDS`."""
    from scipy.special import ndtri

    effects = EFFECT * ndtri((np.arange(NODES) + 0.5) / NODES)
    return (1 / (1 + np.exp(-(LOG_ODDS[:, None] + effects)))).mean(axis=1)


def clustered(
    design: tuple[int, int], gap: float, means: FloatArray, rng: np.random.Generator
) -> Predictions:
    """Return rows in clusters: of confidence c, a share c - gap is right, over all clusters."""
    number, size = design
    clusters = np.repeat(np.arange(number), size)
    level = rng.normal(size=number)[clusters] + rng.normal(size=len(clusters))
    confidence = 0.55 + 0.44 / (1 + np.exp(-level))
    alone = np.interp(confidence - gap, means, LOG_ODDS)
    chance = 1 / (1 + np.exp(-(alone + EFFECT * rng.normal(size=number)[clusters])))
    return _predictions(confidence, rng.random(len(clusters)) < chance, clusters=clusters)


def sampled(rng: np.random.Generator) -> Predictions:
    """Return 1 000 rows in which a kind is rarer by nine than where it counts."""
    confidence = rng.uniform(0.6, 0.95, 1000)
    rare = rng.random(1000) < 0.15
    right = rng.random(1000) < confidence - np.where(rare, 0.15, 0.0)
    return _predictions(confidence, right, sample_weight=np.where(rare, 9, 1))


def counted(rng: np.random.Generator) -> Predictions:
    """Return 1 000 rows as the lines of a table: four confidences, right or wrong, how many."""
    confidence = rng.choice([0.6, 0.7, 0.8, 0.9], 1000)
    right = rng.random(1000) < confidence - GAP
    lines, weights = np.unique(np.stack([confidence, right]), axis=1, return_counts=True)
    return _predictions(lines[0], lines[1] > 0, sample_weight=weights)


def _predictions(
    confidence: FloatArray,
    right: NDArray[np.bool_],
    sample_weight: NDArray[np.generic] | None = None,
    clusters: IntArray | None = None,
) -> Predictions:
    said = np.zeros(len(confidence), dtype=np.int64)
    truth = np.where(right, 0, 1)
    return Predictions.from_confidence(
        confidence, said, truth, sample_weight=sample_weight, clusters=clusters
    )


def without_clusters(rows: Predictions) -> Predictions:
    """Return the rows as if each stood alone."""
    return rows.with_clusters(None)


def as_given(rows: Predictions) -> Predictions:
    """Return the rows."""
    return rows


class Dependence(Simulated):
    """Draw data sets of a design, and measure each in both ways."""

    version: ClassVar[str] = "1"
    axes: ClassVar[tuple[str, ...]] = ("design", "gap", "way")
    defaults: ClassVar[Mapping[str, Any]] = {"sets": 300, "resamples": 300, "truth_sets": 800}

    @property
    def measures(self) -> Mapping[str, Measure]:
        """For each metric the share of intervals that hold the truth, and of honest alarms."""
        said = {"held": "held", "alarms": "alarms"}
        return {
            f"{metric.name}-{what}": Measure(
                f"{metric.name}-{what}", f"{metric.title} {title}", 100.0, 1, "neither"
            )
            for metric in metrics_named(NAMES)
            for what, title in said.items()
        }

    def method_version(self, cell: Cell) -> str:
        """Return the version of the package, whose intervals they are."""
        return __version__

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        """Return shares with their intervals."""
        gap = float(cell.at["gap"])
        draw, way = _draw_of(cell.at["design"], gap), WAYS[cell.at["way"]]
        rng = np.random.default_rng(cell.seed)
        found = [
            evaluate(
                way(draw(rng)), metrics=NAMES, resamples=self.setting(cell, "resamples"), seed=i
            )
            for i in range(self.setting(cell, "sets"))
        ]
        truth = [
            evaluate(draw(rng), metrics=NAMES, resamples=2)
            for _ in range(self.setting(cell, "truth_sets"))
        ]
        values: dict[str, Any] = {}
        for name in NAMES:
            expected = float(np.mean([each[name].value for each in truth]))
            held = [each[name].low <= expected <= each[name].high for each in found]
            values[f"{name}-held"] = share(np.array(held))
            if gap == 0 and found[0][name].floor is not None:
                values[f"{name}-alarms"] = share(np.array([not e[name].at_floor for e in found]))
        return {"values": values}


def _draw_of(design: str, gap: float) -> Callable[[np.random.Generator], Predictions]:
    """Return what draws a data set: ``sampled``, ``counted``, or clusters such as ``50x20``."""
    if design in ("sampled", "counted"):
        return sampled if design == "sampled" else counted
    number, size = map(int, design.split("x"))
    return partial(clustered, (number, size), gap, means_over_effects())


WAYS: Mapping[str, Callable[[Predictions], Predictions]] = {
    "as-given": as_given,
    "without-clusters": without_clusters,
    "repeated": Predictions.repeated,
}
KIND = Dependence()
