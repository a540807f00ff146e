"""The contract of every calibrator, and the families that share how they are applied.

A calibrator is a dataclass: its constructor only stores its arguments, `fit` returns the
calibrator itself, what it has learnt ends in an underscore. Families matter more than methods: a
new method says how it is fitted and gives its family a temperature, a linear map or a map of the
confidence; how that is applied to any kind of array, saved and exported is the family's business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.arrays import Array, FloatArray, IntArray, as_array, namespace, to_numpy
from calibrant.errors import InputError, NotFittedError, PredictionsError
from calibrant.posthoc.arguments import check_arguments
from calibrant.predictions import Predictions
from calibrant.rows import RowSummary, softmax, summarize


@dataclass(frozen=True)
class FitReport:
    """What a fit did.

    Attributes:
        rows: calibration rows seen.
        objective: name of what was minimised, or "closed form".
        value: its final value (NaN where there is none).
        iterations: steps of the optimiser.
        converged: whether it reached its tolerance.
        notes: whatever a user should know, such as a bound that was hit.
    """

    rows: int
    objective: str
    value: float = float("nan")
    iterations: int = 0
    converged: bool = True
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values that JSON can hold."""
        return asdict(self) | {"notes": list(self.notes)}


@dataclass(eq=False)
class Calibrator(ABC):
    """A map from logits to probabilities, fitted on held-out rows.

    Class attributes:
        method: its name on the command line and in files.
        keeps_prediction: whether the predicted class of every row is kept by construction.
        needs_features: whether `fit` and `predict_proba` need the penultimate features.
        part_names: learnt attributes that are fitted calibrators themselves; a file holds them with
            their own method and arguments.

    Attributes:
        classes_: number of classes K it was fitted for.
        fit_report_: what the fit did.
    """

    method: ClassVar[str]
    keeps_prediction: ClassVar[bool]
    needs_features: ClassVar[bool] = False
    part_names: ClassVar[tuple[str, ...]] = ()

    classes_: int = field(init=False, repr=False)
    fit_report_: FitReport = field(init=False, repr=False)

    def fit(self, logits: Array, labels: Array, features: Array | None = None) -> Self:
        """Fit on held-out rows and return the calibrator itself.

        Args:
            logits: (N, K) logits of any array kind. For probabilities pass their logarithm
                (`Predictions.logits` does).
            labels: (N,) true labels in [0, K).
            features: (N, D) penultimate features, for methods that need them.

        Raises:
            PredictionsError: unusable logits, labels or features.
            InputError: an argument of the constructor is out of range.
        """
        if logits is None:
            raise PredictionsError("fit needs logits of shape (N, K), got None")
        predictions = Predictions.from_logits(logits, labels, features)
        if self.needs_features and features is None:
            raise PredictionsError(f"method '{self.method}' needs features of shape (N, D)")
        check_arguments(self)
        self.classes_ = int(predictions.scores.shape[1])
        self.fit_report_ = self._fit(predictions)
        return self

    def predict_proba(self, logits: Array, features: Array | None = None) -> Array:
        """Return (N, K) calibrated probabilities, of the same array kind as `logits`.

        Raises:
            NotFittedError: `fit` has not been called.
            PredictionsError: another number of classes than in `fit`, or a row that isn't finite.
        """
        # A row that isn't finite is refused by its number; NumPy needn't speak of it before that.
        with np.errstate(invalid="ignore"):
            return self._apply(self._checked(logits), features)

    def predict_confidence(
        self, logits: Array, features: Array | None = None
    ) -> tuple[IntArray, FloatArray]:
        """Return the (N,) predicted labels and the (N,) probability that each is right."""
        probs = self.predict_proba(logits, features)
        xp = namespace(probs)
        # Two logits may differ by so little that their probabilities are rounded to a tie.
        ranked = as_array(logits) if self.keeps_prediction else probs
        label, confidence = xp.argmax(ranked, axis=1), xp.max(probs, axis=1)
        return to_numpy(label).astype(np.int64), to_numpy(confidence).astype(np.float64)

    def save(self, path: str | Path) -> None:
        """Write the fitted calibrator to a safetensors file; `calibrant.load` reads it."""
        from calibrant.persistence import save

        save(self, path)

    @property
    @abstractmethod
    def n_parameters(self) -> int:
        """Number of fitted parameters."""

    @abstractmethod
    def _fit(self, predictions: Predictions) -> FitReport:
        """Learn from checked predictions."""

    @abstractmethod
    def _apply(self, logits: Array, features: Array | None) -> Array:
        """Map checked logits to probabilities."""

    def _checked(self, logits: Array) -> Array:
        if not hasattr(self, "fit_report_"):
            raise NotFittedError(f"this {type(self).__name__} has not been fitted; call fit first")
        logits = as_array(logits)
        if len(logits.shape) != 2 or logits.shape[1] != self.classes_:
            raise PredictionsError(
                f"this {type(self).__name__} was fitted for {self.classes_} classes and needs "
                f"logits of shape (N, {self.classes_}), not {tuple(logits.shape)}"
            )
        return logits

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments (scikit-learn's contract)."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.init}

    def set_params(self, **params: Any) -> Self:
        """Set arguments of the constructor and return the calibrator itself."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise InputError(
                    f"method '{self.method}' has no argument '{name}'; "
                    f"it has: {', '.join(known) or 'none'}"
                )
            setattr(self, name, value)
        return self

    @classmethod
    def state_names(cls) -> tuple[str, ...]:
        """Return the names of the learnt attributes that a file must hold as arrays."""
        kept = {"classes_", "fit_report_", *cls.part_names}
        return tuple(f.name for f in fields(cls) if not f.init and f.name not in kept)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return what was learnt, as arrays by name."""
        return {name: np.asarray(getattr(self, name)) for name in self.state_names()}

    def parts(self) -> dict[str, Calibrator]:
        """Return the fitted calibrators that this one is made of, by name."""
        return {name: getattr(self, name) for name in self.part_names}

    def restore(self, state: dict[str, NDArray[Any]], classes: int, report: FitReport) -> Self:
        """Take over what another calibrator of this kind had learnt, and return self."""
        for name in self.state_names():
            value = state[name]
            setattr(self, name, value.item() if value.ndim == 0 else value)
        self.classes_, self.fit_report_ = classes, report
        return self


@dataclass(eq=False)
class RowTemperature(Calibrator):
    """Family: softmax(beta_i z_i), with an inverse temperature that may differ by row.

    Keeps the order of the classes within every row, so also the predicted class.
    """

    keeps_prediction: ClassVar[bool] = True

    @abstractmethod
    def inverse_temperatures(self, logits: Array) -> FloatArray:
        """Return the (N,) inverse temperatures of fitted-width logits."""

    @abstractmethod
    def _fit_rows(self, rows: RowSummary) -> FitReport:
        """Learn from a row summary."""

    def fit_rows(self, rows: RowSummary) -> Self:
        """Fit on a row summary, such as shards summarised apart and joined, and return self.

        Raises:
            InputError: an argument of the constructor is out of range, or the summary lacks what
                the method reads.
        """
        check_arguments(self)
        report = self._fit_rows(rows)
        self.classes_, self.fit_report_ = rows.classes, report
        return self

    def temperatures(self, logits: Array) -> FloatArray:
        """Return the (N,) temperatures that `predict_proba` uses."""
        return 1.0 / self.inverse_temperatures(self._checked(logits))

    def _fit(self, predictions: Predictions) -> FitReport:
        return self._fit_rows(summarize(predictions.scores, predictions.labels, curve="dense"))

    def _apply(self, logits: Array, features: Array | None) -> Array:
        return softmax(logits, self.inverse_temperatures(logits))


@dataclass(eq=False)
class Uncalibrated(Calibrator):
    """The network's own softmax, the control of every comparison."""

    method: ClassVar[str] = "none"
    keeps_prediction: ClassVar[bool] = True

    @property
    def n_parameters(self) -> int:
        """Zero."""
        return 0

    def _fit(self, predictions: Predictions) -> FitReport:
        return FitReport(predictions.n, "none")

    def _apply(self, logits: Array, features: Array | None) -> Array:
        return softmax(logits)
