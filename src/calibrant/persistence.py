"""Save and load fitted calibrators: safetensors with method, version and arguments in the header.

A file is data only. Loading never unpickles and never imports by name: it makes the calibrator
that the registry knows by the method, and refuses anything that does not fit it.
"""

from __future__ import annotations

import json
from os import fspath
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from calibrant._version import __version__
from calibrant.errors import CalibratorFileError, InputError, NotFittedError
from calibrant.files.atomic import StrPath, replacing
from calibrant.posthoc.arguments import check_arguments
from calibrant.posthoc.base import Calibrator, FitReport
from calibrant.posthoc.registry import METHODS

FORMAT = "calibrant"
FORMAT_VERSION = 1


def save(calibrator: Calibrator, path: StrPath) -> None:
    """Write a fitted calibrator to `path`, which must end in ``.safetensors``.

    Raises:
        NotFittedError: it has not been fitted.
        InputError: another extension, or a folder that doesn't exist.
    """
    from safetensors import numpy as safetensors_numpy

    if Path(path).suffix != ".safetensors":
        raise InputError(f"{fspath(path)}: a calibrator is saved as .safetensors")
    if not hasattr(calibrator, "fit_report_"):
        raise NotFittedError(f"this {type(calibrator).__name__} has not been fitted")
    header = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "calibrant_version": __version__,
        "method": calibrator.method,
        "classes": str(calibrator.classes_),
        # NumPy's numbers are fine as arguments, and no numbers to `json`.
        "arguments": json.dumps(calibrator.get_params(), default=lambda number: number.item()),
        "fit_report": json.dumps(calibrator.fit_report_.as_dict()),
    }
    state = {
        # safetensors writes memory as it lies, so it must lie in rows
        name: np.ascontiguousarray(array) if array.ndim else array
        for name, array in calibrator.state().items()
    }
    with replacing(path) as temporary:
        cast(Any, safetensors_numpy).save_file(state, temporary, metadata=header)


def load(path: StrPath) -> Calibrator:
    """Return the fitted calibrator that `save` wrote.

    Raises:
        CalibratorFileError: the file is missing, damaged, not a calibrator, of a newer format, of
            an unknown method, or its parameters don't fit the method.
    """
    source = fspath(path)
    header, state = _read(Path(path), source)
    method = METHODS.get(header.get("method", ""))
    if method is None:
        raise CalibratorFileError(
            f"{source}: holds a calibrator of the unknown method '{header.get('method')}'; this "
            f"version knows: {', '.join(METHODS)}"
        )
    try:
        arguments = cast(dict[str, Any], json.loads(header["arguments"]))
        report = cast(dict[str, Any], json.loads(header["fit_report"]))
        report["notes"] = tuple(report["notes"])
        classes, fit_report = int(header["classes"]), FitReport(**report)
        calibrator = method().set_params(**arguments)
        check_arguments(calibrator)
    except (KeyError, ValueError, TypeError) as error:
        raise CalibratorFileError(f"{source}: the header is damaged ({error})") from error
    if set(state) != set(method.state_names()):
        raise CalibratorFileError(
            f"{source}: a '{method.method}' calibrator holds {', '.join(method.state_names())}, "
            f"but the file {', '.join(sorted(state)) or 'nothing'}"
        )
    for name, array in state.items():
        if array.dtype.kind not in "fi" or not np.isfinite(array).all():
            raise CalibratorFileError(f"{source}: parameter '{name}' is not made of finite numbers")
    calibrator.restore(state, classes, fit_report)
    _try_out(calibrator, source)
    return calibrator


def _try_out(calibrator: Calibrator, source: str) -> None:
    """Refuse parameters whose shapes or values give no probabilities for the plainest of rows."""
    reason = "what it gives are no probabilities"
    try:
        rows = np.zeros((2, calibrator.classes_))
        rows[1, 0] = 1e3
        width = calibrator.feature_width
        features = None if width is None else np.eye(2, width)
        with np.errstate(all="ignore"):
            if np.allclose(calibrator.predict_proba(rows, features).sum(axis=1), 1):
                return
    # Arrays of unexpected shapes may fail in any way.
    except Exception as error:
        reason = str(error).partition("\n")[0]
    raise CalibratorFileError(
        f"{source}: its parameters don't fit a '{calibrator.method}' calibrator for "
        f"{calibrator.classes_} classes ({reason})"
    )


def _read(path: Path, source: str) -> tuple[dict[str, str], dict[str, NDArray[Any]]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise CalibratorFileError(f"{source}: there is no such file")
    try:
        with cast(Any, safe_open)(path, framework="numpy") as file:  # it ships no types
            header = cast(dict[str, str], file.metadata() or {})
            names = cast(list[str], list(file.keys()))
            state = {name: cast(NDArray[Any], file.get_tensor(name)) for name in names}
    except (SafetensorError, OSError, TypeError, ValueError) as error:
        raise CalibratorFileError(f"{source}: is not a readable safetensors file") from error
    if header.get("format") != FORMAT:
        raise CalibratorFileError(
            f"{source}: is a safetensors file, but not a calibrator that Calibrant saved"
        )
    version = header.get("format_version", "")
    if not version.isdecimal() or int(version) > FORMAT_VERSION:
        raise CalibratorFileError(
            f"{source}: has format version '{version}', this version reads up to {FORMAT_VERSION}; "
            "update Calibrant"
        )
    return header, state
