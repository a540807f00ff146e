"""What a model said and what was true: the input of everything else.

A `Predictions` holds one of three kinds of score, because the caller said which; nothing is ever
guessed from the numbers:

- ``"logits"``: (N, K) real numbers, softmax of a row is its probabilities; -inf masks a class that
  the row can't be;
- ``"probs"``: (N, K) rows that sum to 1;
- ``"toplabel"``: (N,) confidence in one predicted label per row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import (
    Array,
    IntArray,
    as_array,
    like,
    namespace,
    to_numpy,
    working_dtype,
)
from calibrant.core.checks import (
    as_numbers,
    check_features,
    check_labels,
    check_reference,
    check_scores,
    check_unmasked,
    warn_of_probabilities,
)
from calibrant.core.errors import PredictionsError
from calibrant.predictions.last_layer import Head, as_head, check_head, check_head_makes

ScoreKind = Literal["logits", "probs", "toplabel"]

SMALLEST_PROBABILITY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, eq=False, repr=False)
class Predictions:
    """Scores of a classifier on N rows, mostly with true labels. Build with a `from_…` method.

    Attributes:
        kind: what `scores` are: ``"logits"``, ``"probs"`` or ``"toplabel"``.
        scores: (N, K) array of any array-API library, or (N,) confidences for ``"toplabel"``.
        known_labels: (N,) int64 true labels, or None; `labels` returns them or says that there are
            none.
        predicted: (N,) int64 predicted labels, given for ``"toplabel"`` only.
        features: (N, D) penultimate features, or None.
        source: where the rows came from, named in every error message.
        head: the last layer, which makes the scores of the features, or None.
        reference: (M, D) features of other rows, such as training rows, or None.
    """

    kind: ScoreKind
    scores: Array
    known_labels: IntArray | None
    predicted: IntArray | None = None
    features: Array | None = None
    source: str = "predictions"
    head: Head | None = None
    reference: Array | None = None

    @classmethod
    def from_logits(
        cls,
        logits: Array,
        labels: Array | None,
        features: Array | None = None,
        source: str = "logits",
        *,
        head: tuple[Array, Array] | None = None,
        reference: Array | None = None,
    ) -> Predictions:
        """Wrap (N, K) logits.

        Args:
            logits: (N, K) numbers; -inf masks a class that a row can't be.
            labels: (N,) true labels in [0, K); None where nobody knows them.
            features: (N, D) what goes into the last layer.
            source: what error messages call the rows.
            head: the last layer, (K, D) weight and (K,) bias (see `Head`).
            reference: (M, D) features of other rows, such as training rows.

        Raises:
            PredictionsError: NaN, infinity or other numbers of rows or columns; a row with fewer
                than two classes left; labels out of range or of a masked class; a last layer that
                doesn't make these logits of these features.
        """
        logits = as_array(logits)
        check_scores(logits, "logits", source, masks=True)
        warn_of_probabilities(logits, source)
        return cls("logits", logits, None, source=source)._with(labels, features, head, reference)

    @classmethod
    def from_probs(
        cls,
        probs: Array,
        labels: Array | None,
        features: Array | None = None,
        source: str = "probs",
        *,
        head: tuple[Array, Array] | None = None,
        reference: Array | None = None,
    ) -> Predictions:
        """Wrap (N, K) probabilities; for the rest see `from_logits`.

        Raises:
            PredictionsError: a row that doesn't sum to 1, or what `from_logits` refuses.
        """
        probs = as_array(probs)
        check_scores(probs, "probs", source)
        return cls("probs", probs, None, source=source)._with(labels, features, head, reference)

    def _with(
        self,
        labels: Array | None,
        features: Array | None,
        head: tuple[Array, Array] | None,
        reference: Array | None,
    ) -> Predictions:
        """Return these scores with what else is known of them, checked."""
        (rows, classes), source = self.scores.shape, self.source
        truth = None if labels is None else check_labels(labels, rows, classes, source)
        if truth is not None and self.kind == "logits":
            check_unmasked(self.scores, truth, source)
        if features is not None:
            features = as_array(features)
            check_features(features, rows, source)
        if reference is not None:
            reference = as_array(reference)
            check_reference(reference, features, source)
        layer = None if head is None else as_head(head)
        if layer is not None:
            check_head(layer, classes, source)
            if features is not None:
                probabilities = self.kind == "probs"
                check_head_makes(
                    layer, features, self.logits, source, of_probabilities=probabilities
                )
        return replace(self, known_labels=truth, features=features, head=layer, reference=reference)

    @classmethod
    def from_confidence(
        cls, confidence: Array, predicted: Array, labels: Array | None, source: str = "confidence"
    ) -> Predictions:
        """Wrap the top-label form: (N,) confidences in [0, 1], predicted and true labels."""
        values = to_numpy(as_array(confidence))
        if values.ndim != 1 or len(values) == 0:
            raise PredictionsError(
                f"{source}: 'confidence' must have shape (N,) with N >= 1, not {values.shape}"
            )
        values = as_numbers(values, "confidence", source)
        bad = ~((values >= 0) & (values <= 1))
        if bad.any():
            row = int(bad.argmax())
            raise PredictionsError(
                f"{source}: 'confidence' must lie in [0, 1], but row {row} holds {values[row]}"
            )
        truth = None if labels is None else check_labels(labels, len(values), None, source)
        said = check_labels(predicted, len(values), None, source, key="predicted labels")
        return cls("toplabel", values.astype(np.float64), truth, said, source=source)

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.scores.shape[0])

    @property
    def labels(self) -> IntArray:
        """(N,) int64 true labels. Raises `PredictionsError` where they aren't known."""
        if self.known_labels is None:
            raise PredictionsError(
                f"{self.source}: this needs the true label of every row, and there are no labels"
            )
        return self.known_labels

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

    def as_logits(self) -> Predictions:
        """Return the same rows with `logits` for scores.

        Raises:
            PredictionsError: they are in the top-label form.
        """
        return self if self.kind == "logits" else replace(self, kind="logits", scores=self.logits)

    @property
    def probs(self) -> Array:
        """(N, K) probabilities; for ``"logits"`` their softmax.

        Raises `PredictionsError` for the top-label form.
        """
        from calibrant.predictions.rows import softmax

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

        return replace(
            self,
            scores=rows(self.scores),
            known_labels=rows(self.known_labels),
            predicted=rows(self.predicted),
            features=rows(self.features),
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
        if self.n == 1:
            raise PredictionsError(f"{self.source}: a single row can't be split")
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
