"""Why SMART's defaults are what they are: likelihood weight, shrinkage and number of steps.

    python scripts/study_smart_defaults.py FILE [--fit-size 5000] [--splits 40]
    python scripts/study_smart_defaults.py FIT_FILE TEST_FILE --fit-size 50

Each split fits on `fit-size` rows drawn without replacement and measures on the others (or on
TEST_FILE). The same splits serve every variant, so the last column, the difference to the default
in ECE with its standard error over splits, is paired.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrant.core.text import format_table
from calibrant.files import read_predictions
from calibrant.metrics.binned import adaece_of_curves, ece_of_curves
from calibrant.metrics.top_label import TopLabel
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.temperature.single import TemperatureScaling
from calibrant.posthoc.temperature.smart import SMART
from calibrant.posthoc.temperature.uncalibrated import Uncalibrated
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import score_rows


def variants(seed: int) -> dict[str, Calibrator]:
    """Return the calibrators to hold against each other."""

    def paper(steps: int) -> SMART:
        return SMART(likelihood_weight=0.0, shrinkage=0.0, max_iterations=steps, seed=seed)

    return {
        "default": SMART(seed=seed),
        "none": Uncalibrated(),
        "temperature": TemperatureScaling(),
        "paper's objective, 100 steps": paper(100),
        "paper's objective, 6 steps": paper(6),
        "likelihood weight 0": SMART(seed=seed, likelihood_weight=0.0),
        "likelihood weight 1": SMART(seed=seed, likelihood_weight=1.0),
        "shrinkage 0": SMART(seed=seed, shrinkage=0.0),
        "shrinkage 300": SMART(seed=seed, shrinkage=300.0),
        "3 steps": SMART(seed=seed, max_iterations=3),
        "12 steps": SMART(seed=seed, max_iterations=12),
        "100 steps": SMART(seed=seed, max_iterations=100),
    }


def scores(calibrator: Calibrator, fit: Predictions, test: Predictions) -> list[float]:
    """Return ECE, AdaECE and NLL on `test` after a fit on `fit`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calibrator.fit(fit.logits, fit.labels)
    rows = score_rows(Predictions.from_probs(calibrator.predict_proba(test.logits), test.labels))
    curves = TopLabel.sort(rows.confidence, rows.correct).curves()
    return [
        float(ece_of_curves(curves)[0]),
        float(adaece_of_curves(curves)[0]),
        float(rows.nll.mean()),
    ]


def with_error(values: NDArray[np.float64], scale: float = 100) -> str:
    """Return the mean with its standard error."""
    error = scale * values.std(ddof=1) / np.sqrt(len(values))
    return f"{scale * values.mean():.3f} +- {error:.3f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--fit-size", type=int, default=5000)
    parser.add_argument("--splits", type=int, default=40)
    arguments = parser.parse_args()
    pool, *rest = [read_predictions(path) for path in arguments.files]
    found: dict[str, list[list[float]]] = {}
    for seed in range(arguments.splits):
        whole = arguments.fit_size == pool.n
        fit, others = (pool, pool) if whole else pool.split(arguments.fit_size, seed)
        test = rest[0] if rest else others
        for name, calibrator in variants(seed).items():
            found.setdefault(name, []).append(scores(calibrator, fit, test))
    table = {name: np.array(values) for name, values in found.items()}
    rows = [
        [
            name,
            with_error(values[:, 0]),
            with_error(values[:, 1]),
            with_error(values[:, 2], 1),
            with_error(values[:, 0] - table["default"][:, 0]),
        ]
        for name, values in table.items()
    ]
    print(f"{arguments.splits} splits, fit on {arguments.fit_size} rows; ECE and AdaECE in percent")
    print(format_table(["variant", "ECE", "AdaECE", "NLL", "ECE to default"], rows))


if __name__ == "__main__":
    main()
