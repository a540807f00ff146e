"""What cells of CalArena's study measure, and how their methods stand among the published ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.core.errors import InputError
from calibrant_studies.calarena.protocol import Estimates, Failures, elo_ratings, win_rates
from calibrant_studies.calarena.published import BASE, Key, Results
from calibrant_studies.kinds.base import Measure

RANKED_BY = {"logloss": "log loss", "brier": "Brier score"}


def _measures() -> Mapping[str, Measure]:
    found: list[Measure] = []
    for metric, title in RANKED_BY.items():
        found += [
            Measure(
                f"improvement-{metric}",
                f"{title}, improvement",
                100,
                2,
                "high",
                "100 times the mean of the base model's score less the method's",
            ),
            Measure(
                f"wins-{metric}",
                f"{title}, wins",
                100,
                1,
                "high",
                "percent of CalArena's other published methods that it beats, mean of experiments",
            ),
            Measure(
                f"elo-{metric}",
                f"{title}, Elo",
                1,
                0,
                "high",
                "among CalArena's published methods, whose mean with it is 1000",
            ),
        ]
    found += [
        Measure("ece-15", "ECE", 100, 2, "low", "mean; of the positive class for binary ones"),
        Measure("accuracy", "accuracy", 100, 2, "high", "mean of experiments"),
        Measure("time", "seconds", 1, 2, "neither", "mean, to fit and to apply"),
        Measure("experiments", "experiments", 1, 0, "neither", "number of experiments"),
        Measure("failures", "failures", 1, 0, "low", "experiments on which it gave no result"),
    ]
    return {measure.name: measure for measure in found}


MEASURES = _measures()


def ranked(
    metric: str,
    scores: FloatArray,
    published: Results,
    keys: Sequence[Key],
    weights: FloatArray,
    name: str | None,
    failures: Failures,
) -> dict[str, dict[str, float]]:
    """Return win rate and rating of one method among the published ones.

    It is one of ours, unless it has the `name` of a published one.
    """
    own = (0,) if name is None else ()
    others = [each for each, of in published.scores.items() if each != name and of.get(metric)]
    field = np.array([published_column(published, each, keys, metric) for each in others]).T
    wins = win_rates(scores[:, None], weights, field, failures, own)
    ratings = elo_ratings(np.column_stack([scores, field]), weights, failures, own)
    return {f"wins-{metric}": entry(wins, 0), f"elo-{metric}": entry(ratings, 0)}


def entry(found: Estimates, place: int) -> dict[str, float]:
    """Return one estimate with its interval, as results of cells have it."""
    parts = (found.values, found.low, found.high)
    return dict(zip(("value", "low", "high"), (float(p[place]) for p in parts), strict=True))


def column(
    scores: Mapping[Key, Mapping[str, float]], keys: Sequence[Key], metric: str
) -> FloatArray:
    """Return (E,) scores; NaN where the method failed."""
    found = [scores[key].get(metric) for key in keys]
    return np.array([math.nan if value is None else value for value in found], np.float64)


def published_column(
    published: Results | None, method: str, keys: Sequence[Key], metric: str
) -> FloatArray:
    """Return (E,) published scores of a method."""
    of = {} if published is None else published.scores.get(method, {}).get(metric, {})
    missing = next((key for key in keys if key not in of), None)
    if missing is not None:
        raise InputError(
            f"{'' if published is None else published.benchmark}: the published tables have no "
            f"{metric} of {method} on {'/'.join(missing)}"
        )
    return np.array([of[key] for key in keys], np.float64)


# What float32 sums may differ by.
_SAME = 1e-4


def check_same(
    benchmark: str,
    key: Key,
    published: Results,
    base: Mapping[str, Any],
    sizes: tuple[int, int],
) -> None:
    """Refuse tables that aren't about the rows of the file."""
    where = f"{benchmark}: {'/'.join(key)}"
    if key not in published.sizes:
        raise InputError(f"{where}: the published tables don't have it")
    if tuple(published.sizes[key]) != tuple(sizes):
        raise InputError(
            f"{where}: has {sizes[0]} rows to fit on and {sizes[1]} to measure on in the file, and "
            f"{published.sizes[key][0]} and {published.sizes[key][1]} in the published tables"
        )
    for metric in RANKED_BY:
        said = published.scores[BASE].get(metric, {}).get(key)
        own = base.get(metric)
        if said is not None and own is not None and abs(said - own) > _SAME * max(1.0, abs(said)):
            raise InputError(
                f"{where}: the base model's {metric} is {own:.6g} on the rows of the file, and "
                f"{said:.6g} in the published tables; they aren't of the same probabilities"
            )
