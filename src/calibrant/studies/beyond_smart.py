"""Top-rest scaling, plain and behind SVS, against SMART, temperature scaling and SVS.

    python -m calibrant.studies.beyond_smart --data NAME=FILE [--data NAME=FIT_FILE:TEST_FILE]
        [--data synthetic] [--sizes 50,200,1000,5000] [--seeds 5]
        [--methods top-rest,svs-top-rest] [--rivals smart,temperature,svs]

For each size and seed all methods are fitted to the same rows and measured on the same others.
Differences are paired; their 95 % intervals come from a bootstrap in two steps: draws with
replacement, and within each draw test rows with replacement, the same for all methods. Draws of one
file overlap, so intervals over many draws of it are somewhat narrow. "off truth" (synthetic rows
only) is the mean distance of the confidence from the known probability that the predicted class is
right; it has no noise of labels in it. Differences whose interval leaves out 0 carry a star.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from calibrant.core.text import format_table
from calibrant.evaluation.evaluate import evaluate
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.predictions import Predictions
from calibrant.studies.data import Draw, Source
from calibrant.studies.measuring import quietly
from calibrant.studies.program import parser_for, run_study

METRICS = {"ece": 100.0, "adaece": 100.0, "nll": 1.0, "brier": 1.0}
TRUTH = "off truth"

# Value and bootstrap replicates of every metric.
Measured = dict[str, tuple[float, NDArray[np.float64]]]


def measure(method: str, draw: Draw, resamples: int, seed: int) -> Measured:
    """Fit and measure one method on one draw."""
    with quietly():
        fit, test = draw.fit, draw.test
        probs = make_calibrator(method).fit(fit.logits, fit.labels).predict_proba(test.logits)
    found = evaluate(
        Predictions.from_probs(probs, test.labels),
        metrics=list(METRICS),
        resamples=resamples,
        seed=seed,
    )
    measured: Measured = {
        name: (scale * found[name].value, scale * np.asarray(found[name].replicates))
        for name, scale in METRICS.items()
    }
    if draw.truth is not None:
        right = np.take_along_axis(draw.truth, probs.argmax(axis=1)[:, None], axis=1)[:, 0]
        away = 100 * np.abs(probs.max(axis=1) - right)
        rows = np.random.default_rng(seed).integers(len(away), size=(resamples, len(away)))
        measured[TRUTH] = float(away.mean()), away[rows].mean(axis=1)
    return measured


def difference(ours: list[Measured], theirs: list[Measured], metric: str, seed: int = 0) -> str:
    """Return the mean paired difference with its interval, and a star if that leaves out 0."""
    value = float(np.mean([a[metric][0] - b[metric][0] for a, b in zip(ours, theirs, strict=True)]))
    spread = np.array([a[metric][1] - b[metric][1] for a, b in zip(ours, theirs, strict=True)])
    draws, resamples = spread.shape
    chosen = np.random.default_rng(seed).integers(draws, size=(resamples, draws))
    means = spread[chosen, np.arange(resamples)[:, None]].mean(axis=1)
    # A resample's ECE is too large by its own noise; what two methods share of that cancels, and
    # the rest is taken off.
    low, high = np.quantile(means - means.mean() + value, [0.025, 0.975])
    digits = 2 if METRICS.get(metric, 100.0) > 1 else 4
    star = "*" if low > 0 or high < 0 else ""
    return f"{value:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f}){star}"


def main(words: Sequence[str] | None = None) -> None:
    """Print a table of means and one of differences for each source and size."""
    parser = parser_for("beyond_smart", __doc__)
    parser.add_argument("--data", action="append", required=True)
    parser.add_argument("--sizes", default="50,200,1000,5000")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--resamples", type=int, default=200)
    parser.add_argument("--methods", default="top-rest,svs-top-rest")
    parser.add_argument("--rivals", default="smart,temperature,svs")
    arguments = parser.parse_args(words)
    ours, rivals = arguments.methods.split(","), arguments.rivals.split(",")
    for text in arguments.data:
        source = Source.parse(text)
        for size in map(int, arguments.sizes.split(",")):
            started = time.perf_counter()
            found: dict[str, list[Measured]] = {method: [] for method in ("none", *rivals, *ours)}
            for seed in range(source.draws(size, arguments.seeds)):
                draw = source.draw(size, seed)
                for method, measured in found.items():
                    measured.append(measure(method, draw, arguments.resamples, seed))
            draws, seconds = len(found["none"]), time.perf_counter() - started
            print(f"\n{source.name}, fitted to {size} rows, {draws} draws, {seconds:.0f} s\n")
            metrics = list(found["none"][0])
            rows = [
                [method, *(f"{np.mean([m[metric][0] for m in of]):.4f}" for metric in metrics)]
                for method, of in found.items()
            ]
            print(format_table(["mean", *metrics], rows))
            rows = [
                [
                    f"{method} - {rival}",
                    *(difference(found[method], found[rival], m) for m in metrics),
                ]
                for method in ours
                for rival in rivals
            ]
            print("\n" + format_table(["paired difference", *metrics], rows), flush=True)


if __name__ == "__main__":
    run_study(main)
