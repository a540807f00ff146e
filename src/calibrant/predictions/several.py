"""Predictions of which a row holds several: many labels, tokens, pixels; and sets put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, Self

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.errors import PredictionsError
from calibrant.predictions.binary import BinaryKind
from calibrant.predictions.forms import Forms
from calibrant.predictions.grids import IGNORE_INDEX, of_many_labels, of_tokens, spread_over
from calibrant.predictions.joining import joined
from calibrant.predictions.names import names_of_columns


class Several(Forms):
    """What `Predictions` knows of rows that are taken apart, and of sets that are put together."""

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
        """Wrap L scores a row, of labels of which any number may be true.

        They become N L binary predictions, of which those of one row are a cluster.

        Args:
            scores: (N, L) probabilities or log odds, one for each label.
            labels: (N, L) 0 and 1; None where nobody knows them.
            kind: ``"prob"`` or ``"logit"``.
            label_names: of the L labels; by default those that the columns of a table have.
            source: what error messages call the rows.
            sample_weight: (N,) how much each row counts, or (N, L) each label of it: 0 for one that
                nobody knows. None where all count alike.
            clusters: (N,) names of clusters of rows; by default each row is one.

        Raises:
            PredictionsError: other shapes, or what `from_binary` refuses.

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

        Every position becomes a row, and those of one row are a cluster. Where classes come last
        and no position is left out nothing is copied. Otherwise what counts is copied once, in
        pieces, so that no more than it and the scores given are ever held.

        Args:
            scores: (N, T, K), (N, H, W, K) or the like.
            labels: (N, T), (N, H, W) or the like: true classes; None where nobody knows them.
            kind: ``"logits"`` or ``"probs"``.
            ignore_index: the label of positions that don't count, such as padding; None for none.
            class_axis: axis of the classes; 1 for pixels as torch has them, (N, K, H, W).
            source: what error messages call the rows.
            keep_all: keep positions that don't count, without labels: to recalibrate all.
            sample_weight: (N,) how much each row counts, or (N, T) each position; None where all
                count alike. Those of positions that are left out don't matter.
            clusters: (N,) names of clusters of rows, such as documents; by default each row is one.
            class_names: K names of the classes.

        Raises:
            PredictionsError: other shapes, or what `from_logits` and `from_probs` refuse.

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
        part = replace(part, label_index=None, label_names=None, class_names=named)
        if part.clusters is None or len(np.unique(part.clusters)) < part.n:
            return part
        return replace(part, clusters=None)  # each of its rows is one

    @classmethod
    def concatenate(
        cls, parts: Sequence[Self], *, clusters: Array | None = None, source: str | None = None
    ) -> Self:
        """Return the rows of several predictions of one form as one set, in order.

        Weights stay as they are. Clusters of different parts count as different ones. Features stay
        where all parts have them; the last layer and reference features where all have the same.
        Names of the top-label form, which are numbered by the alphabet, are numbered anew.

        Args:
            parts: at least one.
            clusters: (N,) names of the clusters of all rows together, where one reaches over
                several parts; parts that are rows of several predictions have their own.
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
