"""Honest outcomes, drawn not row by row but as numbers of right rows.

If the confidences are honest, how many rows of a stretch are right is a sum of independent outcomes
with known chances. Its distribution is computed exactly, a row at a time, and drawn from. So
nothing is approximated, and ten thousand rows take a few hundred random numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray
from calibrant.evaluation.at_breakpoints import CurvesAtBreakpoints, running_columns
from calibrant.evaluation.resampled_curves import sums_at
from calibrant.metrics.top_label import Breakpoints, TopLabel, unit_of

# Rows whose number of right ones is drawn at once: its distribution takes so many squared steps.
PIECE = 64
# So many of them that their numbers stay in the cache.
AT_ONCE = 32
# Places at which a table says how many of a piece's rows are right; a power of 2.
GUIDES = 256


def honest_curves(rows: TopLabel, right: FloatArray) -> CurvesAtBreakpoints:
    """Return the curves of rows without weights of which (P, R) of each stretch are right."""
    unit = unit_of(rows.n)
    sums = running_columns(right * -float(unit))
    confidence = rows.confidence
    said = sums_at(
        rows.breakpoints.positions, lambda part: np.rint(confidence[part] * unit), rows.n
    )
    sums += said[:, None]
    sums *= 1 / unit
    return CurvesAtBreakpoints(rows, rows.breakpoints, sums)


@dataclass(frozen=True)
class Pieces:
    """Pieces of stretches, of at most `PIECE` rows.

    Attributes:
        bounds: (M + 1,) first row of each, and N.
        stretch: (M,) which it belongs to.
    """

    bounds: IntArray
    stretch: IntArray

    @classmethod
    def of(cls, breakpoints: Breakpoints) -> Self:
        """Return the pieces of all stretches."""
        widths = np.diff(breakpoints.positions)
        number = -(-widths // PIECE)
        stretch = np.repeat(np.arange(len(widths)), number)
        within = np.arange(len(stretch)) - np.repeat(np.cumsum(number) - number, number)
        first = breakpoints.positions[stretch] + within * widths[stretch] // number[stretch]
        return cls(np.append(first, breakpoints.positions[-1]), stretch)


def numbers_right(
    rng: np.random.Generator, confidence: FloatArray, pieces: Pieces, part: slice, size: int
) -> tuple[IntArray, IntArray]:
    """Return how many rows are right, if each is with its confidence for the chance.

    Args:
        rng: makes the random numbers.
        confidence: (N,) sorted.
        pieces: of the rows.
        part: which pieces.
        size: R, how many times.

    Returns:
        (S,) ascending stretches, and (S, R) the numbers of right rows of these pieces in them.
    """
    bounds, stretch = pieces.bounds[part.start : part.stop + 1], pieces.stretch[part]
    below = _distribution(confidence, bounds)
    places = stretch - stretch[0]
    right = np.zeros((places[-1] + 1, size), dtype=np.int64)
    for start in range(0, len(stretch), AT_ONCE):
        some = slice(start, start + AT_ONCE)
        drawn, place = _drawn(below[some], rng.random((len(below[some]), size))), places[some]
        first = np.diff(place, prepend=-1) > 0
        right[place[first]] += drawn[first]
        for at, each in zip(place[~first].tolist(), drawn[~first], strict=True):
            right[at] += each
    return np.arange(stretch[0], stretch[-1] + 1, dtype=np.int64), right


def _drawn(below: FloatArray, uniform: FloatArray) -> IntArray:
    """Return (M, R) how many of (M, L) ascending chances aren't above (M, R) uniform numbers.

    A table says it for multiples of 1 / `GUIDES`; from there it is hardly ever more than a step.
    """
    pieces, longest = below.shape
    piece = np.arange(pieces, dtype=np.int64)[:, None]
    cell = np.minimum(np.ceil(below * GUIDES).astype(np.int64), GUIDES) + piece * (GUIDES + 1)
    table = np.bincount(cell.reshape(-1), minlength=pieces * (GUIDES + 1))
    table = table.reshape(pieces, GUIDES + 1).cumsum(axis=1) + piece * longest
    guide = (uniform * GUIDES).astype(np.int64)
    guide += piece * (GUIDES + 1)
    place: IntArray = table.reshape(-1).take(guide)
    chances = below.reshape(-1)
    short = np.flatnonzero(np.less_equal(chances.take(place), uniform))
    found, numbers = place.reshape(-1), uniform.reshape(-1)
    while len(short):
        found[short] += 1
        short = short[chances[found[short]] <= numbers[short]]
    place -= piece * longest
    return place


def _distribution(confidence: FloatArray, bounds: IntArray) -> FloatArray:
    """Return (M, L) chances that at most k of a piece's rows are right, 2 from all of them on."""
    widths = np.diff(bounds)
    longest = int(widths.max())
    chance = np.zeros((longest + 1, len(widths)))
    chance[0] = 1.0
    for k in range(longest):
        # A row more: one that isn't there is never right.
        row = np.minimum(bounds[:-1] + k, len(confidence) - 1)
        p = np.where(k < widths, confidence[row], 0.0)
        moved = chance[: k + 1] * p
        chance[: k + 1] -= moved
        chance[1 : k + 2] += moved
    below = np.cumsum(chance, axis=0)
    below[np.arange(longest + 1)[:, None] >= widths] = 2.0
    return np.ascontiguousarray(below.T)
