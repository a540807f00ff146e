"""What a format is: how an open file names its fields, and yields and takes rows of them.

A reader says which fields a file has and yields raw arrays of them, span of rows by span of rows;
a whole file is one span. It knows nothing of classes, labels or kinds of predictions: that is
`calibrant.files.schema` and `calibrant.files.assembly`, once for all formats.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import Array, namespace, to_numpy
from calibrant.core.errors import PredictionsError
from calibrant.files.gate import PARTLY, check_bounded, readable
from calibrant.files.opening import replacing_anywhere, size_of
from calibrant.files.options import ReadOptions, ScoresAre
from calibrant.predictions.origin import Origin

Columns = dict[str, NDArray[Any]]
# Arrays beside the scores wait in memory up to this size, then in a file without a name.
SPOOLED_BYTES = 1 << 26


class RowReader(ABC):
    """An open file. Close it, or use it as a context.

    Args:
        where: its path or URL, as messages name it.
        options: how it is read; formats heed the few that say where to look.

    Attributes:
        tabular: whether fields are columns, all with an entry a row.
        share: see `check_bounded`.
        noun: what messages call a file of this format.
        expected: what messages say a file of this format holds, if not the usual.
        held: what to close in the end.
        origin: of a log, what is known beside its rows.
        are: what scores are that the format knows.
        cluster: the field that says which rows aren't independent, where the format knows it.
    """

    origin: Origin | None = None
    are: ScoresAre | None = None
    cluster: str | None = None
    tabular: ClassVar[bool] = False
    share: ClassVar[int] = 1
    noun: str = "the file"
    expected: str | None = None

    def __init__(self, where: str, options: ReadOptions) -> None:
        self.where, self.options = where, options
        self.held = ExitStack()
        try:
            self.open()
        except BaseException:
            self.held.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.held.close()

    @abstractmethod
    def open(self) -> None:
        """Open the file, and read what its header says."""

    @abstractmethod
    def names(self) -> Sequence[str]:
        """Return the names of all fields."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a field; its first number is that of rows."""

    @abstractmethod
    def type_of(self, name: str) -> str:
        """Return the type of a field: of NumPy, ``"text"``, or ``""`` where reading would tell."""

    def in_quotes(self, name: str) -> bool:
        """Return whether a text is a whole number in quotes, as labels and scores may be."""
        return False

    @abstractmethod
    def read(
        self, names: Sequence[str], spans: Iterable[slice], words: Collection[str] = ()
    ) -> Iterator[Columns]:
        """Yield raw arrays of some fields, for each of the ascending spans of rows in turn.

        Args:
            names: of the fields.
            spans: of rows; none reaches beyond the end.
            words: of these fields those that may hold anything, not only numbers.
        """

    @abstractmethod
    def everything(self, names: Sequence[str], words: Collection[str] = ()) -> Columns:
        """Return some fields of all rows."""

    @cached_property
    def packed(self) -> float:
        """Number of bytes on disk."""
        return size_of(self.where)

    def check_bounded(self, size: int, what: str, way: str = "") -> None:
        """Raise `UnpackedError` if something takes far more bytes in memory than on disk."""
        check_bounded(size, self.packed, what, self.where, way, share=self.share)

    def texts(self, name: str, values: Sequence[Any] | NDArray[Any]) -> NDArray[Any]:
        """Return cells of a field as an array of text, in which each takes the room of the longest.

        Raises:
            PredictionsError: that would be far more than the file.
        """
        held = np.asarray(values, dtype=object)
        longest = max((len(cell) for cell in held.tolist() if isinstance(cell, str)), default=0)
        self.check_bounded(4 * longest * len(held), f"text of '{name}', up to {longest} letters,")
        return held.astype(str)

    def together(self, parts: list[Columns]) -> Columns:
        """Return the rows of all parts, which are used up.

        Raises:
            PredictionsError: rows of a field differ in length.
        """
        if len(parts) == 1:
            return parts[0]
        found: Columns = {}
        for name in list(parts[0]):
            some = [part.pop(name) for part in parts]
            if len({one.shape[1:] for one in some}) > 1:
                raise PredictionsError(f"{self.where}: lists of '{name}' differ in length")
            wide = max(one.nbytes // max(len(one), 1) for one in some)
            self.check_bounded(wide * sum(map(len, some)), f"'{name}'")
            found[name] = np.concatenate(some)
        return found

    def holder(self, name: str) -> str:
        """Return what holds a field where it stands in the file; mostly itself."""
        return name

    def kept(self, names: Sequence[str], spans: Iterable[slice]) -> Iterator[Any]:
        """Yield what holds fields as it stands in the file, whatever it is, to be written again."""
        return self.read(names, spans, names)

    def nested(self) -> bool:
        """Return whether cells of a table hold lists, or numbers by class, that it doesn't read."""
        return False

    def objects(self, names: Collection[str] | None) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the rows of a table, numbered, some of its columns or all of them."""
        return iter(())

    def lists(self) -> Collection[str]:
        """Return the columns of a table that hold a list a row."""
        return ()

    def class_names(self, label: str | None) -> tuple[str, ...] | None:
        """Return the names of the classes of a column of labels, where the format notes them."""
        return None

    def hint(self) -> str:
        """Return the part of a message about a file whose scores have no usual name."""
        return ""

    def bad_cell(self, rules: Sequence[CellRule]) -> str | None:
        """Return what is wrong with the first bad cell of a file of text, and in which line."""
        return None


@dataclass(frozen=True)
class CellRule:
    """What the cells of a column must hold.

    Attributes:
        column: name of the column.
        expected: what messages say that a cell must hold.
        low, high: the least and the greatest number.
        whole: whether numbers must be whole.
        tolerance: of columns that must sum to 1, how far off a sum may be; None for others.
    """

    column: str
    expected: str
    low: float = -math.inf
    high: float = math.inf
    whole: bool = False
    tolerance: float | None = None

    def accepts(self, value: float) -> bool:
        """Return whether a cell may hold this number."""
        inside = math.isfinite(value) and self.low <= value <= self.high
        return inside and (not self.whole or value.is_integer())


class RowArray(Protocol):
    """One array of a file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape, from the header."""
        ...

    @property
    def type(self) -> str:
        """Its type, from the header."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes that all of it takes, from the header."""
        ...

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some of its rows."""
        ...

    def whole(self) -> NDArray[Any]:
        """Return all of it."""
        ...


class ArrayReader(RowReader):
    """Formats that hold each array by itself, such as npz."""

    def __init__(self, where: str, options: ReadOptions) -> None:
        self._arrays: dict[str, RowArray] = {}
        super().__init__(where, options)

    @abstractmethod
    def open_array(self, name: str) -> RowArray:
        """Return an array of the file; only its header is read."""

    def array(self, name: str) -> RowArray:
        """Return an array, opened when it is first asked for."""
        if name not in self._arrays:
            with readable(f"'{name}'", self.where):
                self._arrays[name] = self.open_array(name)
        return self._arrays[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape that the header states."""
        return tuple(self.array(name).shape)

    def type_of(self, name: str) -> str:
        """Return the type that the header states."""
        return self.array(name).type

    def read(
        self, names: Sequence[str], spans: Iterable[slice], words: Collection[str] = ()
    ) -> Iterator[Columns]:
        """Yield the arrays span by span."""
        arrays = {name: self.array(name) for name in names}
        for span in spans:
            found: Columns = {}
            for name, array in arrays.items():
                with readable(f"'{name}'", self.where):
                    found[name] = native(array.read(span.start, span.stop))
            yield found

    def everything(self, names: Sequence[str], words: Collection[str] = ()) -> Columns:
        """Return whole arrays."""
        found: Columns = {}
        size = sum(self.array(name).nbytes for name in dict.fromkeys(names))
        self.check_bounded(size, "what is read of it", PARTLY)
        for name in names:
            array = self.array(name)
            with readable(f"'{name}'", self.where):
                values = array.whole()
                plain = values.dtype.isnative and values.dtype.kind != "S"
                found[name] = values if plain else native(values)
        return found


def as_text(value: Any) -> str:
    """Return a value as a cell of text holds it: what is no text and no number as JSON."""
    if isinstance(value, list | dict):
        return json.dumps(value, default=str)
    return str(value)


def objects(values: Iterable[Any]) -> NDArray[Any]:
    """Return an (n,) array of any objects, lists among them."""
    every = list(values)
    found = np.empty(len(every), dtype=object)
    for place, value in enumerate(every):
        found[place] = value
    return found


def native(array: Array) -> NDArray[Any]:
    """Return a contiguous NumPy array in native byte order, bfloat16 as float32, bytes as text."""
    if str(array.dtype).endswith("bfloat16"):
        xp = namespace(array)
        array = xp.astype(array, xp.float32)
    values = to_numpy(array)
    if values.dtype.kind == "S":
        return np.char.decode(values, "utf-8")
    return np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))


class RowWriter(ABC):
    """Writes one file; a context, on leaving which the file is there, unless by an exception.

    Args:
        where: path or URL.
        rows: how many there will be.
        scores: key of the scores.

    Attributes:
        as_named: of a table, whether the arrays are its columns already, by name and in order.
        numbered: of such a table, a column of numbers of classes, and the names of these.
    """

    as_named = False
    numbered: tuple[str, Sequence[str]] | None = None

    def __init__(self, where: str, rows: int, scores: str) -> None:
        self.where, self.rows, self.scores = where, rows, scores
        self.held = ExitStack()
        self._begun = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            if error[0] is None:
                self.finish()
        except BaseException as failure:
            self._fail(type(failure), failure, failure.__traceback__)
            raise
        self.held.__exit__(*error) if error[0] is None else self._fail(*error)

    def _fail(self, *error: Any) -> None:
        with suppress(Exception):
            if self._begun:
                self.abandon()
        self.held.__exit__(*error)

    def write(self, arrays: Columns) -> None:
        """Append a batch; what isn't of rows, such as names of classes, is taken from the first."""
        if not self._begun:
            self._begun = True
            self.begin(arrays)
        self.add(arrays)

    @abstractmethod
    def begin(self, arrays: Columns) -> None:
        """Open the file, given the first batch."""

    @abstractmethod
    def add(self, arrays: Columns) -> None:
        """Append a batch."""

    def finish(self) -> None:  # noqa: B027
        """Write what comes last."""

    def abandon(self) -> None:  # noqa: B027
        """After a failure, close what a library would close later, and loudly."""

    def opened(self, where: str | None = None) -> BinaryIO:
        """Open the file, or another that belongs to it."""
        return self.held.enter_context(replacing_anywhere(where or self.where))


class SpooledWriter(RowWriter):
    """Formats that hold one array after the other: the scores at once, the others in the end."""

    body: Any

    def begin(self, arrays: Columns) -> None:
        """Note what there is."""
        self.kinds = {
            key: (array.dtype, self.whole_shape(key, array)) for key, array in arrays.items()
        }
        self.waiting: dict[str, Any] = {}
        for key in arrays:
            if key != self.scores:
                room = tempfile.SpooledTemporaryFile(SPOOLED_BYTES)  # noqa: SIM115
                self.waiting[key] = self.held.enter_context(room)
                if key in OF_THE_NETWORK:
                    room.write(np.ascontiguousarray(arrays[key]).data)

    def whole_shape(self, key: str, array: NDArray[Any]) -> tuple[int, ...]:
        """Return the shape that an array will have in the end."""
        return array.shape if key in OF_THE_NETWORK else (self.rows, *array.shape[1:])

    def add(self, arrays: Columns) -> None:
        """Append to each array."""
        for key, array in arrays.items():
            if key not in OF_THE_NETWORK:
                data = np.ascontiguousarray(array).data
                (self.body if key == self.scores else self.waiting[key]).write(data)

    def pour(self, key: str, into: Any) -> None:
        """Write one of the arrays that waited."""
        self.waiting[key].seek(0)
        shutil.copyfileobj(self.waiting[key], into, 1 << 20)


# What is known of the network rather than of a row; tables, which hold rows, don't hold it.
HEAD = ("head_weight", "head_bias")
REFERENCE = "reference_features"
CLASS_NAMES, LABEL_NAMES = "class_names", "label_names"
NAMES = (CLASS_NAMES, LABEL_NAMES)
OF_THE_NETWORK = (*HEAD, REFERENCE, *NAMES)


def words_for(names: Iterable[object] | None) -> list[str]:
    """Return names of classes or labels, or none where a reader would take one for a number."""
    words = [str(name) for name in names or ()]
    return [] if any(word.isdigit() for word in words) else words


def refuse_text(name: str, kind: object, where: str) -> PredictionsError:
    """Return the error about a column that must hold numbers."""
    return PredictionsError(f"{where}: column '{name}' must hold numbers, not {kind}")
