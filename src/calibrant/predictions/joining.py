"""Several sets of predictions as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import Array, is_numpy, namespace, to_numpy
from calibrant.core.errors import PredictionsError
from calibrant.core.text import counted
from calibrant.predictions.constructors import OF_ROWS, RowTable
from calibrant.predictions.grids import Grid
from calibrant.predictions.names import listed

Part = TypeVar("Part", bound=RowTable)

# What all parts have, or none: the field, and what messages call it.
ALL_OR_NONE = {"known_labels": "labels", "weights": "weights", "clusters": "clusters"}


def joined(parts: Sequence[Part], source: str | None = None) -> Part:
    """Return the rows of all parts, in order; see `Predictions.concatenate`.

    Raises:
        PredictionsError: no parts, or parts that can't be one set.
    """
    if not parts:
        raise PredictionsError("there are no predictions to concatenate")
    first = parts[0]
    if source is None:
        others = counted(len(parts) - 1, "other")
        source = first.source if len(parts) == 1 else f"{first.source} and {others}"
    for part in parts[1:]:
        _check_alike(first, part)
    parts = _renumbered(parts) if first.top_only else parts

    def together(name: str) -> Any:
        arrays = [getattr(part, name) for part in parts]
        if any(array is None for array in arrays):
            return None
        return namespace(arrays[0]).concat(arrays, axis=0)

    def same(name: str, equal: Callable[[Any, Any], bool]) -> Any:
        values = [getattr(part, name) for part in parts]
        return values[0] if all(equal(values[0], value) for value in values[1:]) else None

    names = next((part.class_names for part in parts if part.class_names is not None), None)
    return replace(
        first,
        **{name: together(name) for name in OF_ROWS if name != "clusters"},
        clusters=_clusters(parts),
        grid=_grid([part.grid for part in parts]),
        head=same("head", _same_head),
        reference=same("reference", _same_array),
        class_names=names,
        source=source,
        row_numbers=None,
    )


def _check_alike(first: RowTable, part: RowTable) -> None:
    """Raise `PredictionsError` unless two parts can be one set."""

    def refuse(here: object, there: object) -> PredictionsError:
        return PredictionsError(
            f"{part.source}: {here}, but {first.source} {there}; only predictions of one form can "
            "be concatenated"
        )

    if form_of(part) != form_of(first):
        raise refuse(f"holds {form_of(part)}", f"holds {form_of(first)}")
    if part.scores.shape[1:] != first.scores.shape[1:]:
        raise refuse(f"has {part.scores.shape[1]} classes", f"has {first.scores.shape[1]}")
    if namespace(part.scores) is not namespace(first.scores):
        here, there = (_library(rows.scores) for rows in (part, first))
        raise refuse(f"holds arrays of {here}", f"holds those of {there}")
    if part.features is not None and first.features is not None:
        wide = [int(rows.features.shape[1]) for rows in (part, first) if rows.features is not None]
        if wide[0] != wide[1]:
            raise refuse(f"has {wide[0]} features", f"has {wide[1]}")
    for name, called in ALL_OR_NONE.items():
        has = [getattr(rows, name) is not None for rows in (part, first)]
        if has[0] != has[1]:
            here, there = (f"has {called}" if one else f"has no {called}" for one in has)
            raise refuse(here, there)
    for here, there, called in (
        (part.label_names, first.label_names, "labels"),
        (part.class_names, first.class_names, "classes"),
    ):
        if here == there or (called == "classes" and _may_differ(part, here, there)):
            continue
        said = [f"names its {called} {listed(n)}" if n else "has no names" for n in (here, there)]
        raise refuse(*said)


def _library(array: Array) -> str:
    name = str(namespace(array).__name__)
    return "numpy" if is_numpy(array) else name.removeprefix("array_api_compat.")


def _may_differ(
    part: RowTable, here: tuple[str, ...] | None, there: tuple[str, ...] | None
) -> bool:
    """Return whether names of classes may differ between sets that are put together."""
    if part.binary:  # 1 is the positive class, whether it has a name or not
        return here is None or there is None
    return part.top_only and here is not None and there is not None


def form_of(rows: RowTable) -> str:
    """Return what a set of rows holds, as messages name it."""
    of = {
        "logits": "logits of classes",
        "probs": "probabilities of classes",
        "score": "scores of predicted labels",
    }
    if rows.label_names is not None:
        what = "log odds" if rows.kind == "logits" else "probabilities"
        return f"{what} of many labels"
    if rows.binary:
        what = "log odds" if rows.kind == "logits" else "probabilities"
        return f"{what} of one positive class"
    return of.get(rows.kind, "confidences of predicted labels")


def _renumbered(parts: Sequence[Part]) -> list[Part]:
    """Return parts of the top-label form with the numbers that their names have together."""
    if any(part.class_names is None for part in parts):
        return list(parts)
    names = sorted({name for part in parts for name in part.class_names or ()})
    place = {name: number for number, name in enumerate(names)}

    def anew(part: Part) -> Part:
        number = np.array([place[name] for name in part.class_names or ()], dtype=np.int64)
        truth = None if part.known_labels is None else number[part.known_labels]
        assert part.predicted is not None
        return replace(
            part, predicted=number[part.predicted], known_labels=truth, class_names=tuple(names)
        )

    return [anew(part) for part in parts]


def _clusters(parts: Sequence[RowTable]) -> NDArray[np.int64] | None:
    """Return the clusters of all parts, those of one apart from those of another."""
    found: list[NDArray[np.int64]] = []
    before = 0
    for part in parts:
        if part.clusters is None:
            return None
        found.append(part.clusters + before)
        before += int(part.clusters.max()) + 1
    return np.concatenate(found)


def _grid(grids: Sequence[Grid | None]) -> Grid | None:
    """Return the grid of the rows of all parts, or None where they don't make one."""
    known = [grid for grid in grids if grid is not None]
    first = known[0] if known else None
    if first is None or len(known) < len(grids):
        return None
    if any(grid.shape[1:] != first.shape[1:] for grid in known):
        return None
    labels = [grid.labels for grid in known]
    return Grid(
        (sum(grid.shape[0] for grid in known), *first.shape[1:]),
        _kept(known),
        None if any(one is None for one in labels) else np.concatenate(labels),  # type: ignore[arg-type]
    )


def _kept(grids: Sequence[Grid]) -> NDArray[np.int64] | None:
    """Return which places of all grids, one under the other, are rows; None for all."""
    if all(grid.kept is None for grid in grids):
        return None
    found: list[NDArray[np.int64]] = []
    before = 0
    for grid in grids:
        size = math.prod(grid.shape)
        found.append(before + (np.arange(size) if grid.kept is None else grid.kept))
        before += size
    return np.concatenate(found)


def _same_array(one: Array | None, other: Array | None) -> bool:
    if one is None or other is None:
        return one is other
    return one is other or np.array_equal(to_numpy(one), to_numpy(other))


def _same_head(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return all(_same_array(a, b) for a, b in zip(one, other, strict=True))
