"""How long an evaluation takes, in units of drawing its resamples.

    python -m benchmarks.resampling

The unit is 1 000 times `rng.integers(N, size=N)` and `numpy.bincount` of them, N = 10 000: what any
bootstrap of so many rows costs at least. Both are timed in turns, in processor and in wall time;
printed are medians of the turns' ratios.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

import calibrant as cb
from calibrant.core.text import format_table

ROWS, RESAMPLES = 10_000, 1000
ASKED = {
    "ece": ["ece"],
    "adaece": ["adaece"],
    "smce": ["smce"],
    "smece": ["smece"],
    "nll, brier, accuracy": ["nll", "brier", "accuracy"],
    "all seven": None,
}


def draw() -> None:
    """Draw all resamples, and count how often each row is in them."""
    rng = np.random.default_rng(0)
    for _ in range(RESAMPLES):
        np.bincount(rng.integers(ROWS, size=ROWS), minlength=ROWS)


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Return processor and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    return time.process_time() - cpu, time.perf_counter() - wall


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.resampling", description=__doc__)
    parser.add_argument("--turns", type=int, default=7)
    turns = parser.parse_args().turns
    rows = cb.synthetic.tempered(ROWS, 10, temperature=1.3).predictions
    table: list[list[str]] = []
    for name, metrics in ASKED.items():

        def evaluate(wanted: list[str] | None = metrics) -> object:
            return cb.evaluate(rows, metrics=wanted, resamples=RESAMPLES)

        evaluate()
        ratios = np.array([np.divide(timed(evaluate), timed(draw)) for _ in range(turns)])
        low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75], axis=0)
        table.append(
            [name, *(f"{middle[i]:.1f} ({low[i]:.1f} to {high[i]:.1f})" for i in range(2))]
        )
    print(format_table(["metrics", "processor time", "wall time"], table))


if __name__ == "__main__":
    main()
