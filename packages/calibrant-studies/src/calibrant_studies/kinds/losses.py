"""Losses for training compared: networks as trained and rescaled, and what FeDLaS rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.core.result import Table
from calibrant.report.figures import PALETTE, PANELS, QUIET, gate_over_epochs
from calibrant_studies.cells import Cell, CellResults
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.networks import Training
from calibrant_studies.losses.probes import (
    NORM_COLUMNS,
    gate_histories,
    gate_on_test_images,
    key_of,
    norm_estimates,
)
from calibrant_studies.losses.record import as_document, kept_of, runs_of
from calibrant_studies.losses.statistics import (
    AFTER,
    SMART_FIT,
    Run,
    lines_of,
    mean,
    same,
    seeds_of,
)
from calibrant_studies.losses.tables import IN_WORDS, all_tables
from calibrant_studies.networks.plans import NONE, SELDOM, Plan, plan_of
from calibrant_studies.networks.sources import Recorded, Source, recorded_of
from calibrant_studies.networks.trained import Network

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# matplotlib leaves keyword arguments open.
# pyright: reportUnknownMemberType=false

# What tells one line from another, and what all have.
SETTINGS = (
    *("net", "protocol", "epochs", "batch_size", "rate", "precision"),
    *("loss", "loss_arguments", "loss_settings_for", "mixing", "mixing_arguments"),
)


class Losses(Training):
    """Measure a network as `training` does; as trained also its feature norms and its gate.

    A record that an earlier run of the study wrote as JSON stands in for networks that are gone.
    """

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        earlier = _earlier(plan_of(cell), inputs)
        known = None if earlier is None else [earlier.smart_fit, _points(earlier.values)]
        return super().configuration(cell, inputs) | {"earlier": known}

    def from_recorded(self, cell: Cell, source: Source) -> dict[str, Any]:
        kept = source.recorded
        assert kept is not None
        plan = plan_of(cell)
        more = kept_of(kept.document, kept.line, plan.seed) if plan.after == NONE else {}
        return {
            **super().from_recorded(cell, source),
            **_about(plan),
            "smart_fit": kept.smart_fit,
            "more": more,
        }

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        plan, more = network.plan, dict[str, Any]()
        result = super().measure(cell, network, inputs)
        if plan.after == NONE:
            more = _more(network)
        earlier, again = _earlier(plan, inputs), None
        if earlier is not None and (plan.after != "smart" or earlier.smart_fit == SMART_FIT):
            found = _points(result["values"])
            again = all(same(found[name], of) for name, of in _points(earlier.values).items())
        about = {**_about(plan), "smart_fit": SMART_FIT, "more": more, "again": again}
        return result | about

    def tables(self, result: CellResults) -> list[tuple[str, Table]]:
        found: list[tuple[str, Table]] = []
        of_places = runs_of(result.ran)
        for place, runs in of_places.items():
            ending = f": {place}" if len(of_places) > 1 else ""
            found += [(f"{heading}{ending}", table) for heading, table in all_tables(runs)]
            trained_again = _trained_again(runs)
            found += [(f"Trained again{ending}", trained_again)] if trained_again.rows else []
        return found

    def document(self, result: CellResults) -> dict[str, Any]:
        runs = next(iter(runs_of(result.ran).values()), list[Run]())
        found: dict[str, Any] = {"kept": []}  # it stands in for cells by itself
        return found | as_document(runs)

    def draw(self, result: CellResults) -> Figure | None:
        runs = next(iter(runs_of(result.ran).values()), list[Run]())
        return drawn(runs) if runs else None


def _about(plan: Plan) -> dict[str, Any]:
    settings = {name: plan.run[name] for name in SETTINGS}
    settings |= {name: plan.run[name] for name in SELDOM if plan.run.get(name) is not None}
    return {"line": plan.line, "after": plan.after, "settings": settings}


def _more(network: Network) -> dict[str, Any]:
    """Return what is found in a network besides its metrics."""
    found: dict[str, Any] = {}
    settings = network.plan.run
    if network.test.features is not None:
        estimates = norm_estimates(network.test)
        found["feature_norm"] = {
            key_of(name): estimate._asdict()
            for name, estimate in zip(NORM_COLUMNS, estimates, strict=True)
        }
        gate = (
            None
            if network.folder is None
            else gate_on_test_images(network.folder, settings, network.test)
        )
        if gate is not None:
            found["gate_on_test_images"] = {
                name: None if math.isnan(value) else value for name, value in gate._asdict().items()
            }
    if network.folder is not None and (network.folder / "history.json").is_file():
        history = network.epochs()
        if "gate_positive" in history[0]:
            found["gate_by_epoch"] = history
    return found


def _earlier(plan: Plan, inputs: Inputs) -> Recorded | None:
    """Return what a record knows of a network, whether it is there or gone."""
    return next((r for given in inputs.values() if (r := recorded_of(given, plan))), None)


def _points(values: dict[str, Any]) -> dict[str, float]:
    return {name: found["value"] for name, found in values.items()}


def _trained_again(runs: list[Run]) -> Table:
    """Return which networks a record knows that are there again, and whether they are the same."""
    words = {True: "the same results as before", False: "other results than before"}
    rows = [[f"{r.line}, seed {r.seed}", words[r.again]] for r in runs if r.again is not None]
    return Table(["network", "has"], rows, labels=2)


MARKERS = {"none": "o", "temperature": "s", "smart": "D"}


def drawn(runs: Sequence[Run]) -> Figure:
    """Return the ECE of every line, and below it each FeDLaS gate that runs have recorded."""
    from matplotlib.figure import Figure

    histories_of = gate_histories(runs)
    errors, gate = 0.7 + 0.34 * len(lines_of(runs)), 2.8
    figure = Figure((11, errors + gate * len(histories_of)), layout="constrained")
    heights = [errors, *[gate] * len(histories_of)]
    parts = np.ravel(figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False))
    _errors(runs, parts[0].subplots())
    for part, (line, histories) in zip(parts[1:], histories_of.items(), strict=True):
        axes = list(part.subplots(1, PANELS))
        for history in histories:
            gate_over_epochs(history, axes)
        part.suptitle(f"{line}, seeds: {len(histories)}", fontsize="medium")
    return figure


def _errors(runs: Sequence[Run], ax: Axes) -> None:
    lines = lines_of(runs)[::-1]
    for number, after in enumerate(AFTER):
        color, shift = PALETTE[(1, 0, 2)[number]], 0.24 * (1 - number)
        style: dict[str, Any] = {"marker": MARKERS[after], "linestyle": "", "ms": 4.5}
        for place, line in enumerate(lines):
            found = [run.scores[after, "ece"] for run in runs if run.line == line]
            # Seeds side by side, or their intervals would hide each other.
            middle = (len(found) - 1) / 2
            heights = [place + shift + 0.05 * (middle - i) for i in range(len(found))]
            for height, each in zip(heights, found, strict=True):
                ends = [100 * each.low, 100 * each.high]
                ax.plot(ends, [height] * 2, color=color, linewidth=0.8, alpha=0.5)
            label = IN_WORDS[after] if place == 0 else None
            values = [100 * each.value for each in found]
            ax.plot(values, heights, mec="none", color=color, label=label, **style)
            floor = 100 * (mean(runs, (line, after), "ece").floor or 0)
            last = place == 0 and after == AFTER[-1]
            ends = [place + shift - 0.11, place + shift + 0.11]
            label = "floor" if last else None
            ax.plot([floor] * 2, ends, color=QUIET, linewidth=1.5, label=label)
    ax.set_yticks(range(len(lines)), [f"{line} ({len(seeds_of(runs, line))})" for line in lines])
    ax.set_xlim(left=0)
    ax.set_xlabel("ECE on the test images, %")
    ax.grid(axis="x", color=QUIET, alpha=0.25, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.legend(frameon=False, fontsize="small")
