"""Read and write files of predictions, in the format that the extension names.

========================  =======================================================================
``.npz .safetensors``     `logits` or `probs` (N, K), `labels` (N,), optional `features` (N, D),
``.pt .pth``              `head_weight` (K, D) with `head_bias` (K,), `reference_features` (M, D);
                          or `prob` or `logit` of the positive class with `labels`, each (N,);
                          or `confidence`, `pred_label`, `true_label`, each (N,)
``.csv .parquet ...``     columns `label` with `logit_0`, `logit_1`, ... or `prob_0`, ..., optional
                          `feature_0`, ...; or `label` with `prob` or `logit` of the positive
                          class; or `true_label`, `pred_label`, `confidence`
``.tsv .jsonl .ndjson``   the same as CSV and parquet; ``.h5 .hdf5`` as npz; ``.arrow .feather``
                          and folders of `save_to_disk` as parquet
``.npy``                  one array a file, memory-mapped: ``PREFIXlogits.npy`` beside
                          ``PREFIXlabels.npy``, or a folder that holds them
========================  =======================================================================

`predictions` beside `label_ids`, as the Trainer of Hugging Face names them, are logits and labels;
other names are told by an argument. Columns of scores may be lists, or be named after the classes
(``prob_cat``). `label`, `labels` and `true_label` mean the same everywhere, and so do `pred_label`
and `predicted`. An optional `weight` (N,) says how much each row counts; of tokens and many labels
it may be of the shape of their labels. `class_names` and `label_names` are text, in a safetensors
file JSON in its header. Keys and columns with other names are ignored.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from os import fspath
from pathlib import Path
from typing import Any, Unpack

from calibrant.core.errors import InputError, PredictionsError
from calibrant.files.atomic import StrPath, replacing, whole_set
from calibrant.files.bounds import check_regular
from calibrant.files.csv_files import read_csv, write_csv
from calibrant.files.extra_column import read_column
from calibrant.files.hugging_face import is_data_set
from calibrant.files.json_lines import read_json_lines
from calibrant.files.keys import Arrays, Wanted, to_keys
from calibrant.files.numpy_files import npy_parts, read_npy, read_npz, write_npy, write_npz
from calibrant.files.options import ReadFields, ReadOptions
from calibrant.files.parquet_files import read_parquet, write_parquet
from calibrant.files.rows_at_once import read_rows
from calibrant.files.tensor_files import read_safetensors, read_torch, write_safetensors
from calibrant.predictions.predictions import Predictions

__all__ = [
    "ReadFields",
    "ReadOptions",
    "StrPath",
    "read_column",
    "read_predictions",
    "replacing",
    "write_predictions",
]

_READERS: dict[str, Callable[[Path, Wanted, str], Predictions]] = {
    ".npz": read_npz,
    ".npy": read_npy,
    ".csv": read_csv,
    ".parquet": read_parquet,
    ".safetensors": read_safetensors,
    ".pt": read_torch,
    ".pth": read_torch,
    ".tsv": read_csv,
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
    ".h5": read_rows,
    ".hdf5": read_rows,
    ".arrow": read_rows,
    ".feather": read_rows,
}
_WRITERS: dict[str, Callable[[Arrays, Path], None]] = {
    ".npz": write_npz,
    ".npy": write_npy,
    ".csv": write_csv,
    ".parquet": write_parquet,
    ".safetensors": write_safetensors,
}
_PICKLES = (".pkl", ".pickle", ".joblib")


def read_predictions(
    path: StrPath,
    options: ReadOptions | None = None,
    *,
    name: str | None = None,
    **fields: Unpack[ReadFields],
) -> Predictions:
    """Read a file of predictions; the extension says which format it is.

    Args:
        path: the file, or a folder of ``.npy`` arrays.
        options: which columns are read, and as what; by default those with the usual names.
        name: what later messages and tables call these rows; the path by default.
        fields: those of `ReadOptions`, by name, in place of what `options` says.

    Raises:
        PredictionsError: the file can't be read, or what it holds isn't usable predictions. The
            message begins with the path.
        MissingDependencyError: the format needs an optional package.

    Examples:
        >>> import numpy as np
        >>> import calibrant as cb
        >>> np.savez("val.npz", out=[[2.0, 0.0], [0.0, 1.0]], labels=[0, 1])
        >>> cb.read_predictions("val.npz", scores="out", are="logits")
        <Predictions 'val.npz': 2 rows x 2 classes, logits>
    """
    options = (options or ReadOptions()).but(**fields)
    source, file = fspath(path), Path(path)
    folder = os.path.isdir(file)
    extension = ".npy" if folder else file.suffix.lower()
    if folder and is_data_set(source):
        extension = ".arrow"
    _check_extension(extension, _READERS, source)
    check_regular(file, source, folders=folder)
    wanted = wanted_of(options, apart=extension == ".npy")
    labels = options.labels if extension == ".npy" else None
    if labels is not None and os.path.exists(labels):
        check_regular(Path(labels), fspath(labels))
    if extension == ".npy":
        predictions = read_npy(file, wanted, source, None if labels is None else Path(labels))
    else:
        predictions = _READERS[extension](file, wanted, source)
    if options.cluster is not None:
        predictions = predictions.with_clusters(read_column(file, options.cluster), options.cluster)
    return predictions if name is None else replace(predictions, source=name)


def wanted_of(options: ReadOptions, *, apart: bool) -> Wanted:
    """Return options as formats take them; labels that lie `apart` are no key."""
    kind: Any = {"confidence": "toplabel"}.get(str(options.are), options.are)
    return Wanted(
        kind=options.kind or kind,
        labelled=options.labelled,
        positive=options.positive,
        scores_key=options.scores,  # type: ignore[arg-type]
        labels_key=None if apart else options.labels,  # type: ignore[arg-type]
        class_columns=options.classes,  # type: ignore[arg-type]
        ignore_index=options.ignore_index,
        weight_key=options.weight,
        class_axis=options.class_axis,
    )


def write_predictions(predictions: Predictions, path: StrPath, *, overwrite: bool = True) -> None:
    """Write predictions in the format that the extension of `path` names.

    Reading the file back gives the same numbers: in the same dtype from every format but CSV,
    which comes back as float64. ``.npy`` writes one file for each array: `path` must end in
    ``logits.npy``, ``probs.npy``, ``prob.npy``, ``logit.npy`` or ``confidence.npy``, after the
    form, and what precedes that begins the other names. Labels of binary predictions that have
    names are written as these, but for safetensors, which holds numbers only. CSV and parquet hold
    rows only, so a last layer and reference features are left out. A failure leaves what was there
    before as it was.

    Raises:
        InputError: the format can't be written, the folder doesn't exist, or, unless `overwrite`,
            the file does.

    Examples:
        >>> from pathlib import Path
        >>> import calibrant as cb
        >>> rows = cb.Predictions.from_probs([[0.75, 0.25]], labels=[1])
        >>> cb.write_predictions(rows, "rows.csv")
        >>> Path("rows.csv").read_text().split()
        ['label,prob_0,prob_1', '1,0.75,0.25']
    """
    source, target = fspath(path), Path(path)
    extension = target.suffix.lower()
    _check_extension(extension, _WRITERS, source)
    arrays = to_keys(predictions, words=extension != ".safetensors")
    parts = npy_parts(arrays, target, source) if extension == ".npy" else {target: arrays}
    taken = [str(part) for part in parts if part.exists()]
    if taken and not overwrite:
        raise InputError(f"{taken[0]}: exists already, and overwriting was not asked for")
    with ExitStack() as whole, ExitStack() as stack:
        for part, content in parts.items():
            _WRITERS[extension](content, stack.enter_context(replacing(part)))
        # From here on they are put in place, one after the other.
        if len(parts) > 1:
            whole.enter_context(whole_set(target.parent, exclusive=True))


def _check_extension(extension: str, known: dict[str, Any], source: str) -> None:
    if extension in _PICKLES:
        raise PredictionsError(
            f"{source}: pickles are refused, because they can run code; save the arrays with "
            "numpy.savez (.npz) or as .safetensors"
        )
    if extension not in known:
        found = f"the extension '{extension}'" if extension else "a name without extension"
        raise PredictionsError(f"{source}: {found} is unknown; expected {', '.join(known)}")
