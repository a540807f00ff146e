"""What is wrong, from the latest rows: which way, where on the scale, what a refit would give."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray, IntArray
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.formatting import percent
from calibrant.evaluation.results import State, state_of
from calibrant.evaluation.uncertainty import Gap
from calibrant.metrics.binned import equal_mass_cuts
from calibrant.metrics.resampling import Clusters
from calibrant.metrics.top_label import TopLabel
from calibrant.posthoc.worth import CrossValidated, cross_validated
from calibrant.predictions.predictions import Predictions

LEVEL = 0.95
# Bands of confidence with equally many rows; too few rows make no band.
BANDS, FEWEST_IN_BAND = 5, 40
# Fewer rows than this are refitted in vain.
FEWEST_TO_REFIT = 200
# So do fewer clusters, right rows, or wrong ones.
FEWEST_OF_EACH = 10
RESAMPLES = 200
# What a refit gives is said of the map that every report can afford to fit.
REFIT = "affine"


@dataclass(frozen=True)
class Band:
    """A stretch of the confidence scale: its ends, its rows, and confidence minus accuracy there.

    Attributes:
        low: lowest confidence; high: highest.
        rows: how many rows it holds.
        gap: confidence minus accuracy; gap_low, gap_high: ends of its interval, which holds for all
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


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What the latest rows show.

    Attributes:
        first: 0-based number of the first of them; rows: how many there are.
        state: in which way confidences are off, as `calibrant.evaluate` says it.
        gap: (value, low, high) of confidence minus accuracy.
        bands: the same by stretches of the scale.
        refit: what a refit of the confidences by `REFIT` would give, cross-validated; None where
            rows are too few or all alike.
    """

    first: int
    rows: int
    state: State
    gap: tuple[float, float, float]
    bands: tuple[Band, ...]
    refit: CrossValidated | None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON takes them."""
        own = vars(self) | {"bands": [asdict(band) for band in self.bands]}
        return own | {"refit": None if self.refit is None else self.refit.as_dict()}

    def __repr__(self) -> str:
        return f"<Diagnosis: {self.which_way()}>"

    def which_way(self) -> str:
        """Return which way and where, as a clause."""
        rows = f"of the latest {self.rows} rows"
        if self.state in ("honest", "unknown"):
            return f"the confidences {rows} can't be told from calibrated ones"
        value, low, high = self.gap
        ends = sorted((low, high) if value > 0 else (-low, -high))
        if self.state == "both ways":
            text = f"the confidences {rows} are too high in some places and too low in others"
        elif self.state == "no direction":
            text = f"the confidences {rows} are wrong, although right on average within noise"
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
            return "The rows are too few, or too much alike, to estimate what a refit gains."
        said = self.refit.headline()
        return f"A refit on the latest {self.rows} rows: {said[:1].lower()}{said[1:]}"


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
    right = correct.astype(np.int64)
    predictions = Predictions.from_confidence(
        confidence, np.ones_like(right), right, clusters=clusters
    )
    before = evaluate(predictions, metrics=["ece"], resamples=RESAMPLES, level=LEVEL)
    sorted_clusters = None if clusters is None else clusters[rows.order]
    gap = Gap.of(rows, LEVEL, Clusters.of(sorted_clusters))
    return Diagnosis(
        first,
        rows.n,
        state_of(before),
        (gap.value, gap.low, gap.high),
        tuple(_bands(rows, sorted_clusters)),
        cross_validated(REFIT, predictions) if refittable(predictions) else None,
    )


def refittable(rows: Predictions) -> bool:
    """Return whether rows of confidences are enough, and different enough, for a refit."""
    right = int((rows.known_labels == rows.predicted).sum())
    units = rows.n if rows.clusters is None else len(np.unique(rows.clusters))
    some = rows.n >= FEWEST_TO_REFIT and units >= FEWEST_OF_EACH
    return some and min(right, rows.n - right) >= FEWEST_OF_EACH and bool(np.ptp(rows.scores) > 0)


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
