"""The latest rows of a stream: their confidences, and where there are some their scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import BoolArray, FloatArray, IntArray, to_numpy
from calibrant.monitor.diagnosis import Diagnosis, diagnose
from calibrant.predictions.predictions import Predictions

# Residuals lose the mean of so many rows around them, so that a drift is no dependence.
AROUND = 401
# Neighbours are rows at most so far apart. Fewer rows than this say nothing.
LAG, FEWEST_PAIRS = 10, 100
# Beginnings of ids that are fewer don't tell which rows belong together.
FEWEST_BEGINNINGS = 10
# Standard errors from zero at which a dependence is told of, whenever one looks.
ENOUGH = 4.0


@dataclass(frozen=True)
class Neighbours:
    """How much what is left of neighbouring rows beside their confidence correlates.

    Attributes:
        by: ``"lag"`` where neighbours are up to ten rows apart, ``"id"`` where they share the
            beginning of their id.
        correlation: of the residuals of two neighbours; low, high: ends of its 95 % interval.
        rows: how many it was estimated from.
        doubtful: whether it is surely above zero.
    """

    by: str
    correlation: float
    low: float
    high: float
    rows: int
    doubtful: bool

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON takes them."""
        return asdict(self)

    def __str__(self) -> str:
        what = f"rows up to {LAG} apart" if self.by == "lag" else "rows whose ids begin alike"
        ends = f"{self.low:.2f} to {self.high:.2f}"
        return (
            f"The promises are in doubt: they need independent rows, and outcomes of {what} "
            f"correlate by {self.correlation:.2f} beyond their confidences (95 % interval {ends}, "
            f"latest {self.rows} rows). If the rows come in documents, users or sessions, give "
            "--cluster COLUMN (clusters= in Python); otherwise alarms may be false."
        )


def neighbours(confidence: FloatArray, correct: BoolArray, origin: IntArray) -> Neighbours | None:
    """Return how rows depend on their neighbours; None for few rows, or rows all right or wrong.

    With e the residuals less their mean nearby, and s_t the product of e_t and the mean of its
    neighbours before it, the estimate is sum s_t / sum e_t^2. Without dependence each s_t has an
    expectation of 0 given the past, so that sqrt(sum s_t^2) is its standard error.

    Args:
        confidence: (n,) in the order of the stream.
        correct: (n,) whether each row is right.
        origin: (n,) hash of what each row's id begins with; 0 where that isn't known.
    """
    n = len(confidence)
    residual = confidence - correct
    if n < FEWEST_PAIRS or not correct.any() or correct.all():
        return None
    width = min(AROUND, n)
    total = np.convolve(residual, np.ones(width), mode="same")
    number = np.convolve(np.ones(n), np.ones(width), mode="same")
    left = residual - total / number
    found = [_estimated("lag", *_of_lags(left), left)]
    _, code, size = np.unique(origin, return_inverse=True, return_counts=True)
    alike = (origin != 0) & (size[code] > 1)
    # One beginning for all, such as `request-`, tells no rows apart.
    if alike.sum() >= FEWEST_PAIRS and len(np.unique(code[alike])) >= FEWEST_BEGINNINGS:
        found.append(_estimated("id", *_of_ids(left[alike], code[alike]), left))
    known = [one for one in found if one is not None]
    return max(known, key=lambda one: (one.doubtful, one.by == "id"), default=None)


def _estimated(by: str, terms: FloatArray, pairs: float, left: FloatArray) -> Neighbours | None:
    """Return the estimate from products of residuals, whose expectation is 0 without dependence."""
    n = len(left)
    unit = float(left @ left) / n * pairs
    if unit <= 0:
        return None
    value, error = float(terms.sum()) / unit, float(np.sqrt(terms @ terms)) / unit
    return Neighbours(
        by, value, value - 1.96 * error, value + 1.96 * error, n, value > ENOUGH * error
    )


def _of_lags(left: FloatArray) -> tuple[FloatArray, float]:
    """Return each row's product with the mean of those before it, and how many rows have any."""
    sums = np.concatenate([[0.0], np.cumsum(left)])
    at = np.arange(LAG, len(left))
    return left[at] * (sums[at] - sums[at - LAG]) / LAG, float(len(at))


def _of_ids(left: FloatArray, code: IntArray) -> tuple[FloatArray, float]:
    """Return the products of all pairs of each id's beginning, added up, and how many pairs."""
    _, code, size = np.unique(code, return_inverse=True, return_counts=True)
    sums = np.bincount(code, left)
    return (sums**2 - np.bincount(code, left**2)) / 2, float((size * (size - 1)).sum()) / 2


def beginning(key: str) -> str | None:
    """Return what an id begins with, before its last separator; None without one."""
    at = max(key.rfind(mark) for mark in "-_:/.#|")
    return key[:at] if at > 0 else None


def forget(known: dict[Any, Any], most: int) -> int:
    """Remove the oldest entries until there are `most`, and return how many were removed."""
    removed = max(len(known) - most, 0)
    for _ in range(removed):
        del known[next(iter(known))]
    return removed


# Scores that are kept, of rows with outcomes and of rows without: a megabyte of float32 each.
NUMBERS = 1 << 18
# What is wrong since a change is said of as many rows at least.
FEWEST = 200


@dataclass
class Latest:
    """The last `most` rows.

    Attributes:
        most: how many are kept.
        confidence: (n,) theirs; correct: (n,) whether each was right.
        origin: (n,) hash of each one's cluster, or else of what its id begins with; 0 for neither.
    """

    most: int
    confidence: FloatArray
    correct: BoolArray
    origin: IntArray

    @classmethod
    def start(cls, most: int) -> Latest:
        """Return none yet."""
        return cls(most, np.empty(0), np.empty(0, dtype=np.bool_), np.empty(0, dtype=np.int64))

    def add(
        self,
        confidence: FloatArray,
        correct: BoolArray,
        origin: IntArray | None = None,
    ) -> None:
        """Keep (n,) more rows."""
        known = np.zeros(len(correct), dtype=np.int64) if origin is None else origin
        self.origin = np.concatenate([self.origin, known])[-self.most :]
        self.confidence = np.concatenate([self.confidence, confidence])[-self.most :]
        self.correct = np.concatenate([self.correct, correct])[-self.most :]

    def since(self, rows: int, row: int | None) -> slice:
        """Return which of the kept rows came since a row of a stream of so many, at least some."""
        kept = len(self.confidence)
        wanted = kept if row is None else max(rows - row, FEWEST)
        return slice(max(kept - wanted, 0), None)

    def neighbours(self) -> Neighbours | None:
        """Return how rows without clusters depend on their neighbours; None if too few say it."""
        return neighbours(self.confidence, self.correct, self.origin)

    def diagnosis(self, rows: int, since: int | None, *, clustered: bool) -> Diagnosis | None:
        """Return what the rows show from row `since` on, or all that are kept.

        None without any, or where all are of one cluster.

        Args:
            rows: how many rows the stream has.
            since: the row since when it is off, if it is known.
            clustered: whether rows have clusters.
        """
        if not len(self.confidence):
            return None
        part = self.since(rows, since)
        said, right, origin = self.confidence[part], self.correct[part], self.origin[part]
        if not clustered:
            return diagnose(rows - len(said), said, right)
        if len(np.unique(origin)) < 2:
            return None
        return diagnose(rows - len(said), said, right, origin)

    @classmethod
    def merged(cls, parts: Sequence[Latest]) -> Latest:
        """Return as many of the latest rows of each part as there is room for."""
        most = parts[0].most
        whole, share = cls.start(most), max(most // len(parts), 1)
        for part in parts:
            whole.add(part.confidence[-share:], part.correct[-share:], part.origin[-share:])
        return whole


@dataclass(frozen=True)
class Form:
    """What scores are: of which kind, of one event or of classes, and how many numbers a row."""

    kind: Literal["logits", "probs"]
    binary: bool
    width: int
    class_names: tuple[str, ...] | None


@dataclass
class Scores:
    """The scores of the latest rows, as many as there is room for, from which a refit learns.

    Rows of another form than those before begin anew.

    Attributes:
        latest: how many rows are kept at most.
        form: of all of them; None before the first.
        waiting: (K,) scores of predictions whose outcome isn't known yet, by id.
        parts: rows whose label is known, in their order: scores (m, K), labels (m,), their numbers
            in the stream (m,), hashes of their clusters (m,).
        added: how many rows were added since old ones were last forgotten.
    """

    latest: int
    form: Form | None = None
    waiting: dict[str, NDArray[np.float32]] = field(default_factory=dict[str, NDArray[np.float32]])
    parts: list[tuple[NDArray[np.float32], IntArray, IntArray, IntArray]] = field(
        default_factory=list[tuple[NDArray[np.float32], IntArray, IntArray, IntArray]]
    )

    added: int = 0

    @property
    def most(self) -> int:
        """How many rows there is room for."""
        width = 1 if self.form is None else self.form.width
        return max(min(self.latest, NUMBERS // width), 1)

    def _rows(self, rows: Predictions) -> NDArray[np.float32] | None:
        """Return scores as they are kept; None of rows that none are kept of."""
        if rows.top_only or rows.label_index is not None:
            return None
        with np.errstate(over="ignore"):
            scores = to_numpy(rows.scores).astype(np.float32)
        if not np.isfinite(scores).all():  # classes are masked, or beyond float32
            return None
        kind: Any = rows.kind
        form = Form(kind, rows.binary, scores.shape[1], rows.class_names)
        if form != self.form:
            self.form, self.waiting, self.parts = form, {}, []
        return scores

    def add(
        self, rows: Predictions, labels: IntArray, number: IntArray, origin: IntArray | None
    ) -> None:
        """Keep (n,) rows with their labels, numbers and clusters."""
        scores = self._rows(rows)
        if scores is not None:
            self._keep(scores, labels, number, origin)

    def _keep(
        self,
        scores: NDArray[np.float32],
        labels: IntArray,
        number: IntArray,
        origin: IntArray | None,
    ) -> None:
        own = np.zeros(len(labels), dtype=np.int64) if origin is None else origin
        self.parts.append((scores, labels, number, own))
        self.added += len(labels)
        if self.added > self.most:
            self.parts, self.added = [self.together()], 0

    def wait(self, keys: Sequence[str], rows: Predictions) -> None:
        """Keep the scores of (n,) predictions without outcome."""
        scores = self._rows(rows)
        if scores is None or self.form is None:
            return
        self.waiting |= dict(zip(keys, scores, strict=True))
        forget(self.waiting, self.most)

    def learn(
        self,
        keys: Sequence[str],
        labels: Sequence[int],
        number: IntArray,
        origin: IntArray | None,
    ) -> None:
        """Keep the rows of (n,) ids that wait, now that their labels are known; -1 is none."""
        found = [self.waiting.pop(key, None) for key in keys]
        at = [
            i
            for i, (row, label) in enumerate(zip(found, labels, strict=True))
            if row is not None and 0 <= label < len(row)
        ]
        if at:
            scores = np.array([found[i] for i in at], dtype=np.float32)
            own = None if origin is None else origin[at]
            self._keep(scores, np.array([labels[i] for i in at]), number[at], own)

    def together(self) -> tuple[NDArray[np.float32], IntArray, IntArray, IntArray]:
        """Return scores, labels, numbers and clusters of all rows that are kept."""
        form = self.form
        if form is None or not self.parts:
            none = np.empty(0, dtype=np.int64)
            width = 0 if form is None else form.width
            return np.empty((0, width), dtype=np.float32), none, none, none
        whole: Any = tuple(
            np.concatenate([part[i] for part in self.parts])[-self.most :] for i in range(4)
        )
        return whole

    def since(self, row: int, *, clustered: bool) -> Predictions | None:
        """Return the rows that are kept of those from number `row` on; None without."""
        scores, labels, number, origin = self.together()
        part = number >= row
        if self.form is None or not part.any():
            return None
        return Predictions(
            self.form.kind,
            scores[part],
            labels[part],
            source="the latest rows",
            clusters=origin[part] if clustered else None,
            binary=self.form.binary,
            class_names=self.form.class_names,
            looked_at=True,
        )

    @classmethod
    def merged(cls, parts: Sequence[Scores], starts: Sequence[int]) -> Scores:
        """Return what the parts keep, whose rows begin at `starts`, as far as there is room."""
        forms = {part.form for part in parts} - {None}
        whole = cls(parts[0].latest, next(iter(forms)) if len(forms) == 1 else None)
        if whole.form is None:
            return whole
        share = max(whole.most // len(parts), 1)
        for part, start in zip(parts, starts, strict=True):
            if part.form is None:
                continue
            scores, labels, number, origin = part.together()
            last = slice(-share, None)
            whole.parts.append((scores[last], labels[last], number[last] + start, origin[last]))
            whole.waiting |= part.waiting
        forget(whole.waiting, whole.most)
        return whole
