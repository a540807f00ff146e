"""What the study of losses keeps as JSON: for people, and for its next run.

Folders of runs are large and don't stay for ever. A run whose folder is gone keeps its place in the
tables by what is written here; where the folder is there, it decides. The bootstrap over test
images needs predictions: of two runs that were compared while both were there its interval is kept,
of others it isn't known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.evaluation.uncertainty import PairedDifference
from calibrant_studies.declaration import INPUT
from calibrant_studies.losses.statistics import (
    AFTER,
    LEVEL,
    METRICS,
    REFERENCE,
    EarlierDifference,
    Measured,
    Run,
    Side,
    difference,
    in_order,
    lines_of,
    mean,
    seeds_of,
)
from calibrant_studies.losses.tables import CLAIMS, PAIRS
from calibrant_studies.networks.plans import SELDOM

if TYPE_CHECKING:
    from calibrant_studies.cells import Ran

Question = tuple[Side, Side, str]  # first, second, metric
COMMON = ("net", "protocol", "epochs", "batch_size", "rate", "precision")
# What is found in a network besides its metrics.
PROBES = ("feature_norm", "gate_on_test_images", "gate_by_epoch")
OWN = ("loss", "loss_arguments", "loss_settings_for", "mixing", "mixing_arguments")


def runs_of(ran: Iterable[Ran]) -> dict[str, list[Run]]:
    """Return the runs behind cells, by data set and network, in the order of the tables.

    Those that weren't measured after every method stay out.
    """
    found: dict[tuple[str, str, int], dict[str, Mapping[str, Any]]] = {}
    for each in ran:
        place = f"{each.cell.at[INPUT]}, {each.cell.at['network']}"
        run = found.setdefault((place, each.result["line"], each.cell.seed), {})
        run[each.result["after"]] = each.result
    runs: dict[str, list[Run]] = {}
    for (place, line, seed), results in found.items():
        if all(after in results for after in AFTER):
            runs.setdefault(place, []).append(_run(line, seed, results))
    return {place: in_order(of_place) for place, of_place in runs.items()}


def _run(line: str, seed: int, results: Mapping[str, Mapping[str, Any]]) -> Run:
    first = results[AFTER[0]]
    again = [known for of in results.values() if (known := of.get("again")) is not None]
    scores = {
        (after, metric): _measured(found["values"][metric], found.get("replicates", {}).get(metric))
        for after, found in results.items()
        for metric in METRICS
    }
    return Run(
        line,
        seed,
        first["settings"],
        scores,
        _with_differences(first["more"]),
        first["smart_fit"],
        first.get("pairing", ""),
        all(again) if again else None,
    )


def _measured(found: Mapping[str, Any], replicates: Sequence[float] | None) -> Measured:
    low, high = (_number(found.get(end)) for end in ("low", "high"))
    drawn = None if replicates is None else np.asarray(replicates, np.float64)
    return Measured(found["value"], low, high, found.get("floor"), drawn)


def as_document(runs: Sequence[Run]) -> dict[str, Any]:
    """Return everything as JSON takes it; fractions, and nats. Nothing without runs."""
    if not runs:
        return {}
    lines: dict[str, Any] = {}
    for line in lines_of(runs):
        one = next(run for run in runs if run.line == line)
        lines[line] = {
            "settings": {name: one.settings[name] for name in OWN},
            "seeds": seeds_of(runs, line),
            "after": {
                after: {metric: vars(mean(runs, (line, after), metric)) for metric in METRICS}
                for after in AFTER
            },
        }
    return {
        "level": LEVEL,
        "settings": {
            name: runs[0].settings[name] for name in (*COMMON, *SELDOM) if name in runs[0].settings
        },
        "lines": lines,
        "runs": [
            {
                "line": run.line,
                "seed": run.seed,
                "smart_fit": run.smart_fit,
                "after": _scores_as_document(run),
            }
            for run in runs
        ],
        "differences": [
            {"first": first, "second": second, "metric": metric} | found.as_dict()
            for first, second, metric in questions(runs)
            if (found := difference(runs, first, second, metric)) is not None
        ],
        **{
            name: [
                {"line": run.line, "seed": run.seed}
                | ({"epochs": found} if name == "gate_by_epoch" else found)
                for run in runs
                if (found := run.more.get(name))
            ]
            for name in PROBES
        },
    }


def questions(runs: Sequence[Run]) -> Iterator[Question]:
    """Yield every comparison that a table makes."""
    for line in lines_of(runs):
        if line == REFERENCE:
            continue
        for metric in METRICS:
            for after in AFTER:
                yield (line, after), (REFERENCE, after), metric
            yield (line, "none"), (REFERENCE, "temperature"), metric
    asked = {(first, second) for first, second, _ in CLAIMS} | set(PAIRS)
    for first, second in sorted(asked):
        if second[0] != REFERENCE:
            yield from ((first, second, metric) for metric in METRICS)


def kept_of(document: Mapping[str, Any], line: str, seed: int) -> dict[str, Any]:
    """Return what a record has of a run besides its scores, as JSON takes it.

    Args:
        document: the record.
        line, seed: which run.
    """
    found: dict[str, Any] = {
        "differences": [
            told
            for told in document["differences"]
            if line in (told["first"][0], told["second"][0]) and str(seed) in told["by_seed"]
        ]
    }
    for name in PROBES:
        for entry in document[name]:
            if (entry["line"], entry["seed"]) == (line, seed):
                rest = {key: of for key, of in entry.items() if key not in ("line", "seed")}
                found[name] = rest["epochs"] if name == "gate_by_epoch" else rest
    return found


def _with_differences(more: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `kept_of` found with its differences by what they are of."""
    found: dict[Question, EarlierDifference] = {}
    for told in more.get("differences", ()):
        first, second = tuple(told["first"]), tuple(told["second"])
        by_seed = {
            int(seed): PairedDifference(**{name: _number(value) for name, value in of.items()})
            for seed, of in told["by_seed"].items()
        }
        found[first, second, told["metric"]] = EarlierDifference(by_seed, told["agreeing"])
    return {**more, "differences": found}


def _scores_as_document(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = {after: {} for after in AFTER}
    for (after, metric), measured in run.scores.items():
        found[after][metric] = {
            "value": measured.value,
            "low": None if math.isnan(measured.low) else measured.low,
            "high": None if math.isnan(measured.high) else measured.high,
            "floor": measured.floor,
        }
    return found


def _number(value: float | None) -> float:
    return math.nan if value is None else value
