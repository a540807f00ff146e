"""Load calibrators that `calibrant.posthoc.saving` wrote, once they are proved to be ones.

Loading never unpickles and never imports by name: it makes
the calibrator that the registry knows by the method, and refuses anything that does not fit it.
"""

from __future__ import annotations

import json
from os import fspath
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arguments import check_arguments
from calibrant.core.errors import CalibratorFileError
from calibrant.files.atomic import StrPath
from calibrant.posthoc.base import Calibrator, FitReport
from calibrant.posthoc.learnt import misfit
from calibrant.posthoc.needs import FORMS
from calibrant.posthoc.per_label import PerLabel
from calibrant.posthoc.registry import METHODS
from calibrant.posthoc.saving import FORMAT
from calibrant.posthoc.trial import fault_of


def load(path: StrPath) -> Calibrator:
    """Return the fitted calibrator that `save` wrote.

    Raises:
        CalibratorFileError: the file is missing, damaged, not a calibrator, of a newer format, of
            an unknown method, or its parameters don't fit the method.

    Examples:
        >>> import calibrant as cb
        >>> val = cb.load_sample("validation")
        >>> cb.TemperatureScaling().fit_predictions(val).save("temperature.safetensors")
        >>> scaling = cb.load("temperature.safetensors")
        >>> type(scaling).__name__, round(scaling.temperature_, 1)
        ('TemperatureScaling', 1.6)
    """
    source = fspath(path)
    header, state = FORMAT.read(path)
    try:
        calibrator = _rebuilt(header, state, source)
    except RecursionError as error:
        raise CalibratorFileError(f"{source}: the header is damaged (too deep)") from error
    _try_out(calibrator, source)
    return calibrator


def _rebuilt(header: dict[str, str], state: dict[str, NDArray[Any]], source: str) -> Calibrator:
    """Return the calibrator that a header describes, with its parts, once all of it fits."""
    called = header.get("method", "")
    method = PerLabel if called == PerLabel.method else METHODS.get(called)
    if method is None:
        raise CalibratorFileError(
            f"{source}: holds a calibrator of the unknown method '{header.get('method')}'; this "
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
            raise ValueError(f"form '{form}' of {n_classes} classes")
        names = _names_in(header, n_classes)
        calibrator = method().set_params(**arguments)
        check_arguments(calibrator)
        headers = cast(dict[str, dict[str, str]], json.loads(header.get("parts", "{}")))
        described = {
            name: {key: str(value) for key, value in part.items()} for name, part in headers.items()
        }
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise CalibratorFileError(f"{source}: the header is damaged ({error})") from error
    wanted = method.wanted_parts(described)
    if wanted is not None:
        raise CalibratorFileError(
            f"{source}: a '{method.method}' calibrator is made of {wanted}, but the file of "
            f"{', '.join(sorted(described)) or 'no others'}"
        )
    prefixes = tuple(f"{name}/" for name in described)
    own = {name: array for name, array in state.items() if not name.startswith(prefixes)}
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
        calibrator.form_, calibrator.class_names_ = form, names
        calibrator.called_ = names if header.get("predicts") == "names" else None
        calibrator.restore_parts(parts)
        return calibrator.restore(own, n_classes, fit_report)
    except Exception as error:  # a plug-in's may make more of arrays than to keep them
        raise CalibratorFileError(f"{_unfit(calibrator, n_classes, source)} ({error})") from error


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
        reason = str(error).partition("\n")[0] or type(error).__name__
    if reason is not None:
        raise CalibratorFileError(f"{_unfit(calibrator, calibrator.n_classes_, source)} ({reason})")


def _unfit(calibrator: Calibrator, n_classes: int, source: str) -> str:
    method = calibrator.method
    return f"{source}: its parameters don't fit a '{method}' calibrator for {n_classes} classes"
