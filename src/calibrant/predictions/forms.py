"""Forms of predictions with less than a score for every class, and how they come to be classes.

All of them become two classes, 1 for an event and 0 for its absence: "it is of the positive class"
for binary predictions, "the predicted label is right" for the top-label form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np

from calibrant.core.arrays import Array, as_array, like
from calibrant.core.checks import check_features, check_scores
from calibrant.core.errors import PredictionsError
from calibrant.predictions.binary import BinaryKind, binary_labels, two_columns, two_names
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
