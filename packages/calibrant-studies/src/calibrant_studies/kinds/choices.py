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
from calibrant.comparison.verdict import DECIDING, DECIDING_OF_TOP, ComparedMethod, decide
from calibrant.core.arrays import FloatArray
from calibrant.core.errors import NotApplicableError
from calibrant.evaluation import sample as samples
from calibrant.evaluation.best_set import may_be_best
from calibrant.evaluation.bootstrap import drawn_once
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.uncertainty import holm, paired_difference
from calibrant.metrics.proper import negative_log_likelihood
from calibrant.posthoc import chain
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.chain import ProbitTopRestScaling
from calibrant.posthoc.confidence.top_rest import TopRestScaling
from calibrant.posthoc.noise import ProbitScaling
from calibrant.posthoc.registry import METHODS, make_calibrator
from calibrant.posthoc.temperature.scaling import TemperatureScaling
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import score_top
from calibrant_studies.cells import Cell
from calibrant_studies.declaration import SAMPLE
from calibrant_studies.inputs import Draw, Inputs
from calibrant_studies.kinds.base import PREDICTIONS, Kind, Measure, Need, quietly
from calibrant_studies.kinds.posthoc import method_code
from calibrant_studies.kinds.simulations import share
from calibrant_studies.significance import mean_with_interval

# A usual menu; the other one is every method that the rows allow.
EIGHT = ("none", "temperature", "ets", "smart", "top-rest", "svs", "histogram", "auto")
EIGHT_OF_TOP = ("none", "temperature", "platt", "beta", "histogram", "isotonic", "spline", "auto")
# Ways to choose a method, with what tables call them.
WAYS = {
    "lowest-ece": "lowest ECE",
    "lowest-score": "lowest NLL",
    "temperature": "temperature",
    "auto": "auto",
    "verdict": "verdict",
}
TOP_LABEL = "top-label"
LEVEL = 0.95
# Seeds of other resamples of the same rows begin here.
AGAIN = 1 << 20
# Methods that the world can tell apart by less than the first are equally good; verdicts whose
# methods lie within the second of one another are as good as one.
EQUAL, CLOSE = 1e-9, 5e-4


def top_labels(rows: Predictions) -> Predictions:
    """Return what is left of rows where only the top label and its confidence are known."""
    scores = score_top(rows)
    return Predictions.from_confidence(scores.confidence, scores.predicted, rows.labels)


@dataclass(frozen=True)
class Population:
    """Rows that stand for the whole population, with the outputs of fitted methods.

    Attributes:
        after: the rows as each method has them.
        calibrators: fitted.
        keeps: which methods keep every predicted class of the world.
        metrics: what test sets are measured by, the score that decides first.
        score: what each method has in the world.
    """

    after: dict[str, Predictions]
    calibrators: dict[str, Calibrator]
    keeps: dict[str, bool]
    metrics: tuple[str, ...]
    score: FloatArray

    @classmethod
    def of(cls, fit: Predictions, rest: Predictions, methods: Sequence[str]) -> Population:
        """Fit methods on some rows, those that refuse them left out; the others are the world."""
        metrics = DECIDING_OF_TOP if rest.kind == "toplabel" else DECIDING
        fitted: dict[str, Calibrator] = {}
        after: dict[str, Predictions] = {}
        for name in methods:
            calibrator = make_calibrator(name)
            if calibrator.needs or calibrator.lacks(fit):
                continue
            try:
                with quietly():
                    fitted[name] = calibrator.fit_predictions(fit)
            except NotApplicableError:
                continue
            after[name] = calibrator.apply_predictions(rest)
        before = score_top(rest).predicted
        keeps = {n: bool((score_top(p).predicted == before).all()) for n, p in after.items()}
        found = [evaluate(p, metrics=metrics[0], resamples=2) for p in after.values()]
        score = np.array([each[metrics[0]].value for each in found])
        return cls(after, fitted, keeps, metrics, score)

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
        size = next(iter(self.after.values())).n
        drawn = np.random.default_rng([7, seed]).integers(size, size=rows)
        again: dict[str, Any] = {
            "resamples": resamples,
            "seed": seed if drawn_by is None else drawn_by,
        }
        with drawn_once():
            return [self._compared(n, p.take(drawn), again) for n, p in self.after.items()]

    def _compared(self, name: str, rows: Predictions, options: Mapping[str, Any]) -> ComparedMethod:
        sample = samples.RowSample.of(rows)
        found = evaluate(sample, metrics=self.metrics, **options)
        losses = samples.losses_of(sample, [result.metric for result in found.results.values()])
        return ComparedMethod(
            name, self.calibrators[name], found, 0.0, 0.0, self.keeps[name], (), losses=losses
        )


@dataclass(frozen=True)
class Found:
    """What came of one test set, methods as positions.

    Attributes:
        values: metric to (M,) values.
        subset: the methods that may be the best in the score.
        by_resamples: the same set, by resamples as other metrics have it.
        apart: those that Holm's correction can tell from the best, left out.
        chosen: what each way chooses.
        of_eight: what the verdict chooses of the usual menu.
        prices: (A, 3) of each alternative its position and the ends of its price.
        scatter: (pairs,) standard deviations of differences in ECE over resamples.
        ends: (pairs, 2) ends of their intervals.
    """

    values: dict[str, FloatArray]
    subset: list[int]
    by_resamples: list[int]
    apart: list[int]
    chosen: dict[str, int]
    of_eight: int
    prices: FloatArray
    scatter: FloatArray
    ends: FloatArray


def look(methods: Sequence[ComparedMethod], score: str, eight: Sequence[str]) -> Found:
    """Return what one test set says.

    Args:
        methods: as it measured them.
        score: the metric that decides.
        eight: names of the usual menu.
    """
    names = [method.name for method in methods]
    results = {m: [method.evaluation[m] for method in methods] for m in (score, "ece")}
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
    of_eight = decide([method for method in methods if method.name in eight], LEVEL)
    adjusted = holm([p for *_, p in differences(score)])
    best = int(values[score].argmin())
    told_apart = {
        i + j - best
        for (i, j), p in zip(pairs, adjusted, strict=True)
        if best in (i, j) and p <= 1 - LEVEL
    }
    drawn = np.stack([result.replicates for result in results[score]])
    ece = [results["ece"][i].replicates - results["ece"][j].replicates for i, j in pairs]
    prices = [(names.index(a.name), a.price.low, a.price.high) for a in verdict.alternatives]
    return Found(
        values,
        [names.index(name) for name in verdict.may_be_best[score]],
        np.flatnonzero(may_be_best(values[score], drawn, LEVEL)).tolist(),
        [i for i in range(len(names)) if i not in told_apart],
        {
            "lowest-ece": int(values["ece"].argmin()),
            "lowest-score": best,
            "temperature": names.index("temperature"),
            "auto": names.index("auto"),
            "verdict": names.index(verdict.recommended),
        },
        names.index(of_eight.recommended),
        np.array(prices).reshape(-1, 3),
        np.array([each.std() for each in ece]),
        np.array([[low, high] for _, low, high, _ in differences("ece")]),
    )


class Verdicts(Kind):
    """Fit methods, draw test sets from the rest of the rows, and hold each choice to the truth."""

    version: ClassVar[str] = "4"
    axes: ClassVar[tuple[str, ...]] = ("input", "form")
    defaults: ClassVar[Mapping[str, Any]] = {
        "fit_rows": 4000,
        "rows": 1000,  # of a test set
        "sets": 60,
        "resamples": 100,
        "methods": "all",
        "again": False,
    }

    own_measures: ClassVar[tuple[Measure, ...]] = (
        Measure("methods", "methods", 1.0, 0, "neither"),
        Measure("may-be-best", "may be best", 1.0, 1, "neither"),
        Measure("by-holm", "left by Holm", 1.0, 1, "neither"),
        Measure("missed", "best missed", 100.0, 1, "neither"),
        Measure("scatter", "scatter over true", 1.0, 2, "neither"),
        Measure("held", "intervals hold", 100.0, 1, "neither"),
        Measure("prices", "prices hold", 100.0, 1, "neither"),
        *(Measure(f"{way}-score", f"{title}: NLL lost", 1.0, 4) for way, title in WAYS.items()),
        *(Measure(f"{way}-ece", f"{title}: ECE lost", 100.0, 2) for way, title in WAYS.items()),
        Measure("again-resampled", "same with other resamples", 100.0, 1, "neither"),
        Measure("again-set", "NLL set by resamples the same", 100.0, 1, "neither"),
        Measure("again-drawn", "same with other rows", 100.0, 1, "neither"),
        Measure("again-close", "same or within .0005", 100.0, 1, "neither"),
        Measure("again-score", "NLL between them, where not", 1.0, 4, "neither"),
        Measure("again-ece", "ECE between them, where not", 100.0, 2, "neither"),
        Measure("menu-close", "eight methods: same or within .0005", 100.0, 1, "neither"),
    )

    def needs(self, cell: Cell) -> tuple[Need, ...]:
        return (Need(cell.input, PREDICTIONS),)

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        return {"seed": cell.seed, "form": cell.at["form"], **self.settings(cell)}

    def method_version(self, cell: Cell) -> str:
        return __version__

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        given, top = inputs[cell.input], cell.at["form"] == TOP_LABEL
        # The parts of the sample are as they ship.
        size = None if cell.input == SAMPLE else self.setting(cell, "fit_rows")
        fit, rest = given.rows(cell.seed, size=size, rest=True)
        if top:
            fit, rest = top_labels(fit), top_labels(rest)
        else:
            fit, rest = fit.as_logits(), rest.as_logits()
        named = self.setting(cell, "methods")
        world = Population.of(fit, rest, list(METHODS) if named == "all" else named)
        rows, resamples = self.setting(cell, "rows"), self.setting(cell, "resamples")
        first = cell.seed * self.setting(cell, "sets")
        sets = range(first, first + self.setting(cell, "sets"))
        eight = EIGHT_OF_TOP if top else EIGHT

        def looks(again: int | None = None) -> list[Found]:
            return [
                look(
                    world.test_set(rows, s, resamples, None if again is None else again + s),
                    world.metrics[0],
                    eight,
                )
                for s in sets
            ]

        found = looks()
        values = verdict_values(world, found)
        if self.setting(cell, "again"):
            values |= repeat_values(world, found, looks(AGAIN))
        return {"values": values}


def verdict_values(world: Population, found: Sequence[Found]) -> dict[str, Any]:
    """Return what the test sets of one world say, as results of cells have it."""
    best = int(world.score.argmin())
    equal = {
        i for i, score in enumerate(world.score.tolist()) if score <= world.score[best] + EQUAL
    }
    expected = np.mean([each.values["ece"] for each in found], axis=0)
    values: dict[str, Any] = {
        "methods": {"value": float(len(world.after))},
        "may-be-best": mean_with_interval([len(each.subset) for each in found]),
        "by-holm": mean_with_interval([len(each.apart) for each in found]),
        "missed": share(np.array([not equal & set(each.subset) for each in found])),
    }
    for way in WAYS:
        chosen = [each.chosen[way] for each in found]
        lost = [world.score[i] - world.score[best] for i in chosen]
        values[f"{way}-score"] = mean_with_interval(lost)
        values[f"{way}-ece"] = mean_with_interval([expected[i] - expected.min() for i in chosen])
    pairs = list(combinations(range(len(world.after)), 2))
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
    holds = [
        low <= world.score[int(i)] - world.score[each.chosen["verdict"]] <= high
        for each in found
        for i, low, high in each.prices.tolist()
    ]
    if holds:
        # Those of one test set aren't independent, so this has no interval.
        values["prices"] = {"value": float(np.mean(holds))}
    return values | stability_values(world, found)


def stability_values(world: Population, found: Sequence[Found]) -> dict[str, Any]:
    """Return how often two test sets, and two menus, have one verdict or one as good."""
    chosen = [each.chosen["verdict"] for each in found]
    pairs = list(combinations(chosen, 2))

    def close(pairs: Sequence[tuple[int, int]]) -> float:
        near = [abs(world.score[i] - world.score[j]) <= CLOSE for i, j in pairs]
        return float(np.mean(near))

    # Pairs of test sets aren't independent, so this has no interval.
    return {
        "again-drawn": {"value": float(np.mean([i == j for i, j in pairs]))},
        "again-close": {"value": close(pairs)},
        "menu-close": {"value": close([(e.chosen["verdict"], e.of_eight) for e in found])},
    }


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
        "again-score": between(world.score),
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
    usual = chain.CLEAR
    try:
        for threshold in THRESHOLDS:
            chain.CLEAR = threshold
            chosen = fitted(ProbitTopRestScaling()).parts()["first_"].method
            found.append(normal if chosen == "probit" else plain)
    finally:  # other cells are computed in this process
        chain.CLEAR = usual
    return found
