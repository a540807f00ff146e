"""Scores that are no probabilities: nothing takes them for one before a calibrator is fitted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import calibrant as cb
from calibrant.cli.app import app
from calibrant.core.errors import InputError, NotIdentifiedWarning, PredictionsError
from calibrant.metrics.registry import all_metrics

MAPS = ["platt", "affine", "quadratic", "beta", "isotonic", "histogram", "bbq", "spline"]
MAPS += ["scaling-binning", "venn-abers", "auto"]


def drawn(n: int, seed: int = 0, **more) -> cb.Predictions:
    """Return n mean log-probabilities around -700, of which higher ones are likelier right."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=n) * 50 - 700
    right = rng.random(n) < 1 / (1 + np.exp(-(scores + 690) / 30))
    return cb.Predictions.from_scores(scores, right, **more)


FIT, TEST = drawn(1200), drawn(1200, seed=1)


@pytest.mark.parametrize("method", MAPS)
def test_what_a_method_makes_of_scores_is_honest_and_the_same_from_a_file(method, tmp_path: Path):
    fitted = cb.make_calibrator(method).fit_predictions(FIT)
    after = fitted.apply_predictions(TEST)
    assert (after.kind, fitted.kind_) == ("toplabel", "score")
    np.testing.assert_array_equal(after.labels, TEST.labels)
    gap = cb.evaluate(after, metrics=["ece"], resamples=100).gap
    assert gap.low < 0 < gap.high
    fitted.save(tmp_path / "c.safetensors")
    again = cb.load(tmp_path / "c.safetensors")
    np.testing.assert_array_equal(again.apply_predictions(TEST).scores, after.scores)
    np.testing.assert_array_equal(again.predict_proba(TEST.scores)[:, 1], after.scores)
    assert again.placing_ == fitted.placing_


def test_maps_are_those_of_the_raw_scores():
    calibration = pytest.importorskip("sklearn.calibration")
    isotonic = pytest.importorskip("sklearn.isotonic")
    s, right = FIT.scores, FIT.labels
    theirs = calibration._SigmoidCalibration().fit((s + 700) / 50, right).predict((s + 700) / 50)
    ours = cb.posthoc.PlattScaling().fit_predictions(FIT).apply_predictions(FIT).scores
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    theirs = isotonic.IsotonicRegression(out_of_bounds="clip").fit(s, right).predict(s)
    plain = cb.posthoc.IsotonicRegression(prior_strength=0).fit_predictions(FIT)
    np.testing.assert_allclose(plain.apply_predictions(FIT).scores, theirs, atol=1e-12)


@pytest.mark.parametrize("method", ["platt", "beta", "isotonic", "histogram", "spline"])
@settings(max_examples=10, deadline=None)
@given(shift=st.floats(-1e6, 1e6), power=st.integers(-20, 20))
def test_another_unit_and_origin_of_the_scores_changes_nothing(method, shift, power):
    few = FIT.take(slice(300))
    scale = 2.0**power
    moved = cb.Predictions.from_scores(few.scores * scale + shift * scale, few.labels)
    fits = [cb.make_calibrator(method).fit_predictions(rows) for rows in (few, moved)]
    one, other = (c.apply_predictions(r).scores for c, r in zip(fits, (few, moved), strict=True))
    # A row may fall on the other side of a bin's edge.
    assert np.mean(np.abs(one - other) < 1e-6) > 0.98


def test_scores_of_any_size_are_told_apart():
    scores = np.r_[-1e30, np.linspace(0, 1, 400), 1e30]
    rows = cb.Predictions.from_scores(scores, np.r_[0, np.arange(400) > 200, 1])
    found = cb.posthoc.PlattScaling().fit_predictions(rows).predict_proba(scores)
    assert np.isfinite(found).all()
    constant = cb.Predictions.from_scores(np.full(50, 3.0), np.arange(50) % 5 == 0)
    after = cb.posthoc.IsotonicRegression().fit_predictions(constant).apply_predictions(constant)
    assert np.ptp(after.scores) == 0
    assert after.scores[0] == pytest.approx(0.2, abs=0.05)


def test_only_metrics_of_ranks_are_measured_and_others_say_what_to_do():
    found = cb.evaluate(FIT, metrics="all", resamples=20)
    assert set(found.results) == {"accuracy", "aurc", "eaurc"}
    assert all("fit a calibrator to it first" in reason for reason in found.skipped.values())
    assert set(found.results) | set(found.skipped) >= {
        name for name, metric in all_metrics().items() if not metric.of_positive
    }
    assert "aren't probabilities" in found.headline()
    assert found.as_dict()["state"] == "no probabilities"
    order = np.argsort(-FIT.scores)
    errors = np.cumsum(1 - FIT.labels[order])
    assert found["aurc"].value == pytest.approx(np.mean(errors / np.arange(1, FIT.n + 1)))
    # Ranks alone count.
    ranked = cb.Predictions.from_scores(np.argsort(np.argsort(FIT.scores)) ** 3, FIT.labels)
    again = cb.evaluate(ranked, resamples=20)
    assert [r.ends for r in again.results.values()] == [r.ends for r in found.results.values()]


@pytest.mark.parametrize(
    "ask",
    [
        lambda rows: rows.probs,
        lambda rows: rows.logits,
        lambda rows: rows.margins,
        lambda rows: rows.as_correctness(),
        lambda rows: cb.evaluate(rows, resamples=10).mean_confidence,
        lambda rows: cb.evaluate(rows, resamples=10).gap,
        lambda rows: cb.evaluate(rows, resamples=10).plot(),
        lambda rows: cb.evaluate(rows, resamples=10).to_html("page.html"),
        lambda rows: cb.evaluate_by(rows, "predicted", resamples=10),
        lambda rows: cb.rows_needed(rows, 0.05),
        lambda rows: cb.compare(["platt"], fit=rows, test=TEST),
    ],
)
def test_nothing_calls_a_score_a_probability(ask):
    with pytest.raises(InputError, match="needs a probability, and a score isn't one"):
        ask(FIT)


@pytest.mark.parametrize("method", ["none", "temperature", "smart", "svs", "top-rest"])
def test_a_method_that_takes_zero_for_an_even_chance_refuses_scores(method):
    with pytest.raises(PredictionsError, match="scores that are no probabilities; platt"):
        cb.make_calibrator(method).fit_predictions(FIT)


def test_auto_leaves_out_what_needs_a_probability():
    auto = cb.AutoCalibrator("temperature, beta", folds=2, repeats=1).fit_predictions(FIT)
    assert set(auto.steps_) <= {"platt", "beta"}
    assert any("left out temperature" in note for note in auto.fit_report_.notes)
    few = cb.AutoCalibrator().fit_predictions(FIT.take(slice(100)))
    assert list(few.steps_) == ["platt"]


def test_a_calibrator_of_scores_takes_nothing_else_and_others_take_no_scores():
    fitted = cb.posthoc.PlattScaling().fit(FIT.scores, FIT.labels, kind="score")
    confidences = cb.Predictions.from_confidence([0.5, 0.9], correct=[0, 1])
    with pytest.raises(PredictionsError, match="fitted to scores that are no probabilities"):
        fitted.apply_predictions(confidences)
    with pytest.raises(InputError, match="fitted to score"):
        fitted.predict_proba([0.5, 0.9], kind="probs")
    with pytest.raises(PredictionsError, match=r"shape \(N,\)"):
        fitted.predict_proba([[0.5, 0.9]])
    other = cb.posthoc.PlattScaling().fit_predictions(confidences)
    with pytest.raises(PredictionsError, match="holds scores that are no probabilities"):
        other.apply_predictions(FIT)
    with pytest.raises(InputError, match="fitted to probs"):
        other.predict_proba([0.5], kind="score")


def test_scores_that_fall_where_rows_are_right_are_warned_of():
    with pytest.warns(NotIdentifiedWarning, match="give its negative"):
        cb.posthoc.PlattScaling().fit_predictions(
            cb.Predictions.from_scores(-FIT.scores, FIT.labels)
        )


def test_weights_of_scores_count_rows():
    some = FIT.take(slice(200))
    weights = np.random.default_rng(0).integers(0, 4, 200)
    rows = cb.Predictions.from_scores(some.scores, some.labels, sample_weight=weights)
    for method in ("platt", "beta", "isotonic"):
        one, other = (
            cb.make_calibrator(method).fit_predictions(r).apply_predictions(some).scores
            for r in (rows, rows.repeated())
        )
        np.testing.assert_allclose(one, other, atol=1e-7)


def test_unusable_scores_are_refused():
    for scores, correct, message in (
        ([1.0, np.nan], [0, 1], "finite"),
        ([1.0, 1e300], [0, 1], "beyond"),
        ([[1.0], [2.0]], [0, 1], r"shape \(N,\)"),
        ([1.0, 2.0], [0, 2], "positive"),
        (["a", "b"], [0, 1], "real numbers"),
    ):
        with pytest.raises(PredictionsError, match=message):
            cb.Predictions.from_scores(scores, correct)
    with pytest.raises(PredictionsError, match="give the predicted labels too"):
        cb.Predictions.from_scores([1.0, 2.0], labels=[0, 1])


@pytest.mark.parametrize("change", [{"placing": "[0.0, 0.0]"}, {"placing": "[NaN, 1]"}, {}])
def test_a_damaged_place_of_scores_is_refused(change, tmp_path: Path):
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    path = tmp_path / "c.safetensors"
    cb.posthoc.PlattScaling().fit_predictions(FIT).save(path)
    with safe_open(path, "numpy") as file:
        header = file.metadata()
    del header["placing"]
    save_file(load_file(path), path, header | change)
    with pytest.raises(cb.CalibrantError, match="damaged"):
        cb.load(path)


def test_exports_take_the_scores_as_they_are(tmp_path: Path):
    runtime, torch = pytest.importorskip("onnxruntime"), pytest.importorskip("torch")
    for method in ("platt", "isotonic"):
        fitted = cb.make_calibrator(method).fit_predictions(FIT)
        expected = fitted.predict_proba(TEST.scores)
        fitted.to_onnx(tmp_path / "c.onnx", dtype="float64")
        session = runtime.InferenceSession(tmp_path / "c.onnx")
        assert [(i.name, i.shape) for i in session.get_inputs()] == [("score", ["rows"])]
        probs, label = session.run(["probs", "label"], {"score": TEST.scores})
        np.testing.assert_allclose(probs, expected, atol=1e-12)
        np.testing.assert_array_equal(label, expected.argmax(1))
        module = fitted.to_torch()
        np.testing.assert_allclose(module(torch.tensor(TEST.scores)), expected, atol=1e-12)
        with pytest.raises(PredictionsError, match=r"scores of shape \(N,\)"):
            module(torch.zeros(3, 2))


@pytest.mark.parametrize("extension", [".csv", ".npz", ".parquet", ".jsonl"])
def test_the_command_line_takes_scores_of_one_file_and_of_many(extension, tmp_path: Path):
    whole = str(tmp_path / f"rows{extension}")
    cb.write_predictions(FIT, whole)
    parts = [str(tmp_path / f"part-{i}{extension}") for i in range(2)]
    for i, part in enumerate(parts):
        cb.write_predictions(FIT.take(slice(600 * i, 600 * i + 600)), part)
    fitted, out = str(tmp_path / "c.safetensors"), tmp_path / "out"

    def run(*words: str) -> dict:
        outcome = CliRunner().invoke(app, [*words, "--json", "-"])
        assert outcome.exit_code == 0, outcome.output
        return json.loads(outcome.stdout)

    more = ("--are", "score")
    one = run("measure", whole, "--resamples", "20", *more)
    several = run("measure", *parts, "--resamples", "20", "--workers", "1", *more)
    assert one["kind"] == several["kind"] == "score"
    assert several["metrics"]["aurc"]["value"] == pytest.approx(
        one["metrics"]["aurc"]["value"], abs=1e-3
    )
    run("fit", *parts, "--method", "platt", "--out", fitted, "--workers", "1", *more)
    run("apply", fitted, *parts, "--out", str(out), "--workers", "1", *more)
    run("apply", fitted, whole, "--out", str(out / f"whole{extension}"), *more)
    after = cb.read_predictions(out / f"whole{extension}")
    assert after.kind == "toplabel"
    halves = [cb.read_predictions(out / Path(part).name) for part in parts]
    np.testing.assert_allclose(cb.Predictions.concatenate(halves).scores, after.scores)


def test_a_place_beyond_all_numbers_is_one_sentence(tmp_path: Path):
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    path = tmp_path / "c.safetensors"
    cb.posthoc.PlattScaling().fit_predictions(FIT).save(path)
    with safe_open(path, "numpy") as file:
        header = file.metadata()
    save_file(load_file(path), path, header | {"placing": f"[{10**400}, 1]"})
    with pytest.raises(cb.CalibrantError, match="damaged"):
        cb.load(path)
