"""Predictions written in the format that a name says, whole or batch by batch."""

from __future__ import annotations

from os import fspath
from pathlib import Path

from calibrant.core.errors import InputError
from calibrant.files.assembly import to_columns
from calibrant.files.atomic import StrPath
from calibrant.files.formats import WRITTEN, format_of, open_writer
from calibrant.files.formats.tables import STEMS
from calibrant.files.opening import extension_of, is_file, is_url, stem_of, within
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
