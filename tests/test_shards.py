"""Many files as one set: which files, in every format and mixed, checked before a row is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import calibrant as cb
from calibrant.core.errors import InputError, PredictionsError
from calibrant.scale.shards import Shard, by_number, located, stands_for_many

CLASSES = 4


def rows(n: int, seed: int = 0) -> cb.Predictions:
    rng = np.random.default_rng(seed)
    logits = (2 * rng.normal(size=(n, CLASSES))).astype(np.float32)
    return cb.Predictions.from_logits(logits, rng.integers(CLASSES, size=n))


def write_hdf5(predictions: cb.Predictions, path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file["logits"], file["labels"] = predictions.scores, predictions.labels


def write_arrow(predictions: cb.Predictions, path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"logits": list(predictions.scores), "label": predictions.labels})
    with arrow.OSFile(str(path), "wb") as sink, arrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)


def write_lists(predictions: cb.Predictions, path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    width = arrow.list_(arrow.float32(), CLASSES)
    logits = arrow.array(list(predictions.scores), type=width)
    table = arrow.table({"logits": logits, "label": predictions.labels})
    parquet.write_table(table, path, row_group_size=5)


def write_torch(predictions: cb.Predictions, path: Path) -> None:
    torch = pytest.importorskip("torch")
    logits, labels = torch.tensor(predictions.scores), torch.tensor(predictions.labels)
    torch.save({"logits": logits, "labels": labels}, path)


def write_json_lines(predictions: cb.Predictions, path: Path) -> None:
    pairs = zip(predictions.scores.tolist(), predictions.labels.tolist(), strict=True)
    rows = [json.dumps({"label": label, "logits": logits}) for logits, label in pairs]
    path.write_text("\n\n".join(rows) + "\n")


def write_tabs(predictions: cb.Predictions, path: Path) -> None:
    names = ["label", *(f"logit_{k}" for k in range(CLASSES))]
    pairs = zip(predictions.labels.tolist(), predictions.scores.tolist(), strict=True)
    rows = ["\t".join([str(label), *map(repr, logits)]) for label, logits in pairs]
    path.write_text("\n".join(["\t".join(names), *rows]).replace(".", ","))


WRITERS: dict[str, Callable[[cb.Predictions, Path], None]] = {
    "a.npz": cb.write_predictions,
    "b.parquet": cb.write_predictions,
    "c.parquet": write_lists,
    "d.safetensors": cb.write_predictions,
    "e.csv": cb.write_predictions,
    "f-logits.npy": cb.write_predictions,
    "g.h5": write_hdf5,
    "h.arrow": write_arrow,
    "i.pt": write_torch,
    "j.jsonl": write_json_lines,
    "k.tsv": write_tabs,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Eleven files of as many formats."""
    for i, (name, write) in enumerate(WRITERS.items()):
        write(rows(10 + i, seed=i), tmp_path / name)
    (tmp_path / "README.md").write_text("no predictions")
    return tmp_path


def everything() -> cb.Predictions:
    parts = [rows(10 + i, seed=i) for i in range(len(WRITERS))]
    logits = np.concatenate([part.scores for part in parts])
    return cb.Predictions.from_logits(logits, np.concatenate([part.labels for part in parts]))


def assert_holds_everything(shards: cb.Shards) -> None:
    batches = list(shards.batches())
    whole = everything()
    np.testing.assert_array_equal(np.concatenate([batch.labels for batch in batches]), whole.labels)
    np.testing.assert_array_equal(np.concatenate([batch.scores for batch in batches]), whole.scores)


def test_a_folder_of_all_formats_is_one_set(folder: Path) -> None:
    shards = cb.Shards(folder)
    assert [Path(shard.where).name for shard in shards] == list(WRITERS)
    assert (shards.rows, shards.n_classes, shards.kind) == (165, CLASSES, "logits")
    assert_holds_everything(shards)


def test_a_url_is_as_good_as_a_path(folder: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    try:
        for file in folder.iterdir():
            memory.pipe(f"/shards/{file.name}", file.read_bytes())
        assert_holds_everything(cb.Shards("memory://shards"))
        assert len(cb.Shards("memory://shards/*.parquet")) == 2
        with pytest.raises(
            PredictionsError, match=r"^memory://shards/x.npz: there is no such file"
        ):
            cb.Shards("memory://shards/x.npz")
    finally:
        memory.rm("/shards", recursive=True)


def test_batches_are_bounded_and_begin_where_they_should(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calibrant.scale.shards.BATCH_NUMBERS", 3 * CLASSES)
    shards = cb.Shards(folder)
    assert max(len(batch) for batch in shards.batches()) == 3
    assert_holds_everything(shards)
    places = [batch.place for shard in shards for batch in shard.batches()]
    assert places[:4] == [0, 3, 6, 9]
    assert places[-1] == 163


def test_some_rows_can_be_read_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibrant.scale.shards.BATCH_NUMBERS", 3 * CLASSES)
    whole, start = everything(), 0
    for shard in cb.Shards(folder):
        chosen = np.array([1, 7, 8])
        found = [batch.predictions.labels for batch in shard.batches(chosen=chosen)]
        np.testing.assert_array_equal(np.concatenate(found), whole.labels[start + chosen])
        start += shard.rows


def test_patterns_and_manifests_name_files(folder: Path) -> None:
    assert len(cb.Shards(folder / "*.parquet")) == 2
    listed = folder / "shards.txt"
    listed.write_text("# two of them\nb.parquet\n\na.npz\n")
    assert [Path(place).name for place in located(listed)] == ["b.parquet", "a.npz"]
    (folder / "shards.json").write_text(json.dumps({"shards": ["d.safetensors"]}))
    assert [Path(place).name for place in located(folder / "shards.json")] == ["d.safetensors"]
    assert sorted(["p-10.npz", "p-9.npz"], key=by_number) == ["p-9.npz", "p-10.npz"]


def test_what_stands_for_many_files(folder: Path) -> None:
    assert stands_for_many([folder])
    assert stands_for_many([folder / "*.npz"])
    assert stands_for_many([folder / "a.npz", folder / "e.csv"])
    assert stands_for_many(["s3://bucket/a.npz"])
    assert not stands_for_many([folder / "a.npz"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("*.xyz", "no file of predictions matches this pattern"),
        ("none.npz", "there is no such file"),
        ("README.md", "the extension '.md' is unknown"),
    ],
)
def test_what_isnt_there_is_said(folder: Path, name: str, message: str) -> None:
    with pytest.raises(PredictionsError, match=message):
        cb.Shards(folder / name)


def test_a_file_counts_once(folder: Path) -> None:
    with pytest.raises(InputError, match="is named twice"):
        cb.Shards([folder / "a.npz", folder])


def test_a_shard_of_other_classes_is_refused_by_its_header(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(folder / "z.npz", logits=np.zeros((5, 3)), labels=np.zeros(5))
    monkeypatch.setattr(Shard, "batches", None)
    with pytest.raises(PredictionsError, match=r"z.npz: has 3 classes, but .*a.npz has 4"):
        cb.Shards(folder)


def test_a_shard_of_another_kind_is_refused(folder: Path) -> None:
    np.savez(folder / "z.npz", probs=np.full((5, 4), 0.25), labels=np.zeros(5))
    with pytest.raises(PredictionsError, match=r"z.npz: holds probs, but .*a.npz holds logits"):
        cb.Shards(folder)


def test_labels_of_another_length_are_refused_by_their_header(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", logits=np.zeros((5, 3)), labels=np.zeros(4))
    with pytest.raises(PredictionsError, match="'labels' has 4 entries, but there are 5 rows"):
        cb.Shards(tmp_path)


@pytest.mark.parametrize("name", list(WRITERS))
def test_a_bad_row_is_named_by_its_number_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("calibrant.scale.shards.BATCH_NUMBERS", 3 * CLASSES)
    bad = rows(10)
    bad.scores[7, 2] = np.nan
    WRITERS[name](bad, tmp_path / name)
    place = "line 9, column 'logit_2'" if name.endswith(("csv", "tsv")) else r"row 7\b"
    with pytest.raises(PredictionsError, match=rf"^.*{name}.*{place}"):
        list(cb.Shards(tmp_path / name).batches())


def test_a_cell_that_is_no_number_is_named_by_its_line(tmp_path: Path) -> None:
    cb.write_predictions(rows(10), tmp_path / "a.csv")
    text = (tmp_path / "a.csv").read_text().splitlines()
    text[5] = "x" + text[5]
    (tmp_path / "a.csv").write_text("\n".join(text))
    with pytest.raises(PredictionsError, match=r"a.csv: line 6, column 'label': expected a whole"):
        list(cb.Shards(tmp_path).batches())


def test_a_label_out_of_range_is_named_by_its_row_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calibrant.scale.shards.BATCH_NUMBERS", 3 * CLASSES)
    labels = np.arange(10) % CLASSES
    labels[8] = CLASSES
    np.savez(tmp_path / "a.npz", logits=np.zeros((10, CLASSES)), labels=labels)
    with pytest.raises(PredictionsError, match=r"a.npz: 'labels' must be .* row 8 holds 4"):
        list(cb.Shards(tmp_path).batches())


def test_a_file_cut_short_is_said_to_be(folder: Path) -> None:
    whole = (folder / "d.safetensors").read_bytes()
    (folder / "d.safetensors").write_bytes(whole[:-20])
    with pytest.raises(PredictionsError, match=r"d.safetensors: .*cut short"):
        list(cb.Shards(folder / "d.safetensors").batches())


def test_broken_headers_are_left_out_only_when_asked_to(folder: Path) -> None:
    (folder / "c.parquet").write_bytes(b"none")
    with pytest.raises(PredictionsError, match=r"c.parquet: can't read"):
        cb.Shards(folder)
    shards = cb.Shards(folder, skip_broken=True)
    assert [Path(name).name for name in shards.broken] == ["c.parquet"]
    assert len(shards) == len(WRITERS) - 1


def test_bfloat16_and_columns_in_fortran_order_are_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    wide = torch.tensor([[1.5, 0.0, -2.25], [0.0, 3.0, 1.0]], dtype=torch.bfloat16)
    save_file({"logits": wide, "labels": torch.tensor([0, 1])}, tmp_path / "a.safetensors")
    np.save(tmp_path / "b-logits.npy", np.asfortranarray(wide.float().numpy()))
    np.save(tmp_path / "b-labels.npy", np.array([0, 1]))
    for batch in cb.Shards(tmp_path).batches():
        np.testing.assert_array_equal(batch.scores, wide.float().numpy())


def test_a_pair_of_tensors_is_read_once_it_is_said_what_the_first_is(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    some = rows(6)
    torch.save((torch.tensor(some.scores), torch.tensor(some.labels)), tmp_path / "a.pt")
    with pytest.raises(PredictionsError, match=r"a.pt: holds a tuple of tensors"):
        cb.Shards(tmp_path / "a.pt")
    (batch,) = cb.Shards(tmp_path / "a.pt", are="logits").batches()
    np.testing.assert_array_equal(batch.scores, some.scores)
    np.testing.assert_array_equal(batch.labels, some.labels)


def test_json_lines_name_the_line_that_cant_be_read(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"label": 0, "logits": [1, 2]}\n{"label": 1, "logits": [1, 2, 3]}\n')
    with pytest.raises(PredictionsError, match=r"line 2: lists of 'logits' differ in length"):
        list(cb.Shards(file).batches())
    file.write_text('{"label": 0, "logits": [1, 2]}\n\n[1]\n')
    with pytest.raises(PredictionsError, match=r"a.jsonl: line 3 is no JSON object"):
        list(cb.Shards(file).batches())
    file.write_text("\n")
    with pytest.raises(PredictionsError, match=r"a.jsonl: is empty"):
        cb.Shards(file)


def test_rows_of_named_classes_stay_so_in_json_lines(tmp_path: Path) -> None:
    row = {"label": "dog", "probs": {"cat": 0.5, "dog": 0.5}}
    (tmp_path / "in.jsonl").write_text(json.dumps(row) + "\n")
    shards = cb.Shards(tmp_path / "in.jsonl")
    plain = cb.make_calibrator("none").fit_predictions(next(shards.batches()))
    done = plain.apply_predictions(shards, str(tmp_path / "out"), engine=cb.Engine(workers=1))
    added = {"predicted": "cat", "confidence": 0.5}
    assert json.loads(Path(done.written[0]).read_text()) == row | added


# --- binary predictions


@pytest.fixture(scope="module")
def binary_shards(tmp_path_factory: pytest.TempPathFactory):
    """Three files of log odds that are too large and too high, with ten rows a patient."""
    rng = np.random.default_rng(3)
    honest = rng.normal(scale=1.5, size=6000)
    labels = (rng.random(6000) < 1 / (1 + np.exp(-honest))).astype(int)
    scores, patient = 1.7 * honest + 0.8, np.arange(6000) // 10
    folder = tmp_path_factory.mktemp("binary")
    for i in range(3):
        part = slice(2000 * i, 2000 * (i + 1))
        np.savez(
            folder / f"part-{i}.npz", logit=scores[part], labels=labels[part], patient=patient[part]
        )
    return folder, cb.Predictions.from_binary(scores, labels, kind="logit", clusters=patient)


def test_binary_shards_show_the_positive_class_as_one_file_does(binary_shards):
    folder, rows = binary_shards
    whole = cb.evaluate(rows.with_clusters(None), resamples=400)
    found = cb.evaluate(cb.Shards(folder), engine=cb.Engine(workers=1), resamples=400)
    assert list(found.results) == list(whole.results)
    for name, result in whole.results.items():
        other, width = found[name], result.high - result.low
        assert other.value == pytest.approx(result.value, abs=2e-4), name
        assert abs(other.low - result.low) + abs(other.high - result.high) < 0.4 * width, name
        assert (other.floor is None) == (result.floor is None)
        if result.floor is not None:
            assert other.floor == pytest.approx(result.floor, rel=0.2), name
    assert found.mean_probability == pytest.approx(whole.mean_probability, abs=1e-12)
    assert found.positive_share == whole.positive_share
    assert found.positive_gap == pytest.approx(whole.positive_gap, abs=1e-9)
    assert found.as_dict()["positive"]["finding"] == whole.as_dict()["positive"]["finding"]
    assert "the positive class has a mean probability" in str(found).lower()


def test_binary_shards_resample_clusters_and_make_groups_by_the_positive_class(binary_shards):
    folder, rows = binary_shards
    names, one = ["ece_positive", "log_loss", "slope_positive"], cb.Engine(workers=1)
    found = cb.evaluate(
        cb.Shards(folder), metrics=names, clusters="patient", engine=one, resamples=300
    )
    whole = cb.evaluate(rows, metrics=names, resamples=300)
    for name in names:
        width = whole[name].high - whole[name].low
        assert found[name].value == pytest.approx(whole[name].value, abs=2e-4)
        assert found[name].high - found[name].low == pytest.approx(width, rel=0.3)
    grouped = cb.evaluate_by(
        cb.Shards(folder), "predicted", metrics=names, engine=one, resamples=99
    )
    apart = cb.evaluate_by(rows.with_clusters(None), "predicted", metrics=names, resamples=99)
    assert grouped.miscalibrated == apart.miscalibrated == ["0", "1"]
    for name, group in apart.groups.items():
        assert grouped[name]["ece_positive"].value == pytest.approx(
            group["ece_positive"].value, abs=1e-3
        )
        assert grouped[name].mean_probability == pytest.approx(group.mean_probability, abs=1e-12)
    assert "probability" in str(grouped).splitlines()[2]


def test_shards_of_several_classes_have_no_positive_class(tmp_path: Path):
    np.savez(tmp_path / "a.npz", probs=[[0.75, 0.25]] * 20, labels=[0] * 15 + [1] * 5)
    one = cb.Engine(workers=1)
    found = cb.evaluate(
        cb.Shards(tmp_path), metrics=["ece", "ece_positive"], engine=one, resamples=20
    )
    assert list(found.results) == ["ece"]
    assert "have to be declared" in found.skipped["ece_positive"]
    declared = cb.Shards(tmp_path, kind="binary")
    found = cb.evaluate(declared, metrics=["ece_positive"], engine=one, resamples=20)
    assert found["ece_positive"].value == pytest.approx(0.0, abs=1e-12)


def test_a_whole_number_in_quotes_in_the_first_line_is_a_score(tmp_path: Path) -> None:
    lines = ['{"confidence": "1", "pred_label": 2, "true_label": 0}']
    lines += ['{"confidence": 0.5, "pred_label": 1, "true_label": 1}'] * 30
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(lines))
    expected = cb.read_predictions(file)
    assert expected.scores[0] == 1
    (found,) = cb.Shards([file]).batches()
    np.testing.assert_array_equal(found.scores, expected.scores)
