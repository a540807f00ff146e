"""SMART's Table 3: one temperature, PTS and SMART, each fitted to each of six objectives.

SMART takes its objective as an argument. Here the other two do as well, with the same functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from calibrant._version import __version__
from calibrant.core.arguments import argument, unknown
from calibrant.core.arrays import FloatArray
from calibrant.core.errors import InputError
from calibrant.core.fit_report import FitReport
from calibrant.metrics.binned import ece_of_curves
from calibrant.metrics.top_label import TopLabel
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.temperature.parameterised import (
    HIDDEN,
    LayeredNetwork,
    ParameterisedTemperature,
)
from calibrant.posthoc.temperature.scaling import TemperatureScaling
from calibrant.posthoc.temperature.smart.calibrator import IndicatorName, indicator_values
from calibrant.posthoc.temperature.smart.fitting import (
    Objective,
    ObjectiveName,
    Penalised,
    SoftBins,
    Tempered,
    fit_network,
    make_objective,
    objective_names,
)
from calibrant.posthoc.temperature.smart.published import PublishedSMART, adam
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import RowSummary
from calibrant_studies.cells import Cell, CellResults
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import PREDICTIONS, Kind, Measure, Need
from calibrant_studies.kinds.posthoc import PostHoc, code_of
from calibrant_studies.smart_figures import draw_paths, draw_solved

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# The share of the label that label smoothing gives away, which differs by method in the authors'
# code: rows of the paper's table can't be compared in this column.
PUBLISHED_SMOOTHING = {"temperature": 0.1, "pts": 0.01, "smart": 0.005}
# How far from the likelihood's temperature the search goes, in octaves, and in how many steps. A
# binned gap has several valleys, so a search downhill isn't enough.
OCTAVES, STEPS = 3.0, 121
# Units of the network whose training is followed, the one of the paper's text.
HIDDEN_UNITS = 16


def objective_named(name: str) -> ObjectiveName:
    """Return the name of an objective as one.

    Raises:
        UnknownMethodError: there is none of that name.
    """
    if name not in objective_names():
        raise unknown(objective_names(), name, "objective")
    return name


def make_with_objective(
    method: str,
    objective: ObjectiveName,
    *,
    seed: int = 0,
    n_bins: int = 15,
    width: float = 0.05,
    delta: float = 1e-3,
) -> Calibrator:
    """Return an unfitted calibrator that will minimise an objective of Table 3.

    Args:
        method: ``"temperature"``, ``"pts"`` or ``"smart"``.
        objective: a name that `SMART` takes.
        seed: of the networks.
        n_bins, width, delta: of the calibration objectives, as in `SMART`.

    Raises:
        InputError: another method.
    """
    smoothing = PUBLISHED_SMOOTHING.get(method)
    if smoothing is None:
        raise InputError(f"{method}: only {', '.join(PUBLISHED_SMOOTHING)} take an objective")
    settings: dict[str, Any] = {
        "n_bins": n_bins,
        "width": width,
        "delta": delta,
        "smoothing": smoothing,
    }
    if method == "smart":
        return PublishedSMART(objective=objective, seed=seed, **settings)
    if method == "pts":
        return TunedNetwork(objective=objective, seed=seed, guard=False, **settings)
    return TunedTemperature(objective=objective, **settings)


def _made(of: TunedTemperature | TunedNetwork) -> Objective:
    bins = SoftBins(of.n_bins, of.width)
    return make_objective(of.objective, bins=bins, delta=of.delta, smoothing=of.smoothing)


@dataclass(eq=False)
class TunedTemperature(TemperatureScaling):
    """One temperature of the lowest value of an objective, which need not be the likelihood.

    Attributes:
        beta_: the fitted inverse temperature.
    """

    objective: ObjectiveName = argument("nll", choices=objective_names())
    n_bins: int = argument(15, at_least=1)
    width: float = argument(0.05, above=0)
    delta: float = argument(1e-3, at_least=0)
    smoothing: float = argument(0.1, at_least=0, at_most=1)

    def _fit_rows(self, rows: RowSummary) -> FitReport:
        report = super()._fit_rows(rows)
        if self.objective == "nll":
            return report
        from scipy.optimize import minimize_scalar

        value = partial(_value_at, rows, self.beta_, _made(self))
        grid = np.linspace(-OCTAVES, OCTAVES, STEPS)
        best = int(np.argmin([value(octaves) for octaves in grid]))
        ends = grid[max(best - 1, 0)], grid[min(best + 1, STEPS - 1)]
        found = minimize_scalar(value, bounds=ends, method="bounded", options={"xatol": 1e-4})
        self.beta_ *= float(2.0**found.x)
        return replace(report, objective=self.objective, value=float(found.fun))


def _value_at(rows: RowSummary, reference: float, objective: Objective, octaves: float) -> float:
    beta = np.full(rows.n, reference * 2.0**octaves)
    return objective(Tempered(rows, beta))[0]


@dataclass(eq=False)
class TunedNetwork(ParameterisedTemperature):
    """PTS of the lowest value of an objective, which need not be the squared error."""

    objective: ObjectiveName = argument("brier", choices=objective_names())
    n_bins: int = argument(15, at_least=1)
    width: float = argument(0.05, above=0)
    delta: float = argument(1e-3, at_least=0)
    smoothing: float = argument(0.01, at_least=0, at_most=1)

    def _fit_networks(
        self, rows: RowSummary, inputs: FloatArray, notes: tuple[str, ...]
    ) -> FitReport:
        loss = Penalised(rows, self.reference_, _made(self), 0.0, 0.0)
        rng, sizes = np.random.default_rng(self.seed), (inputs.shape[1], *HIDDEN, 1)
        starts = [LayeredNetwork.constant(sizes, rng) for _ in range(self.restarts)]
        # MSE is the Brier score over K; so must be what holds it, or the two fits would differ.
        pull = self.weight_decay / (rows.n_classes if self.objective == "mse" else 1)
        decay = pull / rows.n * starts[0].kernels()
        best = min(
            (fit_network(start, inputs, loss, self.max_iterations, decay) for start in starts),
            key=lambda fit: fit.value,
        )
        self.network_ = best.network.weights
        return FitReport(rows.n, self.objective, best.value, best.iterations, best.converged, notes)


# One temperature, PTS and SMART, each fitted to an objective: SMART's Table 3.


class Objectives(PostHoc):
    """As `posthoc`, for the methods that take an objective, named by the axis `objective`."""

    version: ClassVar[str] = "1"
    axes: ClassVar[tuple[str, ...]] = ("input", "method", "objective", "size")
    defaults: ClassVar[Mapping[str, Any]] = {**PostHoc.defaults}

    def calibrator(self, cell: Cell) -> Calibrator:
        objective = objective_named(cell.at["objective"])
        made = make_with_objective(cell.method, objective, seed=cell.seed)
        return made.set_params(**self.setting(cell, "arguments").get(cell.method, {}))

    def method_version(self, cell: Cell) -> str:
        return f"{__version__} {code_of(type(self.calibrator(cell)))}"


# How SMART's network learns, epoch by epoch: Figures 2 (right) and 3 of the paper.
#
# The package's own fit takes a handful of steps by curvature, which have no epochs. Here the
# network is trained as the paper says: full batch, Adam with a rate of 5e-3, from small random
# weights.

RATE = 5e-3


@dataclass(frozen=True)
class TrainingPath:
    """What every epoch found, before its step; arrays (E + 1,), the last after the last step.

    Attributes:
        loss: training objective on the rows fitted to.
        gradient: Euclidean norm of its gradient by all weights.
        ece: ECE of 15 bins on the test rows, a fraction.
        nll: mean NLL on the test rows, in nats.
    """

    loss: FloatArray
    gradient: FloatArray
    ece: FloatArray
    nll: FloatArray

    def change(self, of: str, start: int, end: int) -> float:
        """Return how much a series changed between two epochs, relative to the first."""
        values: FloatArray = getattr(self, of)
        return float(values[end] / values[start] - 1)

    @property
    def epochs_to_settle(self) -> int:
        """The epoch after which the loss stays within 5 % of its whole fall above its lowest."""
        fallen = self.loss.min() + 0.05 * (self.loss[0] - self.loss.min())
        above = np.flatnonzero(self.loss > fallen)
        return int(above[-1] + 1) if len(above) else 0

    @property
    def unrest(self) -> float:
        """How far the gradient's norm moves from epoch to epoch, on average in the last quarter."""
        return float(np.abs(np.diff(self._late)).mean())

    @property
    def late_gradient(self) -> float:
        """Mean norm of the gradient in the last quarter."""
        return float(self._late.mean())

    @property
    def _late(self) -> FloatArray:
        return self.gradient[-max(2, len(self.gradient) // 4) :]


# Parameters: the paper's settings of one training.
def train_by_adam(
    fit: Predictions,
    test: Predictions,
    objective: ObjectiveName,
    *,
    epochs: int,
    seed: int = 0,
    rate: float = RATE,
    width: float = 0.05,
    delta: float = 1e-3,
) -> TrainingPath:
    """Train SMART's network of 49 weights as the paper does, and measure after every epoch.

    Args:
        fit: logits and labels to train on.
        test: those to measure on.
        objective: a name that `SMART` takes.
        epochs: steps of Adam, each on all rows.
        seed: of the first weights.
        rate: of Adam.
        width, delta: of the calibration objectives, as in `SMART`.
    """
    rows, others = fit.summary, test.summary
    mean, deviation = rows.margin.mean(), rows.margin.std() or 1.0
    inputs, held = ((one.margin[:, None] - mean) / deviation for one in (rows, others))
    held = np.clip(held, inputs.min(), inputs.max())
    chosen = make_objective(objective, bins=SoftBins(15, width), delta=delta, smoothing=0.005)
    loss = Penalised(rows, 1.0, chosen, 0.0, 0.0)
    start = LayeredNetwork.drawn((1, HIDDEN_UNITS, 1), np.random.default_rng(seed))
    found: list[list[float]] = []

    def note(network: LayeredNetwork, value: float, gradient: FloatArray) -> bool:
        found.append([value, float(np.linalg.norm(gradient)), *_measured(network, held, others)])
        return len(found) <= epochs

    adam(start, inputs, loss, rate, note)
    return TrainingPath(*np.array(found).T)


def _measured(network: LayeredNetwork, inputs: FloatArray, rows: RowSummary) -> tuple[float, float]:
    """Return ECE and mean NLL."""
    beta = 1 / network.forward(inputs)[0]
    point = rows.curve.evaluate(beta)
    curves = TopLabel.sort(np.exp(-point.value), rows.correct).curves()
    return float(ece_of_curves(curves)[0]), float((point.value + beta * rows.label_gap).mean())


# SMART's network trained as published, epoch by epoch: Figures 2 (right) and 3 of its paper.


class TrainingPaths(Kind):
    """Train for `epochs` epochs on the rows to fit on, and measure on the others after each."""

    version: ClassVar[str] = "2"
    axes: ClassVar[tuple[str, ...]] = ("input", "objective")
    defaults: ClassVar[Mapping[str, Any]] = {
        "epochs": 80,
        "rate": 5e-3,
        "between": [30, 80],
        "fit_size": 0.5,
    }

    own_measures: ClassVar[tuple[Measure, ...]] = (
        Measure("ece", "ECE at the end", 100.0, 2),
        Measure("nll", "NLL at the end", 1.0, 4),
        Measure("settled", "epochs until settled", 1.0, 0),
        Measure("late_gradient", "late gradient, 1/1000", 1000.0, 1),
        Measure("unrest", "its step an epoch, 1/1000", 1000.0, 1),
        Measure("nll_change", "NLL between the epochs", 100.0, 1, "neither"),
        Measure("ece_change", "ECE between the epochs", 100.0, 1, "neither"),
    )

    def needs(self, cell: Cell) -> tuple[Need, ...]:
        return (Need(cell.input, PREDICTIONS),)

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        settings = self.settings(cell)
        return {"objective": cell.at["objective"], "seed": cell.seed, **settings}

    def draw(self, result: CellResults) -> Figure | None:
        return draw_paths(result)

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        fit, test = inputs[cell.input].rows(cell.seed, fit_size=self.setting(cell, "fit_size"))
        path = train_by_adam(
            fit,
            test,
            objective_named(cell.at["objective"]),
            epochs=self.setting(cell, "epochs"),
            rate=self.setting(cell, "rate"),
            seed=cell.seed,
        )
        return path_result(path, self.setting(cell, "between"))


def path_result(path: TrainingPath, between: tuple[int, int] | list[int]) -> dict[str, Any]:
    """Return the measures of a path, and the path, as JSON takes them."""
    last = len(path.loss) - 1
    start, end = (min(epoch, last) for epoch in between)
    values: dict[str, float] = {
        "ece": float(path.ece[-1]),
        "nll": float(path.nll[-1]),
        "settled": path.epochs_to_settle,
        "late_gradient": path.late_gradient,
        "unrest": path.unrest,
        "nll_change": path.change("nll", start, end),
        "ece_change": path.change("ece", start, end),
    }

    def short(series: FloatArray) -> list[float]:
        return [float(f"{value:.6g}") for value in series]

    return {
        "values": {name: {"value": value} for name, value in values.items()},
        "path": {name: short(getattr(path, name)) for name in ("loss", "gradient", "ece", "nll")},
    }


# Figure 2 (left): how well an indicator pins down the temperature that a row needs.
#
# Random logit vectors are brought to one confidence, each by a temperature of its own. An
# indicator is good if rows with the same value need the same temperature.

INDICATORS: tuple[IndicatorName, ...] = ("margin", "max", "max-mean")
MOST_OCTAVES, HALVINGS = 16.0, 60
TENTHS = 10


@dataclass(frozen=True)
class Solved:
    """Temperatures at which random rows have the confidence wanted.

    Attributes:
        temperature: (N,) temperatures.
        indicator: name to the (N,) values of it.
    """

    temperature: FloatArray
    indicator: dict[IndicatorName, FloatArray]

    def left_open(self, name: IndicatorName) -> float:
        """Return the share of the variance of log T within tenths of an indicator's range.

        0 where the indicator says the temperature, 1 where it says nothing.
        """
        logs = np.log(self.temperature)
        groups = np.array_split(logs[np.argsort(self.indicator[name])], TENTHS)
        within = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
        return float(within / ((logs - logs.mean()) ** 2).sum())


def solve_temperatures(
    rows: int = 1000, classes: int = 10, confidence: float = 0.8, scale: float = 2.0, seed: int = 0
) -> Solved:
    """Draw normal logits and solve for the temperature of each row, by bisection.

    Args:
        rows: vectors to draw.
        classes: K logits in each.
        confidence: what every row is brought to, above 1 / K and below 1.
        scale: standard deviation of the logits; their mean is drawn for each row from a normal of
            the same deviation, since networks don't centre them.
        seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=scale, size=(rows, classes)) + rng.normal(scale=scale, size=(rows, 1))
    curve = Predictions.from_logits(logits, np.zeros(rows, dtype=int)).summary.curve
    low, high = np.full(rows, -MOST_OCTAVES), np.full(rows, MOST_OCTAVES)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        # The confidence rises with beta, so too low a one asks for more octaves.
        short = np.exp(-curve.evaluate(2.0**middle).value) < confidence
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    values: dict[IndicatorName, FloatArray] = {
        name: indicator_values(name, logits)[:, 0] for name in INDICATORS
    }
    return Solved(2.0 ** -((low + high) / 2), values)


# How well indicators pin down temperatures, and a path of training: SMART's Figure 2.

SHOWN = 400


class SolvedTemperatures(TrainingPaths):
    """Two parts: ``indicators``, on random rows, which needs nothing, and ``training``."""

    version: ClassVar[str] = "2"
    axes: ClassVar[tuple[str, ...]] = ("input", "part")
    defaults: ClassVar[Mapping[str, Any]] = {
        **TrainingPaths.defaults,
        "objective": "nll",
        "rows": 1000,
        "classes": 10,
        "confidence": 0.8,
    }

    @property
    def measures(self) -> Mapping[str, Measure]:
        open_ = (Measure(f"open_{n}", f"left open by {n}", 100.0, 0) for n in INDICATORS)
        return {**super().measures, **{each.name: each for each in open_}}

    def needs(self, cell: Cell) -> tuple[Need, ...]:
        return super().needs(cell) if cell.at["part"] == "training" else ()

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        part = {"part": cell.at["part"], "seed": cell.seed}
        if part["part"] == "training":
            names = [*TrainingPaths.defaults, "objective"]
        else:
            names = ["rows", "classes", "confidence"]
        return part | self.settings(cell, *names)

    def draw(self, result: CellResults) -> Figure | None:
        return draw_solved(result)

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        if cell.at["part"] == "training":
            objective = self.setting(cell, "objective")
            at = {**cell.at, "objective": objective}
            return super().run(replace(cell, at=at), inputs, work)
        settings = self.settings(cell, "rows", "classes", "confidence")
        found = solve_temperatures(**settings, seed=cell.seed)
        points = {name: values[:SHOWN].tolist() for name, values in found.indicator.items()}
        return {
            "values": {f"open_{name}": {"value": found.left_open(name)} for name in INDICATORS},
            "points": {"temperature": found.temperature[:SHOWN].tolist(), **points},
        }
