"""Measure how often honest groups are marked as miscalibrated, and how often others are found.

    python -m calibrant.studies.many_groups --groups 10 100 1000

Groups have 20 to 200 rows. Half of them are as sure as networks are on what they know (confidences
piled up near 1, where errors are rare events), half unsure. Each honest world is held against
simulated ones as `evaluate_by` does it; a false alarm is a world in which any group is marked. Then
one group in five is overconfident by 15 points: the share of those that is found, and, for
comparison, by Holm's correction of p-values that are counted over as many simulated worlds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.core.text import format_table
from calibrant.evaluation.family_wise import evidence, step_down
from calibrant.evaluation.uncertainty import holm
from calibrant.metrics.binned import ece_of_curves
from calibrant.metrics.top_label import ResidualCurves, TopLabel
from calibrant.studies.program import parser_for, run_study

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


def study(groups: int, draws: int, worlds: int, seed: int) -> tuple[FloatArray, FloatArray]:
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
        simulated.append(evidence(reference, expected, confidence))
        honest.append(evidence(fair, expected, confidence))
        mixed.append(evidence(shown, expected, confidence))
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


def main(words: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = parser_for("many_groups", __doc__)
    parser.add_argument("--groups", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=10)
    given = parser.parse_args(words)
    table: list[list[str]] = []
    for groups in given.groups:
        runs = [study(groups, given.draws, given.worlds, seed) for seed in range(given.repeats)]
        alarms = np.array([run[0].mean() for run in runs])
        power = np.array([run[1].mean(axis=0) for run in runs])
        # Worlds of one run share their simulated ones, so the spread is that of runs.
        error = alarms.std(ddof=1) / np.sqrt(len(alarms))
        table.append(
            [
                str(groups),
                f"{alarms.mean():.3f}",
                f"{error:.3f}",
                *(f"{100 * share:.0f} %" for share in power.mean(axis=0)),
            ]
        )
    print(format_table(["groups", "false alarms", "s.e.", "found", "found by Holm"], table))


if __name__ == "__main__":
    run_study(main)
