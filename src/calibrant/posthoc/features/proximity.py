"""ProCal: maps of the confidence that also see how close a row lies to others.

The density ratio asks how dense right and wrong rows lie around a confidence and a proximity; the
bin mean shift corrects the confidence by what is off in its cell.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from calibrant.core import numpy_namespace as xnp
from calibrant.core.arguments import argument
from calibrant.core.arrays import (
    Array,
    FloatArray,
    IntArray,
    to_numpy,
)
from calibrant.core.errors import NotApplicableError
from calibrant.core.fit_report import FitReport
from calibrant.metrics.binned import bin_index
from calibrant.posthoc.applying import Learnt, apply_map
from calibrant.posthoc.array_ops import TopAndOthers, as_type, parted, sums
from calibrant.posthoc.confidence.base import mixed_with_uniform, rebuilt
from calibrant.posthoc.confidence.binning import equal_mass_edges
from calibrant.posthoc.facts import FEATURES, Facts
from calibrant.posthoc.features.base import (
    ROWS_WORTH_A_PASS,
    NeighbourCalibrator,
    blocks,
    choose_references,
)
from calibrant.posthoc.state import learnt
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.temperature import fit_temperature, warn_of

ProximityConvention = Literal["paper", "released"]


def proximity_of(xp: Any, distances: Array, kind: ProximityConvention) -> Array:
    """Return (n,) proximities in (0, 1] from (n, k) distances to the nearest neighbours.

    Args:
        xp: array namespace.
        distances: Euclidean, of features of length 1.
        kind: "paper" is exp(-mean distance). "released" is what the paper's code computes,
            mean exp(-distance^2): its library of nearest neighbours returns squared distances.
    """
    if kind == "paper":
        return xp.exp(-xp.mean(distances, axis=1))
    return xp.mean(xp.exp(-distances * distances), axis=1)


@dataclass(eq=False)
class ProximityMap(NeighbourCalibrator):
    """Family: c' = map(c, D), with c the confidence and D the proximity of a row.

    Keeps the predicted class: the map says how sure the prediction is, the other classes share the
    rest in proportion (see `calibrant.posthoc.confidence.base.rebuilt`).

    Attributes:
        beta_: inverse temperature before the map.
    """

    keeps_prediction: ClassVar[bool] = True

    convention: ProximityConvention = argument("paper", choices=("paper", "released"))
    scaling: Literal["temperature", "none"] = argument(
        "temperature", choices=("temperature", "none")
    )

    beta_: float = learnt(above=0)

    @abstractmethod
    def mapped(self, xp: Any, confidence: Array, proximity: Array, learnt: Learnt) -> Array:
        """Return (n,) recalibrated confidences, all in float64; see `transform`."""

    def map_confidence(self, confidence: FloatArray, proximity: FloatArray) -> FloatArray:
        """Return the (N,) recalibrated ones of (N,) confidences with these proximities."""
        learnt, out = self.map_arrays(), np.empty(len(confidence))
        for part in blocks(len(out), self.widest() * ROWS_WORTH_A_PASS):
            out[part] = self.mapped(xnp, confidence[part], proximity[part], learnt)
        return out

    @abstractmethod
    def _fit_map(self, confidence: FloatArray, proximity: FloatArray, correct: FloatArray) -> None:
        """Learn the map from (N,) confidences, proximities and 0/1 correctness."""

    def _fit(self, predictions: Predictions) -> FitReport:
        self._features_of(predictions)
        references = choose_references(predictions, self.reference_rows)
        self._remember(references)
        rows = self._summary_of(predictions)
        self.beta_, notes = 1.0, references.notes
        if self.scaling == "temperature":
            fit = fit_temperature(rows)
            self.beta_ = fit.beta
            notes += warn_of(fit.warning)
        confidence = rows.confidence(self.beta_)
        (distances,) = self._distances(predictions.features, references.own)
        proximity = proximity_of(xnp, distances, self.convention)
        correct = rows.correct.astype(np.float64)
        self._fit_map(confidence, proximity, correct)
        loss = float(np.mean((self.map_confidence(confidence, proximity) - correct) ** 2))
        return FitReport(rows.n, "closed form", loss, notes=notes)

    def transform(
        self, xp: Any, logits: Array, features: Array | None, learnt: Learnt, *, masks: bool = True
    ) -> Array:
        """Return rows rebuilt around c'."""
        row = parted(xp, logits, as_type(xp, learnt["beta_"], logits))
        sure = self._sure(xp, row, features, learnt)
        return rebuilt(xp, logits, row, sure, masks)

    def _sure(self, xp: Any, row: TopAndOthers, features: Array | None, learnt: Learnt) -> Array:
        near = self.distances_of(xp, features, learnt, slice(None))
        return self.mapped(xp, row.confidence, proximity_of(xp, near, self.convention), learnt)

    def _confidences(self, logits: Array, features: Array | None) -> tuple[IntArray, FloatArray]:
        def of(xp: Any, rows: Array, beside: Array, learnt: Learnt, masks: bool) -> Array:
            label = xp.astype(xp.argmax(rows, axis=1), xp.float64)
            row = parted(xp, rows, as_type(xp, learnt["beta_"], rows))
            sure = self._sure(xp, row, beside, learnt)
            return xp.stack([label, sure], axis=1)

        found = to_numpy(apply_map(of, logits, features, self.map_arrays(), self.widest()))
        return found[:, 0].astype(np.int64), found[:, 1]


# The row that stands for knowing nothing counts like one that lies so many bandwidths away.
FARTHEST_BANDWIDTHS = 3.0


@dataclass(eq=False)
class ProximityDensityRatio(ProximityMap):
    """c' = n_1 d_1 / (n_1 d_1 + n_0 d_0), densities of right and wrong rows: ProCal, continuous.

    Here d_1 and d_0 are densities of the n_1 right and the n_0 wrong calibration rows over
    confidence c and proximity D, estimated with Gaussian product kernels. Bandwidths are those of
    the normal reference rule, 1.06 * sd * n^(-1/6), for each axis and for right and wrong rows
    apart. Keeps the predicted class.

    All is computed as logarithms. One imagined row takes part as well: right with probability c,
    and with the weight of a kernel three bandwidths away. Where there are calibration rows it
    changes next to nothing; far from all of them c' returns to c. The paper's code floors its
    densities there, which gives 0.

    Args:
        neighbours: k, for the proximity.
        reference_rows: how many reference rows to keep at most.
        convention: of the proximity: "paper", exp(-mean distance), or "released", mean
            exp(-distance^2).
        scaling: "temperature" maps the confidence after temperature scaling, "none" the network's.

    Attributes:
        right_, wrong_: (n, 2) confidence and proximity of the calibration rows.
        bandwidths_: (3, 2) of right rows, of wrong rows and of all.

    References:
        Xiong, Deng, Koh, Wu, Li, Xu, Hooi: Proximity-Informed Calibration for Deep Neural Networks.
        NeurIPS 2023.

    Examples:
        >>> import calibrant as cb
        >>> val, test = cb.load_sample("validation").take(slice(1_000)), cb.load_sample("test")
        >>> procal = cb.posthoc.ProximityDensityRatio().fit(val.logits, val.labels, val.features)
        >>> confidence = procal.predict_confidence(test.logits[:2_000], test.features[:2_000])[1]
        >>> [f"{said.mean():.2f}" for said in (test.probs.max(1), confidence)]  # 84 % are right
        ['0.90', '0.85']
    """

    method: ClassVar[str] = "procal-dr"
    facts: ClassVar[Facts | None] = Facts(
        "proximity density ratio",
        FEATURES,
        "the nearest neighbours of N rows, N^2 x D",
        "few wrong rows: the densities of right and wrong rows can't be told apart",
    )

    right_: FloatArray = learnt("r", 2)
    wrong_: FloatArray = learnt("w", 2)
    bandwidths_: FloatArray = learnt(3, 2, above=0)

    @property
    def n_parameters(self) -> int:
        """The temperature and four bandwidths; the calibration rows themselves aside."""
        return 4 + (self.scaling == "temperature")

    def _fit_map(self, confidence: FloatArray, proximity: FloatArray, correct: FloatArray) -> None:
        points = np.stack([confidence, proximity], axis=1)
        self.right_, self.wrong_ = points[correct > 0], points[correct == 0]
        if not (len(self.right_) and len(self.wrong_)):
            raise NotApplicableError(
                "the density ratio needs right and wrong calibration rows, and all "
                f"{len(points)} are {'right' if len(self.right_) else 'wrong'}"
            )
        of_all = bandwidth(points)
        each = [bandwidth(self.right_), bandwidth(self.wrong_)]
        # Rows that all coincide on an axis, or a single one, leave their bandwidth to all rows.
        floors = [of_all * (len(points) / len(p)) ** (1 / 6) for p in (self.right_, self.wrong_)]
        usable = [np.where(h > 1e-9 * f, h, f) for h, f in zip(each, floors, strict=True)]
        widths = np.stack([*usable, of_all])
        # Where no two rows differ, the axis says nothing.
        self.bandwidths_ = np.where(of_all > 1e-9, widths, 1.0)

    def map_arrays(self) -> dict[str, NDArray[Any]]:
        """Return what was learnt, and the number of classes."""
        return super().map_arrays() | {"n_classes": np.asarray(float(self.n_classes_))}

    def widest(self) -> int:
        """Return what the kernels of all calibration rows take, where a chunk is worth a pass."""
        kernels = max(len(self.right_), len(self.wrong_))
        return max(super().widest(), kernels // ROWS_WORTH_A_PASS)

    def mapped(self, xp: Any, confidence: Array, proximity: Array, learnt: Learnt) -> Array:
        """Return the share of the right rows' density."""
        points = xp.stack([confidence, proximity], axis=1)
        of_right, of_wrong, of_all = (learnt["bandwidths_"][i] for i in range(3))
        right = log_kernel_sum(xp, points, learnt["right_"], of_right)
        wrong = log_kernel_sum(xp, points, learnt["wrong_"], of_wrong)
        unknown = -0.5 * FARTHEST_BANDWIDTHS**2 - xp.log(2 * math.pi * xp.prod(of_all))
        top = xp.maximum(xp.maximum(right, wrong), unknown)
        right, wrong, weight = xp.exp(right - top), xp.exp(wrong - top), xp.exp(unknown - top)
        # Even what is known for certain only rests on so many rows.
        rows = int(learnt["right_"].shape[0]) + int(learnt["wrong_"].shape[0])
        prior = mixed_with_uniform(confidence, rows, learnt["n_classes"])
        return (right + weight * prior) / (right + wrong + weight)


def bandwidth(points: FloatArray) -> FloatArray:
    """Return the (d,) bandwidths of (n, d) points by the normal reference rule."""
    n, dimensions = points.shape
    return 1.06 * points.std(axis=0) * n ** (-1 / (4 + dimensions))


def log_kernel_sum(xp: Any, queries: Array, points: Array, widths: Array) -> Array:
    """Return (m,) log of the sum of Gaussian product kernels of (n, d) points at (m, d) queries."""
    unit = widths * math.sqrt(2)
    scaled, places = queries / unit, points / unit
    away = (scaled[:, :1] - places[None, :, 0]) ** 2
    for axis in range(1, int(points.shape[1])):
        away = away + (scaled[:, axis, None] - places[None, :, axis]) ** 2
    least = xp.min(away, axis=1, keepdims=True)
    total = xp.log(sums(xp, xp.exp(least - away)))
    scale = xp.log(xp.prod(widths)) + 0.5 * int(points.shape[1]) * math.log(2 * math.pi)
    return total - least[:, 0] - scale


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
        >>> from calibrant.posthoc import BinMeanShift
        >>> shift = BinMeanShift(scaling="none", reference_rows=1_000).fit_predictions(val)
        >>> shift.shifts_.shape
        (5, 10)
        >>> print(f"{shift.shifts_.min():.2f}")  # half of what the worst cell says too much
        -0.14
    """

    method: ClassVar[str] = "procal-bms"
    facts: ClassVar[Facts | None] = Facts(
        "bin mean shift",
        FEATURES,
        "the nearest neighbours of N rows, N^2 x D",
        "cells with few rows, whose shifts are noise",
    )

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
        level = bin_index(proximity, self.proximity_edges_)
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

    def mapped(self, xp: Any, confidence: Array, proximity: Array, learnt: Learnt) -> Array:
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
