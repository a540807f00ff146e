"""What a model said and what was true: the input of everything else.

A `Predictions` holds one of four kinds of score, because the caller said which; nothing is ever
guessed from the numbers:

- ``"logits"``: (N, K) real numbers, softmax of a row is its probabilities; -inf masks a class that
  the row can't be;
- ``"probs"``: (N, K) rows that sum to 1;
- ``"toplabel"``: (N,) confidence in one predicted label per row;
- ``"score"``: (N,) real number that is higher where the predicted label is likelier right. It is no
  probability, and nothing takes it for one before a calibrator was fitted to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import (
    Array,
    BoolArray,
    FloatArray,
    IntArray,
    like,
    margins_of,
    namespace,
    places_in_runs,
)
from calibrant.core.checks import check_scores
from calibrant.core.errors import PredictionsError
from calibrant.core.result import facts_html
from calibrant.core.text import first_few
from calibrant.core.weights import check_weights, codes_of, normalised
from calibrant.predictions.constructors import (
    OF_ROWS,
    SMALLEST_PROBABILITY,
    RowTable,
    ScoreKind,
    log_of,
)
from calibrant.predictions.joining import joined
from calibrant.predictions.rows import RowSummary, softmax, summarize
from calibrant.predictions.temperature import TemperatureFit, fit_temperature

__all__ = ["NO_PROBABILITY", "SMALLEST_PROBABILITY", "Predictions", "ScoreKind"]

NO_PROBABILITY = (
    "needs a probability, and a score isn't one: fit a calibrator to it first (calibrant fit FILE "
    "--are score --out FITTED, then calibrant apply), and take what that gives"
)


@dataclass(frozen=True, eq=False, repr=False)
class Predictions(RowTable):
    """Scores of a classifier on N rows, mostly with true labels. Build with a `from_…` method.

    Attributes:
        kind: what `scores` are: ``"logits"``, ``"probs"``, ``"toplabel"`` or ``"score"``.
        scores: (N, K) array of any array-API library, or (N,) confidences or scores of others.
        known_labels: (N,) int64 true labels, or None; `labels` returns them, or raises an error if
            there are none.
        predicted: (N,) int64 predicted labels, if rows hold only the score of the predicted label.
        features: (N, D) penultimate features, or None.
        source: where the rows came from, named in every error message.
        head: the last layer, which turns the features into the scores, or None.
        reference: (M, D) features of other rows, such as training rows, or None.
        weights: (N,) float64, at least 0: how much each row counts; None if all count alike.
        clusters: (N,) int64 number of the cluster that each row belongs to, such as a patient or a
            document, whose rows aren't independent; None if all rows are independent.
        binary: whether rows are about one event, class 1 of two, as `from_binary` makes them.
        class_names: of the classes, or None.
        grid: the places of tokens, pixels or labels in the given rows, see `predictions.grids`;
            None for other kinds.
        label_index: (N,) for many labels, the label that each row is about.
        label_names: names of these labels.
        origin: for the log of a tool, what the log says besides its rows, or None.
        looked_at: whether the rows were checked for signs that they were misread.
        row_numbers: (N,) number of each row in the set from which these were taken; None for a
            whole set in its order.

    Examples:
        >>> import calibrant as cb
        >>> rows = cb.Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], labels=[0, 1])
        >>> rows
        <Predictions 'logits': 2 rows x 2 classes, logits>
        >>> rows.probs.round(2)
        array([[0.88, 0.12],
               [0.27, 0.73]])
    """

    @property
    def labels(self) -> IntArray:
        """(N,) int64 true labels. Raises `PredictionsError` where they aren't known."""
        if self.known_labels is None:
            raise PredictionsError(
                f"{self.source}: this needs the true label of every row, and there are no labels"
            )
        return self.known_labels

    @property
    def n_classes(self) -> int | None:
        """Number of classes K, the width of the scores; None if rows have one number each."""
        return None if self.top_only else int(self.scores.shape[1])

    @property
    def form(self) -> str:
        """What a row's scores are: `kind`, or ``"prob"`` or ``"logit"`` of binary ones."""
        return {"probs": "prob", "logits": "logit"}[self.kind] if self.binary else self.kind

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        width = "" if self.n_classes is None or self.binary else f" x {self.n_classes} classes"
        of = f" of {self.class_names[1]!r}" if self.binary and self.class_names else ""
        rows = self.n
        if self.label_names is not None:
            rows, width = rows // len(self.label_names), f" x {len(self.label_names)} labels"
        elif self.grid is not None:
            of = f", in {self.grid.shape[0]} clusters"
        return f"<Predictions {self.source!r}: {rows} rows{width}, {self.form}{of}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        names, clusters = self.class_names or (), self.clusters
        facts = {
            "rows": str(self.n),
            "scores": self.form,
            "classes": "" if self.n_classes is None else str(self.n_classes),
            "class names": first_few(names, 10),
            "labels": "unknown" if self.known_labels is None else "known",
            "features": "" if self.features is None else str(self.features.shape[1]),
            "weights": "" if self.weights is None else "one a row",
            "clusters": "" if clusters is None else str(len(np.unique(clusters))),
        }
        return facts_html(f"Predictions {self.source}", facts)

    # --- scores

    @property
    def logits(self) -> Array:
        """(N, K) logits; for ``"probs"`` their logarithm, which softmax maps back to them.

        Probabilities below the smallest normal float32 are raised to it first, so that a zero
        stays finite. Raises `PredictionsError` for the top-label form.
        """
        if self.kind == "logits":
            return self.scores
        return log_of(self._full_rows())

    def as_logits(self, floor: float = SMALLEST_PROBABILITY) -> Predictions:
        """Return the same rows with `logits` for scores.

        Args:
            floor: what probabilities below it, zeros among them, are raised to.

        Raises:
            PredictionsError: they are in the top-label form.
        """
        if self.kind == "logits":
            return self
        return replace(self, kind="logits", scores=log_of(self._full_rows(), floor))

    def only_logits(self, instead: Array | None = None) -> Predictions:
        """Return logits, or (N, K) others `instead`, and labels alone; nothing is checked again."""
        if instead is None and self.kind == "logits" and self.features is None and not self.head:
            return self
        scores = self.logits if instead is None else instead
        return Predictions(
            "logits",
            scores,
            self.known_labels,
            source=self.source,
            weights=self.weights,
            clusters=self.clusters,
            binary=self.binary,
            origin=self.origin,
        )

    @property
    def probs(self) -> Array:
        """(N, K) probabilities; for ``"logits"`` their softmax.

        Raises `PredictionsError` for the top-label form.
        """
        return self._full_rows() if self.kind == "probs" else softmax(self._full_rows())

    @cached_property
    def margins(self) -> FloatArray:
        """(N,) gaps of the two largest logits; `PredictionsError` for the top-label form."""
        self._full_rows("the margin")
        return margins_of(self.logits)

    @cached_property
    def summary(self) -> RowSummary:
        """Exact row summary of the logits (see `summarize`), made when it is first asked for.

        Raises `PredictionsError` for the top-label form and where labels aren't known.
        """
        return summarize(self.logits, self.labels, curve="dense", weights=self.weights)

    @cached_property
    def temperature(self) -> TemperatureFit:
        """The temperature of greatest likelihood on these rows, fitted when first asked for.

        It issues no warning; its `warning` has the text.
        """
        return fit_temperature(self.summary)

    def _full_rows(self, what: str = "this") -> Array:
        if self.kind == "score":
            raise PredictionsError(f"{self.source}: {what} {NO_PROBABILITY}")
        if self.kind == "toplabel":
            raise PredictionsError(
                f"{self.source}: {what} needs a score for every class, and the file holds only the "
                "confidence of the predicted label; give logits or probs of shape (N, K)"
            )
        return self.scores

    # --- one event

    def as_binary(self) -> Self:
        """Return predictions of two classes as binary ones, class 1 being the positive one.

        Raises:
            PredictionsError: there aren't two classes.
        """
        width = None if self.top_only else int(self.scores.shape[1])
        if width != 2:
            raise PredictionsError(
                f"{self.source}: binary predictions have one score a row or two classes, and these "
                f"have {'the confidence of a predicted label' if width is None else width}"
            )
        return replace(self, binary=True)

    @property
    def positive_probs(self) -> Array:
        """(N,) probabilities of the positive class; `PredictionsError` unless it is binary."""
        if not self.binary:
            raise PredictionsError(
                f"{self.source}: only binary predictions have a positive class; make them with "
                "Predictions.from_binary, or read them with kind='binary'"
            )
        return (self.scores if self.kind == "probs" else softmax(self.scores))[:, 1]

    @property
    def one_score(self) -> Array:
        """(N,) scores of binary predictions, as `form` says: the inverse of `from_binary`."""
        if not self.binary or self.kind == "probs":
            return self.positive_probs
        return self.scores[:, 1] - self.scores[:, 0]

    @property
    def positive_name(self) -> str:
        """Name of the positive class of binary predictions; "1" if it has none."""
        return self.class_names[1] if self.class_names else "1"

    def as_correctness(self, logits: Array | None = None) -> Self:
        """Return rows of one number as binary predictions of "the predicted label is right".

        Forms with scores of classes come back as they are.

        Args:
            logits: (N, 2) of that event, in place of a score that is no probability.

        Raises:
            PredictionsError: there is such a score, and no logits.
        """
        if not self.top_only:
            return self
        if self.kind == "score" and logits is None:
            self._full_rows()
        right = None if self.known_labels is None else self.predicted == self.known_labels
        probs = np.stack([1 - self.scores, self.scores], axis=1)
        return replace(
            self,
            kind="probs" if logits is None else "logits",
            scores=probs if logits is None else logits,
            known_labels=None if right is None else np.asarray(right).astype(np.int64),
            predicted=None,
            binary=True,
            class_names=None,
        )

    def recalibrated(self, probs: Array) -> Self:
        """Return the same rows, in the same form, with other probabilities.

        The last layer gives other scores, so it is left out.

        Args:
            probs: (N, K) as a calibrator gave them for the logits of `as_correctness()` of these;
                (N, 2) for rows of one number. Scores become confidences.

        Raises:
            PredictionsError: they are no probabilities.
        """
        check_scores(probs, "probs", self.source)
        if self.top_only:
            scores = np.clip(like(probs[:, 1], self.scores), 0.0, 1.0)
            return replace(self, kind="toplabel", scores=scores)
        return replace(self, kind="probs", scores=probs, head=None, reference=None)

    def of_label(self, label: int | str) -> Self:
        """Return the binary predictions of one of many labels, by its number or name.

        Raises:
            PredictionsError: the rows don't have many labels, or no label has this name.
        """
        names = self.label_names
        if names is None or self.label_index is None:
            raise PredictionsError(
                f"{self.source}: has no rows with many labels; make them with "
                "Predictions.from_many_labels, or read them with kind='many-labels'"
            )
        number = names.index(label) if label in names else label
        if not isinstance(number, int) or not 0 <= number < len(names):
            raise PredictionsError(
                f"{self.source}: there is no label {label!r}; there are {', '.join(names)}"
            )
        part = self.by_rows_given.take(np.flatnonzero(self.label_index == number))
        named = (f"not {names[number]}", names[number])
        part = replace(part, label_index=None, label_names=None, class_names=named)
        if part.clusters is None or len(np.unique(part.clusters)) < part.n:
            return part
        return replace(part, clusters=None)  # each of its rows is one

    @property
    def by_rows_given(self) -> Self:
        """The same predictions of many labels, numbered by the rows as they were given.

        Each row that was given has a prediction of every label.
        """
        places = np.arange(self.n) if self.row_numbers is None else self.row_numbers
        own = places // len(self.label_names or (None,))
        return replace(self, row_numbers=own.astype(np.min_scalar_type(self.n)))

    # --- some rows, and rows of several sets

    def take(self, index: NDArray[Any]) -> Self:
        """Return the rows of an index, in its order; any NumPy index will do."""
        chosen: IntArray = np.arange(self.n)[index]

        def rows(array: Array | None) -> Array | None:
            if array is None:
                return None
            return namespace(array).take(array, like(chosen, array), axis=0)

        return replace(
            self,
            **{name: rows(getattr(self, name)) for name in OF_ROWS},
            grid=None,
            row_numbers=self._numbers_of(chosen),
        )

    def _numbers_of(self, chosen: IntArray) -> NDArray[Any]:
        if self.row_numbers is not None:
            return self.row_numbers[chosen]
        return chosen.astype(np.min_scalar_type(self.n))

    def split(
        self, size: int | float, seed: int = 0, *, stratify: bool = False
    ) -> tuple[Self, Self]:
        """Split at random into `size` rows and the others; no row is in both.

        Clusters stay whole: the first part has as many whole clusters as fit in `size` rows, but at
        least one.

        Args:
            size: rows of the first part: a count, or a fraction strictly between 0 and 1.
            seed: the same seed gives the same split.
            stratify: give the first part its share of every true label, rounded up or down to whole
                rows. It can't be combined with clusters.

        Raises:
            PredictionsError: either part would be empty, or labels are to be kept in proportion
                while clusters are kept whole.
        """
        labels = self.labels if stratify else None
        first = rows_of_first_part(self.n, size, seed, labels, self.source, self.clusters)
        return self.take(np.flatnonzero(first)), self.take(np.flatnonzero(~first))

    @property
    def counted(self) -> Self:
        """The rows whose weight isn't 0; their weights sum to a number of rows.

        Whole weights stay; others are scaled to a mean of 1; where all are 1 there are none left.

        Raises:
            PredictionsError: no row has a weight.
        """
        if self.weights is None:
            return self
        rows = self
        if not self.weights.all():
            rows = self.take(np.flatnonzero(check_weights(self.weights, self.n, self.source)))
        assert rows.weights is not None
        weights = normalised(rows.weights)
        return rows if weights is rows.weights else replace(rows, weights=weights)

    def repeated(self) -> Self:
        """Return each row as often as its weight says, without weights.

        Use it if weights count rows that were observed separately: intervals are then those of the
        single rows. Clusters stay.

        Raises:
            PredictionsError: a weight that isn't a whole number.

        Examples:
            >>> import calibrant as cb
            >>> probs = [[0.75, 0.25], [0.5, 0.5]]
            >>> cb.Predictions.from_probs(probs, [0, 1], sample_weight=[2, 1]).repeated().labels
            array([0, 0, 1])
        """
        if self.weights is None:
            return self
        whole = self.weights == np.round(self.weights)
        if not whole.all():
            row = int(whole.argmin())
            raise PredictionsError(
                f"{self.source}: rows can be repeated by whole weights only, but row {row} has "
                f"{self.weights[row]}"
            )
        index = np.repeat(np.arange(self.n), self.weights.astype(np.int64))
        return replace(self.take(index), weights=None)

    def repeated_together(self) -> Self:
        """Return `repeated` rows; copies of a row form a cluster, or stay in the row's cluster."""
        own = np.arange(self.n) if self.clusters is None else self.clusters
        return replace(self, clusters=own).repeated()

    @classmethod
    def concatenate(
        cls, parts: Sequence[Self], *, clusters: Array | None = None, source: str | None = None
    ) -> Self:
        """Return the rows of several predictions of one form as one set, in order.

        Weights stay as they are. Clusters of different parts count as different ones. Features stay
        where all parts have them; the last layer and reference features where all have the same.
        Names of the top-label form, which are numbered by the alphabet, are numbered again.

        Args:
            parts: at least one.
            clusters: (N,) names of the clusters of all rows, if a cluster lies in several parts;
                parts with several predictions a row keep their own.
            source: what messages call the set; by default the first part and how many others.

        Raises:
            PredictionsError: parts of different kinds, classes, names of classes or array
                libraries; or labels, weights or clusters that some have and others lack. The
                message names the first part that differs.

        Examples:
            >>> import calibrant as cb
            >>> a = cb.Predictions.from_probs([[0.75, 0.25]], [0], source="a")
            >>> b = cb.Predictions.from_probs([[0.5, 0.5], [0.0, 1.0]], [1, 1], source="b")
            >>> cb.Predictions.concatenate([a, b]).labels
            array([0, 1, 1])
        """
        whole = joined(parts, source)
        return whole if clusters is None else whole.with_clusters(clusters)


def rows_of_first_part(
    n: int,
    size: int | float,
    seed: int,
    labels: IntArray | None,
    source: str,
    clusters: IntArray | None = None,
) -> BoolArray:
    """Return (n,) whether a row belongs to the first part; see `Predictions.split`.

    Args:
        n: number of rows.
        size: rows of the first part: a count, or a fraction strictly between 0 and 1.
        seed: the same seed gives the same split.
        labels: (n,) labels of which the first part gets its share; None for any rows.
        source: what error messages call the rows.
        clusters: (n,) clusters to be kept whole; None where every row stands alone.

    Raises:
        PredictionsError: either part would be empty, the seed is negative, or both labels and
            clusters are given.
    """
    if seed < 0:
        raise PredictionsError(f"{source}: seed must not be negative, but is {seed}")
    if not np.isfinite(size) or (size >= 1 and size != int(size)):
        raise PredictionsError(
            f"{source}: can't split off {size} rows; ask for a whole number, or a fraction below 1"
        )
    count = round(size * n) if 0 < size < 1 else int(size)
    if n == 1:
        raise PredictionsError(f"{source}: a single row can't be split")
    if not 0 < count < n:
        raise PredictionsError(
            f"{source}: can't split {n} rows into {count} and {n - count}; "
            f"ask for 1 to {n - 1} rows"
        )
    if clusters is not None:
        if labels is not None:
            raise PredictionsError(
                f"{source}: a split can't keep both the shares of the labels and whole "
                "clusters; leave out one of them"
            )
        return _whole_clusters(clusters, count, seed, source)
    order = np.random.default_rng(seed).permutation(n)
    if labels is not None:
        order = order[_proportional_first(labels[order], count)]
    first = np.zeros(n, dtype=bool)
    first[order[:count]] = True
    return first


def _whole_clusters(clusters: IntArray, count: int, seed: int, source: str) -> BoolArray:
    """Return whether each row belongs to the first clusters, in random order, of `count` rows."""
    codes, number = codes_of(clusters)
    if number < 2:
        raise PredictionsError(
            f"{source}: all rows belong to one cluster, which can't be split; clusters stay whole"
        )
    order = np.random.default_rng(seed).permutation(number)
    rows = np.cumsum(np.bincount(codes)[order])
    taken = int(np.clip(np.searchsorted(rows, count, side="right"), 1, number - 1))
    return np.isin(codes, order[:taken])


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
    rank[by_label] = places_in_runs(counts)
    return np.argsort(rank >= share[inverse], kind="stable")
