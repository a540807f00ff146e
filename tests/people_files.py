"""Files as people have them: the same few predictions in other names, forms, units and formats.

Each is a function that writes one, registered with what the rows of it truly are. Whoever reads one
compares with `TRUTH`.
"""

from __future__ import annotations

import csv
import gzip
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.numpy import save_file

import calibrant as cb
from calibrant.core.errors import CalibrantError, heard_warnings
from calibrant.files import ReadOptions, read_predictions

ROWS, K = 300, 5
NAMES = ["ant", "bee", "cat", "dog", "eel"]
RNG = np.random.default_rng(31)
LABELS = RNG.integers(K, size=ROWS)
LOGITS = RNG.normal(size=(ROWS, K)) + 3.0 * np.eye(K)[LABELS]
# No logits of a network are centred.
LOGITS += RNG.normal(size=(ROWS, 1))
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
SAID = PROBS.argmax(axis=1)
TOP = PROBS.max(axis=1)
RIGHT = SAID == LABELS
WORDS = np.array(NAMES)
# One event.
EVENT = RNG.integers(2, size=ROWS)
ODDS = RNG.normal(size=ROWS) * 1.5 + 3.0 * (EVENT - 0.5)
CHANCE = 1 / (1 + np.exp(-ODDS))


class Case(NamedTuple):
    """A file: what writes it into a folder, what it is of, and how exactly it says so.

    Attributes:
        write: returns the path.
        of: "classes", "top" for a confidence in a predicted class, or "event".
        atol: how far off a probability may be.
        readable: whether some options read it.
    """

    write: Callable[[Path], Path]
    of: str
    atol: float
    readable: bool


CASES: dict[str, Case] = {}


def case(
    of: str = "classes", atol: float = 1e-6, *, readable: bool = True
) -> Callable[[Callable[[Path], Path]], Callable[[Path], Path]]:
    def register(write: Callable[[Path], Path]) -> Callable[[Path], Path]:
        CASES[write.__name__] = Case(write, of, atol, readable)
        return write

    return register


def table(path: Path, sep: str = ",", decimal: str = ".", **columns: Any) -> Path:
    """Write columns as text; numbers in full."""

    def text(cell: Any) -> str:
        return str(cell).replace(".", decimal) if isinstance(cell, float) else str(cell)

    cells = [np.asarray(column).tolist() for column in columns.values()]
    lines = [sep.join(columns), *(sep.join(map(text, row)) for row in zip(*cells, strict=True))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def by(stem: str, scores: Any, ends: list[Any] | None = None) -> dict[str, Any]:
    """Return columns of scores, numbered or named."""
    ends = list(range(K)) if ends is None else ends
    return {f"{stem}{end}": np.asarray(scores)[:, k] for k, end in enumerate(ends)}


def lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


# --- names of keys and columns


@case()
def plain_npz(d: Path) -> Path:
    return npz(d / "a.npz", logits=LOGITS, labels=LABELS)


@case()
def outputs_and_targets(d: Path) -> Path:
    return npz(d / "a.npz", outputs=LOGITS, targets=LABELS)


@case()
def y_prob_y_true(d: Path) -> Path:
    return npz(d / "a.npz", y_prob=PROBS, y_true=LABELS)


@case()
def y_score_y_test_y_pred(d: Path) -> Path:
    return npz(d / "a.npz", y_score=PROBS, y_test=LABELS, y_pred=SAID)


@case()
def preds_and_gts(d: Path) -> Path:
    return npz(d / "a.npz", preds=PROBS.astype(np.float32), gts=LABELS.astype(np.uint8))


@case()
def sklearn_with_its_classes(d: Path) -> Path:
    return npz(d / "a.npz", proba=PROBS, y_test=WORDS[LABELS], classes_=WORDS)


@case()
def sklearn_with_numbers_as_classes(d: Path) -> Path:
    return npz(d / "a.npz", predict_proba=PROBS, y=LABELS, classes_=np.arange(K))


@case()
def keras_history(d: Path) -> Path:
    return npz(d / "a.npz", x=RNG.normal(size=(ROWS, 8)), y=LABELS, predictions=PROBS)


@case()
def arrays_without_names(d: Path) -> Path:
    np.savez(d / "a.npz", LOGITS, LABELS)
    return d / "a.npz"


@case()
def labels_as_a_column(d: Path) -> Path:
    return npz(d / "a.npz", logits=LOGITS, labels=LABELS[:, None])


@case()
def labels_as_floats(d: Path) -> Path:
    return npz(d / "a.npz", probs=PROBS, labels=LABELS.astype(float))


@case()
def pandas_index(d: Path) -> Path:
    return table(d / "a.csv", **{"": np.arange(ROWS), "label": LABELS}, **by("prob_", PROBS))


@case()
def unnamed_0(d: Path) -> Path:
    own = {"Unnamed: 0": np.arange(ROWS), "target": LABELS}
    return table(d / "a.csv", **own, **by("class_", PROBS))


@case()
def bare_numbers_as_columns(d: Path) -> Path:
    return table(d / "a.csv", **by("", PROBS), y=LABELS)


@case()
def numbers_from_one(d: Path) -> Path:
    return table(d / "a.csv", **by("p", PROBS, list(range(1, K + 1))), label=LABELS)


@case()
def columns_from_one_and_labels_too(d: Path) -> Path:
    return table(d / "a.csv", **by("prob_", PROBS, list(range(1, K + 1))), label=LABELS + 1)


@case()
def kaggle_submission(d: Path) -> Path:
    ids = [f"img_{i:04d}.jpg" for i in range(ROWS)]
    return table(d / "a.csv", image=ids, **by("", PROBS, NAMES), label=WORDS[LABELS])


@case()
def kaggle_with_capitals(d: Path) -> Path:
    return table(d / "a.csv", Id=np.arange(ROWS), **by("Class_", PROBS), Label=LABELS)


@case()
def columns_named_after_classes_in_another_order(d: Path) -> Path:
    turned = [3, 1, 4, 0, 2]
    own = by("prob_", PROBS[:, turned], [NAMES[k] for k in turned])
    return table(d / "a.csv", label=WORDS[LABELS], **own)


@case(readable=False)
def columns_named_after_classes_and_numbers(d: Path) -> Path:
    turned = [3, 1, 4, 0, 2]
    own = by("prob_", PROBS[:, turned], [NAMES[k] for k in turned])
    return table(d / "a.csv", label=LABELS, **own)


# --- formats


@case()
def semicolons_and_decimal_commas(d: Path) -> Path:
    return table(d / "a.csv", ";", ",", label=LABELS, **by("prob_", PROBS))


@case()
def with_a_mark_of_order(d: Path) -> Path:
    path = table(d / "a.csv", label=LABELS, **by("prob_", PROBS))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    return path


@case()
def tabs_in_a_csv(d: Path) -> Path:
    return table(d / "a.csv", "\t", label=LABELS, **by("logit_", LOGITS))


@case()
def spaces_after_commas(d: Path) -> Path:
    return table(d / "a.csv", ", ", y_true=LABELS, **by("score_", PROBS))


@case()
def text_file(d: Path) -> Path:
    return table(d / "a.txt", label=LABELS, **by("prob_", PROBS))


@case()
def parquet_of_lists(d: Path) -> Path:
    pq.write_table(pa.table({"probs": PROBS.tolist(), "label": LABELS}), d / "a.parquet")
    return d / "a.parquet"


@case()
def parquet_of_other_lists(d: Path) -> Path:
    columns = {"text": ["x"] * ROWS, "scores": PROBS.tolist(), "gold": LABELS}
    pq.write_table(pa.table(columns), d / "a.parquet")
    return d / "a.parquet"


@case(atol=1e-3)
def arrow_in_float32(d: Path) -> Path:
    columns = {"logits": LOGITS.astype(np.float32).tolist(), "labels": LABELS}
    with pa.OSFile(str(d / "a.arrow"), "wb") as sink:
        whole = pa.table(columns)
        with pa.ipc.new_file(sink, whole.schema) as writer:
            writer.write_table(whole)
    return d / "a.arrow"


@case(readable=False)
def hdf5_in_groups(d: Path) -> Path:
    import h5py

    with h5py.File(d / "a.h5", "w") as file:
        file["val/logits"], file["val/labels"] = LOGITS[:9], LABELS[:9]
        file["test/logits"], file["test/labels"] = LOGITS, LABELS
    return d / "a.h5"


@case()
def safetensors_of_other_names(d: Path) -> Path:
    save_file({"out": LOGITS, "y": LABELS}, d / "a.safetensors")
    return d / "a.safetensors"


@case()
def torch_pair(d: Path) -> Path:
    torch.save((torch.from_numpy(LOGITS), torch.from_numpy(LABELS)), d / "a.pt")
    return d / "a.pt"


@case()
def json_lines_with_lists(d: Path) -> Path:
    rows = zip(PROBS.tolist(), LABELS.tolist(), strict=True)
    return lines(
        d / "a.jsonl", [{"id": i, "probs": p, "label": y} for i, (p, y) in enumerate(rows)]
    )


@case()
def json_lines_by_class_sorted_by_score(d: Path) -> Path:
    rows = []
    for p, y in zip(PROBS.tolist(), LABELS, strict=True):
        scores = sorted(zip(NAMES, p, strict=True), key=lambda pair: -pair[1])
        rows.append({"label": NAMES[y], "probs": dict(scores)})
    return lines(d / "a.jsonl", rows)


@case()
def pipeline_of_hugging_face(d: Path) -> Path:
    rows = []
    for p, y in zip(PROBS.tolist(), LABELS, strict=True):
        scores = sorted(zip(NAMES, p, strict=True), key=lambda pair: -pair[1])
        rows.append({"gold": NAMES[y], "scores": [{"label": n, "score": s} for n, s in scores]})
    return lines(d / "a.jsonl", rows)


@case()
def zero_shot_pipeline(d: Path) -> Path:
    rows = []
    for p, y in zip(PROBS.tolist(), LABELS, strict=True):
        scores = sorted(zip(NAMES, p, strict=True), key=lambda pair: -pair[1])
        labels, values = zip(*scores, strict=True)
        rows.append({"sequence": "x", "labels": labels, "scores": values, "true": NAMES[y]})
    return lines(d / "a.jsonl", rows)


@case("top")
def pipeline_top_one(d: Path) -> Path:
    rows = zip(WORDS[SAID].tolist(), TOP.tolist(), WORDS[LABELS].tolist(), strict=True)
    return lines(d / "a.jsonl", [{"label": s, "score": c, "gold": y} for s, c, y in rows])


@case(readable=False)
def excel(d: Path) -> Path:
    (d / "a.xlsx").write_bytes(b"PK\x03\x04nothing")
    return d / "a.xlsx"


@case(readable=False)
def pickled(d: Path) -> Path:
    import pickle

    (d / "a.pkl").write_bytes(pickle.dumps({"probs": PROBS, "labels": LABELS}))
    return d / "a.pkl"


@case()
def one_json_array(d: Path) -> Path:
    rows = zip(PROBS.tolist(), LABELS.tolist(), strict=True)
    (d / "a.json").write_text(json.dumps([{"probs": p, "label": y} for p, y in rows]))
    return d / "a.json"


# --- units and rounding


@case()
def percent(d: Path) -> Path:
    return table(d / "a.csv", label=LABELS, **by("prob_", 100 * PROBS))


@case(atol=2e-2)
def percent_in_whole_numbers(d: Path) -> Path:
    return table(d / "a.csv", label=LABELS, **by("prob_", np.rint(100 * PROBS).astype(int)))


@case(atol=5e-3)
def percent_of_another_name(d: Path) -> Path:
    return npz(d / "a.npz", percentages=np.round(100 * PROBS, 1), truth=LABELS)


@case()
def percent_called_logits(d: Path) -> Path:
    return npz(d / "a.npz", logits=100 * PROBS, labels=LABELS)


def _rounded(decimals: int) -> None:
    def write(d: Path) -> Path:
        return table(d / "a.csv", label=LABELS, **by("prob_", np.round(PROBS, decimals)))

    write.__name__ = f"rounded_to_{decimals}"
    case(atol=5.1 * 0.5 * 10.0**-decimals)(write)


for _decimals in range(1, 7):
    _rounded(_decimals)


@case(atol=1e-2)
def rounded_and_called_logits(d: Path) -> Path:
    return npz(d / "a.npz", logits=np.round(PROBS, 3), labels=LABELS)


@case()
def probabilities_called_logits(d: Path) -> Path:
    return npz(d / "a.npz", logits=PROBS, labels=LABELS)


@case()
def logits_called_probs(d: Path) -> Path:
    return npz(d / "a.npz", probs=LOGITS, labels=LABELS)


@case()
def log_softmax_called_logits(d: Path) -> Path:
    return npz(d / "a.npz", logits=np.log(PROBS), labels=LABELS)


@case()
def log_softmax_called_probs(d: Path) -> Path:
    return npz(d / "a.npz", probs=np.log(PROBS), labels=LABELS)


@case()
def log_probs_of_another_name(d: Path) -> Path:
    return npz(d / "a.npz", logp=np.log(PROBS), labels=LABELS)


@case(readable=False)
def negative_log_likelihoods(d: Path) -> Path:
    return npz(d / "a.npz", nll=-np.log(PROBS), labels=LABELS)


@case(atol=5e-3)
def half_precision(d: Path) -> Path:
    return npz(d / "a.npz", logits=LOGITS.astype(np.float16), labels=LABELS)


@case(readable=False)
def half_precision_that_overflowed(d: Path) -> Path:
    big = LOGITS * 3e4
    with np.errstate(over="ignore"):
        return npz(d / "a.npz", logits=big.astype(np.float16), labels=LABELS)


@case(atol=5e-3)
def half_precision_probabilities(d: Path) -> Path:
    return npz(d / "a.npz", probs=PROBS.astype(np.float16), labels=LABELS)


@case(readable=False)
def bytes_of_an_image(d: Path) -> Path:
    return npz(d / "a.npz", probs=np.rint(PROBS * 255).astype(np.uint8), labels=LABELS)


@case("event")
def event_in_percent(d: Path) -> Path:
    return table(d / "a.csv", prob=100 * CHANCE, label=EVENT)


@case("event")
def log_odds_called_prob(d: Path) -> Path:
    return table(d / "a.csv", prob=ODDS, label=EVENT)


@case("event")
def probability_called_logit(d: Path) -> Path:
    return table(d / "a.csv", logit=CHANCE, label=EVENT)


@case("top")
def confidence_in_percent(d: Path) -> Path:
    return table(d / "a.csv", confidence=100 * TOP, pred_label=SAID, true_label=LABELS)


@case("top")
def confidence_with_percent_signs(d: Path) -> Path:
    sure = [f"{100 * c:.10f}%" for c in TOP]
    return table(d / "a.csv", confidence=sure, pred_label=SAID, true_label=LABELS)


# --- labels


@case()
def labels_from_one(d: Path) -> Path:
    return npz(d / "a.npz", logits=LOGITS, labels=LABELS + 1)


@case()
def labels_from_one_without_the_last_class(d: Path) -> Path:
    # A class more than the labels have.
    wide = np.concatenate([LOGITS, LOGITS.min(axis=1, keepdims=True) - 9], axis=1)
    return npz(d / "a.npz", logits=wide, labels=LABELS + 1)


@case()
def a_class_for_the_background(d: Path) -> Path:
    wide = np.concatenate([LOGITS.min(axis=1, keepdims=True) - 9, LOGITS], axis=1)
    return npz(d / "a.npz", logits=wide, labels=LABELS)


@case()
def one_hot(d: Path) -> Path:
    return npz(d / "a.npz", probs=PROBS, labels=np.eye(K)[LABELS])


@case()
def one_hot_whole_numbers_of_other_names(d: Path) -> Path:
    return npz(d / "a.npz", y_pred=PROBS, y_true=np.eye(K, dtype=int)[LABELS])


@case()
def one_hot_columns(d: Path) -> Path:
    return table(d / "a.csv", **by("label_", np.eye(K, dtype=int)[LABELS]), **by("prob_", PROBS))


@case()
def one_hot_lists(d: Path) -> Path:
    hot = np.eye(K, dtype=int)[LABELS].tolist()
    pq.write_table(pa.table({"probs": PROBS.tolist(), "label": hot}), d / "a.parquet")
    return d / "a.parquet"


@case()
def labels_as_text_numbers(d: Path) -> Path:
    return lines(
        d / "a.jsonl",
        [{"logits": z, "label": str(y)} for z, y in zip(LOGITS.tolist(), LABELS, strict=True)],
    )


@case("event")
def minus_one_and_one(d: Path) -> Path:
    return table(d / "a.csv", prob=CHANCE, label=2 * EVENT - 1)


@case("event")
def one_and_two(d: Path) -> Path:
    return npz(d / "a.npz", prob=CHANCE, labels=EVENT + 1)


@case("event")
def true_and_false(d: Path) -> Path:
    return table(d / "a.csv", prob=CHANCE, label=EVENT.astype(bool))


@case("event")
def yes_and_no(d: Path) -> Path:
    return table(d / "a.csv", prob=CHANCE, label=np.where(EVENT, "yes", "no"))


@case("event")
def truth_values(d: Path) -> Path:
    return npz(d / "a.npz", logit=ODDS, labels=EVENT.astype(bool))


@case("event")
def the_other_class(d: Path) -> Path:
    return table(d / "a.csv", prob=1 - CHANCE, label=EVENT)


@case("event")
def two_columns_with_truth_values(d: Path) -> Path:
    both = np.stack([1 - CHANCE, CHANCE], axis=1)
    return npz(d / "a.npz", probs=both, labels=EVENT.astype(bool))


@case("event")
def two_columns_with_minus_one(d: Path) -> Path:
    both = np.stack([1 - CHANCE, CHANCE], axis=1)
    return npz(d / "a.npz", probs=both, labels=2 * EVENT - 1)


@case(readable=False)
def shuffled_labels(d: Path) -> Path:
    return npz(d / "a.npz", probs=PROBS, labels=np.random.default_rng(0).permutation(LABELS))


@case(readable=False)
def columns_in_another_order(d: Path) -> Path:
    return npz(d / "a.npz", probs=PROBS[:, [1, 2, 3, 4, 0]], labels=LABELS)


@case(readable=False)
def scores_sorted(d: Path) -> Path:
    return npz(d / "a.npz", probs=-np.sort(-PROBS, axis=1), labels=LABELS)


# --- columns that are no class


@case()
def with_a_maximum(d: Path) -> Path:
    return table(d / "a.csv", label=LABELS, **by("prob_", PROBS), prob_max=TOP)


@case()
def logits_with_a_maximum(d: Path) -> Path:
    own = by("logit_", LOGITS)
    return table(d / "a.csv", label=LABELS, **own, logit_max=LOGITS.max(axis=1))


@case()
def with_a_prediction(d: Path) -> Path:
    return table(d / "a.csv", label=LABELS, pred=SAID, conf=TOP, **by("score_", PROBS))


@case(readable=False)
def maximum_within_the_array(d: Path) -> Path:
    wide = np.concatenate([LOGITS, LOGITS.max(axis=1, keepdims=True)], axis=1)
    return npz(d / "a.npz", logits=wide, labels=LABELS)


@case(readable=False)
def argmax_within_the_array(d: Path) -> Path:
    wide = np.concatenate([SAID[:, None], LOGITS], axis=1)
    return npz(d / "a.npz", logits=wide, labels=LABELS)


@case(readable=False)
def row_number_within_the_array(d: Path) -> Path:
    wide = np.concatenate([np.arange(ROWS)[:, None], LOGITS], axis=1)
    return npz(d / "a.npz", logits=wide, labels=LABELS)


@case()
def both_kinds(d: Path) -> Path:
    return npz(d / "a.npz", logits=LOGITS, probs=PROBS, labels=LABELS)


@case()
def both_kinds_of_other_names(d: Path) -> Path:
    return npz(d / "a.npz", raw=LOGITS, softmax=PROBS, y=LABELS)


@case()
def with_embeddings(d: Path) -> Path:
    return npz(d / "a.npz", emb=RNG.normal(size=(ROWS, 16)), output=LOGITS, target=LABELS)


# --- rows


@case(readable=False)
def rows_that_failed(d: Path) -> Path:
    holes = LOGITS.copy()
    holes[7] = np.nan
    return npz(d / "a.npz", logits=holes, labels=LABELS)


@case(readable=False)
def padded_rows(d: Path) -> Path:
    scores = np.concatenate([LOGITS, np.zeros((20, K))])
    return npz(d / "a.npz", logits=scores, labels=np.concatenate([LABELS, np.zeros(20, int)]))


@case(readable=False)
def rows_twice(d: Path) -> Path:
    return npz(d / "a.npz", logits=np.tile(LOGITS, (2, 1)), labels=np.tile(LABELS, 2))


@case()
def labels_of_one_row(d: Path) -> Path:
    return npz(d / "a.npz", logits=LOGITS, labels=LABELS[None])


@case()
def transposed(d: Path) -> Path:
    return npz(d / "a.npz", logits=LOGITS.T, labels=LABELS)


@case()
def with_an_axis_too_many(d: Path) -> Path:
    return npz(d / "a.npz", logits=LOGITS[:, None, :], labels=LABELS)


@case(readable=False)
def flattened(d: Path) -> Path:
    return npz(d / "a.npz", logits=LOGITS.reshape(-1), labels=LABELS)


@case()
def long_table(d: Path) -> Path:
    ids, classes = np.repeat(np.arange(ROWS), K), np.tile(np.arange(K), ROWS)
    truth = (np.repeat(LABELS, K) == classes) * 1
    return table(d / "a.csv", id=ids, klass=classes, prob=PROBS.reshape(-1), label=truth)


@case(readable=False)
def long_table_of_two_classes(d: Path) -> Path:
    both = np.stack([1 - CHANCE, CHANCE], axis=1).reshape(-1)
    return table(d / "a.csv", prob=both, label=np.repeat(EVENT, 2))


@case(readable=False)
def long_table_shuffled(d: Path) -> Path:
    order = np.random.default_rng(0).permutation(ROWS * K)
    truth = np.eye(K, dtype=int)[LABELS].reshape(-1)
    return table(d / "a.csv", prob=PROBS.reshape(-1)[order], label=truth[order])


@case(readable=False)
def long_table_of_two_classes_shuffled(d: Path) -> Path:
    both, truth = np.append(CHANCE, 1 - CHANCE), np.append(EVENT, 1 - EVENT)
    order = np.random.default_rng(0).permutation(2 * ROWS)
    return table(d / "a.csv", prob=both[order], label=truth[order])


@case(readable=False)
def a_mean_below_the_rows(d: Path) -> Path:
    rows = np.append(PROBS, PROBS.mean(axis=0, keepdims=True), axis=0)
    return table(d / "a.csv", label=np.append(LABELS, 0), **by("prob_", rows))


@case(readable=False)
def two_columns_swapped(d: Path) -> Path:
    return npz(d / "a.npz", logits=LOGITS[:, [1, 0, 2, 3, 4]], labels=LABELS)


@case(readable=False)
def a_row_missing_in_the_middle(d: Path) -> Path:
    labels = np.append(LABELS[: ROWS // 3], np.roll(LABELS[ROWS // 3 :], 1))
    return npz(d / "a.npz", logits=LOGITS, labels=labels)


@case(readable=False)
def logits_times_100(d: Path) -> Path:
    return npz(d / "a.npz", logits=100 * LOGITS, labels=LABELS)


# --- a confidence and what is right


@case("top")
def confidence_and_correct(d: Path) -> Path:
    return table(d / "a.csv", confidence=TOP, correct=RIGHT)


@case("top")
def score_of_an_evaluation(d: Path) -> Path:
    return table(d / "a.csv", question=["x"] * ROWS, model_confidence=TOP, is_correct=RIGHT * 1)


@case("top")
def confidence_beside_all_scores(d: Path) -> Path:
    own = {"pred": SAID, "conf": TOP, "true": LABELS}
    return table(d / "a.csv", **own, note=["x"] * ROWS)


@case("top")
def names_as_predictions(d: Path) -> Path:
    return table(d / "a.csv", confidence=TOP, predicted=WORDS[SAID], label=WORDS[LABELS])


@case("top")
def predictions_from_one(d: Path) -> Path:
    return npz(d / "a.npz", confidence=TOP, pred_label=SAID + 1, true_label=LABELS)


# --- as other programs write them


@case()
def pandas_index_named(d: Path) -> Path:
    return table(d / "a.csv", index=np.arange(ROWS), **by("prob_", PROBS), label=LABELS)


@case()
def write_csv_of_r(d: Path) -> Path:
    rows = ['"","truth","prob.ant","prob.bee","prob.cat","prob.dog","prob.eel"']
    for i, (p, y) in enumerate(zip(PROBS.tolist(), LABELS, strict=True)):
        rows.append(f'"{i + 1}","{NAMES[y]}",' + ",".join(map(str, p)))
    (d / "a.csv").write_text("\n".join(rows) + "\n")
    return d / "a.csv"


@case()
def write_table_of_r(d: Path) -> Path:
    # The header is a cell shorter than the rows.
    rows = ['"label","prob_0","prob_1","prob_2","prob_3","prob_4"']
    for i, (p, y) in enumerate(zip(PROBS.tolist(), LABELS, strict=True)):
        rows.append(f'"{i + 1}",{y},' + ",".join(map(str, p)))
    (d / "a.csv").write_text("\n".join(rows) + "\n")
    return d / "a.csv"


@case()
def caret_of_r(d: Path) -> Path:
    own = {"pred": WORDS[SAID], "obs": WORDS[LABELS], **by("", PROBS, NAMES)}
    return table(d / "a.csv", **own, rowIndex=np.arange(ROWS))


@case()
def yardstick_of_r(d: Path) -> Path:
    own = {".pred_class": WORDS[SAID], **by(".pred_", PROBS, NAMES), "truth": WORDS[LABELS]}
    return table(d / "a.csv", **own)


@case()
def excel_in_german(d: Path) -> Path:
    names = [f"Wahrscheinlichkeit {name}" for name in NAMES]
    path = table(d / "a.csv", ";", ",", Klasse=WORDS[LABELS], **by("", PROBS, names))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    return path


@case(atol=5e-4)
def percent_signs(d: Path) -> Path:
    cells = [[f"{100 * p:.2f}%" for p in row] for row in PROBS]
    own = {f"prob_{k}": [row[k] for row in cells] for k in range(K)}
    return table(d / "a.csv", label=LABELS, **own)


@case()
def excel_with_sep_line(d: Path) -> Path:
    path = table(d / "a.csv", ";", label=LABELS, **by("prob_", PROBS))
    path.write_text("sep=;\n" + path.read_text())
    return path


@case()
def unicode_text_of_excel(d: Path) -> Path:
    path = table(d / "a.csv", "\t", label=LABELS, **by("prob_", PROBS))
    path.write_bytes(path.read_text().encode("utf-16"))
    return path


@case()
def struct_of_hugging_face(d: Path) -> Path:
    rows = [dict(zip(NAMES, p, strict=True)) for p in PROBS.tolist()]
    own = {"text": ["x"] * ROWS, "probs": rows, "label": WORDS[LABELS]}
    pq.write_table(pa.table(own), d / "a.parquet")
    return d / "a.parquet"


@case()
def struct_with_a_list(d: Path) -> Path:
    rows = [{"logits": z, "loss": 0.5} for z in LOGITS.tolist()]
    pq.write_table(pa.table({"output": rows, "label": LABELS}), d / "a.parquet")
    return d / "a.parquet"


@case()
def dictionary_of_arrow(d: Path) -> Path:
    own = {"label": pa.array(WORDS[LABELS]).dictionary_encode()}
    pq.write_table(pa.table(own | by("prob_", PROBS, NAMES)), d / "a.parquet")
    return d / "a.parquet"


@case()
def pandas_parquet_with_an_index(d: Path) -> Path:
    import pandas as pd

    frame = pd.DataFrame({"y": LABELS, **by("p", PROBS)}, index=[f"row{i}" for i in range(ROWS)])
    frame.to_parquet(d / "a.parquet")
    return d / "a.parquet"


@case(atol=1e-5)
def decimals_of_arrow(d: Path) -> Path:
    kind = pa.decimal128(10, 6)
    own = {k: pa.array(np.round(v, 6)).cast(kind) for k, v in by("prob_", PROBS).items()}
    pq.write_table(pa.table({"label": LABELS, **own}), d / "a.parquet")
    return d / "a.parquet"


@case(atol=5e-3)
def half_floats_of_arrow(d: Path) -> Path:
    own = by("logit_", LOGITS.astype(np.float16))
    pq.write_table(pa.table({"label": LABELS, **own}), d / "a.parquet")
    return d / "a.parquet"


@case()
def short_labels(d: Path) -> Path:
    own = {"label": pa.array(LABELS.tolist(), pa.int8()), "probs": PROBS.tolist()}
    pq.write_table(pa.table(own), d / "a.parquet")
    return d / "a.parquet"


@case()
def predict_proba_saved_alone(d: Path) -> Path:
    np.save(d / "proba.npy", PROBS)
    np.save(d / "y_test.npy", LABELS)
    return d / "proba.npy"


@case()
def logits_saved_alone(d: Path) -> Path:
    np.save(d / "test_logits.npy", LOGITS)
    np.save(d / "test_labels.npy", LABELS)
    return d / "test_logits.npy"


@case(readable=False)
def list_of_predict_proba(d: Path) -> Path:
    both = [np.stack([1 - p, p], axis=1) for p in PROBS.T]
    return npz(d / "a.npz", probs=np.array(both), labels=LABELS)


@case()
def json_of_lists(d: Path) -> Path:
    (d / "a.json").write_text(json.dumps({"probs": PROBS.tolist(), "labels": LABELS.tolist()}))
    return d / "a.json"


@case()
def json_of_other_lists(d: Path) -> Path:
    own = {"y_pred": PROBS.tolist(), "y_true": LABELS.tolist()}
    (d / "a.json").write_text(json.dumps(own))
    return d / "a.json"


@case()
def json_of_pandas(d: Path) -> Path:
    own = by("prob_", PROBS) | {"label": LABELS}
    columns = {k: {str(i): x for i, x in enumerate(np.asarray(v).tolist())} for k, v in own.items()}
    (d / "a.json").write_text(json.dumps(columns))
    return d / "a.json"


@case()
def torch_dict(d: Path) -> Path:
    own = {"preds": torch.from_numpy(LOGITS), "targets": torch.from_numpy(LABELS)}
    torch.save(own, d / "a.pt")
    return d / "a.pt"


@case()
def torch_list_of_batches(d: Path) -> Path:
    both = zip(np.split(LOGITS, 3), np.split(LABELS, 3), strict=True)
    torch.save([(torch.from_numpy(z), torch.from_numpy(y)) for z, y in both], d / "a.pt")
    return d / "a.pt"


@case(readable=False)
def torch_with_arrays_of_numpy(d: Path) -> Path:
    torch.save({"logits": LOGITS, "labels": LABELS}, d / "a.pt")
    return d / "a.pt"


@case()
def columns_of_classes(d: Path) -> Path:
    return table(d / "a.csv", **by("", PROBS, NAMES), actual=WORDS[LABELS])


@case(readable=False)
def columns_of_classes_with_capitals(d: Path) -> Path:
    return table(d / "a.csv", **by("P_", PROBS, NAMES), label=np.char.upper(WORDS)[LABELS])


@case(readable=False)
def columns_of_classes_and_numbers(d: Path) -> Path:
    return table(d / "a.csv", **by("", PROBS, NAMES), label=LABELS)


@case()
def probability_in_parentheses(d: Path) -> Path:
    own = by("P(", PROBS, [f"{name})" for name in NAMES])
    return table(d / "a.csv", **own, label=WORDS[LABELS])


@case()
def padded_numbers_of_columns(d: Path) -> Path:
    return table(d / "a.csv", **by("prob_", PROBS, [f"{k:03d}" for k in range(K)]), label=LABELS)


@case()
def columns_out_of_order(d: Path) -> Path:
    own = list(by("prob_", PROBS).items())
    return table(d / "a.csv", **dict([own[3], own[0], own[4], own[1], own[2]]), label=LABELS)


@case("event")
def percent_sign_of_an_event(d: Path) -> Path:
    return table(d / "a.csv", probability=[f"{100 * p:.10f}%" for p in CHANCE], outcome=EVENT)


@case("event")
def decision_function(d: Path) -> Path:
    return npz(d / "a.npz", decision_function=ODDS, y_test=EVENT)


@case("event")
def default_of_a_loan(d: Path) -> Path:
    own = {"loan_id": np.arange(ROWS) + 1000, "pd_12m": CHANCE, "defaulted": EVENT}
    return table(d / "a.csv", **own)


@case("event")
def two_columns_of_an_event(d: Path) -> Path:
    return table(d / "a.csv", prob_0=1 - CHANCE, prob_1=CHANCE, label=EVENT)


@case("event")
def two_columns_of_words(d: Path) -> Path:
    own = {"prob_no": 1 - CHANCE, "prob_yes": CHANCE}
    return table(d / "a.csv", **own, label=np.where(EVENT, "yes", "no"))


@case("event")
def booleans_in_capitals(d: Path) -> Path:
    return table(d / "a.csv", prob=CHANCE, label=np.where(EVENT, "TRUE", "FALSE"))


@case("event")
def labels_in_one_letter(d: Path) -> Path:
    return table(d / "a.csv", prob=CHANCE, label=np.where(EVENT, "Y", "N"))


@case("event")
def a_column_of_probabilities(d: Path) -> Path:
    return npz(d / "a.npz", probs=CHANCE[:, None], labels=EVENT)


@case("event")
def a_column_of_logits(d: Path) -> Path:
    own = {"logits": ODDS[:, None].astype(np.float32), "labels": EVENT.astype(np.float32)}
    return npz(d / "a.npz", **own)


@case("event")
def one_probability_called_probs(d: Path) -> Path:
    return npz(d / "a.npz", probs=CHANCE, labels=EVENT)


@case("event")
def one_logit_called_logits(d: Path) -> Path:
    return npz(d / "a.npz", logits=ODDS, labels=EVENT)


@case(readable=False)
def sigmoids_of_one_against_rest(d: Path) -> Path:
    return npz(d / "a.npz", probs=1 / (1 + np.exp(-LOGITS)), labels=LABELS)


@case()
def log_softmax_in_columns(d: Path) -> Path:
    return table(d / "a.csv", **by("log_prob_", np.log(PROBS)), label=LABELS)


@case()
def label_first_without_a_header(d: Path) -> Path:
    rows = zip(LABELS.tolist(), PROBS.tolist(), strict=True)
    (d / "a.csv").write_text("".join(",".join(map(str, [y, *p])) + "\n" for y, p in rows))
    return d / "a.csv"


@case()
def label_last_without_a_header(d: Path) -> Path:
    rows = zip(LABELS.tolist(), LOGITS.tolist(), strict=True)
    (d / "a.csv").write_text("".join(",".join(map(str, [*z, y])) + "\n" for y, z in rows))
    return d / "a.csv"


@case(readable=False)
def rows_that_failed_in_csv(d: Path) -> Path:
    holes = np.array(PROBS)
    holes[7:9] = np.nan
    return table(d / "a.csv", label=LABELS, **by("prob_", holes))


@case(readable=False)
def empty_cells(d: Path) -> Path:
    path = table(d / "a.csv", label=LABELS, **by("prob_", PROBS))
    rows = path.read_text().split("\n")
    rows[5] = rows[5].rpartition(",")[0] + ","
    path.write_text("\n".join(rows))
    return path


@case(readable=False)
def a_row_too_short(d: Path) -> Path:
    path = table(d / "a.csv", label=LABELS, **by("prob_", PROBS))
    rows = path.read_text().split("\n")
    rows[5] = rows[5].rpartition(",")[0]
    path.write_text("\n".join(rows))
    return path


@case(readable=False)
def ids_twice(d: Path) -> Path:
    # Every row twice with its id, as a join that went wrong has them.
    own = {"id": np.repeat(np.arange(ROWS), 2), "label": np.repeat(LABELS, 2)}
    return table(d / "a.csv", **own, **by("prob_", np.repeat(PROBS, 2, axis=0)))


@case(readable=False)
def column_major(d: Path) -> Path:
    return npz(d / "a.npz", probs=PROBS.T.reshape(ROWS, K), labels=LABELS)


@case()
def softmax_beside_logits(d: Path) -> Path:
    return npz(d / "a.npz", logits=LOGITS, softmax=PROBS, labels=LABELS, preds=SAID)


@case(readable=False)
def softmax_of_softmax(d: Path) -> Path:
    twice = np.exp(PROBS) / np.exp(PROBS).sum(axis=1, keepdims=True)
    return npz(d / "a.npz", probs=twice, labels=LABELS)


@case()
def columns_and_labels_of_one_stem(d: Path) -> Path:
    own = {"label": [f"class_{y}" for y in LABELS], **by("class_", PROBS)}
    return table(d / "a.csv", **own)


@case()
def imagenet_ids(d: Path) -> Path:
    ids = [f"n0{1440764 + k}" for k in range(K)]
    return table(d / "a.csv", **by("", PROBS, ids), wnid=np.array(ids)[LABELS])


@case("top")
def top_one_in_percent(d: Path) -> Path:
    own = {"prediction": WORDS[SAID], "truth": WORDS[LABELS], "confidence": np.round(100 * TOP, 8)}
    return table(d / "a.csv", **own)


@case("top")
def confidence_and_right_in_words(d: Path) -> Path:
    return table(d / "a.csv", confidence=TOP, correct=np.where(RIGHT, "yes", "no"))


@case("top")
def answers_of_a_model(d: Path) -> Path:
    columns = (WORDS[SAID].tolist(), WORDS[LABELS].tolist(), TOP.tolist(), RIGHT.tolist())
    rows = [
        {"question": "x", "answer": s, "gold": y, "confidence": c, "is_correct": r}
        for s, y, c, r in zip(*columns, strict=True)
    ]
    return lines(d / "a.jsonl", rows)


@case("top")
def predicted_numbers_and_true_names(d: Path) -> Path:
    # Which number is which name isn't said; what is right is.
    own = {"confidence": TOP, "pred_label": SAID, "true_label": WORDS[LABELS]}
    return table(d / "a.csv", **own, correct=RIGHT * 1)


# --- as pandas, torch and people write them, further ones


def cells(path: Path, sep: str = ",", **columns: Any) -> Path:
    """Write columns of any cells, quoted where they must be."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=sep)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


@case()
def lists_in_cells(d: Path) -> Path:
    return cells(d / "a.csv", label=LABELS, probs=[str(p) for p in PROBS.tolist()])


@case()
def lists_in_cells_of_other_names(d: Path) -> Path:
    own = {"text": ["a, b"] * ROWS, "target": LABELS, "outputs": [str(z) for z in LOGITS.tolist()]}
    return cells(d / "a.csv", **own)


@case()
def long_arrays_of_numpy_in_cells(d: Path) -> Path:
    # In several lines each.
    wide = np.concatenate([PROBS, np.zeros((ROWS, 15))], axis=1)
    return cells(d / "a.csv", label=LABELS, probs=[str(p) for p in wide])


@case()
def tensors_in_cells(d: Path) -> Path:
    return cells(d / "a.csv", ";", label=LABELS, logits=[f"tensor({z})" for z in LOGITS.tolist()])


@case()
def classes_within_names_of_columns(d: Path) -> Path:
    own = {f"class_{k}_prob": PROBS[:, k] for k in range(K)}
    return table(d / "a.csv", label=LABELS, **own)


@case()
def numbers_in_brackets(d: Path) -> Path:
    return table(d / "a.csv", label=LABELS, **{f"probs[{k}]": PROBS[:, k] for k in range(K)})


@case()
def numbers_with_gaps_as_classes(d: Path) -> Path:
    ids = [3, 7, 11, 20, 42]
    return table(d / "a.csv", label=np.array(ids)[LABELS], **by("prob_", PROBS, ids))


@case()
def numbers_with_gaps_beside_arrays(d: Path) -> Path:
    ids = np.array([3, 7, 11, 20, 42])
    return npz(d / "a.npz", probs=PROBS, labels=ids[LABELS], classes=ids)


@case()
def one_hot_columns_of_other_names(d: Path) -> Path:
    hot = np.eye(K, dtype=int)[LABELS]
    return table(d / "a.csv", **by("y_true_", hot), **by("y_pred_", PROBS))


@case()
def numbers_and_names_of_labels(d: Path) -> Path:
    own = by("prob_", PROBS, NAMES)
    return table(d / "a.csv", label=LABELS, true_label=WORDS[LABELS], **own)


@case()
def names_in_bytes(d: Path) -> Path:
    return npz(d / "a.npz", probs=PROBS, labels=WORDS[LABELS].astype("S"), classes=WORDS)


@case(atol=1e-3)
def four_significant_digits(d: Path) -> Path:
    own = {f"prob_{k}": [f"{p:.3e}" for p in PROBS[:, k]] for k in range(K)}
    return table(d / "a.csv", label=LABELS, **own)


@case(atol=1e-3)
def half_precision_in_text(d: Path) -> Path:
    return table(d / "a.csv", label=LABELS, **by("prob_", PROBS.astype(np.float16).astype(float)))


@case(atol=4e-2)
def brain_floats_in_float32(d: Path) -> Path:
    held = torch.from_numpy(PROBS).bfloat16().float().numpy()
    return npz(d / "a.npz", probs=held, labels=LABELS)


@case("top")
def confidences_predictions_labels(d: Path) -> Path:
    return npz(d / "a.npz", confidences=TOP, predictions=SAID, labels=LABELS)


@case("top")
def percent_signs_in_json(d: Path) -> Path:
    rows = zip(TOP.tolist(), RIGHT.tolist(), strict=True)
    return lines(d / "a.jsonl", [{"confidence": f"{100 * c:.9f}%", "correct": r} for c, r in rows])


@case("event")
def thresholded_beside_the_probability(d: Path) -> Path:
    # Read as a confidence in what is predicted it would be wrong.
    said = (CHANCE > 0.5) * 1
    return table(d / "a.csv", y_true=EVENT, y_pred=said, y_prob=CHANCE)


@case("event")
def probability_of_class_0(d: Path) -> Path:
    return table(d / "a.csv", prob_0=1 - CHANCE, label=EVENT)


@case("event")
def columns_named_after_outcomes(d: Path) -> Path:
    return table(d / "a.csv", prob_neg=1 - CHANCE, prob_pos=CHANCE, label=EVENT)


@case("event", atol=6e-3)
def event_in_whole_percent(d: Path) -> Path:
    return table(d / "a.csv", probability=np.rint(100 * CHANCE).astype(int), outcome=EVENT)


@case("event")
def score_beside_an_amount(d: Path) -> Path:
    own = {"amount": RNG.gamma(2, 50, ROWS), "fraud_score": CHANCE, "is_fraud": EVENT}
    return table(d / "a.csv", **own)


@case("event")
def risk_and_its_group(d: Path) -> Path:
    group = np.where(CHANCE > 0.5, "high", "low")
    return table(d / "a.csv", patient=np.arange(ROWS), risk=CHANCE, risk_group=group, died=EVENT)


def packed(path: Path, ending: str, compress: Callable[[bytes], bytes]) -> Path:
    """Pack a file beside it."""
    held = path.with_name(path.name + ending)
    held.write_bytes(compress(path.read_bytes()))
    return held


def below(path: Path, above: str) -> Path:
    """Put text above what a file holds."""
    path.write_text(above + path.read_text())
    return path


@case()
def packed_table(d: Path) -> Path:
    path = table(d / "a.csv", y_true=LABELS, **by("p_", PROBS))
    return packed(path, ".gz", gzip.compress)


@case()
def packed_under_the_name_of_a_table(d: Path) -> Path:
    path = table(d / "a.csv", label=LABELS, **by("prob_", PROBS))
    path.write_bytes(gzip.compress(path.read_bytes()))
    return path


@case()
def parquet_under_the_name_of_a_table(d: Path) -> Path:
    pq.write_table(pa.table({"label": LABELS, **by("prob_", PROBS)}), d / "a.csv")
    return d / "a.csv"


@case()
def table_of_an_older_windows(d: Path) -> Path:
    path = table(d / "a.csv", label=LABELS, **by("prob_", PROBS), note=["Käse"] * ROWS)
    path.write_bytes(path.read_text("utf-8").encode("cp1252"))
    return path


@case()
def pipes_between_columns(d: Path) -> Path:
    return table(d / "a.csv", "|", label=LABELS, **by("prob_", PROBS))


@case()
def comments_above_the_header(d: Path) -> Path:
    path = table(d / "a.csv", label=LABELS, **by("prob_", PROBS))
    return below(path, "# model: a, b, c\n# 2026-01-01\n")


@case()
def json_split_by_pandas(d: Path) -> Path:
    rows = [[int(y), *p] for y, p in zip(LABELS, PROBS.tolist(), strict=True)]
    names = ["label", *by("prob_", PROBS)]
    (d / "a.json").write_text(json.dumps({"columns": names, "index": [*range(ROWS)], "data": rows}))
    return d / "a.json"


@case()
def json_by_row(d: Path) -> Path:
    rows = enumerate(zip(PROBS.tolist(), LABELS.tolist(), strict=True))
    (d / "a.json").write_text(
        json.dumps({f"img{i}": {"probs": p, "label": y} for i, (p, y) in rows})
    )
    return d / "a.json"


@case()
def json_of_numbers_in_quotes(d: Path) -> Path:
    rows = zip(PROBS.tolist(), LABELS.tolist(), strict=True)
    return lines(d / "a.jsonl", [{"probs": [*map(str, p)], "label": str(y)} for p, y in rows])


@case()
def torch_labels_first(d: Path) -> Path:
    torch.save((torch.from_numpy(LABELS), torch.from_numpy(LOGITS)), d / "a.pt")
    return d / "a.pt"


@case()
def torch_with_lists_and_settings(d: Path) -> Path:
    own = {"out": torch.from_numpy(LOGITS), "y": LABELS.tolist(), "class_names": NAMES, "epoch": 3}
    torch.save(own, d / "a.pt")
    return d / "a.pt"


@case(readable=False)
def sigmoids_called_logits(d: Path) -> Path:
    return npz(d / "a.npz", logits=1 / (1 + np.exp(-LOGITS)), labels=LABELS)


@case(readable=False)
def distances(d: Path) -> Path:
    return npz(d / "a.npz", distances=LOGITS.max(axis=1, keepdims=True) - LOGITS + 0.1, y=LABELS)


@case(readable=False)
def logarithms_to_the_base_10(d: Path) -> Path:
    return npz(d / "a.npz", log10_probs=np.log10(PROBS), labels=LABELS)


@case(readable=False)
def thousandths(d: Path) -> Path:
    return table(d / "a.csv", label=LABELS, **by("prob_", 1000 * PROBS))


@case(readable=False)
def binary_under_the_name_of_a_table(d: Path) -> Path:
    (d / "a.csv").write_bytes(b"PK\3\4\0\xff\0nothing")
    return d / "a.csv"


# --- how a file is read, and what comes of it


class Outcome(NamedTuple):
    """What came of reading a file: in how far it is right, what was said, and the line offered."""

    how: str
    said: str
    line: str | None


def is_right(found: cb.Predictions, of: str, atol: float) -> bool:
    """Return whether rows that were read are the rows that were written."""
    if of == "event":
        if found.n_classes != 2:
            return False
        probs, labels = np.asarray(found.probs)[:, 1], found.labels
        # Of either class.
        return any(
            np.allclose(ours, CHANCE, atol=atol) and bool((events == EVENT).all())
            for ours, events in ((probs, labels), (1 - probs, 1 - labels))
        )
    if of == "top":
        if found.kind != "toplabel":
            return False
        right = found.predicted == found.labels
        return bool(np.allclose(found.scores, TOP, atol=atol) and (right == RIGHT).all())
    if found.kind == "toplabel" or found.n != ROWS:
        return False
    probs, labels = np.asarray(found.probs, dtype=np.float64), found.labels
    if found.class_names is not None and set(found.class_names) == set(NAMES):
        order = [found.class_names.index(name) for name in NAMES]
        probs, labels = probs[:, order], np.argsort(order)[labels]
    # A class that no row is of may stand at either end.
    for shift in range(probs.shape[1] - K + 1):
        part = probs[:, shift : shift + K]
        if np.allclose(part, PROBS, atol=max(atol, 2e-4 * (probs.shape[1] > K))):
            return bool((labels == LABELS + shift).all())
    return False


def options_of(line: str) -> ReadOptions:
    """Return the options of a command to paste."""
    words = shlex.split(line)[3:]
    fields: dict[str, Any] = {}
    for key, value in zip(words[::2], words[1::2], strict=True):
        name = key.removeprefix("--").replace("-", "_")
        whole = name in ("class_axis", "ignore_index", "labels_from")
        fields[name] = int(value) if whole else value
    return ReadOptions(**fields)


def read(path: Path, of: Case, options: ReadOptions | None = None) -> Outcome:
    """Read a file, and where it is refused once more by the line that is offered."""
    with heard_warnings() as heard:
        try:
            found = read_predictions(path, options)
        except CalibrantError as error:
            said, _, line = str(error).partition("; to read it so: ")
            return Outcome("refused", said, line or None)
    said = "; ".join(str(warning) for warning in heard)
    how = "right" if is_right(found, of.of, of.atol) else "wrong"
    return Outcome(how, said, None)


def tried(name: str, folder: Path) -> tuple[str, Outcome]:
    """Return what becomes of a file in a word, and what was said."""
    about = CASES[name]
    path = about.write(folder)
    first = read(path, about)
    if first.how != "refused":
        word = first.how if first.how == "right" or not first.said else "said"
        return word, first
    if first.line is None:
        return "refused without a line", first
    if first.line.startswith("(echo "):  # the same file below names of columns
        header = shlex.split(first.line[1:].partition(";")[0])[1]
        path.write_text(f"{header}\n{path.read_text()}")
        again = read(path, about, ReadOptions(format="csv"))
    elif " | " in first.line:  # the same file unpacked
        typed, _, line = first.line.partition(" | ")
        held = path.with_name("unpacked")
        program, *words = shlex.split(typed)
        # Whoever pastes it types in the environment that the package is in.
        words.insert(0, sys.executable if program == "python" else program)
        held.write_bytes(subprocess.run(words, check=True, capture_output=True).stdout)
        again = read(held, about, options_of(line))
    else:
        again = read(path, about, options_of(first.line))
    return ("line" if again.how == "right" else f"line {again.how}"), first


if __name__ == "__main__":
    import tempfile
    from collections import Counter

    words: Counter[str] = Counter()
    for each in CASES:
        with tempfile.TemporaryDirectory() as place:
            try:
                word, outcome = tried(each, Path(place))
            except Exception as error:
                word, outcome = "CRASH", Outcome("", repr(error), None)
            word += "" if CASES[each].readable else " (unreadable)"
            words[word] += 1
            text = outcome.said.replace(place, "")[:230]
            line = (outcome.line or "").replace(place, "")
            print(f"{word:32} {each:45} {text}" + (f"\n{'':79}-> {line}" if line else ""))
    print(len(CASES), words)
