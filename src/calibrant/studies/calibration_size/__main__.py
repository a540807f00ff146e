"""ECE and NLL of every method, relative to temperature scaling, over sizes of the fit set.

    python -m calibrant.studies.calibration_size --data NAME=FILE [--data NAME=FIT_FILE:TEST_FILE]
        [--sizes 50,100,200,500,1000,2000,5000] [--seeds 6] [--methods all]
        [--figure docs/images/calibration-size.png]

For each size and seed all methods are fitted to the same rows and measured on the same others. A
table shows the mean and 95 % t-interval over seeds of a method's value minus that of temperature
scaling. Where a set holds no more rows than the size there is one draw, and no interval. Draws of
one file overlap, so intervals of large sizes are somewhat narrow. The figure has the same numbers,
with a band for the interval of auto. Methods that take more than --slowest processor seconds at one
size sit out the larger ones. A method may be a chain such as probit+svs+top-rest, a candidate of
auto taken whatever the rows say; regret is the mean NLL of auto over that of the best other method
of the run at that size. --data synthetic, tempered-K and margin-K are rows of known truth.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from calibrant.core.text import format_table
from calibrant.posthoc.auto import AutoCalibrator
from calibrant.posthoc.registry import METHODS
from calibrant.studies.calibration_size.figure import draw_figure
from calibrant.studies.calibration_size.fits import BASE, Results, fit_all, relative
from calibrant.studies.data import Source
from calibrant.studies.program import parser_for, run_study


def show(source: Source, results: Results, methods: list[str], sizes: list[int]) -> None:
    """Print a table for each metric, what auto chose, and the seconds of a fit."""
    for metric, digits in (("ece", 2), ("nll", 4)):
        unit = " in %" if metric == "ece" else ""
        print(f"\n{source.name}: {metric.upper()}{unit} minus that of {BASE} scaling, by rows\n")
        rows: list[list[str]] = []
        for method in methods:
            row = [method]
            for size in sizes:
                value, reach = relative(results, method, size, metric)
                text = "" if np.isnan(value) else f"{value:+.{digits}f}"
                row.append(text if np.isnan(reach) else f"{text} ±{reach:.{digits}f}")
            rows.append(row)
        means = [np.mean([getattr(found, metric) for found in results[BASE, n]]) for n in sizes]
        rows.insert(0, [f"({BASE} itself)", *(f"{mean:.{digits}f}" for mean in means)])
        print(format_table(["method", *map(str, sizes)], rows))
    print(f"\n{source.name}: processor seconds of a fit, mean\n")
    rows = []
    for method in methods:
        times = [[found.seconds for found in results[method, size]] for size in sizes]
        rows.append([method, *(f"{np.mean(of):.3f}" if of else "" for of in times)])
    print(format_table(["method", *map(str, sizes)], rows))
    if "auto" in methods:
        print(f"\n{source.name}: mean weights of auto, and its regret")
        for size in sizes:
            print(f"  {size:5d} rows: {weights_of_auto(results, size)}")


def weights_of_auto(results: Results, size: int) -> str:
    """Return what auto averaged, and its mean NLL over that of the best other method."""
    every = results["auto", size]
    total: Counter[str] = Counter()
    for found in every:
        if isinstance(found.calibrator, AutoCalibrator):
            total.update(found.calibrator.averaged_)
    shares = [f"{name} {100 * share / len(every):.0f} %" for name, share in total.most_common()]
    means = {
        method: float(np.mean([found.nll for found in fits]))
        for (method, rows), fits in results.items()
        if rows == size and fits
    }
    own = means.pop("auto")
    best = min(means, key=lambda method: means[method])
    return f"{', '.join(shares)} (regret {own - means[best]:+.4f} to {best})"


def main(words: Sequence[str] | None = None) -> None:
    """Run the study."""
    parser = parser_for("calibration_size", __doc__)
    parser.add_argument("--data", action="append", required=True)
    parser.add_argument("--sizes", default="50,100,200,500,1000,2000,5000")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--methods", default="all")
    parser.add_argument("--slowest", type=float, default=10.0)
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args(words)
    sizes = [int(size) for size in arguments.sizes.split(",")]
    methods = arguments.methods.split(",")
    if arguments.methods == "all":
        methods = [name for name, kind in METHODS.items() if not kind.needs]
    methods = [BASE, *(method for method in methods if method != BASE)]
    found: dict[str, Results] = {}
    for text in arguments.data:
        source, started = Source.parse(text), time.perf_counter()
        found[source.name] = fit_all(source, methods, sizes, arguments.seeds, arguments.slowest)
        show(source, found[source.name], methods[1:], sizes)
        print(f"\n{source.name}: {time.perf_counter() - started:.0f} s in all", flush=True)
    if arguments.figure is not None:
        draw_figure(arguments.figure, found, methods, sizes)


if __name__ == "__main__":
    run_study(main)
