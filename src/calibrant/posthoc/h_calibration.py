"""One rising map of log-probabilities for all classes, fitted to what calibration error is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, FloatArray, IntArray, to_numpy
from calibrant.core.errors import BoundaryWarning
from calibrant.core.fit_report import FitReport
from calibrant.posthoc.applying import Learnt, apply_map
from calibrant.posthoc.array_ops import (
    as_type,
    below_top,
    softmax_of_own,
    still_masked,
    sums,
    zero_where_masked,
)
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.facts import Facts
from calibrant.posthoc.fitting.minimizing import minimize
from calibrant.posthoc.state import learnt
from calibrant.predictions.predictions import Predictions

# Where the map's last bend lies, in nats; bends halve from there towards 0.
LAST_BEND = 16.0
# Below this a window's error counts as its square, so that there is a gradient everywhere.
SMOOTH = 1e-2
# Lest classes become equal.
LEAST_SLOPE = 1e-2
SMALL_SLOPE, FLAT = 1e-9, 1e-15


@dataclass(eq=False)
class HCalibration(Calibrator):
    """q_k proportional to exp(-h(-log p_k)), h rising and piecewise linear, by pooled errors.

    p is the softmax of z / T, T by likelihood, and h has a slope of at least .01 in each segment,
    so that the order of a row's classes is kept. All N K pairs of a row and a class are sorted by p
    and cut into windows of neighbours; e_w is the mean of q - 1[true class] in one. The slopes
    minimise

        mean over bins of p (mean in a bin of max(|e_w| - epsilon, 0)) + ridge / N |slope - 1|^2

    where `n_bins` bins are of equal width, so that the many pairs near 0 don't drown the others.
    Near 0 the absolute value is rounded off. Unlike a likelihood it rewards nothing but
    calibration, of all classes pooled. Where K is large the pairs of one bin near 0 have a
    fifteenth of the weight and nearly all of the likelihood, which may rise.

    Args:
        segments: of h; it bends at 16 nats, 8, 4 and so on.
        window: pairs in each.
        n_bins: see above.
        epsilon: error of a window that costs nothing.
        ridge: strength of the pull towards temperature scaling.
        max_iterations: bound on L-BFGS steps.

    Attributes:
        beta_: 1 / T; slopes_: (S,) of h.

    References:
        Huang, Cao, Xia, Chen, Wang, Zhang: h-calibration. IEEE TPAMI 2025. There windows overlap
        and are sorted anew at every step of Adam, bins are clusters, each class's rows are left out
        in turn, and 20 segments are 5 nats wide.

    Examples:
        >>> import calibrant as cb
        >>> val, test = cb.load_sample("validation"), cb.load_sample("test")
        >>> errors = []
        >>> for method in (cb.posthoc.Uncalibrated(), cb.posthoc.HCalibration()):
        ...     probs = method.fit_predictions(val).predict_proba(test.logits)
        ...     errors.append(cb.metrics.expected_calibration_error(probs, test.labels))
        >>> errors[1] < errors[0] / 3
        True
    """

    method: ClassVar[str] = "h-calibration"
    facts: ClassVar[Facts | None] = Facts(
        "h-calibration",
        "one map for all classes",
        "tens of passes over N x K",
        "with many classes its likelihood, which it doesn't aim at; with few rows its windows are "
        "noise",
    )
    keeps_prediction: ClassVar[bool] = True
    fits_masked: ClassVar[bool] = True
    sample_rows: ClassVar[int] = 100_000  # of many files: a fit keeps several arrays of N x K

    segments: int = argument(8, at_least=1)
    window: int = argument(200, at_least=1)
    n_bins: int = argument(15, at_least=1)
    epsilon: float = argument(0.0, at_least=0, at_most=1)
    ridge: float = argument(1.0, above=0)
    max_iterations: int = argument(200, at_least=1)

    beta_: float = learnt(above=0)
    slopes_: FloatArray = learnt("s", at_least=0)

    @property
    def n_parameters(self) -> int:
        """The temperature and the slopes."""
        return 1 + len(self.slopes_)

    def _fit(self, predictions: Predictions) -> FitReport:
        base = predictions.temperature
        self.beta_, self.slopes_ = base.beta, np.ones(self.segments)
        report = base.report(predictions.n)
        if isinstance(base.warning, BoundaryWarning):
            return report  # without an error on its rows, a map could only get surer
        windows = self._windows(predictions)
        pull = self.ridge / predictions.n

        def loss(slopes: FloatArray) -> tuple[float, FloatArray]:
            value, gradient = windows.error(slopes, self.epsilon)
            away = slopes - 1
            return value + pull * float(away @ away), gradient + 2 * pull * away

        found = minimize(
            loss,
            self.slopes_,
            bounds=[(LEAST_SLOPE, None)] * self.segments,
            maxiter=self.max_iterations,
            gtol=SMALL_SLOPE,
            ftol=FLAT,
        )
        converged = bool(found.success) or "ABNORMAL" in str(found.message)
        self.slopes_ = np.asarray(found.x, dtype=np.float64)
        return FitReport(
            predictions.n,
            "error of windows",
            float(found.fun),
            int(found.nit),
            converged,
            report.notes,
        ).warned(self.method)

    def _windows(self, predictions: Predictions) -> Windows:
        def of(xp: Any, rows: Array, _: None, learnt: Learnt, *, masks: bool) -> Array:
            return surprises(xp, xp.astype(rows, xp.float64), learnt["beta"], masks)

        beta = {"beta": np.asarray(self.beta_)}
        found = to_numpy(apply_map(of, predictions.scores, None, beta))
        known = to_numpy(predictions.scores) > -np.inf
        return Windows.of(found, known, predictions.labels, bends(self.segments), self)

    def map_arrays(self) -> dict[str, NDArray[Any]]:
        """Return 1 / T, the slopes and where they begin."""
        starts = bends(len(self.slopes_))
        return {"beta": np.asarray(self.beta_), "slopes": self.slopes_, "starts": starts}

    def transform(
        self, xp: Any, logits: Array, features: Array | None, learnt: Learnt, *, masks: bool = True
    ) -> Array:
        """Return exp(-h(-log p)) over its sum."""
        beta, slopes, starts = (
            as_type(xp, learnt[name], logits) for name in ("beta", "slopes", "starts")
        )
        surprise = surprises(xp, logits, beta, masks)
        scores = xp.zeros_like(surprise)
        # Each term falls as the surprise grows, so that rounding lets no class overtake another.
        count = int(slopes.shape[0])
        for segment in range(count):
            inside = xp.clip(surprise - starts[segment], 0.0, None)
            if segment + 1 < count:
                inside = xp.minimum(inside, starts[segment + 1] - starts[segment])
            scores = scores - slopes[segment] * inside
        return softmax_of_own(xp, still_masked(xp, logits, scores, masks))


def bends(segments: int) -> FloatArray:
    """Return (S,) where each segment begins: 0, and then at halves of halves of `LAST_BEND`."""
    return np.append(0.0, LAST_BEND * 0.5 ** np.arange(segments - 2, -1, -1))


def surprises(xp: Any, logits: Array, beta: Array, masks: bool) -> Array:
    """Return (n, K) -log p at an inverse temperature, 0 where a class is masked."""
    gaps = below_top(xp, logits) * beta
    whole = xp.log(sums(xp, xp.exp(gaps)))[:, None]
    return zero_where_masked(xp, logits, whole - gaps, masks)


class Windows(NamedTuple):
    """All pairs of a row and a class, with the window that each lies in.

    Attributes:
        surprise: (N, K) -log p of each pair; starts: (S,) where segments begin.
        known: (N, K) whether a class is unmasked; outcome: (N, K) 1.0 for true classes, else 0.0.
        window: (N, K) numbers of windows; share: (W,) what each counts, over its number of pairs
            `size`: an equal share of its bin, which is an equal share of the whole.
    """

    surprise: FloatArray
    starts: FloatArray
    known: NDArray[np.bool_]
    outcome: FloatArray
    window: IntArray
    size: FloatArray
    share: FloatArray

    @classmethod
    def of(
        cls,
        surprise: FloatArray,
        known: NDArray[np.bool_],
        labels: IntArray,
        starts: FloatArray,
        how: HCalibration,
    ) -> Windows:
        """Return the windows of (N, K) -log p."""
        outcome = np.zeros(surprise.shape)
        outcome[np.arange(len(labels)), labels] = 1.0
        before = np.where(known, np.exp(-surprise), -1.0).ravel()
        # Equal probabilities in an order that isn't that of the rows.
        order = np.lexsort([outcome.ravel(), before])
        order = order[len(order) - int(known.sum()) :]
        count = max(1, round(len(order) / how.window))
        window = np.zeros(before.shape, dtype=np.int64)
        window[order] = np.arange(len(order)) * count // len(order)
        size = np.bincount(window[order], minlength=count).astype(np.float64)
        middle = np.bincount(window[order], before[order], count) / size
        cell = np.minimum((middle * how.n_bins).astype(np.int64), how.n_bins - 1)
        members = np.bincount(cell, minlength=how.n_bins)
        share = 1 / (members[cell] * (members > 0).sum())
        shape = surprise.shape
        return cls(surprise, starts, known, outcome, window.reshape(shape), size, share)

    def error(self, slopes: FloatArray, epsilon: float) -> tuple[float, FloatArray]:
        """Return the mean error of windows where h has these slopes, and its gradient by them."""
        scores = np.zeros(self.surprise.shape)
        for segment, slope in enumerate(slopes):
            scores -= slope * self._inside(segment)
        scores[~self.known] = -np.inf
        probs = np.exp(scores - scores.max(axis=1, keepdims=True))
        probs /= probs.sum(axis=1, keepdims=True)
        gaps = np.where(self.known, probs - self.outcome, 0.0).ravel()
        mean = np.bincount(self.window.ravel(), gaps, len(self.size)) / self.size
        over = np.maximum(np.abs(mean) - epsilon, 0.0)
        rounded = np.sqrt(over * over + SMOOTH * SMOOTH)
        by_mean = np.sign(mean) * over / rounded * self.share / self.size
        by_prob = by_mean[self.window]
        by_score = probs * (by_prob - (probs * by_prob).sum(axis=1, keepdims=True))
        gradient = [-float((by_score * self._inside(s)).sum()) for s in range(len(slopes))]
        return float(self.share @ (rounded - SMOOTH)), np.array(gradient)

    def _inside(self, segment: int) -> FloatArray:
        """Return (N, K) how far each pair's -log p reaches into a segment."""
        ends = np.append(self.starts[1:], np.inf)
        inside = np.maximum(self.surprise - self.starts[segment], 0.0)
        return np.minimum(inside, ends[segment] - self.starts[segment], out=inside)
