"""Save fitted calibrators: safetensors with method, version and arguments in the header.

A calibrator that is made of others holds each part's header within its own, and its arrays under
the part's name. A file is data only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import NotFittedError
from calibrant.files.atomic import StrPath
from calibrant.files.parameters import ParameterFormat


class Saveable(Protocol):
    """What a file keeps of a calibrator."""

    method: ClassVar[str]
    n_classes_: int
    class_names_: tuple[str, ...] | None
    called_: tuple[str, ...] | None

    @property
    def form_(self) -> str:
        """What it was fitted to."""
        ...

    @property
    def fit_report_(self) -> Any:
        """What the fit did."""
        ...

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments."""
        ...

    def state(self) -> dict[str, NDArray[Any]]:
        """Return what was learnt, as arrays by name."""
        ...

    def parts(self) -> Mapping[str, Any]:
        """Return the fitted calibrators that this one is made of, by name."""
        ...


FORMAT = ParameterFormat("calibrant", 1, "a calibrator", "numpy")


def save(calibrator: Saveable, path: StrPath) -> None:
    """Write a fitted calibrator to `path`, which must end in ``.safetensors``.

    Raises:
        NotFittedError: it has not been fitted.
        InputError: another extension, or a folder that doesn't exist.
    """
    FORMAT.check_extension(path)
    if not hasattr(calibrator, "fit_report_"):
        raise NotFittedError(f"this {type(calibrator).__name__} has not been fitted")
    FORMAT.write(path, _described(calibrator), _all_state(calibrator))


def _described(calibrator: Saveable) -> dict[str, str]:
    """Return what a header says of a calibrator, and within it of those that it is made of."""
    described = {
        "method": calibrator.method,
        "n_classes": str(calibrator.n_classes_),
        "form": calibrator.form_,
        # NumPy's numbers are fine as arguments, and no numbers to `json`.
        "arguments": json.dumps(calibrator.get_params(), default=lambda number: number.item()),
        "fit_report": json.dumps(calibrator.fit_report_.as_dict()),
    }
    if calibrator.class_names_ is not None:
        described["class_names"] = json.dumps(calibrator.class_names_)
        described["predicts"] = "numbers" if calibrator.called_ is None else "names"
    parts = {name: _described(part) for name, part in calibrator.parts().items()}
    return described | ({"parts": json.dumps(parts)} if parts else {})


def _all_state(calibrator: Saveable) -> dict[str, NDArray[Any]]:
    """Return the arrays of a calibrator by name, those of its parts as ``part/name``."""
    state = {
        # safetensors writes memory as it lies, so it must lie in rows
        name: np.ascontiguousarray(array) if array.ndim else array
        for name, array in calibrator.state().items()
    }
    for part, inner in calibrator.parts().items():
        state |= {f"{part}/{name}": array for name, array in _all_state(inner).items()}
    return state
