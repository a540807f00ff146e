"""A method fitted to held-out predictions and measured on others."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from calibrant._version import __version__
from calibrant.evaluation.evaluate import Evaluation, evaluate
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.registry import METHODS, make_calibrator
from calibrant.predictions.predictions import Predictions
from calibrant.studies.cells import Cell
from calibrant.studies.inputs import Inputs
from calibrant.studies.kinds.base import PREDICTIONS, WITH_FEATURES, Kind, Need
from calibrant.studies.measuring import quietly

# Measured in any case, so that tables of different metrics share their cells.
USUAL = ("ece", "adaece", "smce", "nll", "brier", "accuracy")


class PostHoc(Kind):
    """Fit on the rows to fit on (with `size`, so many of them), measure on the others."""

    version: ClassVar[str] = "1"
    axes: ClassVar[tuple[str, ...]] = ("input", "method", "size")
    defaults: ClassVar[Mapping[str, Any]] = {
        "arguments": {},  # of methods, by name
        "fit_size": 0.5,  # of one file that is split
        "size": None,
        "resamples": 400,
        "level": 0.95,
    }

    def needs(self, cell: Cell) -> tuple[Need, ...]:
        """Return the predictions, with features where the method sees them."""
        features = any("features" in METHODS.named(part).needs for part in _steps(cell.method))
        return (Need(cell.input, WITH_FEATURES if features else PREDICTIONS, features),)

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        """Return method, arguments and rows; the seed only if it changes anything."""
        calibrator, size = self.calibrator(cell), self.size(cell)
        split = inputs[cell.input].is_split
        seeded = split or size is not None or "seed" in calibrator.get_params()
        return {
            "method": cell.method,
            "arguments": calibrator.get_params(),
            "size": size,
            "fit_size": self.setting(cell, "fit_size") if split else None,
            "seed": cell.seed if seeded else None,
            "resamples": self.setting(cell, "resamples"),
            "level": self.setting(cell, "level"),
            "metrics": sorted(set(cell.metrics) - set(USUAL)),
        }

    def method_version(self, cell: Cell) -> str:
        """Return the version of the package, and the digest of the method's own code."""
        return method_code(cell.method)

    def size(self, cell: Cell) -> int | None:
        """Return how many rows to fit on, or None for all."""
        size = cell.at.get("size", self.setting(cell, "size"))
        return None if size in (None, "all") else int(size)

    def calibrator(self, cell: Cell) -> Calibrator:
        """Return the unfitted method of a cell."""
        arguments = dict(self.setting(cell, "arguments").get(cell.method, {}))
        calibrator = make_calibrator(cell.method, **arguments)
        if "seed" in calibrator.get_params() and "seed" not in arguments:
            calibrator.set_params(seed=cell.seed)
        return calibrator

    def fitted(self, cell: Cell, fit: Predictions) -> Calibrator:
        """Return the method of a cell, fitted."""
        with quietly():
            return self.calibrator(cell).fit_predictions(fit)

    def rows(self, cell: Cell, inputs: Inputs) -> tuple[Predictions, Predictions]:
        """Return the rows to fit on and those to measure on."""
        return inputs[cell.input].rows(
            cell.seed, size=self.size(cell), fit_size=self.setting(cell, "fit_size")
        )

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        """Return metrics with intervals and floors."""
        fit, test = self.rows(cell, inputs)
        test = test.counted
        calibrator = self.calibrator(cell)
        with quietly():
            started = time.perf_counter()
            calibrator.fit_predictions(fit)
            fitted = time.perf_counter()
            after = calibrator.apply_predictions(test)
            applied = time.perf_counter()
        found = evaluate(
            after,
            metrics=list(dict.fromkeys([*USUAL, *cell.metrics])),
            resamples=self.setting(cell, "resamples"),
            level=self.setting(cell, "level"),
            seed=cell.seed if inputs[cell.input].is_split else 0,
        )
        split = f" split {cell.seed}" if inputs[cell.input].is_split else ""
        return measured(found) | {
            "pairing": f"{inputs[cell.input].digest}{split}",
            "fit_rows": fit.n,
            "test_rows": test.n,
            "fit_seconds": fitted - started,
            "apply_seconds": applied - fitted,
            "parameters": calibrator.n_parameters,
            "notes": list(calibrator.fit_report_.notes),
        }


def measured(found: Evaluation) -> dict[str, Any]:
    """Return the values and the replicates of an evaluation, as results of cells have them."""
    return {
        "values": {name: result.as_dict() for name, result in found.results.items()},
        # Seven digits tell resamples apart, and take half the room.
        "replicates": {
            name: [float(f"{value:.7g}") for value in result.replicates]
            for name, result in found.results.items()
        },
        "skipped": found.skipped,
    }


def method_code(method: str) -> str:
    """Return the version of the package, and the digest of the code of a method's steps."""
    return " ".join([__version__, *(code_of(METHODS.named(step)) for step in _steps(method))])


def _steps(method: str) -> list[str]:
    """Return the methods that a chain is made of, or the only one."""
    METHODS.named(method)  # a chain is refused by its own name
    return method.split("+")


@lru_cache
def code_of(method: type[Calibrator]) -> str:
    """Return the digest of the modules that a method and its bases stand in."""
    digest = hashlib.sha256()
    for base in method.__mro__:
        file = getattr(sys.modules.get(base.__module__), "__file__", None)
        if base not in (object, Calibrator) and file is not None and Path(file).is_file():
            digest.update(Path(file).read_bytes())
    return digest.hexdigest()[:12]


KIND = PostHoc()
