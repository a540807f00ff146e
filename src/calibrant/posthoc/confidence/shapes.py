"""What a map of the confidence looks like once it is learnt: steps, or a broken line.

Maps of several classes are laid side by side, so that one look-up serves all of them: the
probability p of class k is read at p + 2 k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from calibrant.core.arrays import Array, FloatArray
from calibrant.posthoc.pieces import lines, steps

# Room for the probabilities of a class, 0 to 1, and a gap to those of the next.
APART = 2.0
# Beyond all probabilities of a class and before those of the next.
BEFORE, AFTER = -0.5, 1.5


class Steps(NamedTuple):
    """Constant between edges; a piece holds its upper edge.

    Attributes:
        edges: (B - 1,) inner edges in ascending order; values: (B,) of the pieces.
    """

    edges: FloatArray
    values: FloatArray

    @staticmethod
    def read(xp: Any, x: Array, learnt: Mapping[str, Array]) -> Array:
        """Return the (n,) values at (n,) places."""
        return steps(xp, x, learnt["edges"], learnt["values"])

    @classmethod
    def side_by_side(cls, maps: Sequence[Self]) -> Self:
        """Return all maps as one."""
        edges = [APART * k + np.append(one.edges, AFTER) for k, one in enumerate(maps)]
        values = [one.values for one in maps]
        return cls(np.concatenate(edges)[:-1], np.concatenate(values))


class Lines(NamedTuple):
    """Straight between knots and constant beyond them.

    Attributes:
        knots: (P,) in ascending order; values: (P,) at the knots.
    """

    knots: FloatArray
    values: FloatArray

    @staticmethod
    def read(xp: Any, x: Array, learnt: Mapping[str, Array]) -> Array:
        """Return the (n,) values at (n,) places."""
        return lines(xp, x, learnt["knots"], learnt["values"])

    @classmethod
    def side_by_side(cls, maps: Sequence[Self]) -> Self:
        """Return all maps as one."""
        knots = [APART * k + np.r_[BEFORE, one.knots, AFTER] for k, one in enumerate(maps)]
        values = [np.r_[one.values[0], one.values, one.values[-1]] for one in maps]
        return cls(np.concatenate(knots), np.concatenate(values))
