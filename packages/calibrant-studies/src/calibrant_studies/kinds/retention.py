"""How the share of connections that MaC-Cal keeps moves while it trains a head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from calibrant.core.errors import InputError
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import RESAMPLED, Measure
from calibrant_studies.networks.cells import PROGRESS, NetworkKind, at_progress
from calibrant_studies.networks.trained import Network

_MEASURES = (
    Measure("retention", "kept", 100, 1, "neither", "share of connections that are kept"),
    Measure("accuracy", "accuracy", 100, 2, "neither", "training rows, as the epoch went on"),
    Measure("confidence", "confidence", 100, 2, "neither", "training rows, likewise"),
)


class Retention(NetworkKind):
    """Train a second stage and read its history at shares of its epochs."""

    version: ClassVar[str] = "1"
    unread: ClassVar[tuple[str, ...]] = (*RESAMPLED, "after")
    axes: ClassVar[tuple[str, ...]] = ("input", "network", "method", PROGRESS)

    @property
    def measures(self) -> Mapping[str, Measure]:
        """The share, and what it follows."""
        return {measure.name: measure for measure in _MEASURES}

    def measuring(self, cell: Cell) -> dict[str, Any]:
        """Return which epoch."""
        return {"progress": float(cell.at[PROGRESS])}

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        """Return the numbers of an epoch."""
        head = network.head()
        if head is None:
            raise InputError(f"{cell}: there is no second stage; name one, second_stage = 'maccal'")
        record = at_progress(cell, head.history)
        return {
            "values": {m.name: {"value": record[m.name]} for m in _MEASURES},
            "epoch": record["epoch"],
        }


KIND = Retention()
