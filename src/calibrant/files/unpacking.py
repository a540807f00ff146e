"""Files that another program has to write anew before they are read: packed, in another encoding,
without a header. What is typed for it ends in a pipe to a command that reads standard input.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import lzma
import shlex
import zipfile
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from calibrant.core.errors import PredictionsError
from calibrant.files.formats import FORMATS, open_rows
from calibrant.files.formats.text import HeaderlessError
from calibrant.files.gate import MOST_DOCUMENT_BYTES, NotUtf8Error
from calibrant.files.opening import extension_of, is_folder, is_url, open_binary
from calibrant.files.options import FormatName, ReadOptions
from calibrant.files.proposing import ROWS, kind_of_rows

# How packed files begin, what unpacks them, and what is typed for it.
PACKED: tuple[tuple[bytes, Callable[[str], Any], str], ...] = (
    (b"\x1f\x8b", gzip.open, "gunzip -c"),
    (b"BZh", bz2.open, "bunzip2 -c"),
    (b"\xfd7zXZ", lzma.open, "xz -dc"),
)


def _unpacked(where: str, error: PredictionsError | None) -> tuple[str, str, bytes] | None:
    """Return what is typed to unpack a file, or to write it as UTF-8, and what comes then.

    Returns:
        The command, the extension of what it writes, and that itself; None for any other file.
    """
    with open_binary(where) as file:
        first = file.read(6)
    extension = extension_of(where)
    name = shlex.quote(where)
    for mark, opened, typed in PACKED:
        if first.startswith(mark):
            own = extension_of(where.removesuffix(Path(where).suffix)) or extension
            with opened(where) as file:
                return f"{typed} {name}", own, file.read(MOST_DOCUMENT_BYTES)
    if extension == ".zip" and first.startswith(b"PK"):
        with zipfile.ZipFile(where) as archive:
            (member,) = archive.infolist()
            with archive.open(member) as part:
                held = part.read(MOST_DOCUMENT_BYTES)
        return f"unzip -p {name}", extension_of(member.filename), held
    if isinstance(error, NotUtf8Error) and b"\0" not in (held := Path(where).read_bytes()):
        text = held.decode("cp1252").encode()
        return f"iconv -f WINDOWS-1252 -t UTF-8 {name}", extension, text
    return None


def through_a_pipe(
    where: str,
    options: ReadOptions,
    error: PredictionsError | None,
    line_of: Callable[[str, ReadOptions], str | None],
) -> str | None:
    """Return a command that unpacks a file and reads what comes from standard input.

    Args:
        where: a file that isn't read as it is; a URL and a folder have no such command.
        options: how it should be read.
        error: why it isn't.
        line_of: returns the command that reads a file, or None.
    """
    if is_url(where) or is_folder(where):
        return None
    found = _unpacked(where, error)
    if found is None:
        try:  # a table of another name
            open_rows(where, options.but(format="csv")).held.close()
        except HeaderlessError as headerless:
            return below_a_header(headerless)
        return None
    typed, extension, held = found
    names: list[FormatName] = [n for n, form in FORMATS.items() if extension in form.extensions]
    with TemporaryDirectory() as folder:
        place = str(Path(folder) / "rows")
        Path(place).write_bytes(held)
        line = line_of(place, options.but(format=names[0]))
    return None if line is None else f"{typed} | {line.replace(place, '-')}"


def below_a_header(error: HeaderlessError) -> str | None:
    """Return the command that puts names above columns that have none, where these are clear."""
    with suppress(Exception):
        with open(error.where, encoding="utf-8-sig", newline="") as file:
            cells = list(islice(csv.reader(file, delimiter=error.separator), ROWS))
        values = np.array([[float(c.replace(",", ".")) for c in row] for row in cells if row])
        classes = values.shape[1] - 1
        rest = "calibrant measure - --format csv"
        events = np.isin(values, (0, 1)).all(axis=0)
        if classes == 1 and events.sum() == 1 and ((values >= 0) & (values <= 1)).all():
            above = error.separator.join(np.where(events, "label", "prob"))
            return f"(echo {shlex.quote(above)}; cat {shlex.quote(error.where)}) | {rest}"
        ends = [k for k in (0, classes) if set(values[:, k].tolist()) <= {*range(classes)}]
        are = kind_of_rows(np.delete(values, ends, axis=1))
        stem = {"probs": "prob", "logits": "logit"}.get(str(are))
        if len(ends) == 1 and classes > 1 and stem:
            names = [f"{stem}_{k}" for k in range(classes)]
            names.insert(ends[0], "label")
            above = shlex.quote(error.separator.join(names))
            return f"(echo {above}; cat {shlex.quote(error.where)}) | {rest}"
    return None
