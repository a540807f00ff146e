"""What it costs to fit to a uniform sample of very many rows instead of to all of them.

Rows are synthetic, logits that are too sure by more the closer the call, so the honest
probabilities are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.predictions import SMALLEST_PROBABILITY, Predictions
from calibrant.scale.sampling import sampled_places
from calibrant.synthetic import KnownTruth, margin_tempered
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import Measure, Simulated
from calibrant_studies.kinds.posthoc import method_code
from calibrant_studies.measuring import quietly

CLASSES, NEAR, FAR = 10, 2.5, 1.2
PIECE = 100_000


class SampleCost(Simulated):
    """Fit to all rows and to a sample of them, and compare the expected NLL on other rows."""

    version: ClassVar[str] = "1"
    axes: ClassVar[tuple[str, ...]] = ("method", "sample")
    defaults: ClassVar[Mapping[str, Any]] = {"rows": 4_000_000, "judged": 100_000}

    @property
    def measures(self) -> Mapping[str, Measure]:
        """The NLL after a fit to all rows, and what the sample adds."""
        return {
            "nll": Measure("nll", "NLL of all", 1.0, 6, "low"),
            "cost": Measure("cost", "cost", 1e6, 1, "low"),
        }

    def method_version(self, cell: Cell) -> str:
        """Return that of the method."""
        return method_code(cell.method)

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        """Return the NLL of all rows, and what a sample adds to it."""
        every = drawn(self.setting(cell, "rows"))
        judged = margin_tempered(
            self.setting(cell, "judged"), CLASSES, near=NEAR, far=FAR, seed=10**6
        )
        whole = expected_nll(cell.method, every, judged)
        places = sampled_places(every.n, int(cell.at["sample"]), cell.seed)
        cost = expected_nll(cell.method, every.take(places), judged) - whole
        return {"values": {"nll": {"value": whole}, "cost": {"value": cost}}}


@lru_cache(maxsize=1)
def drawn(rows: int) -> Predictions:
    """Return rows as float32, drawn piece by piece."""
    logits = np.empty((rows, CLASSES), dtype=np.float32)
    labels = np.empty(rows, dtype=np.int64)
    for seed, start in enumerate(range(0, rows, PIECE)):
        size = min(PIECE, rows - start)
        some = margin_tempered(size, CLASSES, near=NEAR, far=FAR, seed=seed).predictions
        logits[start : start + size], labels[start : start + size] = some.logits, some.labels
    return Predictions("logits", logits, labels, source="synthetic")


def expected_nll(method: str, rows: Predictions, judged: KnownTruth) -> float:
    """Return the mean over honest labels of the NLL on the rows that are judged, after a fit."""
    with quietly():
        calibrator = make_calibrator(method).fit_predictions(rows)
    probs = np.asarray(calibrator.predict_proba(judged.predictions.logits), dtype=np.float64)
    surprise = -np.log(np.maximum(probs, SMALLEST_PROBABILITY))
    return float((np.asarray(judged.honest) * surprise).sum(axis=1).mean())


KIND = SampleCost()
