"""How well a network's confidence tells images that it knows from others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray
from calibrant.metrics.detection import auroc, fpr_at_tpr
from calibrant.predictions.predictions import Predictions
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import Measure, Need
from calibrant_studies.networks.cells import NetworkKind
from calibrant_studies.networks.images import TILES, unknown_images
from calibrant_studies.networks.trained import Network, Speaker

UNKNOWN = "unknown"
AUROC, ENTROPY, FPR95 = "auroc", "auroc-entropy", "fpr95"
_IMAGES = "a data set of other images, whose test images the network can't know (--data NAME=PATH)"
_MEASURES = (
    Measure(AUROC, "AUROC", 100, 2, "high", "by the largest probability"),
    Measure(ENTROPY, "AUROC, entropy", 100, 2, "high", "by minus the entropy"),
    Measure(FPR95, "FPR95", 100, 2, "low", "unknown images above the threshold of 95 % of known"),
)


class OutOfDistribution(NetworkKind):
    """Compare the test images with unknown ones, which get the network's own normalisation."""

    version: ClassVar[str] = "2"
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
        """Return the sets, how many images of each, resamples and level."""
        read = {name: self.setting(cell, name) for name in ("most", "resamples", "level")}
        return {UNKNOWN: self.sets(cell), **read}

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        """Return means over the sets, with intervals, and what paired differences need."""
        most = self.setting(cell, "most") or None
        speak = network.speaker(network.head())
        images = network.test_images(most)
        known = _scores(speak, network.test if most is None else network.says_of(images))
        sets = self.sets(cell)
        unknown: list[Mapping[str, FloatArray]] = []
        for name in sets:
            others = unknown_images(name, images, inputs, network.place, most)
            unknown.append(_scores(speak, network.says_of(others, known=False)))
        found = detected(known, unknown, self.setting(cell, "resamples"))
        tail = (1 - self.setting(cell, "level")) / 2
        values: dict[str, dict[str, float]] = {}
        for name, (value, drawn) in found.items():
            low, high = np.quantile(drawn - drawn.mean() + value, [tail, 1 - tail])
            values[name] = {"value": value, "low": float(low), "high": float(high)}
        counts = [len(scores[AUROC]) for scores in (known, *unknown)]
        return {
            "values": values,
            "replicates": {name: drawn.tolist() for name, (_, drawn) in found.items()},
            # The same images in the same order are resampled alike.
            "pairing": f"{network.plan.input} {network.labels_digest} {sets} {counts}",
            "test_rows": sum(counts),
        }


def _scores(speak: Speaker, rows: Predictions) -> dict[str, FloatArray]:
    """Return scores that are high for images that look known."""
    probs = np.asarray(speak(rows).probs, np.float64)
    logs = np.log(np.maximum(probs, np.finfo(np.float64).tiny))
    return {AUROC: probs.max(axis=1), ENTROPY: (probs * logs).sum(axis=1)}


def detected(
    known: Mapping[str, FloatArray], unknown: Sequence[Mapping[str, FloatArray]], resamples: int
) -> dict[str, tuple[float, FloatArray]]:
    """Return each measure's mean over sets of unknown images, and the same on resamples.

    Known images and those of each set are drawn with replacement, the same ones whatever their
    scores are. All sets are held against one draw of the known images, so what they share counts.

    Args:
        known: (N,) scores of the known images, by the name of the measure.
        unknown: (M,) scores of each set.
        resamples: how many.
    """
    rng = np.random.default_rng(0)
    first = known[AUROC]
    wins = {name: [_Wins(known[name], each[name]) for each in unknown] for name in known}
    drawn: dict[str, list[float]] = {name: [] for name in (*known, FPR95)}
    for _ in range(resamples):
        of_known = _times_drawn(rng, len(first))
        of_sets = [_times_drawn(rng, len(each[AUROC])) for each in unknown]
        for name, of in wins.items():
            shares = [win.share(of_known, times) for win, times in zip(of, of_sets, strict=True)]
            drawn[name].append(float(np.mean(shares)))
        again = np.repeat(first, of_known)
        rates = [
            fpr_at_tpr(again, np.repeat(each[AUROC], times))
            for each, times in zip(unknown, of_sets, strict=True)
        ]
        drawn[FPR95].append(float(np.mean(rates)))
    values = {
        name: float(np.mean([auroc(known[name], each[name]) for each in unknown])) for name in known
    }
    values[FPR95] = float(np.mean([fpr_at_tpr(first, each[AUROC]) for each in unknown]))
    return {name: (value, np.array(drawn[name])) for name, value in values.items()}


def _times_drawn(rng: np.random.Generator, rows: int) -> NDArray[np.int64]:
    return np.bincount(rng.integers(rows, size=rows), minlength=rows)


class _Wins:
    """How often known rows score above unknown ones; ties count half."""

    def __init__(self, known: FloatArray, unknown: FloatArray) -> None:
        self._order = np.argsort(unknown)
        ordered = unknown[self._order]
        self._below = [np.searchsorted(ordered, known, side) for side in ("left", "right")]

    def share(self, known: NDArray[np.int64], unknown: NDArray[np.int64]) -> float:
        """Return the AUROC where each row counts as often as said."""
        passed = np.concatenate([[0], np.cumsum(unknown[self._order])])
        wins = passed[self._below[0]] + passed[self._below[1]]
        return float(known @ wins / (2 * known.sum() * unknown.sum()))


KIND = OutOfDistribution()
