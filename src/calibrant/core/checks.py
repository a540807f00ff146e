"""Checks of the arrays that a caller hands over: one sentence for whatever is unusable.

Each raises `PredictionsError` that begins with the source of the rows and names the offending one.

Rows of a file that is read in batches go by their numbers in the file: whoever reads a batch says
where it begins (`rows_from`), and checks of the batch needn't know that there is one.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import (
    SHORT_ROW,
    Array,
    FloatArray,
    IntArray,
    as_array,
    for_row_chunks,
    is_numpy,
    like,
    namespace,
    pick,
    row_chunks,
    row_sums,
    to_numpy,
    working_dtype,
)
from calibrant.core.errors import (
    LooksLikeProbabilitiesWarning,
    PredictionsError,
    warn_caller,
)

# Rounding may leave the sum of a row of K probabilities this far from 1.
ROW_SUM_TOLERANCE = {"float16": 2e-2, "bfloat16": 5e-2, "float32": 1e-4, "float64": 1e-4}


def check_scores(
    scores: Array, kind: Literal["logits", "probs"], source: str, *, masks: bool = False
) -> None:
    """Raise `PredictionsError` unless `scores` is a usable (N, K) array of its kind.

    With `masks`, -inf is fine where it leaves a row at least two classes.
    """
    check_shape(tuple(getattr(scores, "shape", ())), kind, source)
    xp = namespace(scores)
    if not xp.isdtype(scores.dtype, ("real floating", "integral")):
        raise PredictionsError(f"{source}: '{kind}' must hold real numbers, not {scores.dtype}")
    if xp.isdtype(scores.dtype, "integral"):
        if kind == "probs":
            raise PredictionsError(f"{source}: 'probs' must be fractions, not {scores.dtype}")
        return

    dtype = working_dtype(scores)

    def check(part: slice) -> None:
        if not _surely_usable(scores[part], kind, dtype):
            check_finite(scores[part], kind, source, part.start, masks=masks)
            if kind == "probs":
                _check_simplex(scores[part], source, part.start)

    for_row_chunks(scores, check)


def check_shape(shape: tuple[int, ...], kind: str, source: str) -> None:
    """Raise `PredictionsError` unless scores of a shape can be (N, K), or (N,) of their kind."""
    if kind in ("toplabel", "score"):
        if len(shape) != 1 or shape[0] == 0:
            name = "confidence" if kind == "toplabel" else kind
            raise PredictionsError(
                f"{source}: '{name}' must have shape (N,) with N >= 1, not {shape}"
            )
    elif len(shape) != 2 or shape[0] == 0 or shape[1] < 2:
        raise PredictionsError(
            f"{source}: '{kind}' must have shape (N, K) with N >= 1 rows and K >= 2 classes, "
            f"not {shape}{_other_form(shape, kind)}"
        )


def _other_form(shape: tuple[int, ...], kind: str) -> str:
    """Return which form scores of a shape look like that isn't (N, K), and how to say so."""
    if 0 in shape:
        return ""
    if len(shape) == 1 or (len(shape) == 2 and shape[1] == 1):
        one = kind.removesuffix("s")
        return f"; one score a row is binary: Predictions.from_binary, in files the key '{one}'"
    if len(shape) > 2:
        return "; tokens and pixels: Predictions.from_tokens, for files --kind tokens"
    return ""


def _surely_usable(chunk: Array, kind: Literal["logits", "probs"], dtype: Any) -> bool:
    """Return whether sums of the rows, in a `dtype`, show that nothing is wrong with them.

    NaN or infinity anywhere makes a sum so; a sum can also overflow, which decides nothing.
    """
    xp = namespace(chunk)
    with np.errstate(over="ignore", invalid="ignore"):
        wide = xp.astype(chunk, dtype, copy=False)
        # Half the time of a sum that others may rest on, of a few classes.
        short = is_numpy(wide) and wide.shape[1] <= SHORT_ROW
        totals = np.einsum("ij->i", wide) if short else row_sums(wide)
    if kind == "logits":
        return bool(xp.all(xp.isfinite(totals)))
    off = float(xp.max(xp.abs(totals - 1)))
    return off <= _tolerance_of(chunk.dtype) / 2 and bool(xp.min(chunk) >= 0)


LIKE_PROBABILITIES = "every row of 'logits' lies in [0, 1] and sums to 1, as probabilities do"


def warn_of_probabilities(logits: Array, source: str) -> None:
    """Warn if all of (N, K) logits look like probabilities."""
    if look_like_probabilities(logits):
        warn_caller(
            LooksLikeProbabilitiesWarning(
                f"{source}: {LIKE_PROBABILITIES}; if they are probabilities, say so: "
                "kind='probs' (fit, predict_proba), Predictions.from_probs(probs, labels), "
                "--are probs (files)"
            )
        )


def look_like_probabilities(logits: Array) -> bool:
    """Return whether all of (N, K) logits are rows in [0, 1] that sum to 1, not all one-hot.

    The softmax of probabilities is almost uniform, so everything after it would be wrong.
    """

    def looks_so(part: slice) -> bool:
        xp, chunk = namespace(logits), logits[part]
        if not bool(xp.all((chunk >= 0) & (chunk <= 1))):
            return False
        return bool(xp.all(xp.abs(row_sums(chunk) - 1) <= ROW_SUM_TOLERANCE["float64"]))

    xp = namespace(logits)
    if not xp.isdtype(logits.dtype, "real floating") or str(logits.dtype)[-2:] == "16":
        return False
    first = next(row_chunks(logits))
    # Mostly the first row tells.
    if not (looks_so(slice(0, 1)) and looks_so(first) and all(map(looks_so, row_chunks(logits)))):
        return False
    return bool(xp.any((logits[first] > 0) & (logits[first] < 1)))


@lru_cache(maxsize=32)  # to name a type takes NumPy as long as to sum a chunk
def _tolerance_of(dtype: Any) -> float:
    return ROW_SUM_TOLERANCE.get(str(dtype).removeprefix("torch."), 1e-4)


def check_finite(chunk: Array, key: str, source: str, offset: int, *, masks: bool = False) -> None:
    """Raise `PredictionsError` unless an (n, d) chunk is finite; its rows count from `offset`.

    With `masks`, -inf is fine where it leaves a row at least two finite numbers.
    """
    xp = namespace(chunk)
    finite = xp.isfinite(chunk)
    if bool(xp.all(finite)):
        return
    usable = to_numpy(finite)
    if masks:
        left = usable.sum(axis=1)
        usable = usable | to_numpy(chunk == -xp.inf)
        if usable.all():
            if left.min() < 2:
                row = int(left.argmin())
                raise PredictionsError(
                    f"{source}: '{key}' must leave every row at least 2 classes that aren't -inf, "
                    f"but row {row_number(offset + row)} has {left[row]}"
                )
            return
    row, column = (int(i[0]) for i in np.nonzero(~usable))
    value, at = float(chunk[row, column]), row_number(offset + row)
    raise PredictionsError(
        f"{source}: '{key}' must be finite, but row {at}, column {column} holds {value}"
    )


def refuse_infinite(usable: Array, offset: int = 0) -> None:
    """Raise `PredictionsError` for the first of (n,) rows that isn't `usable`."""
    rows = to_numpy(usable)
    if not rows.all():
        row = offset + int(rows.argmin())
        raise PredictionsError(f"logits: row {row_number(row)} holds NaN or infinity")


def check_unmasked(logits: Array, labels: IntArray, source: str) -> None:
    """Raise `PredictionsError` where one of (N, K) logits masks the row's true class."""
    masked = to_numpy(pick(logits, like(labels, logits)) == -np.inf)
    if masked.any():
        row = int(masked.argmax())
        raise PredictionsError(
            f"{source}: 'logits' must not mask the true class with -inf, but row {row_number(row)} "
            f"masks its class {labels[row]}"
        )


# What to do with what was taken for probabilities, in memory or in a file.
AS_LOGITS = (
    "if these are logits, say so: kind='logits' (fit, predict_proba), "
    "Predictions.from_logits(logits, labels) (evaluate), --are logits (files)"
)


def _check_simplex(chunk: Array, source: str, offset: int) -> None:
    xp = namespace(chunk)
    if not bool(xp.all(chunk >= 0)):
        row, column = (int(i[0]) for i in np.nonzero(to_numpy(chunk < 0)))
        at = row_number(offset + row)
        raise PredictionsError(
            f"{source}: 'probs' must not be negative, but row {at}, column {column} "
            f"holds {float(chunk[row, column])}",
            AS_LOGITS,
        )
    wide = xp.astype(chunk, xp.float64)
    # Sums in another order differ in the last bits, and whoever reads rows may have summed so.
    off = xp.abs(xp.sum(wide, axis=1) - 1) > _tolerance_of(chunk.dtype) * (1 + 1e-6)
    if bool(xp.any(off)):
        row = int(to_numpy(off).argmax())
        raise PredictionsError(
            f"{source}: every row of 'probs' must sum to 1, but row {row_number(offset + row)} "
            f"sums to {float(xp.sum(wide[row, :])):.6g}",
            what_sums_say(to_numpy(wide[row, :])),
        )


def what_sums_say(row: FloatArray) -> str:
    """Return what a row of probabilities looks like that doesn't sum to 1, and how to say so."""
    total = float(row.sum())
    if row.max() <= 1:
        # They can't be logits: what these make of them is wrong, and looks right.
        return (
            "if several labels may be true of a row, say so (from_many_labels, --kind "
            "many-labels); if classes are left out, add what they lack"
        )
    if abs(total - 100) < 1:
        return "these look like percent: divide by 100, or say --are percent (are=)"
    return AS_LOGITS


def as_numbers(values: NDArray[Any], key: str, source: str) -> NDArray[Any]:
    """Return `values`, or raise `PredictionsError` if they are no numbers."""
    if values.dtype.kind not in "fiu":
        raise PredictionsError(f"{source}: '{key}' must hold numbers, not {values.dtype}")
    return values


def check_labels(
    labels: Array, rows: int, classes: int | None, source: str, key: str = "labels"
) -> IntArray:
    """Return `labels` as (rows,) int64, or raise `PredictionsError` naming the offending row."""
    values = to_numpy(as_array(labels))
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise PredictionsError(
            f"{source}: '{key}' must have shape (N,) with one class index a row, not {values.shape}"
            f"{_many_labels(values)}"
        )
    if len(values) != rows:
        raise PredictionsError(
            f"{source}: '{key}' has {len(values)} entries, but there are {rows} rows of scores"
        )
    values = as_numbers(values, key, source)
    with np.errstate(invalid="ignore"):
        whole = values.astype(np.int64)
    top = "" if classes is None else f" to {classes - 1}"
    bad = (whole != values) | (whole < 0) | (whole >= (np.inf if classes is None else classes))
    if bad.any():
        row = int(bad.argmax())
        raise PredictionsError(
            f"{source}: '{key}' must be whole numbers from 0{top}, but row {row_number(row)} "
            f"holds {values[row]}"
        )
    return whole


def _many_labels(labels: NDArray[Any]) -> str:
    """Return what labels of two dimensions look like, and how to say so."""
    if labels.ndim != 2 or labels.size == 0 or not np.isin(labels, (0, 1)).all():
        return ""
    one_hot = ""
    if (labels.sum(axis=1) == 1).all():
        one_hot = "; if they are one-hot, give the number of the class, labels.argmax(axis=1)"
    return (
        f"{one_hot}; 0 and 1 for each of several labels are many labels: "
        "Predictions.from_many_labels, for files --kind many-labels"
    )


def check_features(features: Array, rows: int, source: str) -> None:
    """Raise `PredictionsError` unless `features` is a finite (rows, D) array."""
    shape = tuple(getattr(features, "shape", ()))
    if len(shape) != 2 or shape[0] != rows or shape[1] == 0:
        raise PredictionsError(
            f"{source}: 'features' must have shape ({rows}, D), one row for each row of scores, "
            f"not {shape}"
        )
    check_numbers(features, "features", source)


def check_reference(reference: Array, features: Array | None, source: str) -> None:
    """Raise `PredictionsError` unless `reference` is a finite (M, D) array, D as in `features`."""
    shape = tuple(getattr(reference, "shape", ()))
    width = "D" if features is None else int(features.shape[1])
    if len(shape) != 2 or 0 in shape or (features is not None and shape[1] != width):
        raise PredictionsError(
            f"{source}: 'reference_features' must have shape (M, {width}), features of M >= 1 "
            f"other rows, not {shape}"
        )
    check_numbers(reference, "reference_features", source)


def check_numbers(array: Array, key: str, source: str) -> None:
    """Raise `PredictionsError` unless `array`, (n, d) or (n,), holds finite real numbers."""
    xp = namespace(array)
    if not xp.isdtype(array.dtype, ("real floating", "integral")):
        raise PredictionsError(f"{source}: '{key}' must hold real numbers, not {array.dtype}")
    if xp.isdtype(array.dtype, "real floating"):
        rows = array if len(array.shape) == 2 else array[:, None]
        for part in row_chunks(rows):
            check_finite(rows[part], key, source, part.start)


def check_confidence(confidence: Array, source: str) -> FloatArray:
    """Return (N,) confidences as float64 NumPy.

    Raises:
        PredictionsError: another shape, no row, or numbers outside [0, 1].
    """
    values = to_numpy(as_array(confidence))
    check_shape(values.shape, "toplabel", source)
    values = as_numbers(values, "confidence", source)
    bad = ~((values >= 0) & (values <= 1))
    if bad.any():
        row = int(bad.argmax())
        raise PredictionsError(
            f"{source}: 'confidence' must lie in [0, 1], but row {row_number(row)} holds "
            f"{values[row]}"
        )
    return values.astype(np.float64)


_first_row: ContextVar[int] = ContextVar("first row", default=0)


@contextmanager
def rows_from(first: int) -> Generator[None]:
    """Within the body, row 0 of whatever is checked is called row `first`."""
    token = _first_row.set(first)
    try:
        yield
    finally:
        _first_row.reset(token)


def row_number(row: int) -> int:
    """Return what to call a row of the arrays at hand."""
    return _first_row.get() + row
