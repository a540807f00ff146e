"""results/losses.json: what a page was made of, for people, and for the next page.

Folders of runs are large and don't stay for ever. A run whose folder is gone keeps its place in the
tables by what is written here; where the folder is there again, it decides. The bootstrap over test
images needs predictions: of two runs that were compared while both were there its interval is kept,
of others it isn't known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from calibrant.core.errors import InputError
from calibrant.evaluation.uncertainty import PairedDifference
from calibrant.studies.losses.controls import PAIRS
from calibrant.studies.losses.feature_norm import NORM_COLUMNS, Estimate, norm_estimates
from calibrant.studies.losses.gate import Gate, gate_on_test_images, history_of, with_gate
from calibrant.studies.losses.paper import CLAIMS
from calibrant.studies.losses.runs import (
    AFTER,
    METRICS,
    REFERENCE,
    Measured,
    Run,
    check_alike,
    in_order,
)
from calibrant.studies.losses.statistics import (
    LEVEL,
    EarlierDifference,
    Side,
    difference,
    lines_of,
    mean,
    same,
    seeds_of,
)

Question = tuple[Side, Side, str]  # first, second, metric
COMMON = ("net", "protocol", "epochs", "batch_size", "rate", "precision")
OWN = ("loss", "loss_arguments", "loss_settings_for", "mixing", "mixing_arguments")


class Joined(NamedTuple):
    """Runs of today and of an earlier page.

    Attributes:
        runs: all of them, in the order of the tables.
        again: names of runs that the record has, too, and that came out the same.
        otherwise: names of those that came out otherwise.
    """

    runs: list[Run]
    again: list[str]
    otherwise: list[str]


def join(runs: Sequence[Run], file: Path) -> Joined:
    """Add the runs of an earlier page whose folders are gone.

    Args:
        runs: those whose folders are there.
        file: losses.json of that page; none is as good as an empty one.

    Raises:
        InputError: the file is no such record, or its runs can't stand beside the others.
    """
    earlier = read_record(file) if file.is_file() else []
    here = {(run.line, run.seed): run for run in runs}
    check_alike(
        {run.folder: run.settings for run in runs}
        | {
            f"{file}, {_name(run)}": run.settings
            for run in earlier
            if (run.line, run.seed) not in here
        }
    )
    again: list[str] = []
    otherwise: list[str] = []
    for old in earlier:
        now = here.setdefault((old.line, old.seed), old)
        if now is old:
            continue
        now.kept.update(differences=old.kept["differences"])
        alike = all(
            same(now.scores[key].value, found.value)
            for key, found in old.scores.items()
            if key[0] != "smart" or now.smart_fit == old.smart_fit
        )
        (again if alike else otherwise).append(_name(now))
    return Joined(in_order(here.values()), again, otherwise)


def _name(run: Run) -> str:
    return f"{run.line}, seed {run.seed}"


def as_document(runs: Sequence[Run]) -> dict[str, Any]:
    """Return everything as JSON takes it; fractions, and nats."""
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
        "settings": {name: runs[0].settings[name] for name in COMMON},
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
        "feature_norm": [
            {"line": run.line, "seed": run.seed}
            | {
                _key(name): estimate._asdict()
                for name, estimate in zip(NORM_COLUMNS, norm_estimates(run), strict=True)
            }
            for run in runs
            if run.folder is not None or "feature_norm" in run.kept
        ],
        "gate_on_test_images": [
            {"line": run.line, "seed": run.seed}
            | {
                name: None if math.isnan(value) else value
                for name, value in gate_on_test_images(run)._asdict().items()
            }
            for run in with_gate(runs)
        ],
        "gate_by_epoch": [
            {"line": run.line, "seed": run.seed, "epochs": history}
            for run in runs
            if "gate_positive" in (history := history_of(run) or [{}])[0]
        ],
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


def read_record(file: Path) -> list[Run]:
    """Return the runs of a record, without folders.

    Raises:
        InputError: the file is no record of this study.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        return _runs_of(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{file}: is no record of this study ({type(error).__name__}: {error}); move it away "
            "to make the page from the folders of runs alone"
        ) from error


def _runs_of(document: dict[str, Any]) -> list[Run]:
    earlier: dict[Question, EarlierDifference] = {}
    for told in document["differences"]:
        first, second = tuple(told["first"]), tuple(told["second"])
        by_seed = {
            int(seed): PairedDifference(**{name: _number(value) for name, value in found.items()})
            for seed, found in told["by_seed"].items()
        }
        earlier[first, second, told["metric"]] = EarlierDifference(by_seed, told["agreeing"])
    kept: dict[tuple[str, int], dict[str, Any]] = {}
    for entry in document["runs"]:
        kept[entry["line"], entry["seed"]] = {"differences": earlier}
    for entry in document["feature_norm"]:
        estimates = [Estimate(**entry[_key(name)]) for name in NORM_COLUMNS]
        kept[entry["line"], entry["seed"]]["feature_norm"] = estimates
    for entry in document["gate_on_test_images"]:
        gate = Gate(*(_number(entry[name]) for name in Gate._fields))
        kept[entry["line"], entry["seed"]]["gate_on_test_images"] = gate
    for entry in document["gate_by_epoch"]:
        kept[entry["line"], entry["seed"]]["gate_by_epoch"] = entry["epochs"]
    return [
        Run(
            entry["line"],
            entry["seed"],
            None,
            document["settings"]
            | document["lines"][entry["line"]]["settings"]
            | {"seed": entry["seed"]},
            {
                (after, metric): Measured(
                    found["value"],
                    _number(found["low"]),
                    _number(found["high"]),
                    found["floor"],
                    None,
                )
                for after, metrics in entry["after"].items()
                for metric, found in metrics.items()
            },
            kept[entry["line"], entry["seed"]],
            entry["smart_fit"],
        )
        for entry in document["runs"]
    ]


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


def _key(name: str) -> str:
    return name.replace(" ", "_")


def _number(value: float | None) -> float:
    return math.nan if value is None else value
