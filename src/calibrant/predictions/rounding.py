"""How far numbers are rounded, and what that takes from sums of them."""

from __future__ import annotations

import numpy as np

from calibrant.core.arrays import FloatArray, row_sums
from calibrant.core.checks import ROW_SUM_TOLERANCE
from calibrant.core.errors import RoundedProbabilitiesWarning, warn_caller

# Rows that are looked at first, where what holds for all has to hold for some.
FIRST = 64
# Of fewer rows a single decimal may be chance.
FEW = 20
# A row that rounding took more from is none of probabilities.
MOST_LOST = 0.25


def decimals_of(scores: FloatArray, least: int = 0) -> int | None:
    """Return how many decimals all numbers have, at least so many; None for more than six."""
    for decimals in range(least, 7):
        scaled = scores * 10.0**decimals
        close = max(1e-6, 4 * 10.0**decimals * float(np.finfo(scores.dtype).eps))
        if np.abs(scaled - np.rint(scaled)).max() <= close:
            return decimals
    return None


def lost_in_sums(scores: FloatArray, total: float = 1.0, least: int = 0) -> float | None:
    """Return by how much rounding may move the sums of rows of shares; None where none is seen.

    Rounding to decimals, at least `least` of them, moves each number by half a unit. Rounding to
    significant digits moves a sum by that share of the `total`; a softmax computed in 16-bit floats
    moves it by as much as is allowed where the numbers are stored as such.
    """
    decimals = decimals_of(scores, least)
    by_decimals = None if decimals is None else scores.shape[-1] * 0.5 * 10.0**-decimals
    # Small numbers of few digits have many decimals.
    if decimals is not None and decimals <= 4:
        return by_decimals
    if len(scores) > FIRST and lost_in_sums(scores[:FIRST], total, least) is None:
        return None
    parts, _ = np.frexp(scores)
    for bits, dtype in ((8, "bfloat16"), (11, "float16")):
        scaled = parts * 2.0**bits
        if (scaled == np.rint(scaled)).all():
            # Shares of a power of two, as a forest of 256 trees gives them, weren't computed so.
            scaled = scores * 2.0**bits
            counted = bool((scaled == np.rint(scaled)).all())
            return total * (2.0**-bits if counted else ROW_SUM_TOLERANCE[dtype])
    # The smallest numbers have no power of ten that makes them whole.
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        places = np.where(scores == 0, 0, np.floor(np.log10(np.abs(scores))))
        for digits in range(2, 6):
            scaled = scores * 10.0 ** (digits - 1 - places)
            if (np.abs(scaled - np.rint(scaled)) <= 1e-6 * np.abs(scaled)).all():
                return max(total * 0.5 * 10.0 ** (1 - digits), by_decimals or 0.0)
    return by_decimals


def allowed_by_rounding(first: FloatArray) -> float:
    """Return how far off 1 the sums of rows of probabilities may be, given the first of them."""
    lost = lost_in_sums(first, least=1 if len(first) >= FEW else 2)
    tolerance = ROW_SUM_TOLERANCE["float64"]
    return tolerance if lost is None else max(tolerance, min(1.0001 * lost, MOST_LOST))


def divided_by_sums(probs: FloatArray, tolerance: float, source: str) -> FloatArray:
    """Return probabilities of which rows that rounding made not sum to 1 are divided by their sums.

    A row that is off by more than the tolerance is left for the checks to name.
    """
    sums = row_sums(probs)
    off = np.abs(sums - 1)
    moved = (off > ROW_SUM_TOLERANCE["float64"]) & (off <= tolerance)
    if not moved.any():
        return probs
    probs = np.array(probs)
    probs[moved] /= sums[moved, None]
    if off.max() <= tolerance:
        warn_caller(
            RoundedProbabilitiesWarning(
                f"{source}: probabilities are rounded, so that rows sum to up to "
                f"{off[moved].max():.3g} more or less than 1; each row was divided by its sum"
            )
        )
    return probs
