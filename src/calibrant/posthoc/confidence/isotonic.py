"""Isotonic regression of the top label, of every class, of all classes; Venn-Abers prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core import numpy_namespace as xnp
from calibrant.core.arguments import argument
from calibrant.core.arrays import (
    Array,
    FloatArray,
    masked_classes,
    namespace,
    row_chunks,
    to_numpy,
    working_dtype,
)
from calibrant.core.fit_report import FitReport
from calibrant.core.weights import mean, times
from calibrant.posthoc.applying import Learnt
from calibrant.posthoc.array_ops import (
    as_type,
    largest,
    lines,
    over,
    parted,
    replaced,
    softmax,
    sums,
    top,
    zero_where_masked,
)
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.confidence.base import OF_CLASS_1, SEPARATION, Lines, Steps, class_1
from calibrant.posthoc.confidence.either_form import (
    PRIOR_STRENGTH,
    MapOfEitherForm,
    ShrunkMap,
    exact_softmax,
    rising_blocks,
)
from calibrant.posthoc.facts import CONFIDENCE, SORT, Facts
from calibrant.posthoc.state import learnt
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax_chunk


@dataclass(eq=False)
class IsotonicRegression(ShrunkMap):
    """The non-decreasing map of the confidence that fits the correctness best in squares.

    A step function by pool-adjacent-violators, constant beyond the rows it was fitted on and
    interpolated between blocks. Nonparametric: it needs hundreds of rows. Blocks are drawn towards
    their common centre as the bins of `HistogramBinning` are, and pooled again where that puts them
    out of order; the mean confidence stays the accuracy.

    Centred isotonic regression puts each block at one point, the mean of its rows' confidences, and
    draws straight lines between these: the map rises strictly between the first and the last, makes
    no ties there, and its mean confidence may leave the accuracy a little. Blocks at 0 and 1 stay.

    Args:
        form: ``"top-label"`` maps the confidence of the predicted class and keeps it;
            ``"one-vs-rest"`` maps the probability of every class, see `MapOfEitherForm`.
        centred: take centred isotonic regression.
        prior_strength: weight of that centre, in rows a block, and a quarter of it in the
            one-vs-rest form. 0 is the map as published, which says 0 and 1.

    Attributes:
        knots_: (B,) confidences at the ends of the blocks, or their middles, ascending;
        values_: (B,) the map there.

    References:
        Zadrozny & Elkan, KDD 2002. Centred: Oron & Flournoy, Statistics in Biopharmaceutical
        Research 2017.

    Examples:
        >>> import calibrant as cb
        >>> import numpy as np
        >>> logits = np.log([[0.6, 0.4]] * 500 + [[0.9, 0.1]] * 500)
        >>> labels = [0] * 400 + [1] * 100 + [0] * 300 + [1] * 200  # 80 % right, then 60 %
        >>> isotonic = cb.posthoc.IsotonicRegression().fit(logits, labels)
        >>> isotonic.predict_confidence(logits[[0, -1]])[1].round(2)  # can't fall: the mean
        array([0.7, 0.7])
    """

    method: ClassVar[str] = "isotonic"
    facts: ClassVar[Facts | None] = Facts(
        "isotonic regression",
        CONFIDENCE,
        SORT,
        "few rows: its steps follow noise; it makes ties, and doesn't fit the other classes",
    )
    weighs: ClassVar[bool] = True

    centred: bool = argument(False)

    knots_: FloatArray = learnt("v")
    values_: FloatArray = learnt("v", at_least=0, at_most=1)

    @property
    def levels(self) -> int:
        """Number of distinct levels."""
        return len(np.unique(self.values_))

    def _fit_map(
        self, confidence: FloatArray, correct: FloatArray, weights: FloatArray | None = None
    ) -> FitReport:
        knots, index, count = np.unique(confidence, return_inverse=True, return_counts=True)
        if weights is not None:
            count = np.bincount(index, weights)
        share = np.bincount(index, times(correct, weights)) / count
        first, last, level = rising_blocks(share, count, self.prior_strength, self.n_classes_)
        block = np.repeat(np.arange(len(first)), last - first + 1)
        ends = np.unique(np.concatenate([first, last]))
        self.knots_, self.values_ = knots[ends], level[block[ends]]
        if self.centred:
            self.knots_, self.values_ = _middles(knots, count, level[block])
        loss = mean((np.interp(knots, self.knots_, self.values_)[index] - correct) ** 2, weights)
        return FitReport(len(confidence), "squared error", loss)

    def shape(self) -> Lines:
        """Return the values at the knots."""
        return Lines(self.knots_, self.values_)


def _middles(
    places: FloatArray, count: NDArray[Any], level: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return where each block of equal levels has its middle, and its level; see `centred`.

    Args:
        places: (P,) ascending; count: (P,) what each weighs; level: (P,) of the block it is in.
    """
    first = np.flatnonzero(np.diff(level, prepend=-1.0))
    last = np.append(first[1:], len(level)) - 1
    mass = np.add.reduceat(count, first)
    middle = np.add.reduceat(count * places, first) / mass
    sure = (level[first] <= 0) | (level[first] >= 1)
    ends = np.stack([np.where(sure, places[first], middle), np.where(sure, places[last], middle)])
    knots, kept = np.unique(ends.T.ravel(), return_index=True)
    return knots, np.repeat(level[first], 2)[kept]


# Slope of the line that is added to the steps: equal only where the probabilities were.
TILT = 1e-9


@dataclass(eq=False)
class MulticlassIsotonic(Calibrator):
    """One isotonic regression of 1[y_i = k] on p_ik over all N * K pairs, rows normalised.

    q_ik is proportional to iso(p_ik) + 1e-9 p_ik. The map is the same for all classes and rises
    strictly, so every row keeps the order of its classes. The predicted class is raised by a
    millionth of itself: classes that share a block would otherwise be equal in float32. With all
    classes pooled, hardly any level depends on few rows; but the map assumes that a probability
    means the same for every class and rank.

    Blocks are drawn towards their common centre as the bins of `HistogramBinning` are, and pooled
    again where that puts them out of order; the mean over all pairs stays the share of true ones.
    The map is a line between blocks and constant beyond. Nothing of size N * K is kept in the fit:
    probabilities of wrong classes that lie between two of true classes share a block, so counts and
    ends of those runs are enough, exactly.

    Args:
        prior_strength: weight of that centre, in pairs a block; 0 leaves blocks at 0 and 1, as
            published.

    Attributes:
        knots_: (B,) probabilities at the ends of the blocks, ascending.
        values_: (B,) the map there.

    References:
        Zhang, Kailkhura, Han: Mix-n-Match. ICML 2020 (its IRM).

    Examples:
        >>> import calibrant as cb
        >>> val, test = cb.load_sample("validation"), cb.load_sample("test")
        >>> probs = cb.posthoc.MulticlassIsotonic().fit_predictions(val).predict_proba(test.logits)
        >>> bool((probs.argmax(1) == test.logits.argmax(1)).all())  # no prediction changes
        True
        >>> from calibrant.metrics import negative_log_likelihood
        >>> [f"{negative_log_likelihood(said, test.labels):.2f}" for said in (test.probs, probs)]
        ['0.52', '0.47']
    """

    method: ClassVar[str] = "irm"
    facts: ClassVar[Facts | None] = Facts(
        "multiclass isotonic",
        "one map for all classes",
        "a sort of N x K probabilities",
        "classes that are wrong in different ways: they share one curve",
    )
    keeps_prediction: ClassVar[bool] = True
    fits_masked: ClassVar[bool] = True

    prior_strength: float = argument(PRIOR_STRENGTH, at_least=0)

    knots_: FloatArray = learnt("v")
    values_: FloatArray = learnt("v", at_least=0, at_most=1)

    @property
    def n_parameters(self) -> int:
        """Number of distinct levels."""
        return len(np.unique(self.values_))

    def _fit(self, predictions: Predictions) -> FitReport:
        runs = summarize_pairs(predictions.scores, predictions.labels)
        count, mean = runs.pairs, runs.hits / runs.pairs
        first, last, steps = rising_blocks(mean, count, self.prior_strength, self.n_classes_)
        ends = np.stack([runs.low[first], runs.high[last]], axis=1).ravel()
        self.knots_, kept = np.unique(ends, return_index=True)
        self.values_ = np.repeat(steps, 2)[kept]
        value = np.repeat(steps, last - first + 1)
        squares = count @ (value * value - 2 * value * mean + mean)
        loss = float(squares / count.sum())
        return FitReport(predictions.n, "squared error of all pairs", loss)

    def map_probability(self, probability: FloatArray) -> FloatArray:
        """Return what the map makes of probabilities of any shape, before rows are normalised."""
        return _raised(xnp, probability.ravel(), self.state()).reshape(probability.shape)

    def transform(
        self, xp: Any, logits: Array, features: Array | None, learnt: Learnt, *, masks: bool = True
    ) -> Array:
        """Return mapped probabilities over their sum, that of the top class lifted a little."""
        probs = xp.astype(softmax(xp, logits), xp.float64)
        raised = xp.reshape(_raised(xp, xp.reshape(probs, (-1,)), learnt), probs.shape)
        index = top(xp, logits)[0]
        raised = replaced(xp, raised, index, largest(xp, raised) * (1 + SEPARATION))
        raised = zero_where_masked(xp, logits, raised, masks)
        return as_type(xp, over(xp, raised, sums(xp, raised)[:, None]), logits)


def _raised(xp: Any, probability: Array, learnt: Learnt) -> Array:
    line = lines(xp, probability, learnt["knots_"], learnt["values_"])
    return line + TILT * probability


class PairRuns(NamedTuple):
    """All N * K pairs in ascending order, summed over runs that isotonic regression never parts.

    All are (P,): the number of pairs, how many are of the true class, lowest and highest
    probability.
    """

    pairs: FloatArray
    hits: FloatArray
    low: FloatArray
    high: FloatArray


def summarize_pairs(logits: Array, labels: Array) -> PairRuns:
    """Return the runs of (N, K) logits with (N,) labels, in two passes and O(N) memory.

    A run is one of the true classes' probabilities, with all that equal it, or all others between
    two of them. Masked classes are left out.
    """
    xp, dtype = namespace(logits), working_dtype(logits)
    rows, truth = int(logits.shape[0]), to_numpy(labels)

    def chunks(part: slice) -> FloatArray:
        return to_numpy(_probabilities(xp.astype(logits[part], dtype, copy=False), part))

    of_truth = np.empty(rows)
    for part in row_chunks(logits):
        probs = chunks(part)
        of_truth[part] = probs[np.arange(len(probs)), truth[part]]
    points, hits = np.unique(of_truth, return_counts=True)
    tied, between = np.zeros(len(points)), np.zeros(len(points) + 1)
    low, high = np.full(len(between), np.inf), np.full(len(between), -np.inf)
    for part in row_chunks(logits):
        probs, masked = chunks(part), masked_classes(logits[part])
        flat = probs.ravel() if masked is None else probs[~to_numpy(masked)]
        flat = np.sort(flat).astype(np.float64)
        left = np.searchsorted(flat, points, side="left")
        right = np.searchsorted(flat, points, side="right")
        tied += right - left
        start, stop = np.append(0, right), np.append(left, len(flat))
        filled = np.flatnonzero(stop > start)
        between += stop - start
        low[filled] = np.minimum(low[filled], flat[start[filled]])
        high[filled] = np.maximum(high[filled], flat[stop[filled] - 1])

    def woven(even: FloatArray, odd: FloatArray) -> FloatArray:
        out = np.empty(len(even) + len(odd))
        out[::2], out[1::2] = even, odd
        return out

    count = woven(between, tied)
    some = count > 0
    all_hits = woven(np.zeros(len(between)), hits.astype(np.float64))
    return PairRuns(
        count[some], all_hits[some], woven(low, points)[some], woven(high, points)[some]
    )


def _probabilities(chunk: Array, part: slice) -> Array:
    return softmax_chunk(chunk - namespace(chunk).max(chunk, axis=1, keepdims=True), part)


# The interval jumps at calibration rows; float32 sums in another order must not miss them. Rounding
# moves the log odds of a confidence so far at most, and the confidence by c (1 - c) times as much.
SAME_LOG_ODDS = 2e-6


@dataclass(eq=False)
class VennAbers(MapOfEitherForm):
    """Isotonic regression twice: as if the new row were wrong, and as if it were right.

    Added to the calibration rows as a wrong one, the new row's isotonic value is p0; as a right one
    it is p1 >= p0. Whatever the distribution, one of the two is calibrated if rows are
    exchangeable: p1 if the prediction turns out right, p0 if not. `intervals` returns both. A wide
    interval means that few rows support the value. As a single number, `predict_confidence` and
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
        """Return p0 and p1; for a single event, those of the likelier outcome."""
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
