"""How well a network's confidence tells images that it knows from others."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.metrics.detection import auroc, fpr_at_tpr
from calibrant.predictions.predictions import Predictions
from calibrant.studies.cells import Cell
from calibrant.studies.inputs import Inputs
from calibrant.studies.kinds.base import Measure, Need
from calibrant.studies.networks.cells import NetworkKind
from calibrant.studies.networks.images import TILES, unknown_images
from calibrant.studies.networks.trained import Network, Speaker

UNKNOWN = "unknown"
_IMAGES = "a data set of other images, whose test images the network can't know (--data NAME=PATH)"
_MEASURES = (
    Measure("auroc", "AUROC", 100, 2, "high", "by the largest probability"),
    Measure("auroc-entropy", "AUROC, entropy", 100, 2, "high", "by minus the entropy"),
    Measure("fpr95", "FPR95", 100, 2, "low", "unknown images above the threshold of 95 % of known"),
)


class OutOfDistribution(NetworkKind):
    """Compare the test images with unknown ones, which get the network's own normalisation."""

    version: ClassVar[str] = "1"
    axes: ClassVar[tuple[str, ...]] = ("input", "network", "method", UNKNOWN)
    defaults: ClassVar[Mapping[str, Any]] = {
        **NetworkKind.defaults,
        UNKNOWN: [],  # names of sets, over which the numbers are averaged
        "most": 0,  # images of each set; 0 for all
    }

    @property
    def measures(self) -> Mapping[str, Measure]:
        """AUROC by two scores, and the share of unknown images at 95 % of the known ones."""
        return {measure.name: measure for measure in _MEASURES}

    def sets(self, cell: Cell) -> list[str]:
        """Return the names of the unknown sets of a cell."""
        return list(self.setting(cell, UNKNOWN)) or [cell.at[UNKNOWN]]

    def more_needs(self, cell: Cell) -> tuple[Need, ...]:
        """Return the sets of unknown images that aren't made here."""
        return tuple(Need(name, _IMAGES) for name in self.sets(cell) if name not in TILES)

    def measuring(self, cell: Cell) -> dict[str, Any]:
        """Return the sets, and how many images of each."""
        return {"unknown": self.sets(cell), "most": self.setting(cell, "most")}

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        """Return means over the sets, with intervals that count the images of all sets."""
        most = self.setting(cell, "most") or None
        speak = network.speaker(network.head())
        images = network.test_images(most)
        known = _scores(speak, network.test if most is None else network.says_of(images))
        found: list[dict[str, tuple[float, float]]] = []
        for name in self.sets(cell):
            others = unknown_images(name, images, inputs, network.place, most)
            found.append(_compared(known, _scores(speak, network.says_of(others, known=False))))
        quantile = NormalDist().inv_cdf((1 + self.setting(cell, "level")) / 2)
        values: dict[str, dict[str, float]] = {}
        for measure in found[0]:
            value = float(np.mean([each[measure][0] for each in found]))
            # The known images are in all comparisons: errors add up rather than average out.
            half = quantile * float(np.mean([each[measure][1] for each in found]))
            values[measure] = {"value": value, "low": value - half, "high": value + half}
        return {"values": values}


def _scores(speak: Speaker, rows: Predictions) -> dict[str, FloatArray]:
    """Return scores that are high for images that look known."""
    probs = np.asarray(speak(rows).probs, np.float64)
    logs = np.log(np.maximum(probs, np.finfo(np.float64).tiny))
    return {"auroc": probs.max(axis=1), "auroc-entropy": (probs * logs).sum(axis=1)}


def _compared(
    known: Mapping[str, FloatArray], unknown: Mapping[str, FloatArray]
) -> dict[str, tuple[float, float]]:
    """Return each measure with its standard error over images."""
    found = {
        name: (auroc(known[name], unknown[name]), _delong(known[name], unknown[name]))
        for name in known
    }
    first, other = known["auroc"], unknown["auroc"]
    rate = fpr_at_tpr(first, other)
    rng = np.random.default_rng(0)
    drawn = [
        fpr_at_tpr(rng.choice(first, len(first)), rng.choice(other, len(other))) for _ in range(100)
    ]
    return found | {"fpr95": (rate, float(np.std(drawn, ddof=1)))}


def _delong(known: FloatArray, unknown: FloatArray) -> float:
    """Return the standard error of the AUROC: each image's share of wins varies."""
    above = [_share_below(np.sort(unknown), known), _share_below(np.sort(known), unknown)]
    return float(np.sqrt(sum(np.var(each, ddof=1) / len(each) for each in above)))


def _share_below(ordered: FloatArray, values: FloatArray) -> FloatArray:
    left, right = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
    return (left + right) / (2 * len(ordered))


KIND = OutOfDistribution()
