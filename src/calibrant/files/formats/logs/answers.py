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
from collections.abc import Mapping, Sequence
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
    number_of,
    zero_or_one,
)
from calibrant.files.formats.logs.outcomes import GOLD, outcomes_of
from calibrant.files.formats.logs.signals import (
    LEAST,
    LETTERS,
    add_letters,
    check_not_all_alike,
    chosen_signal,
    label_of,
    note_mass,
)
from calibrant.files.formats.logs.stated import how_stated, stated
from calibrant.files.gate import readable
from calibrant.files.options import ReadOptions

# Keys of a number a choice.
SCORES = ("scores", "logprobs", "log_probs", "choice_logprobs")
# Longer texts are no names of groups.
LONGEST_GROUP = 80
# Columns that a format fills by itself.
OWN = ("logits", "probs", "confidence", "score", "labels", "correct", "predicted", "question")


class Letters(LogFormat):
    """JSON lines with numbers of named choices: log-probabilities, or probabilities."""

    tool = "scores of letters"

    def recognises(self, file: LogFile) -> bool:
        """Return whether the first line has a number a choice and names the right one."""
        scores = as_object(file.first.get(_scores(file.first)))
        numbers = all(number_of(value) is not None for value in scores.values())
        return len(scores) > 1 and numbers and _gold(file.first) is not None

    def read(self, file: LogFile, options: ReadOptions) -> LogTable:
        """Return a row a line."""
        table = LogTable(self.tool)
        signal = chosen_signal(options, LETTERS, file.where)
        key = _scores(file.first)
        probs = options.are == "probs"
        rows = list(file.rows())
        first = _first_place(rows, key, file, options)
        for place, row in rows:
            gold, scores = row.get(_gold(row) or ""), as_object(row.get(key))
            if not scores:
                table.leave_out("no scores", zero_or_one(row.get("correct")))
                continue
            letters = sorted(scores)
            numbers = [number_of(scores[letter]) for letter in letters]
            if None in numbers:
                raise file.error(place, "its scores must be finite numbers")
            values = np.array(numbers, dtype=np.float64)
            if probs:
                if not (values >= 0).all() or not values.any():
                    raise file.error(place, "its probabilities must be 0 or more, and one above 0")
                values = np.log(np.maximum(values, np.exp(LEAST / 20)))
            right = _letter_of(gold, letters, first)
            if right is None:
                raise file.error(place, f"the right choice {gold!r} is none of {', '.join(scores)}")
            said = letters[int(values.argmax())]
            for name, own in (("pred", said), ("correct", said == right)):
                stated = row.get(name)
                if name == "pred" and _letter_of(stated, letters, first) is not None:
                    stated = _letter_of(stated, letters, first)
                if stated is not None and zero_or_one(stated) != own and stated != own:
                    raise file.error(
                        place,
                        f"'{name}' is {row[name]!r}, but by its scores {said!r} is the likeliest "
                        f"choice and {gold!r} the right one",
                    )
            others = _groups(row, ("pred", "correct", *GOLD))
            try:
                add_letters(table, signal, values, letters, letters.index(right), others)
            except PredictionsError as fault:
                every = [x for _, each in rows for x in as_object(each.get(key)).values()]
                check_not_all_alike(np.array([number_of(x) or 0.0 for x in every]), file.where)
                hint = "" if probs else "; if these are probabilities: --are probs"
                raise file.error(place, f"{fault}{hint}") from fault
        logs = [row["logits"] for row in table.cells if "logits" in row]
        check_not_all_alike(np.array([x for one in logs for x in one]), file.where)
        if probs:  # as the caller calls them
            for row in table.cells:
                if "logits" in row:
                    shares = np.exp(row.pop("logits"))
                    row["probs"] = (shares / shares.sum()).tolist()
        if "correct" in file.first or "pred" in file.first:
            table.checked = True
            table.notes.append("Its own answers come out of the scores on every row.")
        note_mass(table)
        return table


def _gold(row: Mapping[str, Any]) -> str | None:
    return next((key for key in ("gold", *GOLD) if key in row), None)


def _scores(row: Mapping[str, Any]) -> str:
    return next((key for key in SCORES if as_object(row.get(key))), "")


def _letter_of(gold: Any, letters: Sequence[str], first: int) -> str | None:
    """Return the name of a choice, by its name in any case or by its place."""
    if isinstance(gold, str) and not gold.strip().isdecimal():
        named = [one for one in letters if one.casefold() == gold.strip().strip("().").casefold()]
        return named[0] if len(named) == 1 else None
    if str(gold) in letters:
        return str(gold)
    value = number_of(gold)
    place = -1 if value is None or value != int(value) else int(value) - first
    return letters[place] if 0 <= place < len(letters) else None


def _first_place(
    rows: Sequence[tuple[str, Row]], key: str, file: LogFile, options: ReadOptions
) -> int:
    """Return the number of the first choice where right ones are given by number.

    Raises:
        PredictionsError: nothing tells whether they count from 0 or from 1.
    """
    row = next((row for _, row in rows if as_object(row.get(key))), Row())
    gold = row.get(_gold(row) or "")
    if options.labels_from is not None or number_of(gold) is None or str(gold) in row[key]:
        return options.labels_from or 0
    fits: list[int] = []
    for first in (0, 1):
        for _, row in rows:
            scores = as_object(row.get(key))
            if not scores:
                continue
            letters, own = sorted(scores), zero_or_one(row.get("correct"))
            values = [number_of(scores[letter]) or 0.0 for letter in letters]
            right = _letter_of(row.get(_gold(row) or ""), letters, first)
            said = letters[int(np.argmax(values))]
            if right is None or (own is not None and (said == right) != bool(own)):
                break
        else:
            fits.append(first)
    if len(fits) == 2:
        raise PredictionsError(
            f"{file.where}: whether the right choices count from 0 or from 1 isn't clear; say it "
            "by --labels-from 0 or 1 (labels_from=)"
        )
    return fits[0] if fits else 0


def _groups(row: Mapping[str, Any], others: tuple[str, ...]) -> Row:
    """Return the cells of a row that aren't used otherwise, but may tell groups apart."""
    return {
        key: value
        for key, value in row.items()
        if key not in (*others, *OWN)
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
            top = {name: p for name in tokens if (p := number_of(row[name])) is not None and p > 0}
            sums = dict.fromkeys(labels, 0.0)
            for token, p in top.items():
                label = label_of(token, tuple(labels))
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
            f"In {absent} rows a letter isn't among the likeliest tokens; it counts with the "
            "lowest probability listed. The table holds no accuracy to check."
        )
        note_mass(table)
        return table


def _count(rows: list[tuple[str, Row]]) -> int:
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


def _place(answer: Any) -> int:
    """Return the place of an answer, given as a number from 0 or as a letter; -1 for neither."""
    text = str(answer).strip()
    if text.isdecimal():
        return int(text)
    return ord(text.upper()) - ord("A") if re.fullmatch("[A-Za-z]", text) else -1


class ComparedColumns(LogFormat):
    """Rows whose right and extracted answers are compared, with confidences beside them."""

    tool = "answers compared"
    right = ("correct_answer", "gold_answer", "ground_truth", "reference_answer")
    said = ("extracted_answer", "predicted_answer", "model_answer", "parsed_answer")

    def recognises(self, file: LogFile) -> bool:
        """Return whether both answers and a confidence are there."""
        names = {*file.names}
        both = names.intersection(self.right) and names.intersection(self.said)
        return bool(both) and any("confidence" in name for name in names)

    def read(self, file: LogFile, options: ReadOptions) -> LogTable:
        """Return a row an answer; a column of confidences is a signal."""
        table = LogTable(self.tool)
        known = [name for name in file.names if "confidence" in name]
        known.sort(key=_is_score)
        signal = chosen_signal(options, known, file.where)
        score = _is_score(signal)
        table.signal = f"'{signal}'" + (" (a score, no probability)" if score else "")
        right = next(name for name in self.right if name in file.names)
        said = next(name for name in self.said if name in file.names)
        texts: list[str] = []
        for _, row in file.records():
            gold, cell = (str(row.get(name, "")).strip() for name in (right, signal))
            correct = float(gold == str(row.get(said, "")).strip() != "")
            value = number_of(cell)
            if options.verbalised is not None:
                value = stated(cell, options.verbalised, whole=True)
            if value is not None and (score or 0 <= value <= 1):
                groups = _groups(row, (right, said, *known, ""))
                table.add(**{"score" if score else "confidence": value}, correct=correct, **groups)
            elif cell in ("", "None"):
                table.leave_out(f"'{signal}' is blank", correct)
            elif value is not None:
                table.leave_out(f"'{signal}' lies outside [0, 1]", correct)
            else:
                texts.append(f"confidence: {cell}")
                form = "of the declared form" if options.verbalised else "a number"
                table.leave_out(f"'{signal}' is not {form}", correct)
        outside = table.left_out.get(f"'{signal}' lies outside [0, 1]")
        if outside is not None and outside.rows > len(table.cells):
            raise PredictionsError(
                f"{file.where}: most of '{signal}' lies outside [0, 1]; percent isn't guessed: "
                f"read it by --verbalised '{{percent}}'"
            )
        if len(texts) > len(table.cells):
            table.notes += [one.replace("confidence: ", "") for one in how_stated(texts)]
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
        return file.first_line[:80].split() in (
            [b"grade", b"confidence_level"],
            [b"grade", b"confidence"],
        )

    def read(self, file: LogFile, options: ReadOptions) -> LogTable:
        """Return a row a line whose answer could be read."""
        table = LogTable(self.tool)
        score = options.are == "score"
        table.signal = "the number beside each grade (a score, no probability)"
        if not score:
            table.signal = "the confidence beside each grade"
        with file.open() as raw, readable("the text", file.where):
            for number, line in enumerate(raw.read().decode("utf-8").splitlines()[1:], start=2):
                word, _, cell = line.strip().partition(" ")
                if not word:
                    continue
                value, grade = number_of(cell), self.words.get(word.lower())
                if word.lower().startswith("unpars"):
                    table.leave_out("no answer could be read", 0.0)
                elif grade is None or value is None:
                    raise file.error(
                        f"line {number}",
                        f"expected Correct, Wrong or Unparseable and a confidence from 0 to 1, "
                        f"found {line.strip()[:40]!r}",
                    )
                elif not score and not 0 <= value <= 1:
                    raise file.error(
                        f"line {number}",
                        f"{value:g} is no confidence from 0 to 1; to read these numbers as scores: "
                        "--are score (are='score')",
                    )
                else:
                    table.add(**{"score" if score else "confidence": value}, correct=grade)
        return table


class Uqlm(LogFormat):
    """Results of uqlm with a column that says which responses are correct."""

    tool = "uqlm"
    # Of one kind of result each, by which a table is known; any column of numbers is a scorer.
    scorers: ClassVar[tuple[str, ...]] = (
        *(
            "semantic_negentropy",
            "semantic_sets_confidence",
            "semantic_density",
            "noncontradiction",
        ),
        *("entailment", "exact_match", "bert_score", "cosine_sim", "p_true", "judge_1"),
        *("min_probability", "normalized_probability", "sequence_probability"),
        *("probability_margin", "min_token_negentropy", "mean_token_negentropy"),
        *("monte_carlo_probability", "consistency_and_confidence", "functional_negentropy"),
        *("functional_equivalence_rate", "verbalized_confidence"),
        *("ensemble_score", "ensemble_scores"),
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
        data = self._data(file)
        if not file.header and any(isinstance(value, list) for value in data.values()):
            columns = {k: as_list(v) for k, v in data.items() if isinstance(v, list)}
            lengths = {name: len(column) for name, column in columns.items()}
            if len({*lengths.values()}) > 1:
                raise PredictionsError(f"{file.where}: its lists differ in length: {lengths}")
            rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values())]  # noqa: B905
        else:
            rows = [row for _, row in file.records()]
        names = list(rows[0]) if rows else []
        right = next((k for k in (options.correct, *CORRECT) if k in names), None)
        known = [name for name in names if name in self.scorers]
        others = {*known, right, "", "prompt", "prompts", "response", "responses"}
        known += [k for k in names if k not in others and number_of(rows[0][k]) is not None]
        signal = chosen_signal(options, known, file.where)
        table.signal = f"'{signal}' (a score, no probability)"
        if len(known) > 1:
            table.notes.append(f"--signal is one of {', '.join(known)}.")
        if right is None and options.labelled:
            raise PredictionsError(
                f"{file.where}: no column says which responses are correct; expected one of "
                f"{', '.join(CORRECT)}, or name it by --correct (correct=)"
            )
        prompt = "prompt" if "prompt" in names else "prompts"
        for row in rows:
            value, correct = number_of(row[signal]), zero_or_one(row.get(right or ""))
            if value is None:
                table.leave_out(f"'{signal}' is blank", correct)
            else:
                table.add(score=value, correct=correct, question=str(row[prompt]))
        return table


CORRECT = ("correct", "is_correct", "response_correct", "correct_indicator", "correct_indicators")


class Judges(LogFormat):
    """Rows of a judge's scores, as CJE has them, with an oracle's labels on a slice."""

    tool = "scores of a judge"

    def recognises(self, file: LogFile) -> bool:
        """Return whether the rows have a judge's score."""
        return "judge_score" in {*file.names, *as_object(file.first.get("metadata"))}

    def read(self, file: LogFile, options: ReadOptions) -> LogTable:
        """Return a row a response; rows without a label stay for what is said of all rows.

        Where rows were drawn into the slice with unequal probabilities, a column ``inclusion``
        holds these, or the column that ``weight`` names their inverses.
        """
        table = LogTable(self.tool)
        table.signal = "'judge_score' (a score, no probability)"
        keys = tuple(k for k in (options.correct, "oracle_label", "label") if k)
        known, used_up = outcomes_of(options), set[str]()
        for place, line in file.records():
            # What isn't in the row itself may be in its metadata.
            row = as_object(line.get("metadata")) | line
            score = number_of(row.get("judge_score"))
            label = next((row[k] for k in keys if k in row), None)
            label = None if label in ("", "None", "nan") else label
            prompt = row.get("prompt_id")
            if label is None and str(prompt) in known:
                one = known[str(prompt)]
                label = one.gold if one.correct is None else one.correct
                used_up.add(str(prompt))
            if score is None:
                table.leave_out("no judge_score that is a number", zero_or_one(label))
                continue
            value = number_of(label)
            if label is not None and (value is None or not 0 <= value <= 1):
                raise file.error(
                    place,
                    f"its label must lie in [0, 1], not {str(label)[:40]!r}; divide labels of "
                    "another scale by the highest that there can be",
                )
            more: Row = {} if prompt is None else {"question": str(prompt)}
            if "inclusion" in row or options.weight is not None:
                drawn = _inclusion(row, options.weight, file, place)
                more |= {"inclusion": drawn, options.weight or "weight": 1 / drawn}
            used = (*keys, "judge_score", "prompt_id", *more)
            table.add(score=score, correct=value, **_groups(row, used), **more)
        if known and not used_up:
            raise PredictionsError(
                f"{file.where}: no prompt_id equals the id of an outcome, such as "
                f"'{next(iter(known))}'"
            )
        return table


def _inclusion(row: Row, weight: str | None, file: LogFile, place: str) -> float:
    """Return the probability with which a row was drawn, up to a factor for all rows."""
    name = "inclusion" if weight is None else weight
    value = number_of(row.get(name))
    if value is None or value <= 0 or (weight is None and value > 1):
        limits = "a probability in (0, 1]" if weight is None else "a number above 0"
        raise file.error(place, f"'{name}' must hold {limits}, not {str(row.get(name))[:40]!r}")
    return value if weight is None else 1 / value
