"""Why SMART's defaults are what they are: likelihood weight, shrinkage and number of steps.

    python -m calibrant.studies.smart_defaults FILE [--fit-size 5000] [--splits 40]
    python -m calibrant.studies.smart_defaults FIT_FILE TEST_FILE --fit-size 50

Each split fits on `fit-size` rows drawn without replacement and measures on the others (or on
TEST_FILE). The same splits serve every variant, so the last column, the difference to the default
in ECE with its standard error over splits, is paired.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from calibrant.core.text import format_table
from calibrant.files import read_predictions
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.temperature.single import TemperatureScaling
from calibrant.posthoc.temperature.smart import SMART
from calibrant.posthoc.temperature.uncalibrated import Uncalibrated
from calibrant.studies.measuring import Scores, fit_and_score, with_error
from calibrant.studies.program import parser_for, run_study


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


def main(words: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = parser_for("smart_defaults", __doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--fit-size", type=int, default=5000)
    parser.add_argument("--splits", type=int, default=40)
    arguments = parser.parse_args(words)
    pool, *rest = [read_predictions(path) for path in arguments.files]
    found: dict[str, list[Scores]] = {}
    for seed in range(arguments.splits):
        whole = arguments.fit_size == pool.n
        fit, others = (pool, pool) if whole else pool.split(arguments.fit_size, seed)
        test = rest[0] if rest else others
        for name, calibrator in variants(seed).items():
            found.setdefault(name, []).append(fit_and_score(calibrator, fit, test))
    table = {name: np.array(values) for name, values in found.items()}
    rows = [
        [
            name,
            with_error(100 * values[:, 0], 3),
            with_error(100 * values[:, 1], 3),
            with_error(values[:, 2], 3),
            with_error(100 * (values[:, 0] - table["default"][:, 0]), 3),
        ]
        for name, values in table.items()
    ]
    print(f"{arguments.splits} splits, fit on {arguments.fit_size} rows; ECE and AdaECE in percent")
    print(format_table(["variant", "ECE", "AdaECE", "NLL", "ECE to default"], rows))


if __name__ == "__main__":
    run_study(main)
