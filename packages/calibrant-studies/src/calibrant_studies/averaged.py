"""What `auto` averaged in a study, and what that was worth."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from calibrant.core.tables import Table
from calibrant_studies.declaration import METHOD

if TYPE_CHECKING:
    from calibrant_studies.results import Ran, StudyResult

AUTO, LOSS = "auto", "nll"


def averaged(result: StudyResult) -> list[tuple[str, Table]]:
    """Return mean weights over seeds, and the NLL over that of the best other method."""
    groups: dict[tuple[tuple[str, str], ...], dict[str, list[Ran]]] = {}
    for ran in result.ran:
        rest = tuple((axis, name) for axis, name in ran.cell.at.items() if axis != METHOD)
        groups.setdefault(rest, {}).setdefault(ran.cell.at.get(METHOD, ""), []).append(ran)
    rows: list[list[str]] = []
    for rest, methods in groups.items():
        every = [
            ran.result["averaged"] for ran in methods.get(AUTO, ()) if "averaged" in ran.result
        ]
        if not every:
            continue
        total: Counter[str] = Counter()
        for weights in every:
            total.update(weights)
        shares = {name: 100 * share / len(every) for name, share in total.most_common()}
        means = {
            name: float(np.mean([ran.result["values"][LOSS]["value"] for ran in of]))
            for name, of in methods.items()
        }
        own = means.pop(AUTO)
        best = min(means, key=lambda name: means[name], default=None)
        regret = "" if best is None else f"{own - means[best]:+.4f} to {best}"
        said = ", ".join(f"{name} {share:.0f}" for name, share in shares.items() if share >= 0.5)
        rows.append([*(name for _, name in rest), said, regret])
    if not rows:
        return []
    axes = [axis for axis in result.study.axes if axis != METHOD]
    notes = (
        "Mean weights over seeds in percent; regret: the mean NLL less that of the method which "
        "turned out the best."
    )
    table = Table([*axes, "weights", "regret"], rows, set(), notes, len(axes) + 1)
    return [("What auto averaged", table)]
