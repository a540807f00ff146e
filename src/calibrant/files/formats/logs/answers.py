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

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np

from calibrant.core.errors import PredictionsError
from calibrant.files.formats.logs.base import (
    LogFile,
    LogFormat,
    LogTable,
    Row,
    as_list,
    as_object,
    zero_or_one,
)
from calibrant.files.formats.logs.signals import (
    LETTERS,
    add_letters,
    check_not_all_alike,
    chosen_signal,
    label_of,
    note_mass,
)
from calibrant.files.gate import readable
from calibrant.files.opening import open_binary
from calibrant.files.options import ReadOptions

GOLD = ("gold", "label", "target", "answer", "correct_answer")
# Longer texts are no names of groups.
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
        signal = chosen_signal(options, LETTERS, file.where)
        for place, row in file.rows():
            gold, scores = row.get(_gold(row) or ""), as_object(row.get("scores"))
            if not scores:
                table.leave_out("no scores", row.get("correct"))
                continue
            letters = sorted(scores)
            numbers = [_number(scores[letter]) for letter in letters]
            if None in numbers:
                raise file.error(place, "its scores must be finite numbers")
            if str(gold) not in scores:
                raise file.error(place, f"the right choice {gold!r} is none of {', '.join(scores)}")
            values = np.array(numbers, dtype=np.float64)
            said = letters[int(values.argmax())]
            for key, right in (("pred", said), ("correct", said == str(gold))):
                if row.get(key) is not None and row[key] != right:
                    raise file.error(
                        place,
                        f"'{key}' is {row[key]!r}, but by its scores {said!r} is the likeliest "
                        f"choice and {gold!r} the right one",
                    )
            others = _groups(row, ("pred", "correct", *GOLD))
            try:
                add_letters(table, signal, values, letters, letters.index(str(gold)), others)
            except PredictionsError as fault:
                raise file.error(place, str(fault)) from fault
        logs = [row["logits"] for row in table.cells if "logits" in row]
        check_not_all_alike(np.array([x for one in logs for x in one]), file.where)
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
        and (
            isinstance(value, int | float)
            or (isinstance(value, str) and len(value) < LONGEST_GROUP)
        )
    }


class TokenColumns(LogFormat):
    """CSV with the probability of each token that was among the likeliest ones."""

    tool = "columns of tokens"

    def recognises(self, file: LogFile) -> bool:
        """Return whether there is an answer, and columns of letters that begin with A."""
        header = file.header
        return "answer" in header and {"A", "B"} <= {*_letters(header)} and len(header) > 4

    def read(self, file: LogFile, options: ReadOptions) -> LogTable:
        """Return a row a question; a token without a cell has at most the least that is there."""
        table = LogTable(self.tool)
        signal = chosen_signal(options, LETTERS, file.where)
        rows = list(file.table())
        columns = _letters(file.header)
        labels = list(options.classes) or columns[: _count(rows)]
        if len(labels) < 2 or not {*labels} <= {*columns}:
            raise PredictionsError(
                f"{file.where}: which letters can be answers isn't clear; name them by --classes "
                f"(classes=), as {','.join(columns[:4])}"
            )
        texts = {"question", "choices", "answer"}
        tokens = [name for name in file.header if name not in texts]
        absent = 0
        for place, row in rows:
            top = {name: p for name in tokens if (p := _number(row[name])) is not None and p > 0}
            sums = dict.fromkeys(labels, 0.0)
            for token, p in top.items():
                label = label_of(token, labels)
                if label is not None:
                    sums[label] += p
            if not any(sums.values()):
                table.leave_out("no letter is among the likeliest tokens")
                continue
            gold = _place(row["answer"])
            if not 0 <= gold < len(labels):
                raise file.error(place, f"the answer {row['answer']!r} is none of {labels}")
            absent += min(sums.values()) == 0
            bound = min(top.values())
            values = np.log([sums[label] or bound for label in labels])
            groups = {k: row[k] for k in ("subject", "category") if k in row}
            try:
                add_letters(table, signal, values, labels, gold, groups)
            except PredictionsError as fault:
                raise file.error(place, str(fault)) from fault
        table.notes.append(
            f"{absent} rows lack a letter among the likeliest tokens, which has the least "
            "probability that is there. The table holds no accuracy to check."
        )
        note_mass(table)
        return table


def _count(rows: list[tuple[str, dict[str, str]]]) -> int:
    """Return how many letters the answers reach to."""
    return 1 + max((_place(row["answer"]) for _, row in rows), default=-1)


def _letters(header: list[str]) -> list[str]:
    """Return A, B, ... as far as there are columns of them."""
    there = {name.upper() for name in header if len(name) == 1}
    found: list[str] = []
    for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ":
        if letter not in there:
            break
        found.append(letter)
    return found


def _place(answer: str) -> int:
    """Return the place of an answer, given as a number from 0 or as a letter; -1 for neither."""
    text = answer.strip()
    if text.isdecimal():
        return int(text)
    return ord(text.upper()) - ord("A") if re.fullmatch("[A-Za-z]", text) else -1


def _number(cell: Any) -> float | None:
    with suppress(ValueError, TypeError):
        value = float(cell)
        return value if np.isfinite(value) else None
    return None


class ComparedColumns(LogFormat):
    """CSV whose right and extracted answers are compared, with confidences beside them."""

    tool = "answers compared"
    right = ("correct_answer", "gold_answer", "ground_truth", "reference_answer")
    said = ("extracted_answer", "predicted_answer", "model_answer", "parsed_answer")

    def recognises(self, file: LogFile) -> bool:
        """Return whether both answers and a confidence are there."""
        header = {*file.header}
        both = header.intersection(self.right) and header.intersection(self.said)
        return bool(both) and any("confidence" in name for name in header)

    def read(self, file: LogFile, options: ReadOptions) -> LogTable:
        """Return a row an answer; a column of confidences is a signal."""
        table = LogTable(self.tool)
        known = [name for name in file.header if "confidence" in name]
        known.sort(key=_is_score)
        signal = chosen_signal(options, known, file.where)
        score = _is_score(signal)
        table.signal = f"'{signal}'" + (" (a score, no probability)" if score else "")
        right = next(name for name in self.right if name in file.header)
        said = next(name for name in self.said if name in file.header)
        for _, row in file.table():
            correct = float(row[right].strip() == row[said].strip() != "")
            value = _number(row[signal])
            if value is None:
                table.leave_out(f"'{signal}' is blank", correct)
            elif not score and not 0 <= value <= 1:
                table.leave_out(f"'{signal}' lies outside [0, 1]", correct)
            else:
                groups = _groups(row, (right, said, *known, ""))
                table.add(**{"score" if score else "confidence": value}, correct=correct, **groups)
        outside = table.left_out.get(f"'{signal}' lies outside [0, 1]")
        if outside is not None and outside.rows > len(table.cells):
            raise PredictionsError(
                f"{file.where}: most of '{signal}' lies outside [0, 1]; percent isn't guessed: "
                f"read it by --format csv --scores {signal} --are percent"
            )
        others = [name for name in known if name != signal]
        if others:
            table.notes.append(f"--signal may also be {', '.join(others)}.")
        return table


def _is_score(name: str) -> bool:
    """Return whether a column of confidences is made of a text's likelihood."""
    return re.search("perplexity|likelihood|logprob|sequence|entropy", name) is not None


class Grades(LogFormat):
    """Text with a header and a grade and a confidence a line."""

    tool = "grades"
    words: ClassVar[dict[str, float]] = {"correct": 1.0, "wrong": 0.0, "incorrect": 0.0}

    def recognises(self, file: LogFile) -> bool:
        """Return whether the header names a grade and a confidence."""
        return file.first_line.split() in (
            [b"grade", b"confidence_level"],
            [b"grade", b"confidence"],
        )

    def read(self, file: LogFile, options: ReadOptions) -> LogTable:
        """Return a row a line whose answer could be read."""
        table = LogTable(self.tool)
        table.signal = "the confidence beside each grade"
        with open_binary(file.where) as raw, readable("the text", file.where):
            for number, line in enumerate(raw.read().decode("utf-8").splitlines()[1:], start=2):
                word, _, cell = line.strip().partition(" ")
                if not word:
                    continue
                value, grade = _number(cell), self.words.get(word.lower())
                if word.lower().startswith("unpars"):
                    table.leave_out("no answer could be read", 0.0)
                elif grade is None or value is None or not 0 <= value <= 1:
                    raise file.error(
                        f"line {number}",
                        f"expected Correct, Wrong or Unparseable and a confidence from 0 to 1, "
                        f"found {line.strip()[:40]!r}",
                    )
                else:
                    table.add(confidence=value, correct=grade)
        return table


class Uqlm(LogFormat):
    """Results of uqlm with a column that says which responses are correct."""

    tool = "uqlm"
    scorers: ClassVar[tuple[str, ...]] = (
        "semantic_negentropy",
        "noncontradiction",
        "entailment",
        "exact_match",
        "bert_score",
        "cosine_sim",
        "min_probability",
        "normalized_probability",
        "sequence_probability",
        "p_true",
        "semantic_density",
        "monte_carlo_probability",
        "ensemble_scores",
    )

    def recognises(self, file: LogFile) -> bool:
        """Return whether prompts and responses stand beside scorers of uqlm."""
        names = {*file.header} or {*self._data(file)}
        both = names & {"prompt", "prompts"} and names & {"response", "responses"}
        return bool(both) and bool(names.intersection(self.scorers))

    def _data(self, file: LogFile) -> Row:
        return as_object(file.first.get("data", file.first))

    def read(self, file: LogFile, options: ReadOptions) -> LogTable:
        """Return a row a response, with the scorer that was asked for, or the first."""
        table = LogTable(self.tool)
        if file.header:
            rows: list[Mapping[str, Any]] = [row for _, row in file.table()]
        elif any(isinstance(value, list) for value in self._data(file).values()):
            data = {k: as_list(v) for k, v in self._data(file).items()}
            rows = [dict(zip(data, cells, strict=True)) for cells in zip(*data.values())]  # noqa: B905
        else:
            rows = [row for _, row in file.rows()]
        names = list(rows[0]) if rows else []
        known = [name for name in names if name in self.scorers or name.startswith("judge_")]
        signal = chosen_signal(options, known, file.where)
        table.signal = f"'{signal}' (a score, no probability)"
        right = next((k for k in (options.correct, *CORRECT) if k in names), None)
        if right is None and options.labelled:
            raise PredictionsError(
                f"{file.where}: no column says which responses are correct; expected one of "
                f"{', '.join(CORRECT)}, or name it by --correct (correct=)"
            )
        prompt = "prompt" if "prompt" in names else "prompts"
        for row in rows:
            value, correct = _number(row[signal]), _truth(row.get(right or ""))
            if value is None:
                table.leave_out(f"'{signal}' is blank", correct)
            else:
                table.add(score=value, correct=correct, question=str(row[prompt]))
        return table


CORRECT = ("correct", "is_correct", "response_correct", "correct_indicator", "correct_indicators")


def _truth(value: Any) -> float | None:
    if isinstance(value, str):
        value = {"true": 1, "false": 0}.get(value.strip().lower(), _number(value))
    return zero_or_one(value)


class Judges(LogFormat):
    """JSON lines of a judge's scores, as CJE has them, with an oracle's labels on a slice."""

    tool = "scores of a judge"

    def recognises(self, file: LogFile) -> bool:
        """Return whether the first line has a judge's score."""
        return "judge_score" in file.first

    def read(self, file: LogFile, options: ReadOptions) -> LogTable:
        """Return a row a response; rows without a label stay for what is said of all rows."""
        table = LogTable(self.tool)
        table.signal = "'judge_score' (a score, no probability)"
        for place, row in file.rows():
            score = _number(row.get("judge_score"))
            label = row.get("oracle_label", row.get("label"))
            prompt = row.get("prompt_id", as_object(row.get("metadata")).get("prompt_id"))
            if score is None:
                table.leave_out("no judge_score", zero_or_one(label))
                continue
            value = _number(label)
            if label is not None and (value is None or not 0 <= value <= 1):
                raise file.error(place, f"its label must lie in [0, 1], not {str(label)[:40]!r}")
            question = {"question": str(prompt)} if prompt is not None else {}
            table.add(score=score, correct=value, **question)
        return table
