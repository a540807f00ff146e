"""Files as people have them, further ones; importing this registers them beside `people_files`."""

from __future__ import annotations

import bz2
import gzip
import json
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from people_files import (
    CHANCE,
    EVENT,
    LABELS,
    LOGITS,
    NAMES,
    ODDS,
    PROBS,
    RIGHT,
    RNG,
    ROWS,
    SAID,
    TOP,
    WORDS,
    K,
    below,
    by,
    case,
    cells,
    lines,
    npz,
    packed,
    table,
)

HOT = np.eye(K, dtype=int)[LABELS]
TRUE, GUESS = WORDS[LABELS].tolist(), WORDS[SAID].tolist()
L, P, Z = LABELS.tolist(), PROBS.tolist(), LOGITS.tolist()


LP = list(zip(L, P, strict=True))


def by_name(scores: list[float]) -> dict[str, float]:
    return dict(zip(NAMES, scores, strict=True))


def sorted_pairs(scores: list[float]) -> list[tuple[str, float]]:
    return sorted(by_name(scores).items(), key=lambda pair: -pair[1])


def _labels_called(name: str) -> None:
    def of_a_table(d: Path) -> Path:
        return table(d / "a.csv", **{name: LABELS}, **by("prob_", PROBS))

    def of_arrays(d: Path) -> Path:
        return npz(d / "a.npz", probs=PROBS, **{name: LABELS})

    for write in (of_a_table, of_arrays):
        write.__name__ = f"labels_called_{name}_{write.__name__}"
        case()(write)


for _name in ("truth", "Target", "gt", "ground_truth", "y_true", "y", "category"):
    _labels_called(_name)


@case()
def dicts_in_cells(d: Path) -> Path:
    return cells(d / "a.csv", label=TRUE, probs=[str(by_name(p)) for p in P])


@case()
def json_strings_of_lists(d: Path) -> Path:
    return lines(d / "a.jsonl", [{"label": y, "probs": json.dumps(p)} for y, p in LP])


@case()
def json_strings_of_objects(d: Path) -> Path:
    return lines(
        d / "a.jsonl",
        [{"label": NAMES[y], "probs": json.dumps(by_name(p))} for y, p in LP],
    )


@case()
def parquet_of_maps(d: Path) -> Path:
    rows = [list(zip(NAMES, p, strict=True)) for p in P]
    t = pa.table({"label": TRUE, "probs": pa.array(rows, pa.map_(pa.string(), pa.float64()))})
    pq.write_table(t, d / "a.parquet")
    return d / "a.parquet"


@case()
def parquet_of_lists_of_structs(d: Path) -> Path:
    rows = [[{"label": n, "score": s} for n, s in sorted_pairs(p)] for p in P]
    pq.write_table(pa.table({"gold": TRUE, "scores": rows}), d / "a.parquet")
    return d / "a.parquet"


@case()
def parquet_of_structs_in_structs(d: Path) -> Path:
    rows = [{"out": {"probs": by_name(p)}} for p in P]
    pq.write_table(pa.table({"gold": TRUE, "model": rows}), d / "a.parquet")
    return d / "a.parquet"


@case()
def one_hot_columns_named_after_classes(d: Path) -> Path:
    return table(d / "a.csv", **by("true_", HOT, NAMES), **by("prob_", PROBS, NAMES))


@case()
def one_hot_columns_bare_names(d: Path) -> Path:
    return table(d / "a.csv", **by("", HOT, NAMES), **by("p_", PROBS, NAMES))


@case()
def names_with_dots(d: Path) -> Path:
    n = ["New York", "San Jose", "Los Angeles", "El Paso", "St. Paul"]
    dots = [x.replace(" ", ".") for x in n]
    return table(d / "a.csv", label=np.array(n)[LABELS], **by("prob.", PROBS, dots))


@case()
def names_with_numbers_before(d: Path) -> Path:
    return table(d / "a.csv", label=[f"{y}: {NAMES[y]}" for y in L], **by("prob_", PROBS))


@case()
def weka(d: Path) -> Path:
    rows = ["inst#,actual,predicted,error,distribution,,,,"]
    for i, (y, s, p) in enumerate(zip(L, SAID.tolist(), P, strict=True)):
        cs = [("*" if k == s else "") + repr(p[k]) for k in range(K)]
        rows.append(
            ",".join(
                [
                    str(i + 1),
                    f"{y + 1}:{NAMES[y]}",
                    f"{s + 1}:{NAMES[s]}",
                    "" if y == s else "+",
                    *cs,
                ]
            )
        )
    (d / "a.csv").write_text("\n".join(rows) + "\n")
    return d / "a.csv"


@case("top")
def weka_top(d: Path) -> Path:
    rows = ["inst#,actual,predicted,error,prediction"]
    for i, (y, s, p) in enumerate(zip(L, SAID.tolist(), TOP.tolist(), strict=True)):
        rows.append(
            ",".join(
                [
                    str(i + 1),
                    f"{y + 1}:{NAMES[y]}",
                    f"{s + 1}:{NAMES[s]}",
                    "" if y == s else "+",
                    repr(p),
                ]
            )
        )
    (d / "a.csv").write_text("\n".join(rows) + "\n")
    return d / "a.csv"


@case()
def bytes_as_python_prints_them(d: Path) -> Path:
    return table(d / "a.csv", label=[str(n.encode()) for n in TRUE], **by("prob_", PROBS, NAMES))


@case()
def structured_npy(d: Path) -> Path:
    a = np.zeros(ROWS, [("label", "i8"), ("probs", "f8", (K,))])
    a["label"] = LABELS
    a["probs"] = PROBS
    np.save(d / "a.npy", a)
    return d / "a.npy"


@case()
def structured_npy_columns(d: Path) -> Path:
    a = np.zeros(ROWS, [("label", "i8"), *[(f"prob_{k}", "f8") for k in range(K)]])
    a["label"] = LABELS
    for k in range(K):
        a[f"prob_{k}"] = PROBS[:, k]
    np.save(d / "a.npy", a)
    return d / "a.npy"


@case()
def structured_in_npz(d: Path) -> Path:
    a = np.zeros(ROWS, [("y", "i8"), ("p", "f8", (K,))])
    a["y"] = LABELS
    a["p"] = PROBS
    return npz(d / "a.npz", results=a)


@case()
def compound_hdf5(d: Path) -> Path:
    a = np.zeros(ROWS, [("label", "i8"), ("probs", "f8", (K,))])
    a["label"] = LABELS
    a["probs"] = PROBS
    with h5py.File(d / "a.h5", "w") as f:
        f["results"] = a
    return d / "a.h5"


@case()
def pandas_hdf5_table(d: Path) -> Path:
    a = np.zeros(
        ROWS, [("index", "i8"), ("values_block_0", "f8", (K,)), ("values_block_1", "i8", (1,))]
    )
    a["index"] = np.arange(ROWS)
    a["values_block_0"] = PROBS
    a["values_block_1"][:, 0] = LABELS
    with h5py.File(d / "a.h5", "w") as f:
        f["df/table"] = a
    return d / "a.h5"


@case()
def label_last_in_npy(d: Path) -> Path:
    np.save(d / "results.npy", np.column_stack([PROBS, LABELS]))
    return d / "results.npy"


@case()
def label_first_in_npy(d: Path) -> Path:
    np.save(d / "results.npy", np.column_stack([LABELS, LOGITS]))
    return d / "results.npy"


@case()
def label_last_in_npz(d: Path) -> Path:
    return npz(d / "a.npz", results=np.column_stack([PROBS, LABELS]))


@case()
def torch_lists_of_batches(d: Path) -> Path:
    torch.save(
        {
            "logits": [torch.from_numpy(z) for z in np.split(LOGITS, 3)],
            "labels": [torch.from_numpy(y) for y in np.split(LABELS, 3)],
        },
        d / "a.pt",
    )
    return d / "a.pt"


@case()
def torch_list_of_dicts(d: Path) -> Path:
    torch.save(
        [
            {"logits": torch.from_numpy(z), "labels": torch.from_numpy(y)}
            for z, y in zip(np.split(LOGITS, 3), np.split(LABELS, 3), strict=True)
        ],
        d / "a.pt",
    )
    return d / "a.pt"


@case()
def torch_list_of_rows(d: Path) -> Path:
    torch.save(
        [
            {"logits": torch.from_numpy(z), "label": int(y)}
            for z, y in zip(LOGITS, LABELS, strict=True)
        ],
        d / "a.pt",
    )
    return d / "a.pt"


@case()
def json_lines_of_batches(d: Path) -> Path:
    return lines(
        d / "a.jsonl",
        [
            {"logits": z.tolist(), "labels": y.tolist()}
            for z, y in zip(np.split(LOGITS, 3), np.split(LABELS, 3), strict=True)
        ],
    )


@case()
def json_array_of_batches(d: Path) -> Path:
    (d / "a.json").write_text(
        json.dumps(
            [
                {"logits": z.tolist(), "labels": y.tolist()}
                for z, y in zip(np.split(LOGITS, 3), np.split(LABELS, 3), strict=True)
            ]
        )
    )
    return d / "a.json"


@case()
def npz_of_batches(d: Path) -> Path:
    return npz(d / "a.npz", logits=LOGITS.reshape(3, 100, K), labels=LABELS.reshape(3, 100))


@case()
def npz_batches_by_number(d: Path) -> Path:
    own = {}
    for i, (z, y) in enumerate(zip(np.split(LOGITS, 3), np.split(LABELS, 3), strict=True)):
        own |= {f"logits_{i}": z, f"labels_{i}": y}
    return npz(d / "a.npz", **own)


@case()
def title_line_above(d: Path) -> Path:
    return below(table(d / "a.csv", label=LABELS, **by("prob_", PROBS)), "Results of model A\n\n")


@case()
def title_lines_above_padded(d: Path) -> Path:
    p = table(d / "a.csv", label=LABELS, **by("prob_", PROBS))
    return below(p, "Results of model A,,,,,\nDate: 2026-01-01,,,,,\n")


@case()
def two_headers(d: Path) -> Path:
    p = table(d / "a.csv", label=LABELS, **by("prob_", PROBS))
    t = p.read_text().split("\n", 1)
    p.write_text("truth,scores,scores,scores,scores,scores\n" + t[0] + "\n" + t[1])
    return p


@case()
def np_float64_cells(d: Path) -> Path:
    return cells(
        d / "a.csv",
        label=L,
        probs=[
            str([np.float64(x) for x in p]).replace("[", "[").replace(", ", ", ")
            if "np." in repr(np.float64(1))
            else "[" + ", ".join(f"np.float64({x!r})" for x in p) + "]"
            for p in P
        ],
    )


@case()
def np_float64_single_cells(d: Path) -> Path:
    return cells(
        d / "a.csv",
        label=L,
        **{f"prob_{k}": [f"np.float64({p[k]!r})" for p in P] for k in range(K)},
    )


@case()
def tensor_cells_single(d: Path) -> Path:
    return cells(
        d / "a.csv",
        label=[f"tensor({y})" for y in L],
        **{f"prob_{k}": [f"tensor({p[k]!r}, device='cuda:0')" for p in P] for k in range(K)},
    )


@case(readable=False)
def logits_over_100(d: Path) -> Path:
    return npz(d / "a.npz", logits=LOGITS / 100, labels=LABELS)


@case(readable=False)
def clip_similarities(d: Path) -> Path:
    v = LOGITS / np.linalg.norm(LOGITS, axis=1, keepdims=True) * 0.3
    return npz(d / "a.npz", logits=v, labels=LABELS)


@case()
def csv_gz(d: Path) -> Path:
    p = table(d / "a.csv", label=LABELS, **by("prob_", PROBS))
    return packed(p, ".gz", gzip.compress)


@case()
def jsonl_gz(d: Path) -> Path:
    p = lines(d / "a.jsonl", [{"label": y, "probs": p} for y, p in LP])
    return packed(p, ".gz", gzip.compress)


@case()
def csv_bz2(d: Path) -> Path:
    p = table(d / "a.csv", label=LABELS, **by("prob_", PROBS))
    return packed(p, ".bz2", bz2.compress)


@case()
def truth_and_prediction(d: Path) -> Path:
    return table(d / "a.csv", truth=LABELS, pred=SAID, **by("prob_", PROBS))


@case()
def target_beside_group(d: Path) -> Path:
    return table(d / "a.csv", fold=RNG.integers(5, size=ROWS), target=LABELS, **by("prob_", PROBS))


@case()
def y_true_and_y_pred(d: Path) -> Path:
    return table(d / "a.csv", y_pred=SAID, y_true=LABELS, **by("prob_", PROBS))


@case("top")
def conf_truth(d: Path) -> Path:
    return table(d / "a.csv", confidence=TOP, pred_label=SAID, truth=LABELS)


@case(atol=5.1e-3)
def percent_with_sign_comma(d: Path) -> Path:
    own = {f"prob_{k}": [f"{100 * p[k]:.1f} %".replace(".", ",") for p in P] for k in range(K)}
    return cells(d / "a.csv", ";", label=L, **own)


@case()
def totals_row(d: Path) -> Path:
    p = table(d / "a.csv", id=np.arange(ROWS), label=LABELS, **by("prob_", PROBS))
    p.write_text(p.read_text() + "Total,," + ",".join(f"{x}" for x in PROBS.sum(0)) + "\n")
    return p


@case()
def trailing_empty_lines(d: Path) -> Path:
    p = table(d / "a.csv", label=LABELS, **by("prob_", PROBS))
    p.write_text(p.read_text() + ",,,,,\n,,,,,\n")
    return p


@case()
def trailing_comma_each_line(d: Path) -> Path:
    p = table(d / "a.csv", label=LABELS, **by("prob_", PROBS))
    p.write_text("".join(x + ",\n" for x in p.read_text().splitlines()))
    return p


@case(readable=False)
def mixed_nan(d: Path) -> Path:
    own = {
        f"prob_{k}": [
            (
                "NA"
                if i == 3
                else "#N/A"
                if i == 5
                else ""
                if i == 9
                else "null"
                if i == 11
                else p[k]
            )
            for i, p in enumerate(P)
        ]
        for k in range(K)
    }
    return cells(d / "a.csv", label=L, **own)


@case(readable=False)
def nan_labels(d: Path) -> Path:
    return cells(
        d / "a.csv",
        label=["" if i in (4, 8) else y for i, y in enumerate(L)],
        **{f"prob_{k}": PROBS[:, k] for k in range(K)},
    )


@case(readable=False)
def nan_named_labels(d: Path) -> Path:
    return cells(
        d / "a.csv",
        label=["nan" if i in (4, 8) else y for i, y in enumerate(TRUE)],
        **{f"prob_{n}": PROBS[:, k] for k, n in enumerate(NAMES)},
    )


@case("event")
def amount_with_thousands(d: Path) -> Path:
    return cells(
        d / "a.csv",
        amount=[f"{x:,.2f}" for x in RNG.gamma(2, 5000, ROWS)],
        prob=CHANCE.tolist(),
        label=EVENT.tolist(),
    )


@case()
def logits_with_thousands(d: Path) -> Path:
    return cells(
        d / "a.csv", label=L, **{f"logit_{k}": [f"{z[k] * 1:,.6f}" for z in Z] for k in range(K)}
    )


@case()
def one_based_columns_zero_based_labels(d: Path) -> Path:
    return table(d / "a.csv", label=LABELS, **by("prob_", PROBS, [1, 2, 3, 4, 5]))


@case()
def class_order_not_alphabetic(d: Path) -> Path:
    n = ["low", "medium", "high", "severe", "fatal"]
    return table(d / "a.csv", label=np.array(n)[LABELS], **by("prob_", PROBS, n))


@case(readable=False)
def words_as_labels_numbers_as_columns(d: Path) -> Path:
    n = np.array(["low", "medium", "high", "severe", "fatal"])
    return table(d / "a.csv", label=n[LABELS], **by("prob_", PROBS))


@case()
def long_form_named(d: Path) -> Path:
    rows = [
        {"id": i, "class": NAMES[k], "prob": P[i][k], "label": NAMES[L[i]]}
        for i in range(ROWS)
        for k in range(K)
    ]
    return cells(d / "a.csv", **{c: [r[c] for r in rows] for c in rows[0]})


@case()
def long_form_numbers_truth(d: Path) -> Path:
    rows = [
        {"image": f"i{i:03d}", "class": k, "score": P[i][k], "true_class": L[i]}
        for i in range(ROWS)
        for k in range(K)
    ]
    return cells(d / "a.csv", **{c: [r[c] for r in rows] for c in rows[0]})


@case()
def arrow_large_lists(d: Path) -> Path:
    pq.write_table(
        pa.table({"label": LABELS, "probs": pa.array(P, pa.large_list(pa.float32()))}),
        d / "a.parquet",
    )
    return d / "a.parquet"


@case()
def arrow_string_views(d: Path) -> Path:
    t = pa.table(
        {
            "label": pa.array(TRUE).cast(pa.string_view()),
            **{f"prob_{n}": PROBS[:, k] for k, n in enumerate(NAMES)},
        }
    )
    with pa.OSFile(str(d / "a.arrow"), "wb") as s, pa.ipc.new_file(s, t.schema) as w:
        w.write_table(t)
    return d / "a.arrow"


@case()
def pandas_categorical(d: Path) -> Path:
    pd.DataFrame(
        {
            "label": pd.Categorical(TRUE, categories=NAMES[::-1]),
            **{f"prob_{n}": PROBS[:, k] for k, n in enumerate(NAMES)},
        }
    ).to_parquet(d / "a.parquet")
    return d / "a.parquet"


@case()
def pandas_categorical_numbers(d: Path) -> Path:
    pd.DataFrame(
        {"label": pd.Categorical(LABELS, categories=[4, 3, 2, 1, 0]), **by("prob_", PROBS)}
    ).to_parquet(d / "a.parquet")
    return d / "a.parquet"


@case()
def pandas_feather_strings(d: Path) -> Path:
    pd.DataFrame(
        {"label": TRUE, **{f"prob_{n}": PROBS[:, k] for k, n in enumerate(NAMES)}}
    ).to_feather(d / "a.feather")
    return d / "a.feather"


@case("event")
def parquet_booleans(d: Path) -> Path:
    pq.write_table(pa.table({"prob": CHANCE, "label": EVENT.astype(bool)}), d / "a.parquet")
    return d / "a.parquet"


@case(readable=False)
def npz_object_arrays(d: Path) -> Path:
    np.savez(d / "a.npz", probs=PROBS, labels=np.array(TRUE, dtype=object))
    return d / "a.npz"


@case(atol=5e-3)
def npy_fortran_half(d: Path) -> Path:
    np.save(d / "logits.npy", np.asfortranarray(LOGITS.astype(np.float16)))
    np.save(d / "labels.npy", LABELS)
    return d / "logits.npy"


@case()
def npy_big_endian(d: Path) -> Path:
    np.save(d / "probs.npy", PROBS.astype(">f8"))
    np.save(d / "labels.npy", LABELS.astype(">i4"))
    return d / "probs.npy"


@case()
def json_nested_deep(d: Path) -> Path:
    return lines(
        d / "a.jsonl",
        [
            {
                "meta": {"id": i, "split": "test"},
                "model": {"name": "x", "scores": by_name(p)},
                "annotation": {"label": NAMES[y]},
            }
            for i, (y, p) in enumerate(LP)
        ],
    )


@case()
def json_list_of_names_and_scores(d: Path) -> Path:
    return lines(
        d / "a.jsonl",
        [
            {
                "gold": NAMES[y],
                "preds": [[n, s] for n, s in sorted_pairs(p)],
            }
            for y, p in LP
        ],
    )


@case()
def json_records_under_key(d: Path) -> Path:
    (d / "a.json").write_text(
        json.dumps({"model": "x", "results": [{"label": y, "probs": p} for y, p in LP]})
    )
    return d / "a.json"


@case()
def json_with_nan_note(d: Path) -> Path:
    (d / "a.jsonl").write_text(
        "".join(f'{{"label": {y}, "probs": {json.dumps(p)}, "loss": NaN}}\n' for y, p in LP)
    )
    return d / "a.jsonl"


@case()
def columns_shuffled_named(d: Path) -> Path:
    o = [3, 0, 4, 1, 2]
    return table(d / "a.csv", **by("p_", PROBS[:, o], [NAMES[k] for k in o]), truth=TRUE)


@case()
def labels_capitalised(d: Path) -> Path:
    return table(d / "a.csv", label=[n.title() for n in TRUE], **by("prob_", PROBS, NAMES))


@case("event")
def event_1_2_csv(d: Path) -> Path:
    return table(d / "a.csv", prob=CHANCE, label=EVENT + 1)


@case("event")
def event_percent_sign_de(d: Path) -> Path:
    return cells(
        d / "a.csv",
        ";",
        Wahrscheinlichkeit=[f"{100 * c:.8f}%".replace(".", ",") for c in CHANCE],
        Ausfall=EVENT.tolist(),
    )


@case("event")
def event_pos_neg_words(d: Path) -> Path:
    return table(d / "a.csv", score=CHANCE, label=np.where(EVENT, "positive", "negative"))


@case("event")
def event_benign(d: Path) -> Path:
    return table(
        d / "a.csv", prob_malignant=CHANCE, diagnosis=np.where(EVENT, "malignant", "benign")
    )


@case("event")
def event_wide_names(d: Path) -> Path:
    return table(d / "a.csv", y=np.where(EVENT, "spam", "ham"), ham=1 - CHANCE, spam=CHANCE)


@case("top")
def top_label_names_conf_percent_sign(d: Path) -> Path:
    return cells(
        d / "a.csv", prediction=GUESS, truth=TRUE, confidence=[f"{100 * c:.8f}%" for c in TOP]
    )


@case("top")
def top_conf_words_correct(d: Path) -> Path:
    return cells(
        d / "a.csv", confidence=TOP.tolist(), grade=["CORRECT" if r else "INCORRECT" for r in RIGHT]
    )


@case()
def space_aligned(d: Path) -> Path:
    rows = ["label  p0      p1      p2      p3      p4"]
    for y, p in LP:
        rows.append(f"{y:<6} " + "  ".join(f"{x:.12f}" for x in p))
    (d / "a.txt").write_text("\n".join(rows) + "\n")
    return d / "a.txt"


@case(atol=1e-5)
def aligned_to_the_right(d: Path) -> Path:
    rows = [["label", *(f"prob_{k}" for k in range(K))]]
    rows += [[str(y), *(f"{x:.6f}" for x in p)] for y, p in LP]
    text = "\n".join(" ".join(cell.rjust(10) for cell in row) for row in rows)
    (d / "a.csv").write_text(f"{text}\n")
    return d / "a.csv"


@case(atol=1e-5)
def table_of_markdown(d: Path) -> Path:
    rows = [["label", *(f"prob_{k}" for k in range(K))], ["---"] * (K + 1)]
    rows += [[str(y), *(f"{x:.6f}" for x in p)] for y, p in LP]
    (d / "a.md").write_text("".join(f"| {' | '.join(row)} |\n" for row in rows))
    return d / "a.md"


@case(atol=1e-5)
def exponents_of_fortran(d: Path) -> Path:
    path = table(d / "a.csv", label=LABELS, **by("prob_", PROBS))
    header, *rows = path.read_text().splitlines()
    own = [[row.split(",")[0], *(f"{float(c):.8E}" for c in row.split(",")[1:])] for row in rows]
    path.write_text("\n".join([header, *(",".join(row).replace("E", "D") for row in own)]) + "\n")
    return path


@case()
def files_put_behind_another(d: Path) -> Path:
    path = table(d / "a.csv", label=LABELS, **by("prob_", PROBS))
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, *rows[:100], header, *rows[100:]]) + "\n")
    return path


@case()
def single_quotes(d: Path) -> Path:
    return table(d / "a.csv", label=[f"'{n}'" for n in TRUE], **by("prob_", PROBS, NAMES))


@case()
def uint8_labels_overflow(d: Path) -> Path:
    return npz(d / "a.npz", probs=PROBS.astype(np.float32), labels=(LABELS + 1).astype(np.uint8))


@case(atol=5e-2)
def torch_cuda_like_bf16(d: Path) -> Path:
    torch.save(
        {"logits": torch.from_numpy(LOGITS).bfloat16(), "labels": torch.from_numpy(LABELS)},
        d / "a.pt",
    )
    return d / "a.pt"


@case()
def hdf5_fixed_text(d: Path) -> Path:
    with h5py.File(d / "a.h5", "w") as f:
        f["probs"] = PROBS
        f["labels"] = np.array(TRUE, dtype="S8")
        f["class_names"] = np.array(NAMES, dtype="S8")
    return d / "a.h5"


@case()
def float_labels_from_one(d: Path) -> Path:
    return table(d / "a.csv", target=LABELS + 1.0, **by("prob_", PROBS))


@case()
def nbsp_in_header(d: Path) -> Path:
    p = table(d / "a.csv", label=LABELS, **by("prob_", PROBS))
    p.write_text(p.read_text().replace("prob_", "\u00a0prob_", 5))
    return p


@case()
def multi_index_header_pandas(d: Path) -> Path:
    rows = ["label,probs,probs,probs,probs,probs", ",0,1,2,3,4"]
    for y, p in LP:
        rows.append(",".join(map(str, [y, *p])))
    (d / "a.csv").write_text("\n".join(rows) + "\n")
    return d / "a.csv"


@case(readable=False)
def log10_named_logits(d: Path) -> Path:
    return npz(d / "a.npz", logits=np.log10(PROBS), labels=LABELS)


@case(readable=False)
def log2_named_logits(d: Path) -> Path:
    return npz(d / "a.npz", logits=np.log2(PROBS), labels=LABELS)


@case(readable=False)
def binary_logits_over_100(d: Path) -> Path:
    return npz(d / "a.npz", logit=ODDS / 100, labels=EVENT)


@case(readable=False)
def labels_off_by_a_row(d: Path) -> Path:
    return npz(d / "a.npz", probs=PROBS, labels=np.roll(LABELS, 1))
