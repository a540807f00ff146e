"""Measure how often the intervals of `evaluate` hold what they promise, where truth is known.

    python -m calibrant.studies.interval_coverage --rows 2000 --sets 300

Confidences are drawn from a distribution piled up near 1, as real networks' are; a row is right
with probability c - gap. Two truths are compared with each interval: the expected measured value
at this number of rows (what the interval is made for, and what the floor states for honest
confidences), and the limit of the metric for ever more rows (which a biased metric's interval is
not made for).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from calibrant.core.text import format_table
from calibrant.evaluation.evaluate import evaluate
from calibrant.metrics.registry import CurveMetric, metrics_named
from calibrant.metrics.top_label import TopLabel
from calibrant.predictions.predictions import Predictions
from calibrant.studies.program import parser_for, run_study

NAMES = ("ece", "adaece", "smce", "smece", "accuracy")


def draw(
    rows: int, gap: float, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return (N,) confidences in [0.5, 1) and whether each row is right."""
    confidence = 1 - 0.5 * rng.beta(0.5, 2.0, rows)
    return confidence, rng.random(rows) < confidence - gap


def values(confidence: NDArray[np.float64], correct: NDArray[np.bool_]) -> list[float]:
    """Return every metric's value."""
    sorted_rows = TopLabel.sort(confidence, correct)
    curve = [m.value(sorted_rows) for m in metrics_named(NAMES) if isinstance(m, CurveMetric)]
    return [*curve, float(correct.mean())]


def coverage(rows: int, gap: float, sets: int, seed: int) -> list[list[str]]:
    """Return a table row a metric: truths, mean interval, share of intervals that hold them."""
    rng = np.random.default_rng(seed)
    expected = np.mean([values(*draw(rows, gap, rng)) for _ in range(2000)], axis=0)
    limit = values(*draw(2_000_000, gap, rng))
    low, high = np.empty((sets, len(NAMES))), np.empty((sets, len(NAMES)))
    for i in range(sets):
        confidence, correct = draw(rows, gap, rng)
        wrong = Predictions.from_confidence(confidence, np.zeros(rows, dtype=int), ~correct * 1)
        found = evaluate(wrong, metrics=NAMES, resamples=500, seed=i)
        low[i] = [found[name].low for name in NAMES]
        high[i] = [found[name].high for name in NAMES]
    table: list[list[str]] = []
    for j, name in enumerate(NAMES):
        table.append(
            [
                name,
                f"{100 * gap:.0f}",
                f"{100 * expected[j]:.2f}",
                f"{100 * limit[j]:.2f}",
                f"{100 * low[:, j].mean():.2f} .. {100 * high[:, j].mean():.2f}",
                share((low[:, j] <= expected[j]) & (expected[j] <= high[:, j])),
                share((low[:, j] <= limit[j]) & (limit[j] <= high[:, j])),
            ]
        )
    return table


def share(held: NDArray[np.bool_]) -> str:
    """Return a share in percent with its standard error."""
    p = float(held.mean())
    return f"{100 * p:.1f} +- {100 * np.sqrt(max(p * (1 - p), 1e-4) / len(held)):.1f}"


def main(words: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = parser_for("interval_coverage", __doc__)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--sets", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(words)
    table: list[list[str]] = []
    for gap in (0.0, 0.02, 0.08):
        table += coverage(arguments.rows, gap, arguments.sets, arguments.seed)
    head = ["metric", "gap", "E at N", "limit", "mean interval", "holds E at N", "holds limit"]
    print(f"{arguments.sets} data sets of {arguments.rows} rows; nominal coverage 95 %; in percent")
    print(format_table(head, table))


if __name__ == "__main__":
    run_study(main)
