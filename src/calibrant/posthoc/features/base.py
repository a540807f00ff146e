"""What methods that read the features of a row have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from calibrant.core.arrays import Array, FloatArray, to_numpy
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.learnt import learnt
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import RowSummary, summarize


@dataclass(eq=False)
class FeatureCalibrator(Calibrator):
    """Family: maps that see the penultimate features of a row beside its logits.

    Features may be of any array kind. What is computed of them is small, a number or two a row, so
    they are taken to float64 NumPy, in blocks; the logits stay where they are.

    Attributes:
        width_: number of features D.
    """

    needs: ClassVar[tuple[str, ...]] = ("features",)

    width_: int = learnt(at_least=1)

    @property
    def feature_width(self) -> int | None:
        """Number of features D that it was fitted for."""
        return self.width_

    def _features_of(self, predictions: Predictions) -> FloatArray:
        """Return the calibration rows' features in float64 and take note of their width."""
        features = in_float64(predictions.features)
        self.width_ = int(features.shape[1])
        return features

    @staticmethod
    def _summary_of(predictions: Predictions) -> RowSummary:
        """Summarise the calibration rows in float64.

        Curves of many float32 classes are noisy in the last digits, which leads these fits astray:
        their objectives are flat, or have several minima.
        """
        logits = to_numpy(predictions.scores).astype(np.float64)
        return summarize(logits, predictions.labels, curve="dense")


def in_float64(features: Array) -> FloatArray:
    """Return features of any array kind as float64 NumPy."""
    return to_numpy(features).astype(np.float64, copy=False)
