"""Load calibrators that `calibrant.posthoc.state` wrote, once they are proved to be ones.

Loading never unpickles and never imports by name: it makes the calibrator that the registry knows
by the method, and refuses anything that doesn't fit it. The numbers of a file may fit their
attributes one by one and still not make a map together, so each calibrator is tried on rows that
differ in all that matters before it is returned.
"""

from __future__ import annotations

import json
from copy import copy
from os import fspath
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arguments import check_arguments
from calibrant.core.arrays import FloatArray
from calibrant.core.errors import CalibratorFileError
from calibrant.core.fit_report import FitReport
from calibrant.core.outputs import StrPath
from calibrant.core.text import reason_of
from calibrant.posthoc.applying import apply_map
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.needs import FORMS, checked_features
from calibrant.posthoc.per_label import PerLabel
from calibrant.posthoc.prior_shift import PriorShift
from calibrant.posthoc.registry import METHODS
from calibrant.posthoc.state import FORMAT, LARGEST, FittedKind, misfit
from calibrant.predictions.binary import SMALLEST_PROBABILITY

# How far the sum of a row of probabilities may be from 1.
TOLERANCE = {np.dtype(np.float64): 1e-9, np.dtype(np.float32): 1e-5}
# Spreads of logits, from almost uniform probabilities to almost certain ones.
SPREADS = (1e-3, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 100.0)
# Confidences from one over the number of classes to all but 1, and 1.
LEAST_DOUBT = 1e-9
CERTAIN = 1e3
# Numbers that a trial may handle; many rows of few classes, few rows of many.
BUDGET = 1 << 18
MOST_ROWS, FEWEST_ROWS = 160, 12
# A map that holds nothing for each class is the same for any number of them.
MOST_CLASSES = 4099


def fault_of(calibrator: Calibrator) -> str | None:
    """Return why what a calibrator gives are no probabilities, or None if they are.

    Args:
        calibrator: fitted, as a file describes it. Numbers of classes and features are bounded by
            its arrays; where none has as many entries as there are classes, it is tried with fewer.
    """
    tried = calibrator if _holds_classes(calibrator) else _with_classes(calibrator, MOST_CLASSES)
    classes, width = tried.n_classes_, tried.feature_width
    rng = np.random.default_rng(0)
    share = BUDGET // (classes + (width or 0) + 1)
    rows = trial_rows(classes, max(FEWEST_ROWS, min(share, MOST_ROWS)), rng)
    features = None if width is None else _trial_features(len(rows), width, rng)
    for dtype, tolerance in TOLERANCE.items():
        given = None if features is None else features.astype(dtype)
        with np.errstate(all="ignore"):
            known = checked_features(tried, given, len(rows))
            learnt = tried.map_arrays()
            probs = apply_map(tried.transform, rows.astype(dtype), known, learnt, tried.widest())
            fault = _fault(np.asarray(probs), rows.shape, tolerance)
        if fault is not None:
            return fault
    return None


def trial_rows(classes: int, count: int, rng: np.random.Generator) -> FloatArray:
    """Return about `count` rows of logits: random, tied, certain, and of all confidences.

    No fewer than eight, one for each way in which rows are special.
    """
    special = np.zeros((8, classes))
    special[1, 0], special[2, -1], special[3, : classes // 2] = 1e3, -1e3, 5.0
    special[4, :2], special[5] = [1.0, 1 - 1e-6], np.linspace(-30, 30, classes)
    # Every class is both on top and far below once.
    special[6, ::2], special[7, 1::2] = 1e3, 1e3
    left = max(count - len(special), 0)
    spreads = np.resize(SPREADS, left - left // 2)[:, None]
    random = rng.normal(size=(len(spreads), classes)) * spreads
    return np.concatenate([special, random, _of_confidence(classes, left // 2)])


def _of_confidence(classes: int, count: int) -> FloatArray:
    """Return rows in which each class in turn is the top one, with rising confidence."""
    lowest, highest = -float(np.log(classes - 1)), -float(np.log(LEAST_DOUBT))
    odds = lowest + (highest - lowest) / max(count - 1, 1) * np.arange(count)
    odds[1::2] = CERTAIN
    rows = np.zeros((count, classes))
    rows[np.arange(count), np.arange(count) // 2 % classes] = odds - lowest
    return rows


def _trial_features(count: int, width: int, rng: np.random.Generator) -> FloatArray:
    spreads = np.resize([0.0, 1e-3, 1.0, 1.0, 10.0, 1e3], count)[:, None]
    return rng.normal(size=(count, width)) * spreads


def _fault(probs: NDArray[np.generic], shape: tuple[int, ...], tolerance: float) -> str | None:
    if probs.shape != shape or probs.dtype.kind != "f":
        return f"it gives {probs.dtype} of shape {probs.shape} for logits of shape {shape}"
    values = probs.astype(np.float64)
    if not np.isfinite(values).all():
        return "it gives NaN or infinity"
    if values.min() < 0 or values.max() > 1 + tolerance:
        return f"it gives probabilities from {values.min():.6g} to {values.max():.6g}"
    off = np.abs(values.sum(axis=1) - 1).max()
    return f"a row of probabilities is off 1 by {off:.3g} in sum" if off > tolerance else None


def _holds_classes(calibrator: Calibrator) -> bool:
    sizes = (size for array in calibrator.state().values() for size in array.shape)
    return calibrator.n_classes_ in sizes or any(map(_holds_classes, calibrator.parts().values()))


def _with_classes(calibrator: Calibrator, most: int) -> Calibrator:
    """Return a copy for at most so many classes, down to the parts that it is made of."""
    small = copy(calibrator)
    small.n_classes_ = min(calibrator.n_classes_, most)
    for name, part in calibrator.parts().items():
        setattr(small, name, _with_classes(part, most))
    return small


def load(path: StrPath) -> Calibrator:
    """Return the fitted calibrator that `save` wrote.

    Raises:
        CalibratorFileError: the file is missing, damaged, not a calibrator, of a newer format, of
            an unknown method, or has parameters that don't fit the method.

    Examples:
        >>> import calibrant as cb
        >>> val = cb.load_sample("validation")
        >>> cb.TemperatureScaling().fit_predictions(val).save("temperature.safetensors")
        >>> scaling = cb.load("temperature.safetensors")
        >>> type(scaling).__name__, round(scaling.temperature_, 1)
        ('TemperatureScaling', 1.6)
    """
    header, state = FORMAT.read(path)
    return calibrator_in(header, state, fspath(path))


def calibrator_in(
    header: dict[str, str], state: dict[str, NDArray[Any]], source: str
) -> Calibrator:
    """Return the calibrator that a header and arrays describe, once it is proved to be one."""
    try:
        calibrator = _rebuilt(header, state, source)
    except RecursionError as error:
        raise CalibratorFileError(f"{source}: the header is damaged (too deep)") from error
    _try_out(calibrator, source)
    return calibrator


def _rebuilt(header: dict[str, str], state: dict[str, NDArray[Any]], source: str) -> Calibrator:
    """Return the calibrator that a header describes, with its parts, once all of it fits."""
    called = header.get("method", "")
    method = {kind.method: kind for kind in (PerLabel, PriorShift)}.get(called)
    method = METHODS.get(called) if method is None else method
    if method is None:
        raise CalibratorFileError(
            f"{source}: holds a calibrator of the unknown method {header.get('method')!r}; this "
            f"version knows: {', '.join(METHODS)}"
        )
    try:
        arguments = cast(dict[str, Any], json.loads(header["arguments"]))
        report = cast(dict[str, Any], json.loads(header["fit_report"]))
        report["notes"] = tuple(report["notes"])
        n_classes, fit_report = int(header["n_classes"]), FitReport(**report)
        form = header.get("form", "rows")  # files of version 0.1 don't say, and know no other
        if n_classes < 2:
            raise ValueError(f"{n_classes} classes")
        if form not in FORMS or (form != "rows" and n_classes != 2):
            raise ValueError(f"form {form!r} of {n_classes} classes")
        kind = header.get("kind", "logits")
        if kind not in get_args(FittedKind) or (kind == "score" and form != "toplabel"):
            raise ValueError(f"kind {kind!r}")
        kind = cast(FittedKind, kind)
        placing = _placing_in(header, kind)
        names = _names_in(header, n_classes)
        fitted_to = tuple(int(number) for number in json.loads(header.get("fitted_to", "[]")))
        if not all(0 <= number < 1 << 64 for number in fitted_to):
            raise ValueError("fitted_to holds no hashes")
        calibrator = method().set_params(**arguments)
        check_arguments(calibrator)
        headers = cast(dict[str, dict[str, str]], json.loads(header.get("parts", "{}")))
        described = {
            name: {key: str(value) for key, value in part.items()} for name, part in headers.items()
        }
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise CalibratorFileError(f"{source}: the header is damaged ({error})") from error
    wanted = method.wanted_parts(described)
    if wanted is not None:
        raise CalibratorFileError(
            f"{source}: a '{method.method}' calibrator is made of {wanted}, but the file of "
            f"{', '.join(sorted(described)) or 'no others'}"
        )
    prefixes = tuple(f"{name}/" for name in described)
    own = {name: array for name, array in state.items() if not name.startswith(prefixes)}
    own = method.older_state() | own
    if set(own) != set(method.state_names()):
        raise CalibratorFileError(
            f"{source}: a '{method.method}' calibrator holds {', '.join(method.state_names())}, "
            f"but the file {', '.join(sorted(own)) or 'nothing'}"
        )
    for name, array in own.items():
        if array.dtype.kind not in "fi" or not np.isfinite(array).all():
            raise CalibratorFileError(f"{source}: parameter '{name}' is not made of finite numbers")
    wrong = misfit(calibrator, own, n_classes)
    if wrong is not None:
        raise CalibratorFileError(f"{_unfit(calibrator, n_classes, source)} ({wrong})")
    parts: dict[str, Calibrator] = {}
    for name, inner in described.items():
        prefix = f"{name}/"
        of_part = {k.removeprefix(prefix): a for k, a in state.items() if k.startswith(prefix)}
        # Said before its arrays are found to be of another size.
        declared = inner.get("n_classes", "")
        if declared and declared != str(n_classes):
            raise CalibratorFileError(
                f"{source}: its part '{name}' was fitted for {declared} classes, not {n_classes}"
            )
        parts[name] = _rebuilt(inner, of_part, source)
    try:
        calibrator.form_, calibrator.kind_, calibrator.class_names_ = form, kind, names
        calibrator.placing_, calibrator.fitted_to_ = placing, fitted_to
        calibrator.called_ = names if header.get("predicts") == "names" else None
        calibrator.restore_parts(parts)
        return calibrator.restore(own, n_classes, fit_report)
    except Exception as error:  # a plug-in's may make more of arrays than to keep them
        raise CalibratorFileError(f"{_unfit(calibrator, n_classes, source)} ({error})") from error


def _placing_in(header: dict[str, str], kind: FittedKind) -> tuple[float, ...] | None:
    """Return where a calibrator puts scores, or zeros; `KeyError` or `ValueError` if it is wrong.

    Files whose fit saw no zeros, and those of earlier versions, don't say where they go.
    """
    if kind == "logits" or (kind == "probs" and "placing" not in header):
        return None
    numbers = [float(number) for number in json.loads(header["placing"])]
    if kind == "probs":
        (floor,) = numbers
        if not SMALLEST_PROBABILITY <= floor < 1:
            raise ValueError(f"zeros raised to {floor:g}")
        return (floor,)
    place, unit = numbers
    if not (abs(place) <= LARGEST and 1 / LARGEST <= unit <= LARGEST):
        raise ValueError(f"a place of scores of {place:g} and a unit of {unit:g}")
    return place, unit


def _names_in(header: dict[str, str], n_classes: int) -> tuple[str, ...] | None:
    """Return the names of the classes, if the file says them; `ValueError` if they are none."""
    names: Any = json.loads(header.get("class_names", "null"))
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(n, str) for n in cast(list[Any], names)):
        raise ValueError("class_names are no list of names")
    found = tuple(cast(list[str], names))
    if len(found) != n_classes or len(set(found)) < n_classes:
        raise ValueError(f"class_names aren't {n_classes} different names")
    return found


def _try_out(calibrator: Calibrator, source: str) -> None:
    """Refuse parameters that together give no probabilities."""
    if isinstance(calibrator, PerLabel):  # it maps no rows without their labels
        for part in calibrator.parts().values():
            _try_out(part, source)
        return
    try:
        reason = fault_of(calibrator)
    # Arrays that don't fit one another may fail in any way.
    except Exception as error:
        reason = reason_of(error)
    if reason is not None:
        raise CalibratorFileError(f"{_unfit(calibrator, calibrator.n_classes_, source)} ({reason})")


def _unfit(calibrator: Calibrator, n_classes: int, source: str) -> str:
    method = calibrator.method
    return f"{source}: its parameters don't fit a '{method}' calibrator for {n_classes} classes"
