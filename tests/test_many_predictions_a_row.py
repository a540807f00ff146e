"""Many labels, tokens and pixels: several predictions a row, and rows that are clusters."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import calibrant as cb
from calibrant.cli.app import app
from calibrant.core.errors import InputError, NotApplicableError, PredictionsError
from calibrant.evaluation.evaluate import evaluate


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.fixture(scope="module")
def labelled():
    """400 rows of three labels: honest, twice too sure, and too high."""
    rng = np.random.default_rng(1)
    honest = rng.normal(scale=1.5, size=(400, 3))
    labels = (rng.random((400, 3)) < sigmoid(honest)).astype(int)
    return honest * [1, 2, 1] + [0, 0, 1], labels


@pytest.fixture(scope="module")
def tokens():
    """30 texts of 20 tokens over 6 classes, overconfident, the ends padded."""
    rng = np.random.default_rng(1)
    honest = rng.normal(scale=1.5, size=(30, 20, 6))
    labels = (honest + rng.gumbel(size=honest.shape)).argmax(axis=-1)
    for row, length in enumerate(rng.integers(5, 21, size=30)):
        labels[row, length:] = -100
    return 2 * honest, labels


def many(labelled, **more):
    return cb.Predictions.from_many_labels(*labelled, kind="logit", **more)


# --- many labels


def test_many_labels_are_binary_predictions_clustered_by_row(labelled):
    rows = many(labelled, label_names=["a", "b", "c"])
    assert (rows.n, rows.form) == (1200, "logit")
    np.testing.assert_array_equal(rows.one_score.reshape(400, 3), labelled[0])
    np.testing.assert_array_equal(rows.clusters, np.repeat(np.arange(400), 3))
    for name, column in zip("abc", range(3), strict=True):
        alone = rows.of_label(name)
        np.testing.assert_array_equal(alone.one_score, labelled[0][:, column])
        np.testing.assert_array_equal(alone.labels, labelled[1][:, column])
        assert alone.clusters is None
        assert alone.positive_name == name


def test_pooled_and_each_label_are_measured(labelled):
    rows = many(labelled, label_names=["honest", "sure", "high"])
    pooled = evaluate(rows, resamples=60)
    assert pooled.clusters == 400
    p, y = sigmoid(labelled[0]).ravel(), labelled[1].ravel()
    by_hand = cb.metrics.expected_calibration_error(p, y, kind="prob")
    assert pooled["ece_positive"].value == pytest.approx(by_hand, abs=1e-9)
    each = cb.evaluate_labels(rows, resamples=60)
    assert list(each.groups) == ["honest", "sure", "high"]
    assert set(each.miscalibrated) == {"sure", "high"}
    for place, name in enumerate(each.groups):
        alone = cb.metrics.expected_calibration_error(
            sigmoid(labelled[0][:, place]), labelled[1][:, place], kind="prob"
        )
        assert each[name]["ece_positive"].value == pytest.approx(alone, abs=1e-9)
        assert each[name]["ece_positive"].floor_95 is not None
    assert "share" in str(each)
    json.dumps(each.as_dict())


def test_each_label_gets_its_own_map_or_all_get_one(labelled, tmp_path: Path):
    rows = many(labelled)
    pooled = cb.posthoc.PlattScaling().fit_predictions(rows)
    own = cb.posthoc.PerLabel("platt").fit_predictions(rows)
    assert own.n_parameters == 6
    losses = []
    for fitted in (pooled, own):
        after = fitted.apply_predictions(rows)
        assert (after.grid.shape, after.form) == ((400, 3), "prob")
        losses.append(evaluate(after, metrics=["log_loss"], resamples=20)["log_loss"].value)
    assert losses[1] < losses[0] - 0.01
    for place, part in enumerate(own.parts().values()):
        alone = cb.posthoc.PlattScaling().fit_predictions(rows.of_label(place))
        np.testing.assert_array_equal(part.weights_, alone.weights_)
    own.save(tmp_path / "c.safetensors")
    again = cb.load(tmp_path / "c.safetensors")
    np.testing.assert_array_equal(
        again.apply_predictions(rows).scores, own.apply_predictions(rows).scores
    )
    with pytest.raises(PredictionsError, match="and these are others"):
        own.apply_predictions(many(labelled, label_names=["a", "b", "c"]))
    with pytest.raises(NotApplicableError, match="apply_predictions"):
        own.predict_proba(rows.logits)
    with pytest.raises(PredictionsError, match="kind='many-labels'"):
        cb.posthoc.PerLabel().fit_predictions(rows.of_label(0))


@pytest.mark.parametrize("extension", ["npz", "safetensors", "csv", "parquet"])
def test_files_of_many_labels_come_back(tmp_path: Path, extension, labelled):
    path = tmp_path / f"many.{extension}"
    probs = cb.Predictions.from_many_labels(sigmoid(labelled[0]), labelled[1])
    for rows in (many(labelled), probs):
        cb.write_predictions(rows, path)
        back = cb.read_predictions(path, kind="many-labels")
        assert back.grid.shape == (400, 3)
        assert back.form == rows.form
        np.testing.assert_array_equal(back.one_score, rows.one_score)
        np.testing.assert_array_equal(back.labels, rows.labels)


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        (np.zeros(4), None, r"must have shape \(N, L\)"),
        (np.full((4, 2), 0.5), np.zeros(4), "one class index a row goes with scores of classes"),
        (np.full((4, 2), 0.5), np.full((4, 2), 3), "labels of binary predictions must be 0 or 1"),
        (np.full((4, 2), 1.5), np.zeros((4, 2)), "name it 'logit'"),
    ],
)
def test_what_are_no_many_labels_is_refused(scores, labels, message):
    with pytest.raises(PredictionsError, match=message):
        cb.Predictions.from_many_labels(scores, labels)


def test_the_command_line_measures_fits_and_applies_many_labels(tmp_path: Path, labelled):
    path, fitted, after = (str(tmp_path / n) for n in ("m.npz", "c.safetensors", "after.npz"))
    cb.write_predictions(many(labelled), path)

    def run(*words: str) -> dict:
        more = [] if words[0] == "fit" or words[0] == "apply" else ["--resamples", "40"]
        outcome = CliRunner().invoke(app, [*words, "--kind", "many-labels", *more, "--json", "-"])
        assert outcome.exit_code == 0, outcome.output
        return json.loads(outcome.stdout)

    found = run("measure", path)
    assert set(found["labels"]["groups"]) == {"label 0", "label 1", "label 2"}
    run("fit", path, "--method", "platt", "--per-label", "--out", fitted)
    run("apply", fitted, path, "--out", after)
    assert np.load(after)["probs"].shape == (400, 3)
    now = run("measure", after)
    name = "log_loss"
    assert now["metrics"][name]["value"] < found["metrics"][name]["value"]
    assert run("fit", path, "--method", "platt", "--out", fitted)["parameters"] == 2


def test_the_command_line_fits_a_calibrator_for_each_label_if_asked_to(tmp_path: Path, labelled):
    rows = many(labelled)
    path, fitted = str(tmp_path / "m.npz"), str(tmp_path / "c.safetensors")
    cb.write_predictions(rows, path)
    words = ["fit", path, "--kind", "many-labels", "--method", "histogram", "--set", "n_bins=4"]
    outcome = CliRunner().invoke(app, [*words, "--per-label", "--out", fitted, "--json", "-"])
    assert outcome.exit_code == 0, outcome.output
    assert set(json.loads(outcome.stdout)["parts"]) == set(rows.label_names)
    own = cb.posthoc.PerLabel.like(cb.make_calibrator("histogram", n_bins=4)).fit_predictions(rows)
    np.testing.assert_array_equal(
        cb.load(fitted).apply_predictions(rows).scores, own.apply_predictions(rows).scores
    )
    refused = CliRunner().invoke(app, [*words, "--sample", "9", "--per-label", "--out", fitted])
    assert "many labels and tokens aren't read in parts" in str(refused.exception)


# --- tokens and pixels


def test_tokens_are_rows_without_those_that_do_not_count(tokens):
    logits, labels = tokens
    rows = cb.Predictions.from_tokens(logits, labels)
    kept = labels != -100
    assert rows.n == kept.sum()
    np.testing.assert_array_equal(rows.scores, logits[kept])
    np.testing.assert_array_equal(rows.labels, labels[kept])
    np.testing.assert_array_equal(rows.clusters, np.nonzero(kept)[0])
    found = evaluate(rows, metrics=["ece", "nll"], resamples=40)
    assert found.clusters == 30
    flat = evaluate(cb.Predictions.from_logits(logits[kept], labels[kept]), metrics=["ece", "nll"])
    for name in ("ece", "nll"):
        assert found[name].value == pytest.approx(flat[name].value, abs=1e-12)


def test_nothing_is_copied_where_every_token_counts():
    logits = np.random.default_rng(0).normal(size=(7, 5, 4)).astype(np.float32)
    labels = np.zeros((7, 5), dtype=int)
    for ignored in (-100, None):
        rows = cb.Predictions.from_tokens(logits, labels, ignore_index=ignored)
        assert np.shares_memory(rows.scores, logits)
    tensor = torch.as_tensor(logits)
    assert cb.Predictions.from_tokens(tensor, labels).scores.data_ptr() == tensor.data_ptr()


def test_pixels_may_have_their_classes_first(tokens):
    logits = np.random.default_rng(0).normal(size=(4, 3, 5, 6))  # N, K, H, W
    labels = np.random.default_rng(1).integers(0, 3, size=(4, 5, 6))
    rows = cb.Predictions.from_tokens(logits, labels, class_axis=1)
    assert (rows.n, rows.n_classes) == (120, 3)
    np.testing.assert_array_equal(rows.scores[7], logits[0, :, 1, 1])
    assert rows.labels[7] == labels[0, 1, 1]


def test_tokens_are_recalibrated_and_put_back(tmp_path: Path, tokens):
    logits, labels = tokens
    path, fitted, after = (str(tmp_path / n) for n in ("t.npz", "c.safetensors", "after.npz"))
    np.savez(path, logits=logits, labels=labels)

    def run(*words: str) -> dict:
        outcome = CliRunner().invoke(app, [*words, "--kind", "tokens", "--json", "-"])
        assert outcome.exit_code == 0, outcome.output
        return json.loads(outcome.stdout)

    found = run("measure", path, "--resamples", "40")
    assert (found["n"], found["clusters"]) == ((labels != -100).sum(), 30)
    run("fit", path, "--method", "temperature", "--out", fitted)
    run("apply", fitted, path, "--out", after)
    written = np.load(after)
    assert written["probs"].shape == logits.shape
    np.testing.assert_array_equal(written["labels"], labels)
    scaled = logits / cb.load(fitted).temperature_
    expected = np.exp(scaled) / np.exp(scaled).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(written["probs"], expected, atol=1e-12)
    assert (
        run("measure", after, "--resamples", "40")["metrics"]["nll"]["value"]
        < (found["metrics"]["nll"]["value"])
    )
    words = ["measure", path, "--kind", "tokens", "--ignore-index", "5"]
    assert "row 14 holds -100" in str(CliRunner().invoke(app, words).exception)


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        (np.zeros((4, 3)), np.zeros(4), "a row a prediction, need no kind of their own"),
        (
            np.zeros((4, 3, 2)),
            np.zeros((4, 2)),
            r"tokens or pixels must have shape \(4, 3\)",
        ),
        (np.zeros((4, 3, 2)), np.full((4, 3), -100), "every label is -100"),
        (np.zeros((4, 3, 2)), np.full((4, 3), 7), "whole numbers from 0 to 1"),
    ],
)
def test_what_are_no_tokens_is_refused(scores, labels, message):
    with pytest.raises(PredictionsError, match=message):
        cb.Predictions.from_tokens(scores, labels)


def test_positions_left_out_cannot_be_written(tmp_path: Path, tokens):
    rows = cb.Predictions.from_tokens(*tokens)
    with pytest.raises(PredictionsError, match="were left out for their label"):
        cb.write_predictions(rows, tmp_path / "x.npz")


# --- weights, clusters and names of what stands in a row


def test_tokens_take_a_weight_a_row_or_a_weight_a_token(tokens):
    logits, labels = tokens
    kept = labels != -100
    rng = np.random.default_rng(5)
    of_row, of_token = rng.uniform(0.5, 2, size=30), rng.uniform(0.5, 2, size=labels.shape)
    for given, expected in (
        (of_row, np.repeat(of_row[:, None], 20, axis=1)[kept]),
        (of_token, of_token[kept]),
    ):
        rows = cb.Predictions.from_tokens(logits, labels, sample_weight=given)
        np.testing.assert_array_equal(rows.weights, expected)
        flat = cb.Predictions.from_logits(
            logits[kept], labels[kept], sample_weight=expected, clusters=np.nonzero(kept)[0]
        )
        for name in ("ece", "nll"):
            whole, parts = (evaluate(each, metrics=[name], resamples=20) for each in (rows, flat))
            assert whole[name].ends == parts[name].ends
        fits = [cb.TemperatureScaling().fit_predictions(each).temperature_ for each in (rows, flat)]
        assert fits[0] == fits[1]
    with pytest.raises(PredictionsError, match=r"weights must have shape \(30,\).*\(30, 20\)"):
        cb.Predictions.from_tokens(logits, labels, sample_weight=of_row[:7])


def test_many_labels_take_a_weight_a_label_so_that_unknown_ones_count_nothing(labelled):
    scores, labels = labelled
    known = np.random.default_rng(0).random(labels.shape) < 0.7
    rows = many((scores, np.where(known, labels, 0)), sample_weight=known.astype(float))
    found = evaluate(rows, metrics=["ece_positive"], resamples=20)
    by_hand = cb.metrics.expected_calibration_error(
        sigmoid(scores[known]), labels[known], kind="prob"
    )
    assert found.n == known.sum()
    assert found["ece_positive"].value == pytest.approx(by_hand, abs=1e-9)


def test_rows_of_several_predictions_may_belong_to_clusters(tokens, labelled):
    logits, labels = tokens
    documents = np.array([f"document {row // 3}" for row in range(30)])
    rows = cb.Predictions.from_tokens(logits, labels, clusters=documents)
    assert evaluate(rows, metrics=["ece"], resamples=20).clusters == 10
    patients = many(labelled, clusters=np.arange(400) // 4)
    np.testing.assert_array_equal(patients.clusters, np.repeat(np.arange(100), 12))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_what_counts_is_copied_once_wherever_its_classes_lie(kind, monkeypatch):
    rng = np.random.default_rng(0)
    first = rng.normal(size=(11, 3, 4, 5)).astype(np.float32)  # N, K, H, W
    labels = rng.integers(0, 3, size=(11, 4, 5))
    labels[rng.random(labels.shape) < 0.3] = -100
    last = np.moveaxis(first, 1, -1)
    kept = labels != -100
    monkeypatch.setattr("calibrant.predictions.grids.COPIED_AT_ONCE", 150)  # two rows at a time
    for scores, axis in ((first, 1), (np.ascontiguousarray(last), -1), (last, -1)):
        given = torch.as_tensor(scores) if kind == "torch" else scores
        rows = cb.Predictions.from_tokens(given, labels, class_axis=axis)
        np.testing.assert_array_equal(np.asarray(rows.scores), last[kept])
        every = cb.Predictions.from_tokens(given, None, class_axis=axis)
        np.testing.assert_array_equal(np.asarray(every.scores), last.reshape(-1, 3))


def test_no_more_is_held_than_the_scores_and_what_counts_of_them():
    import tracemalloc

    logits = np.zeros((200, 32, 100), dtype=np.float32)  # 2.6 MB
    labels = np.zeros((200, 32), dtype=int)
    labels[:, ::2] = -100
    tracemalloc.start()
    rows = cb.Predictions.from_tokens(logits.transpose(0, 2, 1), labels, class_axis=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows.scores.nbytes == logits.nbytes / 2
    assert peak < 2 * rows.scores.nbytes  # a copy of all and one of what counts would be three


# --- several sets as one


def test_sets_of_one_form_are_put_together(tokens, labelled):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(30, 4)), rng.integers(0, 4, size=30)
    names, features = ["a", "b", "c", "d"], rng.normal(size=(30, 2))
    whole = cb.Predictions.from_logits(
        logits,
        labels,
        features,
        sample_weight=rng.uniform(1, 2, 30),
        clusters=np.arange(30) // 3,
        class_names=names,
    )
    parts = [whole.take(slice(0, 12)), whole.take(slice(12, 30))]
    again = cb.Predictions.concatenate(parts, source="both")
    for name in ("scores", "labels", "features", "weights"):
        np.testing.assert_array_equal(getattr(again, name), getattr(whole, name))
    assert (again.class_names, again.source) == (tuple(names), "both")
    assert len(set(zip(again.clusters, whole.clusters, strict=True))) == 10
    told = cb.Predictions.concatenate(parts, clusters=np.zeros(30, dtype=int))
    assert set(told.clusters) == {0}

    for rows in (
        cb.Predictions.from_binary(labelled[0][:, 0], labelled[1][:, 0], kind="logit"),
        cb.Predictions.from_confidence([0.9, 0.8, 0.7], [0, 1, 2], [0, 1, 1]),
    ):
        parts = [rows.take(slice(0, 2)), rows.take(slice(2, None))]
        again = cb.Predictions.concatenate(parts)
        np.testing.assert_array_equal(again.scores, rows.scores)
        np.testing.assert_array_equal(again.labels, rows.labels)

    grid = many(labelled, label_names=["x", "y", "z"])
    halves = [
        many((labelled[0][part], labelled[1][part]), label_names=["x", "y", "z"])
        for part in (slice(0, 150), slice(150, 400))
    ]
    again = cb.Predictions.concatenate(halves)
    assert repr(again) == repr(grid).replace("many labels'", "many labels and 1 other'")
    for name in ("scores", "labels", "clusters", "label_index"):
        np.testing.assert_array_equal(getattr(again, name), getattr(grid, name))
    assert again.of_label("y").n == 400

    texts = [cb.Predictions.from_tokens(tokens[0][p], tokens[1][p]) for p in ([0, 1], [2, 3, 4])]
    assert cb.Predictions.concatenate(texts).grid.shape == (5, 20)
    longer = cb.Predictions.from_tokens(np.zeros((2, 25, 6)), np.zeros((2, 25), int))
    mixed = cb.Predictions.concatenate([texts[0], longer])
    assert (mixed.n, mixed.grid, len(set(mixed.clusters))) == (texts[0].n + 50, None, 4)


def test_names_of_predicted_labels_are_numbered_anew():
    a = cb.Predictions.from_confidence([0.9, 0.8], ["dog", "cat"], ["dog", "dog"])
    b = cb.Predictions.from_confidence([0.7], ["bird"], ["cat"])
    both = cb.Predictions.concatenate([a, b])
    names = np.array(both.class_names)
    assert names[both.predicted].tolist() == ["dog", "cat", "bird"]
    assert names[both.labels].tolist() == ["dog", "dog", "cat"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (cb.Predictions.from_probs([[1.0, 0.0]], [0], source="b"), "b: holds probabilities"),
        (cb.Predictions.from_logits([[1.0, 0.0, 0.0]], [0], source="b"), "b: has 3 classes, but a"),
        (cb.Predictions.from_binary([0.5], [0], source="b"), "probabilities of one positive class"),
        (cb.Predictions.from_confidence([0.5], [0], [0], "b"), "confidences of predicted labels"),
        (cb.Predictions.from_many_labels([[0.5]], [[0]]), "probabilities of many labels"),
        (
            cb.Predictions.from_logits([[1.0, 0.0]], None, source="b"),
            "no labels, but a has",
        ),
        (
            cb.Predictions.from_logits([[1.0, 0.0]], [0], sample_weight=[2]),
            "has weights, but a",
        ),
        (cb.Predictions.from_logits([[1.0, 0.0]], [0], clusters=[2]), "has clusters, but a has no"),
        (
            cb.Predictions.from_logits([[1.0, 0.0]], [0], class_names=["x", "y"]),
            "names its classes 'x', 'y', but a has no names",
        ),
        (cb.Predictions.from_logits(torch.zeros(1, 2), [0]), "arrays of torch, but a holds those"),
    ],
)
def test_mixed_sets_are_refused_by_name(other, message):
    first = cb.Predictions.from_logits([[2.0, 0.0]], [0], source="a")
    with pytest.raises(PredictionsError, match=message):
        cb.Predictions.concatenate([first, other])
    with pytest.raises(PredictionsError, match="no predictions to concatenate"):
        cb.Predictions.concatenate([])


# --- names and weights in files

FORMATS = ["npz", "safetensors", "csv", "parquet", "npy"]


def place(folder: Path, extension: str, rows: cb.Predictions) -> Path:
    scores = {"logit": "logits", "prob": "probs"}.get(rows.form, rows.form)
    return folder / (f"{scores}.npy" if extension == "npy" else f"rows.{extension}")


@pytest.mark.parametrize("extension", FORMATS)
def test_names_and_weights_of_many_labels_come_back(tmp_path: Path, extension, labelled):
    names = ["cat", "a/b", "9 lives"]
    of_row, of_label = np.linspace(0, 2, 400), np.linspace(0, 2, 1200).reshape(400, 3)
    for number, weights in enumerate((of_row, of_label, None)):
        rows = many(labelled, label_names=names, sample_weight=weights)
        folder = tmp_path / str(number)
        folder.mkdir()
        path = place(folder, extension, rows)
        cb.write_predictions(rows, path)
        back = cb.read_predictions(path, kind="many-labels")
        assert back.label_names == tuple(names)
        np.testing.assert_array_equal(back.one_score, rows.one_score)
        np.testing.assert_array_equal(back.labels, rows.labels)
        if weights is None:
            assert back.weights is None
        else:
            np.testing.assert_array_equal(back.weights, rows.weights)


@pytest.mark.parametrize("extension", ["npz", "safetensors", "npy"])
def test_names_and_weights_of_tokens_come_back(tmp_path: Path, extension, tokens):
    logits, labels = tokens
    rows = cb.Predictions.from_tokens(
        logits,
        labels,
        keep_all=True,
        sample_weight=np.linspace(1, 2, 600).reshape(30, 20),
        class_names=list("abcdef"),
    )
    path = place(tmp_path, extension, rows)
    cb.write_predictions(rows, path)
    back = cb.read_predictions(path, kind="tokens", labelled=False)
    assert back.class_names == tuple("abcdef")
    np.testing.assert_array_equal(back.weights, rows.weights)
    counted = cb.read_predictions(path, kind="tokens")
    np.testing.assert_array_equal(counted.weights, rows.weights[labels.reshape(-1) != -100])


def test_columns_of_labels_may_stand_in_another_order_than_those_of_scores(tmp_path: Path):
    path = tmp_path / "tags.csv"
    path.write_text("label_dog,label_cat,prob_cat,prob_dog\n1,0,0.25,0.75\n0,1,0.5,0.125\n")
    rows = cb.read_predictions(path, kind="many-labels")
    assert rows.label_names == ("cat", "dog")
    np.testing.assert_array_equal(rows.labels.reshape(2, 2), [[0, 1], [1, 0]])
    path.write_text("label_dog,prob_cat,prob_dog\n1,0.25,0.75\n")
    with pytest.raises(PredictionsError, match="'cat' has a column among the scores, but none amo"):
        cb.read_predictions(path, kind="many-labels")
    path.write_text("label_cat,prob_cat\n1,0.25\n0,0.5\n")
    assert cb.read_predictions(path, kind="many-labels").label_names == ("cat",)


def test_a_column_names_the_clusters_of_rows_that_hold_several(tmp_path: Path, tokens):
    logits, labels = tokens[0], tokens[1].copy()
    labels[4] = -100  # a row of nothing but padding
    documents = np.array([f"d{row // 3}" for row in range(30)])
    np.savez(tmp_path / "t.npz", logits=logits, labels=labels, document=documents)
    rows = cb.read_predictions(tmp_path / "t.npz", kind="tokens", cluster="document")
    expected = np.nonzero(labels != -100)[0] // 3
    assert len(set(zip(rows.clusters, expected, strict=True))) == 10
    words = ["measure", str(tmp_path / "t.npz"), "--kind", "tokens", "--cluster", "document"]
    outcome = CliRunner().invoke(app, [*words, "--resamples", "20", "--json", "-"])
    assert json.loads(outcome.stdout)["clusters"] == 10


def test_tokens_are_no_columns_of_a_table(tmp_path: Path, tokens):
    rows = cb.Predictions.from_tokens(*tokens, keep_all=True)
    with pytest.raises(InputError, match="is no column of a table"):
        cb.write_predictions(rows, tmp_path / "x.csv")
    np.savez(tmp_path / "t.npz", logits=tokens[0], labels=tokens[1])
    with pytest.raises(PredictionsError, match=r"Predictions\.concatenate"):
        cb.Shards(tmp_path / "t.npz", kind="tokens")


def test_shards_may_name_their_classes(tmp_path: Path):
    rows = cb.load_sample("test").take(slice(400))
    named = cb.Predictions.from_logits(rows.logits, rows.labels, class_names=list("abcdefghij"))
    for part in range(2):
        some = named.take(slice(200 * part, 200 * part + 200))
        cb.write_predictions(some, tmp_path / f"{part}.npz")
    batches = list(cb.Shards(tmp_path).batches())
    assert [batch.class_names for batch in batches] == [tuple("abcdefghij")] * 2
    found = cb.evaluate(cb.Shards(tmp_path), engine=cb.Engine(workers=1), resamples=20)
    assert found["accuracy"].value == pytest.approx(evaluate(named, resamples=2)["accuracy"].value)


# --- print, page and JSON


def test_page_and_json_show_each_label_by_name(tmp_path: Path, labelled):
    path, page = tmp_path / "m.npz", tmp_path / "m.html"
    cb.write_predictions(many(labelled, label_names=["honest", "sure", "high"]), path)
    words = ["measure", str(path), "--kind", "many-labels", "--resamples", "40"]
    outcome = CliRunner().invoke(app, [*words, "--report", str(page), "--json", "-"])
    found = json.loads(outcome.stdout)
    assert found["label_names"] == list(found["labels"]["groups"]) == ["honest", "sure", "high"]
    text = page.read_text(encoding="utf-8")
    shown = json.loads(
        text.partition('<script id="data" type="application/json">')[2].partition("<")[0]
    )
    rows = {row["name"]: row for row in shown["groups"]["rows"]}
    assert shown["groups"]["of_positive"]
    assert (shown["labels"], shown["n_classes"]) == (3, None)
    share = labelled[1].mean(axis=0)
    for place, row in enumerate(rows.values()):
        assert row["accuracy"] == pytest.approx(share[place])
    assert "1200 predictions of 3 labels, pooled" in str(evaluate(many(labelled), resamples=20))


def test_clusters_of_rows_stay_clusters_of_each_label(labelled):
    patients = np.arange(400) // 4
    rows = many(labelled, clusters=patients)
    each = cb.evaluate_labels(rows, resamples=20)
    assert [group.clusters for group in each.groups.values()] == [100] * 3
    np.testing.assert_array_equal(rows.of_label(1).clusters, patients)
    alone = cb.evaluate_labels(many(labelled), resamples=20)
    assert [group.clusters for group in alone.groups.values()] == [None] * 3


def test_the_page_of_one_label_names_the_rows_that_were_given(labelled, tmp_path: Path):
    rows = many(labelled)
    each = cb.evaluate_labels(rows, resamples=20)
    ids = np.array([f"patient-{i}" for i in range(400)])
    for found in (each.groups[rows.label_names[1]], evaluate(rows.of_label(1), resamples=20)):
        np.testing.assert_array_equal(found.sample.row_numbers, np.arange(400))
        found.to_html(tmp_path / "label.html", ids=ids)
        assert '"patient-399"' in (tmp_path / "label.html").read_text()
    some = rows.take(np.arange(30, 900))
    np.testing.assert_array_equal(some.of_label(2).row_numbers, np.arange(10, 300))


def test_pixels_with_their_classes_first_are_said_to_be_so(tmp_path: Path):
    logits = np.random.default_rng(0).normal(size=(4, 3, 5, 6))  # N, K, H, W
    labels = np.random.default_rng(1).integers(0, 3, size=(4, 5, 6))
    np.savez(tmp_path / "p.npz", logits=logits, labels=labels)
    with pytest.raises(PredictionsError, match="along axis 1, say class_axis=1"):
        cb.read_predictions(tmp_path / "p.npz", kind="tokens")
    rows = cb.read_predictions(tmp_path / "p.npz", kind="tokens", class_axis=1)
    np.testing.assert_array_equal(rows.scores, np.moveaxis(logits, 1, -1).reshape(-1, 3))
    with pytest.raises(PredictionsError, match="are tokens"):
        cb.read_predictions(tmp_path / "p.npz", kind="many-labels")
    words = ["measure", str(tmp_path / "p.npz"), "--kind", "tokens", "--class-axis", "1"]
    outcome = CliRunner().invoke(app, [*words, "--resamples", "20", "--json", "-"])
    assert json.loads(outcome.stdout)["n"] == 120
