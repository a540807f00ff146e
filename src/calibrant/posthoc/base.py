"""The contract of every calibrator.

A calibrator is a dataclass: its constructor only stores its arguments, `fit` returns the
calibrator itself, what it has learnt ends in an underscore. Families matter more than methods: a
new method says how it is fitted and gives its family a temperature, a linear map or a map of the
confidence; how that is applied to any kind of array, saved and exported is the family's business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arguments import check_arguments
from calibrant.core.arrays import (
    Array,
    FloatArray,
    IntArray,
    as_array,
    masked_classes,
    namespace,
    row_chunks,
    to_numpy,
)
from calibrant.core.checks import check_features
from calibrant.core.errors import NotApplicableError, NotFittedError, PredictionsError
from calibrant.core.fit_report import FitReport
from calibrant.core.text import counted
from calibrant.core.threads import one_blas_thread
from calibrant.posthoc.applying import apply_map, refuse_tracing
from calibrant.posthoc.contents import Contents
from calibrant.posthoc.estimator import ClassifierOfLogits
from calibrant.posthoc.exporting import Exported
from calibrant.posthoc.needs import fitted_form, lacking, rows_for
from calibrant.posthoc.saving import save
from calibrant.predictions.names import are_words, listed
from calibrant.predictions.predictions import Predictions


@dataclass(eq=False)
class Calibrator(Contents, ClassifierOfLogits, Exported, ABC):
    """A map from logits to probabilities, fitted on held-out rows.

    Class attributes:
        method: its name on the command line and in files.
        keeps_prediction: whether the predicted class of every row is kept by construction.
        weighs: whether `_fit` heeds weights; if not, see `calibrant.posthoc.needs.rows_for`.
        needs: what `fit` needs besides logits and labels: "features" (N, D), which `predict_proba`
            needs as well, and "head", the last layer. See `calibrant.posthoc.needs`.
        fits_masked: whether `fit` takes rows that mask classes with minus infinity. A masked class
            keeps probability 0 and changes nothing for the others.
        fits_top_label: whether it can be fitted to the top-label form, which has no scores of the
            other classes: to "is the predicted label right?" by its confidence.

    Attributes:
        n_classes_: number of classes K it was fitted for.
        classes_: (K,) their numbers, from 0, or their names; what `predict` can return.
        class_names_: their names, if the rows of the fit had some; else None.
        form_: what it was fitted to: ``"rows"`` of scores of classes, ``"binary"`` ones of the
            positive class, or the confidence in a ``"toplabel"``.
        fit_report_: what the fit did.

    Examples:
        >>> import calibrant as cb
        >>> val, test = cb.load_sample("validation"), cb.load_sample("test")
        >>> for method in (cb.TemperatureScaling(), cb.VectorScaling()):
        ...     probs = method.fit(val.logits, val.labels).predict_proba(test.logits)
        ...     kept = bool((probs.argmax(1) == test.logits.argmax(1)).all())
        ...     print(method.method, method.n_parameters, kept, method.keeps_prediction)
        temperature 1 True True
        vector 20 False False
    """

    method: ClassVar[str]
    keeps_prediction: ClassVar[bool]
    needs: ClassVar[tuple[str, ...]] = ()
    fits_masked: ClassVar[bool] = False
    fits_top_label: ClassVar[bool] = False
    weighs: ClassVar[bool] = False

    def fit(
        self,
        logits: Array,
        labels: Array,
        features: Array | None = None,
        *,
        head: tuple[Array, Array] | None = None,
        reference: Array | None = None,
        sample_weight: Array | None = None,
        clusters: Array | None = None,
    ) -> Self:
        """Fit on held-out rows and return the calibrator itself.

        Args:
            logits: (N, K) of any array kind; -inf masks a class that a row can't be. For
                probabilities pass their logarithm (`Predictions.logits` does).
            labels: (N,) true labels in [0, K), or names that a table of logits has for its columns.
            features: (N, D) penultimate features, for methods that need them.
            head: the network's last layer (see `calibrant.Head`), for methods that need it.
            reference: (M, D) features of other rows, for methods that measure distances to them.
            sample_weight, clusters: as `evaluate` takes them; folds keep clusters whole.

        Raises:
            PredictionsError: unusable arrays, or a need that isn't met.
            InputError: an argument of the constructor is out of range.
            NotApplicableError: the method is not meant for such data.
        """
        if logits is None:
            raise PredictionsError("fit needs logits of shape (N, K), got None")
        if labels is None:
            raise PredictionsError("fit needs the true labels of all rows, got None")
        more: dict[str, Any] = {"sample_weight": sample_weight, "clusters": clusters}
        more |= {"head": head, "reference": reference}
        rows = Predictions.from_logits(logits, labels, features, **more)
        self.fit_predictions(rows)
        self.called_ = self.class_names_ if are_words(labels) else None
        return self

    def fit_predictions(self, predictions: Predictions) -> Self:
        """Fit on everything that is known of these held-out rows; see `fit`."""
        self.called_ = None
        self.class_names_ = None if predictions.kind == "toplabel" else predictions.class_names
        rows = self._prepared(predictions)
        with one_blas_thread():
            self.fit_report_ = self._fit(rows)
        if self.n_parameters > rows.n:
            note = (
                f"{counted(rows.n, 'row')} can't determine the {self.n_parameters} parameters of "
                f"'{self.method}'; a method with fewer is safer"
            )
            report = self.fit_report_
            self.fit_report_ = replace(report, notes=tuple(dict.fromkeys((*report.notes, note))))
        return self

    def _prepared(self, predictions: Predictions) -> Predictions:
        """Return the rows as `_fit` takes them, once they and the arguments are fine."""
        reason = self.lacks(predictions)
        if reason is not None:
            raise PredictionsError(f"method '{self.method}' can't be fitted: {reason}")
        check_arguments(self)
        predictions = rows_for(self, predictions)
        rows = predictions.as_event().as_logits()
        if not self.fits_masked:
            self._refuse_masks(rows.scores)
        self.n_classes_, self.form_ = int(rows.scores.shape[1]), fitted_form(predictions)
        return rows

    def lacks(self, predictions: Predictions, *, to_apply: bool = False) -> str | None:
        """Return what `predictions` lack of what `fit` needs, as a clause, or None.

        Args:
            predictions: the rows.
            to_apply: ask about `predict_proba`, which needs less.
        """
        return lacking(self, predictions, to_apply=to_apply)

    @property
    def feature_width(self) -> int | None:
        """Number of features D that it was fitted for; None if it needs none."""
        return None

    def predict_proba(self, logits: Array, features: Array | None = None) -> Array:
        """Return (N, K) calibrated probabilities, of the same array kind as `logits`.

        A single row (K,), with (D,) features, gives (K,).

        Raises:
            NotFittedError: `fit` has not been called.
            PredictionsError: another number of classes or features than in `fit`, or a row that
                isn't finite.
        """
        refuse_tracing(logits)
        rows = as_array(logits)
        if len(rows.shape) == 1:
            beside = None if features is None else as_array(features)[None, ...]
            return self.predict_proba(rows[None, :], beside)[0, :]
        checked = self._checked(rows)
        known = self._checked_features(features, int(checked.shape[0]))
        return apply_map(self.transform, checked, known, self.map_arrays(), self.widest())

    @abstractmethod
    def transform(
        self,
        xp: Any,
        logits: Array,
        features: Array | None,
        learnt: Mapping[str, Array],
        *,
        masks: bool = True,
    ) -> Array:
        """Return (n, K) probabilities: the map as one pure function of arrays.

        Written against the array-API standard, so that NumPy, torch (eager, compiled, exported) and
        graph tracers run the same code. Of `self` it reads the arguments of the constructor and
        which parts there are, never a learnt number. It checks nothing.

        Args:
            xp: array namespace of all arrays.
            logits: (n, K) floats.
            features: (n, D), for methods that need them.
            learnt: what `map_arrays()` returns, as float64 (or integer) arrays of this kind. What
                is combined with (n, K) rows is cast to their type, so that these aren't widened.
            masks: whether a logit may be minus infinity. A caller who knows that none is saves
                passes over the rows.

        Returns:
            Probabilities in the type of `logits`.
        """

    def map_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that `transform` reads, by name; those of parts as ``part/name``."""
        found = self.state()
        for name, part in self.parts().items():
            found |= {f"{name}/{inner}": array for inner, array in part.map_arrays().items()}
        return found

    def widest(self) -> int:
        """Return how many numbers `transform` holds a row, where that is more than K; else 0."""
        return 0

    def apply_predictions(self, predictions: Predictions) -> Predictions:
        """Return the same rows with calibrated probabilities for scores.

        What is known of the rows stays, but for the last layer, which makes other scores.

        Raises:
            PredictionsError: what `predict_proba` refuses, or another form than it was fitted to.
        """
        reason = self.lacks(predictions, to_apply=True)
        if reason is not None:
            raise PredictionsError(f"method '{self.method}' can't be applied: {reason}")
        probs = self.predict_proba(predictions.as_event().logits, predictions.features)
        return predictions.recalibrated(probs)

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
        save(self, path)

    @property
    @abstractmethod
    def n_parameters(self) -> int:
        """Number of fitted parameters."""

    @abstractmethod
    def _fit(self, predictions: Predictions) -> FitReport:
        """Learn from checked predictions."""

    def _refuse_masks(self, logits: Array) -> None:
        for part in row_chunks(logits):
            if masked_classes(logits[part]) is not None:
                raise NotApplicableError(
                    f"method '{self.method}' can't be fitted on rows that mask classes with -inf"
                )

    def _checked(self, logits: Array) -> Array:
        if not hasattr(self, "fit_report_"):
            raise NotFittedError(f"this {type(self).__name__} has not been fitted; call fit first")
        logits = as_array(logits)
        if len(logits.shape) != 2 or logits.shape[1] != self.n_classes_:
            called = f", {listed(self.class_names_)}," if self.class_names_ else ""
            raise PredictionsError(
                f"this {type(self).__name__} was fitted for {self.n_classes_} classes{called} and "
                f"needs logits of shape (N, {self.n_classes_}), not {tuple(logits.shape)}"
            )
        return logits

    def _checked_features(self, features: Array | None, rows: int) -> Array | None:
        if "features" not in self.needs:
            return features
        width = self.feature_width
        shape = f"({rows}, {'D' if width is None else width})"
        if features is None:
            raise PredictionsError(
                f"this {type(self).__name__} needs features of shape {shape} beside the logits"
            )
        known = as_array(features)
        check_features(known, rows, "predict_proba")
        if width is not None and known.shape[1] != width:
            raise PredictionsError(
                f"this {type(self).__name__} was fitted for {width} features and needs 'features' "
                f"of shape {shape}, not {tuple(known.shape)}"
            )
        return known
