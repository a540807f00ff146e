"""How often `decide(risk=...)` keeps its promise: draws of rows whose true risk is known.

    python -m scripts.promise_of_risk --draws 2000

Prints for each number of rows, independent and in clusters of five, the share of draws in which the
true risk of the threshold is at most the wanted one, and the mean coverage. Confidences aren't
honest, for the promise needs no calibration: a row is right with probability sigmoid(0.8 log odds).
Confidences of a cluster share a part of their log odds, and its outcomes a latent normal of
correlation 0.5.
"""

from __future__ import annotations

import argparse

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.decision.base import DecidedRows, wilson
from calibrant.decision.fixed_sequence import Tested, last_passed, risk_test, thresholds
from calibrant.decision.risk import in_sequence
from calibrant.predictions.predictions import Predictions

RISK, SURE, SLOPE, SHARED, CLUSTER = 0.05, 0.95, 0.8, 0.5, 5


def true_risks(rng: np.random.Generator, rows: int = 2_000_000) -> FloatArray:
    """Return the true risk of each threshold of the grid, from one large draw of confidences."""
    confidence, right = chances(rng, rows, 1)
    order = np.argsort(-confidence)
    wrong = np.cumsum(1 - right[order]) / np.arange(1, rows + 1)
    last = np.searchsorted(-confidence[order], -thresholds(), side="right") - 1
    return np.where(last >= 0, wrong[last], 0.0)


def chances(rng: np.random.Generator, rows: int, size: int) -> tuple[FloatArray, FloatArray]:
    """Return confidences, and the chance that each row is right; clusters share a part."""
    shared = np.repeat(rng.normal(size=-(-rows // size)), size)[:rows]
    odds = 4.0 + 2.5 * (np.sqrt(0.3) * shared + np.sqrt(0.7) * rng.normal(size=rows))
    return 1 / (1 + np.exp(-odds)), 1 / (1 + np.exp(-SLOPE * odds))


def draw(rng: np.random.Generator, rows: int, size: int) -> DecidedRows:
    """Return rows with outcomes."""
    from scipy.special import ndtr

    confidence, right = chances(rng, rows, size)
    common = np.repeat(rng.normal(size=-(-rows // size)), size)[:rows]
    latent = np.sqrt(SHARED) * common + np.sqrt(1 - SHARED) * rng.normal(size=rows)
    correct = (ndtr(latent) if size > 1 else rng.uniform(size=rows)) < right
    unit = np.arange(rows) // size
    empty = Predictions.from_confidence([0.5], [0], [0])
    clusters = None if size == 1 else int(unit[-1]) + 1
    return DecidedRows(empty, confidence, correct, None, unit, clusters)


def as_tested(rows: DecidedRows) -> Tested:
    """Return what a sequence of thresholds of the confidence sees of errors."""
    return in_sequence(rows, rows.confidence, (~rows.correct).astype(np.float64), "error")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--rows", type=int, nargs="+", default=[300, 1000, 3000])
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    truth, grid = true_risks(rng), thresholds()
    print("rows  cluster of  kept %  interval      coverage %")
    for size in (1, CLUSTER):
        for rows in given.rows:
            kept, coverage = 0, 0.0
            for seed in range(given.draws):
                drawn = draw(rng, rows, size)
                seen = as_tested(drawn)
                place = last_passed(seen, risk_test(seen, SURE, seed), RISK, SURE)
                kept += place is None or truth[place] <= RISK
                coverage += 0 if place is None else (drawn.confidence >= grid[place]).mean()
            share = kept / given.draws
            low, high = (100 * end for end in wilson(share, given.draws, 0.95))
            mean = 100 * coverage / given.draws
            print(
                f"{rows:4d}  {size:10d}  {100 * share:6.1f}  {low:.1f} to {high:.1f}  {mean:10.1f}"
            )


if __name__ == "__main__":
    main()
