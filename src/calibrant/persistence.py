"""Save and load fitted calibrators: safetensors with the method, version and parameters in its header.

A file is data only. Loading never unpickles and never imports by name: it makes the calibrator that
the registry knows by the method, and refuses anything that does not fit it.
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
    from safetensors.numpy import save_file

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
        "arguments": json.dumps(calibrator.get_params()),
        "fit_report": json.dumps(calibrator.fit_report_.as_dict()),
    }
    state = {
        # safetensors writes memory as it lies, so it must lie in rows
        name: np.ascontiguousarray(array) if array.ndim else array
        for name, array in calibrator.state().items()
    }
    with replacing(path) as temporary:
        save_file(state, temporary, metadata=header)


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
    return calibrator.restore(state, classes, fit_report)


def _read(path: Path, source: str) -> tuple[dict[str, str], dict[str, NDArray[Any]]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise CalibratorFileError(f"{source}: there is no such file")
    try:
        with safe_open(path, framework="numpy") as file:
            header: dict[str, str] = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
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
