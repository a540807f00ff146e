"""Which group each row belongs to, of rows in memory and of those in many files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import Array, FloatArray, IntArray, as_array, to_numpy
from calibrant.core.errors import InputError, PredictionsError
from calibrant.core.progress import Watcher
from calibrant.evaluation.cell_sample import By, CellSample, plan_of
from calibrant.evaluation.sample import RowSample, Sample
from calibrant.evaluation.sample_sources import quantile_cuts, summed
from calibrant.metrics.binned import equal_mass_cuts
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import score_rows
from calibrant.scale.engines import Engine
from calibrant.scale.shards import Shards, by_number

GroupKind = Literal["predicted", "label", "margin", "confidence"]


class Part(NamedTuple):
    """A group that may be measured.

    Attributes:
        name: of the group.
        rows: how many there are.
        make: returns its sample, or why it has none, as a clause.
        members: which rows in memory they are; None of files.
    """

    name: str
    rows: int
    make: Callable[[], Sample | str]
    members: IntArray | None = None


def groups_in_memory(predictions: Predictions, groups: str | Array, quantiles: int) -> list[Part]:
    """Return the groups of rows in memory."""
    names, member = grouping(predictions, groups, quantiles)
    sizes = np.bincount(member, minlength=len(names))
    # Results keep them: in few bytes.
    order = np.argsort(member, kind="stable").astype(np.min_scalar_type(predictions.n))

    def make(own: IntArray) -> Sample | str:
        rows = predictions.take(own)
        if rows.clusters is not None and len(np.unique(rows.clusters)) < 2:
            return "all its rows belong to one cluster"
        if rows.weights is not None and not rows.weights.any():
            return "all its rows have a weight of 0"
        return RowSample.of(rows)

    each = zip(names, np.split(order, np.cumsum(sizes)[:-1]), strict=True)
    return [Part(name, len(own), partial(make, own), own) for name, own in each]


# Parameters: those of `evaluate_by` that decide what is read, and who reads it.
def groups_of_files(
    shards: Shards,
    groups: str,
    quantiles: int,
    metrics: Sequence[str] | str,
    seed: int,
    engine: Engine,
    skip_broken: bool,
    watch: Watcher | None,
) -> tuple[CellSample, list[Part]]:
    """Return what was read of many files, and the groups of their rows."""
    kinds: dict[str, By] = {kind: kind for kind in get_args(GroupKind)}
    kind: By = kinds.get(groups, "column")
    cuts, names = (), list[str]()
    if kind in ("margin", "confidence"):
        cuts, names = quantile_cuts(shards, kind, quantiles, engine, watch)
    column = groups if kind == "column" else None
    plan = plan_of(metrics, by=kind, column=column, cuts=cuts, seed=seed)
    sample = summed(shards, plan, engine, skip_broken=skip_broken, watch=watch)
    parts = {names[int(i)] if names else i: part for i, part in sample.groups.items()}

    def make(part: CellSample) -> Sample:
        # What was left out is said once, of all groups.
        return replace(part, source=shards.source, shards=sample.shards)

    names = sorted(parts, key=by_number)
    return sample, [Part(name, parts[name].n, partial(make, parts[name])) for name in names]


def grouping(
    predictions: Predictions, groups: str | Array, quantiles: int
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
    if groups in ("confidence", "margin"):
        values = values_cut(predictions, groups)
        names, starts = quantile_groups(values, quantiles)
        return names, np.searchsorted(starts, values, side="right")
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


def values_cut(predictions: Predictions, kind: str) -> FloatArray:
    """Return the (N,) confidences or margins that quantiles are made of."""
    return score_rows(predictions).confidence if kind == "confidence" else predictions.margins


def quantile_groups(values: FloatArray, quantiles: int) -> tuple[list[str], FloatArray]:
    """Return names of groups of equal size, and where each but the first begins.

    Runs of equal values stay whole.
    """
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
    return names, starts
