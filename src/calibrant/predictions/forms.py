"""Forms of predictions with less than a score for every class, and how they come to be classes.

All of them become two classes, 1 for an event and 0 for its absence: "it is of the positive class"
for binary predictions, "the predicted label is right" for the top-label form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from calibrant.core.arrays import Array, as_array, like
from calibrant.core.checks import check_features, check_scores
from calibrant.core.errors import PredictionsError
from calibrant.predictions.binary import BinaryKind, binary_labels, two_columns, two_names
from calibrant.predictions.grids import IGNORE_INDEX, of_many_labels, of_tokens
from calibrant.predictions.held import Rows
from calibrant.predictions.rows import softmax


class Forms(Rows):
    """What `Predictions` knows of its forms."""

    from_logits: ClassVar[Callable[..., Any]]
    from_probs: ClassVar[Callable[..., Any]]

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
        """Wrap one score a row: how probable it is that the row is of the positive class.

        Args:
            scores: (N,) or (N, 1) probabilities or log odds.
            labels: (N,) true labels: 0 and 1, truth values, or the names of two classes; None where
                nobody knows them.
            kind: ``"prob"`` for probabilities, ``"logit"`` for log odds.
            positive: which label is the positive class, where labels aren't 0 and 1.
            class_names: names of the negative and of the positive class.
            features: (N, D) what goes into the last layer.
            source: what error messages call the rows.
            sample_weight: (N,) how much each row counts; None where all count alike.
            clusters: (N,) names of the clusters that rows belong to.

        Raises:
            PredictionsError: other shapes, probabilities outside [0, 1], or labels that aren't of
                two classes.

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
    ) -> Self:
        """Wrap L scores a row, of labels of which any number may be true.

        They become N L binary predictions, of which those of one row are a cluster.

        Args:
            scores: (N, L) probabilities or log odds, one for each label.
            labels: (N, L) 0 and 1; None where nobody knows them.
            kind: ``"prob"`` or ``"logit"``.
            label_names: of the L labels.
            source: what error messages call the rows.
            sample_weight: (N,) how much each row counts; None where all count alike.

        Raises:
            PredictionsError: other shapes, or what `from_binary` refuses.

        Examples:
            >>> import calibrant as cb
            >>> scores, labels = [[0.9, 0.2], [0.4, 0.7]], [[1, 0], [1, 1]]
            >>> cb.Predictions.from_many_labels(scores, labels, label_names=["rain", "wind"])
            <Predictions 'many labels': 2 rows x 2 labels, prob>
        """
        flat, truth, grid, names = of_many_labels(scores, labels, label_names, source)
        count, width = grid.shape
        rows = np.repeat(np.arange(count), width)
        weights = None if sample_weight is None else np.repeat(as_array(sample_weight), width)
        made = cls.from_binary(
            flat, truth, kind=kind, source=source, sample_weight=weights, clusters=rows
        )
        index = np.tile(np.arange(width), count)
        return replace(made, grid=grid, label_index=index, label_names=names)

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
    ) -> Self:
        """Wrap tokens or pixels: K scores for each position of a row.

        Every position becomes a row, and those of one row are a cluster. Where classes come last
        and no position is left out nothing is copied.

        Args:
            scores: (N, T, K), (N, H, W, K) or the like.
            labels: (N, T), (N, H, W) or the like: true classes; None where nobody knows them.
            kind: ``"logits"`` or ``"probs"``.
            ignore_index: the label of positions that don't count, such as padding; None for none.
            class_axis: axis of the classes; 1 for pixels as torch has them, (N, K, H, W).
            source: what error messages call the rows.
            keep_all: keep positions that don't count, without labels: to recalibrate all.

        Raises:
            PredictionsError: other shapes, or what `from_logits` and `from_probs` refuse.

        Examples:
            >>> import numpy as np
            >>> import calibrant as cb
            >>> logits, labels = np.zeros((2, 3, 5)), np.array([[1, 4, -100], [0, 2, 2]])
            >>> cb.Predictions.from_tokens(logits, labels)
            <Predictions 'tokens': 5 rows x 5 classes, logits, in 2 clusters>
        """
        flat, truth, rows, grid = of_tokens(
            scores, labels, ignore_index, class_axis, source, keep_all=keep_all
        )
        build = cls.from_logits if kind == "logits" else cls.from_probs
        return replace(build(flat, truth, source=source, clusters=rows), grid=grid)

    def of_label(self, label: int | str) -> Self:
        """Return the binary predictions of one of many labels, by its number or name.

        Raises:
            PredictionsError: there are no many labels, or none of this name.
        """
        names = self.label_names
        if names is None or self.label_index is None:
            raise PredictionsError(
                f"{self.source}: holds no many labels; make them with Predictions.from_many_labels"
                ", or read them with kind='many-labels'"
            )
        number = names.index(label) if label in names else label
        if not isinstance(number, int) or not 0 <= number < len(names):
            raise PredictionsError(
                f"{self.source}: there is no label {label!r}; there are {', '.join(names)}"
            )
        part = self.take(np.flatnonzero(self.label_index == number))
        named = (f"not {names[number]}", names[number])
        return replace(part, clusters=None, label_index=None, label_names=None, class_names=named)

    def as_binary(self) -> Self:
        """Return predictions of two classes as binary ones, class 1 being the positive one.

        Raises:
            PredictionsError: there aren't two classes.
        """
        width = None if self.kind == "toplabel" else int(self.scores.shape[1])
        if width != 2:
            raise PredictionsError(
                f"{self.source}: binary predictions have one score a row or two classes, and these "
                f"have {'the confidence of a predicted label' if width is None else width}"
            )
        return replace(self, binary=True)

    @property
    def form(self) -> str:
        """What a row's scores are: `kind`, or ``"prob"`` or ``"logit"`` of binary ones."""
        return {"probs": "prob", "logits": "logit"}[self.kind] if self.binary else self.kind

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
        """What the positive class of binary predictions is called; "1" where it has no name."""
        return self.class_names[1] if self.class_names else "1"

    def as_event(self) -> Self:
        """Return the top-label form as binary predictions of "the predicted label is right".

        Other forms come back as they are.
        """
        if self.kind != "toplabel":
            return self
        right = None if self.known_labels is None else self.predicted == self.known_labels
        return replace(
            self,
            kind="probs",
            scores=np.stack([1 - self.scores, self.scores], axis=1),
            known_labels=None if right is None else np.asarray(right).astype(np.int64),
            predicted=None,
            binary=True,
            class_names=None,
        )

    def recalibrated(self, probs: Array) -> Self:
        """Return the same rows, in the same form, with other probabilities.

        The last layer makes other scores than these, so it doesn't stay.

        Args:
            probs: (N, K) as a calibrator gave them for the logits of `as_event()` of these.

        Raises:
            PredictionsError: they are no probabilities.
        """
        check_scores(probs, "probs", self.source)
        if self.kind == "toplabel":
            return replace(self, scores=np.clip(like(probs[:, 1], self.scores), 0.0, 1.0))
        return replace(self, kind="probs", scores=probs, head=None, reference=None)
