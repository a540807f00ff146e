"""A network that is trained, with a second stage and a calibrator if asked, and then measured."""

from __future__ import annotations

from typing import Any, ClassVar

from calibrant.evaluation.evaluate import evaluate
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.posthoc import measured
from calibrant_studies.networks.cells import NetworkKind
from calibrant_studies.networks.sources import Source
from calibrant_studies.networks.trained import Network

# Measured in any case, so that tables of different metrics share their cells.
USUAL = (
    "ece",
    "adaece",
    "mce",
    "overconfidence",
    "underconfidence",
    "nll",
    "brier",
    "accuracy",
)


class Training(NetworkKind):
    """Train as `calibrant train` does, unless such a run is given, and measure on the test rows."""

    version: ClassVar[str] = "1"
    takes_recorded: ClassVar[bool] = True

    def measuring(self, cell: Cell) -> dict[str, Any]:
        """Return resamples, level, and what is measured beyond the usual."""
        return {
            "resamples": self.setting(cell, "resamples"),
            "level": self.setting(cell, "level"),
            "metrics": sorted(set(cell.metrics) - set(USUAL)),
        }

    def from_recorded(self, cell: Cell, source: Source) -> dict[str, Any]:
        """Return the numbers that were kept."""
        assert source.recorded is not None
        assert source.given is not None
        note = f"kept in {source.given.path.name}"
        return {"values": source.recorded.values, "notes": [note]}

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        """Return metrics of the test rows, with intervals and floors."""
        head = network.head()
        said = network.speaker(head)(network.test)
        found = evaluate(
            said,
            metrics=list(dict.fromkeys([*USUAL, *cell.metrics])),
            resamples=self.setting(cell, "resamples"),
            level=self.setting(cell, "level"),
        )
        return measured(found) | {
            # The same test images in the same order are resampled alike.
            "pairing": f"{network.plan.input} {network.test.n} {network.labels_digest}",
            "fit_rows": network.validation.n,
            "test_rows": network.test.n,
            "notes": [] if head is None else head.notes,
        }


KIND = Training()
