"""A file gives the same rows, or the same error, whole, in batches, as shards and by a worker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import calibrant as cb
from calibrant.core.errors import CalibrantError, PredictionsError
from calibrant.files import ReadFields, ReadOptions, read_predictions, write_predictions
from calibrant.files.reading import PredictionFile
from calibrant.scale.sampling import sample
from calibrant.scale.shards import Shards

ROWS = 23
RNG = np.random.default_rng(5)
LOGITS = RNG.normal(scale=2, size=(ROWS, 3))
PROBS = np.asarray(cb.predictions.softmax(LOGITS))
LABELS = RNG.integers(3, size=ROWS)
NAMES = ("cat", "dog", "emu")
WEIGHTS = RNG.integers(0, 4, size=ROWS).astype(float)
EVENTS = RNG.integers(2, size=ROWS)

SETS: dict[str, tuple[cb.Predictions, dict[str, Any]]] = {
    "logits": (cb.Predictions.from_logits(LOGITS, LABELS), {}),
    "weights": (cb.Predictions.from_logits(LOGITS, LABELS, sample_weight=WEIGHTS), {}),
    "features": (cb.Predictions.from_logits(LOGITS, LABELS, LOGITS[:, :2]), {}),
    "probs": (cb.Predictions.from_probs(PROBS, LABELS), {}),
    "named": (cb.Predictions.from_probs(PROBS, LABELS, class_names=NAMES), {}),
    "binary": (cb.Predictions.from_binary(PROBS[:, 0], EVENTS), {}),
    "log odds": (cb.Predictions.from_binary(LOGITS[:, 0], EVENTS, kind="logit"), {}),
    "two columns": (cb.Predictions.from_logits(LOGITS[:, :2], EVENTS), {"kind": "binary"}),
    "confidence": (
        cb.Predictions.from_confidence(PROBS.max(axis=1), PROBS.argmax(axis=1), LABELS),
        {},
    ),
    "named confidence": (
        cb.Predictions.from_confidence(
            PROBS.max(axis=1), np.array(NAMES)[PROBS.argmax(axis=1)], np.array(NAMES)[LABELS]
        ),
        {},
    ),
    "scores": (
        cb.Predictions.from_scores(
            LOGITS[:, 0] * 40, predicted=PROBS.argmax(axis=1), labels=LABELS
        ),
        {"are": "score"},
    ),
    "unlabelled": (cb.Predictions.from_logits(LOGITS, None), {"labelled": False}),
}
WHOLE_ONLY: dict[str, tuple[cb.Predictions, dict[str, Any]]] = {
    "many labels": (
        cb.Predictions.from_many_labels(PROBS, RNG.integers(2, size=(ROWS, 3))),
        {"kind": "many-labels"},
    ),
    "tokens": (
        cb.Predictions.from_tokens(LOGITS[:20].reshape(5, 4, 3), LABELS[:20].reshape(5, 4)),
        {"kind": "tokens"},
    ),
}
WRITTEN = (".npz", ".npy", ".csv", ".tsv", ".parquet", ".safetensors", ".jsonl", ".h5", ".arrow")
FIELDS = ("scores", "known_labels", "predicted", "features", "weights")


def place_of(folder: Path, rows: cb.Predictions, extension: str) -> Path:
    key = "confidence" if rows.kind == "toplabel" else rows.form
    return folder / (f"a-{key}.npy" if extension == ".npy" else f"a{extension}")


def in_batches(path: Path, options: ReadOptions, step: int) -> cb.Predictions:
    with PredictionFile(str(path), options) as file:
        spans = [slice(a, min(a + step, file.rows)) for a in range(0, file.rows, step)]
        parts = [rows for rows, _ in file.batches(spans, features=True)]
    return cb.Predictions.concatenate(parts, source=str(path))


def ways(path: Path, options: ReadOptions) -> Iterator[tuple[str, Callable[[], cb.Predictions]]]:
    """Every way to read all rows of a file that can be read in parts."""
    yield "whole", lambda: read_predictions(path, options)
    for step in (1, 7, ROWS):
        yield f"by {step}", lambda step=step: in_batches(path, options, step)

    def as_shards(workers: int) -> cb.Predictions:
        shards = Shards(path, options)
        return sample(shards, shards.rows, 0, cb.Engine(workers=workers))

    yield "as shards", lambda: as_shards(1)


def outcome(read: Callable[[], cb.Predictions]) -> cb.Predictions | str:
    """Rows, or the error; anything else than the one class of errors isn't caught."""
    try:
        return read()
    except CalibrantError as error:
        return str(error)


def assert_same(found: cb.Predictions | str, expected: cb.Predictions | str, way: str) -> None:
    if isinstance(found, str) or isinstance(expected, str):
        assert found == expected, way
        return
    assert (found.form, found.class_names) == (expected.form, expected.class_names), way
    for field in FIELDS:
        ours, theirs = getattr(found, field), getattr(expected, field)
        assert (ours is None) == (theirs is None), (way, field)
        if ours is not None:
            np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs), err_msg=way)


def assert_all_ways_agree(path: Path, options: ReadOptions) -> cb.Predictions | str:
    every = list(ways(path, options))
    expected = outcome(every[0][1])
    for way, read in every[1:]:
        assert_same(outcome(read), expected, f"{path.name} {way}")
    return expected


@pytest.mark.parametrize("extension", WRITTEN)
@pytest.mark.parametrize("name", SETS)
def test_every_format_and_kind_is_read_alike_in_all_ways(
    name: str, extension: str, tmp_path: Path
) -> None:
    rows, how = SETS[name]
    path = place_of(tmp_path, rows, extension)
    write_predictions(rows, path)
    found = assert_all_ways_agree(path, ReadOptions(**how))
    if isinstance(found, str):
        raise AssertionError(found)
    if extension == ".safetensors" and name == "named confidence":
        rows = replace(rows, class_names=None)  # it holds numbers only
    assert_same(found, rows.as_binary() if name == "two columns" else rows, "as written")


@pytest.mark.parametrize("extension", [".npz", ".npy", ".safetensors", ".h5", ".csv", ".parquet"])
@pytest.mark.parametrize("name", WHOLE_ONLY)
def test_rows_of_several_predictions_come_back_or_are_refused(
    name: str, extension: str, tmp_path: Path
) -> None:
    rows, how = WHOLE_ONLY[name]
    key = f"{rows.form}s" if name == "many labels" else rows.form
    path = tmp_path / (f"a-{key}.npy" if extension == ".npy" else f"a{extension}")
    if name == "tokens" and extension in (".csv", ".parquet"):
        with pytest.raises(CalibrantError, match="is no column of a table"):
            write_predictions(rows, path)
        return
    write_predictions(rows, path)
    assert_same(read_predictions(path, ReadOptions(**how)), rows, "as written")
    with pytest.raises(PredictionsError, match="aren't read in parts yet"):
        Shards(path, ReadOptions(**how))


def test_workers_see_what_is_seen_here(tmp_path: Path) -> None:
    # Text and Parquet in turn: each of the processes takes longer to load what reads them.
    for place, (name, (rows, how)) in enumerate(SETS.items()):
        for extension in (".npz", (".csv", ".parquet")[place % 2]):
            folder = tmp_path / f"{name}{extension}"
            folder.mkdir()
            for part in range(2):
                index = np.arange(part, ROWS, 2)
                write_predictions(
                    rows.take(index),
                    place_of(folder, rows, extension).with_stem(
                        f"{part}-{'confidence' if rows.kind == 'toplabel' else rows.form}"
                    ),
                )
            shards = Shards(folder, ReadOptions(**how))
            here, there = (
                sample(shards, shards.rows, 0, cb.Engine(workers=workers)) for workers in (1, 2)
            )
            assert_same(there, here, folder.name)


# --- faults, one a file


def saved(path: Path, columns: dict[str, list[Any]]) -> Path:
    """Write columns as they are; lists become arrays where a format has them."""
    if path.suffix in (".csv", ".tsv"):
        mark = "," if path.suffix == ".csv" else "\t"
        lines = [
            mark.join(columns),
            *(mark.join(map(str, row)) for row in zip(*columns.values(), strict=False)),
        ]
        path.write_text("\n".join(lines) + "\n")
    elif path.suffix == ".jsonl":
        rows = (
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=False)
        )
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    elif path.suffix == ".feather":
        with pa.OSFile(str(path), "wb") as sink:
            table = pa.table(columns)
            with pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table, max_chunksize=4)
    else:
        arrays = {}
        for stem, key in (("logit", "logits"), ("prob", "probs")):
            own = [
                np.array(column) for name, column in columns.items() if name.startswith(f"{stem}_")
            ]
            if own:
                arrays[key] = np.stack(own, axis=1)
        arrays |= {
            n: np.array(c) for n, c in columns.items() if not n.startswith(("logit_", "prob_"))
        }
        if path.suffix == ".npz":
            np.savez(path, **arrays)
        else:
            torch.save({name: torch.as_tensor(array) for name, array in arrays.items()}, path)
    return path


def logits_of(**change: Any) -> dict[str, list[Any]]:
    return {
        "label": LABELS.tolist(),
        **{f"logit_{k}": LOGITS[:, k].tolist() for k in range(3)},
    } | change


def changed(values: list[Any], place: int, value: Any) -> list[Any]:
    return [*values[:place], value, *values[place + 1 :]]


FAULTS: dict[str, dict[str, list[Any]]] = {
    "label out of range": logits_of(label=changed(LABELS.tolist(), 17, 3)),
    "label between": logits_of(label=changed([float(y) for y in LABELS], 17, 0.5)),
    "nan": logits_of(logit_1=changed(LOGITS[:, 1].tolist(), 17, float("nan"))),
    "no labels": {k: v for k, v in logits_of().items() if k != "label"},
    "two labels": logits_of(labels=LABELS.tolist()),
    "missing column": {k: v for k, v in logits_of().items() if k != "logit_0"},
    "negative weight": logits_of(weight=changed([1.0] * ROWS, 17, -1.0)),
    "sum": {
        "label": LABELS.tolist(),
        **{f"prob_{k}": changed(PROBS[:, k].tolist(), 17, 0.9) for k in range(3)},
    },
    "confidence": {
        "true_label": LABELS.tolist(),
        "pred_label": LABELS.tolist(),
        "confidence": changed(PROBS[:, 0].tolist(), 17, 1.5),
    },
    "no prediction": {"label": LABELS.tolist(), "confidence": PROBS[:, 0].tolist()},
    "probability": {"label": EVENTS.tolist(), "prob": changed(PROBS[:, 0].tolist(), 17, 1.5)},
    "event": {"label": changed(EVENTS.tolist(), 17, 2), "prob": PROBS[:, 0].tolist()},
    "one name missing": {
        "true_label": [NAMES[y] for y in LABELS],
        "pred_label": changed([NAMES[y] for y in LABELS], 17, "7"),
        "confidence": PROBS[:, 0].tolist(),
    },
    "numbers beside names": {
        "label": LABELS.tolist(),
        **{f"prob_{name}": PROBS[:, k].tolist() for k, name in enumerate(NAMES)},
    },
    "a name of no class": {
        "label": changed([NAMES[y] for y in LABELS], 17, "eel"),
        **{f"prob_{name}": PROBS[:, k].tolist() for k, name in enumerate(NAMES)},
    },
}
# What files of arrays don't have.
OF_TABLES = ("missing column", "numbers beside names", "a name of no class")


@pytest.mark.parametrize(
    "extension", [".csv", ".tsv", ".jsonl", ".parquet", ".feather", ".npz", ".pt"]
)
@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_is_said_in_the_same_words(name: str, extension: str, tmp_path: Path) -> None:
    if extension in (".npz", ".pt") and (
        name in OF_TABLES or (extension == ".pt" and "name" in name)
    ):
        return
    path = saved(tmp_path / f"a{extension}", FAULTS[name])
    found = assert_all_ways_agree(path, ReadOptions())
    assert isinstance(found, str)
    assert found.startswith(str(path))
    assert "\n" not in found


# --- any columns


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_columns_are_read_alike(data: st.DataObject) -> None:
    """Columns of every kind of cell under the usual names: the same rows or the same error."""
    rows = data.draw(st.integers(1, 9))
    numbers = st.floats(0, 1, width=32) | st.sampled_from([0.5, 1.0, 7.0, -1.0, float("nan")])
    words = st.sampled_from(["cat", "dog", "0", "1", "None", ""])
    whole = st.integers(0, 2)
    column = st.one_of(
        *(st.lists(one, min_size=rows, max_size=rows) for one in (numbers, whole, words))
    )
    names = data.draw(
        st.lists(
            st.sampled_from(
                [
                    *[
                        "label",
                        "true_label",
                        "pred_label",
                        "confidence",
                        "prob",
                        "logit",
                        "weight",
                        "correct",
                    ],
                    *["logit_0", "logit_1", "prob_cat", "prob_dog", "prob_0", "prob_1"],
                ]
            ),
            min_size=1,
            max_size=6,
            unique=True,
        )
    )
    columns = {name: data.draw(column) for name in names}
    with TemporaryDirectory() as folder:
        for extension in (".csv", ".jsonl", ".parquet"):
            path = saved(Path(folder, f"a{extension}"), columns)
            expected = outcome(lambda path=path: read_predictions(path))
            for step in (1, 4):
                found = outcome(lambda path=path, step=step: in_batches(path, ReadOptions(), step))
                if isinstance(expected, str) and isinstance(found, str):
                    continue  # of several faults the first batch may show another one first
                assert_same(found, expected, f"{path.name} by {step}: {columns}")


def test_the_fields_by_name_are_those_of_the_options() -> None:
    assert get_type_hints(ReadFields) == get_type_hints(ReadOptions)
