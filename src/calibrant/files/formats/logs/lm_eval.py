"""Logs of lm-evaluation-harness: a file of samples a task, or samples inline in the results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress

from calibrant.core.text import listed
from calibrant.files.formats.logs.base import (
    LogFile,
    LogFormat,
    LogTable,
    Row,
    as_list,
    as_object,
    zero_or_one,
)
from calibrant.files.formats.logs.choices import (
    METRICS,
    PAIRS,
    TEXT_OF,
    Question,
    add_choices,
    metrics_of,
    question_of,
    subject_of,
)
from calibrant.files.formats.logs.signals import Answer, add_answers
from calibrant.files.formats.logs.stated import how_stated
from calibrant.files.opening import beside, is_file, open_binary
from calibrant.files.options import ReadOptions

# Those of generated texts.
ACCURACIES = ("exact_match", "acc", "prompt_level_strict_acc", "extractive_match", "em")
# Rows of a task, each with what messages call its place.
Places = list[tuple[str, Row]]


class LmEval(LogFormat):
    """Samples of any version since 0.4."""

    tool = "lm-evaluation-harness"

    def recognises(self, file: LogFile) -> bool:
        """Return whether the first object is a sample, or results as the tool writes them."""
        first = file.first
        if "doc_id" in first and ("filtered_resps" in first or "resps" in first):
            return True
        inline = bool(as_object(first.get("samples")))
        return "results" in first and (inline or {"configs", "n-shot"} <= first.keys())

    def tasks(self, file: LogFile) -> tuple[Iterator[tuple[str, Places]], Row]:
        """Return the tasks of a file with their rows by their places, and the run's results."""
        inline = "results" in file.first
        results = file.first if inline else _results_beside(file)
        return _inline(file) if inline else _of_lines(file), results

    def read(self, file: LogFile, options: ReadOptions) -> LogTable:
        """Return a row a question that has log-likelihoods of choices."""
        tasks, results = self.tasks(file)
        table = LogTable(self.tool, str(results.get("lm_eval_version") or ""))
        used: dict[str, int] = {}
        texts: list[Answer] = []
        for task, every in tasks:
            rows, name = _of_filter(every, file, options, table)
            if options.verbalised is not None:
                texts += _texts(task, rows, name)
                continue
            questions: list[Question] = []
            for place, row in rows:
                found = question_of(place, row)
                if isinstance(found, str):
                    table.leave_out(found, _own_accuracy(row, name))
                    texts += _texts(task, [(place, row)], name)
                else:
                    questions.append(found)
            if any(row.metric(name) is None for row in questions for name in row.metrics):
                for _ in questions:
                    table.leave_out("its accuracy is a share, not right or wrong")
            elif questions:
                _check_results(questions, as_object(results.get("results")), file, task)
                add_choices(table, questions, file, task, options, used)
        if options.verbalised is not None:
            add_answers(table, texts, options, file)
            return table
        if not table.cells:
            table.notes += how_stated(one.text for one in texts)
        if "results" in file.first and not table.cells and not table.left_out:
            table.notes.append("Results alone hold no rows; --log_samples writes them.")
        table.signal = listed([text for text in TEXT_OF.values() if text in used])
        table.positions = True
        own = [f"'{name}'" for name in METRICS if name in used]
        table.checked = bool(own)
        if own:
            table.notes.append(f"The log's own values of {listed(own)} come out on every row.")
        elif table.cells:
            table.notes.append("The log holds no accuracy a row to check the right choices with.")
        return table


def _texts(task: str, rows: Places, name: str | None) -> Iterator[Answer]:
    """Yield the generated texts of a task, the first of each question."""
    for place, row in rows:
        first = as_list(row.get("resps"))[:1]
        while first and isinstance(first[0], list):
            first = as_list(first[0])[:1]
        if first and isinstance(first[0], str):
            doc = row.get("doc_hash") or row.get("doc_id")
            more = {"task": task, "id": row.get("doc_id"), **subject_of(row)}
            right = _own_accuracy(row, name)
            yield Answer(place, f"{task}/{doc}", first[0], correct=right, more=more)


def _own_accuracy(row: Row, name: str | None) -> float | None:
    names = ACCURACIES if name is None else (name,)
    return next((zero_or_one(row[key]) for key in names if key in row), None)


def _of_filter(
    rows: Places, file: LogFile, options: ReadOptions, table: LogTable
) -> tuple[Places, str | None]:
    """Return the rows of one filter of answers, and the metric that says which are right.

    ``correct`` may name both, as results do: ``exact_match,strict-match``.

    Raises:
        PredictionsError: there is no such metric or filter.
    """
    filters = list(dict.fromkeys(str(row.get("filter", "none")) for _, row in rows))
    name, _, chosen = (options.correct or "").partition(",")
    first = rows[0][1] if rows else {}
    metrics = [m for m in (as_list(first.get("metrics")) or first) if m in first]
    if (name and rows and name not in first) or (chosen and chosen not in filters):
        known = [f"{m},{f}" for m in metrics for f in filters if zero_or_one(first[m]) is not None]
        raise file.error(
            rows[0][0],
            f"has no metric and filter '{options.correct}'; --correct (correct=) is one of "
            f"{', '.join(known)}",
        )
    one = chosen or ("none" if "none" in filters else filters[0] if filters else "")
    if len(filters) > 1:
        own = name or next((key for key in ACCURACIES if key in first), "exact_match")
        others = [f"--correct {own},{other}" for other in filters if other != one]
        table.notes.append(
            f"Of {len(filters)} filters '{one}' says what is right; {' or '.join(others)} takes "
            "another."
        )
    found = [item for item in rows if str(item[1].get("filter", "none")) == one]
    return found, name or None


def _inline(file: LogFile) -> Iterator[tuple[str, Places]]:
    """Yield the tasks of results that hold their samples."""
    for task, rows in as_object(file.first.get("samples")).items():
        samples = [as_object(row) for row in as_list(rows)]
        yield task, [(f"sample {i} of {task}", row) for i, row in enumerate(samples)]


def _of_lines(file: LogFile) -> Iterator[tuple[str, Places]]:
    """Yield the task of a file of samples, which has its name."""
    match = re.fullmatch(r"(?:.*?samples_)?(.+)_[^_]*", file.name.rpartition(".")[0])
    yield match[1] if match and "samples_" in file.name else "", list(file.rows())


def _results_beside(file: LogFile) -> Row:
    """Return what the results of the same run say, if they lie beside the samples."""
    date = file.name.rpartition("_")[2].rpartition(".")[0]
    path = beside(file.where, f"results_{date}.json")
    with suppress(Exception):
        if is_file(path):
            with open_binary(path) as found:
                return as_object(json.loads(found.read()))
    return {}


def _check_results(questions: Sequence[Question], results: Row, file: LogFile, task: str) -> None:
    """Raise `PredictionsError` unless the means in the results are those of the rows."""
    for name in metrics_of(questions):
        stated = as_object(results.get(task)).get(f"{name},none")
        own = [one.metric(name) for one in questions]
        if name in PAIRS or None in own or not isinstance(stated, int | float):
            continue
        file.check_mean(f"'{name}' of {task}", stated, sum(map(bool, own)) / len(own))
