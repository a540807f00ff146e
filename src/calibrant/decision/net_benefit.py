"""Net benefit: what acting on an event's probability is worth, at each ratio of the costs.

Who acts from a probability of t on holds a false alarm to cost t / (1 - t) times what a hit is
worth. In units of a hit, and per row, that comes to

    benefit(t) = TP / n - FP / n * t / (1 - t)

over the rows with p >= t (Vickers & Elkin, "Decision curve analysis", 2006). To act on every row is
worth prevalence - (1 - prevalence) t / (1 - t), to act on none 0: a model is of use at the t where
it is worth more than both. The event is a class, or that the predicted class is the true one, where
acting is answering.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray
from calibrant.decision.base import DecidedRows
from calibrant.evaluation.bootstrap import Draws, shared
from calibrant.evaluation.uncertainty import default_resamples, interval
from calibrant.metrics.resampling import Clusters, cluster_stretch

BENEFIT = ("threshold", "benefit", "low", "high", "all", "more", "more_low", "more_high")
# Thresholds that are looked at.
AT = np.arange(1, 50) / 50


def net_benefit(
    rows: DecidedRows,
    probability: FloatArray,
    event: NDArray[np.bool_],
    *,
    level: float,
    seed: int,
) -> dict[str, FloatArray]:
    """Return the columns `BENEFIT`, (T,) numbers each.

    ``benefit`` has its bootstrap interval from ``low`` to ``high``; ``all`` is what acting on every
    row is worth, and ``more`` how much more than the better one of all and none the model is worth,
    with the interval of the paired difference. Intervals are of each threshold by itself.

    Args:
        rows: see `DecidedRows`; weights count, and clusters are drawn whole.
        probability: (N,) of the event; event: (N,) whether it happened.
        level: coverage of the intervals.
        seed: of the resamples.
    """
    odds = AT / (1 - AT)
    # A row is among the first so many thresholds that its probability reaches.
    acted = probability[:, None] >= AT
    gained = np.where(event[:, None], 1.0, -odds) * acted
    numbers = [*gained.T, event.astype(np.float64), np.ones(len(event))]
    sums = np.stack([rows.per_unit(each) for each in numbers])

    def worth(totals: FloatArray) -> dict[str, FloatArray]:
        """Return (R, T) values of (T + 2, R) sums."""
        benefit, share = (totals[:-2] / totals[-1]).T, (totals[-2] / totals[-1])[:, None]
        everyone = share - (1 - share) * odds
        return {"benefit": benefit, "all": everyone, "more": benefit - np.maximum(everyone, 0)}

    clusters = None if rows.clusters is None else Clusters(rows.unit, rows.clusters)
    draws = Draws.of_rows(len(event), default_resamples(len(event)), seed, clusters)
    drawn = shared(lambda part: worth(sums @ draws.of(part)), draws.batches())
    values = {name: each[0] for name, each in worth(sums.sum(axis=1, keepdims=True)).items()}
    if rows.clusters is not None:
        wider = cluster_stretch(rows.clusters, level)
        drawn = {name: values[name] + wider * (each - values[name]) for name, each in drawn.items()}

    def ends(name: str) -> FloatArray:
        pairs = zip(values[name].tolist(), drawn[name].T, strict=True)
        return np.array([interval(value, of_draws, level) for value, of_draws in pairs]).T

    low, high = ends("benefit")
    more_low, more_high = ends("more")
    found = (AT.copy(), values["benefit"], low, high, values["all"], values["more"])
    return dict(zip(BENEFIT, (*found, more_low, more_high), strict=True))


def useful_range(benefit: dict[str, FloatArray]) -> tuple[float, float] | None:
    """Return the ends of the longest run of thresholds where it surely beats all and none."""
    surely = np.flatnonzero(benefit["more_low"] > 0)
    if not len(surely):
        return None
    runs = np.split(surely, np.flatnonzero(np.diff(surely) > 1) + 1)
    longest = max(runs, key=len)
    at = benefit["threshold"]
    return float(at[longest[0]]), float(at[longest[-1]])
