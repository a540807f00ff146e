"""Learnt attributes that know their own shape and limits, so that no damaged file passes for them.

A file of parameters may hold anything. What an attribute can't be is said where it is declared,
and one function checks all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from math import inf
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from calibrant.posthoc.base import Calibrator

_LEARNT = "learnt"
# Attributes without a declaration are judged by their annotation, where that says enough.
_SCALARS = {"float": "fi", "int": "i"}
# Rows are mostly computed in float32, where products with what lies beyond overflow.
LARGEST = 1e35


@dataclass(frozen=True)
class _Learnt:
    shape: tuple[int | str, ...]
    at_least: float | str
    above: float
    at_most: float


def learnt(
    *shape: int | str,
    at_least: float | str = -LARGEST,
    above: float = -inf,
    at_most: float = LARGEST,
) -> Any:
    """Return a dataclass field for what `fit` learns: an array of a known shape, within limits.

    Args:
        shape: of the array; nothing for a single number. A letter is the same size wherever it
            stands in one calibrator: "K" the number of classes, "D" that of features. "b+1" is one
            more than "b".
        at_least: lowest value; the name of another attribute for one value each.
        above: lower limit that no value reaches.
        at_most: highest value. Whatever the limits, none is larger than `LARGEST` in size, and what
            is above 0 not smaller than its inverse, unless this says otherwise.
    """
    if above == 0:
        above = 1 / LARGEST
    known = _Learnt(shape, at_least, above, at_most)
    return field(init=False, repr=False, metadata={_LEARNT: known})


def misfit(calibrator: Calibrator, state: Mapping[str, NDArray[Any]], classes: int) -> str | None:
    """Return what is wrong with arrays that a calibrator is to take over, as a clause, or None."""
    sizes = {"K": classes}
    if "width_" in state and state["width_"].ndim == 0:
        sizes["D"] = int(state["width_"])
    for item in fields(calibrator):
        if item.name in state:
            wrong = _misfit(item, state, sizes)
            if wrong is not None:
                return f"'{item.name}' {wrong}"
    return None


def _misfit(
    item: Field[Any], state: Mapping[str, NDArray[Any]], sizes: dict[str, int]
) -> str | None:
    array = state[item.name]
    known: _Learnt | None = item.metadata.get(_LEARNT)
    kinds = _SCALARS.get(str(item.type))
    if kinds is not None and (array.ndim > 0 or array.dtype.kind not in kinds):
        return f"must be a single number, not {array.dtype} of shape {array.shape}"
    if known is None:
        return None
    if not _has_shape(array.shape, known.shape, sizes):
        expected = ", ".join(str(sizes.get(str(size), size)) for size in known.shape)
        return f"must have shape ({expected}), not {array.shape}"
    least = known.at_least
    if isinstance(least, str):
        if state[least].shape != array.shape or (array < state[least]).any():
            return f"must not lie below '{least}'"
    elif (array < least).any():
        return f"must not lie below {least:g}"
    if (array <= known.above).any():
        return f"must lie above {known.above:g}"
    if (array > known.at_most).any():
        return f"must not lie above {known.at_most:g}"
    return None


def _has_shape(
    found: tuple[int, ...], expected: tuple[int | str, ...], sizes: dict[str, int]
) -> bool:
    """Return whether a shape is the expected one, and remember the sizes of new letters."""
    if len(found) != len(expected):
        return False
    for size, wanted in zip(found, expected, strict=True):
        if isinstance(wanted, str):
            letter, _, more = wanted.partition("+")
            wanted = sizes.setdefault(letter, size - int(more or 0)) + int(more or 0)
        if size != wanted:
            return False
    return True
