"""ProCal: maps of the confidence that also see how close a row lies to others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import array_api_compat.numpy as xnp
import numpy as np

from calibrant.core.arguments import argument
from calibrant.core.arrays import (
    Array,
    FloatArray,
    IntArray,
    to_numpy,
)
from calibrant.posthoc.applying import apply_map
from calibrant.posthoc.base import FitReport
from calibrant.posthoc.confidence.base import rebuilt
from calibrant.posthoc.features.neighbours import (
    NeighbourCalibrator,
    blocks,
    choose_references,
)
from calibrant.posthoc.learnt import learnt
from calibrant.posthoc.pieces import TopAndOthers, as_type, exp_of, replaced, sums, top
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
    def mapped(
        self, xp: Any, confidence: Array, proximity: Array, learnt: Mapping[str, Array]
    ) -> Array:
        """Return (n,) recalibrated confidences, all in float64; see `transform`."""

    def map_confidence(self, confidence: FloatArray, proximity: FloatArray) -> FloatArray:
        """Return the (N,) recalibrated ones of (N,) confidences with these proximities."""
        learnt, out = self.map_arrays(), np.empty(len(confidence))
        for part in blocks(len(out), self.widest()):
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
        self,
        xp: Any,
        logits: Array,
        features: Array | None,
        learnt: Mapping[str, Array],
        *,
        masks: bool = True,
    ) -> Array:
        """Return rows rebuilt around c'."""
        row = _tempered(xp, logits, learnt)
        sure = self._sure(xp, row, features, learnt)
        return rebuilt(xp, logits, row, sure, masks)

    def _sure(
        self, xp: Any, row: TopAndOthers, features: Array | None, learnt: Mapping[str, Array]
    ) -> Array:
        near = self.distances_of(xp, features, learnt, slice(None))
        return self.mapped(xp, row.confidence, proximity_of(xp, near, self.convention), learnt)

    def predict_confidence(
        self, logits: Array, features: Array | None = None
    ) -> tuple[IntArray, FloatArray]:
        """Return the (N,) predicted labels and the (N,) recalibrated confidences as they are.

        Unlike those of `predict_proba`, they may lie below 1 / K.
        """
        checked = self._checked(logits)
        known = self._checked_features(features, int(checked.shape[0]))

        def of(
            xp: Any, rows: Array, beside: Array, learnt: Mapping[str, Array], masks: bool
        ) -> Array:
            label = xp.astype(xp.argmax(rows, axis=1), xp.float64)
            sure = self._sure(xp, _tempered(xp, rows, learnt), beside, learnt)
            return xp.stack([label, sure], axis=1)

        found = to_numpy(apply_map(of, checked, known, self.map_arrays(), self.widest()))
        return found[:, 0].astype(np.int64), found[:, 1]


def _tempered(xp: Any, logits: Array, learnt: Mapping[str, Array]) -> TopAndOthers:
    """Return the softmax at the temperature in parts.

    Rounding may make its largest two tie, so which is the largest comes from the logits.
    """
    index, most = top(xp, logits)
    gaps = (logits - most) * as_type(xp, learnt["beta_"], logits)
    weights = exp_of(xp, replaced(xp, gaps, index, -xp.inf))
    return TopAndOthers(index, weights, xp.astype(sums(xp, weights), xp.float64))
