"""The pictures of the reference: what a method does to confidences, and how a metric answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scripts.documentation.running import are_new

import calibrant as cb
from calibrant.metrics import registry as metrics
from calibrant.posthoc.registry import METHODS

# Rows that pictures and tables of values are made of.
FIT_ROWS, TEST_ROWS = 2_000, 1_000
# What logits are divided by in the pictures of metrics; 1 is the classifier itself.
TEMPERATURES = (0.5, 0.7, 0.85, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.3, 2.6, 3.0)
# Words of a metric's convention, and the bins of a reliability diagram that are the same.
BINS = {"equal-width": "uniform", "equal-mass": "quantile"}


def rows_to_draw() -> tuple[cb.Predictions, cb.Predictions]:
    """Return rows of the sample to fit to, and rows to measure on."""
    val, test = cb.load_sample("validation"), cb.load_sample("test")
    return val.take(np.arange(FIT_ROWS)), test.take(np.arange(TEST_ROWS))


def cats(rows: cb.Predictions) -> cb.Predictions:
    """Return rows as predictions of one event: that the image shows a cat."""
    probs = np.asarray(rows.probs)[:, 3]
    return cb.Predictions.from_binary(probs, rows.labels == 3, kind="prob")


def draw_methods(folder: Path) -> None:
    """Draw what each method does to the confidence of the sample's rows, unless that is there."""
    files = {name: folder / f"method-{name}.png" for name in METHODS}
    if are_new(files.values(), Path(__file__)):
        return
    val, test = rows_to_draw()
    rows = np.arange(test.n)
    before = np.asarray(test.probs)
    predicted = before.argmax(axis=1)
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in files.items():
        fitted = cb.make_calibrator(name).fit_predictions(val)
        after = np.asarray(fitted.apply_predictions(test).probs)
        figure, (ax,) = _figure(1)
        ax.plot([0, 1], [0, 1], color="0.7", linewidth=1)
        ax.plot(before[rows, predicted], after[rows, predicted], ".", markersize=3, alpha=0.5)
        ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence before", ylabel="probability after")
        figure.savefig(file, dpi=80)


def draw_metrics(folder: Path) -> None:
    """Draw each metric over the temperature, and its bins, unless that is there."""
    known = metrics.all_metrics()
    files = {name: folder / f"metric-{name}.png" for name in known}
    if are_new(files.values(), Path(__file__)):
        return
    _, test = rows_to_draw()
    scaled = [
        cb.Predictions.from_logits(np.asarray(test.logits) / t, test.labels) for t in TEMPERATURES
    ]
    measured = [
        [cb.evaluate(rows, metrics="all", resamples=100) for rows in (each, cats(each))]
        for each in scaled
    ]
    one = TEMPERATURES.index(1.0)
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in files.items():
        metric = known[name]
        found = [both[metric.of_positive][name] for both in measured]
        bins = [kind for words, kind in BINS.items() if words in metric.definition]
        bins = [] if metric.of_positive or metric.needs_classes else bins
        figure, axes = _figure(1 + len(bins))
        ax, scale = axes[0], 100 if metric.percent else 1
        low, high = ([scale * getattr(each, end) for each in found] for end in ("low", "high"))
        ax.fill_between(TEMPERATURES, low, high, alpha=0.2, linewidth=0)
        ax.plot(TEMPERATURES, [scale * each.value for each in found], label=metric.title)
        floors = [each.floor_95 for each in found if each.floor_95 is not None]
        if len(floors) == len(found):
            ax.plot(TEMPERATURES, [scale * each for each in floors], "k:", label="floor 95 %")
        if metric.ideal is not None:
            ax.axhline(metric.ideal, color="k", linestyle=":", label="ideal")
        ax.legend(frameon=False)
        ax.set(xlabel="temperature", ylabel=f"{metric.title}{', %' * metric.percent}")
        for kind, beside in zip(bins, axes[1:], strict=True):
            measured[one][0].plot(ax=beside, strategy=kind)
        figure.savefig(file, dpi=80)


def _figure(panels: int) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * panels, 3.6), layout="constrained")
    return figure, figure.subplots(1, panels, squeeze=False)[0]
