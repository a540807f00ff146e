"""Files as people save them: other names, other formats, names of classes; and `inspect`."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import calibrant as cb
from calibrant.cli.app import app
from calibrant.core.errors import InputError, NoCommonNamesWarning, PredictionsError
from calibrant.files import read_column, read_predictions, write_predictions
from calibrant.files.inspecting import inspect_file

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(scale=2, size=(40, 3))
LABELS = np.where(np.arange(40) % 3 == 0, LOGITS.argmin(axis=1), LOGITS.argmax(axis=1))
PROBS = np.asarray(cb.predictions.softmax(LOGITS))
NAMES = ("cat", "dog", "emu")
WORDS = np.array(NAMES)[LABELS]
SITE = np.array(["north", "south"])[np.arange(40) % 2]


def same(found, scores=LOGITS, kind="logits", names=None):
    assert found.kind == kind
    assert found.class_names == names
    np.testing.assert_allclose(np.asarray(found.scores), scores, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(found.labels, LABELS)


def refused(path, message):
    return pytest.raises(PredictionsError, match=rf"\A{re.escape(str(path))}: [^\n]*{message}")


# --- names of keys


def savers():
    h5py = pytest.importorskip("h5py")

    def hdf5(path, **arrays):
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file[name] = array

    def jsonl(path, **arrays):
        rows = (dict(zip(arrays, row, strict=True)) for row in zip(*arrays.values(), strict=True))
        path.write_text("".join(json.dumps(row, default=np.ndarray.tolist) + "\n" for row in rows))

    def jsonl_numbers(path, **arrays):
        jsonl(path, **{name: array.tolist() for name, array in arrays.items()})

    def torched(path, **arrays):
        torch.save({name: torch.asarray(array) for name, array in arrays.items()}, path)

    def table(path, **arrays):
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({n: a.tolist() for n, a in arrays.items()}), path)

    def feather(path, **arrays):
        arrow, ipc = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.feather")
        ipc.write_feather(arrow.table({n: a.tolist() for n, a in arrays.items()}), path)

    return {
        ".npz": np.savez,
        ".h5": hdf5,
        ".pt": torched,
        ".jsonl": jsonl_numbers,
        ".parquet": table,
        ".feather": feather,
    }


SAVERS = savers()


@pytest.mark.parametrize("extension", SAVERS)
def test_what_the_trainer_writes_is_logits_and_labels(extension, tmp_path):
    path = tmp_path / f"a{extension}"
    SAVERS[extension](path, predictions=LOGITS, label_ids=LABELS)
    same(read_predictions(path))


@pytest.mark.parametrize("extension", SAVERS)
def test_any_names_are_told(extension, tmp_path):
    path = tmp_path / f"a{extension}"
    SAVERS[extension](path, out=PROBS, y=LABELS)
    with refused(
        path, "there is no 'logits'.*--scores with --are, and --labels, name other columns"
    ):
        read_predictions(path)
    same(read_predictions(path, scores="out", are="probs", labels="y"), PROBS, "probs")
    with refused(path, "there is no 'yy' to hold the labels; found"):
        read_predictions(path, scores="out", are="probs", labels="yy")
    with pytest.raises(InputError, match="there is no option 'probs_key'; there are scores, are"):
        read_predictions(path, probs_key="out")


@pytest.mark.parametrize("extension", SAVERS)
def test_what_could_be_read_in_two_ways_is_refused_with_both_named(extension, tmp_path):
    path = tmp_path / f"a{extension}"
    SAVERS[extension](path, logits=LOGITS, predictions=PROBS, label_ids=LABELS, labels=LABELS)
    with refused(
        path,
        "could be 'logits', or 'predictions' with 'label_ids'; choose by --sc",
    ):
        read_predictions(path)
    same(read_predictions(path, scores="logits", are="logits", labels="labels"))
    SAVERS[extension](path, logits=LOGITS, label=LABELS[::-1].copy(), labels=LABELS)
    with refused(path, "the labels could be 'labels' or 'label'; choose one by --labels "):
        read_predictions(path)
    same(read_predictions(path, labels="labels"))


def test_predictions_beside_labels_may_be_anything(tmp_path):
    np.savez(tmp_path / "a.npz", predictions=LOGITS.argmax(axis=1), labels=LABELS)
    with refused(tmp_path / "a.npz", "there is no 'logits'.*found 'predictions', 'labels'"):
        read_predictions(tmp_path / "a.npz")


def test_a_pair_of_tensors_needs_the_kind_of_the_first(tmp_path):
    path = tmp_path / "a.pt"
    torch.save((torch.asarray(LOGITS), torch.asarray(LABELS)), path)
    with refused(path, r"tuple of tensors of shapes \(40, 3\) and \(40,\); say by --are logits or"):
        read_predictions(path)
    same(read_predictions(path, are="logits"))
    torch.save([torch.asarray(PROBS), torch.asarray(LABELS)[:, None]], path)
    same(read_predictions(path, are="probs"), PROBS, "probs")
    torch.save((torch.zeros(3), torch.zeros(3)), path)
    with refused(path, "a tuple must hold two tensors"):
        read_predictions(path, are="logits")


def test_columns_are_numbered_behind_any_name(tmp_path):
    path = tmp_path / "a.csv"
    rows = [
        f"{y}," + ",".join(map(repr, row)) for y, row in zip(LABELS, LOGITS.tolist(), strict=True)
    ]
    path.write_text("\n".join(["truth,out_0,out_1,out_2", *rows]))
    same(read_predictions(path, scores="out", are="logits", labels="truth"))


# --- names of classes


def table_text(head, labels, scores, separator=",", point="."):
    lines = [separator.join(head)]
    for label, row in zip(labels, scores.tolist(), strict=True):
        numbers = [repr(value).replace(".", point) for value in row]
        lines.append(separator.join([str(label), *numbers]))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("labels", [WORDS, LABELS], ids=["names", "numbers"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_columns_named_after_classes_keep_the_names(labels, separator, tmp_path):
    path = tmp_path / "a.csv"
    head = ["label", "prob_cat", "prob_dog", "prob_emu"]
    path.write_text(table_text(head, labels, PROBS, separator))
    if labels is WORDS:
        same(read_predictions(path), PROBS, "probs", NAMES)
    else:
        with refused(path, "the labels are numbers, but the columns of scores are named after cl"):
            read_predictions(path)
    same(read_predictions(path, classes=NAMES), PROBS, "probs", NAMES)
    path.write_text(table_text(["label", *NAMES], labels, PROBS, separator))
    with refused(path, "there is no 'logits'.*named after classes that --classes names"):
        read_predictions(path)
    told = read_predictions(path, are="probs", classes=NAMES)
    same(told, PROBS, "probs", NAMES)
    turned = read_predictions(path, are="probs", classes=NAMES[::-1])
    assert turned.class_names == NAMES[::-1]
    with refused(path, "columns named after classes may hold logits or probabilities; say which"):
        read_predictions(path, classes=NAMES)
    with refused(path, "there is no column 'eel' of a class"):
        read_predictions(path, are="probs", classes=["cat", "eel"])


@pytest.mark.parametrize("extension", [".parquet", ".jsonl"])
def test_tables_of_other_formats_name_classes_as_well(extension, tmp_path):
    path = tmp_path / f"a{extension}"
    columns = {f"logit_{name}": LOGITS[:, i] for i, name in enumerate(NAMES)}
    SAVERS[extension](path, label=WORDS, **columns)
    same(read_predictions(path), names=NAMES)


def test_probabilities_by_class_in_json_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [
        {"label": word, "probs": dict(zip(NAMES, row, strict=True))}
        for word, row in zip(WORDS.tolist(), PROBS.tolist(), strict=True)
    ]
    path.write_text("\n\n".join(map(json.dumps, rows)))
    same(read_predictions(path), PROBS, "probs", NAMES)
    assert read_column(path, "label").tolist() == WORDS.tolist()


def test_numbered_and_named_columns_together_are_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("label,logit_0,logit_1,logit_cat\n0,1,2,3\n")
    with refused(path, "'logits' could be 'logit_0', ... or the columns named after classes, such"):
        read_predictions(path)
    path.write_text("label,logit_cat,logit_dog\neel,1,2\n")
    with refused(path, "'labels' holds 'eel' in row 0, which is none of the classes 'cat', 'dog'"):
        read_predictions(path)


@pytest.mark.parametrize("extension", [".npz", ".csv", ".parquet"])
def test_names_of_classes_are_written_and_read_back(extension, tmp_path):
    path = tmp_path / f"a{extension}"
    write_predictions(cb.Predictions.from_probs(PROBS, LABELS, class_names=NAMES), path)
    same(read_predictions(path), PROBS, "probs", NAMES)


def test_formats_of_numbers_only_or_of_one_array_a_file_take_named_classes_too(tmp_path):
    rows = cb.Predictions.from_probs(PROBS, LABELS, class_names=NAMES)
    write_predictions(rows, tmp_path / "a-probs.npy")
    same(read_predictions(tmp_path / "a-probs.npy"), PROBS, "probs", NAMES)
    write_predictions(rows, tmp_path / "a.safetensors")
    same(read_predictions(tmp_path / "a.safetensors"), PROBS, "probs", NAMES)


def test_names_stay_through_calibration_and_selection():
    rows = cb.Predictions.from_probs(PROBS, LABELS, class_names=NAMES)
    after = cb.TemperatureScaling().fit_predictions(rows).apply_predictions(rows)
    assert after.class_names == after.take(slice(9)).class_names == NAMES


# --- separators, Arrow, HDF5


@pytest.mark.parametrize("separator", [";", "\t"])
def test_decimal_commas_are_read_where_commas_separate_nothing(separator, tmp_path):
    path = tmp_path / ("a.tsv" if separator == "\t" else "a.csv")
    head = ["label", "logit_0", "logit_1", "logit_2"]
    path.write_text(table_text(head, LABELS, LOGITS, separator, ","))
    same(read_predictions(path))
    path.write_text(f"label{separator}logit_0{separator}logit_1\n0{separator}1.000,5{separator}2\n")
    with refused(path, r"line 2, column 'logit_0': expected a finite number, found '1\.000,5'"):
        read_predictions(path)
    path.write_text("label,a;logit_0;logit_1\n0;1;2\n")
    with refused(path, "its header holds ',' and ';', each of which could separate"):
        read_predictions(path)


def test_data_sets_of_hugging_face_are_read_with_their_classes(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "logits": datasets.Sequence(datasets.Value("float32")),
            "label": datasets.ClassLabel(names=list(NAMES)),
            "site": datasets.Value("string"),
        }
    )
    rows = {"logits": LOGITS.astype(np.float32).tolist(), "label": LABELS.tolist(), "site": SITE}
    made = datasets.Dataset.from_dict(rows, features=features)
    made.save_to_disk(str(tmp_path / "one"), num_shards=3)
    same(read_predictions(tmp_path / "one"), names=NAMES)
    assert read_column(tmp_path / "one", "site").tolist() == SITE.tolist()
    datasets.DatasetDict({"test": made}).save_to_disk(str(tmp_path / "all"))
    with refused(tmp_path / "all", "holds several splits; read one: .*all/test"):
        read_predictions(tmp_path / "all")
    same(read_predictions(tmp_path / "all" / "test"), names=NAMES)
    made.to_parquet(str(tmp_path / "a.parquet"))
    same(read_predictions(tmp_path / "a.parquet"), names=NAMES)
    found = CliRunner().invoke(app, ["measure", str(tmp_path / "one"), "--by", "site"])
    assert found.exit_code == 0, found.output
    assert "north" in found.output


def test_datasets_within_groups_of_hdf5_go_by_their_path(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["test/logits"], file["test/labels"] = LOGITS, LABELS
        file["outside"] = h5py.ExternalLink("/etc/hostname", "/")
        file.create_dataset("huge", shape=(10**7, 10), dtype="f8", chunks=(1000, 10))
        layout = h5py.VirtualLayout((40, 3), "f8")
        layout[:] = h5py.VirtualSource("other.h5", "x", (40, 3))
        file.create_virtual_dataset("virtual", layout)
    same(read_predictions(path, scores="test/logits", are="logits", labels="test/labels"))
    with refused(path, "'/huge' can't be 800000000 bytes, packed into 0"):
        read_predictions(path, scores="huge", are="logits", labels="test/labels")
    with refused(path, "'/virtual' lies in other files"):
        read_predictions(path, scores="virtual", are="logits", labels="test/labels")


@pytest.mark.parametrize("extension", [".h5", ".arrow", ".feather", ".jsonl", ".parquet"])
def test_damaged_files_end_in_one_sentence(extension, tmp_path):
    path = tmp_path / f"a{extension}"
    maker = SAVERS.get(extension, SAVERS[".feather"])
    maker(path, logits=LOGITS, labels=LABELS)
    whole = path.read_bytes()
    rng = np.random.default_rng(1)
    for trial in range(25):
        damaged = bytearray(whole)
        if trial % 2:
            damaged = damaged[: int(rng.integers(len(whole)))]
        else:
            for place in rng.integers(len(whole), size=4):
                damaged[place] = int(rng.integers(256))
        path.write_bytes(bytes(damaged))
        try:
            read_predictions(path)
        except PredictionsError as error:
            said = str(error)
        else:
            continue
        assert said.startswith(str(path))
        assert "\n" not in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; expected a JSON object in each line"),
        ("[1, 2]\n", r"line 1 is no JSON object: '\[1, 2\]'"),
        ('{"label": 0, "logits": [1, 2]}\n{"label": 0', "line 2 is no JSON object"),
        (
            '{"label": 0, "logits": [1, 2]}\n{"label": 0}\n',
            "have different keys; see 'logits'",
        ),
        ('{"label": 0, "logits": [1, 2]}\n{"label": 0, "logits": [1]}\n', "'logits' differ in len"),
        ('{"label": 0, "logits": [1, 2]}\n{"label": null, "logits": [1, 2]}\n', "'label' is null"),
        ('{"label": 0, "logits": [1, "x"]}\n', "'logits' must hold real numbers"),
        ("[" * 100_000, "line 1 is no JSON object"),
    ],
)
def test_bad_json_lines(text, message, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with refused(path, message):
        read_predictions(path)


# --- on the command line


def run(*words):
    found = CliRunner().invoke(app, [str(word) for word in words])
    return found.exit_code, found.output, found.exception or found.output


def test_commands_are_told_names_of_keys(tmp_path):
    path, out = tmp_path / "a.npz", tmp_path / "t.safetensors"
    np.savez(path, out=LOGITS, y=LABELS)
    told = ["--scores", "out", "--are", "logits", "--labels", "y"]
    assert run("measure", path, *told, "--json", tmp_path / "m.json")[0] == 0
    assert run("fit", path, *told, "--method", "temperature", "--out", out)[0] == 0
    assert run("apply", out, path, *told, "--out", tmp_path / "b.npz")[0] == 0
    assert run("compare", path, *told, "--methods", "none,temperature")[0] == 0
    np.savez(tmp_path / "b2.npz", out=LOGITS, y=LABELS)
    both = (path, tmp_path / "b2.npz")
    assert run("measure", *both, *told, "--json", tmp_path / "two.json")[0] == 0
    assert json.loads((tmp_path / "two.json").read_text())["n"] == 2 * len(LABELS)
    plain = json.loads((tmp_path / "m.json").read_text())["metrics"]["nll"]["value"]
    assert plain == pytest.approx(cb.metrics.negative_log_likelihood(PROBS, LABELS))


def test_groups_by_class_show_names(tmp_path):
    path = tmp_path / "a.csv"
    head = ["label", "prob_cat", "prob_dog", "prob_emu"]
    path.write_text(table_text(head, np.tile(WORDS, 3), np.tile(PROBS, (3, 1))))
    code, output, _ = run("measure", path, "--by", "label")
    assert code == 0
    assert "cat" in output


def test_inspect_says_what_is_in_a_file_and_how_it_would_be_read(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, out=LOGITS, y=LABELS)
    code, output, _ = run("inspect", path)
    assert code != 0
    assert "40 x 3" in output
    assert "can't be read: there is no 'logits'" in output
    assert f"calibrant measure {path} --scores out --are logits --labels y" in output
    assert (
        run("inspect", path, "--scores", "out", "--are", "logits", "--json", tmp_path / "i.json")[0]
        == 0
    )
    found = json.loads((tmp_path / "i.json").read_text())
    assert found["reading"]["n_classes"] == 3
    assert found["reading"]["labels"] is True  # 'y' is found by its name
    assert {entry["name"]: entry["shape"] for entry in found["entries"]} == {
        "out": [40, 3],
        "y": [40],
    }
    assert run("inspect", tmp_path / "nothing.npz")[0] != 0


@pytest.mark.parametrize("extension", [".csv", ".tsv", ".npz", ".parquet", ".safetensors", ".npy"])
def test_inspect_reads_every_format(extension, tmp_path):
    path = tmp_path / f"logits{extension}"
    write_predictions(cb.Predictions.from_logits(LOGITS, LABELS), tmp_path / "logits.csv")
    if extension not in (".csv", ".tsv"):
        write_predictions(cb.Predictions.from_logits(LOGITS, LABELS), path)
    elif extension == ".tsv":
        path.write_text((tmp_path / "logits.csv").read_text().replace(",", "\t"))
    found = inspect_file(path)
    same(found.predictions)
    assert found.entries
    assert "would be read as logits of 40 rows and 3 classes, with labels" in " ".join(
        str(found).split()
    )


# --- the top-label form


@pytest.mark.parametrize("extension", [".csv", ".parquet", ".jsonl", ".npz"])
def test_top_labels_may_be_names(extension, tmp_path):
    path = tmp_path / f"a{extension}"
    said, confidence = np.array(NAMES)[PROBS.argmax(axis=1)], PROBS.max(axis=1)
    plain = cb.Predictions.from_confidence(confidence, PROBS.argmax(axis=1), LABELS)
    if extension == ".csv":
        rows = zip(WORDS, said, confidence.tolist(), strict=True)
        lines = [f"{truth};{one};{sure}".replace(".", ",") for truth, one, sure in rows]
        path.write_text("\n".join(["true_label;pred_label;confidence", *lines]))
    else:
        SAVERS[extension](path, true_label=WORDS, pred_label=said, confidence=confidence)
    found = read_predictions(path)
    assert found.class_names == NAMES
    np.testing.assert_array_equal(found.labels, plain.labels)
    np.testing.assert_array_equal(found.predicted, plain.predicted)
    write_predictions(found, tmp_path / "b.csv")
    again = read_predictions(tmp_path / "b.csv")
    assert again.class_names == NAMES
    np.testing.assert_array_equal(again.labels, plain.labels)
    write_predictions(found, tmp_path / "b.safetensors")
    groups = cb.evaluate_by(found, "predicted", resamples=20, min_rows=2).groups
    assert set(groups) <= set(NAMES)


def test_names_beside_numbers_are_refused():
    with pytest.raises(PredictionsError, match="must both be names, or both numbers"):
        cb.Predictions.from_confidence([0.9, 0.8], ["cat", "dog"], [0, 1])


def test_predicted_names_that_no_true_label_has_are_warned_of(tmp_path):
    path = tmp_path / "spelt.csv"
    said = np.char.capitalize(np.array(NAMES))[PROBS.argmax(axis=1)]
    rows = zip(WORDS, said, PROBS.max(axis=1).tolist(), strict=True)
    lines = [f"{truth},{one},{sure}" for truth, one, sure in rows]
    path.write_text("\n".join(["true_label,pred_label,confidence", *lines]))
    with pytest.warns(NoCommonNamesWarning, match="spelt.csv: every prediction is wrong, since .*"):
        assert read_predictions(path).n == len(WORDS)
    few = cb.Predictions.from_confidence([0.9, 0.8], ["dog", "cat"], ["bird", "fish"])
    assert few.n == 2  # of two rows both may be wrong


def test_no_line_is_offered_that_takes_many_labels_for_one_or_a_few_levels_for_percent(tmp_path):
    def offered(name, head, rows):
        path = tmp_path / name
        path.write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]))
        with pytest.raises(PredictionsError) as refusal:
            read_predictions(path)
        return str(refusal.value).partition("to read it so: ")[2]

    head = "prob_0,prob_1,prob_2,y_0,y_1,y_2"
    right = np.eye(3, dtype=int)[LABELS]
    rows = [[*p.tolist(), *y.tolist()] for p, y in zip(PROBS, right, strict=True)]
    assert offered("one.csv", head, rows).endswith("--scores 'prob_*' --are probs --labels y")
    rows[7][3:] = [1, 1, 0]
    assert offered("many.csv", head, rows) == ""
    score = RNG.integers(0, 100, 40)
    head, truth = "score,label", LABELS % 2
    rows = np.stack([score, truth], axis=1).tolist()
    assert offered("percent.csv", head, rows).endswith("--scores score --are percent")
    rows = np.stack([score % 3, truth], axis=1).tolist()
    assert offered("levels.csv", head, rows) == ""


def test_a_document_of_as_many_columns_as_rows_is_taken_for_columns(tmp_path):
    said = [[0.2, 0.8], [0.7, 0.3], [0.4, 0.6], [0.9, 0.1]]
    rows = [{"prob_0": p, "prob_1": q, "label": int(q > p)} for p, q in said]
    for few in (rows[:3], rows):
        columns = {name: {i: row[name] for i, row in enumerate(few)} for name in few[0]}
        (tmp_path / "a.json").write_text(json.dumps(columns))
        found = read_predictions(tmp_path / "a.json", format="json")
        np.testing.assert_allclose(found.scores, said[: len(few)])
    (tmp_path / "b.json").write_text(json.dumps(dict(enumerate(rows))))
    by_rows = read_predictions(tmp_path / "b.json", format="json")
    np.testing.assert_allclose(by_rows.scores, said)
