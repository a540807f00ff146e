"""New heads of a trained network beside its own, each as it comes and with one temperature.

What chooses a head (kappa, or an epoch) and what scales it may be the same held-out rows, or halves
of them: then no row has done both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from calibrant.core.tables import Table
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.results import Evaluation
from calibrant.evaluation.uncertainty import paired_difference
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.predictions import Predictions
from calibrant_studies.cells import Cell
from calibrant_studies.declaration import merged
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import Measure, Need
from calibrant_studies.measuring import quietly
from calibrant_studies.networks.cells import NetworkKind
from calibrant_studies.networks.trained import Network

if TYPE_CHECKING:
    from calibrant_studies.results import StudyResult

METRICS = ("accuracy", "ece", "nll")
_MEASURES = (
    Measure("accuracy", "accuracy", 100, 2, "high"),
    Measure("ece", "ECE", 100, 2, "low", "15 equal bins"),
    Measure("nll", "NLL", 1, 4, "low"),
    Measure("ece-temperature", "ECE + TS", 100, 2, "low", "with one temperature"),
    Measure("nll-temperature", "NLL + TS", 1, 4, "low", "with one temperature"),
    Measure("ece-share", "of the network's ECE", 1, 2, "low", "both heads as they come"),
    Measure("accuracy-apart", "accuracy less the network's", 100, 2, "high", "paired"),
    Measure("ece-apart", "ECE less network + TS", 100, 2, "low", "the head as it comes; paired"),
    Measure("nll-apart", "NLL less network + TS", 1, 4, "low", "the head as it comes; paired"),
    Measure("ece-scaled-apart", "ECE + TS less network + TS", 100, 2, "low", "paired"),
    Measure("nll-scaled-apart", "NLL + TS less network + TS", 1, 4, "low", "paired"),
)


class Heads(NetworkKind):
    """Train a head with a seed of its own, and measure it beside the network's on the test rows."""

    version: ClassVar[str] = "1"
    unread: ClassVar[tuple[str, ...]] = ("after",)
    axes: ClassVar[tuple[str, ...]] = ("input", "network", "method")
    defaults: ClassVar[Mapping[str, Any]] = {
        **NetworkKind.defaults,
        "resamples": 1000,
        "network_seed": 0,  # of the network; those of the study are the head's
        "halves": False,  # whether other held-out rows choose a head than scale it
    }

    @property
    def measures(self) -> Mapping[str, Measure]:
        """Metrics as the head comes and scaled, and paired differences to the network's."""
        return {measure.name: measure for measure in _MEASURES}

    def tables(self, result: StudyResult) -> list[tuple[str, Table]]:
        """Return what the heads said of how they were chosen."""
        keys = [key for key in result.study.rows if key in result.study.axes]
        rows = [
            [*(result.study.word(key, ran.cell.at) for key in keys), str(ran.cell.seed), note]
            for ran in result.ran
            for note in ran.result["notes"]
        ]
        head = [*keys, "seed", "note"]
        return [("Notes", Table(head, rows, labels=len(head)))] if rows else []

    def needs(self, cell: Cell) -> tuple[Need, ...]:
        """Return the network."""
        return super().needs(_of_network(cell, self.setting(cell, "network_seed")))

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        """Return network, head, and how it is measured."""
        found = _of_network(cell, self.setting(cell, "network_seed"))
        return super().configuration(found, inputs) | {"head_seed": cell.seed}

    def measuring(self, cell: Cell) -> dict[str, Any]:
        """Return resamples, and whether rows are dealt."""
        return {name: self.setting(cell, name) for name in ("resamples", "level", "halves")}

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        """Return what a head does, see `measure`."""
        return super().run(_of_network(cell, self.setting(cell, "network_seed")), inputs, work)

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        """Return metrics of the test rows with intervals."""
        choosing = scaling = network.validation
        if self.setting(cell, "halves"):
            seed = network.plan.stage_arguments["seed"]
            choosing, scaling = network.validation.split(network.validation.n // 2, seed)
        options = {
            "resamples": self.setting(cell, "resamples"),
            "level": self.setting(cell, "level"),
        }
        own = _measured(scaling, network.test, options)
        new = own
        notes, kappa = list[str](), None
        if network.plan.stage:
            stage = replace(network, validation=choosing).fit_stage()
            said = [
                Predictions.from_logits(stage.logits(rows.features), rows.labels)
                for rows in (scaling, network.test)
            ]
            new = _measured(said[0], said[1], options)
            notes, kappa = list(stage.notes_), stage.summary().get("kappa")
        values: dict[str, Any] = {name: new["none"][name].as_dict() for name in METRICS}
        for metric in ("ece", "nll"):
            values[f"{metric}-temperature"] = new["temperature"][metric].as_dict()
        share = new["none"]["ece"].value / own["none"]["ece"].value
        values["ece-share"] = {"value": share}
        for name, metric, ours, theirs in (
            ("accuracy-apart", "accuracy", new["none"], own["none"]),
            ("ece-apart", "ece", new["none"], own["temperature"]),
            ("nll-apart", "nll", new["none"], own["temperature"]),
            ("ece-scaled-apart", "ece", new["temperature"], own["temperature"]),
            ("nll-scaled-apart", "nll", new["temperature"], own["temperature"]),
        ):
            a, b = ours[metric], theirs[metric]
            apart = paired_difference(
                a.replicates, b.replicates, (a.value, b.value), self.setting(cell, "level")
            )
            values[name] = {"value": apart.value, "low": apart.low, "high": apart.high}
        return {"values": values, "notes": notes, "kappa": kappa, "test_rows": network.test.n}


def _of_network(cell: Cell, seed: int) -> Cell:
    """Return the cell as one about a network with its own seed; the cell's is then the head's."""
    head = {"stage_arguments": {"seed": cell.seed}}
    return replace(cell, seed=seed, settings=merged(cell.settings, head))


def _measured(
    scaling: Predictions, test: Predictions, options: Mapping[str, Any]
) -> dict[str, Evaluation]:
    """Return the metrics of test rows as they come, and with one temperature."""
    found: dict[str, Evaluation] = {}
    for after in ("none", "temperature"):
        with quietly():
            calibrator = make_calibrator(after).fit(scaling.logits, scaling.labels)
            probs = calibrator.predict_proba(test.logits)
        rows = Predictions.from_probs(probs, test.labels)
        found[after] = evaluate(rows, metrics=METRICS, **options)
    return found


KIND = Heads()
