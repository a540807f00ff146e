"""Sound files of every format that is read, and other packages' readings of them."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
TRUTH = {"True": 1, "true": 1, "False": 0, "false": 0}
# What is compared; damage to what nobody reads is nobody's to see.
NAMES = ("logits", "probs", "prob", "confidence", "pred_label", "true_label", "label", "labels")
LIKENESS = {"logits": "logit", "probs": "prob", "features": "feature", "labels": "label"}


def arrays_of(form: str, rows: int = 40, seed: int = 0) -> Arrays:
    """Return what a file of a form holds."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, 3)) * 2
    labels = np.where(rng.random(rows) < 0.7, logits.argmax(axis=1), rng.integers(0, 3, rows))
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    if form == "logits":
        return {"logits": logits.astype(np.float32), "labels": labels}
    if form == "more":
        features, weight = rng.normal(size=(rows, 4)), rng.uniform(0.5, 2, size=rows)
        return {"probs": probs, "labels": labels, "features": features, "weight": weight}
    if form == "toplabel":
        top, predicted = probs.max(axis=1), probs.argmax(axis=1)
        return {"confidence": top, "pred_label": predicted, "true_label": labels}
    return {"prob": probs[:, 0], "label": (labels == 0).astype(np.int64)}


# --- writing


def npy_bytes(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def write_zip(path: Path, members: dict[str, bytes], *, packed: bool = False) -> None:
    method = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def write_npz(path: Path, arrays: Arrays) -> None:
    write_zip(path, {f"{name}.npy": npy_bytes(array) for name, array in arrays.items()})


def write_packed(path: Path, arrays: Arrays) -> None:
    members = {f"{name}.npy": npy_bytes(array) for name, array in arrays.items()}
    write_zip(path, members, packed=True)


def columns(arrays: Arrays) -> dict[str, list[Any]]:
    """Return arrays as columns of a table, as tables name them."""
    table: dict[str, list[Any]] = {}
    for name, array in arrays.items():
        column = LIKENESS.get(name, name)
        if array.ndim == 2:
            table |= {f"{column}_{k}": array[:, k].tolist() for k in range(array.shape[1])}
        else:
            table[column] = array.tolist()
    return table


def write_text(path: Path, arrays: Arrays) -> None:
    table = columns(arrays)
    with path.open("w", newline="") as file:
        lines = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        lines.writerow(table)
        lines.writerows(zip(*table.values(), strict=True))


def write_json_lines(path: Path, arrays: Arrays) -> None:
    table = columns(arrays)
    rows = zip(*table.values(), strict=True)
    lines = [json.dumps(dict(zip(table, row, strict=True))) for row in rows]
    path.write_text("\n".join(lines) + "\n")


def write_parquet(path: Path, arrays: Arrays) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns(arrays)), path)


def write_arrow(path: Path, arrays: Arrays) -> None:
    import pyarrow as pa
    from pyarrow import ipc

    table = pa.table(columns(arrays))
    make = ipc.new_file if path.suffix == ".feather" else ipc.new_stream
    with make(path, table.schema) as writer:
        writer.write_table(table)


def write_hdf5(path: Path, arrays: Arrays) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array


def write_safetensors(path: Path, arrays: Arrays) -> None:
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)


def write_torch(path: Path, arrays: Arrays) -> None:
    import torch

    tensors = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}
    torch.save(tensors, path, _use_new_zipfile_serialization=path.suffix == ".pt")


def write_npy(path: Path, arrays: Arrays) -> None:
    for name, array in arrays.items():
        if name in ("logits", "labels"):
            np.save(path.with_name(f"{name}.npy"), array)


WRITERS: dict[str, tuple[str, Callable[[Path, Arrays], None]]] = {
    "npz": ("sound.npz", write_npz),
    "packed": ("sound.npz", write_packed),
    "npy": ("logits.npy", write_npy),
    "csv": ("sound.csv", write_text),
    "tsv": ("sound.tsv", write_text),
    "jsonl": ("sound.jsonl", write_json_lines),
    "parquet": ("sound.parquet", write_parquet),
    "arrow": ("sound.arrow", write_arrow),
    "feather": ("sound.feather", write_arrow),
    "hdf5": ("sound.h5", write_hdf5),
    "safetensors": ("sound.safetensors", write_safetensors),
    "torch": ("sound.pt", write_torch),
    "legacy": ("sound.pth", write_torch),
}
FORMS = ("logits", "more", "toplabel", "prob")


# --- reading, by another way than the package's


def _tabled(table: dict[str, Any]) -> Arrays:
    """Return columns put together to arrays, named as files of arrays name them."""
    found: Arrays = {}
    for name in ("logits", "probs"):
        stem = LIKENESS[name]
        own = [key for key in table if key.startswith(f"{stem}_")]
        if own:
            ordered = sorted(own, key=lambda key: int(key.rpartition("_")[2]))
            found[name] = np.stack([np.asarray(table[key], float) for key in ordered], axis=1)
    if "label_1" not in table and "label_0" in table:  # (N, 1)
        table = table | {"label": table["label_0"]}
    for column in ("label", "prob", "confidence", "pred_label", "true_label"):
        # Where no column has a usual name, damage may have made one of labels True_label.
        alike = [key for key in table if key.lower() == column and column.endswith("label")]
        key = column if column in table or column == "pred_label" else "".join(alike[:1])
        if key in table:
            found[column] = np.asarray([TRUTH.get(str(cell), cell) for cell in table[key]])
            with contextlib.suppress(ValueError):  # labels may be names
                found[column] = found[column].astype(float)
    return found


def _torch_arrays(path: Path) -> Arrays:
    import torch

    tensors = torch.load(path, weights_only=True, map_location="cpu")
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def _safetensors_arrays(path: Path) -> Arrays:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    kinds = {"F32": "<f4", "F64": "<f8", "F16": "<f2", "BOOL": "?"}
    kinds |= {f"{'IU'[s]}{8 * b}": f"<{'iu'[s]}{b}" for s in (0, 1) for b in (1, 2, 4, 8)}
    found: Arrays = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = (8 + length + offset for offset in entry["data_offsets"])
            values = np.frombuffer(content[start:end], kinds[entry["dtype"]])
            found[name] = values.reshape(entry["shape"])
    return found


def read_otherwise(path: Path) -> Arrays:
    """Return the arrays of a file as other packages read them, or raise anything."""
    kind = path.suffix
    if kind == ".npz":
        with zipfile.ZipFile(path) as archive:  # wherever in the file it begins
            members = {name.removesuffix(".npy"): name for name in archive.namelist()}
            wanted = {key: archive.read(members[key]) for key in NAMES if key in members}
        return {
            key: np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
            for key, content in wanted.items()
        }
    if kind == ".npy":
        return {n: np.load(path.with_name(f"{n}.npy")) for n in ("logits", "labels")}
    if kind in (".csv", ".tsv"):
        # As pandas does, with whatever ends a line.
        with path.open(encoding="utf-8-sig") as file:
            text = file.read()
            tabbed = "\t" in text.partition("\n")[0]
            lines = csv.reader(io.StringIO(text), delimiter="\t" if tabbed else ",")
            # What Python takes for white space around a cell, separators such as U+001E among it,
            # is no part of it.
            cells = [[cell.strip() for cell in line] for line in lines]
            # A row without anything in it is none.
            header, *rows = filter(any, cells)
        return _tabled(dict(zip(header, zip(*rows, strict=True), strict=True)))
    if kind == ".jsonl":
        rows = [json.loads(line) for line in path.read_bytes().split(b"\n") if line.strip()]
        return _tabled({name: [row[name] for row in rows] for name in rows[0]})
    if kind == ".parquet":
        import pyarrow.parquet as pq

        return _tabled(pq.ParquetFile(path).read().to_pydict())
    if kind in (".arrow", ".feather"):
        from pyarrow import ipc

        is_file = path.read_bytes().startswith(b"ARROW1")
        opened = (ipc.open_file if is_file else ipc.open_stream)(path)
        return _tabled(opened.read_all().to_pydict())
    if kind == ".h5":
        import h5py

        with h5py.File(path) as file:
            return {name: np.asarray(file[name]) for name in file}
    return _safetensors_arrays(path) if kind == ".safetensors" else _torch_arrays(path)
