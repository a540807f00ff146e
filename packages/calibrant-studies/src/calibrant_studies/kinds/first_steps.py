"""How well `probit-top-rest` chooses between normal noise and temperature scaling.

Top-rest scaling is fitted behind either first step. Told are the NLL behind the better one, and
what is lost to it by: always temperature scaling (`top-rest`); always normal noise; normal noise if
it is likelier on the calibration rows by a standard error before the second step (the former rule);
and the present rule with several thresholds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from calibrant.metrics.proper import negative_log_likelihood
from calibrant.posthoc import named_chains
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.confidence.top_rest import TopRestScaling
from calibrant.posthoc.named_chains import ProbitTopRestScaling
from calibrant.posthoc.noise import ProbitScaling
from calibrant.posthoc.temperature.scaling import TemperatureScaling
from calibrant.predictions.predictions import Predictions
from calibrant_studies.cells import Cell
from calibrant_studies.data import Draw
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import PREDICTIONS, Kind, Measure, Need
from calibrant_studies.kinds.posthoc import method_code
from calibrant_studies.measuring import quietly

# Labels that noise decides, of a deviation that is up to twice as large at small margins in `both`.
DRAWN = ("normal", "gumbel", "both")
THRESHOLDS = (0.0, 0.25, 0.5)
RULES = ("top-rest", "normal", "former", *(f"clear-{threshold:g}" for threshold in THRESHOLDS))


class FirstSteps(Kind):
    """Fit behind either first step, and ask every rule which one it takes."""

    version: ClassVar[str] = "1"
    axes: ClassVar[tuple[str, ...]] = ("input", "size")
    defaults: ClassVar[Mapping[str, Any]] = {"test_rows": 10_000}

    @property
    def measures(self) -> Mapping[str, Measure]:
        """The NLL of the better first step, and what each rule loses to it."""
        lost = {name: Measure(name, name, 1.0, 4, "low") for name in RULES}
        return {"best": Measure("best", "NLL of the better", 1.0, 4, "low")} | lost

    def needs(self, cell: Cell) -> tuple[Need, ...]:
        """Return the predictions, unless they are drawn."""
        return () if cell.input in DRAWN else (Need(cell.input, PREDICTIONS),)

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        """Return input, size and seed."""
        drawn = {"drawn": cell.input} if cell.input in DRAWN else {}
        rows = self.setting(cell, "test_rows")
        return {**drawn, "size": cell.at["size"], "seed": cell.seed, "test_rows": rows}

    def method_version(self, cell: Cell) -> str:
        """Return that of the method."""
        return method_code("probit-top-rest")

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        """Return the losses."""
        size, most = int(cell.at["size"]), self.setting(cell, "test_rows")
        if cell.input in DRAWN:
            fit, test = (
                noisy(cell.input, size, cell.seed),
                noisy(cell.input, most, most + cell.seed),
            )
        else:
            fit, test = inputs[cell.input].rows(cell.seed, size=size, rest=True)
        with quietly():
            plain, normal, *chosen = losses_of(Draw(fit, test))
        best = min(plain, normal)
        lost = zip(RULES, (plain, normal, *chosen), strict=True)
        values = {name: {"value": loss - best} for name, loss in lost}
        return {"values": {"best": {"value": best}, **values}}


def noisy(kind: str, rows: int, seed: int) -> Predictions:
    """Return rows of 20 classes whose labels noise decides."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(scale=2.0, size=(rows, 20))
    top = np.sort(scores, axis=1)
    unsure = np.exp(top[:, -2] - top[:, -1])[:, None]
    noise = rng.gumbel(size=scores.shape) if kind == "gumbel" else rng.normal(size=scores.shape)
    size = 1 + unsure if kind == "both" else 1.0
    return Predictions.from_logits(3 * scores, (scores + size * noise).argmax(axis=1))


def losses_of(draw: Draw) -> list[float]:
    """Return the NLL of both first steps, of the former rule and of the present one."""
    fit, test = draw.fit, draw.test

    def fitted(calibrator: Calibrator) -> Calibrator:
        return calibrator.fit(fit.logits, fit.labels)

    def loss(calibrator: Calibrator) -> float:
        return negative_log_likelihood(calibrator.predict_proba(test.logits), test.labels)

    plain, normal = (
        loss(fitted(TopRestScaling())),
        loss(fitted(ProbitTopRestScaling(tails="normal"))),
    )
    own, other = (
        -np.log(c.predict_proba(fit.logits)[np.arange(fit.n), fit.labels])
        for c in (fitted(ProbitScaling()), fitted(TemperatureScaling()))
    )
    gain = other - own
    likelier = gain.mean() > gain.std(ddof=1) / np.sqrt(fit.n)
    found = [plain, normal, normal if likelier else plain]
    usual = named_chains.CLEAR
    try:
        for threshold in THRESHOLDS:
            named_chains.CLEAR = threshold
            chosen = fitted(ProbitTopRestScaling()).parts()["first_"].method
            found.append(normal if chosen == "probit" else plain)
    finally:  # other cells are computed in this process
        named_chains.CLEAR = usual
    return found


KIND = FirstSteps()
