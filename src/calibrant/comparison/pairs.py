"""Which methods can be told apart from the best one: paired differences, all pairs considered."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.evaluation.results import MetricResult
from calibrant.evaluation.uncertainty import PairedDifference, holm, paired_difference


@dataclass(frozen=True)
class DifferenceToBest(PairedDifference):
    """A method's paired difference to the best one; its interval is that of this pair alone.

    Attributes:
        p_adjusted: the p-value after Holm's correction for all pairs of methods.
        significant: whether it is at most 1 - level, so that the two can be told apart.
    """

    p_adjusted: float
    significant: bool


def differences_to_best(
    results: Mapping[str, MetricResult], best: str, level: float
) -> dict[str, DifferenceToBest]:
    """Return the paired difference of each method to the best one, by name.

    The best one is chosen by the same data, so any pair might have been looked at: Holm's
    correction takes all of them into account.

    Args:
        results: of one metric, by method, on the same resamples.
        best: the name of the best one.
        level: nominal coverage of the intervals.
    """
    names = list(results)
    values = np.array([results[name].value for name in names])
    drawn = np.stack([results[name].replicates for name in names])
    pairs = [(i, j) for i in range(len(names)) for j in range(i + 1, len(names))]
    found_p = [
        pair_p_values(values[i] - values[i + 1 :], drawn[i] - drawn[i + 1 :])
        for i in range(len(names))
    ]
    p_values = np.concatenate(found_p)
    adjusted = holm(p_values.tolist())
    place, found = names.index(best), dict[str, DifferenceToBest]()
    of_best = {
        names[j if i == place else i]: p
        for (i, j), p in zip(pairs, adjusted, strict=True)
        if place in (i, j)
    }
    for name, result in results.items():
        pair = paired_difference(
            result.replicates, results[best].replicates, (result.value, results[best].value), level
        )
        p = of_best.get(name, 1.0)
        found[name] = DifferenceToBest(
            **vars(pair), p_adjusted=p, significant=name != best and p <= 1 - level
        )
    return found


def pair_p_values(differences: FloatArray, replicates: FloatArray) -> FloatArray:
    """Return the p-values of `paired_difference` for many pairs at once.

    Args:
        differences: (P,) of the values on the rows themselves.
        replicates: (P, R) the same on resamples.
    """
    noise = np.abs(replicates - replicates.mean(axis=1, keepdims=True))
    size = np.abs(differences)
    beyond = (noise >= size[:, None]).sum(axis=1)
    p_values = (1 + beyond) / (1 + replicates.shape[1])
    spread = np.sqrt((noise**2).mean(axis=1))
    for i in np.flatnonzero((beyond == 0) & (spread > 0)).tolist():
        p_values[i] = min(p_values[i], math.erfc(size[i] / (spread[i] * math.sqrt(2))))
    return p_values
