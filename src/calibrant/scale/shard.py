"""One file of a set, and its rows a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import IntArray
from calibrant.core.checks import rows_from
from calibrant.core.errors import PredictionsError
from calibrant.core.weights import check_each_weight
from calibrant.files import wanted_of
from calibrant.files.batched import of_rows, open_rows
from calibrant.files.keys import ONE_SCORE, FileKind, Keys, assemble, readable
from calibrant.files.opening import extension_of
from calibrant.files.options import ReadOptions
from calibrant.files.row_files import RowFile
from calibrant.predictions.predictions import Predictions

# Numbers of a batch: what is computed of them takes around 20 MB, and threads don't share it.
BATCH_NUMBERS = (1 << 20) - 1
# Rows of a batch at most, so that whole numbers below 2^32 may be summed as floats without loss.
BATCH_ROWS = 1 << 18
# Kinds that are about one event.
BINARY: tuple[FileKind, ...] = ("binary", *ONE_SCORE)


class Batch(NamedTuple):
    """Some rows of a shard.

    Attributes:
        predictions: the rows.
        place: where row 0 stands among all rows of all shards.
        column: (n,) what was asked for beside them, or None.
    """

    predictions: Predictions
    place: int
    column: NDArray[Any] | None


@dataclass(frozen=True)
class Shard:
    """One file of a set. It holds no row, only what its header says; workers take it as it is.

    Attributes:
        where: its path or URL.
        kind: what its scores are.
        rows: how many there are.
        n_classes: number of classes K, None for the top-label form.
        first: where its row 0 stands among all rows of all shards.
        options: how its rows are read.
        weighted: whether its rows have weights.
    """

    where: str
    kind: FileKind
    rows: int
    n_classes: int | None
    first: int = 0
    options: ReadOptions = ReadOptions()  # noqa: RUF009 - it is frozen
    weighted: bool = False

    @property
    def rows_at_once(self) -> int:
        """Rows of a batch."""
        return max(1, min(BATCH_ROWS, BATCH_NUMBERS // (self.n_classes or 1)))

    def batches(
        self,
        column: str | None = None,
        *,
        features: bool = False,
        chosen: IntArray | None = None,
        checked: bool = False,
    ) -> Iterator[Batch]:
        """Yield its rows in bounded memory, checked.

        Args:
            column: name of a column to read beside them.
            features: whether to read features, where there are any.
            chosen: the rows to yield, ascending; None for all.
            checked: whether its rows were checked before; logits aren't checked again.

        Raises:
            PredictionsError: a row that can't be used, named by its number in the file.
        """
        step = self.rows_at_once
        spans = [slice(a, min(a + step, self.rows)) for a in range(0, self.rows, step)]
        if chosen is not None:
            spans = [s for s in spans if np.diff(np.searchsorted(chosen, [s.start, s.stop]))[0]]
        with open_rows(self.where, labels_apart(self.where, self.options)) as file:
            keys = self._keys(file, features)
            wanted = list(of_rows(keys))
            with readable("the rows", self.where):
                if column is not None and not file.has(column):
                    raise PredictionsError(f"{self.where}: there is no column '{column}'")
                names = wanted if column is None or column in wanted else [*wanted, column]
                read = file.read(names, spans)
                for span in spans:
                    with named(self.where):
                        arrays = next(read)
                    with rows_from(span.start):
                        rows = self._assembled(keys, arrays, checked)
                    place, beside = (
                        self.first + span.start,
                        None if column is None else arrays[column],
                    )
                    if chosen is not None:
                        low, high = np.searchsorted(chosen, [span.start, span.stop])
                        index = chosen[low:high] - span.start
                        rows, beside = rows.take(index), None if beside is None else beside[index]
                    yield Batch(rows, place, beside)

    def _assembled(self, keys: Keys, arrays: dict[str, NDArray[Any]], checked: bool) -> Predictions:
        known = checked and keys.kind == "logits" and not keys.worded
        if known and keys.labels is not None:
            labels = arrays[keys.labels].reshape(-1).astype(np.int64)
            rows = Predictions("logits", arrays[keys.scores], labels, source=self.where)
        else:
            # Of a batch all weights may be 0, of a file not.
            rows = assemble(replace(keys, weight=None), arrays.__getitem__, self.where)
        if keys.weight is None:
            return rows
        weights = check_each_weight(arrays[keys.weight], rows.n, self.where)
        return replace(rows, weights=weights)

    def _keys(self, file: RowFile, features: bool) -> Keys:
        wanted = wanted_of(self.options, apart=extension_of(self.where) == ".npy")
        keys = file.choose(wanted._replace(kind=self.kind))
        if keys.names is not None:
            names = next(file.read([keys.names], [slice(0, file.shape(keys.names)[0])]))[keys.names]
            keys = replace(keys, names=None, class_names=tuple(map(str, names.tolist())))
        return replace(keys, head=(), reference=None, features=keys.features if features else None)


def labels_apart(where: str, options: ReadOptions) -> str | None:
    """Return the file of labels of one `.npy` file, if there is one that isn't beside it."""
    return str(options.labels) if options.labels and extension_of(where) == ".npy" else None


class named:
    """Let messages of the body begin with the file that they are about."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, PredictionsError) and not str(error).startswith(self.where):
            raise PredictionsError(f"{self.where}: {error}") from error
