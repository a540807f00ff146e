"""Predictions in many files, as one set that is read a batch at a time.

Which files are meant: paths, folders, globs, manifests and URLs become one list, in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import IntArray
from calibrant.core.errors import (
    CalibrantError,
    InputError,
    MissingDependencyError,
    PredictionsError,
)
from calibrant.core.text import counted
from calibrant.files.formats import EXTENSIONS, plain_name
from calibrant.files.formats.logs.reader import is_log
from calibrant.files.formats.numpy_files import SCORES
from calibrant.files.gate import check_name, load_json, readable
from calibrant.files.opening import (
    entries,
    extension_of,
    is_file,
    is_folder,
    is_url,
    matching,
    name_of,
    open_binary,
    within,
)
from calibrant.files.options import ReadFields, ReadOptions
from calibrant.files.reading import PredictionFile, opened
from calibrant.files.schema import FileKind
from calibrant.predictions.predictions import Predictions

Where = str | PathLike[str]
# Manifests that name manifests, one within the other.
MOST_MANIFESTS = 8
MANIFESTS = (".txt", ".list", ".manifest", ".json")
# Characters of a line that is shown.
SHOWN = 60
# Says, in a folder of calibrated shards, what calibrated them.
RECORD = "calibrant-apply.json"
# What Hugging Face's `save_to_disk` leaves beside its Arrow files.
OF_ARROW_FOLDERS = ("state.json", "dataset_info.json", "dataset_dict.json")


def located(wheres: Where | Sequence[Where]) -> list[str]:
    """Return the files that are meant, each once.

    A folder stands for the files of predictions in it, by name (``2`` before ``10``); one
    that holds ``logits.npy`` and the like is itself one set. In a folder that a calibrator wrote
    folders count as well. A pattern with ``*``, ``?`` or ``[`` stands for what it finds, sorted
    alike. A manifest (``.txt``, ``.list``, ``.manifest``: a place a line; ``.json``: a list of
    them) stands for what it names, in its order, beside itself.

    Raises:
        PredictionsError: nothing is there. InputError: a file is named twice.
    """
    several = [wheres] if isinstance(wheres, str | PathLike) else list(wheres)
    found = [place for where in several for place in _files_of(fspath(where))]
    if not found:
        raise PredictionsError("there are no files of predictions to read")
    seen: set[str] = set()
    for place in found:
        key = place if is_url(place) else str(Path(place).resolve())
        if key in seen:
            raise InputError(f"{place}: is named twice; each shard counts once")
        seen.add(key)
    return found


def stands_for_many(wheres: Sequence[Where]) -> bool:
    """Return whether this is more than the one file that a command without shards would read."""
    if len(wheres) != 1:
        return True
    where = fspath(wheres[0])
    if is_url(where) or (_is_pattern(where) and not Path(where).exists()):
        return True
    if is_folder(where):
        return not (_is_one_set(where) or is_log(where))
    return extension_of(where) in MANIFESTS and is_file(where) and not is_log(where)


def _files_of(where: str, above: tuple[str, ...] = ()) -> Iterator[str]:
    check_name(where)
    if _is_pattern(where) and (is_url(where) or not Path(where).exists()):
        found = sorted(matching(where), key=by_number)
        files = [place for place in found if _has_format(place) and is_file(place)]
        if not files:
            raise PredictionsError(f"{where}: no file of predictions matches this pattern")
        yield from _without_companions(files)
    elif is_log(where):
        yield where
    elif is_folder(where):
        yield from [where] if _is_one_set(where) else _of_folder(where)
    elif extension_of(where) in MANIFESTS:
        if len(above) >= MOST_MANIFESTS or where in above:
            raise PredictionsError(f"{where}: is a manifest that names itself, or too many others")
        yield from _of_manifest(where, above)
    else:
        yield where


def _has_format(place: str) -> bool:
    return extension_of(plain_name(place)) in EXTENSIONS


def _is_pattern(where: str) -> bool:
    return re.search(r"[*?\[]", where) is not None


def _is_one_set(folder: str) -> bool:
    return any(is_file(within(folder, f"{key}.npy")) for key in SCORES)


def _of_folder(folder: str, *, deep: bool = False) -> list[str]:
    deep = deep or is_file(within(folder, RECORD))
    inside = sorted(entries(folder), key=by_number)
    files = [
        place
        for place in inside
        if _has_format(place) and not name_of(place).startswith((".", "_")) and is_file(place)
    ]
    for place in inside:
        if is_folder(place):
            data_set = any(is_file(within(place, name)) for name in OF_ARROW_FOLDERS)
            if deep and _is_one_set(place):
                files.append(place)
            elif deep or data_set:
                files += _of_folder(place, deep=deep)
    files = _without_companions(files)
    if not files:
        raise PredictionsError(
            f"{folder}: holds no file of predictions; expected {', '.join(EXTENSIONS)}"
        )
    return files


def _without_companions(files: list[str]) -> list[str]:
    """Leave out the `.npy` files that go with others: labels, features and the like."""
    scores = tuple(f"{key}.npy" for key in SCORES)
    return [f for f in files if extension_of(f) != ".npy" or name_of(f).endswith(scores)]


def _of_manifest(where: str, above: tuple[str, ...]) -> Iterator[str]:
    with open_binary(where) as file:
        text = file.read().decode("utf-8", errors="replace")
    if extension_of(where) == ".json":
        content: Any = load_json(text, where)
        if isinstance(content, dict):
            content = cast(dict[str, Any], content).get("shards")
        named = cast(list[Any], content) if isinstance(content, list) else None
        if named is None or not all(isinstance(one, str) for one in named):
            raise PredictionsError(
                f"{where}: a manifest holds a list of paths or URLs, or one under 'shards'"
            )
        names = cast(list[str], named)
    else:
        lines = [line.strip() for line in text.splitlines()]
        names = [line for line in lines if line and not line.startswith("#")]
    if not names:
        raise PredictionsError(f"{where}: the manifest names no files")
    folder = where.rpartition("/")[0] if is_url(where) else str(Path(where).parent)
    if not (is_url(where) or _may_name_files(names[0], folder)):
        raise PredictionsError(
            f"{where}: is read as a list of files, for it ends in {extension_of(where)}, but "
            f"'{names[0][:SHOWN]}' is none; if it holds rows, say their format (format=, --format)"
        )
    for name in names:
        here = is_url(name) or (not is_url(folder) and Path(name).is_absolute())
        yield from _files_of(name if here else within(folder, name), (*above, where))


def _may_name_files(line: str, folder: str) -> bool:
    """Return whether a line of a manifest looks like a place, or is one."""
    if is_url(line) or _is_pattern(line) or _has_format(line) or extension_of(line) in MANIFESTS:
        return True
    with suppress(OSError, ValueError):  # no name that a system has
        return Path(folder, line).exists()
    return False


def by_number(place: str) -> list[tuple[int, int | str]]:
    """Return a key that sorts names by the numbers in them: 2 before 10."""
    parts = re.split(r"(\d+)", place)
    return [(0, int(part)) if i % 2 else (1, part) for i, part in enumerate(parts)]


# Numbers of a batch: what is computed of them takes around 20 MB, and threads don't share it.
BATCH_NUMBERS = (1 << 20) - 1
# Rows of a batch at most, so that whole numbers below 2^32 may be summed as floats without loss.
BATCH_ROWS = 1 << 18
# Kinds that are about one event.
BINARY: tuple[FileKind, ...] = ("binary", "prob", "logit")
# Headers are read by so many threads: most of the time is waiting.
HEADER_THREADS = 8


class Batch(NamedTuple):
    """Some rows of a shard.

    Attributes:
        predictions: the rows.
        place: where row 0 stands among all rows of all shards.
        column: (n,) what was asked for beside them, or None.
    """

    predictions: Predictions
    place: int
    column: NDArray[Any] | None


@dataclass(frozen=True)
class Shard:
    """One file of a set. It holds no row, only what its header says; workers take it as it is.

    Attributes:
        where: its path or URL.
        kind: what its scores are.
        rows: how many there are.
        n_classes: number of classes K, None for the top-label form.
        first: where its row 0 stands among all rows of all shards.
        options: how its rows are read.
        weighted: whether its rows have weights.
    """

    where: str
    kind: FileKind
    rows: int
    n_classes: int | None
    first: int = 0
    options: ReadOptions = ReadOptions()  # noqa: RUF009 - it is frozen
    weighted: bool = False

    @property
    def rows_at_once(self) -> int:
        """Rows of a batch."""
        return max(1, min(BATCH_ROWS, BATCH_NUMBERS // (self.n_classes or 1)))

    def batches(
        self,
        column: str | None = None,
        *,
        features: bool = False,
        chosen: IntArray | None = None,
        checked: bool = False,
    ) -> Iterator[Batch]:
        """Yield its rows in bounded memory, checked.

        Args:
            column: name of a column to read beside them.
            features: whether to read features, where there are any.
            chosen: the rows to yield, ascending; None for all.
            checked: whether its rows were checked before; logits aren't checked again.

        Raises:
            PredictionsError: a row that can't be used, named by its number in the file.
        """
        step = self.rows_at_once
        spans = [slice(a, min(a + step, self.rows)) for a in range(0, self.rows, step)]
        if chosen is not None:
            spans = [s for s in spans if np.diff(np.searchsorted(chosen, [s.start, s.stop]))[0]]
        with PredictionFile(self.where, self.options) as file:
            read = file.batches(spans, column, features=features, checked=checked)
            for span, (rows, beside) in zip(spans, read, strict=True):
                if chosen is not None:
                    low, high = np.searchsorted(chosen, [span.start, span.stop])
                    index = chosen[low:high] - span.start
                    rows, beside = rows.take(index), None if beside is None else beside[index]
                yield Batch(rows, self.first + span.start, beside)


class Shards:
    """Predictions in many files, as one set; rows are read only when they are needed.

    Headers are read at once, so that a shard with other classes, another kind of scores or no
    labels is refused before the long work begins.

    Args:
        where: paths, folders, globs, manifests or URLs (see `located`), in the order of the rows.
        options: which columns are read, and as what, as `read_predictions` takes them.
        skip_broken: leave out files that can't be read, instead of raising an error.
        fields: fields of `ReadOptions`, by name, which override `options`.

    Attributes:
        shards: the files, as `Shard`.
        options: how they are read.
        broken: the files that were left out, with the reason.

    Raises:
        PredictionsError: no files, an unreadable header, or files that can't be one set.

    Examples:
        >>> import numpy as np
        >>> import calibrant as cb
        >>> for i in range(3):
        ...     np.savez(f"part-{i}.npz", logits=np.eye(4) * 3, labels=[0, 1, 2, 0])
        >>> shards = cb.Shards("part-*.npz")
        >>> shards
        <Shards: 3 files, 12 rows x 4 classes, logits>
        >>> [len(batch) for batch in shards.batches()]
        [4, 4, 4]
    """

    def __init__(
        self,
        where: Where | Sequence[Where],
        options: ReadOptions | None = None,
        *,
        skip_broken: bool = False,
        **fields: Unpack[ReadFields],
    ) -> None:
        self.options = options = (options or ReadOptions()).but(**fields)
        files = located(where)
        self.broken: dict[str, str] = {}
        self.source = (
            fspath(where)
            if not isinstance(where, Sequence) or isinstance(where, str)
            else (
                files[0]
                if len(files) == 1
                else f"{files[0]} and {counted(len(files) - 1, 'other file')}"
            )
        )

        def header(file: str) -> Shard | CalibrantError:
            try:
                return _header(file, options)
            except MissingDependencyError:
                raise
            except CalibrantError as error:
                return error

        with ThreadPoolExecutor(min(HEADER_THREADS, len(files))) as pool:
            found = list(pool.map(header, files))
        shards: list[Shard] = []
        place = 0
        for file, one in zip(files, found, strict=True):
            if isinstance(one, CalibrantError):
                if not skip_broken:
                    raise one
                self.broken[file] = str(one)
                continue
            shards.append(replace(one, first=place))
            place += one.rows
        if not shards:
            raise PredictionsError(f"{self.source}: none of the files can be read")
        for shard in shards:
            _check_alike(shards[0], shard)
        self.shards: tuple[Shard, ...] = tuple(shards)

    @property
    def rows(self) -> int:
        """Number of rows of all files."""
        return sum(shard.rows for shard in self.shards)

    @property
    def n_classes(self) -> int | None:
        """Number of classes K, None for the top-label form."""
        return self.shards[0].n_classes

    @property
    def binary(self) -> bool:
        """Whether the predictions are about one event."""
        return self.kind in BINARY

    @property
    def weighted(self) -> bool:
        """Whether rows have weights."""
        return self.shards[0].weighted

    @property
    def kind(self) -> FileKind:
        """What the scores are."""
        return self.shards[0].kind

    def refuse_clusters(self) -> None:
        """Raise `InputError` where rows are read with clusters, which only `evaluate` keeps."""
        if self.options.cluster is not None:
            raise InputError(
                f"{self.source}: with many files clusters are for intervals only; leave out "
                "cluster (--cluster)"
            )

    def batches(self) -> Iterator[Predictions]:
        """Yield all rows in order, in bounded memory.

        Raises:
            PredictionsError: a row that can't be used, named by file and number.
        """
        for shard in self.shards:
            for batch in shard.batches():
                yield batch.predictions

    def __iter__(self) -> Iterator[Shard]:
        return iter(self.shards)

    def __len__(self) -> int:
        return len(self.shards)

    def __repr__(self) -> str:
        width = "" if self.n_classes is None else f" x {self.n_classes} classes"
        return f"<Shards: {counted(len(self), 'file')}, {self.rows} rows{width}, {self.kind}>"


def _header(where: str, options: ReadOptions) -> Shard:
    """Return what the header of a file says, checked as far as it goes."""
    with opened(where, options) as file, readable("the header", where):
        if file.map.grid:
            raise PredictionsError(
                f"{where}: many labels and tokens aren't read in parts yet; take one file, or put "
                "several together with Predictions.concatenate"
            )
        file.check_header()
        weighted = "weight" in file.map.fields
        return Shard(where, file.kind, file.rows, file.n_classes, 0, options, weighted)


def _check_alike(one: Shard, other: Shard) -> None:
    """Raise `PredictionsError` unless two shards can be parts of one set."""
    if other.kind != one.kind:
        raise PredictionsError(
            f"{other.where}: holds {other.kind}, but {one.where} holds {one.kind}; say which "
            "to read by its kind, or leave out either"
        )
    if other.n_classes != one.n_classes:
        raise PredictionsError(
            f"{other.where}: has {other.n_classes} classes, but {one.where} has {one.n_classes}"
        )
    if other.weighted != one.weighted:
        has, lacks = (other, one) if other.weighted else (one, other)
        raise PredictionsError(
            f"{lacks.where}: has no 'weight' for each row, but {has.where} has; give each file one"
        )
