"""Hit rates of bins that hold few rows, drawn towards those of the other bins."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arguments import argument
from calibrant.core.arrays import FloatArray
from calibrant.posthoc.confidence.base import mixed_with_uniform
from calibrant.posthoc.confidence.one_vs_rest import MapOfEitherForm

# Rows that a bin is taken to hold besides its own, as in Laplace's rule of succession. As a prior,
# it expects the bins' rates to vary by m (1 - m) / (1 + 2): a third of what is possible.
PRIOR_STRENGTH = 2.0
# Against the rest, a class nearly fills its bin or is hardly there: two thirds of what is possible.
SHARE_OF_ONE_CLASS = 1 / 4


@dataclass(eq=False)
class ShrunkMap(MapOfEitherForm):
    """Family: a map of either form whose bins are drawn towards each other (`shrunk`)."""

    _: KW_ONLY
    prior_strength: float = argument(PRIOR_STRENGTH, at_least=0)

    def _map(self) -> Self:
        part = super()._map()
        if self.form == "one-vs-rest":
            part.prior_strength = SHARE_OF_ONE_CLASS * self.prior_strength
        return part


def shrunk(value: FloatArray, rows: NDArray[Any], strength: float, classes: int) -> FloatArray:
    """Return the hit rates of bins, each drawn towards their common centre m.

    value_b becomes (n_b value_b + s m) / (n_b + s), as if s more rows lay in each bin, a share m of
    them right. The mean over all rows stays the rate of all hits if

        m = sum_b w_b value_b / sum_b w_b,  w_b = n_b / (n_b + s),

    which is that rate itself where bins are of one size. (With m = 1 / K each bin would be biased,
    and all in one direction.) Then all are mixed with 1 / K at weight 1 / (N + 1), lest bins
    without a single miss in all N rows say 1. Empty bins keep their value.

    Args:
        value: (B,) share of hits in each bin.
        rows: (B,) rows n_b of each.
        strength: s, in rows; 0 leaves the values as they are, 0 and 1 included.
        classes: number of classes K.
    """
    if strength == 0:
        return value
    weight = rows / (rows + strength)
    centre = weight @ value / weight.sum()
    drawn = mixed_with_uniform(weight * value + (1 - weight) * centre, float(rows.sum()), classes)
    return np.where(rows > 0, drawn, value)


def shrunk_steps(
    level: FloatArray, rows: NDArray[Any], strength: float, classes: int
) -> FloatArray:
    """Return the levels of a rising step function after `shrunk`, still rising.

    Steps of very different size may be tilted; those are pooled by their rows.
    """
    from scipy.optimize import isotonic_regression

    drawn = shrunk(level, rows, strength, classes)
    return np.asarray(isotonic_regression(drawn, weights=rows).x, dtype=np.float64)
