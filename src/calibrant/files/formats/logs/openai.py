"""Answers as OpenAI's API gives them, and all servers that speak it: batches and completions.

The labels aren't in them; `outcomes` names files that have them, by `custom_id` or `id`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from calibrant.core.errors import PredictionsError
from calibrant.files.formats.logs.base import (
    LogFile,
    LogFormat,
    LogTable,
    Row,
    as_list,
    as_object,
)
from calibrant.files.formats.logs.outcomes import Outcome, outcomes_of
from calibrant.files.formats.logs.signals import AROUND, LEAST, Answer, add_answers, label_in
from calibrant.files.options import ReadOptions

# More labels than these are no multiple choice.
MOST_LABELS = 26
# What vLLM calls probabilities of given tokens behind a question and each of its items.
SCORES = "generative_score"


class OpenAi(LogFormat):
    """Lines of a batch, and completions of chats, of texts or of the Responses API."""

    tool = "an API as OpenAI's"

    def recognises(self, file: LogFile) -> bool:
        """Return whether the first object is a line of a batch, or a completion."""
        first = file.first
        if {"custom_id", "response"} <= first.keys():
            return True
        if first.get("object") == SCORES and as_list(first.get("results")):
            return True
        return bool(_choices(first)) and not {"object", "model", "usage"}.isdisjoint(first)

    def read(self, file: LogFile, options: ReadOptions) -> LogTable:
        """Return a row an answer."""
        table = LogTable(self.tool)
        known = outcomes_of(options)
        golds = {one.gold for one in known.values() if one.gold is not None}
        every = list(file.rows())
        rows = [item for at in every for item in _single(*at, alone=len(every) == 1)]
        labels = list(options.classes) or _labels(golds, rows)
        numbered = bool(golds) and all(gold.isdecimal() for gold in golds)
        if numbered and golds.isdisjoint(labels):
            known = _by_place(known, labels, options, file)
        answers: list[Answer] = []
        missing: list[str] = []
        compared = False
        for place, row in rows:
            response = as_object(row.get("response")) if "custom_id" in row else {"body": row}
            body = as_object(response.get("body"))
            name = str(row.get("custom_id", row.get("id", place)))
            failed = response.get("status_code", 200) != 200 or row.get("error")
            if failed or not body:
                table.leave_out("the request failed")
                continue
            if name not in known and options.labelled:
                missing.append(f"{place} ({name})")
                continue
            gold, correct = known.get(name, Outcome())
            for text, tokens in _choices(body):
                said, right = label_in(text, labels), correct
                if not labels:
                    said = text.strip()
                    whole = correct is None and gold is not None
                    right = (
                        float(said.casefold() == str(gold).strip().casefold()) if whole else right
                    )
                    compared |= whole
                answers.append(
                    Answer(place, name, text, tokens, said, gold, right, labels, {"id": name})
                )
        if missing:
            raise PredictionsError(
                f"{file.where}: {missing[0]} has no label, and neither have {len(missing) - 1} "
                "others: answers contain no labels; name a file that has them by --outcomes "
                "FILE, with the columns custom_id (or id) and label"
            )
        if compared and (options.verbalised is not None or not any(a.right for a in answers)):
            raise PredictionsError(
                f"{file.where}: the answers are longer than the labels, so comparing texts "
                "can't show which are right; give a column 'correct' of 0 and 1 in --outcomes"
            )
        if compared:
            table.notes.append("An answer is right where its whole text is the label, in any case.")
        if answers and not labels and _has_no_truth(answers):
            table.notes.append("No label is known.")
        add_answers(table, answers, options, file)
        if numbered and not table.cells and not options.classes:
            table.notes.append(
                "If the labels are places of letters, name the letters by --classes A,B,C,D and "
                "say by --labels-from 0 or 1 what the first one is."
            )
        return table


def _by_place(
    known: dict[str, Outcome], labels: list[str], options: ReadOptions, file: LogFile
) -> dict[str, Outcome]:
    """Return outcomes whose labels are names; they were numbers, counted from `labels_from`."""
    if options.labels_from is None:
        raise PredictionsError(
            f"{file.where}: the labels are numbers, and none of {', '.join(labels)}; say by "
            "--labels-from 0 or 1 (labels_from=) which number the first of these has"
        )
    names = {str(i): name for i, name in enumerate(labels, start=options.labels_from)}
    return {
        key: one._replace(gold=names.get(str(one.gold), one.gold)) for key, one in known.items()
    }


def _single(place: str, row: Row, *, alone: bool) -> Iterator[tuple[str, Row]]:
    """Yield a row as it is, and generative scores as a completion of one token for each item."""
    body = (
        row
        if row.get("object") == SCORES
        else as_object(as_object(row.get("response")).get("body"))
    )
    if body.get("object") != SCORES:
        yield place, row
        return
    before = "" if alone else f"{row.get('custom_id', row.get('id'))}/"
    for one in map(as_object, as_list(body.get("results"))):
        probs = as_object(one.get("token_probs"))
        logs = {token: math.log(p) if p > 0 else LEAST for token, p in probs.items()}
        said = max(logs, key=lambda token: logs[token], default="")
        tokens = {"tokens": [said], "token_logprobs": [logs.get(said)], "top_logprobs": [logs]}
        name = f"{before}{one.get('index')}"
        yield (
            f"{place}, index {one.get('index')}",
            {"id": name, "choices": [{"text": said, "logprobs": tokens}]},
        )


def _labels(golds: set[str], rows: list[tuple[str, Row]]) -> list[str]:
    """Return the possible answers: the right ones, if few; of letters all up to the last in use."""
    if not 1 < len(golds) <= MOST_LABELS:
        return []
    if not all(re.fullmatch("[A-Z]", gold) for gold in golds):
        return sorted(golds)
    used = set(golds)
    for _, row in rows:
        body = as_object(as_object(row.get("response")).get("body")) or row
        used |= {text.strip(AROUND) for text, _ in _choices(body)}
    last = max(one for one in used if re.fullmatch("[A-Z]", one))
    return [chr(i) for i in range(ord("A"), ord(last) + 1)]


def _has_no_truth(answers: list[Answer]) -> bool:
    return all(answer.gold is None and answer.correct is None for answer in answers)


def _choices(body: Row) -> list[tuple[str, list[Row]]]:
    """Return the texts of a completion, each with its tokens in the form that chats have."""
    found: list[tuple[str, list[Row]]] = []
    for choice in map(as_object, as_list(body.get("choices"))):
        logprobs = as_object(choice.get("logprobs"))
        if "text" in choice:
            found.append((str(choice["text"]), list(_legacy(logprobs))))
        elif "message" in choice:
            text = as_object(choice["message"]).get("content") or ""
            found.append((str(text), [as_object(t) for t in as_list(logprobs.get("content"))]))
    for item in map(as_object, as_list(body.get("output"))):
        for part in map(as_object, as_list(item.get("content"))):
            if part.get("type") == "output_text":
                tokens = [as_object(t) for t in as_list(part.get("logprobs"))]
                found.append((str(part.get("text", "")), tokens))
    return found


def _legacy(logprobs: Row) -> Iterator[Row]:
    """Yield the tokens of a completion of a text; the first has no probability behind an echo."""
    tops = as_list(logprobs.get("top_logprobs"))
    tokens, values = as_list(logprobs.get("tokens")), as_list(logprobs.get("token_logprobs"))
    for i, (token, value) in enumerate(zip(tokens, values, strict=False)):
        if value is not None:
            top = as_object(tops[i]) if i < len(tops) else {}
            likeliest = [{"token": one, "logprob": p} for one, p in top.items()]
            yield {"token": token, "logprob": value, "top_logprobs": likeliest}
