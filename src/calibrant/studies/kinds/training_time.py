"""What a method costs: seconds of training, and how many times those of plain cross-entropy."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from calibrant.core.errors import InputError
from calibrant.studies.cells import Cell
from calibrant.studies.inputs import Inputs
from calibrant.studies.kinds.base import Measure
from calibrant.studies.networks.cells import NetworkKind
from calibrant.studies.networks.plans import NONE, PEELED, PLAIN_LOSS, plan_of
from calibrant.studies.networks.trained import Network, network_of

_MEASURES = (
    Measure("seconds", "seconds", 1, 0, "neither", "of training, all stages together"),
    Measure("ratio", "times cross-entropy", 1, 3, "low", "seconds over those of plain training"),
)


class TrainingTime(NetworkKind):
    """Add what the network took, in one go, and what its second stage takes."""

    version: ClassVar[str] = "1"

    @property
    def measures(self) -> Mapping[str, Measure]:
        """Seconds and their ratio."""
        return {measure.name: measure for measure in _MEASURES}

    def measuring(self, cell: Cell) -> dict[str, Any]:
        """Return nothing more."""
        return {}

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        """Return seconds and ratio."""
        plan = plan_of(cell)
        plain = replace(
            plan,
            line=PLAIN_LOSS,
            stage="",
            stage_arguments={},
            run={
                **plan.run,
                "protocol": plan.run["protocol"].removesuffix(PEELED),
                "loss": PLAIN_LOSS,
                "loss_arguments": {},
                "mixing": NONE,
                "mixing_arguments": {},
            },
        )
        base = _seconds(network_of(plain, inputs, work))
        network = network_of(plan, inputs, work)
        seconds = _seconds(network)
        if plan.stage:
            # Features of the training images are made for all second stages together, once; each
            # would have to make them.
            began = time.perf_counter()
            network.make_training_rows()
            network.fit_stage()
            seconds += time.perf_counter() - began
        values = {"seconds": seconds, "ratio": seconds / base}
        return {"values": {name: {"value": value} for name, value in values.items()}}

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        """Return nothing: two networks are compared, by `run`."""
        raise NotImplementedError


def _seconds(network: Network) -> float:
    if network.seconds is None:
        raise InputError(
            f"{network.plan.name}: nobody knows how long it was trained; a run is timed where a "
            "study trains it in one go"
        )
    return network.seconds


KIND = TrainingTime()
