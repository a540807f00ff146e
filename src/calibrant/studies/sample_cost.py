"""What it costs to fit to a uniform sample of very many rows instead of to all of them.

    python -m calibrant.studies.sample_cost [--rows 4000000] [--samples 10000,100000,1000000]

Rows are synthetic, logits that are too sure by more the closer the call, so the honest
probabilities are known: the table shows by how much the expected NLL on 100 000 other rows is
higher than after a fit to all rows, in nats, without the noise of labels. Each sample is drawn
`--draws` times; the mean and its standard error are over the draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.core.text import format_table
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.predictions import SMALLEST_PROBABILITY, Predictions
from calibrant.scale.sampling import sampled_places
from calibrant.studies.measuring import quietly
from calibrant.studies.program import parser_for, run_study
from calibrant.synthetic import KnownTruth, margin_tempered

CLASSES, NEAR, FAR = 10, 2.5, 1.2
PIECE, JUDGED = 100_000, 100_000


def main(words: Sequence[str] | None = None) -> None:
    """Print one table."""
    parser = parser_for("sample_cost", __doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--samples", default="10000,100000,1000000")
    parser.add_argument("--methods", default="temperature,smart,vector")
    parser.add_argument("--draws", type=int, default=3)
    arguments = parser.parse_args(words)
    sizes = [int(size) for size in arguments.samples.split(",")]
    every = drawn(arguments.rows)
    judged = margin_tempered(JUDGED, CLASSES, near=NEAR, far=FAR, seed=10**6)
    table: list[list[str]] = []
    for method in arguments.methods.split(","):
        whole = expected_nll(method, every, judged)
        cells = [method, f"{whole:.6f}"]
        for size in sizes:
            costs: FloatArray = np.array(
                [
                    expected_nll(method, every.take(sampled_places(every.n, size, seed)), judged)
                    - whole
                    for seed in range(arguments.draws)
                ]
            )
            error = float(costs.std(ddof=1)) / len(costs) ** 0.5 if len(costs) > 1 else 0.0
            cells.append(f"{costs.mean():+.1e} +- {error:.0e}")
        table.append(cells)
    head = ["method", f"NLL, {every.n} rows", *(f"sample of {size}" for size in sizes)]
    print(format_table(head, table))


def drawn(rows: int) -> Predictions:
    """Return rows as float32, drawn piece by piece."""
    logits = np.empty((rows, CLASSES), dtype=np.float32)
    labels = np.empty(rows, dtype=np.int64)
    for seed, start in enumerate(range(0, rows, PIECE)):
        size = min(PIECE, rows - start)
        some = margin_tempered(size, CLASSES, near=NEAR, far=FAR, seed=seed).predictions
        logits[start : start + size], labels[start : start + size] = some.logits, some.labels
    return Predictions("logits", logits, labels, source="synthetic")


def expected_nll(method: str, rows: Predictions, judged: KnownTruth) -> float:
    """Return the mean over honest labels of the NLL on the rows that are judged, after a fit."""
    with quietly():
        calibrator = make_calibrator(method).fit_predictions(rows)
    probs = np.asarray(calibrator.predict_proba(judged.predictions.logits), dtype=np.float64)
    surprise = -np.log(np.maximum(probs, SMALLEST_PROBABILITY))
    return float((np.asarray(judged.honest) * surprise).sum(axis=1).mean())


if __name__ == "__main__":
    run_study(main)
