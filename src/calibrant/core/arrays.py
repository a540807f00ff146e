"""The few array-API helpers that let row-wise code run on NumPy, torch, CuPy or JAX alike.

Rows stay where they are: a function that takes a torch tensor on a GPU computes there and returns
a tensor there. Everything per-row and small (a confidence, a margin) becomes float64 NumPy. Tables
of pandas, polars and pyarrow become NumPy arrays. Classes that a row's logits mask with minus
infinity are left out of means.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeGuard, TypeVar, cast

import array_api_compat
import numpy as np
from array_api_compat import array_namespace, is_torch_array
from numpy.typing import NDArray

from calibrant.core import numpy_namespace as xnp
from calibrant.core.errors import PredictionsError
from calibrant.core.threads import one_blas_thread, worker_count

Array = Any
"""An (N, K) array of any library that follows the array-API standard."""

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

Item = TypeVar("Item")

# A chunk of rows and its temporaries should stay in the second-level cache of one core.
CHUNK_ELEMENTS_CPU = 1 << 16
# From this size on, starting threads costs less than they save.
THREADED_ELEMENTS = 1 << 20
# An accelerator wants few large launches; 64 Mi elements keep the temporaries under a gigabyte.
CHUNK_ELEMENTS_ACCELERATOR = 1 << 26
# NumPy takes as long for the largest entry of a few as of tens: up to so many columns, and from so
# many rows on, it is found sooner among columns.
SHORT_ROW, MANY_ROWS = 24, 128
# Terms that a sum may run over before float32 loses too many digits.
SUMMED_AT_ONCE = 512
# Libraries of tables, and what they call tables and columns. None is imported for it.
_LIBRARIES = ("pandas", "polars", "pyarrow")
_TABLES = ("DataFrame", "Table", "RecordBatch")
_COLUMNS = ("Series", "ChunkedArray", "Index")


def as_array(values: Any) -> Array:
    """Return `values` unchanged if it is an array already, else as a NumPy array if it can be one.

    A torch tensor that requires a gradient is detached: nothing here is differentiated by it.
    """
    if isinstance(values, (list, tuple)):
        return np.asarray(cast(Any, values))
    if is_numpy(values):
        return values
    if is_torch_array(values):
        return values.detach() if values.requires_grad else values
    if is_frame(values):
        return frame_array(values)
    # Other tables, and the like, know how to become NumPy arrays.
    if hasattr(values, "__array__") and not cast(Any, array_api_compat).is_array_api_obj(values):
        return np.asarray(values)
    return values


def is_numpy(array: Array) -> TypeGuard[NDArray[Any]]:
    """Return whether `array` is NumPy's."""
    return isinstance(array, np.ndarray)


def device_of(array: Array) -> Any:
    """Return where `array` lives, as its library says it."""
    return cast(Any, array_api_compat).device(array)


def namespace(array: Array) -> Any:
    """Return the array-API namespace of `array`."""
    if isinstance(array, np.ndarray):  # the general look-up costs as much as a chunk's arithmetic
        return xnp
    return array_namespace(array)


def to_numpy(array: Array) -> NDArray[Any]:
    """Return `array` as NumPy, copied from its device and detached from autograd if need be."""
    if is_numpy(array):
        return array
    if is_torch_array(array):
        if str(array.dtype) == "torch.bfloat16":  # NumPy has no such type
            array = array.float()
        return array.detach().cpu().numpy()
    return np.asarray(array)


def like(values: NDArray[Any], reference: Array, dtype: Any = None) -> Array:
    """Return NumPy `values` as an array of `reference`'s kind, on its device."""
    if is_numpy(reference):
        return values if dtype is None else values.astype(dtype, copy=False)
    if not values.flags.writeable:
        values = values.copy()  # torch warns of sharing memory that it might write to
    return namespace(reference).asarray(values, dtype=dtype, device=device_of(reference))


def working_dtype(array: Array) -> Any:
    """Return the dtype to compute in: float64 stays, narrower floats become float32.

    Integers count as exact and become float64, and so do floats that are wider.
    """
    xp = namespace(array)
    if xp.isdtype(array.dtype, "real floating"):
        return xp.float64 if array.dtype.itemsize >= 8 else xp.float32
    return xp.float64


def on_cpu(array: Array) -> bool:
    """Return whether `array` lies in the memory of the processor."""
    if isinstance(array, np.ndarray):
        return True
    return str(device_of(array)).startswith(("cpu", "Cpu", "TFRT"))


def row_chunks(array: Array, width: int = 0) -> Iterator[slice]:
    """Yield slices that cover the rows of an (N, K) array, each small enough for the cache.

    `width` counts the numbers that a row takes on the way, where that is more than K.
    """
    rows, classes = array.shape
    budget = CHUNK_ELEMENTS_CPU if on_cpu(array) else CHUNK_ELEMENTS_ACCELERATOR
    step = max(1, budget // max(1, classes, width))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def for_row_chunks(array: Array, work: Callable[[slice], None], width: int = 0) -> None:
    """Call `work` with every slice of `row_chunks`, on all cores if the array is large.

    Each call should write to its own rows of the outputs; then the result doesn't depend on how
    many threads ran.
    """
    if isinstance(array, np.ndarray) and array.size >= THREADED_ELEMENTS:
        for_each(list(row_chunks(array, width)), work)
        return
    for part in row_chunks(array, width):
        work(part)


def for_each(items: Sequence[Item], work: Callable[[Item], None], *, threaded: bool = True) -> None:
    """Call `work` with every item, on all cores unless told otherwise.

    NumPy lets go of the interpreter's lock inside its loops, so threads do help.
    """
    threads = min(worker_count(), len(items)) if threaded else 1
    if threads < 2:
        for item in items:
            work(item)
        return

    def share(first: int) -> None:
        for item in items[first::threads]:
            work(item)

    with one_blas_thread(), ThreadPoolExecutor(threads) as pool:
        # NumPy's error state lives in the context, which a new thread doesn't inherit.
        running = [
            pool.submit(contextvars.copy_context().run, share, first) for first in range(threads)
        ]
        for thread in running:
            thread.result()


def largest_entries(rows: Array) -> tuple[Array, Array]:
    """Return the (n,) index and the (n,) value of the largest entry of each row of (n, K) floats.

    Of tied entries the first is taken. A row that holds NaN has NaN.
    """
    if is_numpy(rows):
        n, width = rows.shape
        if 1 < width <= SHORT_ROW and n >= MANY_ROWS and rows.dtype.itemsize > 2:
            columns = np.ascontiguousarray(rows.T)
            most = columns.max(axis=0)
            left = np.arange(width, 0, -1, dtype=np.uint8)[:, None]
            index = width - ((columns == most) * left).max(axis=0).astype(np.int64)
            if int(index.max()) < width:  # NaN equals nothing
                return index, most
        index = rows.argmax(axis=1)
        return index, rows[np.arange(n), index]
    index = namespace(rows).argmax(rows, axis=1)
    return index, pick(rows, index)


def places_in_runs(lengths: IntArray) -> IntArray:
    """Return 0, 1, ... for each of (M,) runs, one behind the other: (N,) for N their sum."""
    before = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.arange(len(before), dtype=np.int64) - before


def ascending(values: FloatArray) -> IntArray:
    """Return the (N,) order of (N,) numbers from the least on, tied ones as they stand."""
    order = np.argsort(values)  # a fifth of the time of a stable sort, which ties alone need
    found = values[order]
    rising = found[1:] > found[:-1]
    if rising.all():
        return order
    if np.isnan(found[-1]):
        return np.argsort(values, kind="stable")
    # Runs of tied numbers stay where they are, and places within each are sorted: two fast sorts.
    run = np.zeros(len(order), dtype=np.int64)
    np.cumsum(rising, out=run[1:])
    run *= len(order)
    return np.sort(run + order) - run


def pick(rows: Array, columns: Array) -> Array:
    """Return `rows[i, columns[i]]` for every row i of an (N, K) array."""
    if is_numpy(rows):  # the general way takes twice as long
        return rows[np.arange(len(rows)), columns]
    xp = namespace(rows)
    return xp.take_along_axis(rows, columns[:, None], axis=1)[:, 0]


def put(rows: Array, columns: Array, value: float) -> Array:
    """Return (N, K) `rows` with `value` in place of `rows[i, columns[i]]` for every row i.

    Where the library can write into an array, that is done in place: pass rows of your own.
    """
    xp = namespace(rows)
    if is_numpy(rows):
        rows[np.arange(len(rows)), columns] = value  # a mask of all entries takes 20 times as long
        return rows
    every = xp.arange(rows.shape[1], dtype=columns.dtype, device=getattr(rows, "device", None))
    return xp.where(every[None, :] == columns[:, None], value, rows)


def top_two(chunk: Array) -> tuple[Array, Array, Array]:
    """Return the largest and second largest entry of each row and the index of the largest."""
    xp = namespace(chunk)
    index, first = largest_entries(chunk)
    others = put(xp.asarray(chunk, copy=True), index, -xp.inf)
    return first, largest_entries(others)[1], index


def margins_of(logits: Array) -> FloatArray:
    """Return the (N,) gaps between the two largest of (N, K) logits; 0 where they tie."""
    xp, dtype = namespace(logits), working_dtype(logits)
    margins = np.empty(int(logits.shape[0]))
    for part in row_chunks(logits):
        first, second, _ = top_two(xp.astype(logits[part], dtype))
        margins[part] = to_numpy(first - second)
    return margins


def row_sums(rows: Array) -> Array:
    """Return the (N,) sums of the rows of an (N, K) array of floats.

    A dot product with ones takes half the time of a sum. That of a row doesn't depend on the other
    rows, which a matrix product with ones wouldn't promise.
    """
    xp = namespace(rows)
    if not is_numpy(rows):
        return xp.sum(rows, axis=1)
    width = rows.shape[1]
    if width <= 2 * SUMMED_AT_ONCE:
        return xp.vecdot(rows, np.ones((1, width), dtype=rows.dtype))
    # A running sum of very many float32 loses digits; sums of pieces keep them.
    ones = np.ones((1, 1, SUMMED_AT_ONCE), dtype=rows.dtype)
    whole = width - width % SUMMED_AT_ONCE
    pieces = xp.vecdot(rows[:, :whole].reshape(len(rows), -1, SUMMED_AT_ONCE), ones)
    rest = rows[:, whole:].sum(axis=1, dtype=np.float64)
    return (pieces.sum(axis=1, dtype=np.float64) + rest).astype(rows.dtype)


def sigmoid(x: FloatArray) -> FloatArray:
    """Return 1 / (1 + exp(-x)), to the last digits on both sides."""
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1.0) / (1 + small)


def library_of(values: Any) -> str | None:
    """Return which of `_LIBRARIES` a value is of, or None."""
    name = type(values).__module__.partition(".")[0]
    return name if name in _LIBRARIES else None


def is_table(values: Any) -> bool:
    """Return whether a value is a table with named columns, rather than a single column."""
    return library_of(values) is not None and type(values).__name__ in _TABLES


def is_frame(values: Any) -> bool:
    """Return whether a value is a table or a column of one of `_LIBRARIES`."""
    library = library_of(values)
    if library is None:
        return False
    # Every pyarrow array is a column: Int64Array, StringArray, ...
    return type(values).__name__ in (*_TABLES, *_COLUMNS) or library == "pyarrow"


def column_names(table: Any) -> list[Any]:
    """Return the names of the columns of a table, as it has them."""
    names: Any = table.schema.names if library_of(table) == "pyarrow" else table.columns
    return list(names)


def frame_array(values: Any) -> NDArray[Any]:
    """Return a table as an (N, K) array, a column as (N,).

    Missing values of columns of numbers are NaN. A column of lists of equal length is (N, K).

    Raises:
        PredictionsError: columns of a table that aren't numbers.
    """
    if not is_table(values):
        return _column(values)
    names = column_names(values)
    if not names:
        return np.empty((len(values), 0))
    columns: list[NDArray[Any]] = []
    for place, name in enumerate(names):
        column = _column(_column_of(values, place))
        if column.dtype.kind not in "fiub" or column.ndim != 1:
            raise PredictionsError(
                f"the column '{name}' of a {library_of(values)} table holds no numbers, one a row; "
                "pass the columns of the scores only"
            )
        columns.append(column)
    return np.stack(columns, axis=1)


def _column_of(table: Any, place: int) -> Any:
    library = library_of(table)
    if library == "pandas":
        return table.iloc[:, place]
    return table.to_series(place) if library == "polars" else table.column(place)


def _column(values: Any) -> NDArray[Any]:
    library = library_of(values)
    if library == "pandas":
        found: Any = values.to_numpy()
        if found.dtype == object and _is_number(values.dtype):
            found = values.to_numpy(dtype=np.float64, na_value=np.nan)
    elif library == "polars":
        found = values.to_numpy()
    else:
        found = values.to_numpy(zero_copy_only=False)
    array = np.asarray(found)
    if array.dtype == object:
        array = _unpacked(array)
    return array


def _is_number(dtype: Any) -> bool:
    # Of pandas' nullable types, such as Int64 and double[pyarrow].
    return getattr(dtype, "kind", "O") in "iufb"


def _unpacked(array: NDArray[Any]) -> NDArray[Any]:
    """Return a column of objects as text, or as (N, K) where each is a list of K numbers."""
    items = cast(list[Any], array.tolist())
    if items and all(isinstance(item, str) for item in items):
        return np.array(items)
    if items and all(isinstance(item, list | tuple | np.ndarray) for item in items):
        lengths = {len(item) for item in items}
        if len(lengths) == 1:
            rows = np.array([np.asarray(item) for item in items])
            if rows.dtype.kind in "fiu":
                return rows
    return array


def masked_classes(chunk: Array) -> Array | None:
    """Return where (n, K) logits mask a class with minus infinity, or None if nowhere."""
    xp = namespace(chunk)
    masked = chunk == -xp.inf
    return masked if bool(xp.any(masked)) else None


def unmasked_mean(chunk: Array) -> tuple[Array, Array | None]:
    """Return the (n, 1) means of the unmasked logits of each row, and `masked_classes`."""
    xp = namespace(chunk)
    mean = row_sums(chunk)[:, None] / int(chunk.shape[1])
    if bool(xp.all(xp.isfinite(mean))):
        return mean, None
    masked = chunk == -xp.inf
    kept = xp.sum(xp.astype(~masked, chunk.dtype), axis=1, keepdims=True)
    return xp.sum(xp.where(masked, 0.0, chunk), axis=1, keepdims=True) / kept, masked


def centred(chunk: Array) -> tuple[Array, Array | None]:
    """Return (n, K) logits less their unmasked mean, 0 where masked, and `masked_classes`."""
    xp = namespace(chunk)
    mean, masked = unmasked_mean(chunk)
    return chunk - mean if masked is None else xp.where(masked, 0.0, chunk - mean), masked


def centred_copy(logits: Array) -> FloatArray:
    """Return (N, K) logits less their unmasked means, 0 where masked, as float64 NumPy."""
    rows = to_numpy(logits).astype(np.float64)
    for part in row_chunks(rows):
        rows[part] = centred(rows[part])[0]
    return rows
