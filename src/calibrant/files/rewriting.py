"""People's rows again, with other scores: every field as it stands, in its order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from os import fspath
from pathlib import Path
from typing import Any, cast

import numpy as np

from calibrant.core.arrays import Array, IntArray
from calibrant.core.errors import InputError
from calibrant.core.outputs import StrPath
from calibrant.files.assembly import NO, YES, to_columns
from calibrant.files.formats import WRITTEN, format_of, open_writer
from calibrant.files.formats.base import (
    CLASS_NAMES,
    OF_THE_NETWORK,
    Columns,
    as_text,
    native,
    objects,
    words_for,
)
from calibrant.files.formats.tables import STEMS, split
from calibrant.files.opening import extension_of, is_file, is_url, stem_of, within
from calibrant.files.reading import PredictionFile
from calibrant.files.schema import ends_of
from calibrant.predictions.predictions import Predictions

# Formats that are read but not written, and what is written instead.
INSTEAD = {".pt": ".npz", ".pth": ".npz"}


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
    where = fspath(path)
    format_of(where, WRITTEN)
    arrays = to_columns(predictions, words=extension_of(where) != ".safetensors")
    scores = scores_key(predictions.form)
    if predictions.label_names is not None:
        scores += "s"
    if not overwrite and is_file(where):
        raise InputError(f"{where}: exists already, and overwriting was not asked for")
    if not is_url(where) and not Path(where).absolute().parent.is_dir():
        raise InputError(f"{where}: the folder {Path(where).absolute().parent} doesn't exist")
    with open_writer(where, len(arrays[scores]), scores) as writer:
        writer.write(arrays)


def scores_key(form: str) -> str:
    """Return the key under which scores of a form are written."""
    return "confidence" if form == "toplabel" else form


def written_as(name: str, scores: str) -> str:
    """Return the name under which calibrated scores of a file `name` are written.

    It is the same, but where it says that the file holds logits, or the format isn't written.
    """
    extension = extension_of(name)
    if extension == "":  # a folder of npy arrays
        return within(name, f"{scores}.npy")
    head, _, tail = name.rpartition("/")
    stem = tail.removesuffix(tail[-len(extension) :])
    if extension == ".npy":
        for kind in (*STEMS, "logit", "prob", "confidence", "score"):
            if stem.endswith(kind):
                stem = stem_of(tail).removesuffix(kind) + scores
                break
    else:
        extension = INSTEAD.get(extension, extension)
    return f"{head}/{stem}{extension}" if head else f"{stem}{extension}"


TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".arrow", ".feather")
TEXT = (".csv", ".tsv")
ARROW = (".parquet", ".arrow", ".feather")
# Rows of which labels are looked at together, until they show how classes are written.
LABELS_AT_ONCE = 1 << 12
# One array a file: what stands beside the scores would be files of their own.
APART = (".npy", "")


class RowsAgain:
    """The rows of a file as they are written again with other scores.

    From table to table every column stays where it is, cell by cell, and the new scores take the
    place of those that were read. Where either is a file of arrays, those with an entry a row stay
    beside what predictions hold.

    Args:
        file: open; its rows are read once more.
        out: where they go.
        probs: whether the probabilities of classes are written.

    Attributes:
        table: whether columns stay in their order.
        key: of the scores that are written.
        noted: of a table that says apart what the numbers in its labels mean, these and the names.
        called: the names, where what is written can't say them apart, so that labels become words.
    """

    def __init__(self, file: PredictionFile, out: str, *, probs: bool = True) -> None:
        reader, map = file.file, file.map
        if map.grid and not probs:
            raise InputError(
                f"{file.where}: of several predictions a row their probabilities are all there is "
                "to write; leave out --no-probs"
            )
        self.file, self.out, self.probs = file, out, probs
        self.table = reader.tabular and not map.grid and extension_of(out) in TABLES
        self.scores = [*dict.fromkeys(reader.holder(name) for name in map.fields["scores"])]
        names = list(dict.fromkeys(reader.holder(name) for name in reader.names()))
        self.apart = extension_of(out) in APART
        self.noted = self._noted() if self.table else None
        self.called = words_for(self.noted[1] if self.noted else ())
        self._cells = self._cells_of_two() if self.table else None
        if extension_of(out) in ARROW:
            self.called = []
        if self.table:
            self.names = names
        elif map.grid or self.apart:
            self.names = []
        else:
            read = {reader.holder(name) for role in map.fields for name in map.fields[role]}
            self.names = [
                name
                for name in names
                if name not in (*read, *OF_THE_NETWORK)
                and (reader.tabular or _of_rows(reader.shape(name), file.rows))
            ]

    def _noted(self) -> tuple[str, list[str]] | None:
        map = self.file.map
        label = map.fields.get("labels", (None,))[0]
        names = self.file.file.class_names(label) if map.numbered else None
        if label is None or names is None or names != map.class_names:
            return None
        return label, [*names]

    def _cells_of_two(self) -> tuple[Any, Any] | None:
        """Return what stands for classes 0 and 1 where labels are truth values or -1 and 1."""
        fields = self.file.map.named(("labels", "predicted"))
        if not fields or self.file.map.grid:
            return None
        ends = range(LABELS_AT_ONCE, self.file.rows + LABELS_AT_ONCE, LABELS_AT_ONCE)
        spans = (slice(end - LABELS_AT_ONCE, min(end, self.file.rows)) for end in ends)
        for columns in self.file.file.kept(fields, spans):
            seen = {str(cell).strip() for one in columns.values() for cell in plain(one).tolist()}
            if not seen <= {"1", "1.0"}:
                return _two_cells(seen, self.file.file.type_of(fields[0]) == "bool")
        return None

    def as_labels(self, predicted: IntArray) -> Array:
        """Return (n,) numbers of classes as the labels beside them number the classes."""
        if self._cells is not None:
            no, yes = self._cells
            return np.array([no, yes])[predicted]
        fields = self.file.map.fields
        counted = self.table and "labels" in fields and "predicted" not in fields
        return predicted + (self.file.options.labels_from or 0) if counted else predicted

    @property
    def worded(self) -> bool:
        """Whether classes are written by their names: if labels are, or there are none."""
        if not self.table:  # arrays number the classes, and name them apart
            return self.file.map.binary and extension_of(self.out) != ".safetensors"
        labels = self.file.map.fields.get("labels")
        return labels is None or bool(self.called) or self.file.file.type_of(labels[0]) == "text"

    def kept(self, spans: Iterable[slice]) -> Iterator[Columns]:
        """Yield the fields that stay, for each of the ascending spans."""
        if not self.names:
            return iter(Columns() for _ in spans)
        return self.file.file.kept(self.names, spans)

    def columns(self, kept: Columns, after: Predictions, more: Columns) -> Columns:
        """Return what is written of some rows.

        Args:
            kept: their fields.
            after: the same rows with the new scores.
            more: what is written beside them, after everything else. A name that is taken by
                another field gets ``_calibrated`` behind it.
        """
        if self.table:
            found = self._in_place(kept, after)
        else:
            found = to_columns(after, words=extension_of(self.out) != ".safetensors")
            if not self.probs and after.n_classes is not None and not after.binary:
                del found[scores_key(after.form)]
                found.pop(CLASS_NAMES, None)
            found |= {name: plain(values) for name, values in kept.items() if name not in found}
        for name, values in ({} if self.apart else more).items():
            found[f"{name}_calibrated" if name in found else name] = values
        return found

    def _in_place(self, kept: Columns, after: Predictions) -> Columns:
        new, found = self._new_scores(after), Columns()
        numbers = set[str]()
        if extension_of(self.file.where) in TEXT and extension_of(self.out) not in TEXT:
            # Cells of text that are read as numbers are numbers where text isn't.
            numbers |= {
                *self.file.map.named(("labels", "predicted", "correct", "weight", "features"))
            }
        for name, values in kept.items():
            if self.called and self.noted is not None and name == self.noted[0]:
                found[name] = np.array(self.called)[np.asarray(values)]
            elif name in numbers and self.file.file.type_of(name) != "text":
                found[name] = as_numbers(values)
            elif name in self.scores and self.file.map.form != "score":
                found |= new
                new = {}
            else:
                found[name] = values
        return found | new

    def _own_name(self, form: str) -> str | None:
        """Return the name of the one column that holds scores of the form which is written."""
        same = self.file.map.form == form and self.file.options.are != "percent"
        named = list(self.file.map.fields["scores"]) == self.scores and len(self.scores) == 1
        return self.scores[0] if same and named else None

    def _new_scores(self, after: Predictions) -> Columns:
        """Return the columns of the new scores, named by what the old ones were named by."""
        if after.n_classes is None:
            return {self._own_name("toplabel") or "confidence": after.scores}
        if after.binary:
            return {self._own_name(after.form) or after.form: native(after.one_score)}
        if not self.probs:
            return {}
        probs, fields = native(after.scores), self.file.map.fields["scores"]
        if len(fields) > 1 and len(self.scores) == len(fields):
            ends = self.called or ends_of(fields)
            return {f"prob_{end}": probs[:, k] for k, end in enumerate(ends)}
        extension = extension_of(self.out)
        if len(fields) == 1 and extension in TEXT:
            called = {CLASS_NAMES: np.array(self.called)} if self.called else {}
            return split({"probs": probs, **called}, self.out)
        if len(fields) == 1 and not self.called:
            return {"probs": probs}
        names = self.called or ends_of(fields)
        if extension not in (".jsonl", ".ndjson"):
            return {f"prob_{name}": probs[:, k] for k, name in enumerate(names)}
        # An object in each line, by the names of its classes.
        return {"probs": objects(dict(zip(names, row, strict=True)) for row in probs.tolist())}


def _two_cells(seen: set[str], truths: bool) -> tuple[Any, Any] | None:
    """Return what stands for 0 and 1 among cells, some of which are known; None for these."""
    if truths:
        return False, True
    if seen & {"-1", "-1.0"}:
        return -1, 1
    written = [(word(NO[0]), word(YES[0])) for word in (str.lower, str.capitalize, str.upper)]
    return next((pair for pair in written if seen <= {*pair}), None)


def _of_rows(shape: tuple[int, ...], rows: int) -> bool:
    """Return whether an array has an entry, or a row of them, for each row."""
    return shape[:1] == (rows,) and len(shape) < 3


def as_numbers(cells: Array) -> Array:
    """Return cells of text as numbers, whole ones if all are."""
    numbers = np.array([float(cell.replace(",", ".")) for cell in cells.tolist()])
    whole = bool(np.isfinite(numbers).all() and (numbers == np.round(numbers)).all())
    return numbers.astype(np.int64) if whole else numbers


def plain(column: Any) -> Array:
    """Return a column as an array that a file of arrays holds: numbers or text."""
    own = isinstance(column, np.ndarray)
    values = cast(Array, column if own else np.asarray(column.to_numpy(zero_copy_only=False)))
    if values.dtype.kind in "biufSU":
        return native(values)
    return np.array(["" if value is None else as_text(value) for value in values.tolist()])
