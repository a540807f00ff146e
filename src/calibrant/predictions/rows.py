"""Row summaries: what fits and metrics need of each row of logits, gathered in one pass.

Rows are independent, so summaries of shards can be built apart and joined with
`RowSummary.concatenate`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import (
    Array,
    BoolArray,
    FloatArray,
    IntArray,
    as_array,
    for_row_chunks,
    largest_entries,
    like,
    namespace,
    pick,
    put,
    row_chunks,
    row_sums,
    to_numpy,
    unmasked_mean,
    working_dtype,
)
from calibrant.core.checks import check_labels, refuse_infinite
from calibrant.core.errors import InputError
from calibrant.core.weights import check_weights
from calibrant.predictions.curves import (
    OCTAVES_ABOVE,
    ConfidenceCurve,
    DenseCurve,
    TabulatedCurve,
    like_column,
)

# Up to this many classes the rows themselves are as quick to evaluate as a table of their curves,
# in float64, and a table would be larger than they are.
DENSE_CLASSES = 128


# The arrays of a summary that hold a number a row, besides weights.
OF_ROWS = ("top", "margin", "label_gap", "mean_gap", "unmasked", "predicted", "labels")


@dataclass(frozen=True, eq=False)
class RowSummary:
    """N rows of logits with their labels, reduced to what temperature-like maps depend on.

    All arrays are (N,) NumPy, whatever kind the logits were.

    Attributes:
        curve: the confidence curves (see `calibrant.predictions.curves`).
        top: largest logit.
        margin: largest minus second largest logit, >= 0; 0 where the maximum is tied.
        label_gap: largest minus true label's logit, >= 0.
        mean_gap: largest minus mean logit, >= 0; the mean is that of the classes left unmasked.
        unmasked: number of classes that aren't masked with minus infinity.
        predicted: index of the largest logit (the first one if tied).
        labels: true labels.
        n_classes: K.
        weights: (N,) how much each row counts; None where all count alike.

    Examples:
        >>> import calibrant as cb
        >>> rows = cb.predictions.summarize([[3.0, 1.0, 0.0]], labels=[1])
        >>> rows.margin, rows.label_gap  # second largest and true class are the same here
        (array([2.]), array([2.]))
        >>> rows.confidence(beta=0.0).round(2)  # softmax at infinite temperature
        array([0.33])
    """

    curve: ConfidenceCurve
    top: FloatArray
    margin: FloatArray
    label_gap: FloatArray
    mean_gap: FloatArray
    unmasked: FloatArray
    predicted: IntArray
    labels: IntArray
    n_classes: int
    weights: FloatArray | None = None

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.labels)

    @property
    def correct(self) -> BoolArray:
        """(N,) whether the predicted label is the true one."""
        return self.predicted == self.labels

    def confidence(self, beta: FloatArray | float) -> FloatArray:
        """Return (N,) probabilities of the predicted labels at inverse temperature `beta`."""
        return np.exp(-self.curve.evaluate(beta).value)

    def losses(self, beta: FloatArray | float) -> FloatArray:
        """Return the (N,) log losses at inverse temperature `beta`."""
        return self.curve.evaluate(beta).value + beta * self.label_gap

    def tabulated(self, reference: float, above: int = OCTAVES_ABOVE) -> RowSummary:
        """Return the summary with its dense curves tabulated around `reference`.

        See `TabulatedCurve.build` for `above`.
        """
        if not isinstance(self.curve, DenseCurve):
            return self
        table = TabulatedCurve.build(self.curve.logits, self.top, reference, above)
        return replace(self, curve=table)

    def take(self, index: NDArray[Any] | slice) -> RowSummary:
        """Return the summary of the rows in `index`; a slice copies nothing of NumPy arrays."""
        own = {name: getattr(self, name)[index] for name in OF_ROWS}
        weights = None if self.weights is None else self.weights[index]
        return RowSummary(self.curve.take(index), n_classes=self.n_classes, weights=weights, **own)

    @classmethod
    def concatenate(cls, parts: Sequence[RowSummary]) -> RowSummary:
        """Join the summaries of shards, in order.

        Raises:
            InputError: other numbers of classes or knots, other kinds of curves, or weights of
                some shards only.
        """
        head = parts[0]
        if any(part.n_classes != head.n_classes for part in parts):
            classes = ", ".join(str(part.n_classes) for part in parts)
            raise InputError(f"summaries can't be joined: their numbers of classes are {classes}")
        if any(type(part.curve) is not type(head.curve) for part in parts):
            raise InputError("dense summaries can't be joined with tabulated ones")
        weights = [part.weights for part in parts if part.weights is not None]
        if 0 < len(weights) < len(parts):
            raise InputError("summaries with weights can't be joined with ones that have none")
        own = {name: np.concatenate([getattr(p, name) for p in parts]) for name in OF_ROWS}
        curve = type(head.curve).concatenate([part.curve for part in parts])
        every = np.concatenate(weights) if weights else None
        return cls(curve, n_classes=head.n_classes, weights=every, **own)


def summarize(
    logits: Array,
    labels: Array,
    *,
    curve: Literal["auto", "dense", "table"] = "auto",
    reference: float = 1.0,
    weights: Array | None = None,
) -> RowSummary:
    """Summarise (N, K) `logits` of any array kind with (N,) `labels`, in bounded memory.

    Args:
        logits: (N, K) real numbers, assumed checked (see `calibrant.predictions.predictions`).
        labels: (N,) true labels in [0, K).
        curve: ``"dense"`` keeps the rows and is exact; ``"table"`` forgets them and is right to
            2e-5 in confidence over reference * [1/32, 16]; ``"auto"`` takes the cheaper one.
        reference: the beta around which to tabulate, say the inverse of a first temperature.
        weights: (N,) how much each row counts, at least 0; None where all count alike.

    Raises:
        PredictionsError: labels or weights of the wrong length or range.

    Examples:
        >>> import calibrant as cb
        >>> rows = cb.predictions.summarize([[2.0, 0.0], [0.0, 1.0]], labels=[0, 0])
        >>> rows.predicted, rows.margin
        (array([0, 1]), array([2., 1.]))
        >>> rows.confidence(beta=1.0).round(2)
        array([0.88, 0.73])
    """
    logits = as_array(logits)
    rows, classes = logits.shape
    truth = check_labels(labels, rows, classes, "logits")
    counts = None if weights is None else check_weights(weights, rows, "logits")
    xp, dtype = namespace(logits), working_dtype(logits)
    top, margin, label_gap, mean_gap, unmasked = (np.empty(rows) for _ in range(5))
    predicted = np.empty(rows, dtype=np.int64)

    def work(part: slice) -> None:
        chunk = xp.astype(logits[part], dtype, copy=False)
        first, second, index = top_two(chunk)
        top[part], predicted[part] = to_numpy(first), to_numpy(index)
        margin[part] = to_numpy(first - second)
        label_gap[part] = to_numpy(first - pick(chunk, like(truth[part], logits)))
        mean, masked = unmasked_mean(chunk)
        mean_gap[part] = to_numpy(first - mean[:, 0])
        unmasked[part] = classes if masked is None else classes - to_numpy(masked).sum(axis=1)

    for_row_chunks(logits, work)
    if curve == "dense" or (curve == "auto" and classes <= DENSE_CLASSES):
        made: ConfidenceCurve = DenseCurve(logits, top)
    else:
        made = TabulatedCurve.build(logits, top, reference)
    mean_gap = np.maximum(mean_gap, 0.0)  # rounding of the mean
    return RowSummary(
        made, top, margin, label_gap, mean_gap, unmasked, predicted, truth, int(classes), counts
    )


def top_two(chunk: Array) -> tuple[Array, Array, Array]:
    """Return the largest and second largest entry of each row and the index of the largest."""
    xp = namespace(chunk)
    index, first = largest_entries(chunk)
    others = put(xp.asarray(chunk, copy=True), index, -xp.inf)
    return first, largest_entries(others)[1], index


def margins_of(logits: Array) -> FloatArray:
    """Return the (N,) gaps between the two largest of (N, K) logits; 0 where they tie."""
    xp, dtype = namespace(logits), working_dtype(logits)
    margins = np.empty(int(logits.shape[0]))
    for part in row_chunks(logits):
        first, second, _ = top_two(xp.astype(logits[part], dtype))
        margins[part] = to_numpy(first - second)
    return margins


def softmax(logits: Array, beta: FloatArray | float = 1.0) -> Array:
    """Return softmax(beta_i * z_i) for every row, as an array of the same kind.

    Args:
        logits: (N, K).
        beta: inverse temperature, one for all rows or (N,).

    Returns:
        (N, K) probabilities: float64 for float64 or integer logits, float32 for narrower ones.

    Raises:
        PredictionsError: a row holds NaN or infinity (minus infinity, a masked class, is fine).

    Examples:
        >>> import numpy as np
        >>> import calibrant as cb
        >>> cb.predictions.softmax(np.log([[1.0, 3.0]]))
        array([[0.25, 0.75]])
        >>> cb.predictions.softmax(np.log([[1.0, 3.0]]), beta=0.0)
        array([[0.5, 0.5]])
    """
    betas = np.broadcast_to(np.asarray(beta, dtype=np.float64), (as_array(logits).shape[0],))

    shared = float(betas[0]) if len(betas) > 0 and bool((betas == betas[0]).all()) else None

    def temper(chunk: Array, part: slice) -> Array:
        with np.errstate(invalid="ignore"):  # infinity minus infinity, refused below
            scaled = chunk - largest_entries(chunk)[1][:, None]
        scaled *= like_column(betas[part], chunk, chunk.dtype) if shared is None else shared
        return softmax_chunk(scaled, part)

    return map_rows(logits, temper)


def map_rows(logits: Array, function: Callable[[Array, slice], Array]) -> Array:
    """Return the (N, K) array that `function(chunk, rows)` gives for every chunk of rows.

    The chunk is a view or a copy in the working dtype; only the output is as large as the input.
    """
    logits = as_array(logits)
    xp, dtype = namespace(logits), working_dtype(logits)
    out = xp.empty_like(logits, dtype=dtype)

    def work(part: slice) -> None:
        out[part] = function(xp.astype(logits[part], dtype, copy=False), part)

    for_row_chunks(logits, work)
    return out


def softmax_chunk(scores: Array, part: slice) -> Array:
    """Return the softmax of `scores` whose row maxima are 0.

    Raises:
        PredictionsError: a row, counted from `part.start`, is not finite.
    """
    xp = namespace(scores)
    weights = xp.exp(scores)
    total = row_sums(weights)[:, None]
    refuse_infinite(xp.isfinite(total)[:, 0], part.start)
    weights /= total
    return weights
