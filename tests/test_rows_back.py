"""`apply` gives people their rows back, with what the calibrator makes of each."""

from __future__ import annotations

import csv
import datetime
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import calibrant as cb
from calibrant.cli.app import app
from calibrant.core.errors import AppliedTwiceWarning, CalibrantError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS, CLASSES = 60, ("cat", "dog", "emu")
RNG = np.random.default_rng(3)
LOGITS = RNG.normal(size=(ROWS, 3)) * 2
LABELS = np.where(RNG.random(ROWS) < 0.7, LOGITS.argmax(1), RNG.integers(0, 3, ROWS))
PROBS = np.asarray(cb.predictions.softmax(LOGITS))
NOTES = ["=1+1", " two, words", "", '"quoted"', "+SUM(A1)"]


def run(*words: Any) -> str:
    outcome = CliRunner().invoke(app, [str(word) for word in words])
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("fitted") / "c.safetensors"
    cb.TemperatureScaling().fit(LOGITS, LABELS).save(path)
    return path


def expected(path: Path) -> np.ndarray:
    return np.asarray(cb.load(path).predict_proba(LOGITS, kind="logits"))


def write_csv(path: Path, mark: str = ",") -> list[list[str]]:
    header = ["id", "note", "logit_0", "logit_1", "logit_2", "label", "when"]
    rows = [
        [f"{i:04d}", NOTES[i % 5], *map(str, LOGITS[i].tolist()), str(LABELS[i]), ""]
        for i in range(ROWS)
    ]
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=mark).writerows([header, *rows])
    return [header, *rows]


@pytest.mark.parametrize("extension", [".csv", ".tsv"])
def test_cells_of_text_come_back_letter_by_letter(extension, fitted, tmp_path: Path):
    mark = "\t" if extension == ".tsv" else ","
    source, out = tmp_path / f"in{extension}", tmp_path / f"out{extension}"
    before = write_csv(source, mark)
    run("apply", fitted, source, "--out", out)
    with out.open(newline="") as file:
        after = list(csv.reader(file, delimiter=mark))
    added = ["prob_0", "prob_1", "prob_2"]
    assert after[0] == ["id", "note", *added, "label", "when", "predicted", "confidence"]
    for old, new in zip(before[1:], after[1:], strict=True):
        assert new[:2] + new[5:7] == old[:2] + old[5:7]
    probs = np.array([[float(c) for c in row[2:5]] for row in after[1:]])
    np.testing.assert_allclose(probs, expected(fitted), rtol=1e-12)
    assert [int(row[7]) for row in after[1:]] == probs.argmax(1).tolist()
    assert [float(row[8]) for row in after[1:]] == probs.max(1).tolist()
    assert cb.read_predictions(out).kind == "probs"


def test_without_probabilities_rows_hold_the_predicted_class_and_its_confidence(
    fitted, tmp_path: Path
):
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    write_csv(source)
    run("apply", fitted, source, "--out", out, "--no-probs")
    header = out.read_text().splitlines()[0].split(",")
    assert header == ["id", "note", "label", "when", "predicted", "confidence"]
    rows = cb.read_predictions(out)
    assert rows.kind == "toplabel"
    np.testing.assert_allclose(rows.scores, expected(fitted).max(1))
    np.testing.assert_array_equal(rows.labels == rows.predicted, LOGITS.argmax(1) == LABELS)


PAIRS = {"signs": (-1, 1), "words": ("False", "True"), "small": ("false", "true"), "from 0": (0, 1)}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("extension", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("first", [0, 5000])
def test_the_predicted_class_is_written_as_the_labels_beside_it(
    pair, extension, first, tmp_path: Path
):
    rng = np.random.default_rng(0)
    prob = rng.uniform(0.01, 0.99, first + 200)
    events = (rng.random(len(prob)) < prob) * 1
    events[:first] = 1  # how the others are written is not to be seen at the beginning
    written, out = tmp_path / f"in{extension}", tmp_path / f"out{extension}"
    labels = [pair[event] for event in events]
    if extension == ".csv":
        lines = [f"{p},{label}" for p, label in zip(prob.tolist(), labels, strict=True)]
        written.write_text("\n".join(["prob,label", *lines]) + "\n")
    elif extension == ".jsonl":
        if pair == PAIRS["small"]:
            labels = [label == "true" for label in labels]
        rows = zip(prob.tolist(), labels, strict=True)
        written.write_text("\n".join(json.dumps({"prob": p, "label": v}) for p, v in rows))
    else:
        if pair == PAIRS["small"]:
            labels = [label == "true" for label in labels]
        pq.write_table(pa.table({"prob": prob, "label": labels}), written)
    calibrator = tmp_path / "c.safetensors"
    fit = slice(first, None)
    cb.make_calibrator("platt").fit(prob[fit], events[fit], kind="probs").save(calibrator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cb.CalibrationWarning)  # that -1 was read as 0
        run("apply", calibrator, written, "--out", out)
    if extension == ".csv":
        with out.open(newline="") as file:
            cells = list(csv.DictReader(file))
    elif extension == ".jsonl":
        cells = [json.loads(line) for line in out.read_text().splitlines()]
    else:
        cells = pq.read_table(out).to_pylist()
    likely = np.array([float(row["prob"]) > 0.5 for row in cells])
    by_class = {str(bool(event)): set() for event in (0, 1)}
    for row, said in zip(cells, likely.tolist(), strict=True):
        by_class[str(said)].add(row["predicted"])
    same = {label if extension != ".csv" else str(label) for label in labels}
    assert by_class["False"] | by_class["True"] == same == {row["label"] for row in cells}
    right = np.array([row["predicted"] == row["label"] for row in cells])
    np.testing.assert_array_equal(right, likely == events)


@pytest.mark.parametrize("rule", [["--cover", "0.7"], ["--error-cost", 1, "--hand-over-cost", 0.4]])
def test_decisions_name_classes_as_the_labels_beside_them(rule, tmp_path: Path):
    rng = np.random.default_rng(0)
    prob = rng.uniform(0.01, 0.99, 400)
    labels = np.where(rng.random(400) < prob, 1, -1)
    source, out, decision = (tmp_path / name for name in ("in.csv", "out.csv", "d.safetensors"))
    lines = [f"{p},{label}" for p, label in zip(prob.tolist(), labels.tolist(), strict=True)]
    source.write_text("\n".join(["prob,label", *lines]) + "\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cb.CalibrationWarning)
        run("decide", "platt", source, *rule, "--out", decision)
        run("apply", decision, source, "--out", out)
    with out.open(newline="") as file:
        cells = list(csv.DictReader(file))
    named = {name for row in cells for name in (row.get("set") or row["decision"]).split("|")}
    assert named - {""} == {"-1", "1"}
    alone = [row for row in cells if (row.get("set") or row["decision"]) in ("-1", "1")]
    assert len(alone) > 50
    assert all((row.get("set") or row["decision"]) == row["predicted"] for row in alone)


def test_classes_that_count_from_1_are_predicted_from_1(fitted, tmp_path: Path):
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    rows = write_csv(source)
    rows[1:] = [[*row[:5], str(int(row[5]) + 1), row[6]] for row in rows[1:]]
    with source.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    run("apply", fitted, source, "--out", out, "--labels-from", 1, "--no-probs")
    with out.open(newline="") as file:
        after = list(csv.DictReader(file))
    assert [int(row["predicted"]) for row in after] == (LOGITS.argmax(1) + 1).tolist()
    assert [int(row["label"]) for row in after] == (LABELS + 1).tolist()
    # Read again, with nothing said, they agree where the model is right.
    back = cb.read_predictions(out)
    np.testing.assert_array_equal(back.labels == back.predicted, LOGITS.argmax(1) == LABELS)


def named_rows() -> list[dict[str, Any]]:
    return [
        {
            "id": i,
            "meta": {"a": [1, None, {"b": i}]},
            "probs": dict(zip(CLASSES, PROBS[i].tolist(), strict=True)),
            "label": CLASSES[LABELS[i]],
            "tag": None if i % 3 else "x",
        }
        for i in range(ROWS)
    ]


def test_lines_of_json_keep_whatever_they_hold(tmp_path: Path):
    source, out, fitted = (tmp_path / n for n in ("in.jsonl", "out.jsonl", "c.safetensors"))
    rows = named_rows()
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run("fit", source, "--method", "venn-abers", "--out", fitted)
    run("apply", fitted, source, "--out", out, "--interval", "0.9")
    after = [json.loads(line) for line in out.read_text().splitlines()]
    added = ["predicted", "confidence", "low", "high"]
    for old, new in zip(rows, after, strict=True):
        assert [*new] == [*old, *added]
        assert {k: new[k] for k in old if k != "probs"} == {
            k: v for k, v in old.items() if k != "probs"
        }
        assert new["predicted"] == max(new["probs"], key=new["probs"].get)
        assert new["low"] <= new["confidence"] <= new["high"]
    assert cb.read_predictions(out).class_names == CLASSES


@pytest.mark.parametrize("extension", [".parquet", ".arrow"])
def test_columns_of_arrow_keep_their_types(extension, fitted, tmp_path: Path):
    table = pa.table(
        {
            "id": pa.array(range(ROWS), pa.int32()),
            "when": [datetime.datetime(2020, 1, 1)] * ROWS,
            "tags": [["a"] * (i % 3) for i in range(ROWS)],
            "blank": [None] * 30 + ["x"] * 30,
            "logit_0": LOGITS[:, 0],
            "logit_1": LOGITS[:, 1],
            "logit_2": LOGITS[:, 2],
            "label": LABELS,
        }
    )
    source, out = tmp_path / f"in{extension}", tmp_path / f"out{extension}"

    def read(path: Path) -> Any:
        if extension == ".parquet":
            return pq.read_table(path)
        with pa.ipc.open_stream(path) as stream:
            return stream.read_all()

    if extension == ".parquet":
        pq.write_table(table, source, row_group_size=17)
    else:
        with pa.ipc.new_stream(source, table.schema) as writer:
            writer.write_table(table, max_chunksize=17)
    run("apply", fitted, source, "--out", out)
    after = read(out)
    kept = ["id", "when", "tags", "blank", "label"]
    assert after.select(kept).equals(table.select(kept))
    assert after.schema.field("id").type == pa.int32()
    assert after.column_names[4:7] == ["prob_0", "prob_1", "prob_2"]
    np.testing.assert_allclose(after["prob_1"].to_numpy(), expected(fitted)[:, 1])


def test_arrays_with_an_entry_a_row_stay(fitted, tmp_path: Path):
    source, out = tmp_path / "in.npz", tmp_path / "out.npz"
    more = {"id": np.arange(ROWS), "text": np.array([f"t{i}" for i in range(ROWS)])}
    np.savez(source, logits=LOGITS, labels=LABELS, embedding=LOGITS[:, :2], other=[1.0], **more)
    run("apply", fitted, source, "--out", out)
    with np.load(out, allow_pickle=False) as after:
        assert {*after.files} == {
            *("probs", "labels", "embedding", "id", "text", "predicted", "confidence")
        }
        np.testing.assert_array_equal(after["text"], more["text"])
        np.testing.assert_array_equal(after["predicted"], LOGITS.argmax(1))


@pytest.mark.parametrize("extension", [".jsonl", ".parquet", ".npz", ".csv", ".h5"])
@pytest.mark.parametrize("source", ["in.csv", "in.jsonl"])
def test_rows_go_from_any_format_to_any_other(source, extension, tmp_path: Path):
    if extension == ".h5":
        pytest.importorskip("h5py")
    path, out, fitted = tmp_path / source, tmp_path / f"out{extension}", tmp_path / "c.safetensors"
    if source == "in.csv":
        write_csv(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in named_rows()))
    run("fit", path, "--method", "temperature", "--out", fitted)
    run("apply", fitted, path, "--out", out)
    rows = cb.read_predictions(out)
    np.testing.assert_array_equal(rows.labels, LABELS)
    np.testing.assert_allclose(rows.scores, expected(fitted), atol=1e-6)


@pytest.mark.parametrize("names", [("predicted", "confidence"), ("predicted", "other")])
def test_a_column_of_the_same_name_is_not_lost(names, fitted, tmp_path: Path):
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    lines = [",".join(row[2:6]) for row in write_csv(source)]
    lines[0] += f",{names[0]},{names[1]}"
    source.write_text("\n".join([lines[0], *(f"{line},mine,0.5" for line in lines[1:])]))
    run("apply", fitted, source, "--are", "logits", "--scores", "logit_*", "--out", out)
    header, first, *_ = out.read_text().splitlines()
    ends = [f"{n}_calibrated" if n in names else n for n in ("predicted", "confidence")]
    assert header.split(",")[-4:] == [*names, *ends]
    assert first.split(",")[-4:-2] == ["mine", "0.5"]


def test_one_number_a_row_is_replaced_where_it_stands(tmp_path: Path):
    right = (LOGITS.argmax(1) == LABELS).astype(int)
    fitted, out = tmp_path / "c.safetensors", tmp_path / "out.csv"
    for column, are, header in (
        ("p", "prob", "id,p,truth,predicted,confidence"),
        ("confidence", "confidence", "id,confidence,truth,confidence_before"),
        ("judge", "score", "id,judge,truth,confidence"),
    ):
        source = tmp_path / f"{are}.csv"
        scores = PROBS.max(1) + (right if are == "score" else 0)
        pairs = zip(scores.tolist(), right.tolist(), strict=True)
        lines = [f"{i},{score},{hit}" for i, (score, hit) in enumerate(pairs)]
        source.write_text("\n".join([f"id,{column},truth", *lines]))
        truth = "--labels" if are == "prob" else "--correct"
        how = ("--scores", column, "--are", are, truth, "truth")
        run("fit", source, "--method", "platt", "--out", fitted, *how)
        run("apply", fitted, source, "--out", out, *how)
        assert out.read_text().splitlines()[0] == header
        own = {"scores": "p", "are": "prob"} if are == "prob" else {}
        after = cb.read_predictions(out, **{truth[2:]: "truth"}, **own)
        wanted = cb.load(fitted).predict_proba(scores, kind="score" if are == "score" else "probs")
        np.testing.assert_allclose(
            after.positive_probs if are == "prob" else after.scores, wanted[:, 1], rtol=1e-9
        )


def test_outputs_of_many_files_are_made_anew_when_their_inputs_or_wishes_change(
    fitted, tmp_path: Path
):
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for i in range(2):
        write_csv(folder / f"{i}.csv")
    words = ("apply", fitted, folder, "--out", out, "--workers", "1")
    assert "2 files written" in run(*words)
    assert "0 files written, 2 there before" in run(*words)
    text = (folder / "1.csv").read_text().replace("\n0001,", "\n000x,")
    (folder / "1.csv").write_text(text)
    assert "1 file written, 1 there before" in run(*words)
    assert "000x" in (out / "1.csv").read_text()
    # Of the same size, changed at the same time, and the same where one would look first.
    about, text = (folder / "1.csv").stat(), (folder / "1.csv").read_text()
    place = text.index("\n0030,")
    (folder / "1.csv").write_text(text[:place] + "\n003x," + text[place + 6 :])
    os.utime(folder / "1.csv", ns=(about.st_atime_ns, about.st_mtime_ns))
    assert "1 file written, 1 there before" in run(*words)
    assert "003x" in (out / "1.csv").read_text()
    os.utime(folder / "0.csv", ns=(1, 1))
    assert "1 file written" in run(*words)
    failed = CliRunner().invoke(app, [*map(str, words), "--no-probs"])
    assert failed.exit_code != 0
    assert "to write something else" in str(failed.exception)


def test_an_interval_that_nobody_knows_is_refused(fitted, tmp_path: Path):
    source = tmp_path / "in.csv"
    write_csv(source)
    outcome = CliRunner().invoke(
        app,
        ["apply", str(fitted), str(source), "--out", str(tmp_path / "o.csv"), "--interval", "0.9"],
    )
    assert isinstance(outcome.exception, CalibrantError)
    assert "has no interval" in str(outcome.exception)
    assert not (tmp_path / "o.csv").exists()


def test_an_interval_holds_its_confidence_also_where_a_label_is_likelier_wrong(tmp_path: Path):
    rng = np.random.default_rng(0)
    sure = rng.uniform(0.1, 1.0, 600)
    right = (rng.random(600) < 0.8 * sure).astype(int)
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    lines = [f"{c:.6f},{a}" for c, a in zip(sure, right, strict=True)]
    source.write_text("confidence,correct\n" + "\n".join(lines) + "\n")
    calibrator = tmp_path / "c.safetensors"
    run("fit", source, "--method", "venn-abers", "--no-worth", "--out", calibrator)
    run("apply", calibrator, source, "--out", out, "--interval", "0.9")
    with out.open(newline="") as file:
        rows = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]
    assert sum(row["confidence"] < 0.5 for row in rows) > 100
    assert all(row["low"] <= row["confidence"] <= row["high"] for row in rows)
    assert max(row["high"] - row["low"] for row in rows) < 0.5


def test_rows_that_were_calibrated_before_are_warned_of(tmp_path: Path, fitted: Path) -> None:
    for extension in (".csv", ".npz", ".parquet", ".jsonl"):
        first, second = tmp_path / f"first{extension}", tmp_path / f"second{extension}"
        cb.write_predictions(cb.Predictions.from_probs(PROBS, LABELS), tmp_path / f"a{extension}")
        assert "a second map" not in run(
            "apply", fitted, tmp_path / f"a{extension}", "--out", first
        )
        with pytest.warns(AppliedTwiceWarning, match="a second map makes them wrong"):
            run("apply", fitted, first, "--out", second)


def test_confidences_that_were_calibrated_before_are_warned_of(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sure = rng.uniform(0.5, 1, 300)
    saved, right = tmp_path / "c.safetensors", (rng.random(300) < sure - 0.1).astype(int)
    rows = cb.Predictions.from_confidence(sure, correct=right)
    for extension in (".csv", ".npz", ".parquet", ".jsonl"):
        file, first, second = (tmp_path / f"{name}{extension}" for name in "abc")
        cb.write_predictions(rows, file)
        run("fit", file, "--method", "platt", "--no-worth", "--out", saved)
        run("apply", saved, file, "--out", first)
        with pytest.warns(AppliedTwiceWarning, match="'confidence_before' stands beside"):
            run("apply", saved, first, "--out", second)


@pytest.mark.parametrize("are", ["prob", "logit", "percent"])
def test_a_column_keeps_its_name_where_it_holds_what_it_held_before(tmp_path, are):
    rng = np.random.default_rng(0)
    p = rng.random(200)
    written = {"prob": p, "logit": np.log(p / (1 - p)), "percent": 100 * p}
    outcomes = np.where(rng.random(200) < p, "fraud", "ok")
    cells = [f"{each:.4f},{o}" for each, o in zip(written[are], outcomes, strict=True)]
    source, out, saved = (tmp_path / name for name in ("in.csv", "out.csv", "c.safetensors"))
    source.write_text("\n".join(["p_fraud,outcome", *cells]))
    read = ["--scores", "p_fraud", "--are", are, "--labels", "outcome", "--positive", "fraud"]
    run("fit", str(source), *read, "--method", "platt", "--no-worth", "--out", str(saved))
    said = run("apply", str(saved), str(source), *read, "--out", str(out))
    own = " --scores p_fraud --are prob" if are == "prob" else ""
    assert out.read_text().startswith("p_fraud" if are == "prob" else "prob,")
    line = f"calibrant measure {out}{own} --labels outcome --positive fraud"
    assert f"to measure them:\n  {line}\n" in said
    assert "positive" in run(*line.split()[1:], "--resamples", "20")
