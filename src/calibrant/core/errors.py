"""What can go wrong, one class per cause; the command line turns `InputError` into exit code 2."""

from __future__ import annotations

import inspect
import warnings


class CalibrantError(Exception):
    """Root of everything that Calibrant raises on purpose."""


class InputError(CalibrantError, ValueError):
    """The caller's input is not usable; the message says what was expected and where."""


class PredictionsError(InputError):
    """Predictions (arrays or a file) are malformed."""


class CalibratorFileError(InputError):
    """A saved calibrator can't be trusted or understood."""


class UnknownMethodError(InputError):
    """No calibrator or metric goes by the given name."""


class NotApplicableError(InputError):
    """The method is not meant for such data; a comparison leaves it out and says why."""


class NotFittedError(CalibrantError, ValueError, AttributeError):
    """`predict` was called before `fit` (same lineage as scikit-learn's error of this name)."""


class MissingDependencyError(CalibrantError, ImportError):
    """An optional package is needed; the message says how to install it."""


class CalibrationWarning(UserWarning):
    """Root of the warnings about a fit."""


class BoundaryWarning(CalibrationWarning):
    """No finite optimum, since there are no errors to learn from: the fit stopped at a bound."""


class NotIdentifiedWarning(CalibrationWarning):
    """The data carry no information about the parameter (logits worse than chance, or constant)."""


class ConvergenceWarning(CalibrationWarning):
    """An optimiser stopped before it reached its tolerance."""


class ImproperObjectiveWarning(CalibrationWarning):
    """The chosen objective is known to damage calibration; it is there to be studied."""


class TrainingWarning(CalibrationWarning):
    """A loss isn't given in training what it needs; it goes on, as something else than it says."""


class LooksLikeProbabilitiesWarning(CalibrationWarning):
    """What was called logits are rows in [0, 1] that sum to 1."""


class PlugInWarning(UserWarning):
    """A method of another package could not be taken in; the message names it and says why."""


def warn_caller(warning: CalibrationWarning) -> None:
    """Issue `warning` for the line that called into this package, however deep it was found."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith("calibrant."):
        frame, level = frame.f_back, level + 1
    warnings.warn(warning, stacklevel=level)
