"""What the gate of FeDLaS does to the training images, epoch by epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from calibrant.core.errors import InputError
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import RESAMPLED, Measure
from calibrant_studies.networks.cells import PROGRESS, NetworkKind, at_progress
from calibrant_studies.networks.sources import Source
from calibrant_studies.networks.trained import Network

_MEASURES = (
    Measure("gate_positive", "psi = +1", 100, 1, "neither", "share of the training images"),
    Measure("gate_negative", "psi = -1", 100, 1, "neither", "share of the training images"),
    Measure("gate_flip_rate", "flip rate", 100, 1, "neither", "share whose psi changed"),
    Measure("gate_alpha", "mean alpha", 1, 4, "neither", "mean smoothing"),
    Measure("gate_correlation", "corr(NCI, right)", 1, 3, "neither", "Pearson, training images"),
)


class Gate(NetworkKind):
    """Read the history of a training with FeDLaS at shares of its epochs."""

    version: ClassVar[str] = "1"
    unread: ClassVar[tuple[str, ...]] = (
        *RESAMPLED,
        "after",
        "second_stage",
        "stage_arguments",
        "stage_epochs",
    )
    axes: ClassVar[tuple[str, ...]] = ("input", "network", "method", PROGRESS)
    takes_recorded: ClassVar[bool] = True

    @property
    def measures(self) -> Mapping[str, Measure]:
        """Shares, flips, smoothing and correlation."""
        return {measure.name: measure for measure in _MEASURES}

    def measuring(self, cell: Cell) -> dict[str, Any]:
        """Return which epoch."""
        return {"progress": float(cell.at[PROGRESS])}

    def from_recorded(self, cell: Cell, source: Source) -> dict[str, Any]:
        """Return the numbers of an epoch that were kept."""
        assert source.recorded is not None
        if not source.recorded.epochs:
            raise InputError(f"{cell}: nothing was kept of the gate over the epochs")
        return _result(at_progress(cell, source.recorded.epochs))

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        """Return the numbers of an epoch."""
        epochs = network.epochs()
        if "gate_positive" not in epochs[-1]:
            raise InputError(f"{network.plan.name}: its history holds no gate; train with FeDLaS")
        return _result(at_progress(cell, epochs))


def _result(row: dict[str, Any]) -> dict[str, Any]:
    values = {measure.name: {"value": row[measure.name]} for measure in _MEASURES}
    return {"values": values, "epoch": row["epoch"]}


KIND = Gate()
