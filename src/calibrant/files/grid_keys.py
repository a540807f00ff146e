"""Files with several predictions a row: many labels, tokens, pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from calibrant.core.arrays import Array, FloatArray, namespace
from calibrant.core.errors import PredictionsError
from calibrant.predictions.grids import unnamed
from calibrant.predictions.predictions import Predictions

Found = dict[str, Array | None]


class GridWanted(Protocol):
    """What a caller wants of such a file; see `calibrant.files.keys.Wanted`."""

    @property
    def kind(self) -> str | None:
        """Many labels or tokens."""
        ...

    @property
    def labelled(self) -> bool:
        """Whether labels are needed."""
        ...

    @property
    def ignore_index(self) -> int | None:
        """Label of tokens that don't count."""
        ...

    @property
    def class_axis(self) -> int:
        """Axis of the classes of tokens."""
        ...


def of_grid(
    scores: Array,
    labels: Array | None,
    weight: Array | None,
    names: Sequence[str] | None,
    source: str,
    wanted: GridWanted,
    *,
    log: bool,
) -> Predictions:
    """Build predictions of which several stand in a row.

    Args:
        scores: (N, L) of many labels, (N, T, K) of tokens.
        labels: (N, L) or (N, T).
        weight: (N,) of rows, or of all that stands in them.
        names: of many labels, or of the classes of tokens.
        source: begins error messages.
        wanted: what they are.
        log: whether scores are logits.
    """
    if wanted.kind == "many-labels":
        if labels is not None and len(labels.shape) == 1 and tuple(scores.shape)[1:] == (1,):
            labels = labels[:, None]  # a table has no other form for one label
        return Predictions.from_many_labels(
            scores,
            labels,
            kind="logit" if log else "prob",
            label_names=names,
            source=source,
            sample_weight=weight,
        )
    return Predictions.from_tokens(
        scores,
        labels,
        kind="logits" if log else "probs",
        ignore_index=wanted.ignore_index,
        class_axis=wanted.class_axis,
        source=source,
        keep_all=not wanted.labelled,
        sample_weight=weight,
        class_names=names,
    )


def grid_keys(predictions: Predictions, label_names: str, class_names: str) -> Found:
    """Return what a file of these predictions holds: the inverse of `of_grid`.

    Args:
        predictions: of which several stand in a row.
        label_names: key of the names of many labels.
        class_names: key of those of the classes of tokens.
    """
    p, grid = predictions, predictions.grid
    assert grid is not None
    if grid.left_out:
        raise PredictionsError(
            f"{p.source}: {grid.left_out} positions were left out for their label and have no "
            "scores to write; read them without labels, or keep them (keep_all=True)"
        )
    if p.label_names is not None:
        key, scores = f"{p.form}s", p.one_score
        shape = grid.shape
        names = None if p.label_names == unnamed(shape[1]) else p.label_names
    else:
        key, scores, names = p.kind, p.scores, p.class_names
        shape = (*grid.shape, int(p.scores.shape[1]))
    labels, names_key = p.known_labels, class_names if p.label_names is None else label_names
    return {
        key: namespace(scores).reshape(scores, shape),
        "labels": grid.labels if labels is None else labels.reshape(grid.shape),
        "weight": _weights(p, grid.shape),
        names_key: None if names is None else np.array(names),
    }


def _weights(predictions: Predictions, shape: tuple[int, ...]) -> FloatArray | None:
    """Return the weights as they stand in a grid: (N,) where all of a row have the same."""
    if predictions.weights is None:
        return None
    weights = predictions.weights.reshape(shape)
    rows = weights.reshape(shape[0], -1)
    return rows[:, 0] if bool((rows == rows[:, :1]).all()) else weights
