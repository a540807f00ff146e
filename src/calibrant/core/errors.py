"""What can go wrong, one class per cause; the command line turns `InputError` into exit code 2."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from calibrant.core.text import on_one_line

# What stands before a command that reads a file which was refused.
PROPOSED = "; to read it so: "


class CalibrantError(Exception):
    """Root of everything that Calibrant raises on purpose.

    Examples:
        >>> import calibrant as cb
        >>> try:
        ...     cb.load("nowhere.safetensors")
        ... except cb.CalibrantError as error:
        ...     print(error)
        nowhere.safetensors: there is no such file
    """

    def __str__(self) -> str:
        """Return the sentence on one line, whatever the names in it hold."""
        return on_one_line(super().__str__())


class InputError(CalibrantError, ValueError):
    """The caller's input is not usable; the message says what was expected and where.

    Examples:
        >>> import calibrant as cb
        >>> cb.metrics.expected_calibration_error([0.9, 0.6], [1, 0], n_bins=0, kind="confidence")
        Traceback (most recent call last):
            ...
        calibrant.core.errors.InputError: n_bins must be a whole number of at least 1, not 0
    """


class PredictionsError(InputError):
    """Predictions (arrays or a file) are malformed.

    Attributes:
        reason: what is wrong.
        details: what to say, or what is there instead; "" where there is nothing to add.
        line: the command that reads the file; "" where nobody knows one.

    Examples:
        >>> import calibrant as cb
        >>> cb.Predictions.from_probs([[0.7, 0.3]], [5])
        Traceback (most recent call last):
            ...
        calibrant.core.errors.PredictionsError: probs: 'labels' must be whole numbers from 0 to 1,
        but row 0 holds 5
    """

    def __init__(self, reason: str, details: str = "", line: str = "") -> None:
        self.reason, self.details, self.line = reason, details, line

    @property
    def sentence(self) -> str:
        """What is wrong and the details, on one line."""
        return on_one_line("; ".join(part for part in (self.reason, self.details) if part))

    def __str__(self) -> str:
        """Return all of it on one line."""
        return self.sentence + (PROPOSED + on_one_line(self.line) if self.line else "")


class CalibratorFileError(InputError):
    """A saved calibrator can't be trusted or understood."""


class UnknownMethodError(InputError):
    """No calibrator or metric goes by the given name."""


class NotApplicableError(InputError):
    """The method is not meant for such data; a comparison leaves it out and says why.

    Examples:
        >>> import calibrant as cb
        >>> cb.posthoc.MatrixScaling(most_classes=5).fit_predictions(cb.load_sample("validation"))
        Traceback (most recent call last):
            ...
        calibrant.core.errors.NotApplicableError: method 'matrix' would fit a matrix of 10 x 10
        numbers many times over; beyond most_classes=5 take 'svs', or raise it
    """


class NotFittedError(CalibrantError, ValueError, AttributeError):
    """`predict` was called before `fit` (same lineage as scikit-learn's error of this name).

    Examples:
        >>> import calibrant as cb
        >>> cb.TemperatureScaling().predict_proba([[2.0, 0.0]])
        Traceback (most recent call last):
            ...
        calibrant.core.errors.NotFittedError: this TemperatureScaling has not been fitted; call
        fit first
    """


class MissingDependencyError(CalibrantError, ImportError):
    """An optional package is needed; the message says how to install it."""


class CalibrationWarning(UserWarning):
    """Root of the warnings about a fit.

    Examples:
        >>> import warnings
        >>> import calibrant as cb
        >>> with warnings.catch_warnings(record=True) as found:
        ...     warnings.simplefilter("always", cb.CalibrationWarning)
        ...     _ = cb.TemperatureScaling().fit([[2.0, 0.0], [0.0, 1.0]], [0, 1])
        >>> found[0].category.__name__
        'BoundaryWarning'
    """


class BoundaryWarning(CalibrationWarning):
    """No finite optimum, since there are no errors to learn from: the fit stopped at a bound."""


class NotIdentifiedWarning(CalibrationWarning):
    """The data carry no information about the parameter (logits worse than chance, or constant)."""


class ConvergenceWarning(CalibrationWarning):
    """An optimiser stopped before it reached its tolerance."""


class ImproperObjectiveWarning(CalibrationWarning):
    """The chosen objective is known to damage calibration; it is there to be studied."""


class TrainingWarning(CalibrationWarning):
    """A loss isn't given what it needs in training; it goes on, but isn't what its name says."""


class LooksLikeProbabilitiesWarning(CalibrationWarning):
    """What was called logits are rows in [0, 1] that sum to 1."""


class RoundedProbabilitiesWarning(CalibrationWarning):
    """Rows of rounded probabilities didn't sum to 1 and were divided by their sums."""


class AppliedTwiceWarning(CalibrationWarning):
    """Rows that a calibrator is applied to look as if one had been applied to them before."""


class MisreadWarning(CalibrationWarning):
    """Rows may have been misread, such as labels that belong to other rows.

    Examples:
        >>> import warnings
        >>> import numpy as np
        >>> import calibrant as cb
        >>> probs = np.repeat([[0.9, 0.1], [0.1, 0.9]], 100, axis=0)
        >>> with warnings.catch_warnings(record=True) as found:
        ...     warnings.simplefilter("always", cb.MisreadWarning)
        ...     _ = cb.evaluate(probs, [1, 0] * 100, metrics=["accuracy"])
        >>> found[0].category.__name__
        'MisreadWarning'
    """


class LabelFormWarning(CalibrationWarning):
    """Labels of another form, such as one-hot rows, were read as numbers of classes."""


class SharedRowsWarning(CalibrationWarning):
    """Rows that are measured on are among those that were fitted to."""


class NoCommonNamesWarning(CalibrationWarning):
    """No predicted label goes by the name of a true one: perhaps they are spelt differently."""


class PlugInWarning(UserWarning):
    """A method of another package could not be taken in; the message names it and says why."""


class CalibrantDeprecationWarning(FutureWarning):
    """A name, argument or option will go; the message says when, and what to write instead.

    Python shows it by default, because the person who runs the code has to change it.

    Examples:
        >>> import warnings
        >>> import calibrant as cb
        >>> with warnings.catch_warnings():  # as a test suite that wants to know early
        ...     warnings.simplefilter("error", cb.CalibrantDeprecationWarning)
        ...     round(cb.metrics.brier_score([[0.7, 0.3]], [0]), 2)
        0.18
    """


_heard: ContextVar[list[Warning] | None] = ContextVar("heard", default=None)


@contextmanager
def heard_warnings() -> Generator[list[Warning]]:
    """Keep this package's warnings from inside in a list, instead of issuing them.

    Unlike `warnings.catch_warnings`, which changes a state of the process, it serves threads that
    each keep their own; threads that are started inside have to inherit the context.
    """
    found: list[Warning] = []
    token = _heard.set(found)
    try:
        yield found
    finally:
        _heard.reset(token)


def hear(warning: Warning) -> bool:
    """Keep a warning if `heard_warnings` wants it; return whether it did."""
    heard = _heard.get()
    if heard is not None:
        heard.append(warning)
    return heard is not None


def warn_caller(warning: CalibrationWarning) -> None:
    """Issue `warning` for the line that called into this package, however deep it was found."""
    if not hear(warning):
        _issue(warning)


def deprecated(name: str, *, since: str, instead: str) -> None:
    """Warn the caller that `name` goes: the first line of whatever still serves it.

    Args:
        name: what is deprecated, as users write it: ``"cb.metrics.old"``, ``"evaluate(old=)"``.
        since: first version that warns, such as ``"0.3"``; it says when `name` may go.
        instead: what to write instead.
    """
    message = (
        f"{name} is deprecated since {since} and goes in {removal_of(since)}; write {instead} "
        "instead"
    )
    _issue(CalibrantDeprecationWarning(message))


def removal_of(since: str) -> str:
    """Return the first version that may lack what is deprecated since another one.

    Before 1.0 that is two minor versions later; from then on a name goes only with the next major
    version.
    """
    major, minor = (int(part) for part in since.split(".")[:2])
    return f"0.{minor + 2}" if major == 0 else f"{major + 1}.0"


def _issue(warning: Warning) -> None:
    """Issue a warning for the first line on the stack that isn't this package's."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith("calibrant."):
        frame, level = frame.f_back, level + 1
    warnings.warn(warning, stacklevel=level)
