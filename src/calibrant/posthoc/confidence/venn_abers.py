"""Inductive Venn-Abers prediction of the top label, or of every class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from calibrant.core import numpy_namespace as xnp
from calibrant.core.arrays import Array, FloatArray
from calibrant.core.fit_report import FitReport
from calibrant.posthoc.applying import Learnt
from calibrant.posthoc.array_ops import parted
from calibrant.posthoc.confidence.base import OF_CLASS_1, Steps, class_1
from calibrant.posthoc.confidence.either_form import MapOfEitherForm, exact_softmax
from calibrant.posthoc.facts import CONFIDENCE, Facts
from calibrant.posthoc.state import learnt

# The interval jumps at calibration rows; float32 sums in another order must not miss them. Rounding
# moves the log odds of a confidence so far at most, and the confidence by c (1 - c) times as much.
SAME_LOG_ODDS = 2e-6


@dataclass(eq=False)
class VennAbers(MapOfEitherForm):
    """Isotonic regression twice: as if the new row were wrong, and as if it were right.

    Added to the calibration rows as a wrong one, the new row's isotonic value is p0; as a right one
    it is p1 >= p0. Whatever the distribution, one of the two is calibrated if rows are
    exchangeable: p1 if the prediction turns out right, p0 if not. `intervals` returns both. Their
    width says how few rows the value rests on. As a single number, `predict_confidence` and
    `predict_proba` give p1 / (1 - p0 + p1), which has the least regret in log loss over both
    outcomes and is never 0 or 1, so nothing is mixed in.

    There is one set of calibration rows (IVAP): the cross-fitted form (CVAP) refits the classifier
    for each fold, and here the classifier is given. Neither map ever falls. A confidence whose log
    odds are within 2e-6 of a calibration row's counts as equal to it. Beyond all rows one end of
    the interval is 0 or 1, so few rows give wide intervals and values near 1/2.

    Args:
        form: ``"top-label"`` maps the confidence of the predicted class and keeps it;
            ``"one-vs-rest"`` maps the probability of every class, see `MapOfEitherForm`.

    Attributes:
        knots_: (P,) distinct confidences of the calibration rows, ascending.
        lower_: (P,) p0 from that confidence up to the next.
        upper_: (P,) p1 above the previous one up to that confidence.

    References:
        Vovk, Petej, Fedorova: Large-scale probabilistic predictors with and without guarantees of
        validity. NeurIPS 2015.

    Examples:
        >>> import calibrant as cb
        >>> import numpy as np
        >>> logits = np.log([[0.9, 0.1]] * 9)
        >>> venn_abers = cb.posthoc.VennAbers().fit(logits, [0] * 6 + [1] * 3)
        >>> low, high = venn_abers.intervals(logits[:1])
        >>> low.round(3), high.round(3)  # 6 of 9 were right: with this row 6 or 7 of 10
        (array([0.6]), array([0.7]))
    """

    method: ClassVar[str] = "venn-abers"
    facts: ClassVar[Facts | None] = Facts(
        "Venn-Abers",
        CONFIDENCE,
        "two sorts of N confidences",
        "few rows: the interval of each row is wide, and its middle near isotonic regression",
    )

    knots_: FloatArray = learnt("v")
    lower_: FloatArray = learnt("v", at_least=0, at_most=1)
    upper_: FloatArray = learnt("v", at_least="lower_", at_most=1)

    @property
    def levels(self) -> int:
        """Number of distinct levels of both maps."""
        return len(np.unique(self.lower_)) + len(np.unique(self.upper_))

    def _fit_map(
        self, confidence: FloatArray, correct: FloatArray, weights: FloatArray | None = None
    ) -> FitReport:
        self.knots_, index, count = np.unique(confidence, return_inverse=True, return_counts=True)
        hits = np.bincount(index, correct).round().astype(np.int64)
        self.upper_ = isotonic_with_a_hit(count, hits)
        # Right and wrong, and both directions, exchanged: the same problem.
        self.lower_ = 1 - isotonic_with_a_hit(count[::-1], (count - hits)[::-1])[::-1]
        loss = float(np.mean((self.map_confidence(confidence) - correct) ** 2))
        return FitReport(len(confidence), "closed form", loss)

    def shape(self) -> Steps:
        """Return p1 / (1 - p0 + p1), see `_ends`."""
        lower, upper = self._ends()
        return Steps(lower.edges, upper.values / (1 - lower.values + upper.values))

    def interval_of(self, confidence: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return (N,) p0 and (N,) p1 of (N,) raw confidences."""
        lower, upper = (Steps.read(xnp, confidence, end._asdict()) for end in self._ends())
        return lower, upper

    def _ends(self) -> tuple[Steps, Steps]:
        """Return p0 and p1 as steps: a narrow one at each knot, and one between each two."""
        knots = self.knots_
        # Next to 1 the odds themselves are rounded, by no more than the last digits of c.
        slack = SAME_LOG_ODDS * knots * (1 - knots) + 2 * np.finfo(np.float64).eps
        middle = (knots[:-1] + knots[1:]) / 2
        start = np.maximum(knots - slack, np.append(-np.inf, middle))
        stop = np.minimum(knots + slack, np.append(middle, np.inf))
        edges = np.stack([start, stop], axis=1).ravel()
        # Before all knots p0 is 0, beyond them p1 is 1.
        lower = np.append(0.0, np.repeat(self.lower_, 2))
        upper = np.append(np.repeat(self.upper_, 2), 1.0)
        return Steps(edges, lower), Steps(edges, upper)

    def interval_arrays(self, level: float) -> dict[str, NDArray[Any]] | None:
        """Return p0 and p1 as steps, whatever the level; None in the one-vs-rest form."""
        if self.form != "top-label":
            return None
        lower, upper = self._ends()
        own = {"edges": lower.edges, "lower": lower.values, "upper": upper.values}
        return own | ({OF_CLASS_1: np.array(1.0)} if self.of_event else {})

    def interval(
        self, xp: Any, logits: Array, learnt: Learnt, *, masks: bool = True
    ) -> tuple[Array, Array]:
        """Return p0 and p1; of one event, those of whichever outcome is the likelier."""
        of_event = OF_CLASS_1 in learnt
        if of_event:
            sure = class_1(xp, logits, None, {}, masks=masks)
        else:
            sure = parted(xp, logits).confidence
        piece = xp.searchsorted(learnt["edges"], sure)
        low, high = (xp.take(learnt[end], piece, axis=0) for end in ("lower", "upper"))
        if not of_event:
            return low, high
        likely = high > 1 - low
        return xp.where(likely, low, 1 - high), xp.where(likely, high, 1 - low)

    def intervals(self, logits: Array) -> tuple[FloatArray, FloatArray]:
        """Return the lower and upper ends p0 <= p1 for rows of (N, K) logits.

        They are (N,) in the top-label form and (N, K), for every class, in the other.

        Raises:
            NotFittedError: `fit` has not been called.
            PredictionsError: another number of classes than in `fit`, or a row that isn't finite.
        """
        if self.form == "top-label":
            return self.interval_of(self.raw_confidence(logits)[1])
        probs = exact_softmax(self._checked(logits))
        ends = [part.interval_of(column) for part, column in zip(self.maps(), probs.T, strict=True)]
        lower, upper = np.stack(ends, axis=-1)
        return lower, upper


def isotonic_with_a_hit(count: NDArray[np.int64], hits: NDArray[np.int64]) -> FloatArray:
    """Return, for each of P points in turn, its isotonic value if it had one more hit.

    The isotonic value of point j is the slope, just before W_j, of the greatest convex minorant of
    the running sums (W_i, S_i) of count and hits. One more hit at j moves all earlier points by
    (-1, -1). Going from j to j + 1, one more point is moved; it becomes a corner if it lands below
    the segment over the gap and changes nothing otherwise. So a stack, with the left end of that
    segment on top, serves all points in linear time.

    Args:
        count: (P,) rows of each point. hits: (P,) those that are right.
    """
    width = [0, *np.cumsum(count).tolist()]
    height = [0, *np.cumsum(hits).tolist()]
    stack: list[tuple[int, int]] = []
    for corner in [*zip(width[:0:-1], height[:0:-1], strict=True), (-1, -1)]:
        _push(stack, corner)
    value = np.empty(len(count))
    for j in range(1, len(width)):
        (x, y), (next_x, next_y) = stack[-1], stack[-2]
        value[j - 1] = (next_y - y) / (next_x - x)
        moved = width[j] - 1, height[j] - 1
        if j + 1 < len(width) and ((moved[1] - y) * (next_x - x) < (next_y - y) * (moved[0] - x)):
            stack.pop()
            _push(stack, moved)
    return value


def _push(stack: list[tuple[int, int]], corner: tuple[int, int]) -> None:
    """Put a corner left of all others on top, after taking off those that it hides."""
    while len(stack) >= 2:
        (x, y), (next_x, next_y) = stack[-1], stack[-2]
        if (y - corner[1]) * (next_x - x) < (next_y - y) * (x - corner[0]):
            break
        stack.pop()
    stack.append(corner)
