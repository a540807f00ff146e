"""ProCal's bin mean shift: correct the confidence by what is off in its cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import array_api_compat.numpy as xnp
import numpy as np

from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, FloatArray, IntArray
from calibrant.posthoc.confidence.base import mixed_with_uniform
from calibrant.posthoc.confidence.histogram import equal_mass_edges
from calibrant.posthoc.features.proximity import ProximityMap
from calibrant.posthoc.learnt import learnt


@dataclass(eq=False)
class BinMeanShift(ProximityMap):
    """ProCal for discrete confidences: c' = c + strength * (accuracy - confidence of its cell).

    The calibration rows are cut into equally filled bins of proximity, and the rows of each bin
    into equally filled bins of confidence; a cell is a bin of the latter kind, its confidence the
    mean. Keeps the predicted class. c' stays between what 0 and 1 become when they are mixed with
    1 / K at weight 1 / (N + 1).

    This is the paper's formula. The class of this name in the paper's code fits a separate
    histogram or isotonic map in each bin of proximity.

    Args:
        neighbours: k, for the proximity.
        reference_rows: how many reference rows to keep at most.
        convention: of the proximity: "paper", exp(-mean distance), or "released", mean
            exp(-distance^2).
        scaling: "temperature" maps the confidence after temperature scaling, "none" the network's.
        proximity_bins, confidence_bins: how many; fewer where values are tied or rows are few.
        strength: the share of the shift that is made; the paper's is 1 / 2.

    Attributes:
        proximity_edges_: (P + 1,) edges (lo, hi]. confidence_edges_: (P, C + 1) of each bin.
        shifts_: (P, C) strength * (accuracy - mean confidence). limits_: (2,) bounds of c'.

    References:
        Xiong, Deng, Koh, Wu, Li, Xu, Hooi: Proximity-Informed Calibration for Deep Neural Networks.
        NeurIPS 2023.

    Examples:
        >>> import calibrant as cb
        >>> val = cb.load_sample("validation")
        >>> shift = cb.BinMeanShift(scaling="none", reference_rows=1_000).fit_predictions(val)
        >>> shift.shifts_.shape
        (5, 10)
        >>> print(f"{shift.shifts_.min():.2f}")  # half of what the worst cell says too much
        -0.14
    """

    method: ClassVar[str] = "procal-bms"

    proximity_bins: int = argument(5, at_least=1)
    confidence_bins: int = argument(10, at_least=1)
    strength: float = argument(0.5, at_least=0, at_most=1)

    proximity_edges_: FloatArray = learnt("p+1")
    confidence_edges_: FloatArray = learnt("p", "c+1")
    shifts_: FloatArray = learnt("p", "c")
    limits_: FloatArray = learnt(2, at_least=0, at_most=1)

    @property
    def n_parameters(self) -> int:
        """A shift for each cell, and the temperature."""
        return self.shifts_.size + (self.scaling == "temperature")

    def _fit_map(self, confidence: FloatArray, proximity: FloatArray, correct: FloatArray) -> None:
        self.proximity_edges_ = equal_mass_edges(np.sort(proximity), self.proximity_bins)
        n_bins = len(self.proximity_edges_) - 1
        level = bin_of(proximity, self.proximity_edges_)
        edges = [
            equal_mass_edges(np.sort(confidence[level == b]), self.confidence_bins)
            for b in range(n_bins)
        ]
        # Bins of no width at 1 fill up the rows; no confidence falls into them.
        width = max(len(row) for row in edges)
        self.confidence_edges_ = np.ones((n_bins, width))
        for row, inner in zip(self.confidence_edges_, edges, strict=True):
            row[: len(inner)] = inner
        cell = _cell_of(xnp, confidence, proximity, self._edges())
        cells = n_bins * (width - 1)
        count = np.maximum(np.bincount(cell, minlength=cells), 1)
        gap = np.bincount(cell, correct - confidence, cells) / count
        self.shifts_ = (self.strength * gap).reshape(n_bins, width - 1)
        self.limits_ = mixed_with_uniform(np.array([0.0, 1.0]), len(confidence), self.n_classes_)

    def _edges(self) -> dict[str, FloatArray]:
        return {
            "proximity_edges_": self.proximity_edges_,
            "confidence_edges_": self.confidence_edges_,
        }

    def mapped(
        self, xp: Any, confidence: Array, proximity: Array, learnt: Mapping[str, Array]
    ) -> Array:
        """Return confidences moved by the gap of their cell."""
        cell = _cell_of(xp, confidence, proximity, learnt)
        shifted = confidence + xp.take(xp.reshape(learnt["shifts_"], (-1,)), cell, axis=0)
        limits = learnt["limits_"]
        return xp.minimum(xp.maximum(shifted, limits[0]), limits[1])


def _cell_of(xp: Any, confidence: Array, proximity: Array, edges: Mapping[str, Array]) -> Array:
    """Return the (n,) cells, as indices of `shifts_` in one dimension.

    Bins are (lo, hi]; the outer ones take what lies beyond.
    """
    level = xp.searchsorted(edges["proximity_edges_"][1:-1], proximity)
    inner = edges["confidence_edges_"][:, 1:-1]
    own = xp.take(inner, level, axis=0)
    within = xp.sum(xp.astype(own < confidence[:, None], level.dtype), axis=1)
    return level * (int(inner.shape[1]) + 1) + within


def bin_of(values: FloatArray, edges: FloatArray) -> IntArray:
    """Return the index of each value's bin (lo, hi]; the outer bins take what lies beyond."""
    return np.searchsorted(edges[1:-1], values, side="left").astype(np.int64)
