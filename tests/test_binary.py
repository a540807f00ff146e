"""Binary predictions, one score a row: made, read, written, measured, recalibrated, compared."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import calibrant as cb
from calibrant.cli.app import app
from calibrant.core.errors import InputError, LooksLikeProbabilitiesWarning, PredictionsError
from calibrant.metrics import (
    accuracy,
    adaptive_calibration_error,
    aurc,
    average_calibration_error,
    brier_score,
    calibration_in_the_large,
    calibration_slope_intercept,
    corp_decomposition,
    debiased_expected_calibration_error,
    debiased_rms_calibration_error,
    eaurc,
    ece_sweep,
    expected_calibration_error,
    kde_ece,
    ks_error,
    maximum_calibration_error,
    mmce,
    murphy_decomposition,
    negative_log_likelihood,
    overconfidence_error,
    risk_coverage,
    rms_calibration_error,
    smooth_calibration_error,
    smooth_ece,
    underconfidence_error,
)
from calibrant.metrics.registry import BINARY_METRICS, POSITIVE_METRICS


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.fixture(scope="module")
def drawn():
    """Log odds that are too high and spread too far, and the labels of honest ones."""
    rng = np.random.default_rng(3)
    honest = rng.normal(scale=1.5, size=600)
    labels = (rng.random(600) < sigmoid(honest)).astype(int)
    return 1.6 * honest + 0.7, labels


@pytest.fixture(scope="module")
def rows(drawn):
    return cb.Predictions.from_binary(*drawn, kind="logit")


# --- made of arrays


def test_scores_may_be_a_vector_or_a_column_of_any_library(drawn):
    scores, labels = drawn
    for given in (scores, scores[:, None], scores.tolist(), torch.as_tensor(scores)):
        made = cb.Predictions.from_binary(given, labels, kind="logit")
        np.testing.assert_array_equal(np.asarray(made.one_score), scores)
    made = cb.Predictions.from_binary(torch.as_tensor(sigmoid(scores)), labels)
    assert isinstance(made.scores, torch.Tensor)
    assert made.form == "prob"


def test_nothing_is_lost_next_to_0_and_1():
    odds = np.array([-300.0, -40.0, 40.0, 300.0])
    made = cb.Predictions.from_binary(odds, [0, 0, 1, 1], kind="logit")
    np.testing.assert_array_equal(made.one_score, odds)
    np.testing.assert_array_equal(cb.scale.sample_of(made).scores.nll < 1e-17, True)
    tiny = np.array([0.0, 1e-30, 1e-12, 1 - 1e-12, 1.0])
    made = cb.Predictions.from_binary(tiny, [0, 0, 0, 1, 1])
    np.testing.assert_array_equal(made.one_score, tiny)
    logits = made.logits
    np.testing.assert_allclose((logits[:, 1] - logits[:, 0])[1:3], np.log([1e-30, 1e-12]))
    assert np.isfinite(logits).all()


@pytest.mark.parametrize(
    ("labels", "more"),
    [
        ([1, 0, 1], {}),
        ([True, False, True], {}),
        ([1.0, 0.0, 1.0], {}),
        ([[1], [0], [1]], {}),
        (["spam", "ham", "spam"], {"positive": "spam"}),
        (["spam", "ham", "spam"], {"class_names": ["ham", "spam"]}),
        (["spam", "ham", "spam"], {"class_names": ["spam", "ham"], "positive": "spam"}),
        ([2, 1, 2], {"positive": 2}),
        ([-1, 1, -1], {"positive": -1}),
        ([1, 0, 1], {"class_names": ["ham", "spam"]}),
        ([0, 1, 0], {"class_names": ["spam", "ham"], "positive": "spam"}),
    ],
)
def test_labels_may_be_numbers_truth_values_or_names(labels, more):
    made = cb.Predictions.from_binary([0.9, 0.2, 0.6], labels, **more)
    assert made.labels.tolist() == [1, 0, 1]
    if "spam" in str((labels, more)):
        assert made.class_names == ("ham", "spam")
        assert made.positive_name == "spam"


@pytest.mark.parametrize(
    ("scores", "labels", "more", "message"),
    [
        ([0.5, 1.5], [0, 1], {}, "row 1 holds 1.5; name it 'logit'"),
        ([0.5, np.nan], [0, 1], {"kind": "logit"}, "row 1, column 0 holds nan"),
        ([[0.5, 0.5]], [0], {}, r"one score a row, not \(1, 2\); a column for each of 2 classes"),
        ([], [], {}, r"not \(0,\)"),
        ([0.5, 0.5], [0, 2], {}, "row 1 holds 2; if there are two other labels"),
        ([0.5, 0.5], [0], {}, r"must have shape \(2,\)"),
        ([0.5, 0.5], ["a", "b"], {}, "labels are names .'a', 'b'.; say which"),
        ([0.5, 0.5], ["a", "b"], {"positive": "c"}, "no row is labelled 'c'"),
        ([0.5] * 3, ["a", "b", "c"], {"positive": "c"}, "of two classes, but there are 'a', 'b'"),
        ([0.5, 0.5], ["a", "b"], {"class_names": ["a", "c"]}, "of the classes 'a' and 'c'"),
        ([0.5, 0.5], [0, 1], {"class_names": ["a"]}, "two names"),
        ([0.5, 0.5], [0, 1], {"class_names": ["a", "b"], "positive": "c"}, "'c' is none of"),
    ],
)
def test_whatever_is_no_binary_prediction_is_refused_in_a_sentence(scores, labels, more, message):
    with pytest.raises(PredictionsError, match=message) as refusal:
        cb.Predictions.from_binary(scores, labels, source="here", **more)
    assert str(refusal.value).startswith("here: ")
    assert "\n" not in str(refusal.value)


def test_probabilities_that_are_called_log_odds_are_warned_of():
    with pytest.warns(LooksLikeProbabilitiesWarning, match="name them 'prob'"):
        cb.Predictions.from_binary([0.2, 0.7], [0, 1], kind="logit")
    with pytest.raises(InputError, match="prob, logit"):
        cb.Predictions.from_binary([0.2, 0.7], [0, 1], kind="odds")


def test_two_columns_are_binary_when_the_caller_says_so(rows):
    two = cb.Predictions.from_logits(rows.scores, rows.labels)
    assert not two.binary
    assert two.as_binary().form == "logit"
    with pytest.raises(PredictionsError, match="only binary predictions have a positive class"):
        two.positive_probs  # noqa: B018
    three = cb.Predictions.from_probs([[0.2, 0.3, 0.5]], [0])
    with pytest.raises(PredictionsError, match="and these have 3"):
        three.as_binary()


def test_marks_and_names_go_with_parts_of_the_rows(drawn):
    made = cb.Predictions.from_binary(*drawn, kind="logit", class_names=["no", "yes"])
    for part in (
        made.take(slice(5)),
        made.split(0.5)[0],
        made.as_logits(),
        made.with_clusters(None),
    ):
        assert part.binary
        assert part.class_names == ("no", "yes")


# --- measured


def test_measures_of_the_positive_class_are_those_of_its_probability(rows):
    p, y = rows.positive_probs, rows.labels
    found = cb.evaluate(rows, metrics="all", resamples=20)
    edges = np.clip(np.ceil(15 * p) - 1, 0, 14).astype(int)
    ece = sum(abs((p - y)[edges == b].sum()) for b in range(15)) / len(p)
    order = np.argsort(p)
    ada = sum(abs(part.sum()) for part in np.array_split((p - y)[order], 15)) / len(p)
    expected = {
        "ece_positive": ece,
        "adaece_positive": ada,
        "brier_positive": np.mean((p - y) ** 2),
        "log_loss": -np.mean(y * np.log(p) + (1 - y) * np.log1p(-p)),
    }
    for name, value in expected.items():
        assert found[name].value == pytest.approx(value, abs=1e-9), name
    assert found["log_loss"].value == pytest.approx(found["nll"].value, abs=1e-12)
    assert found["ece_positive"].value != pytest.approx(found["ece"].value, abs=1e-3)


def test_slope_and_intercepts_are_those_of_logistic_regression(rows):
    linear_model = pytest.importorskip("sklearn.linear_model")
    x, y = rows.one_score[:, None], rows.labels
    fit = linear_model.LogisticRegression(C=np.inf, tol=1e-10).fit(x, y)
    found = cb.evaluate(rows, metrics=["slope_positive", "intercept_positive"], resamples=20)
    assert found["slope_positive"].value == pytest.approx(fit.coef_[0, 0], abs=1e-4)
    assert found["intercept_positive"].value == pytest.approx(fit.intercept_[0], abs=1e-4)
    large = cb.evaluate(rows, metrics=["large_positive"], resamples=20)["large_positive"]
    # At its root the mean probability is the share.
    assert sigmoid(rows.one_score + large.value).mean() == pytest.approx(y.mean(), abs=1e-6)
    assert large.low < large.value < large.high


def test_every_measure_has_its_interval_and_floor(rows):
    found = cb.evaluate(rows, resamples=100)
    assert set(POSITIVE_METRICS) < set(found.results)
    for name in POSITIVE_METRICS:
        result = found[name]
        assert result.low < result.value < result.high, name
        assert (result.floor is None) == (name[:3] not in ("ece", "ada", "smc")), name
    honest = cb.Predictions.from_binary(
        np.tile(rows.one_score, 5),
        np.random.default_rng(1).random(5 * rows.n) < np.tile(rows.positive_probs, 5),
        kind="logit",
    )
    for name in ("ece_positive", "adaece_positive", "smce_positive"):
        assert found[name].value > found[name].floor_95
        assert cb.evaluate(honest, metrics=[name], resamples=100)[name].at_floor


def test_the_positive_class_is_spoken_of(rows):
    found = cb.evaluate(rows, resamples=100)
    text = re.sub(r"\s+", " ", str(found))
    assert "log odds of the positive class" in text
    assert f"share of {100 * rows.labels.mean():.1f} %" in text
    numbers = found.as_dict()["positive"]
    assert numbers["share"] == pytest.approx(rows.labels.mean())
    assert numbers["gap_low"] < numbers["gap"] < numbers["gap_high"]
    assert found.as_dict()["kind"] == "logit"


def test_measures_of_the_positive_class_need_binary_predictions(rows):
    two = cb.Predictions.from_logits(rows.scores, rows.labels)
    found = cb.evaluate(two, metrics=["ece", "ece_positive"], resamples=20)
    assert "have to be declared" in found.skipped["ece_positive"]
    assert not set(POSITIVE_METRICS) & set(cb.evaluate(two, metrics="all", resamples=20).results)
    assert found.positive is None
    assert found.as_dict()["positive"] is None
    in_cells = cb.evaluate(
        cb.scale.in_cells(cb.scale.sample_of(two)), metrics=["ece_positive"], resamples=2
    )
    assert "have to be declared" in in_cells.skipped["ece_positive"]


def test_weights_are_repeated_rows_for_the_positive_class_too(drawn):
    scores, labels = (part[:200] for part in drawn)
    weights = np.random.default_rng(0).integers(1, 4, 200)
    weighted = cb.Predictions.from_binary(scores, labels, kind="logit", sample_weight=weights)
    repeated = cb.Predictions.from_binary(
        np.repeat(scores, weights), np.repeat(labels, weights), kind="logit"
    )
    one, other = (
        cb.evaluate(r, metrics="all", resamples=20) for r in (weighted, weighted.repeated())
    )
    for name in POSITIVE_METRICS:
        assert one[name].value == pytest.approx(other[name].value, abs=1e-9), name
    for method in ("platt", "affine", "quadratic", "beta"):
        fits = [cb.make_calibrator(method).fit_predictions(r) for r in (weighted, repeated)]
        np.testing.assert_allclose(fits[0].weights_, fits[1].weights_, atol=1e-7)


def test_calibration_in_the_large_is_the_function_of_that_name(rows):
    value = cb.evaluate(rows, metrics=["large_positive"], resamples=20)["large_positive"].value
    pairs = rows.positive_probs, rows.labels
    assert value == pytest.approx(calibration_in_the_large(*pairs, kind="prob"), abs=1e-9)


# --- one-dimensional arrays mean what the caller says


ONE_DIMENSIONAL = [
    expected_calibration_error, adaptive_calibration_error, smooth_calibration_error,
    smooth_ece, ks_error, kde_ece, mmce, ece_sweep, maximum_calibration_error,
    average_calibration_error, rms_calibration_error, debiased_rms_calibration_error,
    debiased_expected_calibration_error, overconfidence_error, underconfidence_error,
    corp_decomposition, murphy_decomposition, calibration_slope_intercept,
    calibration_in_the_large, risk_coverage, aurc, eaurc, negative_log_likelihood, brier_score,
    accuracy,
]  # fmt: skip


@pytest.mark.parametrize("metric", ONE_DIMENSIONAL, ids=lambda metric: metric.__name__)
def test_a_vector_of_scores_is_never_taken_for_confidences(metric, rows):
    p, y = rows.positive_probs, rows.labels
    for outcomes in (y, y.astype(bool)):
        with pytest.raises(PredictionsError, match=r"kind='confidence'.*kind='prob'.*say which"):
            metric(p, outcomes)
    with pytest.raises(InputError, match="'confidence' or 'prob', not 'odds'"):
        metric(p, y, kind="odds")
    with pytest.raises(PredictionsError, match="needs no kind"):
        metric(np.stack([1 - p, p], axis=1), y, kind="prob")
    metric(p, y, kind="prob")


def test_both_readings_of_a_vector_are_what_they_say(rows):
    p, y = rows.positive_probs, rows.labels
    two = np.stack([1 - p, p], axis=1)
    found = cb.evaluate(rows, metrics=["ece_positive"], resamples=20)["ece_positive"].value
    assert cb.metrics.expected_calibration_error(p, y, kind="prob") == pytest.approx(
        found, abs=1e-9
    )
    top, right = two.max(axis=1), two.argmax(axis=1) == y
    assert cb.metrics.expected_calibration_error(top, right, kind="confidence") == pytest.approx(
        cb.metrics.expected_calibration_error(two, y), abs=1e-9
    )
    # Ranking by confidence asks how sure the prediction is, of either class.
    assert cb.metrics.aurc(p, y, kind="prob") == pytest.approx(cb.metrics.aurc(two, y), abs=1e-12)
    assert cb.metrics.brier_score(p, y, kind="prob") == pytest.approx(
        cb.metrics.brier_score(two, y) / 2
    )
    assert cb.metrics.negative_log_likelihood(p, y, kind="prob") == pytest.approx(
        cb.metrics.negative_log_likelihood(two, y)
    )
    assert cb.metrics.accuracy(p, y, kind="prob") == pytest.approx(cb.metrics.accuracy(two, y))
    for metric in (cb.metrics.brier_score, cb.metrics.accuracy):
        with pytest.raises(PredictionsError, match="there is only the confidence of one"):
            metric(p, y, kind="confidence")


# --- files


@pytest.mark.parametrize("extension", ["npz", "csv", "parquet", "safetensors"])
@pytest.mark.parametrize("kind", ["prob", "logit"])
def test_files_give_back_what_was_written(tmp_path: Path, extension, kind, drawn):
    scores = drawn[0] if kind == "logit" else sigmoid(drawn[0])
    path = tmp_path / f"rows.{extension}"
    cb.write_predictions(cb.Predictions.from_binary(scores, drawn[1], kind=kind), path)
    for asked in ({}, {"are": kind}, {"kind": "binary"}):
        back = cb.read_predictions(path, **asked)
        assert (back.binary, back.form) == (True, kind)
        np.testing.assert_array_equal(back.one_score, scores)
        np.testing.assert_array_equal(back.labels, drawn[1])


@pytest.mark.parametrize("extension", ["npz", "csv", "parquet"])
def test_files_hold_names_of_the_classes(tmp_path: Path, extension, drawn):
    path = tmp_path / f"rows.{extension}"
    names = np.array(["ham", "spam"])[drawn[1]]
    made = cb.Predictions.from_binary(drawn[0], names, kind="logit", positive="spam")
    cb.write_predictions(made, path)
    back = cb.read_predictions(path, positive="spam")
    assert back.class_names == ("ham", "spam")
    np.testing.assert_array_equal(back.labels, drawn[1])
    with pytest.raises(PredictionsError, match="--positive NAME"):
        cb.read_predictions(path)
    with pytest.raises(PredictionsError, match="no row is labelled 'egg'"):
        cb.read_predictions(path, positive="egg")


def test_torch_files_hold_them_too(tmp_path: Path, drawn):
    torch.save(
        {"logit": torch.as_tensor(drawn[0]), "labels": torch.as_tensor(drawn[1])},
        tmp_path / "rows.pt",
    )
    np.testing.assert_array_equal(cb.read_predictions(tmp_path / "rows.pt").one_score, drawn[0])


def test_arrays_of_npy_files_are_named_after_the_form(tmp_path: Path, drawn):
    made = cb.Predictions.from_binary(*drawn, kind="logit")
    cb.write_predictions(made, tmp_path / "val_logit.npy")
    for asked in (None, "binary"):
        back = cb.read_predictions(tmp_path / "val_logit.npy", kind=asked)
        np.testing.assert_array_equal(back.one_score, drawn[0])


def test_two_columns_of_a_file_are_read_as_binary_when_asked_for(tmp_path: Path, drawn):
    probs = np.stack([1 - sigmoid(drawn[0]), sigmoid(drawn[0])], axis=1)
    path = tmp_path / "two.npz"
    np.savez(path, probs=probs, labels=np.array(["a", "b"])[drawn[1]])
    back = cb.read_predictions(path, kind="binary", positive="b")
    np.testing.assert_array_equal(back.labels, drawn[1])
    with pytest.raises(PredictionsError, match="kind='binary'"):
        cb.read_predictions(path, positive="b")
    np.savez(path, probs=probs, labels=drawn[1])
    assert cb.read_predictions(path, kind="binary").binary
    with pytest.raises(PredictionsError, match="the second one, 1, not 0"):
        cb.read_predictions(path, kind="binary", positive="0")


def test_a_bad_cell_of_a_table_is_named(tmp_path: Path):
    path = tmp_path / "bad.csv"
    path.write_text("label,prob\n1,0.5\n0,1.5\n")
    with pytest.raises(PredictionsError, match=r"line 3, column 'prob': expected a number from 0 "):
        cb.read_predictions(path)
    path.write_text("label,prob\n1,0.5\n2,0.5\n")
    with pytest.raises(PredictionsError, match=r"line 3, column 'label': expected 0 or 1"):
        cb.read_predictions(path)


# --- what isn't of the form that it was said to be


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cb.Predictions.from_probs([0.2, 0.7], [0, 1]), "is binary: Predictions.from_bi"),
        (lambda: cb.Predictions.from_logits([[2.0], [1.0]], [0, 1]), "the key 'logit'"),
        (lambda: cb.evaluate(np.array([0.2, 0.7]), [0, 1]), "is binary: Predictions.from_binary"),
        (lambda: cb.TemperatureScaling().fit([0.2, 3.0], [0, 1]), "is binary: Predictions.from_b"),
        (lambda: cb.Predictions.from_logits(np.zeros((2, 3, 4)), [0, 1]), "--kind tokens"),
        (lambda: cb.Predictions.from_logits(np.eye(3), np.eye(3)), "--kind many-labels"),
        (lambda: cb.Predictions.from_many_labels(np.eye(3), [0, 1, 2]), "scores of classes"),
        (lambda: cb.Predictions.from_binary(np.eye(2), [0, 1]), r"from_probs.*many-labels"),
    ],
)
def test_the_form_that_arrays_look_like_is_named(make, message):
    with pytest.raises(PredictionsError, match=message) as refusal:
        make()
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("held", "asked", "message"),
    [
        ({"prob": [0.2, 0.7]}, "probs", "holds 'prob', which are='prob' .--are prob. reads"),
        ({"logits": np.eye(2)}, "logit", "are='logits' .--are logits. reads"),
        ({"probs": [0.2, 0.7]}, None, "in files the key 'prob'"),
        ({"logits": np.zeros((2, 3, 4))}, None, "--kind tokens"),
        ({"probs": np.eye(2), "labels": np.eye(2)}, None, "--kind many-labels"),
        ({"prob": [2.0, -0.7]}, None, "name it 'logit'"),
        ({"probs": np.full((2, 3), 0.9)}, None, "several labels may be true .*--kind many-labels"),
    ],
)
def test_the_form_that_a_file_looks_like_is_named(tmp_path: Path, held, asked, message):
    path = tmp_path / "x.npz"
    np.savez(path, **({"labels": [0, 1]} | held))
    with pytest.raises(PredictionsError, match=message) as refusal:
        cb.read_predictions(path, are=asked)
    assert str(refusal.value).startswith(str(path))


def test_probabilities_under_a_key_of_logits_are_warned_of(tmp_path: Path):
    probs = np.array([[0.2, 0.8], [0.6, 0.4]])
    for key, scores in (("logits", probs), ("logit", probs[:, 1])):
        np.savez(tmp_path / "x.npz", labels=[1, 0], **{key: scores})
        with pytest.warns(LooksLikeProbabilitiesWarning):
            cb.read_predictions(tmp_path / "x.npz")
    with pytest.warns(LooksLikeProbabilitiesWarning):
        cb.Predictions.from_many_labels(probs, [[1, 0], [0, 1]], kind="logit")
    with pytest.warns(LooksLikeProbabilitiesWarning):
        cb.Predictions.from_tokens(probs[None], [[1, 0]])


# --- the command line, end to end


def test_the_command_line_does_it_all(tmp_path: Path, drawn):
    names = np.array(["ham", "spam"])[drawn[1]]
    made = cb.Predictions.from_binary(drawn[0], names, kind="logit", positive="spam")
    val, test, report = (str(tmp_path / n) for n in ("val.csv", "test.csv", "page.html"))
    for part, path in zip(made.split(300), (val, test), strict=True):
        cb.write_predictions(part, path)

    def run(*words: str) -> dict:
        outcome = CliRunner().invoke(app, [*words, "--positive", "spam", "--json", "-"])
        assert outcome.exit_code == 0, outcome.output
        return json.loads(outcome.stdout)

    found = run("measure", test, "--resamples", "50", "--report", report)
    assert found["kind"] == "logit"
    assert found["metrics"]["ece_positive"]["floor_95"] > 0
    assert "the positive class, spam" in Path(report).read_text()
    fitted, after = str(tmp_path / "platt.safetensors"), str(tmp_path / "after.csv")
    assert run("fit", val, "--method", "platt", "--out", fitted)["parameters"] == 2
    run("apply", fitted, test, "--out", after)
    columns = ["confidence", "label", "predicted", "prob"]
    assert sorted(Path(after).read_text().split()[0].split(",")) == columns
    calibrated = run("measure", after, "--resamples", "50")
    assert calibrated["kind"] == "prob"
    before, now = (f["metrics"]["log_loss"]["value"] for f in (found, calibrated))
    assert now < before
    compared = run(
        "compare", "--fit", val, "--test", test, "--methods", "none,platt,beta,isotonic",
        "--resamples", "50", "--report", report,
    )  # fmt: skip
    assert "ece_positive" in compared["methods"][0]["metrics"]
    assert compared["best"] != "none"


def test_comparisons_refuse_binary_predictions_beside_others(rows):
    two = cb.Predictions.from_logits(rows.scores, rows.labels)
    with pytest.raises(InputError, match="read both with kind='binary'"):
        cb.compare(["none"], fit=rows, test=two)


def test_auto_asks_what_one_score_can_answer(drawn):
    bent = drawn[0] + 0.3 * drawn[0] ** 2
    rows = cb.Predictions.from_binary(bent, drawn[1], kind="logit")
    auto = cb.AutoCalibrator().fit_predictions(rows)
    candidates = {"temperature", "platt", "beta", "quadratic", "venn-abers"}
    assert set(auto.averaged_) <= candidates
    losses = {
        method: cb.make_calibrator(method).fit_predictions(rows).fit_report_.value
        for method in ("platt", "quadratic")
    }
    assert losses["quadratic"] < losses["platt"]
    assert "temperature" not in auto.averaged_


def test_what_was_fitted_comes_back_from_its_file(tmp_path: Path, rows):
    for method in ("isotonic", "histogram", "auto", "beta"):
        fitted = cb.make_calibrator(method).fit_predictions(rows)
        assert fitted.form_ == "binary"
        fitted.save(tmp_path / "c.safetensors")
        again = cb.load(tmp_path / "c.safetensors")
        assert again.form_ == "binary"
        np.testing.assert_array_equal(
            again.apply_predictions(rows).scores, fitted.apply_predictions(rows).scores
        )
        as_tensors = fitted.predict_proba(torch.as_tensor(rows.logits))
        np.testing.assert_allclose(as_tensors, fitted.predict_proba(rows.logits), atol=1e-12)


def test_a_few_metrics_are_printed_unless_others_are_asked_for(rows):
    found = cb.evaluate(rows, resamples=20)
    assert {*POSITIVE_METRICS} < {*found.results}
    assert len(found.as_table().rows) == len(BINARY_METRICS) < len(found.results)
    assert f"{len(found.results) - len(BINARY_METRICS)} more are measured" in str(found)
    asked = cb.evaluate(rows, metrics=["smce", "ece_positive"], resamples=20)
    assert len(asked.as_table().rows) == 2
    assert "more are measured" not in str(asked)
