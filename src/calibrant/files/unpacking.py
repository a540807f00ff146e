"""Files that another program has to write anew before they are read: in another encoding or shape,
without a header or below a title. What is typed ends in a pipe to a command that reads standard
input.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import PredictionsError
from calibrant.files.formats import FORMATS, open_rows, plain_name
from calibrant.files.formats.base import ArrayReader
from calibrant.files.formats.cells import NUMBER
from calibrant.files.formats.text import HeaderlessError
from calibrant.files.gate import (
    MOST_DOCUMENT_BYTES,
    PACKED,
    NotUtf8Error,
    optional,
    unpacked,
)
from calibrant.files.opening import extension_of, is_url, open_binary, size_of
from calibrant.files.options import FormatName, ReadOptions
from calibrant.files.seeing import ROWS, is_one_hot, kind_of_rows

# No row of so few is left out.
FEW = 20
# Lines among which a header is looked for, and bytes of them.
LINES, LINE_BYTES = 40, 1 << 16
# No larger table is tried in parts.
MOST_TRIED = 1 << 24
# How arrays that hold all there is become one by name: what is seen of them, and what is typed.
ARRANGED: tuple[tuple[Callable[[NDArray[Any]], bool], str], ...] = (
    (lambda a: a.dtype.names is not None, "{n: a[n].squeeze() for n in a.dtype.names}"),
    (lambda a: _scores_of(a[:, :-1], a[:, -1]), "dict(scores=a[:, :-1], labels=a[:, -1])"),
    (lambda a: _scores_of(a[:, 1:], a[:, 0]), "dict(scores=a[:, 1:], labels=a[:, 0])"),
)
# How arrays that are there by name become others: which they may be, and what is typed.
REARRANGED: tuple[tuple[Callable[[Mapping[str, NDArray[Any]]], bool], str], ...] = (
    (lambda a: any(1 in v.shape for v in a.values()), "{n: a[n].squeeze() for n in a}"),
    (lambda a: any(v.ndim == 2 for v in a.values()), "{n: a[n].T for n in a}"),
    (
        lambda a: all(n[-1:].isdigit() for n in a),
        "{s: np.concatenate([a[n] for n in sorted(a, key=lambda n: (len(n), n)) "
        "if n.rstrip('_0123456789') == s]) for s in {n.rstrip('_0123456789') for n in a}}",
    ),
)
# What is typed to make lines of text those of a table, and the same as patterns with what takes
# their place; none but the first of tables without commas.
AS_TABLE: tuple[tuple[str, tuple[tuple[bytes, bytes], ...]], ...] = (
    ("sed 's/^ *//; s/ *$//; s/  */,/g' ", ((rb"(?m)^ +| +$", b""), (rb" +", b","))),
    (
        "sed '/^[-: |]*$/d; s/^ *[|] *//; s/ *[|] *$//; s/ *[|] */,/g' ",
        ((rb"(?m)^[-: |]*\n", b""), (rb"(?m)^ *\| *| *\| *$", b""), (rb" *\| *", b",")),
    ),
    (
        r"sed -E 's/([0-9])[Dd]([-+]?[0-9])/\1E\2/g' ",
        ((rb"([0-9])[Dd]([-+]?[0-9])", rb"\1E\2"),),
    ),
)
# How an array is read, by the extension of its file.
OF_HDF5 = "__import__('h5py').File({0!r})[{1!r}][()]"
LOADED = {
    ".npy": "np.load({0!r})",
    ".npz": "np.load({0!r})[{1!r}]",
    ".h5": OF_HDF5,
    ".hdf5": OF_HDF5,
}


# How pandas reads tables of text, by the extension of their files; bytes, which it may take ten
# times, and columns of one that are looked at.
TABLES: dict[str, tuple[str, dict[str, Any]]] = {
    ".csv": ("read_csv", {}),
    ".tsv": ("read_csv", {"sep": "\t"}),
    ".jsonl": ("read_json", {"lines": True}),
    ".ndjson": ("read_json", {"lines": True}),
}
MOST_RESHAPED = 1 << 23
MOST_TABLE = 32


class Written(NamedTuple):
    """What another program would write of a file: what is typed, the extension, and that itself."""

    typed: str
    extension: str
    held: bytes


def through_a_pipe(
    where: str,
    options: ReadOptions,
    error: PredictionsError | None,
    line_of: Callable[[str, ReadOptions], str | None],
    *,
    long: bool = False,
) -> str | None:
    """Return a command that writes a file anew and reads what comes from standard input.

    Args:
        where: a file that isn't read as it is; a URL and a folder have no such command.
        options: how it should be read.
        error: why it isn't.
        line_of: returns the command that reads a file, or None.
        long: whether it is known to hold a row for each class, so that nothing else is tried.
    """
    if is_url(where) or not Path(where).is_file():  # nor has a pipe, which may never end
        return None
    if not long and extension_of(where) not in (
        ".zip",
        *PACKED,
        *LOADED,
    ):  # a table of another name
        try:
            open_rows(where, options.but(format="csv")).held.close()
        except HeaderlessError as headerless:
            return below_a_header(headerless)
        except PredictionsError:
            pass
    for typed, extension, held in (
        _reshaped(where) if long else _written_anew(where, options, error)
    ):
        forms: list[FormatName] = [n for n, each in FORMATS.items() if extension in each.extensions]
        with TemporaryDirectory() as folder:
            place = str(Path(folder) / "rows")
            Path(place).write_bytes(held)
            line = line_of(place, options.but(format=forms[0]))
        if line is not None:
            return f"{typed} | {line.replace(place, '-')}"
    return None


def _written_anew(
    where: str, options: ReadOptions, error: PredictionsError | None
) -> Iterator[Written]:
    name, extension = shlex.quote(where), extension_of(where)
    if extension == ".zip":
        with zipfile.ZipFile(where) as archive:
            (member,) = archive.infolist()
            with archive.open(member) as part:
                held = part.read(MOST_DOCUMENT_BYTES)
        yield Written(f"unzip -p {name}", extension_of(member.filename), held)
    elif extension in PACKED and plain_name(where) == where:  # text is read as it is
        inner = extension_of(where.removesuffix(extension))
        with open_binary(where) as file:
            held = unpacked(file, where).read()
        yield Written(f"{PACKED[extension][2].replace('-k', '-c')} {name}", inner, held)
    elif isinstance(error, NotUtf8Error) and b"\0" not in (held := Path(where).read_bytes()):
        text = held.decode("cp1252").encode()
        yield Written(f"iconv -f WINDOWS-1252 -t UTF-8 {name}", extension, text)
    elif extension in LOADED:
        yield from _arranged(where, options)
        yield from _rearranged(where, options)
    elif (options.format or "csv") in ("csv", "tsv") and size_of(where) <= MOST_TRIED:
        yield from _as_table(Path(where).read_bytes(), name)
        with suppress(Exception):  # whatever is wrong with it
            yield from _reshaped(where)
        yield from _below_titles(where, name)


def _scores_of(scores: NDArray[Any], labels: NDArray[Any]) -> bool:
    """Return whether columns are scores, and the one beside them their classes."""
    kind = kind_of_rows(scores) if scores.shape[1] > 1 else None
    return kind is not None and set(np.unique(labels).tolist()) <= {*range(scores.shape[1])}


def _arranged(where: str, options: ReadOptions) -> Iterator[Written]:
    """Yield one array of named fields, or of scores and labels in one, as arrays by name."""
    with open_rows(where, options.but(are=options.are or "probs")) as file:
        names = list(file.names()) if isinstance(file, ArrayReader) else []
        for name in names if len(names) == 1 else ():
            array = next(iter(file.read([name], [slice(0, min(ROWS, file.shape(name)[0]))])))[name]
            for fits, typed in ARRANGED:
                if (array.dtype.names or array.ndim == 2) and fits(array):
                    code = (
                        "import sys, numpy as np; "
                        f"a = {LOADED[extension_of(where)].format(where, name)}; "
                        f"np.savez(sys.stdout.buffer, **{typed})"
                    )
                    held = io.BytesIO()
                    # The same words that are typed: ours, and none of the file's.
                    np.savez(held, **eval(typed, {"a": array}))
                    yield Written(f"python -c {shlex.quote(code)}", ".npz", held.getvalue())
                    return


def _rearranged(where: str, options: ReadOptions) -> Iterator[Written]:
    """Yield arrays by name in other shapes: without axes of 1, transposed, batches as one."""
    if extension_of(where) != ".npz" or size_of(where) > MOST_TRIED:
        return
    with open_rows(where, options) as file:
        arrays = file.everything(list(file.names()))
    for fits, typed in REARRANGED:
        if fits(arrays):
            code = (
                f"import sys, numpy as np; a = np.load({where!r}); "
                f"np.savez(sys.stdout.buffer, **{typed})"
            )
            held = io.BytesIO()
            # The same words that are typed: ours, and none of the file's.
            np.savez(held, **eval(typed, {"a": arrays, "np": np}))
            yield Written(f"python -c {shlex.quote(code)}", ".npz", held.getvalue())


def _as_table(held: bytes, name: str) -> Iterator[Written]:
    """Yield a table of aligned columns, of Markdown, of Fortran, and files put behind another."""
    header, _, rest = held.partition(b"\n")
    for typed, changes in AS_TABLE[1:] if b"," in header else AS_TABLE:
        text = held
        for pattern, to in changes:
            text = re.sub(pattern, to, text)
        if text != held:
            yield Written(typed + name, ".csv", text)
    if header and header in (lines := rest.split(b"\n")):
        text = b"\n".join([header, *(line for line in lines if line != header)])
        yield Written(f"awk 'NR == 1 {{h = $0}} NR == 1 || $0 != h' {name}", ".csv", text)


def _reshaped(where: str) -> Iterator[Written]:
    """Yield a table with a row for each class, or a column for each label, in the usual shape."""
    if extension_of(where) not in TABLES or size_of(where) > MOST_RESHAPED:
        return
    name, keywords = TABLES[extension_of(where)]
    with open_binary(where) as file:
        first = file.readline(LINE_BYTES)
        # Rows of other fields each would be columns without end.
        keys = {*json.loads(first)} if keywords.get("lines") else set[str]()
        alike = not keys or all({*json.loads(line)} == keys for line in file if line.strip())
    if not first.endswith(b"\n") or not alike:
        return
    table = getattr(optional("pandas", "pandas", "frames"), name)(where, **keywords)
    if len(table) < FEW:
        return
    said = "".join(f", {key}={value!r}" for key, value in keywords.items())
    for typed, found in (*_of_long(table), *_of_labels(table)):
        code = f"import sys, pandas as pd; t = pd.{name}({json.dumps(where)}{said}); {typed}"
        code += ".to_csv(sys.stdout, index=False)"
        yield Written(f"python -c {shlex.quote(code)}", ".csv", found.to_csv(index=False).encode())


def _of_long(table: Any) -> Iterator[tuple[str, Any]]:
    """Yield what makes one row of the rows that one prediction has for each class, and these."""
    if len(table.columns) > MOST_TABLE:
        return
    many: dict[str, int] = table.nunique().to_dict()
    whole = [name for name in table if table[name].dtype.kind in "iubOTU"]
    pairs = [
        (one, other)
        for one, other in permutations(whole, 2)
        if 1 < many[one] < many[other] and many[one] * many[other] == len(table)
    ]
    for kind, key in pairs:
        rows = table.groupby(key)
        scores = [n for n in table if table[n].dtype.kind == "f" and rows[n].nunique().max() > 1]
        if len(scores) != 1 or table.duplicated([key, kind]).any():
            continue
        for truth in (name for name in whole if name not in (kind, key)):
            by_class = table[truth].isin((0, 1)).all() and (rows[truth].sum() == 1).all()
            once = rows[truth].nunique().max() == 1 and table[truth].isin(table[kind]).all()
            if not by_class and not once:
                continue
            t, typed = table, ""
            t, typed = table, ""
            k, y, of, score = map(json.dumps, (key, truth, kind, scores[0]))
            if by_class:
                right = table[table[truth] == 1].set_index(key)[kind]
                t = table.assign(**{truth: table[key].map(right)})
                typed = f"t[{y}] = t[{k}].map(t[t[{y}] == 1].set_index({k})[{of}]); "
            wide = t.pivot(index=[key, truth], columns=kind, values=scores[0])
            stems = {"probs": "prob_", "logits": "logit_"}
            stem = stems.get(str(kind_of_rows(wide.to_numpy())), "score_")
            typed += f"t.pivot(index=[{k}, {y}], columns={of}, values={score})"
            yield (
                f'{typed}.add_prefix("{stem}").reset_index()',
                wide.add_prefix(stem).reset_index(),
            )


def _of_labels(table: Any) -> Iterator[tuple[str, Any]]:
    """Yield what makes one column of those of which each says whether it is the class."""
    hot = [name for name in table if table[name].dtype.kind in "iub" and table[name].max() == 1]
    if len(hot) < 2 or "label" in table or not is_one_hot(table[hot].to_numpy()):
        return
    rest = table.drop(columns=hot)
    for typed, labels in (
        ("t[h].idxmax(axis=1)", table[hot].idxmax(axis=1)),
        ("t[h].to_numpy().argmax(axis=1)", table[hot].to_numpy().argmax(axis=1)),
    ):
        yield (
            f"h = {json.dumps(hot)}; t.assign(label={typed}).drop(columns=h)",
            rest.assign(label=labels),
        )


def _below_titles(where: str, name: str) -> Iterator[Written]:
    """Yield a table without the lines above its header, of Weka's its rows, or without a sum."""
    with open_binary(where) as file:
        first = file.read(LINE_BYTES).decode("utf-8-sig").splitlines()[:LINES]
    mark = max(",;\t", key=lambda each: first[-2].count(each))
    rows = list(csv.reader(first[:-1], delimiter=mark))
    numbers = [[NUMBER.fullmatch(cell) is not None for cell in row] for row in rows]
    held = Path(where).read_bytes()
    if "distribution" in rows[0]:
        count = len(rows[1]) - rows[0].index("distribution")
        header = ",".join(f"prob_{k}" for k in range(count))
        typed = f"sed '1s/distribution,*/{header}/; s/\\*//g' {name}"
        text = re.sub(b"distribution,*", header.encode(), held, count=1).replace(b"*", b"")
        yield Written(typed, ".csv", text)
    # A header stands where the cells below it are all of its number, and of one kind.
    last = len(rows) - 1
    alike = next((k for k in range(last) if numbers[k:] == numbers[k : k + 1] * (last - k + 1)), 0)
    for above in range(max(alike - 2, 1), alike):
        text = b"\n".join(held.split(b"\n")[above:])
        yield Written(f"tail -n +{above + 1} {name}", ".csv", text)
    text = held.rstrip().rpartition(b"\n")[0] + b"\n"
    if (count := text.count(b"\n")) > FEW:
        yield Written(f"head -n {count} {name}", ".csv", text)


def below_a_header(error: HeaderlessError) -> str | None:
    """Return the command that puts names above columns that have none, where these are clear."""
    with suppress(Exception):
        with open(error.where, encoding="utf-8-sig", newline="") as file:
            cells = list(csv.reader(file.readlines(LINE_BYTES), delimiter=error.separator))
        values = np.array([[float(c.replace(",", ".")) for c in row] for row in cells if row])
        classes = values.shape[1] - 1
        rest = "calibrant measure - --format csv"
        events = np.isin(values, (0, 1)).all(axis=0)
        names: list[str] = []
        if classes == 1 and events.sum() == 1 and ((values >= 0) & (values <= 1)).all():
            names = np.where(events, "label", "prob").tolist()
        for place in (0, classes):
            are = kind_of_rows(np.delete(values, place, axis=1)) if classes > 1 else None
            stem = {"probs": "prob", "logits": "logit"}.get(str(are))
            if stem and set(values[:, place].tolist()) <= {*range(classes)}:
                names = [f"{stem}_{k}" for k in range(classes)]
                names.insert(place, "label")
        above = shlex.quote(error.separator.join(names))
        if names:
            return f"(echo {above}; cat {shlex.quote(error.where)}) | {rest}"
    return None
