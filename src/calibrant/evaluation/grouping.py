"""Which group each row belongs to."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import (
    Array,
    FloatArray,
    IntArray,
    as_array,
    to_numpy,
)
from calibrant.core.errors import InputError, PredictionsError
from calibrant.metrics.bins import equal_mass_cuts
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import score_rows

GroupKind = Literal["predicted", "label", "margin", "confidence"]


def grouping(
    predictions: Predictions, groups: GroupKind | Array, quantiles: int
) -> tuple[list[str], IntArray]:
    """Return the groups' names and the (N,) index of each row's group."""
    if not isinstance(groups, str):
        column = to_numpy(as_array(groups))
        if column.shape != (predictions.n,):
            raise PredictionsError(
                f"{predictions.source}: groups must have shape ({predictions.n},), "
                f"not {column.shape}"
            )
        return _distinct(column)
    if groups == "label":
        return _classes(predictions.labels, predictions)
    if groups == "predicted":
        return _classes(score_rows(predictions).predicted, predictions)
    if groups == "confidence":
        return _quantiles(score_rows(predictions).confidence, quantiles)
    if groups == "margin":
        return _quantiles(predictions.margins, quantiles)
    raise InputError(
        "groups must be 'predicted', 'label', 'margin', 'confidence' or an (N,) column, "
        f"not '{groups}'"
    )


def _distinct(column: NDArray[Any]) -> tuple[list[str], IntArray]:
    values, member = np.unique(column, return_inverse=True)
    return [str(value) for value in values.tolist()], member


def _classes(numbers: IntArray, predictions: Predictions) -> tuple[list[str], IntArray]:
    """Return the classes among these, by name where they have names."""
    found, member = np.unique(numbers, return_inverse=True)
    names = predictions.class_names
    return [str(number) if names is None else names[number] for number in found.tolist()], member


def _quantiles(values: FloatArray, quantiles: int) -> tuple[list[str], IntArray]:
    """Cut rows into groups of equal size, but for runs of equal values, which stay whole."""
    ordered = np.sort(values)
    cuts = equal_mass_cuts(len(values), quantiles)[1:-1]
    starts = np.unique(ordered[np.minimum(cuts, len(values) - 1)])
    starts = starts[starts > ordered[0]]
    firsts = np.concatenate([[0], np.searchsorted(ordered, starts)])
    lasts = np.append(firsts[1:], len(values)) - 1
    names = [
        f"{i + 1}: {low:.4g} to {high:.4g}"
        for i, (low, high) in enumerate(zip(ordered[firsts], ordered[lasts], strict=True))
    ]
    return names, np.searchsorted(starts, values, side="right")
