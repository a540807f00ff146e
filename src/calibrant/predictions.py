"""What a model said and what was true: the input of everything else.

A `Predictions` holds one of three kinds of score, because the caller said which; nothing is ever
guessed from the numbers:

- ``"logits"``: (N, K) real numbers, softmax of a row is its probabilities;
- ``"probs"``: (N, K) rows that sum to 1;
- ``"toplabel"``: (N,) confidence in one predicted label per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calibrant.arrays import (
    Array,
    IntArray,
    as_array,
    for_row_chunks,
    like,
    namespace,
    row_chunks,
    row_sums,
    to_numpy,
    working_dtype,
)
from calibrant.errors import PredictionsError

ScoreKind = Literal["logits", "probs", "toplabel"]

# Rounding may leave the sum of a row of K probabilities this far from 1.
ROW_SUM_TOLERANCE = {"float16": 2e-2, "bfloat16": 5e-2, "float32": 1e-4, "float64": 1e-4}
SMALLEST_PROBABILITY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, eq=False, repr=False)
class Predictions:
    """Scores of a classifier on N rows with their true labels. Build with a `from_…` method.

    Attributes:
        kind: what `scores` are: ``"logits"``, ``"probs"`` or ``"toplabel"``.
        scores: (N, K) array of any array-API library, or (N,) confidences for ``"toplabel"``.
        labels: (N,) int64 true labels.
        predicted: (N,) int64 predicted labels, given for ``"toplabel"`` only.
        features: (N, D) penultimate features, or None.
        source: where the rows came from, named in every error message.
    """

    kind: ScoreKind
    scores: Array
    labels: IntArray
    predicted: IntArray | None = None
    features: Array | None = None
    source: str = "predictions"

    @classmethod
    def from_logits(
        cls, logits: Array, labels: Array, features: Array | None = None, source: str = "logits"
    ) -> Predictions:
        """Wrap (N, K) logits. Raises `PredictionsError` on NaN, infinity or bad labels."""
        logits = as_array(logits)
        check_scores(logits, "logits", source)
        return cls._with_rows("logits", logits, labels, features, source)

    @classmethod
    def from_probs(
        cls, probs: Array, labels: Array, features: Array | None = None, source: str = "probs"
    ) -> Predictions:
        """Wrap (N, K) probabilities. Raises `PredictionsError` unless every row sums to 1."""
        probs = as_array(probs)
        check_scores(probs, "probs", source)
        return cls._with_rows("probs", probs, labels, features, source)

    @classmethod
    def _with_rows(
        cls, kind: ScoreKind, scores: Array, labels: Array, features: Array | None, source: str
    ) -> Predictions:
        rows, classes = scores.shape
        checked = check_labels(labels, rows, classes, source)
        if features is not None:
            features = as_array(features)
            check_features(features, rows, source)
        return cls(kind, scores, checked, None, features, source)

    @classmethod
    def from_confidence(
        cls, confidence: Array, predicted: Array, labels: Array, source: str = "confidence"
    ) -> Predictions:
        """Wrap the top-label form: (N,) confidences in [0, 1], predicted and true labels."""
        values = to_numpy(as_array(confidence))
        if values.ndim != 1 or len(values) == 0:
            raise PredictionsError(
                f"{source}: 'confidence' must have shape (N,) with N >= 1, not {values.shape}"
            )
        values = _as_numbers(values, "confidence", source)
        bad = ~((values >= 0) & (values <= 1))
        if bad.any():
            row = int(bad.argmax())
            raise PredictionsError(
                f"{source}: 'confidence' must lie in [0, 1], but row {row} holds {values[row]}"
            )
        truth = check_labels(labels, len(values), None, source)
        said = check_labels(predicted, len(values), None, source, key="predicted labels")
        return cls("toplabel", values.astype(np.float64), truth, said, None, source)

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.labels)

    @property
    def classes(self) -> int | None:
        """Number of classes K, the width of the scores; None for the top-label form."""
        return None if self.kind == "toplabel" else int(self.scores.shape[1])

    @property
    def logits(self) -> Array:
        """(N, K) logits; for ``"probs"`` their logarithm, which softmax maps back to them.

        Probabilities below the smallest normal float32 are raised to it first, so that a zero
        stays finite. Raises `PredictionsError` for the top-label form.
        """
        if self.kind == "logits":
            return self.scores
        xp = namespace(self._full_rows())
        # In float16 the bound itself would be zero.
        probs = xp.astype(self.scores, working_dtype(self.scores), copy=False)
        return xp.log(xp.clip(probs, SMALLEST_PROBABILITY, None))

    @property
    def probs(self) -> Array:
        """(N, K) probabilities; for ``"logits"`` their softmax.

        Raises `PredictionsError` for the top-label form.
        """
        from calibrant.rows import softmax

        return self._full_rows() if self.kind == "probs" else softmax(self._full_rows())

    def _full_rows(self) -> Array:
        if self.kind == "toplabel":
            raise PredictionsError(
                f"{self.source}: this needs a score for every class, and the file holds only the "
                "confidence of the predicted label; give logits or probs of shape (N, K)"
            )
        return self.scores

    def take(self, index: NDArray[Any]) -> Predictions:
        """Return the rows of an index, in its order; whatever NumPy takes as an index will do."""
        chosen: IntArray = np.arange(self.n)[index]

        def rows(array: Array | None) -> Array | None:
            if array is None:
                return None
            return namespace(array).take(array, like(chosen, array), axis=0)

        return Predictions(
            self.kind,
            rows(self.scores),
            self.labels[chosen],
            rows(self.predicted),
            rows(self.features),
            self.source,
        )

    def split(
        self, size: int | float, seed: int = 0, *, stratify: bool = False
    ) -> tuple[Predictions, Predictions]:
        """Split at random into `size` rows and the others; no row is in both.

        Args:
            size: rows of the first part: a count, or a fraction strictly between 0 and 1.
            seed: the same seed gives the same split.
            stratify: give the first part its share of every true label, rounded up or down to
                whole rows.

        Raises:
            PredictionsError: either part would be empty.
        """
        if seed < 0:
            raise PredictionsError(f"{self.source}: seed must not be negative, but is {seed}")
        if not np.isfinite(size) or (size >= 1 and size != int(size)):
            raise PredictionsError(
                f"{self.source}: can't split off {size} rows; ask for a whole number, or a "
                "fraction below 1"
            )
        count = round(size * self.n) if 0 < size < 1 else int(size)
        if not 0 < count < self.n:
            raise PredictionsError(
                f"{self.source}: can't split {self.n} rows into {count} and {self.n - count}; "
                f"ask for 1 to {self.n - 1} rows"
            )
        order = np.random.default_rng(seed).permutation(self.n)
        if stratify:
            order = order[_proportional_first(self.labels[order], count)]
        return self.take(np.sort(order[:count])), self.take(np.sort(order[count:]))

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        width = "" if self.classes is None else f" x {self.classes} classes"
        return f"<Predictions {self.source!r}: {self.n} rows{width}, {self.kind}>"


def _proportional_first(labels: IntArray, count: int) -> IntArray:
    """Order rows so that each label has its share of the first `count`, rounded up or down.

    The largest remainders are rounded up; where they tie, the label that comes first wins, which is
    as random as the order of the rows.
    """
    _, first, inverse, counts = np.unique(
        labels, return_index=True, return_inverse=True, return_counts=True
    )
    share, remainder = np.divmod(counts * count, len(labels))
    share[np.lexsort((first, -remainder))[: count - share.sum()]] += 1
    by_label = np.argsort(inverse, kind="stable")
    rank = np.empty(len(labels), dtype=np.int64)
    rank[by_label] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.argsort(rank >= share[inverse], kind="stable")


def check_scores(scores: Array, kind: Literal["logits", "probs"], source: str) -> None:
    """Raise `PredictionsError` unless `scores` is a usable (N, K) array of its kind."""
    shape = tuple(getattr(scores, "shape", ()))
    if len(shape) != 2 or shape[0] == 0 or shape[1] < 2:
        raise PredictionsError(
            f"{source}: '{kind}' must have shape (N, K) with N >= 1 rows and K >= 2 classes, "
            f"not {shape}"
        )
    xp = namespace(scores)
    if not xp.isdtype(scores.dtype, ("real floating", "integral")):
        raise PredictionsError(f"{source}: '{kind}' must hold real numbers, not {scores.dtype}")
    if xp.isdtype(scores.dtype, "integral"):
        if kind == "probs":
            raise PredictionsError(f"{source}: 'probs' must be fractions, not {scores.dtype}")
        return

    def check(part: slice) -> None:
        if not _surely_usable(scores[part], kind):
            _check_finite(scores[part], kind, source, part.start)
            if kind == "probs":
                _check_simplex(scores[part], source, part.start)

    for_row_chunks(scores, check)


def _surely_usable(chunk: Array, kind: Literal["logits", "probs"]) -> bool:
    """Return whether the sums of the rows alone show that nothing is wrong with them.

    NaN or infinity anywhere makes a sum so; a sum can also overflow, which decides nothing.
    """
    xp = namespace(chunk)
    with np.errstate(over="ignore", invalid="ignore"):
        totals = row_sums(xp.astype(chunk, working_dtype(chunk), copy=False))
    if kind == "logits":
        return bool(xp.all(xp.isfinite(totals)))
    off = float(xp.max(xp.abs(totals - 1)))
    return off <= _tolerance(chunk) / 2 and bool(xp.min(chunk) >= 0)


def _tolerance(chunk: Array) -> float:
    return ROW_SUM_TOLERANCE.get(str(chunk.dtype).removeprefix("torch."), 1e-4)


def _check_finite(chunk: Array, key: str, source: str, offset: int) -> None:
    xp = namespace(chunk)
    finite = xp.isfinite(chunk)
    if bool(xp.all(finite)):
        return
    row, column = (int(i[0]) for i in np.nonzero(~to_numpy(finite)))
    value = float(chunk[row, column])
    raise PredictionsError(
        f"{source}: '{key}' must be finite, but row {offset + row}, column {column} holds {value}"
    )


def _check_simplex(chunk: Array, source: str, offset: int) -> None:
    xp = namespace(chunk)
    if not bool(xp.all(chunk >= 0)):
        row, column = (int(i[0]) for i in np.nonzero(to_numpy(chunk < 0)))
        raise PredictionsError(
            f"{source}: 'probs' must not be negative, but row {offset + row}, column {column} "
            f"holds {float(chunk[row, column])}; name the array 'logits' if these are logits"
        )
    wide = xp.astype(chunk, xp.float64)
    off = xp.abs(xp.sum(wide, axis=1) - 1) > _tolerance(chunk)
    if bool(xp.any(off)):
        row = int(to_numpy(off).argmax())
        raise PredictionsError(
            f"{source}: every row of 'probs' must sum to 1, but row {offset + row} sums to "
            f"{float(xp.sum(wide[row, :])):.6g}; name the array 'logits' if these are logits"
        )


def _as_numbers(values: NDArray[Any], key: str, source: str) -> NDArray[Any]:
    if values.dtype.kind not in "fiu":
        raise PredictionsError(f"{source}: '{key}' must hold numbers, not {values.dtype}")
    return values


def check_labels(
    labels: Array, rows: int, classes: int | None, source: str, key: str = "labels"
) -> IntArray:
    """Return `labels` as (rows,) int64, or raise `PredictionsError` naming the offending row."""
    values = to_numpy(as_array(labels))
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise PredictionsError(
            f"{source}: '{key}' must have shape (N,) with one class index a row, not {values.shape}"
        )
    if len(values) != rows:
        raise PredictionsError(
            f"{source}: '{key}' has {len(values)} entries, but there are {rows} rows of scores"
        )
    values = _as_numbers(values, key, source)
    with np.errstate(invalid="ignore"):
        whole = values.astype(np.int64)
    top = "" if classes is None else f" to {classes - 1}"
    bad = (whole != values) | (whole < 0) | (whole >= (np.inf if classes is None else classes))
    if bad.any():
        row = int(bad.argmax())
        raise PredictionsError(
            f"{source}: '{key}' must be whole numbers from 0{top}, but row {row} holds "
            f"{values[row]}"
        )
    return whole


def check_features(features: Array, rows: int, source: str) -> None:
    """Raise `PredictionsError` unless `features` is a finite (rows, D) array."""
    shape = tuple(getattr(features, "shape", ()))
    if len(shape) != 2 or shape[0] != rows or shape[1] == 0:
        raise PredictionsError(
            f"{source}: 'features' must have shape ({rows}, D), one row for each row of scores, "
            f"not {shape}"
        )
    xp = namespace(features)
    if not xp.isdtype(features.dtype, ("real floating", "integral")):
        raise PredictionsError(f"{source}: 'features' must hold real numbers, not {features.dtype}")
    if xp.isdtype(features.dtype, "real floating"):
        for part in row_chunks(features):
            _check_finite(features[part], "features", source, part.start)
