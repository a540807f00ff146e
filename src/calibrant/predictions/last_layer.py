"""The last layer of a network: what makes logits of the features."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from calibrant.core.arrays import Array, FloatArray, IntArray, as_array, like, namespace, to_numpy
from calibrant.core.checks import check_numbers
from calibrant.core.errors import PredictionsError

# A wrong last layer is wrong on nearly every row, so a few are enough to see it.
ROWS_TRIED = 1000
# Networks often run in bfloat16, whatever their outputs are stored in: half a unit in its last
# place, and as much again for sums of such numbers.
ROUNDING, SMALLEST_ERROR = 2.0**-8, 1e-4
# Smaller probabilities are rounded too coarsely in float16 for their logarithm to say anything.
SMALLEST_TRIED_PROBABILITY = 1e-4


class Head(NamedTuple):
    """A linear last layer: logits = features @ weight.T + bias.

    Attributes:
        weight: (K, D), of any array kind.
        bias: (K,).

    Examples:
        >>> import numpy as np
        >>> import calibrant as cb
        >>> from calibrant.predictions import Head
        >>> head = Head(weight=np.asarray([[1.0, 0.0], [0.0, 3.0]]), bias=np.asarray([0.0, 1.0]))
        >>> features = np.asarray([[2.0, 1.0]])
        >>> features @ head.weight.T + head.bias  # the logits
        array([[2., 4.]])
    """

    weight: Array
    bias: Array


def as_head(head: tuple[Array, Array]) -> Head:
    """Return a `Head` of a pair of arrays, which may be lists."""
    weight, bias = head
    return Head(as_array(weight), as_array(bias))


def check_head(head: Head, classes: int, source: str) -> None:
    """Raise `PredictionsError` unless `head` is made of finite (classes, D) and (classes,)."""
    weight, bias = (tuple(getattr(part, "shape", ())) for part in head)
    if len(weight) != 2 or weight[0] != classes or weight[1] == 0:
        raise PredictionsError(
            f"{source}: 'head_weight' must have shape ({classes}, D), one row for each class, "
            f"not {weight}"
        )
    if bias != (classes,):
        raise PredictionsError(
            f"{source}: 'head_bias' must have shape ({classes},), one entry for each class, "
            f"not {bias}"
        )
    check_numbers(head.weight, "head_weight", source)
    check_numbers(head.bias, "head_bias", source)


def check_head_makes(
    head: Head, features: Array, logits: Array, source: str, *, of_probabilities: bool
) -> None:
    """Raise `PredictionsError` unless `head` makes `logits` of `features`.

    That is, features @ weight.T + bias - logits is the same for all classes of a row, up to what
    rounding to bfloat16 would explain. For logits that are logarithms `of_probabilities`, those of
    probabilities below 1e-4 are not looked at, unless they are the largest. Of many rows, at most
    1000 at even distances are tried.
    """
    if features.shape[1] != head.weight.shape[1]:
        raise PredictionsError(
            f"{source}: 'head_weight' has shape {tuple(head.weight.shape)}, but 'features' "
            f"{tuple(features.shape)}; the last layer takes features of its own width"
        )
    step = -(-int(logits.shape[0]) // ROWS_TRIED)
    rows = np.arange(0, int(logits.shape[0]), step, dtype=np.int64)
    x, z = _rows(features, rows), _rows(logits, rows)
    weight, bias = (to_numpy(part).astype(np.float64) for part in head)
    apart = x @ weight.T + bias - z
    size = np.abs(x) @ np.abs(weight).T + np.abs(bias) + np.abs(z)
    if of_probabilities:
        lowest = np.minimum(np.log(SMALLEST_TRIED_PROBABILITY), z.max(axis=1, keepdims=True))
        apart = np.where(z >= lowest, apart, np.nan)
    # The median of each row's numbers, for which NumPy would load its masked arrays.
    numbers = (~np.isnan(apart)).sum(axis=1, keepdims=True)
    middle = np.concatenate([(numbers - 1) // 2, numbers // 2], axis=1)
    shift = np.take_along_axis(np.sort(apart, axis=1), middle, axis=1).mean(axis=1, keepdims=True)
    wrong = np.abs(apart - shift) > 2 * (ROUNDING * size + SMALLEST_ERROR)
    if wrong.any():
        row, label = (int(i[0]) for i in np.nonzero(wrong))
        raise PredictionsError(
            f"{source}: 'features', 'head_weight' and 'head_bias' don't give the scores: features "
            f"@ head_weight.T + head_bias of row {rows[row]} is off by "
            f"{apart[row, label] - shift[row, 0]:.3g} for class {label}; are these the inputs of "
            "the last layer, and is it this one?"
        )


def _rows(array: Array, rows: IntArray) -> FloatArray:
    chosen = namespace(array).take(array, like(rows, array), axis=0)
    return to_numpy(chosen).astype(np.float64)
