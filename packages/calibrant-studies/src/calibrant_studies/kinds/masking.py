"""What random masks over the classifier's connections do, with and without learning under them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from calibrant.core.errors import InputError
from calibrant.metrics.binned import expected_calibration_error
from calibrant.predictions.rows import softmax
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import RESAMPLED, Measure
from calibrant_studies.measuring import quietly
from calibrant_studies.networks.cells import NetworkKind
from calibrant_studies.networks.trained import Network

RATE = "masked"
_MEASURES = (
    Measure("accuracy", "accuracy", 100, 2, "high"),
    Measure("confidence", "mean confidence", 100, 2, "neither"),
    Measure("ece", "ECE", 100, 2, "low", "15 equal bins"),
)


class Masking(NetworkKind):
    """Mask a share of the last layer: at inference only, or while a new one is trained."""

    version: ClassVar[str] = "1"
    unread: ClassVar[tuple[str, ...]] = (
        *RESAMPLED,
        "after",
        "second_stage",
        "stage_arguments",
    )
    axes: ClassVar[tuple[str, ...]] = ("input", "network", "method", RATE)
    defaults: ClassVar[Mapping[str, Any]] = {
        **NetworkKind.defaults,
        "learns": False,  # whether a new linear head is trained under the masks
        "repeats": 5,
    }

    @property
    def measures(self) -> Mapping[str, Measure]:
        """Accuracy, confidence and ECE."""
        return {measure.name: measure for measure in _MEASURES}

    def measuring(self, cell: Cell) -> dict[str, Any]:
        """Return the share, and how it is applied."""
        names = ("learns", "repeats", "stage_epochs")
        return {RATE: float(cell.at[RATE])} | {name: self.setting(cell, name) for name in names}

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        """Return means over test rows."""
        kept = 1 - float(cell.at[RATE]) / 100
        if self.setting(cell, "learns"):
            found = self._learnt(cell, network, kept)
        else:
            found = self._at_inference(cell, network, kept)
        return {"values": {name: {"value": value} for name, value in found.items()}}

    def _at_inference(self, cell: Cell, network: Network, kept: float) -> dict[str, float]:
        from calibrant.training.second_stages import mask_at_inference

        head = network.test.head
        if head is None or network.test.features is None:
            raise InputError(f"{network.plan.name}: its test predictions hold no last layer")
        (point,) = mask_at_inference(
            head.weight,
            head.bias,
            network.test.features,
            network.test.labels,
            (kept,),
            repeats=self.setting(cell, "repeats"),
            seed=network.plan.seed,
        )
        said = point.as_dict()
        return {measure.name: said[measure.name] for measure in _MEASURES}

    def _learnt(self, cell: Cell, network: Network, kept: float) -> dict[str, float]:
        from calibrant.training.second_stages import MaCCal

        rows = network.training_rows()
        stage = MaCCal(
            seed=network.plan.seed,
            epochs=self.setting(cell, "stage_epochs"),
            adaptation="none",
            kappa=1.0,
            initial_retention=kept,
        )
        with quietly():
            stage.fit(rows.features, rows.labels, n_classes=network.test.n_classes)
        probs = softmax(np.asarray(stage.logits(network.test.features), np.float64))
        labels = np.asarray(network.test.labels)
        return {
            "accuracy": float((probs.argmax(axis=1) == labels).mean()),
            "confidence": float(probs.max(axis=1).mean()),
            "ece": float(expected_calibration_error(probs, labels)),
        }


KIND = Masking()
