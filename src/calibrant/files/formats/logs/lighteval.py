"""Details of lighteval: a parquet file a task, in the columns of any of its versions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

from calibrant.files.formats.logs.base import LogFile, Row, as_list, as_object
from calibrant.files.formats.logs.choices import METRICS
from calibrant.files.formats.logs.lm_eval import LmEval, Places

# Since 0.10 three structures, before it a column a field, whose cells may be text.
STRUCTURES = {"doc", "model_response", "metric"}
FIELDS = {"predictions", "choices", "gold_index", "metrics"}
SPELT = {
    "LogProbCharNorm": "_norm",
    "LogProbTokenNorm": "_norm_token",
    "LogProbPMINorm": "_norm_pmi",
}
USED = (*STRUCTURES, *FIELDS, "example", "full_prompt", "gold", "cont_tokens", "specifics")


class LightEval(LmEval):
    """Details of a task: its rows are brought into the form of lm-evaluation-harness."""

    tool = "lighteval"

    def recognises(self, file: LogFile) -> bool:
        """Return whether a table has the columns of details."""
        names = {*file.header}
        return {"doc", "model_response"} <= names or {*FIELDS, "full_prompt"} <= names

    def tasks(self, file: LogFile) -> tuple[Iterator[tuple[str, Places]], Row]:
        """Return the only task with its rows; no results say the version."""
        cells = [row for _, row in file.table(USED)]
        first = as_object(cells[0].get("doc")) if cells else {}
        name = first.get("task_name") or file.name.removeprefix("details_").rpartition("_")[0]
        return iter([(name, [(f"row {i}", _sample(row, i)) for i, row in enumerate(cells)])]), {}


def _sample(row: Row, number: int) -> Row:
    """Return a row as lm-evaluation-harness would have it."""
    if "doc" in row:
        doc, response = as_object(row["doc"]), as_object(row.get("model_response"))
        metric, specific = as_object(row.get("metric")), as_object(doc.get("specific"))
        values, aside = as_list(response.get("logprobs")), response.get("unconditioned_logprobs")
        texts, tokens = as_list(response.get("text")), as_list(response.get("output_tokens"))
        query = doc.get("query")
    else:
        doc = {"choices": _parsed(row["choices"]), "gold_index": _parsed(row["gold_index"])}
        metric, specific = _parsed(row["metrics"]), as_object(_parsed(row.get("specifics")))
        values, aside = as_list(_parsed(row["predictions"])), None
        texts, tokens = values, as_list(_parsed(row.get("cont_tokens")))
        query = row.get("example") or row.get("full_prompt")
    choices = [str(one) for one in as_list(doc.get("choices"))]
    # Before 0.10 a pair: the second entry tells whether it is the likeliest text.
    logs = [one[0] if one else None for one in map(_pair, values)]
    golds = doc.get("gold_index")
    if "len_mc1" in specific:  # behind the choices of one question stand those of another
        choices = choices[: int(specific["len_mc1"])]
        logs, golds = logs[: len(choices)], 0
    if len(logs) == 2 * len(choices):
        aside = logs[len(choices) :]
    metric = {
        _named(name): int(value) if isinstance(value, bool) else value
        for name, value in as_object(metric).items()
    }
    numbers = [one for one in logs[: len(choices)] if isinstance(one, int | float)]
    pairs: list[Any] = [[value, False] for value in numbers]
    if not choices or len(pairs) < len(choices):
        pairs = texts[:1]
    elif aside and len(as_list(aside)) == len(choices):
        pairs += [[value, False] for value in as_list(aside)]
    else:
        metric = {k: v for k, v in metric.items() if METRICS.get(k) != "unconditional"}
    several = as_list(golds)
    return {
        **metric,
        "metrics": list(metric),
        "doc_id": doc.get("id") or number,
        "doc_hash": str(query) if query else doc.get("id") or number,
        "target": several[0] if len(several) == 1 else golds,
        "filtered_resps": pairs,
        "resps": [texts[:1]],
        "arguments": [["", text] for text in choices],
        "tokens": [len(as_list(one)) for one in tokens[: len(choices)]],
    }


def _named(metric: str) -> str:
    """Return the short name of a metric; since 0.11 a long one spells its normalisation out."""
    name, _, how = metric.partition(":logprob_normalization=")
    return name.rstrip("_") + SPELT.get(how.partition("(")[0], "")


def _pair(value: Any) -> list[Any]:
    return [*cast(list[Any], value)] if isinstance(value, list | tuple) else [value]


def _parsed(cell: Any) -> Any:
    """Return a cell, which versions before 0.8 wrote as Python's text of it."""
    if isinstance(cell, str):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return ast.literal_eval(cell)
    return cell
