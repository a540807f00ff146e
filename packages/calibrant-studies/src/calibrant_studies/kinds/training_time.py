"""What a method costs: seconds of training, and how many times those of plain cross-entropy.

By the clock, as papers have it, and in seconds of the processor, which others on the same machine
change less. On a GPU only the clock says anything: the processor waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from calibrant.core.errors import InputError
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import RESAMPLED, Measure
from calibrant_studies.networks.cells import NetworkKind
from calibrant_studies.networks.plans import NONE, PEELED, PLAIN_LOSS, plan_of
from calibrant_studies.networks.spent import Spent, measured
from calibrant_studies.networks.trained import Network, network_of

_MEASURES = (
    Measure("seconds", "seconds", 1, 0, "neither", "of training, all stages together"),
    Measure("ratio", "times cross-entropy", 1, 3, "low", "seconds over those of plain training"),
    Measure(
        "processor-seconds", "seconds of the processor", 1, 0, "neither", "all stages together"
    ),
    Measure(
        "processor-ratio",
        "times, processor",
        1,
        3,
        "low",
        "seconds of the processor over those of plain training; nothing where a GPU trains",
    ),
)


class TrainingTime(NetworkKind):
    """Add what the network took, in one go, and what its second stage takes."""

    version: ClassVar[str] = "2"
    unread: ClassVar[tuple[str, ...]] = (*RESAMPLED, "after")

    @property
    def measures(self) -> Mapping[str, Measure]:
        """Seconds and their ratio, by the clock and of the processor."""
        return {measure.name: measure for measure in _MEASURES}

    def measuring(self, cell: Cell) -> dict[str, Any]:
        """Return nothing more."""
        return {}

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        """Return seconds and ratios."""
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
        base = _spent(network_of(plain, inputs, work))
        network = network_of(plan, inputs, work)
        spent = _spent(network)
        if plan.stage:
            # Features of the training images are made for all second stages together, once; each
            # would have to make them.
            network.training_rows()  # for all; they are made once more below
            _ = network.images  # read and kept, so that it isn't timed
            with measured() as of_stage:
                network.make_training_rows()
                network.fit_stage()
            spent += of_stage
        values = {"seconds": spent.clock, "ratio": spent.clock / base.clock}
        if spent.processor is not None and base.processor is not None:
            values["processor-seconds"] = spent.processor
            values["processor-ratio"] = spent.processor / base.processor
        return {"values": {name: {"value": value} for name, value in values.items()}}

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        """Return nothing: two networks are compared, by `run`."""
        raise NotImplementedError


def _spent(network: Network) -> Spent:
    spent = network.spent
    if spent is None:
        raise InputError(
            f"{network.plan.name}: nobody knows how long it was trained; a run is timed where a "
            "study trains it in one go"
        )
    return spent


KIND = TrainingTime()
