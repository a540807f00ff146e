"""Runs of HELM, folders with `per_instance_stats.json`."""

from __future__ import annotations

import math
from typing import Any

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
from calibrant.files.formats.logs.signals import check_not_all_alike
from calibrant.files.gate import load_json
from calibrant.files.opening import beside, is_file, open_binary, within
from calibrant.files.options import ReadOptions

STATS, STATE, SPEC = "per_instance_stats.json", "scenario_state.json", "run_spec.json"
SUMS = "stats.json"
# Probabilities of the same log-probabilities don't differ by more.
ALIKE = 1e-3
SEPARATE = "multiple_choice_separate"
# Of each instance what its references are compared by, and which of them are right.
References = dict[str, tuple[list[float], list[int]]]


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

        stats = as_list(document(STATS) if file.folder else file.document)
        rows = [(row, _means(as_list(row.get("stats")))) for row in map(as_object, stats)]
        plain = [(row, own) for row, own in rows if row.get("perturbation") is None]
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
            if _missed(plain, scores):
                # Some tokenizers give the space before a reference a token of its own.
                more = _of_references(states, 1, calibrated=calibrated)
                scores = scores if _missed(plain, more) else more
            table.signal = "log-likelihoods of the references" + (
                " minus those without the question" if calibrated else " per token"
            )
            table.positions = True
        else:
            scores = References()
            table.signal = "max_prob, the probability of the generated answer"
        first: dict[str, Any] = {}
        checked = 0
        metric = options.correct or "exact_match"
        _check_accuracy(plain, as_list(document(SUMS)), metric, file)
        for row, own in rows:
            name = str(row.get("instance_id"))
            trial = row.get("train_trial_index", 0)
            if row.get("perturbation") is not None or trial != first.setdefault(name, trial):
                table.leave_out("a perturbation, or a further train trial")
                continue
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
                said = values.index(max(values))
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
                table.add(logits=values, labels=gold, **cells)
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


def _means(stats: list[Any]) -> Row:
    """Return the means of metrics without perturbation by their names."""
    found: Row = {}
    for one in map(as_object, stats):
        name = as_object(one.get("name"))
        if "perturbation" not in name:
            found[str(name.get("name"))] = one.get("mean")
    return found


def _check_accuracy(
    rows: list[tuple[Row, Row]], sums: list[Any], metric: str, file: LogFile
) -> None:
    """Raise `PredictionsError` unless the run's own accuracy comes out of its instances."""
    stated, found = _means(sums).get(metric), [own[metric] for _, own in rows if metric in own]
    names = [as_object(as_object(one).get("name")) for one in sums]
    parts = [n for n in names if n.get("name") == metric and "perturbation" not in n]
    if stated is not None and found and len(parts) == 1:  # else a mean of each split
        file.check_mean(metric, stated, float(np.mean(found)), SUMS)


def _likeliest(values: list[float]) -> float:
    """Return the probability of the likeliest reference."""
    top = max(values)
    return 1 / sum(math.exp(value - top) for value in values)


def _missed(rows: list[tuple[Row, Row]], scores: References) -> bool:
    """Return whether max_prob comes out of hardly any instance."""
    known = [
        abs(_likeliest(scores[name][0]) - float(sure)) > ALIKE
        for row, own in rows
        if (name := str(row.get("instance_id"))) in scores
        and (sure := own.get("max_prob")) is not None
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


def _of_references(states: list[Row], before: int, *, calibrated: bool) -> References:
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
        references = as_list(instance.get("references"))
        text = as_object(as_object(references[index]).get("output")).get("text", "")
        value, tokens = _at_the_end(as_object(completions[0]), str(text), before)
        mode = str(state.get("request_mode", "original"))
        found.setdefault(name, {})[index, mode] = value if calibrated else value / tokens
        if name not in golds:
            golds[name] = [i for i, one in enumerate(references) if "correct" in one["tags"]]
    result: References = {}
    for name, values in found.items():
        width = 1 + max(index for index, _ in values)
        result[name] = (
            [values[i, "original"] - values.get((i, "calibration"), 0.0) for i in range(width)],
            golds[name],
        )
    return result
