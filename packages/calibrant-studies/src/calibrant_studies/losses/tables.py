"""Tables of the study of losses: means, and differences to cross-entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence

from calibrant.core.tables import Table
from calibrant_studies.losses.runs import LINES, METRICS, REFERENCE, SMART_FIT, Run
from calibrant_studies.losses.statistics import (
    Difference,
    Side,
    difference,
    lines_of,
    mean,
    seeds_of,
)

TITLES = {
    "accuracy": "accuracy",
    "ece": "ECE",
    "adaece": "AdaECE",
    "overconfidence": "O-ECE",
    "underconfidence": "U-ECE",
    "nll": "NLL",
}
IN_WORDS = {
    "none": "as trained",
    "temperature": "after temperature scaling",
    "smart": "after SMART",
}


def which_runs(runs: Sequence[Run]) -> Table:
    """Return which seeds there are, and the settings that all have."""
    settings = runs[0].settings
    rows = [
        [line, str(len(seeds_of(runs, line))), ", ".join(map(str, seeds_of(runs, line)))]
        for line in lines_of(runs)
    ]
    missing = [line for line in LINES if line not in lines_of(runs)]
    precision = {"bf16": ", mixed precision bf16", "16": ", mixed precision fp16"}
    words = (
        f"Network {settings['net']}, protocol `{settings['protocol']}`"
        f"{precision.get(settings['precision'], '')}, {len(runs)} runs."
    )
    if missing:
        words += f" Not there: {', '.join(missing)}."
    return Table(["loss", "seeds", "which"], rows, notes=words)


def means(runs: Sequence[Run], after: str) -> Table:
    """Return mean, deviation and floor of every metric."""
    rows = [
        [
            _name(runs, line),
            *(mean_cell(runs, (line, after), metric) for metric in METRICS),
        ]
        for line in lines_of(runs)
    ]
    head = ["loss (seeds)", *(TITLES[metric] for metric in METRICS)]
    note = _other_fits(runs) if after == "smart" else ""
    return Table(head, rows, notes=note)


def _other_fits(runs: Sequence[Run]) -> str:
    """Return which lines stand here after a SMART that was fitted otherwise than today's."""
    lines: dict[str, list[str]] = {}
    for run in runs:
        if run.smart_fit != SMART_FIT and run.line not in (
            known := lines.setdefault(run.smart_fit, [])
        ):
            known.append(run.line)
    return " ".join(
        f"After a SMART that was fitted by {fit}, before it was by {SMART_FIT}, for networks that "
        f"are gone: {', '.join(of)}."
        for fit, of in lines.items()
    )


def differences(runs: Sequence[Run], after: str) -> Table:
    """Return each line less cross-entropy, both after the same method."""
    metrics = ("accuracy", "ece", "adaece", "nll")
    rows = [
        [line, *(difference_cell(runs, (line, after), (REFERENCE, after), m) for m in metrics)]
        for line in lines_of(runs)
        if line != REFERENCE
    ]
    head = [f"minus {REFERENCE}", *(TITLES[metric] for metric in metrics)]
    return Table(head, rows)


def against_scaled(runs: Sequence[Run]) -> Table:
    """Return each line as trained less cross-entropy after temperature scaling."""
    metrics = ("ece", "adaece", "nll")
    scaled = (REFERENCE, "temperature")
    rows = [
        [line, *(difference_cell(runs, (line, "none"), scaled, metric) for metric in metrics)]
        for line in lines_of(runs)
        if line != REFERENCE
    ]
    head = ["as trained, minus cross-entropy + TS", *(TITLES[metric] for metric in metrics)]
    return Table(head, rows)


def _name(runs: Sequence[Run], line: str) -> str:
    return f"{line} ({len(seeds_of(runs, line))})"


def mean_cell(runs: Sequence[Run], side: Side, metric: str) -> str:
    """Return mean, spread and floor as tables have them."""
    found = mean(runs, side, metric)
    scale, digits = (1, 4) if metric == "nll" else (100, 2)
    text = f"{scale * found.value:.{digits}f}"
    if found.deviation is not None:
        text += f" ± {scale * found.deviation:.{digits}f}"
    if found.interval is not None:
        text += f" ({' to '.join(f'{scale * end:.{digits}f}' for end in found.interval)})"
    return text if found.floor is None else f"{text} [{scale * found.floor:.{digits}f}]"


def difference_cell(runs: Sequence[Run], first: Side, second: Side, metric: str) -> str:
    """Return a difference with its interval, or nothing if there is none."""
    found = difference(runs, first, second, metric)
    return "" if found is None else interval_cell(found, metric)


def interval_cell(found: Difference, metric: str) -> str:
    """Return a difference with its interval, a star and the count of seeds."""
    scale, digits = (1, 4) if metric == "nll" else (100, 2)
    value, low, high = (f"{scale * x:+.{digits}f}" for x in (found.value, found.low, found.high))
    star = "*" if found.sign else ""
    apart = f"{found.agreeing()}/{found.known()}"
    if found.known() < len(found.by_seed):
        apart += f" of {len(found.by_seed)}"
    ends = "" if math.isnan(found.low) else f"{low} to {high}; "
    return f"{value}{star} ({ends}{apart})"
