"""What is wrong, from the latest rows: which way, where on the scale, what a refit would give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray, IntArray
from calibrant.core.weights import codes_of
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.formatting import percent
from calibrant.evaluation.rare_outcomes import Gap
from calibrant.evaluation.results import Evaluation, State, state_of
from calibrant.metrics.bins import equal_mass_cuts, logit
from calibrant.metrics.cox import CoxFit, fit_of_curve
from calibrant.metrics.resampling import Clusters
from calibrant.metrics.top_label import TopLabel
from calibrant.monitor.neighbours import Neighbours, neighbours
from calibrant.predictions.predictions import Predictions

LEVEL = 0.95
# Bands of confidence with equally many rows; too few rows make no band.
BANDS, FEWEST_IN_BAND = 5, 40
# Fewer rows than this are refitted in vain.
FEWEST_TO_REFIT = 200
FOLDS = 10
RESAMPLES = 200


@dataclass(frozen=True)
class Band:
    """A stretch of the confidence scale: its ends, its rows, and confidence less accuracy there.

    Attributes:
        low: lowest confidence; high: highest.
        rows: how many rows it holds.
        gap: confidence less accuracy; gap_low, gap_high: ends of its interval, which holds for all
            bands together.
    """

    low: float
    high: float
    rows: int
    gap: float
    gap_low: float
    gap_high: float

    @property
    def off(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.gap_low > 0 or self.gap_high < 0


@dataclass(frozen=True)
class Refit:
    """What a refit on these rows would give, by cross-validation; fractions and nats.

    The map is logit p' = intercept + slope logit p. Differences are after less before: below zero
    the refit is better.

    Attributes:
        slope: of the map; below 1 it draws confidences together. intercept: of the map.
        ece_before: (value, low, high) of the ECE as it is; ece_after: with the refit.
        floor: what honest confidences like those after the refit would show.
        nll_difference: (value, low, high) of the mean log loss of right or wrong, after less
            before, paired row by row.
    """

    slope: float
    intercept: float
    ece_before: tuple[float, float, float]
    ece_after: tuple[float, float, float]
    floor: float
    nll_difference: tuple[float, float, float]

    @property
    def helps(self) -> bool:
        """Whether the log loss surely gets better."""
        return self.nll_difference[2] < 0


@dataclass(frozen=True)
class Diagnosis:
    """What the latest rows show.

    Attributes:
        first: 0-based number of the first of them; rows: how many there are.
        state: in which way confidences are off, as `calibrant.evaluate` says it.
        gap: (value, low, high) of confidence less accuracy.
        bands: the same by stretches of the scale.
        refit: what a refit would give; None where rows are too few or all alike.
    """

    first: int
    rows: int
    state: State
    gap: tuple[float, float, float]
    bands: tuple[Band, ...]
    refit: Refit | None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON takes them."""
        return asdict(self)

    def which_way(self) -> str:
        """Return which way and where, as a clause."""
        rows = f"of the latest {self.rows} rows"
        if self.state in ("honest", "unknown"):
            return f"the confidences {rows} can't be told from honest ones"
        value, low, high = self.gap
        ends = sorted((low, high) if value > 0 else (-low, -high))
        if self.state == "both ways":
            text = f"the confidences {rows} are too high here and too low there"
        elif self.state == "no direction":
            text = f"the confidences {rows} are wrong, with too few rows to say in which direction"
        else:
            text = (
                f"{self.state} by {percent(abs(value))} points (95 % interval {percent(ends[0])} "
                f"to {percent(ends[1])}) over the latest {self.rows} rows"
            )
        worst = max(self.bands, key=lambda band: abs(band.gap), default=None)
        if worst is None or not worst.off:
            return text
        way = "too high" if worst.gap > 0 else "too low"
        return (
            f"{text}; most at confidences from {worst.low:.3f} to {worst.high:.3f}, "
            f"{percent(abs(worst.gap))} points {way}"
        )

    def what_a_refit_gives(self) -> str:
        """Return what a refit on these rows would give, as a sentence."""
        if self.refit is None:
            return f"{self.rows} rows are too few, or too much alike, to say what a refit gives."
        refit = self.refit
        before, after = (
            f"{percent(value)} % ({percent(low)} to {percent(high)})"
            for value, low, high in (refit.ece_before, refit.ece_after)
        )
        effect = "improves" if refit.helps else "doesn't surely improve"
        value, low, high = refit.nll_difference
        return (
            f"A refit on the latest {self.rows} rows (log odds times {refit.slope:.2f}, plus "
            f"{refit.intercept:.2f}) would take the ECE from {before} to {after}, where honest "
            f"confidences show {percent(refit.floor)} %; it {effect} the log loss ({value:+.4f}, "
            f"{low:+.4f} to {high:+.4f})."
        )


def diagnose(
    first: int, confidence: FloatArray, correct: BoolArray, clusters: IntArray | None = None
) -> Diagnosis:
    """Return what n rows show, the first of which has the number `first`.

    Args:
        first: see above.
        confidence: (n,).
        correct: (n,).
        clusters: (n,) code of each row's cluster, of at least two; None where rows stand alone.
    """
    rows = TopLabel.sort(confidence, correct)
    before = _evaluated(confidence, correct, clusters)
    sorted_clusters = None if clusters is None else clusters[rows.order]
    gap = Gap.of(rows, LEVEL, Clusters.of(sorted_clusters))
    return Diagnosis(
        first,
        rows.n,
        state_of(before),
        (gap.value, gap.low, gap.high),
        tuple(_bands(rows, sorted_clusters)),
        _refit(confidence, correct, before["ece"].ends, clusters),
    )


def _evaluated(confidence: FloatArray, correct: BoolArray, clusters: IntArray | None) -> Evaluation:
    right = correct.astype(np.int64)
    predictions = Predictions.from_confidence(
        confidence, np.ones_like(right), right, clusters=clusters
    )
    return evaluate(predictions, metrics=["ece"], resamples=RESAMPLES, level=LEVEL)


def _bands(rows: TopLabel, clusters: IntArray | None) -> list[Band]:
    bands = min(BANDS, rows.n // FEWEST_IN_BAND)
    if bands < 2:
        return []
    found: list[Band] = []
    cuts = equal_mass_cuts(rows.n, bands)
    for start, stop in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        part = TopLabel(
            rows.confidence[start:stop], rows.correct[start:stop], rows.order[start:stop]
        )
        within = None if clusters is None else Clusters.of(clusters[start:stop])
        if within is not None and within.number < 2:
            return []
        gap = Gap.of(part, 1 - (1 - LEVEL) / bands, within)
        low, high = float(part.confidence[0]), float(part.confidence[-1])
        found.append(Band(low, high, part.n, *gap))
    return found


def _mapped(confidence: FloatArray, fit: FloatArray, right: BoolArray) -> tuple[FloatArray, CoxFit]:
    """Return the confidences through the map that fits other rows best, and the map."""
    cox = fit_of_curve(TopLabel.sort(fit, right).curves())
    return 1 / (1 + np.exp(-(cox.intercept + cox.slope * logit(confidence)))), cox


def _refit(
    confidence: FloatArray,
    correct: BoolArray,
    before: tuple[float, float, float],
    clusters: IntArray | None,
) -> Refit | None:
    of = np.arange(len(confidence)) if clusters is None else codes_of(clusters)[0]
    number = int(of.max()) + 1
    rare = min(int(correct.sum()), int((~correct).sum()))
    few = len(confidence) < FEWEST_TO_REFIT or rare < FOLDS or number < FOLDS
    if few or np.ptp(confidence) == 0:
        return None
    fold = (np.random.default_rng(0).permutation(number) % FOLDS)[of]
    after = np.empty_like(confidence)
    for k in range(FOLDS):
        out = fold == k
        after[out], _ = _mapped(confidence[out], confidence[~out], correct[~out])
    after = np.clip(after, 0.0, 1.0)
    _, cox = _mapped(confidence, confidence, correct)
    evaluated = _evaluated(after, correct, clusters)["ece"]
    loss = [np.logaddexp(0, np.where(correct, -1, 1) * logit(c)) for c in (after, confidence)]
    apart = loss[0] - loss[1]
    value = float(apart.mean())
    of_clusters = np.bincount(of, apart - value)
    half = 1.96 * float(of_clusters @ of_clusters * number / (number - 1)) ** 0.5 / len(apart)
    return Refit(
        cox.slope,
        cox.intercept,
        before,
        evaluated.ends,
        float(evaluated.floor or 0.0),
        (value, value - half, value + half),
    )


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
