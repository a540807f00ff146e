"""What methods with features share: their contract, and exact distances to nearest rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core import numpy_namespace as xnp
from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, FloatArray, IntArray, to_numpy
from calibrant.core.errors import InputError, NotApplicableError
from calibrant.posthoc.applying import Learnt
from calibrant.posthoc.array_ops import smallest
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.state import learnt
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import RowSummary, summarize


@dataclass(eq=False)
class FeatureCalibrator(Calibrator):
    """Family: maps that see the penultimate features of a row beside its logits.

    Features may be of any array kind. What is computed of them is small, a number or two a row, so
    they are taken to float64 NumPy, in blocks; the logits stay where they are.

    Attributes:
        width_: number of features D.
    """

    needs: ClassVar[tuple[str, ...]] = ("features",)

    width_: int = learnt(at_least=1)

    @property
    def feature_width(self) -> int | None:
        """Number of features D that it was fitted for."""
        return self.width_

    def _features_of(self, predictions: Predictions) -> FloatArray:
        """Return the calibration rows' features in float64 and take note of their width."""
        features = in_float64(predictions.features)
        self.width_ = int(features.shape[1])
        return features

    @staticmethod
    def _summary_of(predictions: Predictions) -> RowSummary:
        """Summarise the calibration rows in float64.

        Curves of many float32 classes are noisy in the last digits, which leads these fits astray:
        their objectives are flat, or have several minima.
        """
        logits = to_numpy(predictions.scores).astype(np.float64)
        return summarize(logits, predictions.labels, curve="dense")


def in_float64(features: Array) -> FloatArray:
    """Return features of any array kind as float64 NumPy."""
    return to_numpy(features).astype(np.float64, copy=False)


Bank = NDArray[np.float32]

# Numbers in each of the temporary arrays: 32 MiB of float64.
BLOCK_ELEMENTS = 1 << 22
NOT_IN_BANK = -1
# So many rows at least should go through the reference rows together.
ROWS_WORTH_A_PASS = 16


def unit_rows(features: Array) -> Bank:
    """Return (N, D) features scaled to length 1, as float32 NumPy; see `scaled_to_unit`."""
    rows = to_numpy(features)
    out = np.empty(rows.shape, dtype=np.float32)
    for part in blocks(len(rows), rows.shape[1]):
        out[part] = scaled_to_unit(xnp, rows[part])
    return out


def scaled_to_unit(xp: Any, features: Array) -> Array:
    """Return (n, D) features scaled to length 1; a row of zeros stays one.

    They are rounded to float32, in which files keep them, so that a row lies at distance 0 from its
    own copy in a file.
    """
    rows = xp.astype(features, xp.float64)
    # Squares of huge or tiny numbers don't fit.
    rows = rows / _or_one(xp, xp.max(xp.abs(rows), axis=1, keepdims=True))
    length = xp.sqrt(xp.sum(rows * rows, axis=1, keepdims=True))
    return xp.astype(rows / _or_one(xp, length), xp.float32)


def _or_one(xp: Any, column: Array) -> Array:
    return xp.where(column > 0, column, xp.ones_like(column))


def blocks(rows: int, width: int) -> list[slice]:
    """Return slices of rows that take so many numbers each, and bounded memory together."""
    step = max(1, BLOCK_ELEMENTS // width)
    return [slice(start, start + step) for start in range(0, rows, step)]


def nearest_distances(queries: Bank, bank: Bank, count: int, own: IntArray) -> FloatArray:
    """Return (n, count) Euclidean distances to the nearest rows of a bank, ascending.

    Args:
        queries: (n, D).
        bank: (M, D) with M > count where `own` names rows of it, else M >= count.
        count: how many, at least 1.
        own: (n,) where in the bank each query itself is, which is not its own neighbour; -1 for one
            that is not in there. A copy of a query elsewhere in the bank counts as any other row.
    """
    out = np.empty((len(queries), count))
    for part in blocks(len(queries), max(len(bank), count * queries.shape[1])):
        out[part] = distances(xnp, queries[part], bank, count, own[part])
    return out


def distances(xp: Any, queries: Array, bank: Array, count: int, own: Array | None = None) -> Array:
    """Return (n, count) Euclidean distances to the nearest rows of a bank, ascending.

    Candidates come from |q|^2 + |b|^2 - 2 q b, which is one matrix product. In float64 its error is
    far below what can order two distances wrongly by more than rounding; the distances themselves,
    which it would give as 0 or 1e-8 where rows all but coincide, are computed once more as
    |q - b|. See `nearest_distances` for the arguments.
    """
    near, wide = xp.astype(queries, xp.float64), xp.astype(bank, xp.float64)
    # |q|^2 is the same for all candidates of a row.
    order = (-2 * near) @ wide.T + xp.sum(wide * wide, axis=1)[None, :]
    if own is not None:
        every = xp.arange(int(bank.shape[0]), device=getattr(bank, "device", None))
        order = xp.where(every[None, :] == own[:, None], xp.inf, order)
    found = smallest(xp, order, count)
    nearest = xp.reshape(
        xp.take(wide, xp.reshape(found, (-1,)), axis=0), (-1, count, wide.shape[1])
    )
    apart = near[:, None, :] - nearest
    return xp.sort(xp.sqrt(xp.sum(apart * apart, axis=2)), axis=1)


class References(NamedTuple):
    """Rows that distances are measured to.

    Attributes:
        rows: (M, D) features.
        own: (N,) where each calibration row is among them; -1 for one that isn't.
        notes: what a user should know of the choice.
    """

    rows: NDArray[np.generic]
    own: IntArray
    notes: tuple[str, ...]


def choose_references(predictions: Predictions, most: int) -> References:
    """Return the reference features, or else those of the calibration rows; `most` at most.

    More rows are thinned by a fixed draw at random: files may be sorted, so their first rows would
    be no sample of them.
    """
    given = predictions.reference is not None
    rows = to_numpy(predictions.reference if given else predictions.features)
    notes = () if given else ("no reference features given: took those of the calibration rows",)
    chosen = np.arange(len(rows))
    if len(rows) > most:
        chosen = np.sort(np.random.default_rng(0).choice(len(rows), most, replace=False))
        notes += (f"{most} of {len(rows)} reference rows are kept, drawn at random",)
    own = np.full(predictions.n, NOT_IN_BANK)
    if not given:
        own[chosen] = np.arange(len(chosen))
    return References(rows[chosen], own, notes)


@dataclass(eq=False)
class NeighbourCalibrator(FeatureCalibrator):
    """Family: maps that read how far a row lies from its nearest neighbours among reference rows.

    Distances are Euclidean ones of features scaled to length 1. Reference rows are those given to
    `fit`, else the calibration rows themselves; then a calibration row is not its own neighbour.
    They are kept in the calibrator, as float32, and are most of its file.

    Args:
        neighbours: how many neighbours k; fewer where there are fewer reference rows.
        reference_rows: how many reference rows to keep at most.

    Attributes:
        bank_: (M, D) the reference rows.
        neighbours_: k as used.
    """

    neighbours: int = argument(10, at_least=1)
    reference_rows: int = argument(5000, at_least=2)

    bank_: Bank = learnt("M", "D")
    neighbours_: int = learnt(at_least=1)

    def _remember(self, references: References) -> None:
        """Keep the reference rows, and settle how many neighbours there are for everyone."""
        alone = bool((references.own != NOT_IN_BANK).any())
        available = len(references.rows) - alone
        if available == 0:
            raise NotApplicableError(
                f"method '{self.method}' needs neighbours, and a single calibration row has none"
            )
        self.neighbours_ = min(self.neighbours, available)
        self.bank_ = np.concatenate(
            [unit_rows(references.rows[:, part]) for part in self._layers()], axis=1
        )

    def _layers(self) -> list[slice]:
        """Return the columns of each layer, which are scaled to length 1 on their own."""
        return [slice(0, self.width_)]

    def _distances(self, features: Array, own: IntArray | None = None) -> list[FloatArray]:
        """Return for each layer the (n, k) distances of rows to their nearest references."""
        rows = to_numpy(features)
        selves = np.full(len(rows), NOT_IN_BANK) if own is None else own
        return [
            nearest_distances(
                unit_rows(rows[:, part]), self.bank_[:, part], self.neighbours_, selves
            )
            for part in self._layers()
        ]

    def map_arrays(self) -> dict[str, NDArray[Any]]:
        """Return what was learnt, and as many ranks as there are neighbours."""
        if self.bank_.shape[1] != self.width_:  # in a damaged file
            raise InputError(
                f"the reference rows have {self.bank_.shape[1]} features, not {self.width_}"
            )
        # The number of neighbours is a shape: those are known where values aren't.
        return super().map_arrays() | {"ranks": np.arange(self.neighbours_)}

    def widest(self) -> int:
        """Return the distances to all reference rows, or the neighbours' features.

        A chunk of rows goes through all reference rows once more, so it should be worth it.
        """
        return max(len(self.bank_) // ROWS_WORTH_A_PASS, self.neighbours_ * self.width_)

    def distances_of(self, xp: Any, features: Array, learnt: Learnt, columns: slice) -> Array:
        """Return the (n, k) distances of rows to their nearest references in one layer."""
        bank, count = learnt["bank_"], int(learnt["ranks"].shape[0])
        return distances(xp, scaled_to_unit(xp, features[:, columns]), bank[:, columns], count)
