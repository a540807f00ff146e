"""How often intervals hold what they promise, on data sets whose truth is known.

Confidences are drawn from a distribution piled up near 1, as those of real networks are; a row is
right with probability c - gap. Each interval is held to two truths: the expected measured value at
this number of rows, and the limit of the metric for ever more rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import BoolArray, FloatArray, IntArray
from calibrant.evaluation.cell_sample import in_cells
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.groups import evidence, step_down
from calibrant.evaluation.sample_sources import sample_of
from calibrant.evaluation.uncertainty import holm, wilson_interval
from calibrant.metrics.binned import ece_of_curves
from calibrant.metrics.registry import CurveMetric, metrics_named
from calibrant.metrics.top_label import ResidualCurves, TopLabel
from calibrant.posthoc.confidence.top_rest import TopRestScaling
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.predictions import SMALLEST_PROBABILITY, Predictions
from calibrant.scale.sampling import sampled_places
from calibrant.synthetic import KnownTruth, margin_tempered, tempered
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs, synthetic
from calibrant_studies.kinds.base import Measure, Simulated, quietly
from calibrant_studies.kinds.posthoc import method_code
from calibrant_studies.significance import mean_with_interval

COVERED = ("ece", "adaece", "smce", "smece", "accuracy")
# What is said of each metric: name, title, and which direction is better.
COVERAGE_TITLES = {
    "held": "held",
    "limit-held": "limit held",
    "expected": "expected",
    "limit": "limit",
    "low": "mean low",
    "high": "mean high",
}


class Coverage(Simulated):
    """Draw data sets, measure each, and count the intervals that hold the truth."""

    version: ClassVar[str] = "1"
    axes: ClassVar[tuple[str, ...]] = ("gap",)
    defaults: ClassVar[Mapping[str, Any]] = {
        "rows": 2000,
        "sets": 300,
        "resamples": 500,
        "truth_sets": 2000,  # which the expected value is a mean of
        "limit_rows": 2_000_000,
    }

    @property
    def measures(self) -> Mapping[str, Measure]:
        return {
            f"{metric.name}-{what}": Measure(
                f"{metric.name}-{what}", f"{metric.title} {title}", 100.0, 2, "neither"
            )
            for metric in metrics_named(COVERED)
            for what, title in COVERAGE_TITLES.items()
        }

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        sizes = self.settings(cell)
        return {"gap": float(cell.at["gap"]), "seed": cell.seed, **sizes}

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        gap, rows, sets = (
            float(cell.at["gap"]),
            self.setting(cell, "rows"),
            self.setting(cell, "sets"),
        )
        rng = np.random.default_rng(cell.seed)
        drawn = [
            _values(*draw_confidences(rows, gap, rng))
            for _ in range(self.setting(cell, "truth_sets"))
        ]
        expected = np.mean(drawn, axis=0)
        limit = np.array(_values(*draw_confidences(self.setting(cell, "limit_rows"), gap, rng)))
        low, high = np.empty((sets, len(COVERED))), np.empty((sets, len(COVERED)))
        for i in range(sets):
            confidence, correct = draw_confidences(rows, gap, rng)
            said = Predictions.from_confidence(confidence, np.zeros(rows, dtype=int), ~correct * 1)
            found = evaluate(
                said, metrics=COVERED, resamples=self.setting(cell, "resamples"), seed=i
            )
            low[i] = [found[name].low for name in COVERED]
            high[i] = [found[name].high for name in COVERED]
        values: dict[str, Any] = {}
        for j, name in enumerate(COVERED):
            values[f"{name}-held"] = share((low[:, j] <= expected[j]) & (expected[j] <= high[:, j]))
            values[f"{name}-limit-held"] = share((low[:, j] <= limit[j]) & (limit[j] <= high[:, j]))
            values[f"{name}-expected"] = {"value": float(expected[j])}
            values[f"{name}-limit"] = {"value": float(limit[j])}
            values[f"{name}-low"] = {"value": float(low[:, j].mean())}
            values[f"{name}-high"] = {"value": float(high[:, j].mean())}
        return {"values": values}


def draw_confidences(
    rows: int, gap: float, rng: np.random.Generator
) -> tuple[FloatArray, BoolArray]:
    """Return (N,) confidences in [0.5, 1) and whether each row is right."""
    confidence = 1 - 0.5 * rng.beta(0.5, 2.0, rows)
    return confidence, rng.random(rows) < confidence - gap


def _values(confidence: FloatArray, correct: BoolArray) -> list[float]:
    """Return every metric's value."""
    sorted_rows = TopLabel.sort(confidence, correct)
    curve = [m.value(sorted_rows) for m in metrics_named(COVERED) if isinstance(m, CurveMetric)]
    return [*curve, float(correct.mean())]


def share(held: NDArray[np.bool_]) -> dict[str, float]:
    """Return a share with its 95 % interval, that of Wilson."""
    low, high = wilson_interval(np.array([held.sum()]), np.array([len(held)]))
    return {"value": float(held.mean()), "low": float(low[0]), "high": float(high[0])}


# What intervals and floors hold of their promises when rows have weights or clusters.
#
# Clusters: confidences lie higher in some clusters than in others, and whether rows are right
# depends on a normal effect of the cluster on their log odds, of standard deviation 1; over
# clusters a row of confidence c is right with probability c - gap all the same. Each set is
# measured as if its rows stood alone, and with its clusters.
#
# Weights: rows of two kinds, one of them calibrated otherwise than the other, where weights of 1
# and 9 make up for how they were sampled; and rows that were collected into few lines of a table,
# with weights that count them. Each is measured with weights, and with rows repeated as often as
# they say.

DEPENDENT = ("ece", "smce", "accuracy")
GAP, EFFECT = 0.05, 1.0
# Where the mean over effects of the sigmoid is tabulated.
LOG_ODDS = np.linspace(-12, 12, 2001)
NODES = 64


def means_over_effects() -> FloatArray:
    """Return the mean of sigmoid(x + effect) over effects, at each x of `LOG_ODDS`."""
    from scipy.special import ndtri

    effects = EFFECT * ndtri((np.arange(NODES) + 0.5) / NODES)
    return (1 / (1 + np.exp(-(LOG_ODDS[:, None] + effects)))).mean(axis=1)


def clustered(
    design: tuple[int, int], gap: float, means: FloatArray, rng: np.random.Generator
) -> Predictions:
    """Return rows in clusters: of confidence c, a share c - gap is right, over all clusters."""
    number, size = design
    clusters = np.repeat(np.arange(number), size)
    level = rng.normal(size=number)[clusters] + rng.normal(size=len(clusters))
    confidence = 0.55 + 0.44 / (1 + np.exp(-level))
    alone = np.interp(confidence - gap, means, LOG_ODDS)
    chance = 1 / (1 + np.exp(-(alone + EFFECT * rng.normal(size=number)[clusters])))
    return _predictions(confidence, rng.random(len(clusters)) < chance, clusters=clusters)


def sampled(rng: np.random.Generator) -> Predictions:
    """Return 1 000 rows in which a kind is rarer by nine than where it counts."""
    confidence = rng.uniform(0.6, 0.95, 1000)
    rare = rng.random(1000) < 0.15
    right = rng.random(1000) < confidence - np.where(rare, 0.15, 0.0)
    return _predictions(confidence, right, sample_weight=np.where(rare, 9, 1))


def counted_lines(rng: np.random.Generator) -> Predictions:
    """Return 1 000 rows as the lines of a table: four confidences, right or wrong, how many."""
    confidence = rng.choice([0.6, 0.7, 0.8, 0.9], 1000)
    right = rng.random(1000) < confidence - GAP
    lines, weights = np.unique(np.stack([confidence, right]), axis=1, return_counts=True)
    return _predictions(lines[0], lines[1] > 0, sample_weight=weights)


def _predictions(
    confidence: FloatArray,
    right: NDArray[np.bool_],
    sample_weight: NDArray[np.generic] | None = None,
    clusters: IntArray | None = None,
) -> Predictions:
    said = np.zeros(len(confidence), dtype=np.int64)
    truth = np.where(right, 0, 1)
    return Predictions.from_confidence(
        confidence, said, truth, sample_weight=sample_weight, clusters=clusters
    )


def without_clusters(rows: Predictions) -> Predictions:
    """Return the rows as if each stood alone."""
    return rows.with_clusters(None)


def as_given(rows: Predictions) -> Predictions:
    """Return the rows."""
    return rows


class Dependence(Simulated):
    """Draw data sets of a design, and measure each in both ways."""

    version: ClassVar[str] = "1"
    axes: ClassVar[tuple[str, ...]] = ("design", "gap", "way")
    defaults: ClassVar[Mapping[str, Any]] = {"sets": 300, "resamples": 300, "truth_sets": 800}

    @property
    def measures(self) -> Mapping[str, Measure]:
        said = {"held": "held", "alarms": "alarms"}
        return {
            f"{metric.name}-{what}": Measure(
                f"{metric.name}-{what}", f"{metric.title} {title}", 100.0, 1, "neither"
            )
            for metric in metrics_named(DEPENDENT)
            for what, title in said.items()
        }

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        gap = float(cell.at["gap"])
        draw, way = _draw_of(cell.at["design"], gap), WAYS[cell.at["way"]]
        rng = np.random.default_rng(cell.seed)
        found = [
            evaluate(
                way(draw(rng)), metrics=DEPENDENT, resamples=self.setting(cell, "resamples"), seed=i
            )
            for i in range(self.setting(cell, "sets"))
        ]
        truth = [
            evaluate(draw(rng), metrics=DEPENDENT, resamples=2)
            for _ in range(self.setting(cell, "truth_sets"))
        ]
        values: dict[str, Any] = {}
        for name in DEPENDENT:
            expected = float(np.mean([each[name].value for each in truth]))
            held = [each[name].low <= expected <= each[name].high for each in found]
            values[f"{name}-held"] = share(np.array(held))
            if gap == 0 and found[0][name].floor is not None:
                values[f"{name}-alarms"] = share(np.array([not e[name].at_floor for e in found]))
        return {"values": values}


def _draw_of(design: str, gap: float) -> Callable[[np.random.Generator], Predictions]:
    """Return what draws a data set: ``sampled``, ``counted``, or clusters such as ``50x20``."""
    if design in ("sampled", "counted"):
        return sampled if design == "sampled" else counted_lines
    number, size = map(int, design.split("x"))
    return partial(clustered, (number, size), gap, means_over_effects())


WAYS: Mapping[str, Callable[[Predictions], Predictions]] = {
    "as-given": as_given,
    "without-clusters": without_clusters,
    "repeated": Predictions.repeated,
}


# How far intervals from sums over cells are from those from rows.
# Logits are so many times too large unless a setting says otherwise; 1 is honest.
TEMPERATURE = 1.5
COMPARED = ("ece", "adaece", "smce", "nll", "brier", "accuracy")
CLASSES = 10


class IntervalKinds(Simulated):
    """Measure drawn rows both ways, with other seeds of the resamples."""

    version: ClassVar[str] = "1"
    axes: ClassVar[tuple[str, ...]] = ("size",)
    defaults: ClassVar[Mapping[str, Any]] = {"resamples": 2000, "temperature": TEMPERATURE}

    @property
    def measures(self) -> Mapping[str, Measure]:
        return {
            f"{metric.name}-{end}": Measure(
                f"{metric.name}-{end}", f"{metric.title} {end}", 100.0, 1, "neither"
            )
            for metric in metrics_named(COMPARED)
            for end in ("low", "high")
        }

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        size, seed = int(cell.at["size"]), 1 + 2 * cell.seed
        options: dict[str, Any] = {
            "metrics": COMPARED,
            "resamples": self.setting(cell, "resamples"),
        }
        temperature = self.setting(cell, "temperature")
        rows = tempered(size, CLASSES, temperature=temperature, seed=seed).predictions
        from_cells = evaluate(in_cells(sample_of(rows)), **options, seed=seed)
        from_rows = evaluate(rows, **options, seed=seed + 1)
        values: dict[str, Any] = {}
        for name in COMPARED:
            ours, theirs = from_cells[name], from_rows[name]
            width = theirs.high - theirs.low
            values[f"{name}-low"] = {"value": (ours.low - theirs.low) / width}
            values[f"{name}-high"] = {"value": (ours.high - theirs.high) / width}
        return {"values": values}


# How often honest groups are marked as miscalibrated, and how often others are found.
#
# Each honest world is held against simulated ones as `evaluate_by` does it; a false alarm is a
# world in which any group is marked. Then one group in five is overconfident by 15 points: the
# share of those that is found, and, for comparison, by Holm's correction of p-values that are
# counted over as many simulated worlds.

LEVEL = 0.05
SHARE, SHIFT = 5, 0.15


def confidences(groups: int, rng: np.random.Generator) -> list[FloatArray]:
    """Return the confidences of each group."""
    found: list[FloatArray] = []
    for group in range(groups):
        size = int(rng.integers(20, 201))
        sure = group % 2 == 0
        found.append(1 - rng.beta(0.3, 12, size) if sure else rng.uniform(0.4, 1.0, size))
    return found


def eces(confidence: FloatArray, shift: float, worlds: int, rng: np.random.Generator) -> FloatArray:
    """Return (W,) ECEs of rows that are right with probability max(c - shift, 0)."""
    rows = TopLabel.sort(confidence, np.zeros(len(confidence)))
    outcomes = rng.random((worlds, rows.n)) < np.maximum(rows.confidence - shift, 0)
    return ece_of_curves(ResidualCurves.with_labels(rows, outcomes))


def worlds_of(groups: int, draws: int, worlds: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return (W,) whether any honest group was marked, and (W, 2) shares of bad groups found."""
    rng = np.random.default_rng(seed)
    parts = confidences(groups, rng)
    bad = np.arange(groups) % SHARE < 1
    simulated: list[FloatArray] = []
    honest: list[FloatArray] = []
    mixed: list[FloatArray] = []
    counted: list[FloatArray] = []
    for group, confidence in enumerate(parts):
        expected = float(eces(confidence, 0.0, draws, rng).mean())
        reference = eces(confidence, 0.0, draws, rng)
        fair = eces(confidence, 0.0, worlds, rng)
        shown = eces(confidence, SHIFT, worlds, rng) if bad[group] else fair
        law = (expected, len(confidence), float(np.mean(confidence * (1 - confidence))))
        simulated.append(evidence(reference, *law))
        honest.append(evidence(fair, *law))
        mixed.append(evidence(shown, *law))
        beyond = draws - np.searchsorted(np.sort(reference), shown)
        counted.append((1 + beyond) / (1 + draws))
    against = np.stack(simulated, axis=1)
    alarms, power = np.empty(worlds), np.empty((worlds, 2))
    for world in range(worlds):
        alarms[world] = step_down(np.array([h[world] for h in honest]), against).min() <= LEVEL
        marked = step_down(np.array([m[world] for m in mixed]), against) <= LEVEL
        by_holm = np.array(holm([c[world] for c in counted])) <= LEVEL
        power[world] = marked[bad].mean(), by_holm[bad].mean()
    return alarms, power


class ManyGroups(Simulated):
    """Simulate worlds of honest and of bad groups; those of a seed share what they are held to."""

    version: ClassVar[str] = "1"
    axes: ClassVar[tuple[str, ...]] = ("groups",)
    defaults: ClassVar[Mapping[str, Any]] = {"draws": 1000, "worlds": 200}

    @property
    def measures(self) -> Mapping[str, Measure]:
        titles = {
            "false-alarms": "false alarms",
            "found": "found",
            "found-by-holm": "found by Holm",
        }
        return {name: Measure(name, title, 100.0, 1, "neither") for name, title in titles.items()}

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        draws, worlds = self.setting(cell, "draws"), self.setting(cell, "worlds")
        alarms, power = worlds_of(int(cell.at["groups"]), draws, worlds, cell.seed)
        found, by_holm = power.mean(axis=0).tolist()
        values: dict[str, Any] = {
            "false-alarms": {"value": float(alarms.mean())},
            "found": {"value": found},
            "found-by-holm": {"value": by_holm},
        }
        return {"values": values}


# How often an interval of top-rest scaling for a row holds the row's true confidence.

JUDGED = 2000


class RowIntervals(Simulated):
    """Fit to several draws, and hold each row's interval to what is known of the row."""

    version: ClassVar[str] = "1"
    axes: ClassVar[tuple[str, ...]] = ("size", "knots")
    defaults: ClassVar[Mapping[str, Any]] = {"draws": 10, "level": 0.95}

    @property
    def measures(self) -> Mapping[str, Measure]:
        names = ("coverage", "width", "bias", "spread")
        return {name: Measure(name, name, 100.0, 2, "neither") for name in names}

    def method_version(self, cell: Cell) -> str:
        return method_code("top-rest")

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        size, draws = int(cell.at["size"]), self.setting(cell, "draws")
        # What class biases change, a map of the margin can't see.
        judged = synthetic(1, 1_000_000, bias=0.0)
        assert judged.truth is not None
        logits = judged.test.logits[:JUDGED]
        truth = judged.truth[np.arange(JUDGED), logits.argmax(axis=1)]
        covered: list[float] = []
        width: list[float] = []
        confidence: list[FloatArray] = []
        for seed in range(draws * cell.seed, draws * (cell.seed + 1)):
            fit = synthetic(size, seed, bias=0.0).fit
            with quietly():
                calibrator = TopRestScaling(knots=int(cell.at["knots"]))
                calibrator.fit(fit.logits, fit.labels)
            low, high = calibrator.confidence_interval(logits, self.setting(cell, "level"))
            covered.append(float(np.mean((low <= truth) & (truth <= high))))
            width.append(float(np.mean(high - low)))
            confidence.append(calibrator.predict_confidence(logits)[1])
        drawn: FloatArray = np.stack(confidence)
        away: FloatArray = drawn.mean(axis=0) - truth
        variance: FloatArray = drawn.var(axis=0, ddof=1)
        values: dict[str, Any] = {
            # Of shares: Student's interval may reach beyond all of them.
            "coverage": {name: min(of, 1.0) for name, of in mean_with_interval(covered).items()},
            "width": mean_with_interval(width),
            "bias": {"value": float(np.sqrt(np.mean(away**2)))},
            "spread": {"value": float(np.sqrt(variance.mean()))},
        }
        return {"values": values}


# What it costs to fit to a uniform sample of very many rows instead of to all of them.
#
# Rows are synthetic, logits that are too sure by more the closer the call, so the honest
# probabilities are known.

SAMPLE_CLASSES, NEAR, FAR = 10, 2.5, 1.2
PIECE = 100_000


class SampleCost(Simulated):
    """Fit to all rows and to a sample of them, and compare the expected NLL on other rows."""

    version: ClassVar[str] = "1"
    axes: ClassVar[tuple[str, ...]] = ("method", "sample")
    defaults: ClassVar[Mapping[str, Any]] = {"rows": 4_000_000, "judged": 100_000}

    @property
    def measures(self) -> Mapping[str, Measure]:
        return {
            "nll": Measure("nll", "NLL of all", 1.0, 6, "low"),
            "cost": Measure("cost", "cost", 1e6, 1, "low"),
        }

    def method_version(self, cell: Cell) -> str:
        return method_code(cell.method)

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        every = drawn_rows(self.setting(cell, "rows"))
        judged = margin_tempered(
            self.setting(cell, "judged"), SAMPLE_CLASSES, near=NEAR, far=FAR, seed=10**6
        )
        whole = expected_nll(cell.method, every, judged)
        places = sampled_places(every.n, int(cell.at["sample"]), cell.seed)
        cost = expected_nll(cell.method, every.take(places), judged) - whole
        return {"values": {"nll": {"value": whole}, "cost": {"value": cost}}}


@lru_cache(maxsize=1)
def drawn_rows(rows: int) -> Predictions:
    """Return rows as float32, drawn piece by piece."""
    logits = np.empty((rows, SAMPLE_CLASSES), dtype=np.float32)
    labels = np.empty(rows, dtype=np.int64)
    for seed, start in enumerate(range(0, rows, PIECE)):
        size = min(PIECE, rows - start)
        some = margin_tempered(size, SAMPLE_CLASSES, near=NEAR, far=FAR, seed=seed).predictions
        logits[start : start + size], labels[start : start + size] = some.logits, some.labels
    return Predictions("logits", logits, labels, source="synthetic")


def expected_nll(method: str, rows: Predictions, judged: KnownTruth) -> float:
    """Return the mean over honest labels of the NLL on the rows that are judged, after a fit."""
    with quietly():
        calibrator = make_calibrator(method).fit_predictions(rows)
    probs = np.asarray(
        calibrator.predict_proba(judged.predictions.logits, kind="logits"), dtype=np.float64
    )
    surprise = -np.log(np.maximum(probs, SMALLEST_PROBABILITY))
    return float((np.asarray(judged.honest) * surprise).sum(axis=1).mean())
