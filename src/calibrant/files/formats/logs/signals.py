"""What a confidence is read from: letters, sequences, words, votes.

What is a probability becomes `logits`, `probs` or `confidence`; everything else is a `score`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.core.errors import PredictionsError
from calibrant.files.formats.logs.base import LogTable
from calibrant.files.options import ReadOptions

# Logarithms of sums of probabilities may lie this far above 0: bfloat16 has three digits.
ROUNDED = 0.05
TEXT_OF = {
    "letters": "the probabilities of the choices' letters, renormalised over them",
    "letters-unnormalised": "the probability of the likeliest letter as it is",
}


def chosen_signal(options: ReadOptions, known: Sequence[str], where: str) -> str:
    """Return the signal that was asked for, or the first that a log has.

    Raises:
        PredictionsError: the log has no such signal.
    """
    if options.signal is None:
        return known[0]
    if options.signal not in known:
        raise PredictionsError(
            f"{where}: has no signal '{options.signal}'; --signal (signal=) is one of "
            f"{', '.join(known)}"
        )
    return options.signal


# Parameters: a row and where it goes.
def add_letters(
    table: LogTable,
    signal: str,
    values: FloatArray,
    letters: Sequence[str],
    gold: int,
    more: dict[str, Any],
) -> None:
    """Add a question with a log-probability a letter.

    Args:
        table: takes the row.
        signal: ``"letters"`` or ``"letters-unnormalised"``.
        values: log-probabilities.
        letters: what they are of.
        gold: the place of the right one.
        more: further cells.

    Raises:
        PredictionsError: numbers that can't be log-probabilities.
    """
    table.signal = TEXT_OF[signal]
    table.names = tuple(letters)
    table.positions = True
    mass = float(np.exp(np.minimum(values, 1)).sum())
    if mass > 1 + ROUNDED:
        raise PredictionsError(
            f"the letters' probabilities sum to {mass:.3g}; expected log-probabilities, which "
            "don't exceed 0"
        )
    cells = {**more, "mass": min(mass, 1.0)}
    if signal == "letters":
        table.add(logits=values.tolist(), labels=gold, **cells)
    else:
        said = int(values.argmax())
        top = float(min(np.exp(values[said]), 1.0))
        table.add(confidence=top, predicted=said, labels=gold, **cells)


def note_mass(table: LogTable) -> None:
    """Say how much of the probability the letters have, and how much lies elsewhere."""
    mass = np.array([row["mass"] for row in table.cells if "mass" in row])
    if len(mass) and (mass < 1 - ROUNDED).any():
        few = (mass < 0.5).mean()
        table.notes.append(
            f"The letters have {np.median(mass):.1%} of the probability (median), and less than "
            f"half of it in {few:.1%} of rows; the column 'mass' says how much, and --signal "
            "letters-unnormalised keeps it."
        )
