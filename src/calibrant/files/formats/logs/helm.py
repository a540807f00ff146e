"""Runs of HELM, folders with `per_instance_stats.json`."""

from __future__ import annotations

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
# A mean in a file may be rounded by so much.
TOLERANCE = 1e-6
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
            scores = _of_references(states, calibrated=str(method).endswith("calibrated"))
            table.signal = "log-likelihoods of the references" + (
                " less those without the question"
                if str(method).endswith("calibrated")
                else " per token"
            )
            table.positions = True
        else:
            scores = {}
            table.signal = "max_prob, the probability of the generated answer"
        first: dict[str, Any] = {}
        _check_accuracy(as_list(stats), as_list(document(SUMS)), file)
        for row in map(as_object, as_list(stats)):
            name = str(row.get("instance_id"))
            trial = row.get("train_trial_index", 0)
            if row.get("perturbation") is not None or trial != first.setdefault(name, trial):
                table.leave_out("a perturbation, or a further train trial")
                continue
            own = {
                str(as_object(as_object(stat).get("name")).get("name")): as_object(stat).get("mean")
                for stat in as_list(row.get("stats"))
                if "perturbation" not in as_object(as_object(stat).get("name"))
            }
            right = zero_or_one(own.get("exact_match"))
            cells = {"id": name, "task": task}
            if right is None:
                table.leave_out("exact_match is no 0 or 1")
            elif scores:
                if name not in scores:
                    table.leave_out("no log-likelihoods of its references", right)
                    continue
                values, golds = scores[name]
                said = int(np.argmax(values))
                if (said in golds) != bool(right):
                    raise file.error(
                        name, f"exact_match is {right:g}, but reference {said} is the likeliest"
                    )
                gold = said if right else min(golds, default=0)
                table.add(logits=values.tolist(), labels=gold, **cells)
            elif (sure := own.get("max_prob")) is None:
                table.leave_out("no max_prob", right)
            else:
                table.add(confidence=min(float(sure), 1.0), correct=right, **cells)
        if not states and table.cells and all(row.get("confidence") == 1 for row in table.cells):
            raise PredictionsError(
                f"{file.where}: max_prob is 1 in every row, as it is where a model gave no "
                f"log-probabilities; {STATE} beside it would say"
            )
        return table


def _exact_matches(stats: list[Any]) -> list[float]:
    """Return the means of exact_match without perturbation."""
    found = [as_object(one) for one in stats]
    names = [as_object(one.get("name")) for one in found]
    return [
        float(one["mean"])
        for one, name in zip(found, names, strict=True)
        if name.get("name") == "exact_match" and "perturbation" not in name and "mean" in one
    ]


def _check_accuracy(stats: list[Any], sums: list[Any], file: LogFile) -> None:
    """Raise `PredictionsError` unless the run's own accuracy comes out of its instances."""
    rows = [as_object(row) for row in stats if as_object(row).get("perturbation") is None]
    splits = {str(as_object(as_object(s).get("name")).get("split")) for s in sums}
    own = _exact_matches(sums)
    found = [value for row in rows for value in _exact_matches(as_list(row.get("stats")))]
    if len(own) != 1 or not found or len(splits) > 1:
        return
    if abs(np.mean(found) - own[0]) > TOLERANCE:
        raise file.error(
            SUMS, f"exact_match is {own[0]:.6g}, but {np.mean(found):.6g} by the instances"
        )


def _of_references(
    states: list[Row], *, calibrated: bool
) -> dict[str, tuple[np.ndarray[Any, np.dtype[np.float64]], list[int]]]:
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
        tokens = len(as_list(completion.get("tokens"))) or 1
        value = float(completion.get("logprob", 0.0))
        mode = str(state.get("request_mode", "original"))
        found.setdefault(name, {})[index, mode] = value if calibrated else value / tokens
        references = [as_object(one) for one in as_list(instance.get("references"))]
        golds[name] = [i for i, one in enumerate(references) if "correct" in as_list(one["tags"])]
    result: dict[str, tuple[np.ndarray[Any, np.dtype[np.float64]], list[int]]] = {}
    for name, values in found.items():
        width = 1 + max(index for index, _ in values)
        scores = np.array(
            [values[i, "original"] - values.get((i, "calibration"), 0.0) for i in range(width)]
        )
        result[name] = scores, golds[name]
    return result
