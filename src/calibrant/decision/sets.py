"""Sets of classes that hold the true one as often as promised: split conformal prediction.

A score s(p, y) says how odd class y is for a row with calibrated probabilities p. With q the
ceil((n + 1)(1 - alpha))-th smallest of the scores of n rows and their true classes, the set of a
new row, {k : s(p, k) <= q}, holds its class with a probability of at least 1 - alpha (Vovk et al.
2005). Over sets of n rows the coverage itself varies: without ties it has the distribution
Beta(n + 1 - l, l), l = floor((n + 1) alpha). Scores, all without randomness, in which the predicted
class is never odd (s = 0), so that no set is empty:

- ``lac``: 1 - p_k (Sadinle et al. 2019), the smallest sets on average;
- ``aps``: the sum of all probabilities down to p_k (Romano et al. 2020), more even over rows;
- ``raps``: the same and 0.01 for each rank beyond five (Angelopoulos et al. 2021).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from calibrant.core import numpy_namespace as xnp
from calibrant.core.arrays import Array, BoolArray, FloatArray, IntArray, to_numpy
from calibrant.core.errors import InputError, PredictionsError
from calibrant.core.result import Table
from calibrant.decision.base import DecidedRows, Decision, Share, mean_of
from calibrant.evaluation.formatting import interval_of, percent
from calibrant.posthoc.array_ops import columns
from calibrant.predictions.predictions import Predictions

SetScore = Literal["lac", "aps", "raps"]
PENALTY, FREE_RANKS = 0.01, 5
# Classes that a table has a line for.
MOST_CLASSES = 20
BETWEEN = "|"
# Sets of so many classes or more are looked at together.
LARGE = 6


def odd_scores(probs: FloatArray, score: SetScore) -> FloatArray:
    """Return the (N, K) scores of all classes; 0 for the predicted one."""
    return odd_scores_in(xnp, probs, score)


def odd_scores_in(xp: Any, probs: Any, score: SetScore) -> Any:
    """Return the same of arrays of any namespace."""
    classes = columns(xp, probs)
    if score == "lac":
        found = 1 - probs
    else:
        order = xp.argsort(-probs, axis=1, stable=True)
        sums = xp.cumulative_sum(xp.take_along_axis(probs, order, axis=1), axis=1)
        if score == "raps":
            beyond = xp.astype(classes, probs.dtype) + (1.0 - FREE_RANKS)
            sums = sums + PENALTY * xp.clip(beyond, min=0.0)
        found = xp.take_along_axis(sums, xp.argsort(order, axis=1), axis=1)
    predicted = xp.argmax(probs, axis=1)[:, None] == classes
    return xp.where(predicted, xp.zeros_like(found), found)


def conformal_quantile(scores: FloatArray, cover: float) -> float:
    """Return the ceil((n + 1) cover)-th smallest score; infinity where there are too few."""
    # Less a rounding error, so that 0.9 of 9 + 1 rows are nine.
    place = math.ceil((len(scores) + 1) * cover * (1 - 1e-12))
    return math.inf if place > len(scores) else float(np.partition(scores, place - 1)[place - 1])


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SetDecision(Decision):
    """For each row a set of classes that contains the true class as often as promised.

    Attributes:
        cover: the promised share; score: ``"lac"``, ``"aps"`` or ``"raps"``.
        quantile: classes of a score up to it are in the set.
        counted: number of rows that the quantile comes from, one for each cluster.
        coverage, size: share of sets that contain the true class, and mean number of classes, with
            intervals. Each half of the rows is measured with the quantile of the other half.
        range_low, range_high: range of the coverage over other sets of as many rows, if no scores
            tie.
        by_class: for each class its number, rows, coverage with its ends, mean size with its ends.
        by_size: for each size of a set its rows and coverage with its ends; the last line has all
            larger sets too.
        level: coverage of the intervals and of that range.

    Examples:
        >>> import calibrant as cb
        >>> scaling = cb.TemperatureScaling().fit_predictions(cb.load_sample("validation"))
        >>> found = cb.decide(scaling, cb.load_sample("test"), cover=0.95)
        >>> round(found.coverage.value, 2), round(found.size.value, 1)
        (0.95, 1.6)
    """

    cover: float
    score: str
    quantile: float
    counted: int
    coverage: Share
    size: Share
    range_low: float
    range_high: float
    by_class: tuple[tuple[int, int, float, float, float, float, float, float], ...]
    level: float
    by_size: tuple[tuple[int, int, float, float, float], ...] = ()

    rule: ClassVar[str] = "set"

    def fault(self) -> str | None:
        """Return why the numbers of a file make no decision, as a clause, or None."""
        if self.score not in get_args(SetScore):
            return f"the score '{self.score[:20]}'"
        if not (0 < self.cover < 1 and self.quantile >= 0):
            return f"a quantile of {self.quantile:g} for a coverage of {self.cover:g}"
        return "one number a row" if self.calibrator.form_ == "toplabel" else None

    @property
    def largest(self) -> list[tuple[str, float]]:
        """Name and mean size of the classes with the largest sets, as many as a picture shows."""
        names = self.calibrator.class_names_
        found = [(str(k) if names is None else names[k], row[4]) for k, *row in self.by_class]
        return sorted(found, key=lambda each: -each[1])[:MOST_CLASSES]

    def headline(self) -> str:
        """Return coverage and size."""
        size = f"{self.size.value:.3g} ({self.size.low:.3g} to {self.size.high:.3g})"
        return (
            f"Sets by {self.score} hold the true class in {self.coverage} of rows, with {size} "
            f"classes on average; {percent(self.cover)} % were asked for."
        )

    def promise(self) -> str:
        """Return what it promises of new rows, and under which conditions."""
        return (
            f"The promise: the set of a new row holds its true class with a probability of at "
            f"least {percent(self.cover)} %, averaged over draws of the new row and of the "
            f"{self.counted} rows that set the threshold. In {100 * self.level:g} % of such draws "
            f"the coverage is {percent(self.range_low)} to {percent(self.range_high)} % (more, "
            "where the predicted class alone is right more often). It is an average over rows: "
            "single classes may be covered less, as the table shows. The promise ends when the "
            "data change."
        )

    def outputs(self, xp: Any, probs: Array, confidence: Array) -> dict[str, Array]:
        """Return `set`, (N, K) whether each class is in it, and `set_size`."""
        return self.outputs_at(self.limit, xp, probs)

    @property
    def limit(self) -> float:
        """The quantile."""
        return self.quantile

    def outputs_at(self, limit: Any, xp: Any, probs: Array) -> dict[str, Array]:
        """Return the same at another quantile, or at (N, 1) quantiles, one for each row."""
        inside = odd_scores_in(xp, probs, _score(self.score)) <= limit
        return {"set": inside, "set_size": xp.sum(xp.astype(inside, xp.int64), axis=1)}

    @property
    def promised(self) -> float:
        """The highest share of sets without the true class that is within the stated range.

        Half of all quantiles miss the true class a little more often than was asked for, by chance
        and not because the rows have changed; so the promise is watched at this end of the range.
        """
        return 1 - self.range_low

    def watched(self, calibrated: Predictions) -> tuple[BoolArray, BoolArray]:
        """Return (N,) that the promise is about all rows, and in which sets the true class is."""
        inside = odd_scores(_vectors(calibrated), _score(self.score)) <= self.quantile
        rows = np.arange(len(inside))
        return np.ones(len(inside), dtype=np.bool_), inside[rows, calibrated.labels]

    def columns(
        self, calibrated: Predictions, groups: Array | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return `set`, the classes with a bar between them, and `set_size`."""
        return self.columns_at(self.limit, calibrated)

    def columns_at(self, limit: Any, calibrated: Predictions) -> dict[str, NDArray[Any]]:
        """Return the same at another quantile, or at (N, 1) quantiles, one for each row."""
        found = self.outputs_at(limit, xnp, _vectors(calibrated))
        inside = found["set"]
        names = calibrated.class_names or [str(k) for k in range(inside.shape[1])]
        words = [BETWEEN.join(names[k] for k in np.flatnonzero(row)) for row in inside]
        return {"set": np.array(words), "set_size": found["set_size"]}

    def as_table(self) -> Table:
        """Return coverage and size, of all rows, by class and by size."""
        names = self.calibrator.class_names_

        def line(name: str, rows: int, numbers: tuple[float, ...]) -> list[str]:
            sizes = [f"{number:.2f}" for number in numbers[3:]] or ["", "", ""]
            return [name, str(rows), *map(percent, numbers[:3]), *sizes]

        overall = (*vars(self.coverage).values(), *vars(self.size).values())
        lines = [line("all", self.n, overall)]
        for number, rows, *rest in self.by_class[:MOST_CLASSES]:
            lines.append(line(str(number) if names is None else names[number], rows, (*rest,)))
        for size, rows, *rest in self.by_size:
            up = " or more" if size == LARGE else ""
            lines.append(line(f"sets of {size}{up}", rows, (*rest,)))
        more = len(self.by_class) - MOST_CLASSES
        left = f" {more} more classes are left out here." if more > 0 else ""
        notes = (
            f"Coverage in percent and mean size with their {interval_of(self.level)}, by true "
            "class and by the size of the set; the threshold for each half of the rows is found on "
            f"the other.{left}"
        )
        head = ["class", "rows", "coverage", "low", "high", "size", "from", "to"]
        return Table(head, lines, notes=notes)

    def records(self) -> list[dict[str, Any]]:
        """Return a row a class."""
        names = ("class", "n", "coverage", "low", "high", "size", "size_low", "size_high")
        return [dict(zip(names, row, strict=True)) for row in self.by_class]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        names = ("cover", "score", "quantile", "counted", "range_low", "range_high")
        return {
            "rule": self.rule,
            **{name: getattr(self, name) for name in names},
            "coverage": self.coverage.as_dict(),
            "size": self.size.as_dict(),
            "by_class": self.records(),
            "by_size": [
                dict(zip(("size", "n", "coverage", "low", "high"), row, strict=True))
                for row in self.by_size
            ],
            **self.facts(),
        }


# Parameters: what is promised, on which rows, and what is known of them besides.
def by_set(
    rows: DecidedRows,
    cover: float,
    score: str,
    *,
    level: float,
    seed: int,
    common: dict[str, Any],
) -> SetDecision:
    """Return the sets of a coverage.

    Raises:
        InputError: rows with weights, too few of them, or no such score.
        PredictionsError: rows with one number each.
    """
    from scipy.special import betaincinv

    kind = _score(score)
    if rows.weight is not None:
        raise InputError(
            "sets need rows that are drawn like the rows to come, and weights mean that these "
            "are drawn differently; take rows without weights"
        )
    probs, labels = _vectors(rows.calibrated), rows.calibrated.labels
    every = odd_scores(probs, kind)
    own = every[np.arange(len(labels)), labels]
    one = _one_a_unit(rows, seed)
    quantile, count = conformal_quantile(own[one], cover), len(one)
    fewest = math.ceil(1 / (1 - cover) * (1 - 1e-12)) - 1
    if count < 2 * fewest:
        what = "rows" if rows.clusters is None else "clusters"
        raise InputError(
            f"sets of coverage {cover:g} take at least {2 * fewest} {what}: {fewest} for the "
            f"quantile, and as many to measure it on; there are {count}"
        )
    if rows.clusters is not None:
        note = "The quantile comes from one row of each cluster, drawn at random."
        common = common | {"notes": (*common["notes"], note)}
    inside = _crossed(rows, every, own, one, cover, seed)
    held, sizes = inside[np.arange(len(labels)), labels], inside.sum(axis=1)
    left = math.floor((count + 1) * (1 - cover) * (1 + 1e-12))
    low, high = (
        float(betaincinv(count + 1 - left, left, t)) for t in ((1 - level) / 2, (1 + level) / 2)
    )
    most = 1.0, float(probs.shape[1])
    by_class: list[tuple[int, int, float, float, float, float, float, float]] = []
    for k in np.unique(labels).tolist():
        of_class = labels == k
        share = rows.share(held, level, of_class)
        size = mean_of(rows, sizes.astype(np.float64), level, of_class, ends=most)
        ends = (share.value, share.low, share.high, size.value, size.low, size.high)
        by_class.append((k, int(of_class.sum()), *ends))
    by_size: list[tuple[int, int, float, float, float]] = []
    put = np.minimum(sizes, LARGE)
    for size in np.unique(put).tolist():
        share = rows.share(held, level, put == size)
        by_size.append((size, int((put == size).sum()), share.value, share.low, share.high))
    return SetDecision(
        cover=cover,
        score=score,
        quantile=quantile,
        counted=count,
        coverage=rows.share(held, level),
        size=mean_of(rows, sizes.astype(np.float64), level, ends=most),
        range_low=low,
        range_high=high,
        by_class=tuple(by_class),
        level=level,
        by_size=tuple(by_size),
        **common,
    )


def _crossed(
    rows: DecidedRows, every: FloatArray, own: FloatArray, one: IntArray, cover: float, seed: int
) -> BoolArray:
    """Return (N, K) which classes are in the sets, each half's by the quantile of the other."""
    order = np.random.default_rng([seed, 1]).permutation(rows.units)
    first = (order < rows.units // 2)[rows.unit]
    inside = np.empty(every.shape, dtype=bool)
    for half in (first, ~first):
        others = one[~half[one]]
        inside[half] = every[half] <= conformal_quantile(own[others], cover)
    return inside


def _one_a_unit(rows: DecidedRows, seed: int) -> IntArray:
    """Return the rows that are exchangeable: of each cluster one at random."""
    order = np.random.default_rng(seed).permutation(len(rows.unit))
    _, first = np.unique(rows.unit[order], return_index=True)
    return order[first].astype(np.int64)


def _score(score: str) -> SetScore:
    for known in get_args(SetScore):
        if score == known:
            return known
    raise InputError(f"sets have no score '{score}'; take lac, aps or raps")


def _vectors(calibrated: Predictions) -> FloatArray:
    if calibrated.top_only:
        raise PredictionsError(
            f"{calibrated.source}: sets need a probability for every class, and these rows hold "
            "only the confidence of the predicted one; take --risk"
        )
    return to_numpy(calibrated.probs).astype(np.float64)
