"""ECE and NLL of every method, relative to temperature scaling, over sizes of the fit set.

    python scripts/study_calibration_size.py --data NAME=FILE [--data NAME=FIT_FILE:TEST_FILE]
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

import argparse
import time
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student
from study_data import Draw, Source

from calibrant.core.errors import NotApplicableError
from calibrant.core.text import format_table
from calibrant.metrics.binned import ece_of_curves
from calibrant.metrics.top_label import TopLabel
from calibrant.posthoc.auto import AutoCalibrator
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.fitting.cross_validation import CrossValidation, Trial
from calibrant.posthoc.registry import METHODS, make_calibrator
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import score_rows

BASE = "temperature"
# What stands out in the figure; the others are thin and grey.
COLOURS = {"auto": "black", "smart": "tab:orange", "top-rest": "tab:blue", "svs": "tab:green"}
COLOURS |= {"svs-top-rest": "tab:purple", "probit-top-rest": "tab:red"}


class Found(NamedTuple):
    """One fit of one method."""

    ece: float
    nll: float
    seconds: float
    calibrator: Calibrator


# (method, size) to its fits by seed
Results = dict[tuple[str, int], list[Found]]


def fit_chain(name: str, logits: NDArray[np.float64], labels: NDArray[np.int64]) -> Calibrator:
    """Return a chain of methods as auto fits it once it has all the weight."""
    contest = CrossValidation(Predictions.from_logits(logits, labels), 5, 1, "nll")
    done: list[str] = []
    steps: dict[str, Calibrator] = {}
    before: Trial | None = None
    for step in name.split("+"):
        done.append(step)
        scores = logits if before is None else before.scores[0]
        steps["+".join(done)] = make_calibrator(step).fit(scores, labels)
        before = contest.trial(make_calibrator(step), before, keep_scores=True)
    chain = AutoCalibrator()
    chain.restore_parts(steps)
    weights = np.eye(len(steps))[-1]
    report = steps[name].fit_report_
    return chain.restore({"weights_": weights}, int(logits.shape[1]), report)


def measure(method: str, draw: Draw) -> Found | None:
    """Return how one method does on one draw, or None if it refuses the rows."""
    logits, test = np.asarray(draw.fit.logits, dtype=np.float64), draw.test
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if "+" in method:
                calibrator = fit_chain(method, logits, draw.fit.labels)
            else:
                calibrator = make_calibrator(method).fit(logits, draw.fit.labels)
        except NotApplicableError:
            return None
    seconds = time.process_time() - started
    probs = calibrator.predict_proba(test.logits)
    rows = score_rows(Predictions.from_probs(probs, test.labels))
    ece = ece_of_curves(TopLabel.sort(rows.confidence, rows.correct).curves())[0]
    return Found(100 * float(ece), float(rows.nll.mean()), seconds, calibrator)


def run(
    source: Source, methods: list[str], sizes: list[int], seeds: int, slowest: float
) -> Results:
    """Fit and measure everything."""
    results: Results = defaultdict(list)
    slow: dict[str, float] = {}
    for size in sizes:
        for seed in range(source.draws(size, seeds)):
            draw = source.draw(size, seed)
            for method in methods:
                if slow.get(method, 0.0) > slowest:
                    continue
                found = measure(method, draw)
                if found is not None:
                    results[method, size].append(found)
        for method in methods:
            times = [found.seconds for found in results[method, size]]
            slow[method] = max(slow.get(method, 0.0), float(np.mean(times)) if times else 0.0)
    return results


def relative(results: Results, method: str, size: int, metric: str) -> tuple[float, float]:
    """Return the mean difference to temperature scaling and half its 95 % interval."""
    pairs = zip(results[method, size], results[BASE, size], strict=False)
    gaps = np.array([getattr(a, metric) - getattr(b, metric) for a, b in pairs])
    if len(gaps) < 2:
        return (float(gaps.mean()) if len(gaps) else np.nan), np.nan
    reach = float(student.ppf(0.975, len(gaps) - 1) * gaps.std(ddof=1) / np.sqrt(len(gaps)))
    return float(gaps.mean()), reach


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


def draw_figure(
    path: Path, found: dict[str, Results], methods: list[str], sizes: list[int]
) -> None:
    """Draw a panel for each source and metric."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        2, len(found), figsize=(4.6 * len(found), 6.2), sharex=True, squeeze=False
    )
    handles: dict[str, Any] = {}
    for column, (name, results) in enumerate(found.items()):
        for row, metric in enumerate(("ece", "nll")):
            axis = axes[row][column]
            low: list[float] = [0.0]
            for method in sorted(methods, key=lambda m: m in COLOURS):
                if method == BASE:
                    continue
                points = [relative(results, method, size, metric) for size in sizes]
                value, reach = (np.array(part) for part in zip(*points, strict=True))
                loud = method in COLOURS
                style = {"color": COLOURS.get(method, "0.75"), "lw": 1.8 if loud else 0.8}
                (line,) = axis.plot(sizes, value, **style, zorder=3 if loud else 1)
                handles[method if loud else "others"] = line
                if method == "auto":  # a band for each would hide the lines
                    band = np.nan_to_num(reach)
                    axis.fill_between(
                        sizes, value - band, value + band, color="black", alpha=0.12, lw=0
                    )
                low.append(float(np.nanmin(value)))
            axis.axhline(0, color="tab:red", lw=1)
            reach_of_axis = abs(min(low))
            axis.set_ylim(-1.25 * reach_of_axis, 0.8 * reach_of_axis)
            axis.set_xscale("log")
            axis.set_xticks(sizes, [str(size) for size in sizes], rotation=45)
            axis.minorticks_off()
            axis.set_title(f"{name}: {metric.upper()}" + (" in %" if metric == "ece" else ""))
            if column == 0:
                axis.set_ylabel(f"minus {BASE} scaling")
            if row == 1:
                axis.set_xlabel("rows fitted to")
    order = [*(m for m in COLOURS if m in handles), *(["others"] if "others" in handles else [])]
    figure.legend([handles[m] for m in order], order, ncols=3, loc="lower center")
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    figure.savefig(path, dpi=110)
    print(f"\nwrote {path}")


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", action="append", required=True)
    parser.add_argument("--sizes", default="50,100,200,500,1000,2000,5000")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--methods", default="all")
    parser.add_argument("--slowest", type=float, default=10.0)
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.sizes.split(",")]
    methods = arguments.methods.split(",")
    if arguments.methods == "all":
        methods = [name for name, kind in METHODS.items() if not kind.needs]
    methods = [BASE, *(method for method in methods if method != BASE)]
    found: dict[str, Results] = {}
    for text in arguments.data:
        source, started = Source.parse(text), time.perf_counter()
        found[source.name] = run(source, methods, sizes, arguments.seeds, arguments.slowest)
        show(source, found[source.name], methods[1:], sizes)
        print(f"\n{source.name}: {time.perf_counter() - started:.0f} s in all", flush=True)
    if arguments.figure is not None:
        draw_figure(arguments.figure, found, methods, sizes)


if __name__ == "__main__":
    main()
