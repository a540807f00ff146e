"""A calibrator for each of many labels."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from calibrant.core.arrays import Array, IntArray, like, namespace, to_numpy
from calibrant.core.errors import NotApplicableError, PredictionsError
from calibrant.core.fit_report import FitReport
from calibrant.posthoc.applying import Learnt
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.predictions import Predictions


@dataclass(eq=False)
class PerLabel(Calibrator):
    """Recalibrates each of many labels by its own calibrator, fitted to its rows only.

    One calibrator for all labels, fitted to the pooled rows, needs fewer rows; any method does that
    with `fit_predictions` of many labels. Held-out rows show which is better.

    Args:
        base: method of all calibrators, with its default arguments; `like` takes others.

    Attributes:
        by_label_: fitted calibrators by label.

    Examples:
        >>> import numpy as np
        >>> import calibrant as cb
        >>> rng = np.random.default_rng(0)
        >>> true = rng.random((2_000, 2))
        >>> labels = rng.random((2_000, 2)) < true * [1.0, 0.5]
        >>> rows = cb.Predictions.from_many_labels(true, labels)
        >>> after = cb.posthoc.PerLabel("beta").fit_predictions(rows).apply_predictions(rows)
        >>> after
        <Predictions 'many labels': 2000 rows x 2 labels, prob>
    """

    method: ClassVar[str] = "per-label"
    keeps_prediction: ClassVar[bool] = False
    part_names: ClassVar[tuple[str, ...]] = ("by_label_",)

    base: str = "platt"

    _like: Calibrator | None = field(default=None, init=False, repr=False)
    by_label_: dict[str, Calibrator] = field(init=False, repr=False)

    @classmethod
    def like(cls, calibrator: Calibrator) -> Self:
        """Return one whose calibrators have the method and the arguments of this one."""
        made = cls(calibrator.method)
        made._like = calibrator
        return made

    def _fit_memory(self, predictions: Predictions) -> None:
        names = predictions.label_names
        if names is None:
            raise PredictionsError(
                f"{predictions.source}: has no rows with many labels; make them with "
                "Predictions.from_many_labels, or read them with kind='many-labels'"
            )
        pattern = self._like or make_calibrator(self.base)
        self.by_label_, self.class_names_ = {}, None
        for place, name in enumerate(names):
            part = type(pattern)(**pattern.get_params())
            self.by_label_[_key(name)] = part.fit_predictions(predictions.of_label(place))
        reports = [part.fit_report_ for part in self.by_label_.values()]
        self.n_classes_, self.form_ = 2, "binary"
        self.fit_report_ = FitReport(
            predictions.n,
            reports[0].objective,
            float(np.mean([report.value for report in reports])),
            sum(report.iterations for report in reports),
            all(report.converged for report in reports),
            tuple(dict.fromkeys(note for report in reports for note in report.notes)),
        )

    def _applied(self, predictions: Predictions) -> Predictions:
        names, index = predictions.label_names, predictions.label_index
        known = list(self.by_label_)
        if names is None or index is None or [*map(_key, names)] != known:
            raise PredictionsError(
                f"{predictions.source}: this calibrator was fitted to the labels "
                f"{', '.join(known)}, and these are others"
            )
        logits = predictions.logits
        probs = np.empty((predictions.n, 2))
        for place, part in enumerate(self.by_label_.values()):
            rows = np.flatnonzero(index == place)
            probs[rows] = to_numpy(part.predict_proba(_taken(logits, rows), kind="logits"))
        return predictions.recalibrated(probs)

    @property
    def n_parameters(self) -> int:
        """Number of parameters of all calibrators."""
        return sum(part.n_parameters for part in self.by_label_.values())

    def _fit(self, predictions: Predictions) -> FitReport:
        raise NotImplementedError

    def transform(
        self, xp: Any, logits: Array, features: Array | None, learnt: Learnt, *, masks: bool = True
    ) -> Array:
        """Refuse: which label a row is about is no part of its logits.

        Raises:
            NotApplicableError: always; `apply_predictions` knows the labels.
        """
        raise NotApplicableError(
            "a calibrator for each label needs to know the label of every row: use "
            "apply_predictions with Predictions.from_many_labels"
        )

    @classmethod
    def state_names(cls) -> tuple[str, ...]:
        """Return nothing: all is in the parts."""
        return ()

    def parts(self) -> dict[str, Calibrator]:
        """Return the fitted calibrators by label."""
        return dict(self.by_label_)

    @classmethod
    def wanted_parts(cls, found: Collection[str]) -> str | None:
        """Return what is missing if there is no label, or None."""
        return None if found else "a calibrator for each label"

    def restore_parts(self, parts: dict[str, Calibrator]) -> None:
        """Take over fitted calibrators by label."""
        self.by_label_ = dict(parts)


def _key(name: str) -> str:
    """Return what a label is called in a file, in which / parts names."""
    return name.replace("/", "|")


def _taken(logits: Array, rows: IntArray) -> Array:
    return namespace(logits).take(logits, like(rows, logits), axis=0)
