"""How top-rest scaling compares with temperature, SMART and isotonic over sizes of the fit set.

    python scripts/study_top_rest.py FILE [--fit-sizes 50,200,1000,5000] [--splits 20]
    python scripts/study_top_rest.py FIT_FILE TEST_FILE --fit-sizes 50,200,1000

Each split fits on so many rows drawn without replacement and measures on the others (or on
TEST_FILE). The same splits serve every method. Columns "to temperature" are paired differences with
their standard error over splits; splits of one file overlap, so those errors are on the small side.
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
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import score_rows

MEASURES = {"ECE %": 100.0, "AdaECE %": 100.0, "NLL": 1.0, "Brier": 1.0}


def scores(method: str, fit: Predictions, test: Predictions) -> list[float]:
    """Return ECE, AdaECE, NLL and Brier score on `test` after a fit on `fit`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calibrator = make_calibrator(method).fit(fit.logits, fit.labels)
    rows = score_rows(Predictions.from_probs(calibrator.predict_proba(test.logits), test.labels))
    curves = TopLabel.sort(rows.confidence, rows.correct).curves()
    return [
        float(ece_of_curves(curves)[0]),
        float(adaece_of_curves(curves)[0]),
        float(rows.nll.mean()),
        float(rows.brier.mean()),
    ]


def with_error(values: NDArray[np.float64]) -> str:
    """Return the mean with its standard error."""
    error = values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():.4f} +- {error:.4f}"


def main() -> None:
    """Print one table for each size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--fit-sizes", default="50,200,1000,5000")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--methods", default="temperature,smart,isotonic,top-rest")
    arguments = parser.parse_args()
    pool, *rest = [read_predictions(path) for path in arguments.files]
    methods = arguments.methods.split(",")
    for size in map(int, arguments.fit_sizes.split(",")):
        found: dict[str, list[list[float]]] = {method: [] for method in methods}
        for seed in range(arguments.splits):
            fit, others = pool.split(size, seed)
            for method in methods:
                found[method].append(scores(method, fit, rest[0] if rest else others))
        base = np.array(found[methods[0]])
        rows: list[list[str]] = []
        for method, values in found.items():
            table, row = np.array(values), [method]
            for column, scale in enumerate(MEASURES.values()):
                row.append(f"{scale * table[:, column].mean():.4f}")
                row.append(with_error(scale * (table[:, column] - base[:, column])))
            rows.append(row)
        header = ["method"]
        for measure in MEASURES:
            header += [measure, f"to {methods[0]}"]
        print(f"\nfit on {size} rows, {arguments.splits} splits")
        print(format_table(header, rows))


if __name__ == "__main__":
    main()
