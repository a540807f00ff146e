"""Runs of HELM, folders with `per_instance_stats.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from calibrant.core.arrays import FloatArray
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
from calibrant.files.formats.logs.signals import check_not_all_alike
from calibrant.files.gate import load_json
from calibrant.files.opening import beside, is_file, open_binary, within
from calibrant.files.options import ReadOptions
from calibrant.predictions.rows import softmax

STATS, STATE, SPEC = "per_instance_stats.json", "scenario_state.json", "run_spec.json"
SUMS = "stats.json"
# A mean in a file may be rounded by so much.
TOLERANCE = 1e-6
# Probabilities of the same log-probabilities don't differ by more.
ALIKE = 1e-3
SEPARATE = "multiple_choice_separate"


class Helm(LogFormat):
    """A run's folder, or its statistics an instance."""

    tool = "HELM"

    def recognises(self, file: LogFile) -> bool:
        """Return whether it is a folder with statistics, or these."""
        if file.folder:
            return is_file(within(file.where, STATS))
        return {"instance_id", "stats"} <= file.first.keys()

    def read(self, file: LogFile, options: ReadOptions) -> LogTable:
        """Return a row an instance: without perturbation, of the first train trial."""
        table = LogTable(self.tool)

        def document(name: str) -> Any:
            path = within(file.where, name) if file.folder else beside(file.where, name)
            if not is_file(path):
                return None
            with open_binary(path) as found:
                return load_json(found.read(), path)

        stats = document(STATS) if file.folder else file.document
        spec, state = as_object(document(SPEC)), as_object(document(STATE))
        method = as_object(spec.get("adapter_spec") or state.get("adapter_spec")).get("method", "")
        task = str(spec.get("name", "")).partition(":")[0].partition(",")[0]
        states = [as_object(one) for one in as_list(state.get("request_states"))]
        numbers = [
            as_object(one).get("logprob", 0.0)
            for each in states
            for one in as_list(as_object(each.get("result")).get("completions"))
        ]
        check_not_all_alike(np.array(numbers, dtype=np.float64), file.where)
        if str(method).startswith(SEPARATE):
            calibrated = str(method).endswith("calibrated")
            scores = _of_references(states, 0, calibrated=calibrated)
            if _missed(stats, scores):
                # Some tokenizers give the space before a reference a token of its own.
                more = _of_references(states, 1, calibrated=calibrated)
                scores = scores if _missed(stats, more) else more
            table.signal = "log-likelihoods of the references" + (
                " less those without the question" if calibrated else " per token"
            )
            table.positions = True
        else:
            scores = {}
            table.signal = "max_prob, the probability of the generated answer"
        first: dict[str, Any] = {}
        checked = 0
        metric = options.correct or "exact_match"
        _check_accuracy(as_list(stats), as_list(document(SUMS)), metric, file)
        for row in map(as_object, as_list(stats)):
            name = str(row.get("instance_id"))
            trial = row.get("train_trial_index", 0)
            if row.get("perturbation") is not None or trial != first.setdefault(name, trial):
                table.leave_out("a perturbation, or a further train trial")
                continue
            own = _of_row(row)
            if metric not in own and options.correct:
                known = [one for one, mean in own.items() if zero_or_one(mean) is not None]
                raise file.error(
                    name,
                    f"has no '{metric}'; --correct (correct=) is one of {', '.join(known)}",
                )
            right, sure = zero_or_one(own.get(metric)), own.get("max_prob")
            cells = {"id": name, "task": task}
            if right is None:
                table.leave_out(f"{metric} is no 0 or 1")
            elif scores:
                if name not in scores:
                    table.leave_out("no log-likelihoods of its references", right)
                    continue
                values, golds = scores[name]
                said = int(np.argmax(values))
                if (said in golds) != bool(right):
                    raise file.error(
                        name, f"{metric} is {right:g}, but reference {said} is the likeliest"
                    )
                own_sure = _likeliest(values)
                if sure is not None and abs(own_sure - float(sure)) > ALIKE:
                    raise file.error(
                        name,
                        f"max_prob is {float(sure):.4g}, but the probability of the likeliest "
                        f"reference is {own_sure:.4g} by its log-probabilities",
                    )
                checked += sure is not None
                gold = said if right else min(golds, default=0)
                table.add(logits=values.tolist(), labels=gold, **cells)
            elif sure is None:
                table.leave_out("no max_prob", right)
            else:
                table.add(confidence=min(float(sure), 1.0), correct=right, **cells)
        table.checked = bool(scores)
        if checked:
            table.notes.append("The run's own max_prob comes out of every row.")
        if not states and table.cells and all(row.get("confidence") == 1 for row in table.cells):
            raise PredictionsError(
                f"{file.where}: max_prob is 1 in every row, as it is where a model gave no "
                f"log-probabilities; {STATE} beside it would say"
            )
        return table


def _means(stats: list[Any], metric: str) -> list[float]:
    """Return the means of a metric without perturbation."""
    found = [as_object(one) for one in stats]
    names = [as_object(one.get("name")) for one in found]
    return [
        float(one["mean"])
        for one, name in zip(found, names, strict=True)
        if name.get("name") == metric and "perturbation" not in name and "mean" in one
    ]


def _check_accuracy(stats: list[Any], sums: list[Any], metric: str, file: LogFile) -> None:
    """Raise `PredictionsError` unless the run's own accuracy comes out of its instances."""
    rows = [as_object(row) for row in stats if as_object(row).get("perturbation") is None]
    splits = {str(as_object(as_object(s).get("name")).get("split")) for s in sums}
    own = _means(sums, metric)
    found = [value for row in rows for value in _means(as_list(row.get("stats")), metric)]
    if len(own) != 1 or not found or len(splits) > 1:
        return
    if abs(np.mean(found) - own[0]) > TOLERANCE:
        raise file.error(
            SUMS, f"{metric} is {own[0]:.6g}, but {np.mean(found):.6g} by the instances"
        )


def _of_row(row: Row) -> Row:
    """Return the means of an instance by their names."""
    stats = [as_object(one) for one in as_list(row.get("stats"))]
    names = [as_object(one.get("name")) for one in stats]
    return {
        str(name.get("name")): one.get("mean")
        for name, one in zip(names, stats, strict=True)
        if "perturbation" not in name
    }


def _likeliest(values: FloatArray) -> float:
    """Return the probability of the likeliest reference."""
    return float(softmax(values[None]).max())


def _missed(stats: Any, scores: Mapping[str, tuple[FloatArray, list[int]]]) -> bool:
    """Return whether max_prob comes out of hardly any instance."""
    rows = [row for row in map(as_object, as_list(stats)) if row.get("perturbation") is None]
    known = [
        abs(_likeliest(scores[name][0]) - float(sure)) > ALIKE
        for row in rows
        if (name := str(row.get("instance_id"))) in scores
        and (sure := _of_row(row).get("max_prob")) is not None
    ]
    return sum(known) > len(known) / 2


def _at_the_end(completion: Row, reference: str, before: int) -> tuple[float, int]:
    """Return the log-probability and the number of the tokens of a reference.

    They stand at the end of a completion that repeats the prompt, with so many tokens `before`.
    """
    tokens = [as_object(one) for one in as_list(completion.get("tokens"))]
    logs = [float(one.get("logprob", 0.0)) for one in tokens]
    text = ""
    for count, token in enumerate(reversed(tokens), start=1):
        text = str(token.get("text", "")) + text
        if text.strip() == reference.strip():
            whole = min(count + before, len(tokens))
            return sum(logs[-whole:]), whole
    return float(completion.get("logprob", 0.0)), len(tokens) or 1


def _of_references(
    states: list[Row], before: int, *, calibrated: bool
) -> dict[str, tuple[FloatArray, list[int]]]:
    """Return for each instance what its references are compared by, and which are right."""
    found: dict[str, dict[tuple[int, str], float]] = {}
    golds: dict[str, list[int]] = {}
    first: dict[str, Any] = {}
    for state in states:
        instance = as_object(state.get("instance"))
        name, trial = str(instance.get("id")), state.get("train_trial_index", 0)
        if instance.get("perturbation") is not None or trial != first.setdefault(name, trial):
            continue
        index = int(state.get("reference_index") or 0)
        completions = as_list(as_object(state.get("result")).get("completions"))
        if not completions:
            continue
        completion = as_object(completions[0])
        references = [as_object(one) for one in as_list(instance.get("references"))]
        text = as_object(references[index].get("output")).get("text", "")
        value, tokens = _at_the_end(completion, str(text), before)
        mode = str(state.get("request_mode", "original"))
        found.setdefault(name, {})[index, mode] = value if calibrated else value / tokens
        golds[name] = [i for i, one in enumerate(references) if "correct" in as_list(one["tags"])]
    result: dict[str, tuple[FloatArray, list[int]]] = {}
    for name, values in found.items():
        width = 1 + max(index for index, _ in values)
        scores = np.array(
            [values[i, "original"] - values.get((i, "calibration"), 0.0) for i in range(width)]
        )
        result[name] = scores, golds[name]
    return result
