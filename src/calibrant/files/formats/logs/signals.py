"""What a confidence is read from: letters, sequences, words, votes.

What is a probability becomes `logits` or `confidence`; everything else is a `score`, a number that
is higher where the answer is likelier right.

====================  ==========================================================================
``letters``           probabilities of the labels at the token that holds the answer, all
                      spellings of a label together, renormalised over the labels
``letters-unnormalised``  the same without renormalising: what isn't on the labels stays missing
``p-true``            p(True) / (p(True) + p(False)) of a question whether an answer is right
``verbalised``        what the answer itself states, by a declared pattern
``votes``             the share of repeats that give the commonest answer
``entropy``           minus the entropy of the answers of all repeats, in nats: a score
``sequence-mean``     mean log-probability of the answer's tokens: a score; ``-sum``, ``-min``
====================  ==========================================================================
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.core.errors import PredictionsError
from calibrant.files.formats.logs.base import LogFile, LogTable, Row, as_list, as_object, number_of
from calibrant.files.formats.logs.stated import how_stated, stated
from calibrant.files.options import ReadOptions

# Sums of probabilities may lie so far above 1: bfloat16 has three digits.
ROUNDED = 0.05
TEXT_OF = {
    "letters": "the probabilities of the answer's letters, renormalised over them",
    "letters-unnormalised": "the probability of the likeliest letter as it is",
    "p-true": "P(True), the probability of 'True' beside 'False'",
    "verbalised": "what the answers state",
    "votes": "the share of repeats with the commonest answer",
    "entropy": "minus the entropy of the answers of all repeats (a score, no probability)",
    "sequence-mean": "mean log-probability of the tokens (a score, no probability)",
    "sequence-sum": "log-probability of all tokens (a score, no probability)",
    "sequence-min": "log-probability of the least likely token (a score, no probability)",
}
LETTERS = ("letters", "letters-unnormalised")
SEQUENCES = {"sequence-mean": np.mean, "sequence-sum": np.sum, "sequence-min": np.min}
# Stands for the logarithm of a probability that is 0 as far as anyone can tell.
LEAST = -1e4
# What may stand around a label in a token, signs of spaces of tokenizers among them.
AROUND = " \t\r\n().:*_\"'`[]\u0120\u2581"


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


# --- letters


# Parameters: a row and where it goes.
def add_letters(
    table: LogTable,
    signal: str,
    values: FloatArray,
    letters: Sequence[str],
    gold: int | None,
    more: Mapping[str, Any],
) -> None:
    """Add a question with a log-probability a letter.

    Args:
        table: takes the row.
        signal: ``"letters"`` or ``"letters-unnormalised"``.
        values: log-probabilities.
        letters: what they are of.
        gold: the place of the right one; None where nobody knows it.
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
    truth = {} if gold is None else {"labels": gold}
    cells = {**more, **truth, "mass": min(mass, 1.0)}
    if signal == "letters":
        table.add(logits=values.tolist(), **cells)
    else:
        said = int(values.argmax())
        table.add(confidence=float(min(np.exp(values[said]), 1.0)), predicted=said, **cells)


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


def check_not_all_alike(values: FloatArray, where: str) -> None:
    """Raise `PredictionsError` where all log-probabilities are 0: the model gave none."""
    if values.size and not values.any():
        raise PredictionsError(
            f"{where}: all log-probabilities are 0, because the model gave none; a confidence "
            "of 1 computed from them means nothing"
        )


@lru_cache(maxsize=4096)
def label_of(token: str, labels: tuple[str, ...]) -> str | None:
    """Return the label that a token spells, by its case or without, with or without a space."""
    bare = token.strip(AROUND)
    if bare in labels:
        return bare
    return next((label for label in labels if label.casefold() == bare.casefold()), None)


def label_in(text: str, labels: Sequence[str]) -> str | None:
    """Return the label that a text is, or the last one that it calls the answer."""
    own = label_of(text, tuple(labels))
    if own is not None or not labels:
        return own
    any_label = "|".join(re.escape(one) for one in sorted(labels, key=len, reverse=True))
    said = re.findall(rf"(?i:answer)(?:\s+is)?[\s:*(\"'`\[]*({any_label})(?!\w)", text)
    return said[-1] if said else None


class AtAnswer(NamedTuple):
    """What the token of an answer says.

    Attributes:
        values: (K,) log-probability of each label.
        absent: whether a label isn't among the likeliest tokens.
        written: the place of the label that the answer gives.
    """

    values: FloatArray
    absent: bool
    written: int


def log_probabilities(tokens: Sequence[Row], labels: Sequence[str]) -> AtAnswer | None:
    """Return what is known where the answer stands; None if it isn't found.

    It stands at the last label behind the word "answer", else at the first token if that is a
    label, else at the last one that is. A label that isn't among the likeliest tokens gets what it
    may have at most: the least of theirs, or what they leave over.
    """
    labels = tuple(labels)
    texts = [str(one.get("token")) for one in tokens]
    places = [i for i, text in enumerate(texts) if label_of(text, labels)]
    if not places:
        return None
    called = [i for i in places if "answer" in "".join(texts[max(i - 24, 0) : i])[-12:].casefold()]
    place = called[-1] if called else 0 if places[0] == 0 else places[-1]
    here = tokens[place]
    top: dict[str, float] = {}
    for one in [here, *map(as_object, as_list(here.get("top_logprobs")))]:
        token = str(one.get("token"))
        value = _log(one)
        if value is not None:
            top[token] = max(value, top.get(token, -math.inf))
    if not top:
        return None
    found: dict[str, float] = {}
    for token, value in top.items():
        label = label_of(token, labels)
        if label is not None:
            found[label] = float(np.logaddexp(found.get(label, -math.inf), value))
    over = 1 - sum(math.exp(min(value, 0.0)) for value in top.values())
    absent = len(labels) - len(found)
    left = math.log(over / absent) if absent and over > 0 else LEAST
    bound = max(min(min(top.values()), left), LEAST)
    written = label_of(texts[place], labels)
    assert written is not None
    values = np.array([found.get(label, bound) for label in labels])
    return AtAnswer(values, absent > 0, labels.index(written))


# --- texts


@dataclass(frozen=True)
class Answer:
    """What a model answered to a question, once.

    Attributes:
        place: where it stands.
        question: what repeats of a question share.
        text: the answer.
        tokens: its tokens, each with `logprob` and perhaps `top_logprobs`.
        said: what the answer comes to, such as a letter; None where nobody has read it.
        gold: the right one.
        correct: whether it is right; None where that isn't known.
        labels: the possible answers, where there are few.
        more: cells to group by.
    """

    place: str
    question: str
    text: str = ""
    tokens: Sequence[Row] = ()
    said: str | None = None
    gold: str | None = None
    correct: float | None = None
    labels: Sequence[str] = ()
    more: Row = field(default_factory=dict[str, Any])

    @property
    def right(self) -> float | None:
        """Whether it is right, where that is known or follows from what it says."""
        if self.correct is not None or self.gold is None or self.said is None:
            return self.correct
        return float(self.said == self.gold)


def add_answers(
    table: LogTable, answers: Sequence[Answer], options: ReadOptions, file: LogFile
) -> None:
    """Add answers with the confidence that a signal gives; without one they are counted."""
    signal = options.signal or ("verbalised" if options.verbalised else _best(answers))
    numbers = {k: 0 for one in answers for k, v in one.more.items() if isinstance(v, float)}
    chosen_signal(options, (*TEXT_OF, *numbers), file.where)
    table.signal = TEXT_OF.get(signal, f"'{signal}' (a score, no probability)")
    if signal in ("votes", "entropy"):
        _add_votes(table, answers, signal)
        return
    if signal in TEXT_OF and signal != "verbalised":
        logs = [_log(t) or 0.0 for answer in answers for t in answer.tokens]
        check_not_all_alike(np.array(logs, dtype=np.float64), file.where)
    if signal in LETTERS:
        _add_lettered(table, answers, signal, file)
        return
    for answer in answers:
        value = _value(answer, signal, options)
        if isinstance(value, str):
            table.leave_out(value, answer.right)
        elif answer.right is None and answer.gold is not None:
            table.leave_out("its text doesn't say which of the labels it means")
        else:
            key = "confidence" if signal in ("verbalised", "p-true") else "score"
            cells = {**answer.more, "question": answer.question}
            table.add(**{key: value}, correct=answer.right, **cells)
    if signal == "verbalised" and not table.cells:
        table.notes += how_stated(answer.text for answer in answers)


def _add_lettered(table: LogTable, answers: Sequence[Answer], signal: str, file: LogFile) -> None:
    """Add answers with the probabilities of their letters.

    Where some answer isn't right just when its likeliest letter is, because letters were drawn or
    choices shuffled, the rows hold the probability of the letter that was given.
    """
    found: list[tuple[Answer, AtAnswer]] = []
    for answer in answers:
        at = log_probabilities(answer.tokens, answer.labels) if answer.labels else None
        if at is None:
            none = f"none of {', '.join(answer.labels)}" if answer.labels else "no label"
            table.leave_out(f"{none} among the tokens of the answer", answer.correct)
            continue
        if answer.gold is not None and answer.gold not in answer.labels:
            raise file.error(
                answer.place,
                f"the right answer {answer.gold!r} is none of {', '.join(answer.labels)}",
            )
        found.append((answer, at))
    follows = all(_follows(answer, at) for answer, at in found)
    for answer, at in found:
        cells = {**answer.more, "question": answer.question}
        gold = None if answer.gold is None else list(answer.labels).index(answer.gold)
        try:
            add_letters(table, signal, at.values, answer.labels, gold, cells)
        except PredictionsError as fault:
            raise file.error(answer.place, str(fault)) from fault
        if not follows:
            whole = float(np.logaddexp.reduce(at.values)) if signal == "letters" else 0.0
            sure = min(math.exp(at.values[at.written] - whole), 1.0)
            right = float(at.written == gold) if answer.correct is None else answer.correct
            known = {"mass": table.cells.pop()["mass"], "confidence": sure, "correct": right}
            table.add(**cells, **known)
    if not follows:
        table.names, table.positions = None, False
        table.notes.append(
            "What was scored as right isn't always the likeliest letter being the target (letters "
            "were drawn, or choices shuffled), so that a confidence is the probability of the "
            "letter that was given."
        )
    absent = sum(at.absent for _, at in found)
    if absent:
        table.notes.append(
            f"In {absent} rows a label isn't among the likeliest tokens and has the most that it "
            "may have."
        )
    note_mass(table)


def _follows(answer: Answer, at: AtAnswer) -> bool:
    """Return whether an answer is right just when its likeliest letter is the right one."""
    if answer.correct is None:
        return True
    likeliest = answer.labels[int(at.values.argmax())]
    return answer.gold is not None and (likeliest == answer.gold) == bool(answer.correct)


def _best(answers: Sequence[Answer]) -> str:
    """Return the first signal that some answer has."""
    if any(one.get("top_logprobs") for answer in answers for one in answer.tokens) and any(
        answer.labels for answer in answers
    ):
        return "letters"
    if any(answer.tokens for answer in answers):
        return "sequence-mean"
    if len({answer.question for answer in answers}) < len(answers):
        return "votes"
    return "verbalised"


def _value(answer: Answer, signal: str, options: ReadOptions) -> float | str:
    """Return the confidence or score of an answer, or why it has none."""
    if signal not in TEXT_OF:
        value = answer.more.get(signal)
        return f"'{signal}' is blank" if value is None else float(value)
    if signal == "verbalised":
        if options.verbalised is None:
            return (
                "no log-probabilities; if the answers state a confidence, say how by --verbalised"
            )
        value = stated(answer.text, options.verbalised)
        return "states no confidence of the declared form" if value is None else value
    if not answer.tokens:
        return "no log-probabilities"
    if signal == "p-true":
        found = log_probabilities(answer.tokens, ("True", "False"))
        if found is None:
            return "neither True nor False"
        return float(1 / (1 + np.exp(found.values[1] - found.values[0])))
    numbers = [value for one in answer.tokens if (value := _log(one)) is not None]
    return float(SEQUENCES[signal](numbers)) if numbers else "no log-probabilities"


def _log(token: Row) -> float | None:
    """Return the log-probability of a token; servers write null or -9999 for next to none."""
    return number_of(token.get("logprob"))


def _add_votes(table: LogTable, answers: Sequence[Answer], signal: str) -> None:
    """Add a row a question: how far its repeats agree, and whether the commonest is right."""
    of: dict[str, list[Answer]] = {}
    for answer in answers:
        if answer.said is None:
            table.leave_out("a repeat without an answer", answer.right)
        else:
            of.setdefault(answer.question, []).append(answer)
    for question, repeats in of.items():
        counts = Counter(one.said for one in repeats)
        said, most = counts.most_common(1)[0]
        shares = np.array(list(counts.values())) / len(repeats)
        first = next(one for one in repeats if one.said == said)
        value = most / len(repeats) if signal == "votes" else float((shares * np.log(shares)).sum())
        key = "confidence" if signal == "votes" else "score"
        table.add(
            **{key: value},
            correct=first.right,
            question=question,
            repeats=len(repeats),
            **first.more,
        )
