"""`Calibrated` against scikit-learn's `CalibratedClassifierCV`, on held-out rows.

Both wrappers get the same rows with their default arguments (five folds that are averaged),
`CalibratedClassifierCV` once with each of its three methods, and say probabilities of the same
other rows. A probability of the true class of 0 counts as 2.2e-16, as in scikit-learn's `log_loss`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from calibrant._version import __version__
from calibrant.core.arrays import FloatArray
from calibrant.core.tables import Table
from calibrant_studies.cells import Cell
from calibrant_studies.differences import all_pairs
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import Measure, Simulated
from calibrant_studies.measuring import quietly
from calibrant_studies.scikit_learn import classifier, rows_of

if TYPE_CHECKING:
    from calibrant_studies.results import StudyResult

OURS = "calibrated"
SMALLEST = float(np.finfo(np.float64).eps)
_MEASURES = (
    Measure("log-loss", "log loss", 1, 4, "low", "nats, mean over rows"),
    Measure("brier", "Brier score", 1, 4, "low", "summed over classes, mean over rows"),
)


class Wrappers(Simulated):
    """Wrap a classifier, fit both to some rows of a set, and measure on others."""

    version: ClassVar[str] = "1"
    axes: ClassVar[tuple[str, ...]] = ("set", "classifier", "method")
    defaults: ClassVar[Mapping[str, Any]] = {"rows": 1000, "resamples": 2000}

    @property
    def measures(self) -> Mapping[str, Measure]:
        """Two proper scores."""
        return {measure.name: measure for measure in _MEASURES}

    def method_version(self, cell: Cell) -> str:
        """Return the versions of both packages."""
        return f"{__version__}, scikit-learn {import_module('sklearn').__version__}"

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        """Return mean losses with intervals over the rows that are measured on."""
        data, method = cell.at["set"], cell.method
        (seen, truth), (new, new_truth) = rows_of(data, self.setting(cell, "rows"), cell.seed)
        bare = classifier(cell.at["classifier"])
        model: Any = (
            import_module("calibrant.sklearn").Calibrated(bare)
            if method == OURS
            else import_module("sklearn.calibration").CalibratedClassifierCV(bare, method=method)
        )
        with quietly():
            of_rows = losses(model.fit(seen, truth).predict_proba(new), new_truth)
        n = of_rows.shape[1]
        # The same resamples for all wrappers of these rows.
        rng = np.random.default_rng(cell.seed)
        counts = rng.multinomial(n, np.full(n, 1 / n), self.setting(cell, "resamples"))
        found: dict[str, Any] = {"values": {}, "replicates": {}}
        for measure, loss in zip(_MEASURES, of_rows, strict=True):
            replicates = counts @ loss / n
            low, high = np.quantile(replicates, [0.025, 0.975]).tolist()
            value = {"value": float(loss.mean()), "low": low, "high": high}
            found["values"][measure.name] = value
            found["replicates"][measure.name] = [float(f"{value:.7g}") for value in replicates]
        return found | {"pairing": f"{data} {cell.seed} {n}"}

    def tables(self, result: StudyResult) -> list[tuple[str, Table]]:
        """Return how often each of the others comes out worse, better, or neither."""
        counts: dict[tuple[str, str], list[int]] = {}
        for pair in all_pairs(result):
            for measure, found in pair.found.items():
                if found is not None:
                    of = counts.setdefault((pair.words, measure.title), [0, 0, 0])
                    of[0 if found.low > 0 else 2 if found.high < 0 else 1] += 1
        rows = [[*where, *map(str, of)] for where, of in counts.items()]
        notes = "Of all sets and classifiers, by the intervals of the differences."
        head = ["difference", "score", "higher", "open", "lower"]
        return [("How often", Table(head, rows, set(), notes, 2))] if rows else []


def losses(probs: FloatArray, truth: NDArray[Any]) -> FloatArray:
    """Return (2, N): log loss and Brier score of each row."""
    index = np.arange(len(truth))
    right = probs[index, truth]
    wrong = probs.copy()
    wrong[index, truth] -= 1
    return np.stack([-np.log(np.clip(right, SMALLEST, 1)), (wrong**2).sum(axis=1)])


KIND = Wrappers()
