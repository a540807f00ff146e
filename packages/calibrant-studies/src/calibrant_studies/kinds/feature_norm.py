"""What FeDLaS rests on: whether the norm of an image's features goes with the confidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from calibrant.core.errors import InputError
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import RESAMPLED, Measure
from calibrant_studies.measuring import mean_with_interval
from calibrant_studies.networks.cells import NetworkKind
from calibrant_studies.networks.trained import Network

_MEASURES = (
    Measure("confidence", "confidence", 100, 2, "neither", "mean of a tenth of the test images"),
    Measure("accuracy", "accuracy", 100, 2, "neither", "of a tenth of the test images"),
    Measure("norm", "L1 norm, z-scored", 1, 2, "neither", "mean of a tenth of the test images"),
    Measure("correlation", "corr(norm, confidence)", 1, 3, "neither", "Pearson, all test images"),
)


class FeatureNorm(NetworkKind):
    """Sort the test images by the L1 norm of their features, and look at a tenth of them."""

    version: ClassVar[str] = "1"
    unread: ClassVar[tuple[str, ...]] = RESAMPLED
    axes: ClassVar[tuple[str, ...]] = ("input", "network", "method", "tenth")

    @property
    def measures(self) -> Mapping[str, Measure]:
        """Confidence, accuracy, norm and correlation."""
        return {measure.name: measure for measure in _MEASURES}

    def measuring(self, cell: Cell) -> dict[str, Any]:
        """Return which tenth."""
        return {"tenth": int(cell.at["tenth"])}

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        """Return means over a tenth of the rows, with their standard error."""
        if network.test.features is None:
            raise InputError(f"{network.plan.name}: its test predictions hold no features")
        norms = np.abs(np.asarray(network.test.features, np.float64)).sum(axis=1)
        norms = (norms - norms.mean()) / norms.std()
        rows = network.speaker(network.head())(network.test)
        probs = np.asarray(rows.probs)
        confidence = probs.max(axis=1)
        right = (probs.argmax(axis=1) == np.asarray(rows.labels)).astype(np.float64)
        part = np.array_split(np.argsort(norms, kind="stable"), 10)[int(cell.at["tenth"]) - 1]
        values = {"correlation": {"value": float(np.corrcoef(norms, confidence)[0, 1])}}
        for name, of_all in (("confidence", confidence), ("accuracy", right), ("norm", norms)):
            values[name] = mean_with_interval(of_all[part])
        return {"values": values}


KIND = FeatureNorm()
