"""Outcomes that stand in another file than the answers, by what both call a row."""

from __future__ import annotations

from typing import NamedTuple

from calibrant.core.errors import PredictionsError
from calibrant.files.formats.logs.base import LogFile, number_of
from calibrant.files.options import ReadOptions

IDS = ("custom_id", "id", "question_id", "prompt_id", "doc_id")
GOLD = (
    *("label", "labels", "gold", "answer", "target", "correct_answer", "outcome", "true_label"),
    "oracle_label",
)


class Outcome(NamedTuple):
    """What is known of a row besides what was said.

    Attributes:
        gold: the right answer, or a label.
        correct: whether the given answer is right, from 0 to 1.
    """

    gold: str | None = None
    correct: float | None = None


def outcomes_of(options: ReadOptions) -> dict[str, Outcome]:
    """Return the outcomes in the files that `options` names, by id.

    Raises:
        PredictionsError: a row without id or outcome, an outcome that is none, or two of one id.
    """
    found: dict[str, Outcome] = {}
    for where in map(str, options.outcomes):
        file = LogFile(where)
        for place, row in file.records():
            key = next((k for k in (options.id, *IDS) if k in row), None)
            gold = next((k for k in (options.labels, *GOLD) if k in row), None)
            right = next((k for k in (options.correct, "correct") if k in row), None)
            if key is None or (gold is None and right is None):
                raise file.error(
                    place,
                    f"expected an id ({', '.join(IDS)}) with a label ({', '.join(GOLD)}) or "
                    f"'correct'; found {', '.join(map(str, row))}",
                )
            name = str(row[key])
            if name in found:
                raise file.error(place, f"'{name}' has an outcome already")
            value = None if right is None else number_of(row[right])
            if right is not None and (value is None or not 0 <= value <= 1):
                said = str(row[right])[:40]
                raise file.error(place, f"'{right}' must be 0 or 1, or between, not {said!r}")
            found[name] = Outcome(None if gold is None else str(row[str(gold)]), value)
    if options.outcomes and not found:
        raise PredictionsError(f"{', '.join(map(str, options.outcomes))}: hold no outcome")
    return found
