"""Static figures: the numbers of the page, the user's style, and files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

import calibrant as cb
from calibrant.core.errors import InputError
from calibrant.posthoc.temperature.scaling import margin_temperature
from calibrant.report import figures, save_figures, series


@pytest.fixture(scope="module")
def test_set(labelled_logits: Callable[..., Any]) -> cb.Predictions:
    return cb.Predictions.from_logits(*labelled_logits(1200, 4, seed=3), source="test set")


@pytest.fixture(scope="module")
def comparison(test_set: cb.Predictions, labelled_logits: Callable[..., Any]) -> cb.Comparison:
    fit = cb.Predictions.from_logits(*labelled_logits(800, 4, seed=4))
    return cb.compare(["none", "temperature", "smart"], fit=fit, test=test_set, resamples=20)


@pytest.fixture
def ax() -> Any:
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


@pytest.fixture(autouse=True)
def untouched_style() -> Any:
    before = dict(mpl.rcParams)
    yield
    assert dict(mpl.rcParams) == before
    plt.close("all")


def offsets(ax: Axes) -> np.ndarray:
    """Return the positions of the points that `scatter` drew."""
    found = [c.get_offsets() for c in ax.collections if len(c.get_offsets()) > 1]
    return np.concatenate([np.asarray(each) for each in found])


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_reliability_diagram_draws_the_points_of_the_page(
    comparison: cb.Comparison, ax: Axes, strategy: Any
) -> None:
    evaluation = comparison["none"].evaluation
    assert figures.reliability_diagram(evaluation, ax, strategy=strategy, label="none") is ax
    points = series.binned_reliability(evaluation.top, strategy=strategy)
    np.testing.assert_allclose(offsets(ax), np.stack([points.confidence, points.accuracy], axis=1))
    assert ax.get_legend_handles_labels()[1] == ["none"]


def test_smooth_diagram_draws_one_band_a_piece(comparison: cb.Comparison, ax: Axes) -> None:
    evaluation = comparison["none"].evaluation
    figures.reliability_diagram(evaluation, ax, strategy="smooth", label="smooth")
    curve = series.smoothed_reliability(evaluation.top)
    drawn = np.concatenate([line.get_xydata() for line in ax.lines[1:]])
    np.testing.assert_allclose(drawn, np.stack([curve.confidence, curve.accuracy], axis=1))
    assert ax.get_legend_handles_labels()[1] == ["smooth"]
    with pytest.raises(InputError, match="strategy"):
        figures.reliability_diagram(evaluation, ax, strategy="bins")  # type: ignore[arg-type]


def test_histogram_bars_hold_all_rows(comparison: cb.Comparison, ax: Axes) -> None:
    evaluation = comparison["smart"].evaluation
    figures.confidence_histogram(evaluation, ax, n_bins=10)
    heights = [bar.get_height() for bar in ax.patches]
    assert sum(heights) == evaluation.n
    assert sum(heights[:10]) == evaluation.top.correct.sum()


def test_risk_coverage_ends_at_the_error_of_all_rows(comparison: cb.Comparison, ax: Axes) -> None:
    evaluation = comparison["none"].evaluation
    figures.risk_coverage(evaluation, ax)
    last = np.asarray(ax.lines[0].get_xydata())[-1]
    np.testing.assert_allclose(last, [1, 1 - evaluation["accuracy"].value])


def test_margin_groups_share_their_axes(
    comparison: cb.Comparison, test_set: cb.Predictions
) -> None:
    before, after = comparison["none"].evaluation, comparison["smart"].evaluation
    axes = figures.margin_groups(before, groups=3, hollow=True)
    assert len(axes) == 3
    figures.margin_groups(after, axes, groups=3)
    margin = test_set.margins
    assert margin is not None
    both = [series.margin_groups(e.scores, margin, 3)[0].points for e in (before, after)]
    expected = np.concatenate([np.stack([p.confidence, p.accuracy], axis=1) for p in both])
    np.testing.assert_allclose(offsets(axes[0]), expected)
    for ax in axes:
        assert ax.get_xlim() == ax.get_ylim()
    with pytest.raises(InputError, match="axes"):
        figures.margin_groups(after, axes[:2], groups=3)


def test_margin_temperature_draws_the_curve(
    comparison: cb.Comparison, test_set: cb.Predictions, ax: Axes
) -> None:
    smart = comparison["smart"].calibrator
    assert isinstance(smart, cb.SMART)
    figures.margin_temperature(smart, test_set, ax)
    margin = test_set.margins
    assert margin is not None
    curve = margin_temperature(smart, test_set.logits, margin)
    drawn = np.asarray(ax.lines[0].get_xydata())
    np.testing.assert_allclose(drawn, np.stack([curve.margin, curve.temperature], axis=1))


def test_without_axes_a_figure_is_made(comparison: cb.Comparison) -> None:
    ax = figures.reliability_diagram(comparison["none"].evaluation)
    assert ax.figure.number in plt.get_fignums()  # type: ignore[union-attr]


def test_top_label_rows_have_no_margin(tmp_path: Path) -> None:
    rows = cb.Predictions.from_confidence(np.full(40, 0.7), np.zeros(40, int), np.arange(40) % 2)
    evaluation = cb.evaluate(rows, resamples=5)
    with pytest.raises(InputError, match="margin"):
        figures.margin_groups(evaluation)
    written = save_figures(tmp_path, evaluation, formats=["svg"])
    assert {p.stem for p in written} == {"reliability", "confidence", "risk-coverage"}


def test_save_figures_writes_every_format(comparison: cb.Comparison, tmp_path: Path) -> None:
    written = save_figures(tmp_path / "new", comparison, dpi=50)
    names = {"reliability", "confidence", "risk-coverage", "margin-groups", "margin-temperature"}
    assert {p.name for p in written} == {f"{n}.{e}" for n in names for e in ("pdf", "svg", "png")}
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == sorted(p.name for p in written)
    for path in written:
        start = {".pdf": b"%PDF", ".svg": b"<?xml", ".png": b"\x89PNG"}[path.suffix]
        assert path.read_bytes().startswith(start)
    assert plt.get_fignums() == []


def test_matplotlib_is_imported_only_to_draw() -> None:
    code = (
        "import sys, calibrant.report.figures, calibrant.report.document, calibrant.report.engine\n"
        "assert not {'matplotlib', 'jinja2', 'plotly', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_rows_of_weight_0_are_in_no_figure(
    labelled_logits: Callable[..., Any], tmp_path: Path
) -> None:
    logits, labels = labelled_logits(300, 4, seed=5)
    weights = np.arange(300) % 3 != 0
    weighted = cb.Predictions.from_logits(logits, labels, sample_weight=weights.astype(float))
    left = cb.Predictions.from_logits(logits[weights], labels[weights])
    drawn = []
    for rows in (weighted, left):
        found = cb.evaluate(rows, metrics=["ece"], resamples=5)
        groups = figures.margin_groups(found)
        drawn.append([ax.collections[1].get_offsets() for ax in groups])
        scaled = cb.TemperatureScaling().fit_predictions(rows)
        drawn[-1].append(figures.margin_temperature(scaled, rows).lines[0].get_xydata())
        files = save_figures(tmp_path, found, formats=["png"], dpi=20)
        assert "margin-groups.png" in [file.name for file in files]
    for one, other in zip(*drawn, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    plt.close("all")
