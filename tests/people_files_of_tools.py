"""Files as further tools write them; importing this registers them beside `people_files`."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
from people_files import (
    CHANCE,
    EVENT,
    LABELS,
    LOGITS,
    NAMES,
    PROBS,
    RIGHT,
    RNG,
    ROWS,
    SAID,
    TOP,
    WORDS,
    K,
    by,
    case,
    lines,
    npz,
    packed,
    table,
)

R = range(ROWS)
TRUE, GUESS = WORDS[LABELS].tolist(), WORDS[SAID].tolist()
# A label that goes by a threshold other than one half, and the outcomes in words.
NO_YES = np.array(["No", "Yes"])
THRESHOLDED = NO_YES[(CHANCE > 0.3).astype(int)].tolist()


def cells(path: Path, header: list[str], *columns: Any, sep: str = ",") -> Path:
    """Write columns, an (N, K) array as K of them, below a header if there is one."""
    flat: list[list[Any]] = []
    for column in columns:
        values = np.asarray(column)
        flat += values.T.tolist() if values.ndim == 2 else [values.tolist()]
    with path.open("w", newline="") as file:
        rows = csv.writer(file, delimiter=sep, lineterminator="\n")
        if header:
            rows.writerow(header)
        rows.writerows(zip(*flat, strict=True))
    return path


def of_classes(pattern: str) -> list[str]:
    return [pattern.replace("ant", name) for name in NAMES]


# --- predicted classes beside true ones


@case()
def h2o(d: Path) -> Path:
    return cells(d / "a.csv", ["predict", *NAMES, "response"], GUESS, PROBS, TRUE)


@case("event")
def h2o_event(d: Path) -> Path:
    both = np.column_stack([1 - CHANCE, CHANCE])
    return cells(d / "a.csv", ["predict", "No", "Yes", "churn"], THRESHOLDED, both, NO_YES[EVENT])


@case("event")
def tidymodels_event(d: Path) -> Path:
    both, head = np.column_stack([1 - CHANCE, CHANCE]), [".pred_No", ".pred_Yes", ".pred_class"]
    return cells(d / "a.csv", [*head, "churn"], both, NO_YES[(CHANCE > 0.5) * 1], NO_YES[EVENT])


@case()
def mljar(d: Path) -> Path:
    head = [*of_classes("prediction_ant"), "label", "target"]
    return cells(d / "a.csv", head, PROBS, GUESS, TRUE)


@case()
def azure_ml(d: Path) -> Path:
    head = of_classes('Scored Probabilities for Class "ant"')
    return cells(d / "a.csv", ["Class", *head, "Scored Labels"], TRUE, PROBS, GUESS)


@case()
def rapidminer(d: Path) -> Path:
    head = ["class", "prediction(class)", *of_classes("confidence(ant)")]
    return cells(d / "a.csv", head, TRUE, GUESS, PROBS, sep=";")


@case()
def knime(d: Path) -> Path:
    head = ["class", *of_classes("P (class=ant)"), "Prediction (class)"]
    return cells(d / "a.csv", head, TRUE, PROBS, GUESS)


@case()
def datarobot(d: Path) -> Path:
    head = ["species", *of_classes("species_ant_PREDICTION"), "species_PREDICTION"]
    return cells(d / "a.csv", head, TRUE, PROBS, GUESS)


@case()
def sas(d: Path) -> Path:
    return cells(d / "a.csv", ["_FROM_", "_INTO_", *of_classes("IP_ant")], TRUE, GUESS, PROBS)


@case("event")
def sas_event(d: Path) -> Path:
    both = np.column_stack([CHANCE, 1 - CHANCE])
    head = ["default", "_LEVEL_", "P_1", "P_0"]
    return cells(d / "a.csv", head, EVENT, np.ones(ROWS, int), both)


@case("top")
def pycaret(d: Path) -> Path:
    head = ["x1", "Class", "prediction_label", "prediction_score"]
    return cells(d / "a.csv", head, RNG.normal(size=ROWS), LABELS, SAID, TOP)


@case("top")
def timm(d: Path) -> Path:
    names = [f"{i}.jpg" for i in R]
    return cells(d / "a.csv", ["filename", "label", "prob", "target"], names, GUESS, TOP, TRUE)


@case("top")
def fiftyone(d: Path) -> Path:
    rows = zip(TRUE, GUESS, TOP.tolist(), strict=True)
    what = {"_cls": "Classification"}
    return lines(
        d / "a.jsonl",
        [
            {"ground_truth": {"label": y, **what}, "prediction": {"label": s, "confidence": c}}
            for y, s, c in rows
        ],
    )


@case("top")
def rekognition(d: Path) -> Path:
    rows = zip(TRUE, GUESS, (100 * TOP).tolist(), strict=True)
    return lines(d / "a.jsonl", [{"Name": s, "Confidence": c, "Truth": y} for y, s, c in rows])


@case("top")
def letters_in_correct(d: Path) -> Path:
    right = np.array(["N", "Y"])[RIGHT * 1]
    return cells(d / "a.csv", ["question", "is_correct", "confidence"], ["q"] * ROWS, right, TOP)


@case("top")
def metric_of_a_harness(d: Path) -> Path:
    return cells(d / "a.csv", ["acc,none", "conf"], RIGHT * 1.0, TOP)


@case(readable=False)
def logarithms_of_confidences(d: Path) -> Path:
    return cells(d / "a.csv", ["answer", "logprob", "correct"], GUESS, np.log(TOP), RIGHT * 1)


@case(readable=False)
def labels_that_are_predictions(d: Path) -> Path:
    return npz(d / "a.npz", probs=PROBS, labels=SAID)


@case(readable=False)
def predictions_alone(d: Path) -> Path:
    return cells(d / "a.csv", ["predict", *NAMES], GUESS, PROBS)


@case(readable=False)
def confidences_called_prob(d: Path) -> Path:
    return cells(d / "a.csv", ["label", "prob"], EVENT, np.maximum(CHANCE, 1 - CHANCE))


# --- classes and scores in lists


def sorted_pairs(i: int) -> list[dict[str, Any]]:
    order = np.argsort(-PROBS[i])
    return [{"label": NAMES[k], "score": float(PROBS[i, k])} for k in order]


@case()
def bigquery(d: Path) -> Path:
    return lines(
        d / "a.jsonl",
        [
            {"predicted_label": GUESS[i], "predicted_label_probs": sorted_pairs(i), "label": y}
            for i, y in enumerate(TRUE)
        ],
    )


@case()
def vertex(d: Path) -> Path:
    rows = [
        {"instance": {"truth": y}, "prediction": {"classes": NAMES, "scores": p}}
        for y, p in zip(TRUE, PROBS.tolist(), strict=True)
    ]
    return lines(d / "a.jsonl", rows)


@case()
def pipeline_with_numbers(d: Path) -> Path:
    rows = [
        {"gold": y, "output": [{"label": f"LABEL_{k}", "score": p[k]} for k in range(K)]}
        for y, p in zip(LABELS.tolist(), PROBS.tolist(), strict=True)
    ]
    return lines(d / "a.jsonl", rows)


@case(readable=False)
def pipeline_of_three_best(d: Path) -> Path:
    return lines(
        d / "a.jsonl", [{"gold": y, "output": sorted_pairs(i)[:3]} for i, y in enumerate(TRUE)]
    )


@case()
def objects_within_objects(d: Path) -> Path:
    rows = [
        {"result": {"label": y, "output": {"logits": z}}}
        for y, z in zip(LABELS.tolist(), LOGITS.tolist(), strict=True)
    ]
    return lines(d / "a.jsonl", rows)


@case()
def notes_in_some_rows(d: Path) -> Path:
    rows = [{"label": y, "probs": p} for y, p in zip(LABELS.tolist(), PROBS.tolist(), strict=True)]
    return lines(
        d / "a.jsonl", [{**row, "note": "odd"} if i % 7 else row for i, row in enumerate(rows)]
    )


@case(readable=False)
def a_class_in_some_rows(d: Path) -> Path:
    rows = [dict(zip(NAMES, z, strict=True)) for z in LOGITS.tolist()]
    rows[9]["fox"] = 9.0
    pairs = zip(rows, TRUE, strict=True)
    return lines(d / "a.jsonl", [{"label": y, "logits": z} for z, y in pairs])


# --- cells, headers and encodings


@case()
def blanks_between_numbers_of_a_cell(d: Path) -> Path:
    held = [" ".join(map(str, p)) for p in PROBS.tolist()]
    return cells(d / "a.csv", ["label", "probs"], LABELS, held)


@case()
def vectors_of_spark(d: Path) -> Path:
    held = [f"DenseVector({p})" for p in PROBS.tolist()]
    return cells(d / "a.csv", ["label", "probability"], LABELS, held)


@case()
def numbers_without_names(d: Path) -> Path:
    np.savetxt(d / "a.txt", np.column_stack([PROBS, LABELS]))
    return d / "a.txt"


@case()
def names_behind_a_hash(d: Path) -> Path:
    header = " ".join(["label", *(f"p{k}" for k in range(K))])
    np.savetxt(d / "a.txt", np.column_stack([LABELS, PROBS]), header=header)
    return d / "a.txt"


@case("event")
def event_without_names(d: Path) -> Path:
    return cells(d / "a.csv", [], EVENT, CHANCE)


@case()
def utf_16_without_a_mark(d: Path) -> Path:
    path = cells(d / "a.csv", ["label", *(f"prob_{k}" for k in range(K))], LABELS, PROBS)
    path.write_text(path.read_text(), encoding="utf-16-le")
    return path


@case()
def labels_spelt_otherwise(d: Path) -> Path:
    head = ["label", *(f"prob_{name}_fly" for name in NAMES)]
    return cells(d / "a.csv", head, [f"{name.title()} fly" for name in TRUE], PROBS)


@case()
def labels_numbered_behind_a_word(d: Path) -> Path:
    head = ["label", *(f"prob_{k}" for k in range(K))]
    return cells(d / "a.csv", head, [f"class_{y}" for y in LABELS], PROBS)


@case()
def tables_of_a_dashboard(d: Path) -> Path:
    rows = [[y, s, *p] for y, s, p in zip(TRUE, GUESS, PROBS.tolist(), strict=True)]
    columns = ["truth", "guess", *(f"score_{name}" for name in NAMES)]
    (d / "a.json").write_text(json.dumps({"_type": "table", "columns": columns, "data": rows}))
    return d / "a.json"


# --- a row for each class, a column for each label, several models

ONE_HOT = np.eye(K, dtype=int)[LABELS]
KEYS, KINDS = np.repeat(R, K), np.tile(range(K), ROWS)
SHARPER = PROBS**2 / (PROBS**2).sum(axis=1, keepdims=True)


@case()
def rows_of_classes_in_json(d: Path) -> Path:
    columns = zip(KEYS.tolist(), KINDS, PROBS.reshape(-1).tolist(), strict=True)
    return lines(
        d / "a.jsonl",
        [{"id": i, "class": NAMES[k], "prob": p, "label": TRUE[i]} for i, k, p in columns],
    )


@case()
def rows_of_classes_one_class_after_another(d: Path) -> Path:
    order = np.argsort(KINDS, kind="stable")
    own = {"id": KEYS, "class": KINDS, "logit": LOGITS.reshape(-1), "label": LABELS[KEYS]}
    return table(d / "a.csv", **{name: values[order] for name, values in own.items()})


@case()
def rows_of_classes_and_whether_each_is_right(d: Path) -> Path:
    own = {"id": KEYS, "class": KINDS, "confidence": PROBS.reshape(-1)}
    return table(d / "a.csv", **own, correct=ONE_HOT.reshape(-1))


@case(readable=False)
def log_odds_of_classes_and_whether_each_is_right(d: Path) -> Path:
    own = {"id": KEYS, "class": KINDS, "logit": LOGITS.reshape(-1)}
    return table(d / "a.csv", **own, label=ONE_HOT.reshape(-1))


@case(readable=False)
def rows_of_the_three_best_classes(d: Path) -> Path:
    best = np.argsort(-PROBS, axis=1)[:, :3]
    own = {"id": np.repeat(R, 3), "class": best.reshape(-1), "label": np.repeat(LABELS, 3)}
    return table(d / "a.csv", **own, prob=np.take_along_axis(PROBS, best, axis=1).reshape(-1))


@case()
def one_hot_columns_bare_numbers(d: Path) -> Path:
    return table(d / "a.csv", **by("", ONE_HOT), **by("p", PROBS))


@case()
def one_hot_columns_beside_numbered_scores(d: Path) -> Path:
    return table(d / "a.csv", **by("", ONE_HOT, NAMES), **by("prob_", PROBS))


@case()
def one_hot_columns_and_names_before_a_word(d: Path) -> Path:
    said = [f"{name}_pred" for name in NAMES]
    return table(d / "a.csv", **by("", ONE_HOT, NAMES), **by("", PROBS, said))


@case(readable=False)
def one_hot_columns_alone(d: Path) -> Path:
    return table(d / "a.csv", id=R, **by("", ONE_HOT, NAMES))


@case()
def packed_arrays(d: Path) -> Path:
    return packed(npz(d / "a.npz", probs=PROBS, labels=LABELS), ".gz", gzip.compress)


@case()
def two_models_before_numbers(d: Path) -> Path:
    return table(d / "a.csv", label=LABELS, **by("modelA_p", PROBS), **by("modelB_p", SHARPER))


@case()
def two_models_behind_one_stem(d: Path) -> Path:
    return table(d / "a.csv", label=LABELS, **by("prob_a_", PROBS), **by("prob_b_", SHARPER))


@case()
def two_models_behind_numbers(d: Path) -> Path:
    ends = [[f"{k}_{model}" for k in range(K)] for model in ("old", "new")]
    columns = by("prob_", PROBS, ends[0]) | by("prob_", SHARPER, ends[1])
    return table(d / "a.csv", label=LABELS, **columns)


@case()
def two_models_in_arrays(d: Path) -> Path:
    return npz(d / "a.npz", probs_a=PROBS, probs_b=SHARPER, labels=LABELS)


@case()
def logits_of_two_models(d: Path) -> Path:
    return npz(d / "a.npz", logits_resnet=LOGITS, logits_vit=2 * LOGITS, targets=LABELS)


@case("event")
def an_event_by_two_models(d: Path) -> Path:
    return table(d / "a.csv", p_model1=CHANCE, p_model2=CHANCE**2, y=EVENT)


@case("event")
def an_event_before_and_after(d: Path) -> Path:
    return table(d / "a.csv", prob=CHANCE, prob_new=CHANCE**2, label=EVENT)
