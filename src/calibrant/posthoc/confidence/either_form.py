"""Maps of the confidence alone or of every class's probability; shrinkage of small bins."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, FloatArray, IntArray, masked_classes, to_numpy
from calibrant.core.fit_report import FitReport
from calibrant.posthoc.applying import Learnt, apply_map
from calibrant.posthoc.array_ops import as_type, columns, softmax, sums, zero_where_masked
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.confidence.base import APART, ConfidenceMap, mixed_with_uniform
from calibrant.posthoc.state import FittedForm, by_instance, learnt
from calibrant.predictions.predictions import Predictions

Form = Literal["top-label", "one-vs-rest"]
NOTES: dict[Form, str] = {
    "top-label": "top-label form: one map of the confidence",
    "one-vs-rest": "one-vs-rest form: a map for each class, which may change predictions",
}


def _keeps_prediction(fitted: MapOfEitherForm) -> bool:
    return fitted.form_ == "toplabel" or (fitted.form == "top-label" and fitted.form_ == "rows")


@dataclass(eq=False)
class MapOfEitherForm(ConfidenceMap):
    """Family: a map of the confidence, or one map for each class.

    In the one-vs-rest form the k-th map is fitted to "is k the true class?" by p_k over all rows
    that don't mask k, and the K mapped probabilities of a row are divided by their sum (a row of
    zeros stays what it was). It sees each class, where the top-label form sees the predicted one
    only; but it rests on few rows of each class, and the predicted class may change.
    """

    keeps_prediction: ClassVar[bool] = by_instance(True, _keeps_prediction)

    _: KW_ONLY
    form: Form = argument("top-label", choices=("top-label", "one-vs-rest"))

    parts_: IntArray = learnt("p", "n", at_least=1)

    @property
    @abstractmethod
    def levels(self) -> int:
        """Number of values that one map takes."""

    @property
    def n_parameters(self) -> int:
        """Number of values that the map takes, or all maps together."""
        if self.form == "top-label":
            return self.levels
        return sum(part.levels for part in self.maps())

    def maps(self) -> list[Self]:
        """Return the fitted maps as calibrators of the top-label form: one, or one for each class.

        The state of the maps lies end to end; row k of `parts_` says how long each piece is.
        """
        ends = np.cumsum(self.parts_, axis=0)
        found: list[Self] = []
        for start, stop in zip((ends - self.parts_).tolist(), ends.tolist(), strict=True):
            part = self._map()
            for name, low, high in zip(self._of_a_map(), start, stop, strict=True):
                setattr(part, name, getattr(self, name)[low:high])
            found.append(part)
        return found

    @classmethod
    def _of_a_map(cls) -> list[str]:
        return [name for name in cls.state_names() if name != "parts_"]

    def _map(self) -> Self:
        part = replace(self, form="top-label")
        part.n_classes_, part.form_ = self.n_classes_, "rows"
        return part

    def _fit(self, predictions: Predictions) -> FitReport:
        if self.form == "top-label":
            report = super()._fit(predictions)
            self._join([self])
        else:
            report = self._fit_classes(predictions)
        if self.of_event and self.form == "top-label":
            return report
        return report.noting(NOTES[self.form])

    def fit_confidences(
        self, confidence: FloatArray, correct: FloatArray, n_classes: int, form: FittedForm
    ) -> Self:
        """Fit the top-label form; see `ConfidenceMap.fit_confidences`."""
        super().fit_confidences(confidence, correct, n_classes, form)
        self._join([self])
        if not self.of_event:
            self._note(NOTES[self.form])
        return self

    def _fit_classes(self, predictions: Predictions) -> FitReport:
        probs = exact_softmax(predictions.scores).T
        masked = masked_classes(predictions.scores)
        kept = None if masked is None else ~to_numpy(masked).T
        maps: list[Self] = []
        reports: list[FitReport] = []
        for k, column in enumerate(probs):
            hit, weights = predictions.labels == k, predictions.weights
            if kept is not None and kept[k].any():
                column, hit = column[kept[k]], hit[kept[k]]
                weights = None if weights is None else weights[kept[k]]
            order = np.argsort(column, kind="stable")
            maps.append(self._map())
            weights = None if weights is None else weights[order]
            hits = hit[order].astype(np.float64)
            reports.append(maps[-1]._fit_map(column[order], hits, weights))
        self._join(maps)
        value = float(np.mean([report.value for report in reports]))
        return replace(reports[0], n=predictions.n, value=value)

    def _join(self, maps: list[Self]) -> None:
        names = self._of_a_map()
        pieces = [[getattr(part, name) for part in maps] for name in names]
        self.parts_ = np.array([[len(piece) for piece in row] for row in pieces]).T
        for name, row in zip(names, pieces, strict=True):
            setattr(self, name, np.concatenate(row))

    def map_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the numbers of the map's shape, or of all maps side by side."""
        if self.form == "top-label":
            return super().map_arrays()
        shapes: list[Any] = [part.shape() for part in self.maps()]
        return shapes[0].side_by_side(shapes)._asdict()

    def transform(
        self, xp: Any, logits: Array, features: Array | None, learnt: Learnt, *, masks: bool = True
    ) -> Array:
        """Return rows rebuilt around c', or mapped probabilities over their sum."""
        if self.form == "top-label":
            return super().transform(xp, logits, features, learnt, masks=masks)
        before = _wide_softmax(xp, logits, None, {}, masks=masks)
        places = before + APART * xp.astype(columns(xp, logits), xp.float64)
        after = xp.reshape(self.mapped(xp, xp.reshape(places, (-1,)), learnt), before.shape)
        after = zero_where_masked(xp, logits, after, masks)
        total = sums(xp, after)[:, None]
        some = total > 0
        after = xp.where(some, after / xp.where(some, total, xp.ones_like(total)), before)
        return as_type(xp, after, logits)

    def _confidences(self, logits: Array, features: Array | None) -> tuple[IntArray, FloatArray]:
        """Return the (N,) predicted labels and their (N,) recalibrated probabilities.

        In the top-label form they may lie below 1 / K, unlike those of `predict_proba`.
        """
        if self.form == "top-label":
            return super()._confidences(logits, features)
        return Calibrator._confidences(self, logits, features)


def exact_softmax(logits: Array) -> FloatArray:
    """Return the (N, K) softmax as float64 NumPy, to the last digits of it.

    Maps jump, and next to 1 a float32 probability can't tell on which side of a jump it lies.
    """
    return apply_map(_wide_softmax, to_numpy(logits), None, {})


def _wide_softmax(xp: Any, logits: Array, features: None, learnt: Learnt, *, masks: bool) -> Array:
    return softmax(xp, xp.astype(logits, xp.float64))


# Rows that a bin is taken to hold besides its own, as in Laplace's rule of succession. As a prior,
# it expects the bins' rates to vary by m (1 - m) / (1 + 2): a third of what is possible.
PRIOR_STRENGTH = 2.0
# Against the rest, a class nearly fills its bin or is hardly there: two thirds of what is possible.
SHARE_OF_ONE_CLASS = 1 / 4


@dataclass(eq=False)
class ShrunkMap(MapOfEitherForm):
    """Family: a map of either form whose bins are drawn towards each other (`shrunk`)."""

    _: KW_ONLY
    prior_strength: float = argument(PRIOR_STRENGTH, at_least=0)

    def _map(self) -> Self:
        part = super()._map()
        if self.form == "one-vs-rest":
            part.prior_strength = SHARE_OF_ONE_CLASS * self.prior_strength
        return part


def shrunk(value: FloatArray, rows: NDArray[Any], strength: float, classes: int) -> FloatArray:
    """Return the hit rates of bins, each drawn towards their common centre m.

    value_b becomes (n_b value_b + s m) / (n_b + s), as if s more rows lay in each bin, a share m of
    them right. The mean over all rows stays the rate of all hits if

        m = sum_b w_b value_b / sum_b w_b,  w_b = n_b / (n_b + s),

    which is that rate itself where bins are of one size. (With m = 1 / K each bin would be biased,
    and all in one direction.) Then all are mixed with 1 / K at weight 1 / (N + 1), lest bins
    without a single miss in all N rows say 1. Empty bins keep their value.

    Args:
        value: (B,) share of hits in each bin.
        rows: (B,) rows n_b of each.
        strength: s, in rows; 0 leaves the values as they are, 0 and 1 included.
        classes: number of classes K.
    """
    if strength == 0:
        return value
    weight = rows / (rows + strength)
    centre = weight @ value / weight.sum()
    drawn = mixed_with_uniform(weight * value + (1 - weight) * centre, float(rows.sum()), classes)
    return np.where(rows > 0, drawn, value)


class Blocks(NamedTuple):
    """A rising step function over points: (B,) first and last point of each step, and its level."""

    first: IntArray
    last: IntArray
    level: FloatArray


def rising_blocks(share: FloatArray, rows: NDArray[Any], strength: float, classes: int) -> Blocks:
    """Return the isotonic regression of (P,) hit rates, after `shrunk` still rising.

    Steps of very different size may be tilted; those are pooled by their rows.
    """
    from scipy.optimize import isotonic_regression

    fit = isotonic_regression(share, weights=rows)
    first, last = np.asarray(fit.blocks[:-1]), np.asarray(fit.blocks[1:]) - 1
    mass = np.add.reduceat(rows, first)
    drawn = shrunk(np.asarray(fit.x)[first], mass, strength, classes)
    level = np.asarray(isotonic_regression(drawn, weights=mass).x, dtype=np.float64)
    return Blocks(first, last, level)
