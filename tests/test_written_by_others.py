"""Files as R, Excel, pandas and databases write them, and what must not be read in silence."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import calibrant as cb
from calibrant.core.errors import InputError, LabelFormWarning, PredictionsError
from calibrant.files import ReadOptions, read_predictions, write_predictions
from calibrant.files.inspecting import inspect_file
from calibrant.files.reading import PredictionFile
from calibrant.files.schema import ends_of
from calibrant.predictions.plausibility import look
from calibrant.predictions.rows import softmax

RNG = np.random.default_rng(8)
LOGITS = RNG.normal(scale=3, size=(50, 3))
PROBS = np.asarray(softmax(LOGITS))
LABELS = LOGITS.argmax(axis=1)
NAMES = np.array(["ant", "bee", "cat"])


def csv(path: Path, *lines: list[object], sep: str = ",") -> Path:
    path.write_text("".join(sep.join(map(str, line)) + "\n" for line in lines))
    return path


def rows_of(*columns: object) -> list[list[object]]:
    return [list(row) for row in zip(*[np.asarray(c).tolist() for c in columns], strict=True)]


def same(rows: cb.Predictions, probs: np.ndarray = PROBS) -> None:
    np.testing.assert_allclose(np.asarray(rows.probs), probs, atol=1e-9)
    np.testing.assert_array_equal(rows.labels, LABELS)


# --- text


def test_names_of_rows_without_a_header_of_their_own_are_no_scores(tmp_path: Path) -> None:
    rows = rows_of([f"r{i}" for i in range(50)], LABELS, *PROBS.T)
    same(read_predictions(csv(tmp_path / "a.csv", ["label", "prob_0", "prob_1", "prob_2"], *rows)))
    # A comma behind the last cell is no name of a row.
    path = tmp_path / "b.csv"
    csv(path, ["label", "prob_0", "prob_1", "prob_2"], *[[*row[1:], ""] for row in rows])
    with pytest.raises(PredictionsError, match="line 2 has 5 cells, but the header has 4"):
        read_predictions(path)
    # Where a name is missing elsewhere, the columns don't fit.
    shifted = [[*row[1:], 0.5] for row in rows]
    with pytest.raises(PredictionsError):
        read_predictions(csv(path, ["label", "prob_0", "prob_1", "prob_2"], *shifted))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_what_excel_writes_above_and_before_a_table_is_no_part_of_it(
    encoding: str, tmp_path: Path
) -> None:
    header = ["label", "prob_0", "prob_1", "prob_2"]
    path = csv(tmp_path / "a.csv", ["sep=;"], [";".join(header)], *rows_of(LABELS, *PROBS.T))
    text = path.read_text().replace(",", ";").replace(".", ",")
    path.write_bytes(text.encode(encoding))
    same(read_predictions(path))
    path.write_bytes(text.replace(";0,", ";x,", 1).encode(encoding))
    with pytest.raises(PredictionsError, match="line 3, column 'prob_0'"):
        read_predictions(path)


def test_signs_of_percent_are_read_where_percent_is_said(tmp_path: Path) -> None:
    cells = [[f"{100 * p:.9f}%" for p in row] for row in PROBS.tolist()]
    own = [[f"{y} of 100%", y, *row] for y, row in zip(LABELS.tolist(), cells, strict=True)]
    path = csv(tmp_path / "a.csv", ["note", "label", "prob_0", "prob_1", "prob_2"], *own)
    same(read_predictions(path, are="percent"))
    with pytest.raises(PredictionsError, match=r"--scores 'prob_\*' --are percent$"):
        read_predictions(path)


def test_a_table_without_a_header_is_read_by_the_command_that_is_offered(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", *rows_of(LABELS, *PROBS.T))
    with pytest.raises(PredictionsError, match="its first line holds numbers") as refused:
        read_predictions(path)
    line = str(refused.value).partition("to read it so: ")[2]
    line = line.replace("| calibrant", f"| {sys.executable} -m calibrant")
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "50 rows" in done.stdout
    # Columns may be called by numbers.
    numbered = csv(tmp_path / "b.csv", [0, 1, 2, "y"], *rows_of(*PROBS.T, LABELS))
    same(read_predictions(numbered, scores="0,1,2", are="probs", labels="y"))


def test_an_older_encoding_is_refused_with_what_changes_it(tmp_path: Path) -> None:
    header, rows = ["label", "prob_0", "prob_1", "prob_2", "note"], rows_of(LABELS, *PROBS.T)
    path = csv(tmp_path / "a.csv", header, *[[*row, "Käse"] for row in rows])
    path.write_bytes(path.read_text().encode("cp1252"))
    with pytest.raises(PredictionsError, match=r"iconv -f WINDOWS-1252 .*a.csv > utf8.csv"):
        read_predictions(path)


@pytest.mark.parametrize(
    ("columns", "ends"),
    [
        (["prob.ant", "prob.bee"], ("ant", "bee")),
        (["P(ant)", "P(bee)"], ("ant", "bee")),
        (["ant_prob", "bee_prob"], ("ant", "bee")),
        (["p of ant", "p of bee"], ("ant", "bee")),
        (["cat", "cow"], ("cat", "cow")),
        (["ice_cream", "sour_cream"], ("ice_cream", "sour_cream")),
        (["p10", "p11"], ("10", "11")),
        (["x_ant", "x_bee"], ("ant", "bee")),
    ],
)
def test_what_columns_share_is_no_part_of_the_names_of_classes(
    columns: list[str], ends: tuple[str, ...]
) -> None:
    assert ends_of(columns) == ends


@pytest.mark.parametrize("form", ["prob.{}", "P({})", "{}_prob", "Wahrscheinlichkeit {}"])
def test_columns_that_hold_names_of_classes_are_offered(form: str, tmp_path: Path) -> None:
    order = [2, 0, 1]
    header = ["truth", *[form.format(name) for name in NAMES[order]]]
    path = csv(tmp_path / "a.csv", header, *rows_of(NAMES[LABELS], *PROBS.T[order]))
    with pytest.raises(PredictionsError, match="to read it so: calibrant measure"):
        read_predictions(path)
    found = read_predictions(path, scores=header[1:], are="probs", labels="truth")
    assert found.class_names is not None
    by_name = [found.class_names.index(name) for name in NAMES]
    np.testing.assert_allclose(np.asarray(found.probs)[:, by_name], PROBS)
    assert [found.class_names[label] for label in found.labels] == NAMES[LABELS].tolist()


# --- JSON


def test_columns_of_a_json_object_are_rows(tmp_path: Path) -> None:
    by_row = {str(i): y for i, y in enumerate(LABELS.tolist())}
    by_class = {f"{k}": column for k, column in enumerate(PROBS.T.tolist())}
    documents = [
        {"model": "a", "probs": PROBS.tolist(), "labels": LABELS.tolist(), "classes": ["x"]},
        {"probs": by_class, "label": by_row},
        [{"probs": p, "label": y} for p, y in zip(PROBS.tolist(), LABELS.tolist(), strict=True)],
    ]
    for document in documents:
        path = tmp_path / "a.json"
        path.write_text(json.dumps(document, indent=1))
        same(read_predictions(path, format="json"))
        with pytest.raises(PredictionsError, match="--format json"):
            read_predictions(path)
    other = {str(i): 0.5 for i in range(49, -1, -1)}
    for wrong in ({"prob": other, "label": by_row}, {"a": 1}, 5, {}):
        path.write_text(json.dumps(wrong))
        with pytest.raises(PredictionsError):
            read_predictions(path, format="json")


@pytest.mark.parametrize("key", ["label", "labels"])
def test_objects_of_many_labels_are_read_under_either_name(key: str, tmp_path: Path) -> None:
    rows = [
        {"probs": {"wet": 0.25, "cold": 0.75}, key: {"cold": 1, "wet": 0}},
        {"probs": {"wet": 0.5, "cold": 0.125}, key: {"cold": 0, "wet": 1}},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_predictions(path, kind="many-labels")
    assert found.label_names == ("wet", "cold")
    np.testing.assert_array_equal(np.asarray(found.one_score), [0.25, 0.75, 0.5, 0.125])
    np.testing.assert_array_equal(found.known_labels, [0, 1, 1, 0])


# --- Arrow


def test_structs_and_decimals_of_tables_are_numbers(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    struct = [dict(zip(NAMES.tolist(), row, strict=True)) for row in PROBS.tolist()]
    parquet.write_table(pa.table({"probs": struct, "label": NAMES[LABELS]}), tmp_path / "a.parquet")
    same(read_predictions(tmp_path / "a.parquet"))
    assert "prob_ant" in str(inspect_file(tmp_path / "a.parquet"))
    money = [[Decimal(str(round(p, 6))) for p in row] for row in PROBS.tolist()]
    columns = {f"prob_{k}": [row[k] for row in money] for k in range(3)}
    parquet.write_table(pa.table({**columns, "label": LABELS}), tmp_path / "b.parquet")
    np.testing.assert_allclose(
        np.asarray(read_predictions(tmp_path / "b.parquet").probs), PROBS, atol=1e-5
    )
    struct[7] = None  # type: ignore[call-overload]
    parquet.write_table(pa.table({"probs": struct, "label": NAMES[LABELS]}), tmp_path / "c.parquet")
    with pytest.raises(PredictionsError, match="row 7: 'probs' is null"):
        read_predictions(tmp_path / "c.parquet")


def test_calibrated_rows_of_structs_are_written_back(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    struct = [dict(zip(NAMES.tolist(), row, strict=True)) for row in PROBS.tolist()]
    table = pa.table({"probs": struct, "label": NAMES[LABELS], "note": ["x"] * 50})
    parquet.write_table(table, tmp_path / "a.parquet")
    from calibrant.cli.app import run

    saved, out = str(tmp_path / "t.safetensors"), tmp_path / "out.parquet"
    file = str(tmp_path / "a.parquet")
    words = ["fit", file, "--method", "temperature", "--no-worth", "--out", saved]
    assert run(["calibrant", *words]) == 0
    assert run(["calibrant", "apply", saved, file, "--out", str(out)]) == 0
    back = read_predictions(out)
    np.testing.assert_array_equal(back.labels, LABELS)
    assert parquet.read_table(out)["note"].to_pylist() == ["x"] * 50


# --- what must not be read in silence


def test_a_softmax_of_a_softmax_is_refused(tmp_path: Path) -> None:
    twice = np.asarray(softmax(PROBS))
    np.savez(tmp_path / "a.npz", probs=twice, labels=LABELS)
    with pytest.raises(PredictionsError, match="softmax was applied twice"):
        read_predictions(tmp_path / "a.npz")
    meant = ReadOptions(scores="probs", are="probs")
    np.testing.assert_allclose(read_predictions(tmp_path / "a.npz", meant).probs, twice)


@given(st.integers(3, 30), st.floats(0.01, 4.0), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_unsure_rows_are_no_softmax_of_a_softmax(classes: int, spread: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for logits in (
        rng.normal(scale=spread, size=(200, classes)),
        rng.uniform(0, min(spread, 1.0), size=(200, classes)),
        rng.normal(size=(200, 1)) * rng.normal(scale=spread, size=classes),
    ):
        rows = cb.Predictions.from_probs(np.asarray(softmax(logits)), np.arange(200) % classes)
        assert "softmax twice" not in [finding.what for finding in look(rows)]


def test_a_weight_that_is_next_to_nothing_beside_another_still_counts(tmp_path: Path) -> None:
    weights = np.where(np.arange(50) % 5, 1e-200, 1e200)
    rows = cb.Predictions.from_logits(LOGITS, LABELS, sample_weight=weights)
    assert rows.counted.n == rows.counted.counted.n == 50
    found = cb.posthoc.cross_validated("temperature", rows, resamples=20)
    assert np.isfinite(found.before["ece"].value)
    write_predictions(rows, tmp_path / "a.npz")
    np.testing.assert_array_equal(read_predictions(tmp_path / "a.npz").weights, weights)


# --- -1 and 1


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.LabelFormWarning")
@pytest.mark.parametrize("extension", ["csv", "npz", "jsonl"])
def test_classes_minus_one_and_one_of_a_confidence_are_two_classes(
    extension: str, tmp_path: Path
) -> None:
    said, truth = np.array([-1, 1, 1, -1] * 10), np.array([-1, -1, 1, 1] * 10)
    sure = np.linspace(0.5, 0.9, 40)

    def written(said: np.ndarray, truth: np.ndarray) -> Path:
        path = tmp_path / f"a.{extension}"
        own = {"confidence": sure, "pred_label": said, "true_label": truth}
        if extension == "npz":
            np.savez(path, **own)
        elif extension == "csv":
            csv(path, [*own], *rows_of(*own.values()))
        else:
            rows = rows_of(*own.values())
            text = (json.dumps(dict(zip(own, row, strict=True))) + "\n" for row in rows)
            path.write_text("".join(text))
        return path

    with pytest.warns(LabelFormWarning, match="-1 and 1, which were read as 0 and 1"):
        rows = read_predictions(written(said, truth))
    np.testing.assert_array_equal(rows.predicted, said > 0)
    np.testing.assert_array_equal(rows.labels, truth > 0)
    # A third class, or another convention, is no pair of signs.
    for other in (np.where(np.arange(40) == 7, 0, said), (said > 0) * 1):
        with pytest.raises(PredictionsError, match="-1"):
            read_predictions(written(other, truth))
        path = str(written(other, truth))
        with pytest.raises(PredictionsError), PredictionFile(path, ReadOptions()) as file:
            list(file.batches([slice(i, i + 2) for i in range(0, 40, 2)]))


def test_decimal_commas_and_points_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    text = "confidence\tcorrect\tweight\n0.5\t1\t1,234\n0.75\t0\t2\n"
    path.write_text(text)
    with pytest.raises(PredictionsError, match=r"line 2, column 'weight': .* found '1,234'"):
        read_predictions(path)
    path.write_text(text.replace("0.", "0,"))
    assert read_predictions(path).weights is not None
    path.write_text(text.replace("0.", "0,").replace("1,234", "1.234"))
    with pytest.raises(PredictionsError, match=r"line 2, column 'weight': .* found '1.234'"):
        read_predictions(path)


# --- what ended in an exception of Python's


def test_files_of_a_folder_with_other_numbers_of_features_are_one_sentence(tmp_path: Path) -> None:
    labels = np.where(np.arange(50) % 5, LABELS, 0)
    for number, width in enumerate([4, 3]):
        features = RNG.normal(size=(50, width))
        rows = cb.Predictions.from_logits(LOGITS, labels, features)
        write_predictions(rows, tmp_path / f"{number}.npz")
    parts = [read_predictions(tmp_path / f"{number}.npz") for number in (0, 1)]
    with pytest.raises(PredictionsError, match=r"has 3 features, but .* has 4"):
        cb.Predictions.concatenate(parts)
    shards = cb.Shards(tmp_path)
    engine = cb.scale.Engine("processes", 1)
    fitted = cb.TemperatureScaling().fit_predictions(shards, engine=engine)
    logits, labels = np.tile(LOGITS, (2, 1)), np.tile(labels, 2)
    assert fitted.beta_ == pytest.approx(cb.TemperatureScaling().fit(logits, labels).beta_)


@pytest.mark.parametrize("asked", [None, "z"])
def test_a_network_of_one_log_odds_is_refused_with_what_it_has_to_give(
    asked: str | None, tmp_path: Path
) -> None:
    onnx = pytest.importorskip("onnx")
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("ReduceSum", ["x", "axes"], ["z"], keepdims=1)],
        "network",
        [helper.make_tensor_value_info("x", floats, ["n", 5])],
        [helper.make_tensor_value_info("z", floats, ["n", 1])],
        [helper.make_tensor("axes", onnx.TensorProto.INT64, [1], [1])],
    )
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "n.onnx")
    rows = cb.Predictions.from_binary(LOGITS[:, 0], (LABELS == 0) * 1, kind="logit")
    fitted = cb.posthoc.make_calibrator("platt").fit_predictions(rows)
    with pytest.raises(InputError, match="as two columns, 0 and z"):
        fitted.to_onnx(behind=tmp_path / "n.onnx", output=asked)


def test_a_state_without_a_name_is_refused(tmp_path: Path) -> None:
    from calibrant.cli.app import run

    rows = cb.Predictions.from_logits(LOGITS, LABELS)
    write_predictions(rows, tmp_path / "a.npz")
    assert run(["calibrant", "monitor", str(tmp_path / "a.npz"), "--state", ""]) == 2
