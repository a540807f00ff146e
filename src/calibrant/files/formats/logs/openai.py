"""Answers as OpenAI's API gives them, and all servers that speak it: batches and completions.

The labels aren't in them; `outcomes` names files that have them, by `custom_id` or `id`.
"""

from __future__ import annotations

from collections.abc import Iterator

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
from calibrant.files.formats.logs.outcomes import Outcome, outcomes_of
from calibrant.files.formats.logs.signals import Answer, add_answers, label_of
from calibrant.files.options import ReadOptions

# More labels than these are no multiple choice.
MOST_LABELS = 26


class OpenAi(LogFormat):
    """Lines of a batch, and completions of chats, of texts or of the Responses API."""

    tool = "an API as OpenAI's"

    def recognises(self, file: LogFile) -> bool:
        """Return whether the first object is a line of a batch, or a completion."""
        first = file.first
        if {"custom_id", "response"} <= first.keys():
            return True
        return bool(_choices(first)) and "object" in first

    def read(self, file: LogFile, options: ReadOptions) -> LogTable:
        """Return a row an answer."""
        table = LogTable(self.tool)
        known = outcomes_of(options)
        golds = {one.gold for one in known.values() if one.gold is not None}
        labels = list(options.classes) or (sorted(golds) if 1 < len(golds) <= MOST_LABELS else [])
        answers: list[Answer] = []
        missing: list[str] = []
        for place, row in file.rows():
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
                said = label_of(text.strip()[-1:] if labels else text, labels) or text.strip()
                if correct is None and gold is not None and not labels:
                    right = zero_or_one(text.strip().casefold() == gold.strip().casefold())
                else:
                    right = correct
                answers.append(
                    Answer(place, name, text, tokens, said, gold, right, labels, {"id": name})
                )
        if missing:
            raise PredictionsError(
                f"{file.where}: {missing[0]} has no label, and neither have {len(missing) - 1} "
                "others: answers hold none; name a file that has them by --outcomes FILE, with "
                "the columns custom_id (or id) and label"
            )
        if answers and not labels and _has_no_truth(answers):
            table.notes.append("No label is known.")
        add_answers(table, answers, options, file)
        return table


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
