"""Questions with a log-likelihood a choice: which is right, checked by the tool's own metrics."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.files.formats.logs.base import (
    LogFile,
    LogTable,
    Row,
    as_list,
    as_object,
    zero_or_one,
)
from calibrant.files.formats.logs.signals import check_not_all_alike
from calibrant.files.options import Normalisation, ReadOptions

# Metrics of being right, lighteval's among them, and what each divides log-likelihoods by.
METRICS: dict[str, Normalisation] = {
    "acc": "none",
    "acc_norm": "chars",
    "acc_bytes": "bytes",
    "acc_mutual_info": "unconditional",
    "acc_norm_pmi": "unconditional",
    "acc_norm_token": "tokens",
    "truthfulqa_mc1": "none",
    "f1": "none",
    "mcc": "none",
}
# Of each row these hold the right choice and the likeliest one.
PAIRS = ("f1", "mcc")
# With these stand log-likelihoods without the question behind the others.
WITHOUT = {name for name, how in METRICS.items() if how == "unconditional"}
TEXT_OF: dict[Normalisation, str] = {
    "none": "log-likelihoods of the choices as they are",
    "chars": "log-likelihoods of the choices per character",
    "bytes": "log-likelihoods of the choices per byte",
    "unconditional": "log-likelihoods of the choices minus those without the question",
    "tokens": "log-likelihoods of the choices per token",
}
# What a row must have for a normalisation.
NEEDS: dict[Normalisation, str] = {
    "chars": "texts",
    "bytes": "texts",
    "unconditional": "log-likelihoods without the question",
    "tokens": "numbers of tokens",
}
# Where a data set's own row may name the right choice, counted from 0 or from 1, or by letter.
FIELDS = ("answer", "label", "gold", "answer_index", "gold_index", "correct_answer")


@dataclass(frozen=True)
class Question:
    """A row with a log-likelihood a choice.

    Attributes:
        place: where it stands.
        row: as the log has it.
        logs: (K,) log-likelihoods.
        without: (K,) log-likelihoods without the question, or None.
        texts: K continuations, with the delimiter before them.
        contexts: K texts before them.
    """

    place: str
    row: Row
    logs: FloatArray
    without: FloatArray | None
    texts: Sequence[str]
    contexts: Sequence[str]

    def scored(self, how: Normalisation, delimiter: int) -> FloatArray | None:
        """Return (K,) what the choices are compared by; None where the row lacks it."""
        if how == "none":
            return self.logs
        if how == "unconditional":
            return None if self.without is None else self.logs - self.without
        if how == "tokens":
            counts = as_list(self.row.get("tokens"))
            return self.logs / np.maximum(counts, 1) if len(counts) == len(self.logs) else None
        if len(self.texts) < len(self.logs):
            return None
        texts = [text[delimiter:] if text[:1].isspace() else text for text in self.texts]
        lengths = [len(text if how == "chars" else text.encode()) for text in texts]
        return self.logs / np.maximum(lengths, 1)

    def metric(self, name: str) -> bool | None:
        """Return whether a metric of the tool says that the row is right; None for no 0 or 1."""
        if name in PAIRS:
            pair = as_list(self.row.get(name))
            return bool(pair[0] == pair[1]) if len(pair) == 2 else None
        value = zero_or_one(self.row.get(name))
        return None if value is None else bool(value)

    @cached_property
    def metrics(self) -> list[str]:
        """The metrics of being right that the row has."""
        there = [name for name in METRICS if name in self.row]
        return [name for name in there if name not in PAIRS or self.metric(name) is not None]

    def agrees(self, name: str, right: int | Sequence[int], delimiter: int) -> bool:
        """Return whether a metric comes out if this is the right choice."""
        said, scores = self.metric(name), self.scored(METRICS[name], delimiter)
        if said is None or scores is None:
            return True
        rights = [right] if isinstance(right, int) else right
        return (int(scores.argmax()) in rights) == said


def question_of(place: str, row: Row) -> Question | str:
    """Return the choices of a row, or why it has none."""
    pairs = [_pair(one) for one in as_list(row.get("filtered_resps", row.get("resps")))]
    if None in pairs or not pairs:
        return "generated text without log-probabilities"
    logs = np.array([pair for pair in pairs if pair is not None])
    contexts, texts = _arguments(row.get("arguments"))
    without = None
    empty = [not context for context in contexts]
    if not WITHOUT.isdisjoint(row) and len(logs) % 2 == 0:
        half = np.arange(len(logs)) >= len(logs) // 2
        if len(empty) == len(logs) and sum(empty) == len(logs) // 2:
            half = np.array(empty)
        without, logs = logs[half], logs[~half]
        texts = [text for text, out in zip(texts, half, strict=False) if not out]
        contexts = [text for text, out in zip(contexts, half, strict=False) if not out]
    if len(logs) < 2:
        return "one log-likelihood, so that there is nothing to choose from"
    if np.isnan(logs).any() or np.isposinf(logs).any() or np.isfinite(logs).sum() < 2:
        return "log-likelihoods that aren't numbers, or fewer than two of them finite"
    return Question(place, row, logs, without, texts, contexts)


def _pair(item: Any) -> float | None:
    """Return the log-likelihood of ``[log-likelihood, is greedy]``, numbers or their texts."""
    pair = as_list(item)
    if len(pair) == 1:
        pair = as_list(pair[0])  # of one repeat
    if len(pair) == 2 and str(pair[1]) in ("True", "False", "0", "1"):
        with suppress(ValueError, TypeError):
            return float(pair[0])
    return None


def _arguments(arguments: Any) -> tuple[list[str], list[str]]:
    """Return the contexts and the continuations, in any of the forms that versions have."""
    pairs = as_list(arguments)
    if isinstance(arguments, dict):
        pairs = [list(as_object(one).values()) for one in as_object(arguments).values()]
    if len(pairs) == 2 and all(isinstance(one, str) for one in pairs):
        pairs = [pairs]
    known = [as_list(one) for one in pairs if len(as_list(one)) > 1]
    return [str(one[0]) for one in known], [str(one[1]) for one in known]


# --- which choice is right


def _by_index(question: Question) -> int | list[int] | None:
    target = question.row.get("target")
    if isinstance(target, str) and target.strip().isdecimal():
        target = int(target)
    elif isinstance(target, str):
        with suppress(ValueError, SyntaxError):
            target = ast.literal_eval(target.strip())
    several = as_list(target) or [target]
    several = [int(x) if isinstance(x, float) and x.is_integer() else x for x in several]
    places = [one for one in several if isinstance(one, int) and not isinstance(one, bool)]
    inside = [one for one in places if 0 <= one < len(question.logs)]
    if not inside or len(places) < len(several):
        return None
    return inside if isinstance(target, list) else inside[0]  # several may be right


def _by_text(question: Question) -> int | None:
    if len(set(question.texts)) < 2 or len(question.texts) < len(question.logs):
        return None
    target = str(question.row.get("target")).strip()
    texts = [text.strip() for text in question.texts]
    if target in texts:
        return texts.index(target)
    return _inside(_letter(target.strip("().").upper()), question)


def _by_pair(question: Question) -> int | None:
    """Return what stands first in the metrics that keep the right choice of each row."""
    pairs = (as_list(question.row.get(name)) for name in ("mcc", "f1", "brier_score", "likelihood"))
    golds = (p[0] for p in pairs if len(p) == 2 and isinstance(p[0], int))
    return _inside(next(golds, None), question)


def _by_field(question: Question, field: str, first: int) -> int | None:
    value = as_object(question.row.get("doc")).get(field)
    place = _letter(value.strip()) if isinstance(value, str) else None
    with suppress(ValueError, TypeError):
        place = int(value or "") - first if place is None else place
    return _inside(place, question)


def _letter(text: str) -> int | None:
    return ord(text) - ord("A") if re.fullmatch("[A-Z]", text) else None


def _inside(place: int | None, question: Question) -> int | None:
    return place if place is not None and 0 <= place < len(question.logs) else None


def _by_metric(question: Question) -> int | None:
    said = question.metric("acc")
    if len(question.logs) != 2 or said is None:
        return None
    top = int(question.logs.argmax())
    return top if said else 1 - top


Golds = Sequence[int | list[int] | None]  # None where it is none of the choices


def right_choices(
    questions: Sequence[Question], file: LogFile, task: str
) -> tuple[Golds, int, bool]:
    """Return the right choices of a task's questions.

    Behind them: how long the delimiter before choices is, and whether the log names the choices, so
    that its accuracy is a check of them.

    Each way to find them is tried on all rows; that one counts of which all of the tool's own
    metrics come out.

    Raises:
        PredictionsError: no way finds them, or none with which the metrics come out.
    """
    ways: list[Callable[[Question], int | list[int] | None]] = [_by_pair, _by_index, _by_text]
    ways += [partial(_by_field, field=field, first=i) for field in FIELDS for i in (0, 1)]
    best: list[tuple[Question, str]] | None = None
    metrics, nowhere = metrics_of(questions), list(questions)
    for whole, way in (*product((True, False), ways), (True, _by_metric)):
        golds = [way(question) for question in questions]
        lost = [question for question, gold in zip(questions, golds, strict=True) if gold is None]
        nowhere = min(nowhere, lost, key=len)
        if lost and (whole or not _all_wrong(lost, questions)):
            continue
        for delimiter in (1, 0):
            wrong = [
                (question, name)
                for question, gold in zip(questions, golds, strict=True)
                for name in metrics
                if gold is not None and not question.agrees(name, gold, delimiter)
            ]
            if not wrong:
                return golds, delimiter, way is not _by_metric
            best = wrong if best is None or len(wrong) < len(best) else best
    if best is None:
        question = nowhere[0]
        raise file.error(
            question.place,
            f"the right choice of {task or 'the task'} can't be found: target "
            f"{str(question.row.get('target'))[:60]!r} is neither the place nor the text of one of "
            f"its {len(question.logs)} choices ({len(nowhere)} such rows in the task)",
        )
    question, name = best[0]
    raise file.error(
        question.place,
        f"'{name}' is {question.row[name]}, but doesn't come out of its log-likelihoods and the "
        f"target {str(question.row.get('target'))[:60]!r} ({len(best)} such values in the task)",
    )


def metrics_of(questions: Sequence[Question]) -> list[str]:
    """Return the metrics of being right that some row has."""
    there = {name for question in questions for name in question.metrics}
    return [name for name in METRICS if name in there]


def _all_wrong(lost: Sequence[Question], questions: Sequence[Question]) -> bool:
    """Return whether these are fewer than half of the questions, and none is scored as right.

    So the tool scores a question whose right choice is none of its choices.
    """
    own = [{question.metric(name) for name in question.metrics} for question in lost]
    return 2 * len(lost) < len(questions) and all(said == {False} for said in own)


# Parameters: a task's rows and where they go.
def add_choices(
    table: LogTable,
    questions: Sequence[Question],
    file: LogFile,
    task: str,
    options: ReadOptions,
    used: dict[str, int],
) -> None:
    """Add a task's questions to a table, and count in `used` what they were checked by.

    Raises:
        PredictionsError: as `right_choices`; a row lacks what a normalisation needs.
    """
    golds, delimiter, named = right_choices(questions, file, task)
    check_not_all_alike(np.concatenate([q.logs for q in questions]), file.where)
    if not named:
        table.notes.append(
            f"{task or file.name} doesn't name the right choices; of two choices they follow "
            "from 'acc', which is then no check of them."
        )
    how, metrics = options.normalise, metrics_of(questions)
    if how is None:
        how = METRICS[metrics[0]] if metrics else "none"
    for question, gold in zip(questions, golds, strict=True):
        if gold is None:
            table.leave_out("the right choice is none of the choices", 0.0)
            continue
        scores = question.scored(how, delimiter)
        if scores is None:
            need = f"has no {NEEDS[how]} of its choices, which --normalise {how} needs"
            raise file.error(question.place, need)
        if not isinstance(gold, int):
            top = int(scores.argmax())
            gold = top if top in gold else gold[0]
        if np.isneginf(scores[gold]):
            table.leave_out("the right choice has a log-likelihood of -inf", 0.0)
            continue
        for name in metrics:
            if question.metric(name) is not None:
                used[name] = used.get(name, 0) + 1
        used[TEXT_OF[how]] = 1
        doc = question.row.get("doc_hash") or question.row.get("doc_id")
        table.add(
            logits=scores.tolist(),
            labels=gold,
            task=task,
            id=question.row.get("doc_id"),
            question=f"{task}/{doc}",
            **subject_of(question.row),
        )


def subject_of(row: Row) -> dict[str, str]:
    """Return what the data set's own row calls its subject, as a cell to group by."""
    fields = as_object(row.get("doc"))
    found = next((fields[k] for k in ("subject", "category", "topic") if k in fields), None)
    return {"subject": found} if isinstance(found, str) else {}
