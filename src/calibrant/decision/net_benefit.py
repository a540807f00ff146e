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

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray
from calibrant.decision.base import DecidedRows
from calibrant.evaluation.bootstrap import Draws, shared
from calibrant.evaluation.uncertainty import default_resamples, interval
from calibrant.metrics.resampling import Clusters, cluster_stretch

BENEFIT = ("threshold", "benefit", "low", "high", "all", "more", "more_low", "more_high")
# Where the model said probabilities: what acting on these is worth, and how much more calibrated
# ones are, with the interval of the paired difference.
GAIN = ("uncalibrated", "gain", "gain_low", "gain_high")
# An event's (N,) probabilities, and (N,) whether it happened.
Said = tuple[FloatArray, NDArray[np.bool_]]
# Thresholds that are looked at.
AT = np.arange(1, 50) / 50


def net_benefit(
    rows: DecidedRows,
    probability: FloatArray,
    event: NDArray[np.bool_],
    said: Said | None = None,
    *,
    level: float,
    seed: int,
) -> dict[str, FloatArray]:
    """Return the columns `BENEFIT`, and `GAIN` where it is known what was said, (T,) numbers each.

    ``benefit`` has its bootstrap interval from ``low`` to ``high``; ``all`` is what acting on every
    row is worth, and ``more`` how much more than the better one of all and none the model is worth,
    with the interval of the paired difference. Intervals are of each threshold by itself.

    Args:
        rows: see `DecidedRows`; weights count, and clusters are drawn whole.
        probability: (N,) of the event; event: (N,) whether it happened.
        said: the same by the probabilities as the model said them, before they were calibrated.
        level: coverage of the intervals.
        seed: of the resamples.
    """
    odds = AT / (1 - AT)

    def gained(probability: FloatArray, event: NDArray[np.bool_]) -> list[FloatArray]:
        """Return, of each threshold, what acting on every row that reaches it is worth."""
        acted = probability[:, None] >= AT
        return list((np.where(event[:, None], 1.0, -odds) * acted).T)

    before = [] if said is None else gained(*said)
    numbers = [*gained(probability, event), *before, event.astype(np.float64), np.ones(len(event))]
    sums = np.stack([rows.per_unit(each) for each in numbers])

    def worth(totals: FloatArray) -> dict[str, FloatArray]:
        """Return (R, T) values of sums over R sets of rows."""
        shares = (totals[:-1] / totals[-1]).T
        benefit, share = shares[:, : len(AT)], shares[:, -1:]
        everyone = share - (1 - share) * odds
        found = {"benefit": benefit, "all": everyone, "more": benefit - np.maximum(everyone, 0)}
        if said is not None:
            found["uncalibrated"] = shares[:, len(AT) : 2 * len(AT)]
            found["gain"] = benefit - found["uncalibrated"]
        return found

    clusters = None if rows.clusters is None else Clusters(rows.unit, rows.clusters)
    draws = Draws.of_rows(len(event), default_resamples(len(event)), seed, clusters)
    drawn = shared(lambda part: worth(sums @ draws.of(part)), draws.batches())
    values = {name: each[0] for name, each in worth(sums.sum(axis=1, keepdims=True)).items()}
    if rows.clusters is not None:
        wider = cluster_stretch(rows.clusters, level)
        drawn = {name: values[name] + wider * (each - values[name]) for name, each in drawn.items()}

    def ends(name: str) -> list[FloatArray]:
        pairs = zip(values[name].tolist(), drawn[name].T, strict=True)
        return list(np.array([interval(value, of_draws, level) for value, of_draws in pairs]).T)

    found = [AT.copy(), values["benefit"], *ends("benefit")]
    found += [values["all"], values["more"], *ends("more")]
    names: list[str] = [*BENEFIT]
    if said is not None:
        found += [values["uncalibrated"], values["gain"], *ends("gain")]
        names += GAIN
    return dict(zip(names, found, strict=True))


def useful_range(
    benefit: Mapping[str, FloatArray], low: str = "more_low"
) -> tuple[float, float] | None:
    """Return the ends of the longest run of thresholds where it surely beats all and none.

    Args:
        benefit: see `net_benefit`.
        low: the column that is above 0 there; of ``"gain_low"`` it beats what was said.
    """
    surely = np.flatnonzero(benefit[low] > 0)
    if not len(surely):
        return None
    runs = np.split(surely, np.flatnonzero(np.diff(surely) > 1) + 1)
    longest = max(runs, key=len)
    at = benefit["threshold"]
    return float(at[longest[0]]), float(at[longest[-1]])
