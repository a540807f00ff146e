"""Weights of rows, and rows that belong together: checks, means, and how many rows they amount to.

A weight says how much a row counts. Rows of one cluster (a document, a patient, an image) aren't
independent of one another. ``None`` for either means that rows count alike, or stand alone, and
costs nothing.

Sums that don't depend on the order of their terms: whole numbers instead of rounded ones.

A sum of floats is rounded at every step, so it depends on how rows are dealt to shards. Here every
number is a whole multiple of a unit that is fixed beforehand, and whole numbers add up exactly.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import Array, FloatArray, IntArray, as_array, to_numpy
from calibrant.core.checks import as_numbers, row_number
from calibrant.core.errors import PredictionsError

# Every finite float64 is a whole multiple of 2^-1074; its mantissa has 53 bits.
UNIT_BITS = 1074
MANTISSA_BITS = 53
LOW_BITS = 27
# Numbers in [0, 1] are rounded to multiples of 2^-52, and kept as two halves of 26 bits.
FIXED_BITS, HALF_BITS = 52, 26


def exact_sum(values: FloatArray) -> int:
    """Return the sum of at most 2^26 finite numbers, in units of 2^-1074, without any error."""
    if len(values) == 0:
        return 0
    mantissa, exponent = np.frexp(np.asarray(values, dtype=np.float64))
    whole = np.ldexp(mantissa, MANTISSA_BITS).astype(np.int64)
    place = exponent.astype(np.int64) - MANTISSA_BITS + UNIT_BITS  # below 0 for the tiniest
    lowest = int(place.min())
    index = place - lowest
    # Of halves, so many add up exactly as floats, which is how `bincount` adds.
    high = np.bincount(index, (whole >> LOW_BITS).astype(np.float64))
    low = np.bincount(index, (whole & ((1 << LOW_BITS) - 1)).astype(np.float64))
    total = 0
    for step in np.flatnonzero((high != 0) | (low != 0)).tolist():
        number = (int(high[step]) << LOW_BITS) + int(low[step])
        shift = lowest + step
        total += number << shift if shift >= 0 else number >> -shift  # what is lost there is 0
    return total


def as_float(total: int) -> float:
    """Return an exact sum as the float64 nearest to it."""
    return float(Fraction(total, 1 << UNIT_BITS))


def mean_of(total: int, count: int) -> float:
    """Return an exact sum over a whole number, as the float64 nearest to that."""
    return float(Fraction(total, count << UNIT_BITS))


def halves(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return numbers in [0, 1] as whole multiples of 2^-26 and of 2^-52, each below 2^27."""
    whole = np.rint(np.ldexp(values, FIXED_BITS)).astype(np.int64)
    high, low = whole >> HALF_BITS, whole & ((1 << HALF_BITS) - 1)
    return high.astype(np.float64), low.astype(np.float64)


def joined(high: NDArray[np.int64], low: NDArray[np.int64]) -> FloatArray:
    """Return sums of `halves` as float64."""
    return np.ldexp(high.astype(np.float64), -HALF_BITS) + np.ldexp(
        low.astype(np.float64), -FIXED_BITS
    )


def mixed(numbers: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Return 64 bits for each number that look random (the finaliser of splitmix64).

    The same number and seed give the same bits on every machine, whoever asks and in what order.
    """
    start = _start_of(seed)
    with np.errstate(over="ignore"):
        z = numbers ^ start
        z *= np.uint64(0x9E3779B97F4A7C15)
        z += start
        z ^= z >> np.uint64(30)
        z *= np.uint64(0xBF58476D1CE4E5B9)
        z ^= z >> np.uint64(27)
        z *= np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        return z


@cache
def _start_of(seed: int) -> np.uint64:
    return np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]


# Numbers are rounded to multiples of 2^-44 where sums of single digits less will do.
ROUNDED_BITS, ROUNDED_LOW, ROUNDED_LIMIT = 44, 31, 2.0**17


def rounded_sum(values: FloatArray) -> int:
    """Return the sum of at most 2^26 numbers, each rounded to a multiple of 2^-44, as `exact_sum`.

    Four times as quick; numbers beyond 131 072 aren't rounded.
    """
    large = np.abs(values) >= ROUNDED_LIMIT
    if large.any():
        return exact_sum(values[large]) + rounded_sum(values[~large])
    whole = np.rint(np.ldexp(values, ROUNDED_BITS)).astype(np.int64)
    high, low = whole >> ROUNDED_LOW, whole & ((1 << ROUNDED_LOW) - 1)
    return ((int(high.sum()) << ROUNDED_LOW) + int(low.sum())) << (UNIT_BITS - ROUNDED_BITS)


# Weights that differ by no more than this, after division by their mean, differ by rounding.
SAME_WEIGHT = 1e-12
# Beyond it every float64 is a whole number, and says nothing of rows that were counted.
MOST_COUNTED = 2.0**53
# The sum of as many as there may be stays within float64, whether they come whole or in batches.
MOST_WEIGHT = 1e300


def check_weights(weights: Array, rows: int, source: str, key: str = "weight") -> FloatArray:
    """Return `weights` as (rows,) float64.

    Raises:
        PredictionsError: another shape or length, a weight that is negative or not finite (the
            message names the row), or none above zero.
    """
    values = check_each_weight(weights, rows, source, key)
    if not values.any():
        raise PredictionsError(
            f"{source}: '{key}' must be above 0 for at least one row, but all {rows} are 0"
        )
    return values


def check_each_weight(weights: Array, rows: int, source: str, key: str = "weight") -> FloatArray:
    """Return `weights` as (rows,) float64, of which all may be 0; otherwise as `check_weights`."""
    values = as_numbers(_column(weights, rows, source, key), key, source).astype(np.float64)
    bad = ~((values >= 0) & (values <= MOST_WEIGHT))
    if bad.any():
        row = int(bad.argmax())
        large = MOST_WEIGHT < values[row] < np.inf
        limit = f"at most {MOST_WEIGHT:g}" if large else "finite and not negative"
        raise PredictionsError(
            f"{source}: '{key}' must be {limit}, but row {row_number(row)} holds {values[row]}"
        )
    return values


def check_clusters(clusters: Array, rows: int, source: str, key: str = "cluster") -> IntArray:
    """Return for each row the number of its cluster, (rows,) int64 from 0, in the order of names.

    Draws and folds go by these numbers. Files of text hold 17 as "17", so names that are all whole
    numbers are put in the order of numbers, wherever they came from.

    Args:
        clusters: (rows,) names of clusters: whole numbers or text.
        rows: how many there must be.
        source: what error messages call the rows.
        key: what they call the column.

    Raises:
        PredictionsError: another shape or length, a blank cell, or a fraction (the message names
            the row).
    """
    values = _column(clusters, rows, source, key)
    if values.dtype.kind == "O":
        values = np.array(["" if name is None else str(name) for name in values.tolist()])
    if values.dtype.kind == "f":
        bad = ~np.isfinite(values) | (values != np.round(values))
        if bad.any():
            row = int(bad.argmax())
            raise PredictionsError(
                f"{source}: '{key}' must hold whole numbers or text, but row {row} holds "
                f"{values[row]}"
            )
    elif values.dtype.kind in "US":
        blank = np.char.strip(values) == np.zeros((), values.dtype)
        if blank.any():
            row = int(blank.argmax())
            raise PredictionsError(f"{source}: '{key}' names no cluster in row {row}")
        values = _numbers_of(values)
    elif values.dtype.kind not in "iub":
        raise PredictionsError(
            f"{source}: '{key}' must hold whole numbers or text, not {values.dtype}"
        )
    _, codes = np.unique(values, return_inverse=True)
    return codes.astype(np.int64)


def _numbers_of(names: NDArray[Any]) -> NDArray[Any]:
    """Return names as whole numbers if each is how one is written, and as they are otherwise."""
    distinct, codes = np.unique(names, return_inverse=True)
    try:
        numbers = distinct.astype(np.int64)
    except (ValueError, OverflowError):
        return names
    # "07" and "7" may be two clusters.
    return numbers[codes] if (numbers.astype(distinct.dtype) == distinct).all() else names


def _column(values: Array, rows: int, source: str, key: str) -> NDArray[Any]:
    column = to_numpy(as_array(values))
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    if column.ndim != 1:
        raise PredictionsError(
            f"{source}: '{key}' must have shape (N,) with one entry a row, not {column.shape}"
        )
    if len(column) != rows:
        raise PredictionsError(
            f"{source}: '{key}' has {len(column)} entries, but there are {rows} rows of scores"
        )
    return column


def normalised(weights: FloatArray) -> FloatArray | None:
    """Return weights above 0 on a scale where they sum to a number of rows; None if all are 1.

    Whole numbers count rows and stay as they are. Of others only the ratios mean anything, so they
    are brought to a mean of 1.
    """
    if not are_counts(weights):
        weights = weights / weights.max()
        # However small, a row stays one that counts.
        weights = np.maximum(weights / weights.mean(), np.finfo(np.float64).tiny)
        weights = np.ones(len(weights)) if np.ptp(weights) < SAME_WEIGHT else weights
    return None if bool((weights == 1.0).all()) else weights


def are_counts(weights: FloatArray | None) -> bool:
    """Return whether weights, if any, are whole numbers, with a sum that float64 holds exactly."""
    if weights is None:
        return True
    return bool((weights == np.round(weights)).all() and weights.sum() <= MOST_COUNTED)


def times(values: FloatArray, weights: FloatArray | None) -> FloatArray:
    """Return (N, ...) values, each row's times its weight."""
    if weights is None:
        return values
    return values * (weights if values.ndim == 1 else weights[:, None])


def quantiles(values: FloatArray, shares: FloatArray, weights: FloatArray | None) -> FloatArray:
    """Return the values that hold shares of the rows below them, as `numpy.quantile` does.

    Whole weights give what repeated rows would: between the values of neighbouring ranks a line.
    """
    if weights is None:
        return np.quantile(values, shares)
    order = np.argsort(values, kind="stable")
    ranked, reached = values[order], np.cumsum(weights[order])
    place = shares * max(float(reached[-1]) - 1, 0.0)
    below, last = np.floor(place), len(ranked) - 1
    low, high = (
        ranked[np.minimum(np.searchsorted(reached, rank, side="right"), last)]
        for rank in (below, below + 1)
    )
    return low + (place - below) * (high - low)


def mean(values: FloatArray, weights: FloatArray | None) -> float:
    """Return the mean of (N,) values, weighted where there are weights."""
    if weights is None:
        return float(np.mean(values))
    return float(weights @ values / weights.sum())


def total(rows: int, weights: FloatArray | None) -> float:
    """Return how many rows the weights amount to: their sum, or the number of rows."""
    return float(rows) if weights is None else float(weights.sum())


def effective_rows(
    rows: int, weights: FloatArray | None, clusters: IntArray | None = None
) -> float:
    """Return how many rows of equal weight would make a mean as sure, (sum w)^2 / sum w^2 (Kish).

    With clusters the weights are those of whole clusters, as if all rows of one said the same: the
    least that the rows can be worth.
    """
    if clusters is not None:
        counts: FloatArray = np.bincount(clusters, weights).astype(np.float64)
    elif weights is not None:
        counts = weights
    else:
        return float(rows)
    shares = counts / counts.max()
    return float(shares.sum() ** 2 / (shares @ shares))


def codes_of(clusters: IntArray) -> tuple[IntArray, int]:
    """Return the clusters numbered from 0 without gaps, and how many there are."""
    names, codes = np.unique(clusters, return_inverse=True)
    return codes.astype(np.int64), len(names)
