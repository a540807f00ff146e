"""Measure what intervals and floors hold of their promises when rows have weights or clusters.

    python -m calibrant.studies.weights_and_clusters --sets 300

Clusters: confidences lie higher in some clusters than in others, and whether rows are right depends
on a normal effect of the cluster on their log odds, of standard deviation 1; over clusters a row of
confidence c is right with probability c - gap all the same. Each set is measured as if its rows
stood alone, and with its clusters. Shown: how often the 95 % interval holds the expected value of
the metric on such sets, and how often honest confidences exceed their 95 % floor.

Weights: rows of two kinds, one of them calibrated otherwise than the other, where weights of 1 and
9 make up for how they were sampled; and rows that were collected into few lines of a table, with
weights that count them. Each is measured with weights, and with rows repeated as often as they say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray, IntArray
from calibrant.core.text import format_table
from calibrant.evaluation.evaluate import Evaluation, evaluate
from calibrant.predictions.predictions import Predictions
from calibrant.studies.program import parser_for, run_study

NAMES = ("ece", "smce", "accuracy")
# Clusters, and rows in each.
DESIGNS = ((1000, 1), (200, 5), (50, 20), (20, 50))
GAP, EFFECT, RESAMPLES, SETS_FOR_TRUTH = 0.05, 1.0, 300, 800
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


def counted(rng: np.random.Generator) -> Predictions:
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


def coverage(
    draw: Callable[[np.random.Generator], Predictions],
    ways: Sequence[Callable[[Predictions], Predictions]],
    sets: int,
    seed: int,
) -> list[list[list[Evaluation]]]:
    """Return evaluations that say the truth, and for every way of looking at rows those of sets."""
    rng = np.random.default_rng(seed)
    found: list[list[Evaluation]] = [[] for _ in ways]
    for i in range(sets):
        rows = draw(rng)
        for of_way, way in zip(found, ways, strict=True):
            of_way.append(evaluate(way(rows), metrics=NAMES, resamples=RESAMPLES, seed=i))
    truth = [evaluate(draw(rng), metrics=NAMES, resamples=2) for _ in range(SETS_FOR_TRUTH)]
    return [[truth], found]


def held(evaluations: Sequence[Evaluation], truth: Sequence[Evaluation], name: str) -> str:
    """Return the share of intervals that hold the expected value, with its standard error."""
    expected = float(np.mean([found[name].value for found in truth]))
    inside = [found[name].low <= expected <= found[name].high for found in evaluations]
    return share(inside)


def share(hits: Sequence[bool]) -> str:
    """Return a share in percent with its standard error."""
    p = float(np.mean(hits))
    return f"{100 * p:.1f} +- {100 * (p * (1 - p) / len(hits)) ** 0.5:.1f}"


def without_clusters(rows: Predictions) -> Predictions:
    """Return the rows as if each stood alone."""
    return rows.with_clusters(None)


def as_given(rows: Predictions) -> Predictions:
    """Return the rows."""
    return rows


def main() -> None:
    """Print the tables."""
    parser = parser_for("weights_and_clusters", __doc__)
    parser.add_argument("--sets", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    table: list[list[str]] = []
    means = means_over_effects()
    ways = (without_clusters, as_given)
    for design in DESIGNS:
        for gap in (GAP, 0.0):
            (truth,), (plain, whole) = coverage(
                lambda rng, d=design, g=gap: clustered(d, g, means, rng),
                ways,
                options.sets,
                options.seed,
            )
            for name in NAMES:
                cells = [f"{design[0]} x {design[1]}", f"{gap:g}", name]
                cells += [held(each, truth, name) for each in (plain, whole)]
                if gap == 0 and plain[0][name].floor is not None:
                    cells += [
                        share([not found[name].at_floor for found in each])
                        for each in (plain, whole)
                    ]
                table.append([*cells, "", ""][:7])
    head = ["clusters", "gap", "metric", "plain", "clustered", "alarms, plain", "clustered"]
    print("Intervals of 95 % that hold the expected value, and alarms on honest confidences, in %:")
    print(format_table(head, table))
    table = []
    for title, draw in (("sampled", sampled), ("counted", counted)):
        (truth,), (weighed, repeated) = coverage(
            draw, (as_given, Predictions.repeated), options.sets, options.seed
        )
        for name in NAMES:
            table.append([title, name, *(held(each, truth, name) for each in (weighed, repeated))])
    print("\nThe same with weights, and with rows repeated as often as these say:")
    print(format_table(["weights", "metric", "weighted", "repeated"], table))


if __name__ == "__main__":
    run_study(main)
