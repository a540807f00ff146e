"""Predictions of which only the confidence in one label is known: fitted, applied, compared."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import calibrant as cb
from calibrant.cli.app import app
from calibrant.core.errors import PredictionsError

MAPS = ["none", "temperature", "platt", "affine", "quadratic", "beta", "isotonic", "histogram"]
MAPS += ["bbq", "spline", "scaling-binning", "venn-abers", "auto"]


@pytest.fixture(scope="module")
def rows():
    """1 500 confidences, some below one half, whose log odds go twice too far; 20 classes."""
    rng = np.random.default_rng(0)
    confidence = rng.beta(2, 0.5, 1500)
    predicted = rng.integers(0, 20, 1500)
    odds = np.log(confidence) - np.log1p(-confidence)
    right = rng.random(1500) < 1 / (1 + np.exp(-odds / 2))
    labels = np.where(right, predicted, (predicted + 1) % 20)
    return cb.Predictions.from_confidence(confidence, predicted, labels)


@pytest.mark.parametrize("method", MAPS)
def test_confidences_are_recalibrated_and_labels_kept(method, rows, tmp_path: Path):
    fit, test = rows.split(0.6)
    fitted = cb.make_calibrator(method).fit_predictions(fit)
    after = fitted.apply_predictions(test)
    assert after.kind == "toplabel"
    assert fitted.keeps_prediction
    np.testing.assert_array_equal(after.predicted, test.predicted)
    np.testing.assert_array_equal(after.labels, test.labels)
    both = (test, after)
    before, now = (cb.evaluate(r, metrics=["ece"], resamples=50)["ece"].value for r in both)
    assert now == pytest.approx(before) if method == "none" else now < 0.75 * before
    fitted.save(tmp_path / "c.safetensors")
    again = cb.load(tmp_path / "c.safetensors").apply_predictions(test)
    np.testing.assert_array_equal(again.scores, after.scores)


def test_maps_are_those_of_the_event_that_the_label_is_right(rows):
    calibration = pytest.importorskip("sklearn.calibration")
    isotonic = pytest.importorskip("sklearn.isotonic")
    c, right = rows.scores, (rows.predicted == rows.labels).astype(int)
    odds = np.log(c) - np.log1p(-c)
    theirs = calibration._SigmoidCalibration().fit(odds, right).predict(odds)
    ours = cb.posthoc.PlattScaling().fit_predictions(rows).apply_predictions(rows).scores
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    theirs = isotonic.IsotonicRegression(out_of_bounds="clip").fit(c, right).predict(c)
    plain = cb.posthoc.IsotonicRegression(prior_strength=0).fit_predictions(rows)
    np.testing.assert_allclose(plain.apply_predictions(rows).scores, theirs, atol=1e-12)
    # The temperature of the log odds is where the slope of the log loss is zero.
    beta = 1 / cb.TemperatureScaling().fit_predictions(rows).temperature_
    slope = np.mean((1 / (1 + np.exp(-beta * odds)) - right) * odds)
    assert abs(slope) < 1e-5


def test_what_needs_all_classes_says_so(rows):
    for method in ("svs", "vector", "ets", "smart", "irm", "top-rest", "matrix"):
        with pytest.raises(PredictionsError, match="needs a score for every class"):
            cb.make_calibrator(method).fit_predictions(rows)
    found = cb.compare(["none", "platt", "svs"], fit=rows.split(0.5)[0], test=rows.split(0.5)[1])
    assert "score for every class" in found.skipped["svs"]
    assert found.best == "platt"
    assert found["platt"].keeps_accuracy


def test_a_map_of_one_form_is_not_applied_to_the_other(rows):
    top = cb.posthoc.PlattScaling().fit_predictions(rows)
    whole = cb.Predictions.from_probs([[0.2, 0.8], [0.6, 0.4]], [1, 0])
    with pytest.raises(PredictionsError, match="fitted to the confidence of the predicted label"):
        top.apply_predictions(whole)
    with pytest.raises(PredictionsError, match="fitted to a score for every class"):
        cb.posthoc.Uncalibrated().fit_predictions(whole).apply_predictions(rows)


def test_weights_count_rows_of_the_top_label_too(rows):
    some = rows.take(slice(200))
    weights = np.random.default_rng(0).integers(1, 4, 200)
    weighted = cb.Predictions.from_confidence(
        some.scores, some.predicted, some.labels, sample_weight=weights
    )
    fits = [
        cb.posthoc.PlattScaling().fit_predictions(r).weights_
        for r in (weighted, weighted.repeated())
    ]
    np.testing.assert_allclose(fits[0], fits[1], atol=1e-7)


def test_the_command_line_does_it_all(rows, tmp_path: Path):
    path, fitted, after = (str(tmp_path / n) for n in ("top.csv", "c.safetensors", "after.csv"))
    cb.write_predictions(rows, path)

    def run(*words: str) -> dict:
        outcome = CliRunner().invoke(app, [*words, "--json", "-"])
        assert outcome.exit_code == 0, outcome.output
        return json.loads(outcome.stdout)

    before = run("measure", path, "--resamples", "50")
    run("fit", path, "--method", "beta", "--out", fitted)
    run("apply", fitted, path, "--out", after)
    now = run("measure", after, "--resamples", "50")
    assert now["kind"] == "toplabel"
    assert now["metrics"]["ece"]["value"] < before["metrics"]["ece"]["value"] / 2
    found = run("compare", path, "--methods", "none,temperature,beta,svs", "--resamples", "50")
    assert found["best"] == "beta"
    assert [skipped["method"] for skipped in found["skipped"]] == ["svs"]
