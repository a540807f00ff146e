"""How honest a network stays on corrupted test images, severity by severity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.uncertainty import interval
from calibrant.predictions.predictions import Predictions
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import Measure
from calibrant_studies.networks.cells import NetworkKind
from calibrant_studies.networks.images import corrupted
from calibrant_studies.networks.trained import Network

_MEASURES = (
    Measure("ece", "ECE", 100, 2, "low", "15 equal bins; mean over corruptions"),
    Measure("accuracy", "accuracy", 100, 2, "high", "mean over corruptions"),
)


class CorruptedImages(NetworkKind):
    """Measure on images corrupted here, or on those of an input called DATA-c as in CIFAR-10-C."""

    version: ClassVar[str] = "2"
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
        """Return severity, number of images, and what intervals come from."""
        names = ("most", "resamples", "level")
        settings = {name: self.setting(cell, name) for name in names}
        return {"severity": int(cell.at["severity"])} | settings

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        """Return which corrupted images there are, too."""
        found = super().configuration(cell, inputs)
        name = f"{cell.input}-c"
        return found | {"images": inputs[name].digest if name in inputs else "made here"}

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        """Return means over corruptions.

        All corruptions are of the same images, which are therefore resampled together. The spread
        between corruptions is no error of their mean.
        """
        speak = network.speaker(network.head())
        names = [measure.name for measure in _MEASURES]
        found = {
            name: evaluate(
                speak(rows),
                metrics=names,
                resamples=self.setting(cell, "resamples"),
                level=self.setting(cell, "level"),
            ).results
            for name, rows in self._said(cell, network, inputs)
        }
        values: dict[str, dict[str, float]] = {}
        replicates: dict[str, list[float]] = {}
        for name in names:
            each = [of[name] for of in found.values()]
            value = float(np.mean([result.value for result in each]))
            drawn = np.mean([result.replicates for result in each], axis=0)
            floors = [result.floor for result in each if result.floor is not None]
            ends = interval(value, drawn, self.setting(cell, "level"), biased=bool(floors))
            values[name] = {"value": value, "low": ends[0], "high": ends[1]}
            if floors:
                values[name]["floor"] = float(np.mean(floors))
            replicates[name] = [float(f"{value:.7g}") for value in drawn]
        return {
            "values": values,
            "replicates": replicates,
            "pairing": f"{cell.input} {cell.at['severity']} {self.setting(cell, 'most')} "
            f"{network.labels_digest}",
            "corruptions": {
                corruption: {name: result.value for name, result in of.items()}
                for corruption, of in found.items()
            },
        }

    def _said(
        self, cell: Cell, network: Network, inputs: Inputs
    ) -> Iterable[tuple[str, Predictions]]:
        """Return what a network says of each corruption: once for all heads behind it."""
        name, severity = f"{cell.input}-c", int(cell.at["severity"])
        images = network.test_images(self.setting(cell, "most") or None)
        changed = corrupted(name, images, severity, inputs)
        said = ((corruption, network.says_of(some)) for corruption, some in changed)
        if name in inputs:
            return said  # ten thousand images a corruption are too many to be kept
        key = (network.source.digest, severity, len(images))
        if key not in _SAID:
            while len(_SAID) >= _MOST_SAID:
                _SAID.pop(next(iter(_SAID)))
            _SAID[key] = list(said)
        return _SAID[key]


# What this process has said last of images corrupted here: methods with one network share it.
_SAID: dict[tuple[str, int, int], list[tuple[str, Predictions]]] = {}
_MOST_SAID = 5


KIND = CorruptedImages()
