"""The same predictions under other names, in other units and forms: read right, or refused."""

from __future__ import annotations

import gzip
import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import calibrant as cb
from calibrant.cli.app import app
from calibrant.core.errors import InputError, PredictionsError, RoundedProbabilitiesWarning
from calibrant.files import ReadOptions, read_predictions
from calibrant.files.reading import PredictionFile
from calibrant.scale.sampling import sample

ROWS = 40
RNG = np.random.default_rng(3)
LOGITS = RNG.normal(scale=2, size=(ROWS, 4))
PROBS = np.asarray(cb.predictions.softmax(LOGITS))
LABELS = RNG.integers(4, size=ROWS)
NAMES = ["ant", "bee", "cat", "dog"]


def table(path: Path, **columns: object) -> Path:
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def by_class(
    stem: str, scores: np.ndarray, names: list[str] | None = None
) -> dict[str, np.ndarray]:
    names = names or [str(k) for k in range(scores.shape[1])]
    return {f"{stem}{name}": scores[:, k] for k, name in enumerate(names)}


def same(found: cb.Predictions, scores: np.ndarray = PROBS, atol: float = 1e-12) -> None:
    np.testing.assert_allclose(np.asarray(found.probs), scores, atol=atol)
    np.testing.assert_array_equal(found.labels, LABELS)


# --- names


@pytest.mark.parametrize("extension", ["csv", "jsonl"])
def test_a_pattern_finds_numbered_columns_in_the_order_of_their_numbers(
    extension: str, tmp_path: Path
) -> None:
    path = tmp_path / f"a.{extension}"
    scores = np.tile(PROBS / 3, 3)
    columns = {"truth": LABELS, **by_class("score_", scores)}
    columns = dict(sorted(columns.items()))  # score_10 before score_2
    if extension == "csv":
        table(path, **columns)
    else:
        rows = zip(*(np.asarray(column).tolist() for column in columns.values()), strict=True)
        path.write_text(
            "".join(json.dumps(dict(zip(columns, r, strict=True))) + "\n" for r in rows)
        )
    same(read_predictions(path, scores="score_*", are="probs", labels="truth"), scores)
    listed = ",".join(f"score_{k}" for k in range(12))
    same(read_predictions(path, scores=listed, are="probs", labels="truth"), scores)
    with pytest.raises(PredictionsError, match=r"say what 'score_\*' holds: --are log"):
        read_predictions(path, scores="score_*", labels="truth")
    with pytest.raises(PredictionsError, match=r"no column matches the pattern 'out_"):
        read_predictions(path, scores="out_*", are="probs", labels="truth")


def test_a_column_of_any_name_is_the_probability_of_the_positive_class(tmp_path: Path) -> None:
    events = (LABELS == 2) * 1
    path = table(tmp_path / "a.csv", bad=events, p_default=PROBS[:, 2])
    found = read_predictions(path, scores="p_default", are="prob", labels="bad")
    np.testing.assert_array_equal(np.asarray(found.positive_probs), PROBS[:, 2])
    assert found.form == "prob"
    odds = table(tmp_path / "b.csv", bad=events, margin=LOGITS[:, 2])
    assert read_predictions(odds, scores="margin", are="logit", labels="bad").form == "logit"


def test_confidences_of_any_name_go_with_predictions_or_what_is_correct(
    tmp_path: Path,
) -> None:
    top, best = PROBS.max(axis=1), PROBS.argmax(axis=1)
    plain = cb.Predictions.from_confidence(top, best, LABELS)
    path = table(tmp_path / "a.csv", said=best, sure=top, truth=LABELS)
    told = ReadOptions("sure", "confidence", labels="truth", predicted="said")
    found = read_predictions(path, told)
    np.testing.assert_array_equal(found.predicted, plain.predicted)
    right = best == LABELS
    for words in (right * 1, right, np.where(right, "true", "false")):
        path = table(tmp_path / "b.csv", confidence=top, correct=words)
        found = read_predictions(path)
        assert found.form == "toplabel"
        np.testing.assert_array_equal(found.predicted == found.labels, right)
        now, then = (cb.evaluate(rows, resamples=20)["ece"].value for rows in (found, plain))
        assert now == then
    path = table(tmp_path / "c.csv", sure=top, hit=np.where(right, "yes", "maybe"))
    with pytest.raises(PredictionsError, match=r"'hit' must be 0 or 1, .* or yes or no, but"):
        read_predictions(path, scores="sure", are="confidence", correct="hit")
    with pytest.raises(PredictionsError, match=r"there is no 'hits' to hold the outcomes"):
        read_predictions(path, scores="sure", are="confidence", correct="hits")


def test_many_labels_and_tokens_stand_under_any_key(tmp_path: Path) -> None:
    truth = RNG.integers(2, size=(ROWS, 4))
    np.savez(tmp_path / "a.npz", out=PROBS, y=truth)
    found = read_predictions(
        tmp_path / "a.npz", scores="out", are="probs", labels="y", kind="many-labels"
    )
    np.testing.assert_array_equal(np.asarray(found.one_score).reshape(ROWS, 4), PROBS)
    np.savez(tmp_path / "b.npz", out=LOGITS.reshape(8, 5, 4), y=LABELS.reshape(8, 5))
    found = read_predictions(
        tmp_path / "b.npz", scores="out", are="logits", labels="y", kind="tokens"
    )
    np.testing.assert_array_equal(np.asarray(found.scores), LOGITS)


def test_a_trainers_predictions_without_its_labels_name_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"predictions": [0.5, 0.5], "labels": 1}\n')
    assert read_predictions(path, scores="predictions", are="probs").n == 1
    path.write_text('{"predictions": [0.5, 0.5]}\n')
    with pytest.raises(PredictionsError, match=r"there is no 'labels' or"):
        read_predictions(path, scores="predictions", are="probs")


def test_a_format_may_be_said(tmp_path: Path) -> None:
    path = table(tmp_path / "a.txt", label=LABELS, **by_class("prob_", PROBS))
    with pytest.raises(PredictionsError, match=r"the extension '.txt' is unknown"):
        read_predictions(path)
    same(read_predictions(path, format="csv"))
    with pytest.raises(InputError, match=r"format must be one of npz, .*, hdf5, not 'txt'"):
        read_predictions(path, format="txt")


# --- units


def test_percent_and_logarithms_are_undone(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", label=LABELS, **by_class("prob_", 100 * PROBS))
    with pytest.raises(PredictionsError, match=r"sum to 100; these look like percent: .*--are p"):
        read_predictions(path)
    same(read_predictions(path, are="percent"))
    path = table(tmp_path / "b.csv", label=LABELS, **by_class("lp_", np.log(PROBS)))
    same(read_predictions(path, scores="lp_*", are="log-probs"))
    path = table(tmp_path / "c.csv", label=LABELS, **by_class("lp_", LOGITS))
    with pytest.raises(PredictionsError, match=r"sum to .*, not 1; if these are logits, say --"):
        read_predictions(path, scores="lp_*", are="log-probs")
    right = (PROBS.argmax(axis=1) == LABELS) * 1
    path = table(tmp_path / "d.csv", confidence=100 * PROBS.max(axis=1), correct=right)
    found = read_predictions(path, are="percent")
    np.testing.assert_allclose(np.asarray(found.scores), PROBS.max(axis=1))


@pytest.mark.parametrize(("decimals", "unit"), [(2, 1), (3, 1), (4, 1), (1, 100), (2, 100)])
def test_rounded_probabilities_are_divided_by_their_sums_with_a_word(
    decimals: int, unit: int, tmp_path: Path
) -> None:
    rounded = np.round(PROBS * unit, decimals)
    path = table(tmp_path / "a.csv", label=LABELS, **by_class("prob_", rounded))
    options = ReadOptions(are="probs" if unit == 1 else "percent")
    with pytest.warns(RoundedProbabilitiesWarning, match=r"each row was divided by its sum"):
        found = read_predictions(path, options)
    same(found, rounded / rounded.sum(axis=1, keepdims=True), 2e-4)
    same(found, PROBS, 4 / unit * 10.0**-decimals)
    for step in (1, 7):
        spans = [slice(a, min(a + step, ROWS)) for a in range(0, ROWS, step)]
        with PredictionFile(str(path), options) as file:
            batches = file.batches(spans)
            with pytest.warns(RoundedProbabilitiesWarning):
                parts = [rows for rows, _ in batches]
        np.testing.assert_array_equal(cb.Predictions.concatenate(parts).scores, found.scores)


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_rounded_probabilities_in_memory_are_divided_by_their_sums_with_a_word(
    kind: Callable[[np.ndarray], Any],
) -> None:
    for rounded in (np.round(PROBS, 3), PROBS.astype(np.float16).astype(np.float64)):
        with pytest.warns(RoundedProbabilitiesWarning, match=r"each row was divided by its sum"):
            found = cb.Predictions.from_probs(kind(rounded), LABELS)
        np.testing.assert_allclose(np.asarray(found.scores), PROBS, atol=3e-3)
        assert type(found.scores) is type(kind(rounded))
    # One row that is no rounding's.
    with pytest.raises(PredictionsError, match=r"row 3 sums to 2"):
        cb.Predictions.from_probs(np.where(np.arange(ROWS)[:, None] == 3, 0.5, rounded), LABELS)


def test_a_rounded_row_whose_sum_is_off_by_all_that_is_allowed_is_read(tmp_path: Path) -> None:
    # Summed in one order it is off by a hair less than 1e-4, in another by a hair more.
    probs = cb.predictions.softmax(np.random.default_rng(0).normal(0, 3, (ROWS, 10)))
    rounded = np.round(np.asarray(probs), 4)
    rounded[17] = [0.0056, 0.0006, 0.0002, 0.0, 0.0004, 0.6909, 0.3021, 0.0001, 0.0, 0.0]
    assert (np.abs(rounded.sum(axis=1) - 1) > 1.5e-4).any()
    path = table(tmp_path / "a.csv", label=LABELS, **by_class("prob_", rounded))
    with pytest.warns(RoundedProbabilitiesWarning):
        found = read_predictions(path)
    np.testing.assert_allclose(found.scores, rounded, atol=4e-4)


def test_rows_that_rounding_can_not_explain_are_refused_without_bad_advice(tmp_path: Path) -> None:
    odd = np.round(PROBS, 2)
    odd[7, 0] += 0.2
    path = table(tmp_path / "a.csv", label=LABELS, **by_class("prob_", odd))
    with pytest.raises(PredictionsError, match=r"line 9: the columns .* must sum to 1") as refusal:
        read_predictions(path)
    assert "logits" not in str(refusal.value)  # numbers within 0 and 1 are none
    np.savez(tmp_path / "a.npz", probs=odd, labels=LABELS)
    with pytest.raises(PredictionsError, match=r"row 7 sums to") as refusal:
        read_predictions(tmp_path / "a.npz")
    assert "logits" not in str(refusal.value)


# --- what could be read in two ways


def test_numbers_as_labels_need_the_order_of_columns_named_after_classes(tmp_path: Path) -> None:
    turned = [3, 1, 0, 2]
    columns = by_class("prob_", PROBS[:, turned], [NAMES[k] for k in turned])
    path = table(tmp_path / "a.csv", label=LABELS, **columns)
    with pytest.raises(PredictionsError, match=r"the labels are numbers, .* --classes"):
        read_predictions(path)
    with pytest.raises(PredictionsError, match=r"the labels are numbers, .* --classes"):
        sample(cb.Shards(path), ROWS, 0, cb.Engine(workers=1))
    found = read_predictions(path, classes=",".join(NAMES))
    same(found)
    assert found.class_names == tuple(NAMES)
    lines = [
        {
            "label": int(y),
            "probs": dict(sorted(zip(NAMES, p, strict=True), key=lambda item: -item[1])),
        }
        for y, p in zip(LABELS, PROBS.tolist(), strict=True)
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(PredictionsError, match=r"the labels are numbers, .* --classes"):
        read_predictions(path)
    same(read_predictions(path, classes=NAMES))


@pytest.mark.parametrize("stem", ["logit", "prob"])
def test_a_column_that_is_no_class_is_refused(stem: str, tmp_path: Path) -> None:
    scores = LOGITS if stem == "logit" else PROBS
    columns = by_class(f"{stem}_", scores) | {f"{stem}_max": scores.max(axis=1)}
    path = table(tmp_path / "a.csv", label=LABELS, **columns)
    with pytest.raises(PredictionsError, match=rf"could be '{stem}_0', .* such as 'max'"):
        read_predictions(path)
    with pytest.raises(PredictionsError, match=f"numbered columns such as '{stem}_0', and .*_max'"):
        read_predictions(path, scores=f"{stem}_*")
    listed = [f"{stem}_{k}" for k in range(4)]
    same(read_predictions(path, scores=listed, are=f"{stem}s"))


def test_both_kinds_of_scores_are_read_where_they_agree_and_refused_otherwise(
    tmp_path: Path,
) -> None:
    both = by_class("logit_", LOGITS) | by_class("prob_", np.round(PROBS, 3))
    path = table(tmp_path / "a.csv", label=LABELS, **both)
    assert read_predictions(path).kind == "logits"
    both |= by_class("prob_", np.asarray(cb.predictions.softmax(LOGITS / 3)))
    path = table(tmp_path / "a.csv", label=LABELS, **both)
    for read in (read_predictions, cb.Shards):
        with pytest.raises(PredictionsError, match=r"say which of them to read by --are logits or"):
            read(path)
    assert read_predictions(path, are="logits").kind == "logits"
    assert read_predictions(path, are="probs").kind == "probs"


@pytest.mark.parametrize("word", ["None", "."])
@pytest.mark.parametrize("place", [0, 5])
def test_a_missing_prediction_is_no_class(word: str, place: int, tmp_path: Path) -> None:
    said = PROBS.argmax(axis=1).astype(str).astype(object)
    said[place] = word
    path = table(
        tmp_path / "a.csv", true_label=LABELS, pred_label=said, confidence=PROBS.max(axis=1)
    )
    expected = r"names of classes such as|column 'pred_label': expected a whole number from 0"
    with pytest.raises(PredictionsError, match=expected) as whole:
        read_predictions(path)
    with pytest.raises(PredictionsError) as parts:
        sample(cb.Shards(path), ROWS, 0, cb.Engine(workers=1))
    assert str(parts.value) == str(whole.value)


def test_a_folder_of_named_top_labels_is_read_as_one_file_is(tmp_path: Path) -> None:
    said, truth = (np.array(NAMES)[each] for each in (PROBS.argmax(axis=1), LABELS))
    for part in range(2):
        index = slice(part * 20, part * 20 + 20)
        table(
            tmp_path / f"{part}.csv",
            true_label=truth[index],
            pred_label=said[index],
            confidence=PROBS.max(axis=1)[index],
        )
    found = sample(cb.Shards(tmp_path), ROWS, 0, cb.Engine(workers=1))
    whole = cb.Predictions.from_confidence(PROBS.max(axis=1), said, truth)
    assert found.class_names == whole.class_names
    np.testing.assert_array_equal(found.predicted, whole.predicted)
    np.testing.assert_array_equal(found.labels, whole.labels)


def test_a_name_that_no_system_has_is_refused_in_a_sentence() -> None:
    with pytest.raises(PredictionsError):
        read_predictions("x" * 5000)


# --- a line to paste

RIGHT = (PROBS.argmax(axis=1) == LABELS) * 1
EVENTS = (LABELS == 2) * 1
OWN: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "scores of one stem": (
        {"y": LABELS, **by_class("score_", PROBS)},
        "--scores 'score_*' --are probs --labels y",
    ),
    "logits in percent clothes": (
        {"target": LABELS, **by_class("out", LOGITS)},
        "--scores 'out*' --are logits --labels target",
    ),
    "percent": ({"label": LABELS, **by_class("p", 100 * PROBS)}, "--scores 'p*' --are percent"),
    "logarithms": (
        {"label": LABELS, **by_class("lp_", np.log(PROBS))},
        "--scores 'lp_*' --are log-probs",
    ),
    "one column": (
        {"p_default": PROBS[:, 2], "default": EVENTS},
        "--scores p_default --are prob --labels default",
    ),
    "two outcomes": (
        {"score_negative": 1 - PROBS[:, 2], "score_positive": PROBS[:, 2], "outcome": EVENTS},
        "--scores score_negative,score_positive --are probs --labels outcome"
        " --classes negative,positive",
    ),
    "a margin": ({"z": LOGITS[:, 2], "spam": EVENTS}, "--scores z --are logit --labels spam"),
    "confidence": (
        {"conf": PROBS.max(axis=1), "is_correct": RIGHT},
        "--scores conf --are confidence --correct is_correct",
    ),
    "top label": (
        {"conf": PROBS.max(axis=1), "pred": PROBS.argmax(axis=1), "true": LABELS},
        "--scores conf --are confidence --labels true --predicted pred",
    ),
}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("extension", ["csv", "npz"])
def test_a_refusal_ends_with_the_line_that_reads_the_file(
    name: str, extension: str, tmp_path: Path
) -> None:
    columns, expected = OWN[name]
    path = tmp_path / f"my rows.{extension}"
    if extension == "csv":
        table(path, **columns)
    else:
        wide = {k: v for k, v in columns.items() if k[-1:].isdigit()}
        if wide:
            stem = next(iter(wide)).rstrip("0123456789").rstrip("_")
            rest = {k: v for k, v in columns.items() if k not in wide}
            columns = rest | {stem: np.stack(list(wide.values()), axis=1)}
            expected = expected.replace(f"'{stem}_*'", stem).replace(f"'{stem}*'", stem)
        np.savez(path, **columns)
    with pytest.raises(PredictionsError) as refusal:
        read_predictions(path)
    line = str(refusal.value).partition("; to read it so: ")[2]
    assert line == f"calibrant measure '{path}' {expected}"
    outcome = CliRunner().invoke(app, [*shlex.split(line)[1:], "--resamples", "20"])
    assert outcome.exit_code == 0, outcome.output


def test_no_line_is_offered_where_fields_leave_doubts(tmp_path: Path) -> None:
    # Numbers of both signs may be anything; probabilities are those of two models.
    two = {"label": LABELS, **by_class("a", LOGITS), **by_class("b", LOGITS[:, ::-1])}
    for columns in (two, {"x": LOGITS[:, 0], "y": LOGITS[:, 1], "label": LABELS}):
        path = table(tmp_path / "a.csv", **columns)
        with pytest.raises(PredictionsError) as refusal:
            read_predictions(path)
        assert "to read it so" not in str(refusal.value)


def test_of_several_models_the_command_reads_the_first_and_a_sentence_names_all(
    tmp_path: Path,
) -> None:
    models = {**by_class("old_", PROBS), **by_class("new_", PROBS[:, ::-1])}
    path = table(tmp_path / "a.csv", label=LABELS, **models)
    with pytest.raises(PredictionsError) as refusal:
        read_predictions(path)
    assert "scores of 2 models seem to be in it, 'old_*' and 'new_*'" in refusal.value.details
    assert refusal.value.line == f"calibrant measure {path} --scores 'old_*' --are probs"


def test_rows_under_the_name_of_a_list_of_files_are_no_names_of_files(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    names = "label  prob_0  prob_1  prob_2  prob_3"
    np.savetxt(path, np.column_stack([LABELS, PROBS]), "%12.9f", "  ", header=names, comments="")
    outcome = CliRunner().invoke(app, ["measure", str(path)])
    assert isinstance(outcome.exception, PredictionsError)
    assert f"'{names}' is none; if it holds rows" in str(outcome.exception)
    typed, _, line = outcome.exception.line.partition(" | ")
    assert line == "calibrant measure - --format csv"
    (tmp_path / "b.csv").write_bytes(subprocess.check_output(shlex.split(typed)))
    same(read_predictions(tmp_path / "b.csv"), atol=1e-6)
    # Without labels there is nothing to measure, and no row is taken for a file.
    np.savetxt(path, PROBS)
    outcome = CliRunner().invoke(app, ["measure", str(path)])
    assert str(outcome.exception).startswith(f"{path}: is read as a list of files, for it ends in")
    # Files that should be there are named.
    path.write_text("one.csv\n")
    outcome = CliRunner().invoke(app, ["measure", str(path)])
    assert f"{tmp_path / 'one.csv'}: there is no such file" in str(outcome.exception)


def test_whoever_unpacks_an_array_is_told_of_those_that_belong_to_it(tmp_path: Path) -> None:
    for name, values in (("probs", PROBS), ("labels", LABELS)):
        with gzip.open(tmp_path / f"{name}.npy.gz", "wb") as file:
            np.save(file, values)
    with pytest.raises(PredictionsError, match="is packed; unpack it first") as refusal:
        read_predictions(tmp_path / "probs.npy.gz")
    subprocess.run(shlex.split(str(refusal.value).partition("first: ")[2]), check=True)
    same(read_predictions(tmp_path / "probs.npy"))
