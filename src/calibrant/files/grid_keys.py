"""Files with several predictions a row: many labels, tokens, pixels."""

from __future__ import annotations

from typing import Protocol

from calibrant.core.arrays import Array, namespace
from calibrant.core.errors import PredictionsError
from calibrant.predictions.predictions import Predictions


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


def of_grid(
    scores: Array,
    labels: Array | None,
    weight: Array | None,
    source: str,
    wanted: GridWanted,
    *,
    log: bool,
) -> Predictions:
    """Build predictions of which several stand in a row.

    Args:
        scores: (N, L) of many labels, (N, T, K) of tokens.
        labels: (N, L) or (N, T).
        weight: (N,) of many labels.
        source: begins error messages.
        wanted: what they are.
        log: whether scores are logits.
    """
    if wanted.kind == "many-labels":
        return Predictions.from_many_labels(
            scores,
            labels,
            kind="logit" if log else "prob",
            source=source,
            sample_weight=weight,
        )
    return Predictions.from_tokens(
        scores,
        labels,
        kind="logits" if log else "probs",
        ignore_index=wanted.ignore_index,
        source=source,
        keep_all=not wanted.labelled,
    )


def grid_keys(predictions: Predictions) -> dict[str, Array | None]:
    """Return what a file of these predictions holds: the inverse of `of_grid`."""
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
        weights = None if p.weights is None else p.weights.reshape(shape)[:, 0]
    else:
        key, scores, weights = p.kind, p.scores, None
        shape = (*grid.shape, int(p.scores.shape[1]))
    labels = p.known_labels
    return {
        key: namespace(scores).reshape(scores, shape),
        "labels": grid.labels if labels is None else labels.reshape(grid.shape),
        "weight": weights,
    }
