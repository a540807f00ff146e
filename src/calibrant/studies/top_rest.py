"""How top-rest scaling compares with temperature, SMART and isotonic over sizes of the fit set.

    python -m calibrant.studies.top_rest FILE [--fit-sizes 50,200,1000,5000] [--splits 20]
    python -m calibrant.studies.top_rest FIT_FILE TEST_FILE --fit-sizes 50,200,1000

Each split fits on so many rows drawn without replacement and measures on the others (or on
TEST_FILE). The same splits serve every method. Columns "to temperature" are paired differences with
their standard error over splits; splits of one file overlap, so those errors are on the small side.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from calibrant.core.text import format_table
from calibrant.files import read_predictions
from calibrant.posthoc.registry import make_calibrator
from calibrant.studies.measuring import Scores, fit_and_score, with_error
from calibrant.studies.program import parser_for, run_study

MEASURES = {"ECE %": 100.0, "AdaECE %": 100.0, "NLL": 1.0, "Brier": 1.0}


def main(words: Sequence[str] | None = None) -> None:
    """Print one table for each size."""
    parser = parser_for("top_rest", __doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--fit-sizes", default="50,200,1000,5000")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--methods", default="temperature,smart,isotonic,top-rest")
    arguments = parser.parse_args(words)
    pool, *rest = [read_predictions(path) for path in arguments.files]
    methods = arguments.methods.split(",")
    for size in map(int, arguments.fit_sizes.split(",")):
        found: dict[str, list[Scores]] = {method: [] for method in methods}
        for seed in range(arguments.splits):
            fit, others = pool.split(size, seed)
            test = rest[0] if rest else others
            for method in methods:
                found[method].append(fit_and_score(make_calibrator(method), fit, test))
        base = np.array(found[methods[0]])
        rows: list[list[str]] = []
        for method, values in found.items():
            table, row = np.array(values), [method]
            for column, scale in enumerate(MEASURES.values()):
                row.append(f"{scale * table[:, column].mean():.4f}")
                row.append(with_error(scale * (table[:, column] - base[:, column]), 4))
            rows.append(row)
        header = ["method"]
        for measure in MEASURES:
            header += [measure, f"to {methods[0]}"]
        print(f"\nfit on {size} rows, {arguments.splits} splits")
        print(format_table(header, rows))


if __name__ == "__main__":
    run_study(main)
