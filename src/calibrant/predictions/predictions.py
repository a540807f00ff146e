"""What a model said and what was true: the input of everything else.

A `Predictions` holds one of three kinds of score, because the caller said which; nothing is ever
guessed from the numbers:

- ``"logits"``: (N, K) real numbers, softmax of a row is its probabilities; -inf masks a class that
  the row can't be;
- ``"probs"``: (N, K) rows that sum to 1;
- ``"toplabel"``: (N,) confidence in one predicted label per row.

Binary predictions, one score a row, are held as two classes and marked (`predictions.binary`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from calibrant.core.arrays import (
    Array,
    FloatArray,
    as_array,
    namespace,
    working_dtype,
)
from calibrant.core.checks import (
    check_confidence,
    check_features,
    check_labels,
    check_reference,
    check_scores,
    check_unmasked,
    warn_of_probabilities,
)
from calibrant.core.errors import PredictionsError
from calibrant.predictions.binary import binary_labels
from calibrant.predictions.held import ScoreKind
from calibrant.predictions.last_layer import as_head, check_head, check_head_makes
from calibrant.predictions.names import check_names, names_of_columns, numbered, numbered_pair
from calibrant.predictions.rows import RowSummary, margins_of, softmax, summarize
from calibrant.predictions.several import Several
from calibrant.predictions.temperature import TemperatureFit, fit_temperature

__all__ = ["SMALLEST_PROBABILITY", "Predictions", "ScoreKind"]

SMALLEST_PROBABILITY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, eq=False, repr=False)
class Predictions(Several):
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
        weights: (N,) float64, at least 0: how much each row counts; None where all count alike.
        clusters: (N,) int64 number of the cluster that each row belongs to, such as a patient or a
            document, whose rows aren't independent; None where every row stands alone.
        binary: whether it is about one event, class 1 of two: what `from_binary` makes.
        class_names: of the classes, or None.
        grid: where rows stood that were several to a row, see `predictions.grids`; None for others.
        label_index: (N,) of many labels a row, which of them each row is about.
        label_names: what these labels are called.

    Examples:
        >>> import calibrant as cb
        >>> rows = cb.Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], labels=[0, 1])
        >>> rows
        <Predictions 'logits': 2 rows x 2 classes, logits>
        >>> rows.probs.round(2)
        array([[0.88, 0.12],
               [0.27, 0.73]])
    """

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
    ) -> Predictions:
        """Wrap (N, K) logits.

        Args:
            logits: (N, K) numbers; -inf masks a class that a row can't be. The columns of a table
                (pandas, polars, pyarrow) may be named after the classes.
            labels: (N,) true labels in [0, K), or names of classes; None where nobody knows them.
            features: (N, D) what goes into the last layer.
            source: what error messages call the rows.
            head: the last layer, (K, D) weight and (K,) bias (see `Head`).
            reference: (M, D) features of other rows, such as training rows.
            sample_weight: (N,) how much each row counts, at least 0; None where all count alike.
            clusters: (N,) names of the clusters, whole numbers or text: rows of one (a patient, a
                document, an image) aren't independent of one another.
            class_names: K names of the classes, in the order of the columns.

        Raises:
            PredictionsError: NaN, infinity or other numbers of rows or columns; a row with fewer
                than two classes left; labels out of range or of a masked class; a last layer that
                doesn't make these logits of these features; weights that are negative or all 0.
        """
        names = names_of_columns(logits, source) if class_names is None else class_names
        logits = as_array(logits)
        check_scores(logits, "logits", source, masks=True)
        warn_of_probabilities(logits, source)
        rows = cls("logits", logits, None, source=source)._weighing(sample_weight, clusters)
        return rows._with(labels, features, head, reference, names)

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
    ) -> Predictions:
        """Wrap (N, K) probabilities; for the rest see `from_logits`.

        Raises:
            PredictionsError: a row that doesn't sum to 1, or what `from_logits` refuses.
        """
        names = names_of_columns(probs, source) if class_names is None else class_names
        probs = as_array(probs)
        check_scores(probs, "probs", source)
        rows = cls("probs", probs, None, source=source)._weighing(sample_weight, clusters)
        return rows._with(labels, features, head, reference, names)

    def _with(
        self,
        labels: Array | None,
        features: Array | None,
        head: tuple[Array, Array] | None,
        reference: Array | None,
        class_names: Sequence[str] | None,
    ) -> Predictions:
        """Return these scores with what else is known of them, checked."""
        (rows, n_classes), source = self.scores.shape, self.source
        names = None if class_names is None else check_names(class_names, n_classes, source)
        truth = None
        if labels is not None:
            truth = check_labels(numbered(labels, names, source), rows, n_classes, source)
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
                check_head_makes(
                    layer, features, self.logits, source, of_probabilities=probabilities
                )
        return replace(
            self,
            known_labels=truth,
            features=features,
            head=layer,
            reference=reference,
            class_names=names,
        )

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
    ) -> Predictions:
        """Wrap the top-label form: (N,) confidences in [0, 1] with what says which are right.

        Args:
            confidence: (N,) how sure the predicted label is.
            predicted: (N,) predicted labels: numbers, or names, numbered by the alphabet.
            labels: (N,) true labels, likewise; None where nobody knows them.
            source: what error messages call the rows.
            correct: (N,) whether each prediction is right, 0 and 1 or truth values, in place of
                both. Then every row counts as predicted to be of class 1.
            sample_weight: see `from_logits`.
            clusters: see `from_logits`.

        Raises:
            PredictionsError: other shapes, confidences outside [0, 1], or neither predicted labels
                nor what is correct.

        Examples:
            >>> import calibrant as cb
            >>> cb.Predictions.from_confidence([0.9, 0.6], correct=[True, False])
            <Predictions 'confidence': 2 rows, toplabel>
        """
        values = check_confidence(confidence, source)
        if correct is not None:
            if predicted is not None or labels is not None:
                raise PredictionsError(
                    f"{source}: either predicted and true labels are given, or what is correct"
                )
            right = binary_labels(correct, len(values), source)[0]
            predicted, labels = np.ones_like(right), right
        if predicted is None:
            raise PredictionsError(
                f"{source}: confidences need the predicted labels, or which of them are correct"
            )
        predicted, labels, names = numbered_pair(predicted, labels, source)
        truth = None if labels is None else check_labels(labels, len(values), None, source)
        said = check_labels(predicted, len(values), None, source, key="predicted labels")
        rows = cls("toplabel", values, truth, said, source=source, class_names=names)
        return rows._weighing(sample_weight, clusters)

    @property
    def n_classes(self) -> int | None:
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

        It warns of nothing; what there is to warn of stands in its `warning`.
        """
        return fit_temperature(self.summary)

    def _full_rows(self, what: str = "this") -> Array:
        if self.kind == "toplabel":
            raise PredictionsError(
                f"{self.source}: {what} needs a score for every class, and the file holds only the "
                "confidence of the predicted label; give logits or probs of shape (N, K)"
            )
        return self.scores

    def __repr__(self) -> str:
        width = "" if self.n_classes is None or self.binary else f" x {self.n_classes} classes"
        of = f" of {self.class_names[1]!r}" if self.binary and self.class_names else ""
        rows = self.n
        if self.label_names is not None:
            rows, width = rows // len(self.label_names), f" x {len(self.label_names)} labels"
        elif self.grid is not None:
            of = f", in {self.grid.shape[0]} clusters"
        return f"<Predictions {self.source!r}: {rows} rows{width}, {self.form}{of}>"
