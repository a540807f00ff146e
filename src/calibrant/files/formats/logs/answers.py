"""Tables of answers as scripts of evaluations write them, an answer a line.

==========================================  ====================================================
letters with log-probabilities, JSON lines  ``{"gold": "B", "pred": "B", "correct": 1,
                                            "scores": {"A": -6.2, "B": -0.5}, "subject": "law"}``
a column of probabilities a token, CSV      ``answer,a,b,c,d,the``
two columns compared, CSV                   ``correct_answer,extracted_answer,..._confidence``
a grade a line, text                        ``grade confidence_level``
scorers of uqlm                             ``prompt(s), response(s)`` and a column a scorer
scores of a judge, JSON lines               ``{"prompt_id": "p1", "judge_score": 0.85,
                                            "oracle_label": 1.0}``
==========================================  ====================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from calibrant.core.errors import PredictionsError
from calibrant.files.formats.logs.base import (
    LogFile,
    LogFormat,
    LogTable,
    Row,
    as_object,
)
from calibrant.files.formats.logs.signals import add_letters, chosen_signal, note_mass
from calibrant.files.options import ReadOptions

GOLD = ("gold", "label", "target", "answer", "correct_answer")
# Columns that are no group of rows.
LONGEST_GROUP = 80


class Letters(LogFormat):
    """JSON lines with `scores` of named choices."""

    tool = "scores of letters"

    def recognises(self, file: LogFile) -> bool:
        """Return whether the first line has a number a choice and names the right one."""
        scores = as_object(file.first.get("scores"))
        numbers = all(isinstance(value, int | float) for value in scores.values())
        return len(scores) > 1 and numbers and _gold(file.first) is not None

    def read(self, file: LogFile, options: ReadOptions) -> LogTable:
        """Return a row a line."""
        table = LogTable(self.tool)
        signal = chosen_signal(options, ("letters", "letters-unnormalised"), file.where)
        for place, row in file.rows():
            gold, scores = row.get(_gold(row) or ""), as_object(row.get("scores"))
            if not scores:
                table.leave_out("no scores", row.get("correct"))
                continue
            if gold not in scores:
                raise file.error(place, f"the right choice {gold!r} is none of {', '.join(scores)}")
            letters = sorted(scores)
            values = np.array([scores[letter] for letter in letters], dtype=np.float64)
            said = letters[int(values.argmax())]
            for key, right in (("pred", said), ("correct", said == gold)):
                if row.get(key) is not None and row[key] != right:
                    raise file.error(
                        place,
                        f"'{key}' is {row[key]!r}, but by its scores {said!r} is the likeliest "
                        f"choice and {gold!r} the right one",
                    )
            others = _groups(row, ("pred", "correct", *GOLD))
            try:
                add_letters(table, signal, values, letters, letters.index(gold), others)
            except PredictionsError as fault:
                raise file.error(place, str(fault)) from fault
        if "correct" in file.first or "pred" in file.first:
            table.notes.append("Its own answers come out of the scores on every row.")
        note_mass(table)
        return table


def _gold(row: Mapping[str, Any]) -> str | None:
    return next((key for key in GOLD if key in row), None)


def _groups(row: Mapping[str, Any], others: tuple[str, ...]) -> Row:
    """Return the cells of a row that aren't used otherwise, but may tell groups apart."""
    return {
        key: value
        for key, value in row.items()
        if key not in others
        and (isinstance(value, int | float) or (isinstance(value, str) and len(value) < 80))
    }
