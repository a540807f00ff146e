"""What the default map loses to the best single method, on files of predictions.

Each file is divided at random: methods are fitted to some rows of one half and measured on the
other. The best is the method of the lowest NLL there, so it is known only in hindsight.

    python -m scripts.default_beside_methods runs/*/test.npz --rows 300 5000
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import calibrant as cb
from calibrant.core.arrays import FloatArray
from calibrant.core.errors import NotApplicableError
from calibrant.predictions.predictions import Predictions

METHODS = [
    "temperature",
    "smart",
    "svs",
    "sms",
    "matrix",
    "dirichlet",
    "vector",
    "vector+top-rest",
    "sms+top-rest",
    "svs+top-rest",
    "ets",
    "beta",
    "natural-spline",
    "spline",
]


def mapped(method: str, fit: Predictions, test: Predictions) -> Predictions:
    """Return the test rows as a method says that was fitted to others."""
    return cb.make_calibrator(method).fit_predictions(fit).apply_predictions(test)


def losses(rows: Predictions) -> FloatArray:
    """Return the (N,) log losses."""
    probs = np.asarray(rows.probs, dtype=np.float64)
    return -np.log(probs[np.arange(rows.n), rows.labels])


def main() -> None:
    """Print a line for each file and number of rows, then what they come to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--rows", nargs="+", type=int, default=[300, 5000])
    parser.add_argument("--seed", type=int, default=5)
    given = parser.parse_args()
    for rows in given.rows:
        lost, gained, above = [], [], []
        for path in given.files:
            whole = cb.read_predictions(path)
            order = np.random.default_rng(given.seed).permutation(whole.n)
            fit, test = whole.take(order[:rows]), whole.take(order[whole.n // 2 :])
            found = {}
            for method in METHODS:
                try:
                    found[method] = losses(mapped(method, fit, test))
                except NotApplicableError as refusal:
                    print(f"{path}: {method} left out: {refusal}")
            best = min(found, key=lambda name: found[name].mean())
            after = mapped("auto", fit, test)
            own, ece = losses(after), cb.evaluate(after, metrics=["ece"])["ece"]
            lost.append(own.mean() - found[best].mean())
            gained.append(own.mean() - found["temperature"].mean())
            above.append(ece.floor_95 is not None and ece.value > ece.floor_95)
            print(
                f"{path}, {rows} rows: NLL {own.mean():.4f}, {lost[-1]:+.4f} to {best}, "
                f"{gained[-1]:+.4f} to temperature; ECE {ece.value:.2%} (noise {ece.floor_95:.2%})",
                flush=True,
            )
        print(
            f"{rows} rows, {len(lost)} files: to the best {np.mean(lost):+.4f} in mean, "
            f"{max(lost):+.4f} at most; to temperature {np.mean(gained):+.4f} in mean, "
            f"{max(gained):+.4f} at most; ECE above what noise gives in 95 %: {sum(above)}"
        )


if __name__ == "__main__":
    main()
