"""A reliability diagram in the manner of scikit-learn's displays, with intervals."""

# pyright: basic, reportMissingTypeStubs=false

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted, column_or_1d

from calibrant.core.arrays import FloatArray
from calibrant.core.errors import InputError, PredictionsError
from calibrant.evaluation.uncertainty import DEFAULT_LEVEL
from calibrant.metrics.binned import DEFAULT_BINS
from calibrant.metrics.top_label import TopLabel
from calibrant.predictions.predictions import Predictions
from calibrant.report.figures import Strategy, reliability_of_rows


class ReliabilityDisplay:
    """How often an event happens at each predicted probability, with intervals.

    With two classes the event is the positive class, as in scikit-learn's `CalibrationDisplay`.
    With more classes it is that the most probable class is right, or that the class is `pos_label`.
    Make it with `from_estimator` or `from_predictions`.

    Args:
        rows: the predicted probability of each row and whether the event happened, sorted.
        event: its name on the axis.
        name: name of the classifier in the legend.

    Attributes:
        ax_, figure_: the axes and figure of `plot`.

    Examples:
        >>> from calibrant.sklearn import ReliabilityDisplay
        >>> y_true, y_prob = [0, 0, 1, 1, 1, 0], [0.1, 0.3, 0.7, 0.9, 0.6, 0.4]
        >>> shown = ReliabilityDisplay.from_predictions(y_true, y_prob, strategy="smooth")
        >>> shown.ax_.get_xlabel()
        'Probability of class 1'
    """

    def __init__(self, rows: TopLabel, event: tuple[str, str], name: str | None = None) -> None:
        self.rows = rows
        self.event = event
        self.name = name

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: Any, *, pos_label: Any = None, **plot: Any
    ) -> Self:
        """Draw the diagram of a fitted classifier.

        Args:
            estimator: a fitted classifier with `predict_proba`.
            X: (N, D) rows that it wasn't fitted to.
            y: (N,) labels.
            pos_label: class of the event.
            plot: what `plot` takes.

        Raises:
            InputError: a classifier without `predict_proba`, or no such class.
        """
        check_is_fitted(estimator)
        if not hasattr(estimator, "predict_proba"):
            raise InputError(
                f"{type(estimator).__name__} has no predict_proba; wrap it in "
                "calibrant.sklearn.Calibrated"
            )
        plot.setdefault("name", type(estimator).__name__)
        probs = estimator.predict_proba(X)
        return cls.from_predictions(
            y, probs, pos_label=pos_label, classes=estimator.classes_, **plot
        )

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_prob: Any,
        *,
        pos_label: Any = None,
        classes: Any = None,
        name: str | None = None,
        **plot: Any,
    ) -> Self:
        """Draw the diagram of predictions.

        Args:
            y_true: (N,) labels.
            y_prob: (N,) probabilities of the positive class, or (N, K) of all.
            pos_label: class of the event; by default the second of two classes, or with more
                classes the predicted class of each row.
            classes: (K,) labels of the columns; sorted `y_true` by default.
            name: name of the classifier in the legend.
            plot: what `plot` takes.

        Raises:
            InputError: another number of classes than columns, or no such class.
            PredictionsError: numbers that are no probabilities.
        """
        labels = column_or_1d(y_true)
        known = np.unique(labels) if classes is None else np.asarray(classes)
        probs = np.asarray(y_prob, dtype=np.float64)
        return cls(*_rows(labels, probs, known, pos_label), name=name).plot(**plot)

    def plot(
        self,
        ax: Any = None,
        *,
        n_bins: int = DEFAULT_BINS,
        strategy: Strategy = "uniform",
        level: float = DEFAULT_LEVEL,
        name: str | None = None,
        color: str | None = None,
        hollow: bool = False,
    ) -> Self:
        """Draw points with Wilson intervals, or with ``strategy="smooth"`` a curve with its band.

        Args:
            ax: matplotlib axes; new ones by default.
            n_bins: how many points at most.
            strategy: ``"uniform"`` for bins of equal width, ``"quantile"`` for as many rows in
                each, ``"smooth"`` for a curve without bins.
            level: coverage of the intervals or the band.
            name: for the legend.
            color: of the points.
            hollow: draw empty points and a dashed curve.

        Raises:
            InputError: no such strategy.
        """
        style = {} if color is None else {"color": color}
        label = name or self.name
        ax = reliability_of_rows(
            self.rows,
            ax,
            level=level,
            strategy=strategy,
            n_bins=n_bins,
            label=label,
            hollow=hollow,
            **style,
        )
        ax.set(xlabel=self.event[0], ylabel=self.event[1])
        if label is not None:
            ax.legend(frameon=False, loc="upper left")
        self.ax_, self.figure_ = ax, ax.figure
        return self


def _rows(
    labels: NDArray[Any], probs: FloatArray, classes: NDArray[Any], pos_label: Any
) -> tuple[TopLabel, tuple[str, str]]:
    """Return the rows of the event and what the axes call it."""
    if probs.ndim == 1:
        if len(classes) > 2:
            raise InputError(
                f"one probability a row is for two classes, but y_true holds {len(classes)}"
            )
        position = _position(classes, pos_label, -1)
        return _one_class(labels, probs, classes[position])
    if probs.ndim != 2 or probs.shape[1] != len(classes):
        raise InputError(
            f"y_prob of shape {probs.shape} doesn't fit {len(classes)} classes; give the "
            "labels of its columns as classes"
        )
    if not np.isin(labels, classes).all():
        odd = labels[~np.isin(labels, classes)][0]
        raise InputError(f"y_true holds '{odd!s}', which is none of the classes")
    order = np.argsort(classes, kind="stable")
    truth = order[np.searchsorted(classes, labels, sorter=order)]
    Predictions.from_probs(probs, truth, source="y_prob")
    if len(classes) == 2 or pos_label is not None:
        position = _position(classes, pos_label, -1)
        return _one_class(labels, probs[:, position], classes[position])
    rows = TopLabel.sort(probs.max(axis=1), probs.argmax(axis=1) == truth)
    return rows, ("Confidence", "Accuracy")


def _one_class(
    labels: NDArray[Any], probs: FloatArray, label: Any
) -> tuple[TopLabel, tuple[str, str]]:
    if len(labels) != len(probs) or not ((probs >= 0) & (probs <= 1)).all():
        raise PredictionsError(
            f"y_prob must be {len(labels)} probabilities, one for each of y_true"
        )
    rows = TopLabel.sort(probs, labels == label)
    return rows, (f"Probability of class {label!s}", f"Share of class {label!s}")


def _position(classes: NDArray[Any], pos_label: Any, default: int) -> int:
    if pos_label is None:
        return default
    found = np.flatnonzero(classes == pos_label)
    if len(found) != 1:
        raise InputError(f"pos_label {pos_label!r} is none of the classes")
    return int(found[0])
