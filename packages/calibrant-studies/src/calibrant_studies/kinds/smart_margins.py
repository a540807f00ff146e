"""Calibration within groups of the margin, and what a method does there: SMART's Figure 15."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray, to_numpy
from calibrant.core.errors import InputError
from calibrant.metrics.smooth import max_lipschitz_correlation, smce_of_curves
from calibrant.metrics.top_label import ResidualCurves, TopLabel
from calibrant.posthoc.temperature.scaling import RowTemperature, Uncalibrated, margin_temperature
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import RowSummary, softmax
from calibrant.predictions.scoring import RowScores, score_rows
from calibrant.report.series import MarginGroup, margin_groups
from calibrant_studies.cells import Cell, CellResults
from calibrant_studies.inputs import Inputs, StudyInput
from calibrant_studies.kinds.base import RESAMPLED, Kind, Measure, Need
from calibrant_studies.kinds.posthoc import PostHoc
from calibrant_studies.significance import mean_with_interval
from calibrant_studies.smart_figures import (
    draw_groups,
    draw_mismatch,
    draw_steps,
    draw_temperatures,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


GROUPS = ("low", "middle", "high")


class MarginGroups(PostHoc):
    """Thirds of the margin: mean confidence minus accuracy, and how far confidence moved."""

    version: ClassVar[str] = "1"
    unread: ClassVar[tuple[str, ...]] = RESAMPLED

    @property
    def measures(self) -> Mapping[str, Measure]:
        gaps = [Measure("gap", "gap", 100.0, 2, "neither")]
        gaps += [Measure(f"gap_{g}", f"gap, {g} margins", 100.0, 2, "neither") for g in GROUPS]
        moves = [Measure(f"moved_{g}", f"moved, {g} margins", 100.0, 2, "neither") for g in GROUPS]
        return {each.name: each for each in (*gaps, *moves)}

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        return super().configuration(cell, inputs) | {"resamples": None, "metrics": []}

    def draw(self, result: CellResults) -> Figure | None:
        return draw_groups(result)

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        fit, test = self.rows(cell, inputs)
        after = self.fitted(cell, fit).apply_predictions(test)
        before, now = score_rows(test), score_rows(after)
        return grouped(test, before, now)


def grouped(test: Predictions, before: RowScores, now: RowScores) -> dict[str, Any]:
    """Return the result for rows scored before and after a method."""
    margin = test.margins
    (whole,) = margin_groups(now, margin, 1, 15)
    found = margin_groups(now, margin, len(GROUPS), 10)
    values = {"gap": _gap(whole)}
    moved = now.confidence - before.confidence
    for name, group, rows in zip(GROUPS, found, slices_of(margin, len(GROUPS)), strict=False):
        values[f"gap_{name}"] = _gap(group)
        values[f"moved_{name}"] = mean_with_interval(moved[rows])
    named = zip(("all", *GROUPS), (whole, *found), strict=False)
    return {"values": values, "groups": {name: _points(group) for name, group in named}}


def _gap(group: MarginGroup) -> dict[str, float]:
    """Return confidence minus accuracy; the interval is that of the accuracy."""
    low, high = group.confidence - group.high, group.confidence - group.low
    return {"value": group.gap, "low": low, "high": high}


def _points(group: MarginGroup) -> dict[str, Any]:
    points = {key: np.asarray(value).tolist() for key, value in asdict(group.points).items()}
    return {"margin": list(group.margin), "rows": group.rows, "points": points}


# The temperature that a method learnt as a function of the margin: SMART's Figure 16.


class MarginTemperature(PostHoc):
    """Fit, and look at the temperatures of the rows to measure on."""

    version: ClassVar[str] = "1"
    unread: ClassVar[tuple[str, ...]] = RESAMPLED

    own_measures: ClassVar[tuple[Measure, ...]] = (
        Measure("pearson", "Pearson's r", 1.0, 2, "neither"),
        Measure("spearman", "Spearman's rho", 1.0, 2, "neither"),
        Measure("lowest", "lowest T", 1.0, 2, "neither"),
        Measure("highest", "highest T", 1.0, 2, "neither"),
    )

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        return super().configuration(cell, inputs) | {"resamples": None, "metrics": []}

    def draw(self, result: CellResults) -> Figure | None:
        return draw_temperatures(result)

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        from scipy.stats import spearmanr

        fit, test = self.rows(cell, inputs)
        calibrator = self.fitted(cell, fit)
        if not isinstance(calibrator, RowTemperature):
            raise InputError(f"{cell.method}: gives rows no temperature")
        heat, margin = np.asarray(calibrator.temperatures(test.logits)), test.margins
        heat = np.ones(len(margin)) * heat
        even = heat.std() == 0
        values = {
            "pearson": None if even else float(np.corrcoef(margin, heat)[0, 1]),
            "spearman": None if even else float(spearmanr(margin, heat).statistic),
            "lowest": float(heat.min()),
            "highest": float(heat.max()),
        }
        curve = margin_temperature(calibrator, test.logits, margin)
        return {
            "values": {name: {"value": value} for name, value in values.items()},
            "curve": {"margin": curve.margin.tolist(), "temperature": curve.temperature.tolist()},
        }


# Section 3.3 of the SMART paper as an experiment: does likelihood gain where calibration loses?
#
# All rows of a margin slice are sharpened, T to T / s, and NLL and smCE are measured at s and at
# 1. On populations of known truth both are exact: the one of Proposition A.2, in whose proof the
# paper sees a mismatch, shows none; one of many classes does. On real rows every slice has a
# bootstrap interval, and counts as a mismatch only where both intervals exclude zero, on opposite
# sides.

SHARPENING = 1.05
POPULATIONS = ("proposition-a2", "many-classes")


class Change(NamedTuple):
    """A change with its 95 % interval; both ends are the value where truth is known."""

    value: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """-1 or 1 where the interval excludes zero, else 0."""
        return int(self.low > 0) - int(self.high < 0)


@dataclass(frozen=True)
class SliceMove:
    """What sharpening one slice did.

    Attributes:
        rows: share of all rows in the slice.
        margin: smallest and largest margin in it.
        nll: change of the mean NLL over all rows, in nats.
        smce: change of smCE over all rows, a fraction.
    """

    rows: float
    margin: tuple[float, float]
    nll: Change
    smce: Change

    @property
    def mismatch(self) -> bool:
        """Whether NLL fell and smCE rose, or the other way round, beyond noise."""
        return self.nll.sign * self.smce.sign < 0


def population(name: str) -> tuple[FloatArray, FloatArray]:
    """Return (N, K) logits and the (N, K) true probabilities of their labels.

    ``"proposition-a2"``: two classes, nine tenths of the rows said to be right 59 to 61 % of the
    time and right 90 %, one tenth said 79 to 81 % and right 70 %; condition 31 of the proposition
    holds. ``"many-classes"``: ten classes, the rows say 0.50, 0.30 and eight times 0.025, and the
    truth is 0.45, 0.55 and eight times 0.

    Raises:
        InputError: another name.
    """
    if name == "proposition-a2":
        said = np.r_[np.repeat(np.linspace(0.59, 0.61, 21), 9), np.linspace(0.79, 0.81, 21)]
        right = np.where(said < 0.7, 0.9, 0.7)
        logits = np.stack([np.log(said / (1 - said)), np.zeros(len(said))], axis=1)
        return logits, np.stack([right, 1 - right], axis=1)
    if name == "many-classes":
        said = np.r_[0.5, 0.3, np.full(8, 0.025)]
        return np.log(said)[None], np.r_[0.45, 0.55, np.zeros(8)][None]
    raise InputError(f"{name}: there are the populations {', '.join(POPULATIONS)}")


def known_move(name: str, sharpening: float = SHARPENING) -> SliceMove:
    """Return what sharpening all rows of a population of known truth does, exactly."""
    logits, truth = population(name)
    top = logits.argmax(axis=1)
    right = truth[np.arange(len(truth)), top]
    nll, smce = list[float](), list[float]()
    for beta in (1.0, sharpening):
        probs = np.asarray(softmax(logits, beta))
        nll.append(float(-(truth * np.log(probs)).sum(axis=1).mean()))
        confidence = probs[np.arange(len(probs)), top]
        said, group = np.unique(confidence, return_inverse=True)
        gaps = np.bincount(group, right - confidence) / len(confidence)
        smce.append(max_lipschitz_correlation(said, gaps))
    changes = [Change(*[after - before] * 3) for before, after in (nll, smce)]
    ordered = np.sort(logits, axis=1)
    margin = ordered[:, -1] - ordered[:, -2]
    return SliceMove(1.0, (float(margin.min()), float(margin.max())), *changes)


def slices_of(margin: FloatArray, count: int) -> list[BoolArray]:
    """Return masks of quantile slices of the margin, smallest first; ties stay together."""
    inner = np.quantile(margin, np.arange(1, count) / count)
    index = np.searchsorted(inner, margin, side="left")
    return [index == one for one in range(count) if (index == one).any()]


def measured_moves(
    test: Predictions,
    beta: FloatArray,
    *,
    slices: int = 5,
    resamples: int = 200,
    seed: int = 0,
    sharpening: float = SHARPENING,
) -> list[SliceMove]:
    """Return what sharpening each margin slice of real rows does, with bootstrap intervals.

    Args:
        test: logits and labels.
        beta: (N,) inverse temperatures to begin with.
        slices: quantile slices of the margin.
        resamples: of the rows, the same for every slice, before and after.
        seed: of the resamples.
        sharpening: s, what the temperatures of a slice are divided by.
    """
    rows = test.summary
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(rows.n, np.full(rows.n, 1 / rows.n), size=resamples)
    weights = np.vstack([np.ones(rows.n), weights]).astype(np.float64)
    before = _measures(rows, beta, weights)
    found: list[SliceMove] = []
    for chosen in slices_of(rows.margin, slices):
        after = _measures(rows, np.where(chosen, beta * sharpening, beta), weights)
        nll, smce = after - before
        margin = rows.margin[chosen]
        found.append(
            SliceMove(
                float(chosen.mean()),
                (float(margin.min()), float(margin.max())),
                _percentile_change(nll),
                _percentile_change(smce),
            )
        )
    return found


def _measures(rows: RowSummary, beta: FloatArray, weights: FloatArray) -> FloatArray:
    """Return (2, R) NLL and smCE under each of (R, N) weights."""
    point = rows.curve.evaluate(beta)
    nll = weights @ (point.value + beta * rows.label_gap) / weights.sum(axis=1)
    confidence = np.exp(-point.value)
    order = np.argsort(confidence, kind="stable")
    top = TopLabel.sort(confidence[order], rows.correct[order])
    return np.stack([nll, smce_of_curves(ResidualCurves.weighted(top, weights[:, order]))])


def _percentile_change(changes: FloatArray) -> Change:
    """Return the change on the rows themselves with the percentile interval of the resamples."""
    low, high = np.quantile(changes[1:], [0.025, 0.975])
    return Change(float(changes[0]), float(low), float(high))


# Does likelihood gain where calibration loses? Section 3.3 of the SMART paper as an experiment.

SLICES = 5


class Mismatch(PostHoc):
    """Sharpen a margin slice after a fit, or a `population` of known truth, and measure again."""

    version: ClassVar[str] = "1"
    unread: ClassVar[tuple[str, ...]] = ("level",)
    axes: ClassVar[tuple[str, ...]] = ("input", "method", "slice", "population")
    defaults: ClassVar[Mapping[str, Any]] = {
        **PostHoc.defaults,
        "slices": SLICES,
        "sharpening": SHARPENING,
        "resamples": 200,
    }

    own_measures: ClassVar[tuple[Measure, ...]] = (
        Measure("nll_change", "NLL, 1/1000 nats", 1000.0, 3, "neither"),
        Measure("smce_change", "smCE, points", 100.0, 3, "neither"),
        Measure("mismatch", "mismatch", 1.0, 0, "neither"),
    )

    def needs(self, cell: Cell) -> tuple[Need, ...]:
        return () if "population" in cell.at else super().needs(cell)

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        sharpening = {"sharpening": self.setting(cell, "sharpening")}
        if "population" in cell.at:
            return sharpening | {"population": cell.at["population"]}
        slices = {"slice": cell.at["slice"], "slices": self.setting(cell, "slices")}
        return super().configuration(cell, inputs) | sharpening | slices

    def method_version(self, cell: Cell) -> str:
        return "" if "population" in cell.at else super().method_version(cell)

    def draw(self, result: CellResults) -> Figure | None:
        return draw_mismatch(result)

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        sharpening = self.setting(cell, "sharpening")
        if "population" in cell.at:
            return _mismatch_result(known_move(cell.at["population"], sharpening))
        fit, test = self.rows(cell, inputs)
        calibrator = self.fitted(cell, fit)
        beta = np.ones(test.n)
        if isinstance(calibrator, RowTemperature):
            beta = beta * np.asarray(calibrator.inverse_temperatures(test.logits))
        elif not isinstance(calibrator, Uncalibrated):
            raise InputError(f"{cell.method}: gives rows no temperature that could be sharpened")
        moves = measured_moves(
            test,
            beta,
            slices=self.setting(cell, "slices"),
            resamples=self.setting(cell, "resamples"),
            sharpening=sharpening,
        )
        place = int(cell.at["slice"]) - 1
        if place >= len(moves):
            raise InputError(f"margins are so alike that there are only {len(moves)} slices")
        return _mismatch_result(moves[place])


def _mismatch_result(move: SliceMove) -> dict[str, Any]:
    def of(change: Change) -> dict[str, float]:
        return {"value": change.value, "low": change.low, "high": change.high}

    return {
        "values": {
            "nll_change": of(move.nll),
            "smce_change": of(move.smce),
            "mismatch": {"value": float(move.mismatch)},
        },
        "rows": move.rows,
        "margin": list(move.margin),
    }


# Figure 1: the smallest step along the sign of the gradient that changes a prediction, by margin.
#
# FGSM takes one step of the same size in every pixel, along the sign of the loss's gradient. Here
# the smallest size that changes the predicted class is searched for, on images through a trained
# network, or on features through its last layer alone. Sizes tried, as shares of the largest: a
# prediction may flip and flip back, so all are tried.

SIZES = 64


@dataclass(frozen=True)
class Perturbations:
    """The smallest steps that change predictions.

    Attributes:
        margin: (N,) gaps between the two largest logits, untouched.
        smallest: (N,) sizes, infinite where none that was tried changes the prediction.
        largest: the largest size tried.
    """

    margin: FloatArray
    smallest: FloatArray
    largest: float

    @property
    def flipped(self) -> float:
        """Share of rows whose prediction some size changes."""
        return float(np.isfinite(self.smallest).mean())

    @property
    def pearson(self) -> float:
        """Correlation of margin and smallest step over the rows that change; nan with few."""
        done = np.isfinite(self.smallest)
        if done.sum() < 3:
            return float("nan")
        return float(np.corrcoef(self.margin[done], self.smallest[done])[0, 1])

    @property
    def spearman(self) -> float:
        """Rank correlation over all rows; those that never change rank highest, together."""
        from scipy.stats import spearmanr

        return float(spearmanr(self.margin, np.minimum(self.smallest, 2 * self.largest)).statistic)


def through_the_head(predictions: Predictions, rows: int, largest: float = 1.0) -> Perturbations:
    """Perturb features, in units of their standard deviation over all rows, before the last layer.

    Raises:
        InputError: the predictions lack features or the last layer.
    """
    if predictions.features is None or predictions.head is None:
        raise InputError(
            f"{predictions.source}: needs 'features', 'head_weight' and 'head_bias' beside logits"
        )
    features = to_numpy(predictions.features).astype(np.float64)
    weight, bias = (to_numpy(part).astype(np.float64) for part in predictions.head)
    unit = float(features.std())
    features = features[:rows]
    logits = features @ weight.T + bias
    # The gradient of the loss at the predicted class by the features.
    away = np.asarray(softmax(logits))
    away[np.arange(len(away)), logits.argmax(axis=1)] -= 1
    direction = unit * np.sign(away @ weight)
    return _searched(logits, lambda size: (features + size * direction) @ weight.T + bias, largest)


def through_the_network(folder: Path, rows: int, largest: float = 16 / 255) -> Perturbations:
    """Perturb test images of a finished run of `calibrant train`, in units of the pixels' range.

    Raises:
        InputError: the folder holds no finished run, or its data set is gone.
    """
    import torch
    from torch.nn.functional import cross_entropy

    from calibrant.training.data.dataset import read_data_set
    from calibrant.training.run import RunSettings, load_network
    from calibrant.training.run.folder import CONFIG

    network, normalise = load_network(folder)
    settings = RunSettings.read(folder / CONFIG)
    cache = folder.resolve().parent / "image-cache"  # as for the run itself
    test = read_data_set(str(settings.data), n_classes=settings.n_classes, cache=cache).test
    index = torch.arange(min(rows, len(test)))
    pixels = test.batch(index).float() / 255

    def logits_of(images: torch.Tensor) -> torch.Tensor:
        return network(normalise(255 * images))

    pixels.requires_grad_(True)
    logits = logits_of(pixels)
    loss = cross_entropy(logits, logits.argmax(dim=1), reduction="sum")
    (gradient,) = torch.autograd.grad(loss, pixels)
    direction, start = gradient.sign(), pixels.detach()

    def moved(size: float) -> FloatArray:
        with torch.no_grad():
            said = logits_of((start + size * direction).clamp(0, 1))
        return said.double().numpy()

    return _searched(logits.detach().double().numpy(), moved, largest)


def _searched(
    logits: FloatArray, moved: Callable[[float], FloatArray], largest: float
) -> Perturbations:
    """Return the smallest of the sizes tried at which the prediction of each row is another."""
    top, ordered = logits.argmax(axis=1), np.sort(logits, axis=1)
    smallest = np.full(len(logits), np.inf)
    for share in range(SIZES, 0, -1):
        size = largest * share / SIZES
        smallest[moved(size).argmax(axis=1) != top] = size
    return Perturbations(ordered[:, -1] - ordered[:, -2], smallest, largest)


# The margin against the smallest step that changes a prediction: SMART's Figure 1.

FORM = (
    "a run of `calibrant train` whose data set is still there, for steps in the pixels; or "
    "predictions with features and last layer, for steps in the features; logits and labels alone "
    "give the reliability of margin groups only"
)


class Perturbation(Kind):
    """Search for the smallest step of FGSM on the first `rows` rows; groups are of all rows."""

    version: ClassVar[str] = "1"
    axes: ClassVar[tuple[str, ...]] = ("input",)
    defaults: ClassVar[Mapping[str, Any]] = {"rows": 1000, "fit_size": 0.5}

    @property
    def measures(self) -> Mapping[str, Measure]:
        found = [
            Measure("pearson", "Pearson's r", 1.0, 2, "neither"),
            Measure("spearman", "Spearman's rho", 1.0, 2, "neither"),
            Measure("changed", "rows that change", 100.0, 0, "neither"),
        ]
        found += [Measure(f"gap_{g}", f"gap, {g} margins", 100.0, 2, "neither") for g in GROUPS]
        return {each.name: each for each in found}

    def needs(self, cell: Cell) -> tuple[Need, ...]:
        return (Need(cell.input, FORM),)

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        split = inputs[cell.input].is_split
        settings = {"rows": self.setting(cell, "rows")}
        return settings | (
            {"seed": cell.seed, "fit_size": self.setting(cell, "fit_size")} if split else {}
        )

    def draw(self, result: CellResults) -> Figure | None:
        return draw_steps(result)

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        given, rows = inputs[cell.input], int(self.setting(cell, "rows"))
        _, test = given.rows(cell.seed, fit_size=self.setting(cell, "fit_size"))
        scores = score_rows(test)
        result = grouped(test, scores, scores)
        found: Perturbations | None = None
        if _has_images(given):
            found, said = through_the_network(given.path, rows), "steps in the pixels"
        elif test.features is not None and test.head is not None:
            found, said = through_the_head(test, rows), "steps in the features"
        else:
            said = "no network and no features, so no steps"
        result["notes"] = [said]
        if found is not None:
            done = np.isfinite(found.smallest)
            result["values"] |= {
                "pearson": {"value": found.pearson},
                "spearman": {"value": found.spearman},
                "changed": {"value": found.flipped},
            }
            result["steps"] = {
                "margin": found.margin[done].tolist(),
                "smallest": found.smallest[done].tolist(),
            }
        return result


def _has_images(given: StudyInput) -> bool:
    """Return whether an input is a run whose data set is still where it was."""
    return given.is_run and Path(str(given.configuration.get("data"))).exists()
