"""`Predictions` are built here: checked scores of every form, with what else is known of each row.

Binary predictions, one score a row, are held as two classes and marked (`predictions.binary`);
rows that hold several predictions are taken apart (`predictions.grids`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import (
    Array,
    FloatArray,
    IntArray,
    as_array,
    like,
    namespace,
    to_numpy,
    working_dtype,
)
from calibrant.core.checks import (
    check_confidence,
    check_features,
    check_labels,
    check_numbers,
    check_reference,
    check_scores,
    check_shape,
    check_unmasked,
    warn_of_probabilities,
)
from calibrant.core.errors import PredictionsError
from calibrant.core.weights import check_clusters, check_weights
from calibrant.predictions.binary import (
    SMALLEST_PROBABILITY,
    BinaryKind,
    binary_labels,
    two_columns,
    two_names,
)
from calibrant.predictions.grids import (
    IGNORE_INDEX,
    Grid,
    of_many_labels,
    of_tokens,
    spread_over,
)
from calibrant.predictions.last_layer import Head, as_head, check_head, check_head_makes
from calibrant.predictions.names import (
    as_class_numbers,
    check_names,
    names_of_columns,
    numbered,
    numbered_pair,
)
from calibrant.predictions.origin import Origin
from calibrant.predictions.rounding import FEW, allowed_by_rounding, divided_by_sums

# Rows that say how far probabilities are rounded.
ROWS_OF_ROUNDING = 4096

ScoreKind = Literal["logits", "probs", "toplabel", "score"]
# What a calibrator learns of scores has to be a number of float32 too.
LARGEST_SCORE = 1e35


# The fields that hold an entry a row.
OF_ROWS = (
    *("scores", "known_labels", "predicted", "features", "weights", "clusters", "label_index"),
)


def log_of(probs: Array, floor: float = SMALLEST_PROBABILITY) -> Array:
    """Return logarithms of (N, K) probabilities, those below a floor raised to it."""
    xp = namespace(probs)
    # In float16 the bound itself would be zero.
    probs = xp.astype(probs, working_dtype(probs), copy=False)
    return xp.log(xp.clip(probs, floor, None))


@dataclass(frozen=True, eq=False, repr=False)
class RowTable:
    """N rows of scores, and all else that is known about them; `Predictions` lists the fields."""

    kind: ScoreKind
    scores: Array
    known_labels: IntArray | None
    predicted: IntArray | None = None
    features: Array | None = None
    source: str = "predictions"
    head: Head | None = None
    reference: Array | None = None
    weights: FloatArray | None = None
    clusters: IntArray | None = None
    binary: bool = False
    class_names: tuple[str, ...] | None = None
    grid: Grid | None = None
    label_index: IntArray | None = None
    label_names: tuple[str, ...] | None = None
    origin: Origin | None = None
    looked_at: bool = False
    row_numbers: NDArray[Any] | None = None

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.scores.shape[0])

    @property
    def top_only(self) -> bool:
        """Whether rows have one number, about the predicted label, and none for other classes."""
        return self.kind in ("toplabel", "score")

    # Parameters: each is an array of its own, of which most callers give two.
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
        sample_weight: Array | None = None,
        clusters: Array | None = None,
        class_names: Sequence[str] | None = None,
    ) -> Self:
        """Wrap (N, K) logits.

        Args:
            logits: (N, K) numbers; -inf masks a class that a row can't have. The columns of a table
                (pandas, polars, pyarrow) may be named after the classes.
            labels: (N,) true labels in [0, K), or names of classes; None if they are unknown.
            features: (N, D) inputs of the last layer.
            source: name of the rows in error messages.
            head: the last layer, (K, D) weight and (K,) bias (see `Head`).
            reference: (M, D) features of other rows, such as training rows.
            sample_weight: (N,) how much each row counts, at least 0; None if all count alike.
            clusters: (N,) names of the clusters, whole numbers or text: rows of one (a patient, a
                document, an image) aren't independent of one another.
            class_names: K names of the classes, in the order of the columns.

        Raises:
            PredictionsError: NaN, infinity, or wrong numbers of rows or columns; a row with fewer
                than two classes left; labels out of range or of a masked class; a last layer that
                doesn't turn these features into these logits; weights that are negative or all 0.
        """
        names = names_of_columns(logits, source) if class_names is None else class_names
        logits = as_array(logits)
        check_scores(logits, "logits", source, masks=True)
        warn_of_probabilities(logits, source)
        rows = cls("logits", logits, None, source=source)._weighing(sample_weight, clusters)
        return rows._with(labels, features, head, reference, names)

    # Parameters: as for `from_logits`.
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
        sample_weight: Array | None = None,
        clusters: Array | None = None,
        class_names: Sequence[str] | None = None,
    ) -> Self:
        """Wrap (N, K) probabilities; for the rest see `from_logits`.

        Raises:
            PredictionsError: a row that doesn't sum to 1, or what `from_logits` refuses.
        """
        names = names_of_columns(probs, source) if class_names is None else class_names
        probs = as_array(probs)
        usable = False
        with suppress(PredictionsError):
            check_scores(probs, "probs", source)
            usable = True
        if not usable:
            probs = _unrounded(probs, source)
        rows = cls("probs", probs, None, source=source)._weighing(sample_weight, clusters)
        return rows._with(labels, features, head, reference, names)

    def _with(
        self,
        labels: Array | None,
        features: Array | None,
        head: tuple[Array, Array] | None,
        reference: Array | None,
        class_names: Sequence[str] | None,
    ) -> Self:
        """Return these scores with what else is known of them, checked."""
        (rows, n_classes), source = self.scores.shape, self.source
        names = None if class_names is None else check_names(class_names, n_classes, source)
        truth = None
        if labels is not None:
            labels = as_class_numbers(numbered(labels, names, source), rows, n_classes, source)
            truth = check_labels(labels, rows, n_classes, source)
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
            check_head(layer, n_classes, source)
            if features is not None:
                probabilities = self.kind == "probs"
                logits = log_of(self.scores) if probabilities else self.scores
                check_head_makes(layer, features, logits, source, of_probabilities=probabilities)
        return replace(
            self,
            known_labels=truth,
            features=features,
            head=layer,
            reference=reference,
            class_names=names,
        )

    # Parameters: as for `from_logits`.
    @classmethod
    def from_confidence(
        cls,
        confidence: Array,
        predicted: Array | None = None,
        labels: Array | None = None,
        source: str = "confidence",
        *,
        correct: Array | None = None,
        sample_weight: Array | None = None,
        clusters: Array | None = None,
    ) -> Self:
        """Wrap the top-label form: (N,) confidences in [0, 1], and which predictions are right.

        Args:
            confidence: (N,) confidence in the predicted label.
            predicted: (N,) predicted labels: numbers, or names, numbered by the alphabet.
            labels: (N,) true labels, likewise; None if they are unknown.
            source: name of the rows in error messages.
            correct: (N,) whether each prediction is right, 0 and 1 or truth values, instead of
                labels. Then the predicted class of every row is 1.
            sample_weight: see `from_logits`.
            clusters: see `from_logits`.

        Raises:
            PredictionsError: wrong shapes, confidences outside [0, 1], or neither predicted labels
                nor `correct`.

        Examples:
            >>> import calibrant as cb
            >>> cb.Predictions.from_confidence([0.9, 0.6], correct=[True, False])
            <Predictions 'confidence': 2 rows, toplabel>
        """
        values = check_confidence(confidence, source)
        if correct is None and predicted is None:
            raise PredictionsError(
                f"{source}: confidences need the predicted labels, or which of them are correct"
            )
        rows = cls("toplabel", values, None, source=source)._about(predicted, labels, correct)
        return rows._weighing(sample_weight, clusters)

    # Parameters: as for `from_logits`.
    @classmethod
    def from_scores(
        cls,
        scores: Array,
        correct: Array | None = None,
        source: str = "scores",
        *,
        predicted: Array | None = None,
        labels: Array | None = None,
        sample_weight: Array | None = None,
        clusters: Array | None = None,
    ) -> Self:
        """Wrap (N,) scores that aren't probabilities: higher if a prediction is likelier right.

        Any real numbers will do: a margin, a mean log-probability of tokens, a judge's mark from 1
        to 5. They only rank the rows. A calibrator that is fitted to them turns them into
        probabilities.

        Args:
            scores: (N,) real numbers; for a loss or a perplexity give its negative.
            correct: (N,) whether each prediction is right, 0 and 1 or truth values; None if it is
                unknown.
            source: name of the rows in error messages.
            predicted: (N,) predicted labels; with `labels`, the true ones, instead of `correct`.
            labels: see `predicted`.
            sample_weight: see `from_logits`.
            clusters: see `from_logits`.

        Raises:
            PredictionsError: wrong shapes, or scores that aren't finite.

        Examples:
            >>> import calibrant as cb
            >>> rows = cb.Predictions.from_scores([-3.5, 12.0, 4.0, 8.0], [0, 1, 0, 1])
            >>> rows
            <Predictions 'scores': 4 rows, score>
            >>> after = cb.posthoc.PlattScaling().fit_predictions(rows).apply_predictions(rows)
            >>> after.kind, after.scores.round(2)
            ('toplabel', array([0.18, 0.76, 0.43, 0.62]))
        """
        values = to_numpy(as_array(scores))
        check_shape(values.shape, "score", source)
        check_numbers(values, "score", source)
        if np.abs(values).max() > LARGEST_SCORE:
            raise PredictionsError(f"{source}: 'score' must not lie beyond {LARGEST_SCORE:g}")
        if correct is None and predicted is None:
            if labels is not None:
                raise PredictionsError(
                    f"{source}: true labels alone don't show which predictions are right; give "
                    "the predicted labels too, or which rows are correct"
                )
            predicted = np.ones(len(values), dtype=np.int64)
        rows = cls("score", values.astype(np.float64), None, source=source)
        return rows._about(predicted, labels, correct)._weighing(sample_weight, clusters)

    def _about(self, predicted: Any, labels: Any, correct: Any) -> Self:
        """Return rows of one number each with the labels that it is about, checked."""
        n, source = self.n, self.source
        if correct is not None:
            if predicted is not None or labels is not None:
                raise PredictionsError(
                    f"{source}: give either predicted and true labels, or which rows are correct"
                )
            labels = binary_labels(correct, n, source)[0]
            predicted = np.ones_like(labels)
        predicted, labels, names = numbered_pair(predicted, labels, source)
        truth = None if labels is None else check_labels(labels, n, None, source)
        said = check_labels(predicted, n, None, source, key="predicted labels")
        return replace(self, known_labels=truth, predicted=said, class_names=names)

    # Parameters: as for `from_logits`.
    @classmethod
    def from_binary(
        cls,
        scores: Array,
        labels: Array | None,
        *,
        kind: BinaryKind = "prob",
        positive: Any = None,
        class_names: Sequence[str] | None = None,
        features: Array | None = None,
        source: str = "binary predictions",
        sample_weight: Array | None = None,
        clusters: Array | None = None,
    ) -> Self:
        """Wrap one score for each row: the probability of the positive class, or its log odds.

        Args:
            scores: (N,) or (N, 1) probabilities or log odds.
            labels: (N,) true labels: 0 and 1, truth values, or the names of two classes; None if
                they are unknown.
            kind: ``"prob"`` for probabilities, ``"logit"`` for log odds.
            positive: label of the positive class, if labels aren't 0 and 1.
            class_names: names of the negative and of the positive class.
            features: (N, D) inputs of the last layer.
            source: name of the rows in error messages.
            sample_weight: (N,) how much each row counts; None if all count alike.
            clusters: (N,) names of the clusters that rows belong to.

        Raises:
            PredictionsError: wrong shapes, probabilities outside [0, 1], or labels of more than two
                classes.

        Examples:
            >>> import calibrant as cb
            >>> rows = cb.Predictions.from_binary([0.9, 0.2], ["spam", "ham"], positive="spam")
            >>> rows
            <Predictions 'binary predictions': 2 rows, prob of 'spam'>
            >>> rows.labels, rows.positive_probs
            (array([1, 0]), array([0.9, 0.2]))
        """
        columns = two_columns(scores, kind, source)
        rows = int(columns.shape[0])
        truth, names = None, two_names(class_names, positive, source)
        if labels is not None:
            truth, names = binary_labels(labels, rows, source, positive, class_names)
        if features is not None:
            features = as_array(features)
            check_features(features, rows, source)
        made = cls(
            "logits" if kind == "logit" else "probs",
            columns,
            truth,
            features=features,
            source=source,
            binary=True,
            class_names=names,
        )
        return made._weighing(sample_weight, clusters)

    @classmethod
    def from_many_labels(
        cls,
        scores: Array,
        labels: Array | None,
        *,
        kind: BinaryKind = "prob",
        label_names: Sequence[str] | None = None,
        source: str = "many labels",
        sample_weight: Array | None = None,
        clusters: Array | None = None,
    ) -> Self:
        """Wrap L scores for each row, one for each label; any number of labels may be true.

        They become N L binary predictions; the predictions of one row form a cluster.

        Args:
            scores: (N, L) probabilities or log odds, one for each label.
            labels: (N, L) 0 and 1; None if they are unknown.
            kind: ``"prob"`` or ``"logit"``.
            label_names: names of the L labels; by default the columns of a table.
            source: name of the rows in error messages.
            sample_weight: (N,) how much each row counts, or (N, L) each of its labels: 0 for an
                unknown label. None if all count alike.
            clusters: (N,) names of clusters of rows; by default each row is one.

        Raises:
            PredictionsError: wrong shapes, or what `from_binary` refuses.

        Examples:
            >>> import calibrant as cb
            >>> scores, labels = [[0.9, 0.2], [0.4, 0.7]], [[1, 0], [1, 1]]
            >>> cb.Predictions.from_many_labels(scores, labels, label_names=["rain", "wind"])
            <Predictions 'many labels': 2 rows x 2 labels, prob>
        """
        if label_names is None:
            label_names = names_of_columns(scores, source)
        flat, truth, grid, names = of_many_labels(scores, labels, label_names, source)
        count, width = grid.shape
        made = cls.from_binary(flat, truth, kind=kind, source=source)
        index = np.tile(np.arange(width), count)
        made = replace(made, grid=grid, label_index=index, label_names=names)
        return made._of_grid(sample_weight, clusters)

    # Parameters: as for `from_logits`, and how the rows are taken apart.
    @classmethod
    def from_tokens(
        cls,
        scores: Array,
        labels: Array | None,
        *,
        kind: Literal["logits", "probs"] = "logits",
        ignore_index: int | None = IGNORE_INDEX,
        class_axis: int = -1,
        source: str = "tokens",
        keep_all: bool = False,
        sample_weight: Array | None = None,
        clusters: Array | None = None,
        class_names: Sequence[str] | None = None,
    ) -> Self:
        """Wrap tokens or pixels: K scores for each position of a row.

        Every position becomes a row, and the positions of one given row form a cluster. If classes
        come last and no position is left out, nothing is copied. Otherwise the positions that count
        are copied once, in pieces, so that memory holds the given scores and this copy at most.

        Args:
            scores: (N, T, K), (N, H, W, K) or the like.
            labels: (N, T), (N, H, W) or the like: true classes; None if they are unknown.
            kind: ``"logits"`` or ``"probs"``.
            ignore_index: the label of positions to leave out, such as padding; None for none.
            class_axis: axis of the classes; 1 for pixels as torch has them, (N, K, H, W).
            source: name of the rows in error messages.
            keep_all: keep the positions that would be left out, without labels, to recalibrate them
                too.
            sample_weight: (N,) how much each row counts, or (N, T) each position; None if all count
                alike. Weights of positions that are left out don't matter.
            clusters: (N,) names of clusters of rows, such as documents; by default each row is one.
            class_names: K names of the classes.

        Raises:
            PredictionsError: wrong shapes, or what `from_logits` and `from_probs` refuse.

        Examples:
            >>> import numpy as np
            >>> import calibrant as cb
            >>> logits, labels = np.zeros((2, 3, 5)), np.array([[1, 4, -100], [0, 2, 2]])
            >>> cb.Predictions.from_tokens(logits, labels)
            <Predictions 'tokens': 5 rows x 5 classes, logits, in 2 clusters>
        """
        flat, truth, grid = of_tokens(
            scores, labels, ignore_index, class_axis, source, keep_all=keep_all
        )
        build = cls.from_logits if kind == "logits" else cls.from_probs
        made = replace(build(flat, truth, source=source, class_names=class_names), grid=grid)
        return made._of_grid(sample_weight, clusters)

    def _of_grid(self, sample_weight: Array | None, clusters: Array | None) -> Self:
        """Return rows of a grid with their weights, and with what they came from for clusters."""
        assert self.grid is not None
        if sample_weight is not None:
            sample_weight = spread_over(sample_weight, self.grid, "weights", self.source)
        rows = np.arange(self.grid.shape[0]) if clusters is None else clusters
        return self._weighing(sample_weight, None).with_clusters(rows)

    def _weighing(self, sample_weight: Array | None, clusters: Array | None) -> Self:
        """Return these scores with what each row counts and where it belongs, checked."""
        if sample_weight is None and clusters is None:
            return self
        return replace(
            self,
            weights=None
            if sample_weight is None
            else check_weights(sample_weight, self.n, self.source),
            clusters=None if clusters is None else check_clusters(clusters, self.n, self.source),
        )

    def with_clusters(self, clusters: Array | None, key: str = "cluster") -> Self:
        """Return the same rows with other clusters, given by (N,) names, or without any.

        If rows hold several predictions, give a name for each row or for each prediction.

        Raises:
            PredictionsError: names of another length, or blank ones; `key` is what it calls them.
        """
        if clusters is None:
            return replace(self, clusters=None)
        grid = self.grid
        if grid is not None and len(as_array(clusters)) == grid.shape[0]:
            named = check_clusters(clusters, grid.shape[0], self.source, key)
            return replace(self, clusters=spread_over(named, grid, key, self.source))
        return replace(self, clusters=check_clusters(clusters, self.n, self.source, key))


def _unrounded(probs: Array, source: str) -> Array:
    """Return probabilities whose rows don't sum to 1 for rounding alone, divided by their sums.

    Raises:
        PredictionsError: it isn't for rounding.
    """
    values = to_numpy(probs)
    # Of a few rows the sums say little.
    several = values.ndim == 2 and values.dtype.kind == "f" and len(values) >= FEW
    if several and np.isfinite(values).all():
        values = values.astype(np.float64)
        allowed = allowed_by_rounding(values[:ROWS_OF_ROUNDING])
        probs = like(divided_by_sums(values, allowed, source), probs, probs.dtype)
    check_scores(probs, "probs", source)
    return probs
