"""ProCal: maps of the confidence that also see how close a row lies to others."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from calibrant.arrays import (
    Array,
    FloatArray,
    IntArray,
    for_row_chunks,
    namespace,
    to_numpy,
    working_dtype,
)
from calibrant.checks import refuse_infinite
from calibrant.masks import masked_classes
from calibrant.posthoc.arguments import argument
from calibrant.posthoc.base import FitReport
from calibrant.posthoc.confidence.base import rebuild_rows
from calibrant.posthoc.features.neighbours import NeighbourCalibrator, choose_references
from calibrant.posthoc.learnt import learnt
from calibrant.posthoc.temperature import fit_temperature, warn_of
from calibrant.predictions import Predictions
from calibrant.rows import map_rows, softmax_chunk
from calibrant.scoring import top_confidence

ProximityKind = Literal["paper", "released"]


def proximity_of(distances: FloatArray, kind: ProximityKind) -> FloatArray:
    """Return (n,) proximities in (0, 1] from (n, k) distances to the nearest neighbours.

    Args:
        distances: Euclidean, of features of length 1.
        kind: "paper" is exp(-mean distance). "released" is what the paper's code computes,
            mean exp(-distance^2): its library of nearest neighbours returns squared distances.
    """
    if kind == "paper":
        return np.exp(-distances.mean(axis=1))
    return np.exp(-(distances**2)).mean(axis=1)


@dataclass(eq=False)
class ProximityMap(NeighbourCalibrator):
    """Family: c' = map(c, D), with c the confidence and D the proximity of a row.

    Keeps the predicted class: the map says how sure the prediction is, the other classes share the
    rest in proportion (see `calibrant.posthoc.confidence.base.rebuild_rows`).

    Attributes:
        beta_: inverse temperature before the map.
    """

    keeps_prediction: ClassVar[bool] = True

    proximity: ProximityKind = argument("paper", choices=("paper", "released"))
    scaling: Literal["temperature", "none"] = argument(
        "temperature", choices=("temperature", "none")
    )

    beta_: float = learnt(above=0)

    @abstractmethod
    def map_confidence(self, confidence: FloatArray, proximity: FloatArray) -> FloatArray:
        """Return (n,) recalibrated confidences."""

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
        confidence = self._confidence(predictions.scores)[1]
        (distances,) = self._distances(predictions.features, references.own)
        proximity, correct = proximity_of(distances, self.proximity), rows.correct.astype(float)
        self._fit_map(confidence, proximity, correct)
        loss = float(np.mean((self.map_confidence(confidence, proximity) - correct) ** 2))
        return FitReport(rows.n, "closed form", loss, notes=notes)

    def proximities(self, features: Array) -> FloatArray:
        """Return the (N,) proximities of rows with these (N, D) features."""
        (distances,) = self._distances(features)
        return proximity_of(distances, self.proximity)

    def _apply(self, logits: Array, features: Array | None) -> Array:
        proximity = self.proximities(features)

        def rebuild(chunk: Array, part: slice) -> Array:
            label, gaps = self._tempered(chunk)
            probs, confidence = softmax_chunk(gaps, part), top_confidence(gaps)[1]
            sure = self.map_confidence(confidence, proximity[part])
            return rebuild_rows(probs, label, sure, masked_classes(chunk))

        return map_rows(logits, rebuild)

    def predict_confidence(
        self, logits: Array, features: Array | None = None
    ) -> tuple[IntArray, FloatArray]:
        """Return the (N,) predicted labels and the (N,) recalibrated confidences as they are.

        Unlike those of `predict_proba`, they may lie below 1 / K.
        """
        checked = self._checked(logits)
        known = self._checked_features(features, int(checked.shape[0]))
        label, confidence = self._confidence(checked)
        refuse_infinite(np.isfinite(confidence))
        return label, self.map_confidence(confidence, self.proximities(known))

    def _confidence(self, logits: Array) -> tuple[IntArray, FloatArray]:
        """Return the (N,) predicted labels and confidences before the map."""
        label = np.empty(int(logits.shape[0]), dtype=np.int64)
        confidence = np.empty(len(label))
        xp, dtype = namespace(logits), working_dtype(logits)

        def work(part: slice) -> None:
            label[part], gaps = self._tempered(xp.astype(logits[part], dtype, copy=False))
            confidence[part] = top_confidence(gaps)[1]

        with np.errstate(invalid="ignore"):
            for_row_chunks(logits, work)
        return label, confidence

    def _tempered(self, chunk: Array) -> tuple[IntArray, Array]:
        """Return the predicted labels, and logits less the largest over the temperature.

        Rounding may make the largest two of the latter tie, so the labels are not taken from them.
        """
        xp = namespace(chunk)
        label = to_numpy(xp.argmax(chunk, axis=1)).astype(np.int64)
        return label, (chunk - xp.max(chunk, axis=1, keepdims=True)) * self.beta_
