"""What is known of rows, and how some of them are taken: the ground of `Predictions`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import Array, FloatArray, IntArray, as_array, like, namespace
from calibrant.core.errors import PredictionsError
from calibrant.core.weights import check_clusters, check_weights, normalised
from calibrant.predictions.grids import Grid, spread_over
from calibrant.predictions.last_layer import Head
from calibrant.predictions.splitting import rows_of_first_part

ScoreKind = Literal["logits", "probs", "toplabel"]


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """N rows of scores with what else is known of each; `Predictions` says what the fields are."""

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
        """Return the same rows with other clusters, (N,) names of them, or without any.

        Of rows that hold several predictions, a name for each row or for each prediction.

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

    @property
    def counted(self) -> Self:
        """The rows that count, all but those of weight 0; their weights sum to a number of rows.

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

        For weights that count rows which were observed apart: what is then measured has the
        intervals of those rows. Clusters stay.

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

    def take(self, index: NDArray[Any]) -> Self:
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
            weights=rows(self.weights),
            clusters=rows(self.clusters),
            label_index=rows(self.label_index),
            grid=None,
        )

    def repeated_together(self) -> Self:
        """Return `repeated` rows of which copies of one are a cluster, or stay in the row's."""
        own = np.arange(self.n) if self.clusters is None else self.clusters
        return replace(self, clusters=own).repeated()

    def split(
        self, size: int | float, seed: int = 0, *, stratify: bool = False
    ) -> tuple[Self, Self]:
        """Split at random into `size` rows and the others; no row is in both.

        Clusters stay whole, so that the first part has as many rows as whole clusters allow, at
        most `size` but at least one cluster.

        Args:
            size: rows of the first part: a count, or a fraction strictly between 0 and 1.
            seed: the same seed gives the same split.
            stratify: give the first part its share of every true label, rounded up or down to
                whole rows. It doesn't go with clusters.

        Raises:
            PredictionsError: either part would be empty, or labels are to be kept in proportion
                while clusters are kept whole.
        """
        labels = self.labels if stratify else None
        first = rows_of_first_part(self.n, size, seed, labels, self.source, self.clusters)
        return self.take(np.flatnonzero(first)), self.take(np.flatnonzero(~first))

    def __len__(self) -> int:
        return self.n
