"""How good the verdict of `compare` is, where the truth is known.

Methods are fitted once. The rest of a file's rows then stand for the world: test sets are drawn
from them with replacement, and each is compared as `compare` does. Because the world is at hand, it
is known which method is truly the best there, and what each choice costs. With `again` each test
set is also compared with other resamples, and with another test set: how often is the verdict the
same, and what does it cost where it isn't?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from calibrant._version import __version__
from calibrant.comparison.verdict import ComparedMethod, decide
from calibrant.core.arrays import FloatArray, IntArray, to_numpy
from calibrant.evaluation import sample as samples
from calibrant.evaluation.best_set import may_be_best
from calibrant.evaluation.bootstrap import drawn_once
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.uncertainty import holm, paired_difference
from calibrant.metrics.proper import negative_log_likelihood
from calibrant.posthoc import named_chains
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.confidence.top_rest import TopRestScaling
from calibrant.posthoc.named_chains import ProbitTopRestScaling
from calibrant.posthoc.noise import ProbitScaling
from calibrant.posthoc.registry import make_calibrator
from calibrant.posthoc.temperature.scaling import TemperatureScaling
from calibrant.predictions.predictions import Predictions
from calibrant_studies.cells import Cell
from calibrant_studies.declaration import SAMPLE
from calibrant_studies.inputs import Draw, Inputs
from calibrant_studies.kinds.base import PREDICTIONS, Kind, Measure, Need, quietly
from calibrant_studies.kinds.posthoc import method_code
from calibrant_studies.kinds.simulations import share
from calibrant_studies.significance import mean_with_interval

METHODS = (
    *("none", "temperature", "ets", "smart", "top-rest", "svs", "vector", "isotonic", "histogram"),
    *("spline", "auto"),
)
# Ways to choose a method, with what tables call them.
WAYS = {
    "lowest-ece": "lowest ECE",
    "lowest-nll": "lowest NLL",
    "temperature": "temperature",
    "verdict": "verdict",
}
METRICS = ("nll", "ece")
LEVEL = 0.95
# Seeds of other resamples of the same rows begin here.
AGAIN = 1 << 20
# Methods that the world can tell apart by less than this are equally good.
EQUAL = 1e-9


@dataclass(frozen=True)
class Population:
    """Rows that stand for all there are, with what fitted methods say of them.

    Attributes:
        labels: (N,) true classes.
        probs: (N, K) probabilities of each method.
        calibrators: fitted.
        keeps: which methods keep every predicted class of the world.
        nll: what each method has in the world.
    """

    labels: IntArray
    probs: dict[str, FloatArray]
    calibrators: dict[str, Calibrator]
    keeps: dict[str, bool]
    nll: FloatArray

    @classmethod
    def of(cls, fit: Predictions, rest: Predictions, methods: Sequence[str]) -> Population:
        """Fit methods on some rows; the others are the world."""
        fitted = {name: make_calibrator(name).fit_predictions(fit.as_logits()) for name in methods}
        probs = {
            n: to_numpy(each.predict_proba(rest.logits, kind="logits"))
            for n, each in fitted.items()
        }
        before = to_numpy(rest.logits).argmax(axis=1)
        keeps = {n: bool((p.argmax(axis=1) == before).all()) for n, p in probs.items()}
        nll = [
            float(evaluate(p, rest.labels, metrics=["nll"], resamples=2)["nll"].value)
            for p in probs.values()
        ]
        return cls(rest.labels, probs, fitted, keeps, np.array(nll))

    def test_set(
        self, rows: int, seed: int, resamples: int, drawn_by: int | None = None
    ) -> list[ComparedMethod]:
        """Return the methods as measured on a test set drawn from the world.

        Args:
            rows: of the test set.
            seed: of the test set.
            resamples: of it.
            drawn_by: seed of the resamples, if it isn't that of the test set.
        """
        drawn = np.random.default_rng([7, seed]).integers(len(self.labels), size=rows)
        again: dict[str, Any] = {
            "resamples": resamples,
            "seed": seed if drawn_by is None else drawn_by,
        }
        with drawn_once():
            return [
                self._compared(name, p[drawn], self.labels[drawn], again)
                for name, p in self.probs.items()
            ]

    def _compared(
        self, name: str, probs: FloatArray, labels: IntArray, options: Mapping[str, Any]
    ) -> ComparedMethod:
        sample = samples.RowSample.of(Predictions.from_probs(probs, labels))
        found = evaluate(sample, metrics=METRICS, **options)
        losses = samples.losses_of(sample, [result.metric for result in found.results.values()])
        return ComparedMethod(
            name, self.calibrators[name], found, 0.0, 0.0, self.keeps[name], (), losses=losses
        )


@dataclass(frozen=True)
class Found:
    """What came of one test set, methods as positions.

    Attributes:
        values: metric to (M,) values.
        subset: the methods that may be the best in NLL.
        by_resamples: the same set, by resamples as other metrics have it.
        apart: those that Holm's correction can tell from the best, left out.
        chosen: what each way chooses.
        scatter: (pairs,) standard deviations of differences in ECE over resamples.
        ends: (pairs, 2) ends of their intervals.
    """

    values: dict[str, FloatArray]
    subset: list[int]
    by_resamples: list[int]
    apart: list[int]
    chosen: dict[str, int]
    scatter: FloatArray
    ends: FloatArray


def look(methods: Sequence[ComparedMethod]) -> Found:
    """Return what one test set says."""
    names = [method.name for method in methods]
    results = {m: [method.evaluation[m] for method in methods] for m in METRICS}
    values = {m: np.array([result.value for result in each]) for m, each in results.items()}
    pairs = list(combinations(range(len(names)), 2))

    def differences(metric: str) -> list[tuple[float, float, float, float]]:
        of = results[metric]
        found = [
            paired_difference(of[i].replicates, of[j].replicates, (of[i].value, of[j].value), LEVEL)
            for i, j in pairs
        ]
        return [(each.value, each.low, each.high, each.p_value) for each in found]

    verdict = decide(methods, LEVEL)
    adjusted = holm([p for *_, p in differences("nll")])
    best = int(values["nll"].argmin())
    verdict_values = {
        i + j - best
        for (i, j), p in zip(pairs, adjusted, strict=True)
        if best in (i, j) and p <= 1 - LEVEL
    }
    drawn = np.stack([result.replicates for result in results["nll"]])
    ece = [results["ece"][i].replicates - results["ece"][j].replicates for i, j in pairs]
    return Found(
        values,
        [names.index(name) for name in verdict.may_be_best["nll"]],
        np.flatnonzero(may_be_best(values["nll"], drawn, LEVEL)).tolist(),
        [i for i in range(len(names)) if i not in verdict_values],
        {
            "lowest-ece": int(values["ece"].argmin()),
            "lowest-nll": best,
            "temperature": names.index("temperature"),
            "verdict": names.index(verdict.recommended),
        },
        np.array([each.std() for each in ece]),
        np.array([[low, high] for _, low, high, _ in differences("ece")]),
    )


class Verdicts(Kind):
    """Fit methods, draw test sets from the rest of the rows, and hold each choice to the truth."""

    version: ClassVar[str] = "3"
    axes: ClassVar[tuple[str, ...]] = ("input",)
    defaults: ClassVar[Mapping[str, Any]] = {
        "fit_rows": 4000,
        "rows": 2000,  # of a test set
        "sets": 120,
        "resamples": 200,
        "methods": list(METHODS),
        "again": False,
    }

    own_measures: ClassVar[tuple[Measure, ...]] = (
        Measure("may-be-best", "may be best", 1.0, 1, "neither"),
        Measure("by-holm", "left by Holm", 1.0, 1, "neither"),
        Measure("missed", "best missed", 100.0, 1, "neither"),
        Measure("scatter", "scatter over true", 1.0, 2, "neither"),
        Measure("held", "intervals hold", 100.0, 1, "neither"),
        *(Measure(f"{way}-nll", f"{title}: NLL lost", 1.0, 4) for way, title in WAYS.items()),
        *(Measure(f"{way}-ece", f"{title}: ECE lost", 100.0, 2) for way, title in WAYS.items()),
        Measure("again-resampled", "same with other resamples", 100.0, 1, "neither"),
        Measure("again-set", "NLL set by resamples the same", 100.0, 1, "neither"),
        Measure("again-drawn", "same with other rows", 100.0, 1, "neither"),
        Measure("again-nll", "NLL between them, where not", 1.0, 4, "neither"),
        Measure("again-ece", "ECE between them, where not", 100.0, 2, "neither"),
    )

    def needs(self, cell: Cell) -> tuple[Need, ...]:
        return (Need(cell.input, PREDICTIONS),)

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        return {"seed": cell.seed, **self.settings(cell)}

    def method_version(self, cell: Cell) -> str:
        return __version__

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        given = inputs[cell.input]
        # The parts of the sample are as they ship.
        size = None if cell.input == SAMPLE else self.setting(cell, "fit_rows")
        fit, rest = given.rows(cell.seed, size=size, rest=True)
        world = Population.of(fit, rest, self.setting(cell, "methods"))
        rows, resamples = self.setting(cell, "rows"), self.setting(cell, "resamples")
        first = cell.seed * self.setting(cell, "sets")
        sets = range(first, first + self.setting(cell, "sets"))
        if self.setting(cell, "again"):
            looks = [look(world.test_set(rows, s, resamples)) for s in sets]
            others = [look(world.test_set(rows, s, resamples, AGAIN + s)) for s in sets]
            return {"values": verdict_values(world, looks) | repeat_values(world, looks, others)}
        return {
            "values": verdict_values(
                world, [look(world.test_set(rows, s, resamples)) for s in sets]
            )
        }


def verdict_values(world: Population, found: Sequence[Found]) -> dict[str, Any]:
    """Return what the test sets of one world say, as results of cells have it."""
    best = int(world.nll.argmin())
    equal = {i for i, nll in enumerate(world.nll.tolist()) if nll <= world.nll[best] + EQUAL}
    expected = np.mean([each.values["ece"] for each in found], axis=0)
    values: dict[str, Any] = {
        "may-be-best": mean_with_interval([len(each.subset) for each in found]),
        "by-holm": mean_with_interval([len(each.apart) for each in found]),
        "missed": share(np.array([not equal & set(each.subset) for each in found])),
    }
    for way in WAYS:
        chosen = [each.chosen[way] for each in found]
        values[f"{way}-nll"] = mean_with_interval([world.nll[i] - world.nll[best] for i in chosen])
        values[f"{way}-ece"] = mean_with_interval([expected[i] - expected.min() for i in chosen])
    pairs = list(combinations(range(len(world.probs)), 2))
    differences = np.array(
        [[e.values["ece"][i] - e.values["ece"][j] for i, j in pairs] for e in found]
    )
    true = differences.std(axis=0)
    some = true > 1e-6  # methods that agree on every row have none
    ratio = np.mean([each.scatter for each in found], axis=0)[some] / true[some]
    values["scatter"] = _with_range(ratio, float(np.median(ratio)))
    truth = differences.mean(axis=0)
    held = np.mean([(e.ends[:, 0] <= truth) & (truth <= e.ends[:, 1]) for e in found], axis=0)[some]
    values["held"] = _with_range(held, float(held.mean()))
    return values


def repeat_values(
    world: Population, found: Sequence[Found], resampled: Sequence[Found]
) -> dict[str, Any]:
    """Return how often the verdict is the same again, and what lies between two that aren't.

    Args:
        world: the test sets' rows are drawn from.
        found: one a test set.
        resampled: the same test sets with other resamples.
    """
    chosen = [each.chosen["verdict"] for each in found]
    pairs = list(combinations(chosen, 2))
    differ = [(i, j) for i, j in pairs if i != j] or [(0, 0)]
    ece = np.mean([each.values["ece"] for each in found], axis=0)
    both = list(zip(found, resampled, strict=True))
    stays = np.array([one.chosen["verdict"] == other.chosen["verdict"] for one, other in both])
    same_set = np.array([one.by_resamples == other.by_resamples for one, other in both])

    def between(numbers: FloatArray) -> dict[str, float]:
        # Pairs of test sets aren't independent, so this has no interval.
        return {"value": float(np.mean([abs(numbers[i] - numbers[j]) for i, j in differ]))}

    return {
        "again-resampled": share(stays),
        "again-set": share(same_set),
        "again-drawn": {"value": float(np.mean([i == j for i, j in pairs]))},
        "again-nll": between(world.nll),
        "again-ece": between(ece),
    }


def _with_range(numbers: FloatArray, middle: float) -> dict[str, float]:
    """Return a middle of numbers of pairs with the least and the greatest of them."""
    return {"value": middle, "low": float(numbers.min()), "high": float(numbers.max())}


# How well `probit-top-rest` chooses between normal noise and temperature scaling.
#
# Top-rest scaling is fitted behind either first step. Told are the NLL behind the better one, and
# what is lost to it by: always temperature scaling (`top-rest`); always normal noise; normal noise
# if it is likelier on the calibration rows by a standard error before the second step (the former
# rule); and the present rule with several thresholds. Labels that noise decides, of a deviation
# that is up to twice as large at small margins in `both`.

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
        lost = {name: Measure(name, name, 1.0, 4, "low") for name in RULES}
        return {"best": Measure("best", "NLL of the better", 1.0, 4, "low")} | lost

    def needs(self, cell: Cell) -> tuple[Need, ...]:
        return () if cell.input in DRAWN else (Need(cell.input, PREDICTIONS),)

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        drawn = {"drawn": cell.input} if cell.input in DRAWN else {}
        rows = self.setting(cell, "test_rows")
        return {**drawn, "size": cell.at["size"], "seed": cell.seed, "test_rows": rows}

    def method_version(self, cell: Cell) -> str:
        return method_code("probit-top-rest")

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
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
        return negative_log_likelihood(
            calibrator.predict_proba(test.logits, kind="logits"), test.labels
        )

    plain, normal = (
        loss(fitted(TopRestScaling())),
        loss(fitted(ProbitTopRestScaling(tails="normal"))),
    )
    own, other = (
        -np.log(c.predict_proba(fit.logits, kind="logits")[np.arange(fit.n), fit.labels])
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
