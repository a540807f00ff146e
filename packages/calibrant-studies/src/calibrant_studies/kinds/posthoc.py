"""A method fitted to held-out predictions and measured on others."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from calibrant._version import __version__
from calibrant.core.arguments import unknown
from calibrant.core.errors import InputError
from calibrant.core.result import Table
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.results import Evaluation
from calibrant.evaluation.uncertainty import paired_difference
from calibrant.metrics.registry import all_metrics
from calibrant.posthoc.auto import AutoCalibrator
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.registry import METHODS, make_calibrator
from calibrant.predictions.predictions import Predictions
from calibrant_studies.cells import Cell, CellResults, cells_of
from calibrant_studies.declaration import METHOD, Study
from calibrant_studies.inputs import Draw, Drawn, Inputs
from calibrant_studies.kinds.base import (
    PREDICTIONS,
    RESAMPLED,
    WITH_FEATURES,
    Kind,
    Measure,
    Need,
    quietly,
    seven_digits,
)

if TYPE_CHECKING:
    from calibrant_studies.cells import Ran

# Measured in any case, so that tables of different metrics share their cells.
USUAL = ("ece", "adaece", "smce", "nll", "brier", "accuracy")
ARGUMENTS = "arguments"
# Measured besides the metrics of the catalogue.
OTHERS = {
    measure.name: measure
    for measure in (
        Measure("seconds", "fit s", 1.0, 3, "low", "processor seconds of a fit"),
        Measure(
            "off-truth",
            "off truth",
            100.0,
            2,
            "low",
            "mean distance of the confidence from the known probability that it is right",
        ),
    )
}


class PostHoc(Kind):
    """Fit on the rows to fit on (with `size`, so many of them), measure on the others."""

    version: ClassVar[str] = "1"
    axes: ClassVar[tuple[str, ...]] = ("input", "method", "size")
    defaults: ClassVar[Mapping[str, Any]] = {
        "arguments": {},  # of methods, by name
        "fit_size": 0.5,  # of one file that is split
        "size": None,
        "rest": False,  # of one file, with a size: measure on all other rows
        "resamples": 400,
        "level": 0.95,
    }

    @property
    def measures(self) -> Mapping[str, Measure]:
        return super().measures if self.own_measures else {**super().measures, **OTHERS}

    def check(self, study: Study) -> None:
        """Refuse, besides, arguments of methods that aren't there, which would be ignored."""
        super().check(study)
        check_arguments(study)

    def tables(self, result: CellResults) -> list[tuple[str, Table]]:
        return averaged(result)

    def needs(self, cell: Cell) -> tuple[Need, ...]:
        features = any("features" in METHODS.named(part).needs for part in _steps(cell.method))
        return (Need(cell.input, WITH_FEATURES if features else PREDICTIONS, features),)

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        calibrator, size = self.calibrator(cell), self.size(cell)
        given = inputs[cell.input]
        split = given.is_split
        drawn = size is not None and not given.varies and size < given.predictions()[0].n
        seeded = given.varies or drawn or "seed" in calibrator.get_params()
        rest = {"rest": True} if split and size is not None and self.setting(cell, "rest") else {}
        return rest | {
            "method": cell.method,
            "arguments": calibrator.get_params(),
            "size": size,
            "fit_size": self.setting(cell, "fit_size") if split else None,
            "seed": cell.seed if seeded else None,
            "resamples": self.setting(cell, "resamples"),
            "level": self.setting(cell, "level"),
            "metrics": sorted(set(cell.metrics) - {*USUAL, *OTHERS}),
        }

    def method_version(self, cell: Cell) -> str:
        return method_code(cell.method)

    def size(self, cell: Cell) -> int | None:
        """Return how many rows to fit on, or None for all."""
        size = cell.at.get("size", self.setting(cell, "size"))
        return None if size in (None, "all") else int(size)

    def calibrator(self, cell: Cell) -> Calibrator:
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
            cell.seed,
            size=self.size(cell),
            fit_size=self.setting(cell, "fit_size"),
            rest=self.setting(cell, "rest"),
        )

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        given = inputs[cell.input]
        fit, test = self.rows(cell, inputs)
        test = test.counted
        calibrator = self.calibrator(cell)
        with quietly():
            started, worked = time.perf_counter(), time.process_time()
            calibrator.fit_predictions(fit)
            fitted, worked = time.perf_counter(), time.process_time() - worked
            after = calibrator.apply_predictions(test)
            applied = time.perf_counter()
        found = evaluate(
            after,
            metrics=[n for n in dict.fromkeys([*USUAL, *cell.metrics]) if n not in OTHERS],
            resamples=self.setting(cell, "resamples"),
            level=self.setting(cell, "level"),
            seed=cell.seed if given.varies else 0,
        )
        split = f" split {cell.seed}" if given.varies else ""
        # Rows to measure on that depend on how many there are to fit on.
        drawn = isinstance(given, Drawn) and self.size(cell) is not None
        split += f" {fit.n}" if self.setting(cell, "rest") or drawn else ""
        fit_size = self.setting(cell, "fit_size")
        halves = not given.is_split or fit_size == self.defaults["fit_size"]
        split += "" if halves else f" of {fit_size}"
        result = measured(found)
        result["values"]["seconds"] = {"value": worked}
        if isinstance(given, Drawn):
            add_distance(result, given.draw(cell.seed, self.size(cell)), after, cell.seed)
        if isinstance(calibrator, AutoCalibrator):
            result["averaged"] = calibrator.averaged_
        return result | {
            "pairing": f"{given.digest}{split}",
            "fit_rows": fit.n,
            "test_rows": test.n,
            "fit_seconds": fitted - started,
            "apply_seconds": applied - fitted,
            "parameters": calibrator.n_parameters,
            "notes": list(calibrator.fit_report_.notes),
        }


def add_distance(result: dict[str, Any], draw: Draw, after: Predictions, seed: int) -> None:
    """Add how far confidences are from the true probability that the predicted class is right."""
    assert draw.truth is not None
    said = after.probs
    right = np.take_along_axis(draw.truth, said.argmax(axis=1)[:, None], axis=1)[:, 0]
    away = np.abs(said.max(axis=1) - right)
    resamples = len(result["replicates"]["ece"])
    rows = np.random.default_rng(seed).integers(len(away), size=(resamples, len(away)))
    replicates = away[rows].mean(axis=1)
    low, high = np.quantile(replicates, [0.025, 0.975]).tolist()
    result["values"]["off-truth"] = {"value": float(away.mean()), "low": low, "high": high}
    result["replicates"]["off-truth"] = seven_digits(replicates)


def measured(found: Evaluation) -> dict[str, Any]:
    """Return the values and the replicates of an evaluation, as results of cells have them."""
    return {
        "values": {name: result.as_dict() for name, result in found.results.items()},
        "replicates": {
            name: seven_digits(result.replicates) for name, result in found.results.items()
        },
        "skipped": found.skipped,
    }


def method_code(method: str) -> str:
    """Return the version of the package, and the digest of the code of a method's steps."""
    return " ".join([__version__, *(code_of(METHODS.named(step)) for step in _steps(method))])


def check_arguments(study: Study) -> None:
    """Refuse arguments that no method of a study takes.

    Those of the study itself may be of a method that only another run asks for.

    Raises:
        UnknownMethodError: there is no such method.
        InputError: it is another one than the value of the axis that brings its arguments.
    """
    for name in study.settings.get(ARGUMENTS, {}):
        _steps(name)
    for value in study.axes.get(METHOD, ()):
        method = str(value.set.get(METHOD, value.name))
        _among(value.set, [method], f"{study.name}: arguments of '{value.name}'")
    there = list(dict.fromkeys(cell.method for cell in cells_of(study) if METHOD in cell.at))
    _among(study.forced, there, f"{study.name}: --set {ARGUMENTS}")


def _among(settings: Mapping[str, Any], methods: Sequence[str], where: str) -> None:
    given = settings.get(ARGUMENTS, {})
    if not isinstance(given, Mapping):
        raise InputError(f"{where}: must be arguments by method, {{method: {{name: value}}}}")
    for name in cast("Mapping[str, Any]", given):
        if name not in methods:
            raise InputError(f"{where}: {unknown(methods, name, 'method here')}")


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


# What `auto` averaged in a study, and what that was worth.

AUTO, LOSS = "auto", "nll"


def averaged(result: CellResults) -> list[tuple[str, Table]]:
    """Return mean weights over seeds, and the NLL over that of the best other method."""
    groups: dict[tuple[tuple[str, str], ...], dict[str, list[Ran]]] = {}
    for ran in result.ran:
        rest = tuple((axis, name) for axis, name in ran.cell.at.items() if axis != METHOD)
        groups.setdefault(rest, {}).setdefault(ran.cell.at.get(METHOD, ""), []).append(ran)
    rows: list[list[str]] = []
    for rest, methods in groups.items():
        every = [
            ran.result["averaged"] for ran in methods.get(AUTO, ()) if "averaged" in ran.result
        ]
        if not every:
            continue
        total: Counter[str] = Counter()
        for weights in every:
            total.update(weights)
        shares = {name: 100 * share / len(every) for name, share in total.most_common()}
        means = {
            name: float(np.mean([ran.result["values"][LOSS]["value"] for ran in of]))
            for name, of in methods.items()
        }
        own = means.pop(AUTO)
        best = min(means, key=lambda name: means[name], default=None)
        regret = "" if best is None else f"{own - means[best]:+.4f} to {best}"
        said = ", ".join(f"{name} {share:.0f}" for name, share in shares.items() if share >= 0.5)
        rows.append([*(name for _, name in rest), said, regret])
    if not rows:
        return []
    axes = [axis for axis in result.study.axes if axis != METHOD]
    notes = (
        "Mean weights over seeds in percent; regret: the mean NLL less that of the method which "
        "turned out the best."
    )
    table = Table([*axes, "weights", "regret"], rows, set(), notes, len(axes) + 1)
    return [("What auto averaged", table)]


# What a method takes away from the uncalibrated error: SMART's Figures 11 to 14.

TAKEN = "_taken"
# Measured in any case, so that figures of different metrics share their cells.
REDUCED = ("ece", "adaece")


class Reduction(PostHoc):
    """As `posthoc`; ``ece_taken`` is the uncalibrated ECE less the method's, and so on."""

    version: ClassVar[str] = "2"

    @property
    def measures(self) -> Mapping[str, Measure]:
        found = (replace(Measure.of(m), better="high") for m in all_metrics().values())
        return {
            f"{one.name}{TAKEN}": replace(
                one, name=f"{one.name}{TAKEN}", title=f"{one.title} taken away"
            )
            for one in found
        }

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        return super().configuration(cell, inputs) | {"metrics": sorted(_metrics(cell))}

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        fit, test = self.rows(cell, inputs)
        level = self.setting(cell, "level")
        options: dict[str, Any] = {
            "metrics": _metrics(cell),
            "resamples": self.setting(cell, "resamples"),
            "level": level,
            "seed": cell.seed if inputs[cell.input].is_split else 0,
        }
        after = self.fitted(cell, fit).apply_predictions(test)
        before, now = evaluate(test, **options), evaluate(after, **options)
        values: dict[str, dict[str, float]] = {}
        replicates: dict[str, list[float]] = {}
        for name in _metrics(cell):
            drawn = before[name].replicates, now[name].replicates
            taken = paired_difference(*drawn, (before[name].value, now[name].value), level)
            values[name + TAKEN] = {"value": taken.value, "low": taken.low, "high": taken.high}
            replicates[name + TAKEN] = seven_digits(drawn[0] - drawn[1])
        split = f" split {cell.seed}" if inputs[cell.input].is_split else ""
        pairing = f"{inputs[cell.input].digest}{split}"
        return {"values": values, "replicates": replicates, "pairing": pairing}


def _metrics(cell: Cell) -> list[str]:
    return list(dict.fromkeys([*REDUCED, *(name.removesuffix(TAKEN) for name in cell.metrics)]))


# How long methods take, as multiples of temperature scaling: SMART's Table 5.

BASE = "temperature"
WARM_UP_ROWS = 200


class Runtime(PostHoc):
    """Fit and apply a method and temperature scaling in turn; medians over `repeats`.

    Both are run side by side, after a run of each on few rows that loads what they need, and it is
    processor time that counts: what else the machine does slows both. The ratio has the quartiles
    of single ratios in place of an interval.
    """

    version: ClassVar[str] = "2"
    unread: ClassVar[tuple[str, ...]] = RESAMPLED
    defaults: ClassVar[Mapping[str, Any]] = {**PostHoc.defaults, "repeats": 5}

    own_measures: ClassVar[tuple[Measure, ...]] = (
        Measure("seconds", "processor seconds", digits=4),
        Measure("ratio", "times TS", digits=1),
    )

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        machine = [platform.machine(), os.cpu_count()]
        repeats = {"repeats": self.setting(cell, "repeats"), "machine": machine}
        return super().configuration(cell, inputs) | repeats

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        fit, test = self.rows(cell, inputs)
        base_cell = Cell(cell.study, cell.kind, {**cell.at, "method": BASE}, cell.seed)
        few = fit.take(np.arange(min(fit.n, WARM_UP_ROWS)))
        for one in (base_cell, cell):
            seconds_of(self.calibrator(one), few, few)
        times = np.empty((self.setting(cell, "repeats"), 2))
        for both in times:
            both[0] = seconds_of(self.calibrator(base_cell), fit, test)
            both[1] = seconds_of(self.calibrator(cell), fit, test)
        if cell.method == BASE:  # held against itself it says how steady the machine is
            times[:, 1] = times[:, 0]
        ratio = times[:, 1] / times[:, 0]
        low, middle, high = (float(part) for part in np.quantile(ratio, [0.25, 0.5, 0.75]))
        return {
            "values": {
                "seconds": {"value": float(np.median(times[:, 1]))},
                "ratio": {"value": middle, "low": low, "high": high},
            },
            "seconds": times[:, 1].tolist(),
            "base_seconds": times[:, 0].tolist(),
            "fit_rows": fit.n,
            "test_rows": test.n,
            "classes": fit.n_classes,
        }


def seconds_of(calibrator: Calibrator, fit: Predictions, test: Predictions) -> float:
    """Return the processor seconds of a fit and an application, of which nothing is known yet."""
    fresh = [rows.take(np.arange(rows.n)) for rows in (fit, test)]
    with quietly():
        began = time.process_time()
        calibrator.fit_predictions(fresh[0])
        calibrator.apply_predictions(fresh[1])
        return time.process_time() - began
