"""The formats: one class reads and one writes each. A new one is a module and a line here.

========================  =======================================================================
``.npz .safetensors``     `logits` or `probs` (N, K), `labels` (N,), optional `features` (N, D),
``.pt .pth``              `head_weight` (K, D) with `head_bias` (K,), `reference_features` (M, D);
``.h5 .hdf5``             or `prob` or `logit` of the positive class with `labels`, each (N,);
                          or `confidence`, `pred_label`, `true_label`, each (N,), of which `score`
                          may take the place of the first
``.csv .tsv .jsonl        columns `label` with `logit_0`, `logit_1`, ... or `prob_0`, ..., optional
.ndjson .parquet .arrow`` `feature_0`, ...; or `label` with `prob` or `logit` of the positive
``.feather``, folders     class; or `true_label`, `pred_label`, `confidence`; or `confidence` with
of `save_to_disk`         `correct`. Columns of scores may hold a list a row
``.npy``                  one array a file: ``PREFIXlogits.npy`` beside ``PREFIXlabels.npy``, or a
                          folder that holds them
========================  =======================================================================

Text may be packed by gzip, bzip2 or xz. Logs of evaluations of language models are known by what
they hold, whatever their name (`calibrant.files.formats.logs`).
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import NamedTuple

from calibrant.core.errors import PredictionsError
from calibrant.files.formats.base import RowReader, RowWriter
from calibrant.files.formats.hdf5 import Hdf5Reader, Hdf5Writer
from calibrant.files.formats.json_lines import (
    JsonLinesReader,
    JsonLinesWriter,
    JsonReader,
    NestedReader,
)
from calibrant.files.formats.logs.reader import LogReader, logs_at
from calibrant.files.formats.numpy_files import NpyReader, NpyWriter, NpzReader, NpzWriter
from calibrant.files.formats.tables import (
    ArrowReader,
    ArrowWriter,
    HuggingFaceReader,
    ParquetReader,
    ParquetWriter,
    is_data_set,
)
from calibrant.files.formats.tensors import SafetensorsReader, SafetensorsWriter, TorchReader
from calibrant.files.formats.text import CsvReader, CsvWriter
from calibrant.files.gate import PACKED, readable
from calibrant.files.opening import extension_of, is_folder, is_url, make_folder
from calibrant.files.options import FormatName, ReadOptions


class Format(NamedTuple):
    """How files of a format are read and written, and what their names end in."""

    extensions: tuple[str, ...]
    reader: type[RowReader]
    writer: type[RowWriter] | None


FORMATS: dict[FormatName, Format] = {
    "npz": Format((".npz",), NpzReader, NpzWriter),
    "npy": Format((".npy",), NpyReader, NpyWriter),
    "csv": Format((".csv",), CsvReader, CsvWriter),
    "parquet": Format((".parquet",), ParquetReader, ParquetWriter),
    "safetensors": Format((".safetensors",), SafetensorsReader, SafetensorsWriter),
    "pt": Format((".pt", ".pth"), TorchReader, None),
    "tsv": Format((".tsv",), CsvReader, CsvWriter),
    "jsonl": Format((".jsonl", ".ndjson"), JsonLinesReader, JsonLinesWriter),
    "json": Format((".json",), JsonReader, None),
    "hdf5": Format((".h5", ".hdf5"), Hdf5Reader, Hdf5Writer),
    "arrow": Format((".arrow", ".feather"), ArrowReader, ArrowWriter),
}
# A name in .json may be that of a manifest: such a file is read where its format is told.
_OF_EXTENSION = {e: each for n, each in FORMATS.items() for e in each.extensions if n != "json"}
EXTENSIONS = tuple(_OF_EXTENSION)
WRITTEN = tuple(end for end, each in _OF_EXTENSION.items() if each.writer)
# No more arrays are named that may belong to another.
MOST_BESIDE = 8
_PICKLES = (".pkl", ".pickle", ".joblib")
_EXCEL = (".xlsx", ".xls", ".ods")
# What is typed to unpack a file, by its extension.
_UNPACK = {end: typed for end, (_, _, typed) in PACKED.items()} | {".zst": "unzstd"}
# Formats of text, which a file of any name may have, and which are read packed, but for Zstandard.
OF_TEXT: tuple[FormatName, ...] = ("csv", "tsv", "jsonl", "json")


def plain_name(where: str) -> str:
    """Return the name of a file without the extension of what packed it, if it is text."""
    inner, _, last = where.rpartition(".")
    packed = f".{last.lower()}" in PACKED
    ends = {end for name in OF_TEXT for end in FORMATS[name].extensions}
    return inner if packed and extension_of(inner) in ends else where


def format_of(where: str, known: tuple[str, ...] = EXTENSIONS) -> Format:
    """Return the format that the extension of a path or URL names.

    Raises:
        PredictionsError: none of the known ones.
    """
    extension = extension_of(plain_name(where) if known is EXTENSIONS else where)
    if extension in _PICKLES:
        raise PredictionsError(
            f"{where}: pickles are refused, because they can run code; save the arrays with "
            "numpy.savez (.npz) or as .safetensors"
        )
    if extension in _UNPACK:
        names = shlex.join([where, *_packed_beside(where)])
        raise PredictionsError(f"{where}: is packed; unpack it first: {_UNPACK[extension]} {names}")
    if extension in _EXCEL:
        held = shlex.quote(
            f"import pandas; pandas.read_excel({where!r}).to_csv({where + '.csv'!r})"
        )
        raise PredictionsError(
            f"{where}: files of Excel aren't read; save it as CSV in Excel, or by: python -c {held}"
        )
    if extension not in known:
        if (
            known is EXTENSIONS
            and not extension
            and not is_url(where)
            and not os.path.exists(where)
        ):
            raise PredictionsError(f"{where}: there is no such file or folder")
        found = f"the extension '{extension}'" if extension else "a name without extension"
        raise PredictionsError(
            f"{where}: {found} is unknown; expected {', '.join(known)}"
            f"{', or say the format (format=, --format)' if known is EXTENSIONS else ''}"
        )
    return _OF_EXTENSION[extension]


def _packed_beside(where: str) -> list[str]:
    """Return the packed arrays, such as labels, that lie beside one and may belong to it."""
    inner, _, last = where.rpartition(".")
    if extension_of(inner) not in FORMATS["npy"].extensions or is_url(where):
        return []
    found = sorted(str(place) for place in Path(where).parent.glob(f"*.npy.{last}"))
    return [place for place in found if place != where][:MOST_BESIDE]


def open_rows(where: str, options: ReadOptions) -> RowReader:
    """Open a file of predictions, a folder of ``.npy`` arrays or of a data set, or a URL.

    Raises:
        PredictionsError: another format, no such file, or none that can be understood.
        MissingDependencyError: the format, or the URL, needs an optional package.
    """
    if options.format is None:
        logs = [log for place in (where, *options.beside) for log in logs_at(str(place))]
        if logs:
            with readable("the log", where):
                return LogReader(where, options, logs)
    folder = is_folder(where)
    if folder and not is_url(where) and is_data_set(where):
        reader: type[RowReader] = HuggingFaceReader
    elif options.format is not None:
        reader = FORMATS[options.format].reader
    else:
        reader = NpyReader if folder else format_of(where).reader
    with readable("the file", where):
        opened = reader(where, options)
        return NestedReader(opened) if opened.nested() else opened


def open_writer(where: str, rows: int, scores: str) -> RowWriter:
    """Return what writes so many rows to a path or URL, by its extension, in a folder it may make.

    Args:
        where: path or URL.
        rows: how many there will be.
        scores: key of the scores.

    Raises:
        PredictionsError: the format isn't written.
    """
    writer = format_of(where, WRITTEN).writer
    assert writer is not None
    make_folder(where.rpartition("/")[0] or ".")
    return writer(where, rows, scores)
