"""How honest a network stays on corrupted test images, severity by severity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from calibrant.metrics.binned import expected_calibration_error
from calibrant.studies.cells import Cell
from calibrant.studies.inputs import Inputs
from calibrant.studies.kinds.base import Measure
from calibrant.studies.networks.cells import NetworkKind
from calibrant.studies.networks.images import corrupted
from calibrant.studies.networks.trained import Network

_MEASURES = (
    Measure("ece", "ECE", 100, 2, "low", "15 equal bins; mean over corruptions"),
    Measure("accuracy", "accuracy", 100, 2, "high", "mean over corruptions"),
)


class CorruptedImages(NetworkKind):
    """Measure on images corrupted here, or on those of an input called DATA-c as in CIFAR-10-C."""

    version: ClassVar[str] = "1"
    axes: ClassVar[tuple[str, ...]] = ("input", "network", "method", "severity")
    defaults: ClassVar[Mapping[str, Any]] = {
        **NetworkKind.defaults,
        "most": 1000,  # images that are corrupted here
    }

    @property
    def measures(self) -> Mapping[str, Measure]:
        """ECE and accuracy."""
        return {measure.name: measure for measure in _MEASURES}

    def measuring(self, cell: Cell) -> dict[str, Any]:
        """Return severity and number of images."""
        return {"severity": int(cell.at["severity"]), "most": self.setting(cell, "most")}

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        """Return which corrupted images there are, too."""
        found = super().configuration(cell, inputs)
        name = f"{cell.input}-c"
        return found | {"images": inputs[name].digest if name in inputs else "made here"}

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        """Return means over corruptions; the spread between these isn't an error of the mean."""
        speak = network.speaker(network.head())
        images = network.test_images(self.setting(cell, "most") or None)
        severity = int(cell.at["severity"])
        each: dict[str, dict[str, float]] = {}
        for name, changed in corrupted(f"{cell.input}-c", images, severity, inputs):
            rows = speak(network.says_of(changed))
            probs, labels = np.asarray(rows.probs), np.asarray(rows.labels)
            each[name] = {
                "ece": float(expected_calibration_error(probs, labels)),
                "accuracy": float((probs.argmax(axis=1) == labels).mean()),
            }
        values = {
            measure.name: {
                "value": float(np.mean([found[measure.name] for found in each.values()]))
            }
            for measure in _MEASURES
        }
        return {"values": values, "corruptions": each}


KIND = CorruptedImages()
