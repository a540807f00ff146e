"""The verdict of a comparison: one method to use, and why.

People compare methods to decide. The rule, in the order in which it asks:

1. Likelihood first. Keep the methods that may be the best in NLL (95 % set, multiple comparisons
   with the best). The top-label form has no NLL: there all are kept.
2. Of these, keep those that may be the best in ECE.
3. Of these, keep those that leave every predicted class as it is, if there are any.
4. Of these, take the one with the fewest parameters, and of equally many the one with the lowest
   NLL.

A proper score comes first because it can't be improved by throwing information away, and because it
has far less noise than an ECE; simplicity comes last because it only decides between methods which
these rows can't tell apart. Who may be the best in NLL is computed from the rows, not from
resamples (`calibrant.evaluation.best_set`), so the seed has no say in it. What the rule costs and
gives is simulated in `docs/verdict.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from calibrant.core.text import counted, listed
from calibrant.evaluation.best_set import may_be_best, may_have_best_mean
from calibrant.evaluation.mean_noise import covariance_of_means
from calibrant.metrics.metric_types import MeanMetric

if TYPE_CHECKING:
    from calibrant.comparison.comparison import ComparedMethod
    from calibrant.evaluation.results import MetricResult

# The first of these that was measured decides before the calibration error does.
PROPER_SCORES = ("nll", "brier")
CALIBRATION = "ece"
# What a verdict rests on; `compare` measures them whatever else is asked for.
DECIDING = (PROPER_SCORES[0], CALIBRATION)
NAMED = 4


@dataclass(frozen=True)
class Verdict:
    """Which method to use.

    Attributes:
        recommended: its name.
        why: two sentences, of what was kept at each step of the rule.
        may_be_best: metric to the names of the methods that may be the best in it, best first.
    """

    recommended: str
    why: str
    may_be_best: Mapping[str, Sequence[str]]


def best_sets(methods: Sequence[ComparedMethod], level: float) -> dict[str, list[str]]:
    """Return, for each metric that all methods have, those that may be the best in it.

    Args:
        methods: with evaluations on the same resamples.
        level: probability that a set holds the truly best of these methods.
    """
    every: list[dict[str, MetricResult]] = [m.evaluation.results for m in methods]
    shared = [name for name in every[0] if all(name in results for results in every)]
    return {name: _best_set(methods, name, level) for name in shared}


def _best_set(methods: Sequence[ComparedMethod], metric: str, level: float) -> list[str]:
    results = [method.evaluation[metric] for method in methods]
    costs = np.array([result.cost for result in results])
    if isinstance(of := results[0].metric, MeanMetric):
        covariance = covariance_of_means([method.evaluation for method in methods], of)
        may = may_have_best_mean(costs, covariance, level)
    else:
        may = may_be_best(costs, np.stack([of.costs(r.replicates) for r in results]), level)
    order: list[int] = np.argsort(costs, kind="stable").tolist()
    return [methods[i].name for i in order if may[i]]


def decide(methods: Sequence[ComparedMethod], level: float) -> Verdict:
    """Return the method to use, by the rule of this module.

    Args:
        methods: at least one, with evaluations on the same resamples.
        level: probability that each set of best methods holds the truly best one.
    """
    sets = best_sets(methods, level)
    kept = list(methods)
    said: list[str] = []
    score = next((name for name in PROPER_SCORES if name in sets), None)
    for metric in (score, CALIBRATION):
        if metric is None or metric not in sets or (said and len(kept) == 1):
            continue
        # The set of those that are left: the best of all may have been left out before.
        among = _best_set(kept, metric, level)
        title = methods[0].evaluation[metric].metric.title
        said.append(f"{_share(among, kept)} may have the lowest {title}")
        kept = [method for method in kept if method.name in among]
    keeping = [method for method in kept if method.keeps_accuracy]
    proper = score or CALIBRATION

    def simplicity(method: ComparedMethod) -> tuple[int, float]:
        cost = method.evaluation[proper].cost if proper in sets else 0.0
        return method.calibrator.n_parameters, cost

    chosen = min(keeping or kept, key=simplicity)
    return Verdict(chosen.name, _why(chosen, said, kept, keeping), sets)


def _share(among: Sequence[str], of: Sequence[ComparedMethod]) -> str:
    """Return how many of the methods are left, and which if they are few."""
    if len(among) == 1:
        return f"only {among[0]}" if len(of) > 1 else among[0]
    if len(among) == len(of):
        return f"all {len(of)}"
    names = f" ({listed(among)})" if len(among) <= NAMED else ""
    return f"{len(among)} of {len(of)}{names}"


def _why(
    chosen: ComparedMethod,
    said: Sequence[str],
    kept: Sequence[ComparedMethod],
    keeping: Sequence[ComparedMethod],
) -> str:
    """Return the two sentences that give the reasons."""
    first = "; of these ".join(said)
    first = f"{first[0].upper()}{first[1:]}." if first else ""
    has = f"has {counted(chosen.calibrator.n_parameters, 'parameter')}"
    fewest = f"has the fewest parameters ({chosen.calibrator.n_parameters})"
    if len(kept) == 1:
        keeps = "keeps every predicted class" if chosen.keeps_accuracy else "changes some classes"
        second = f"It {keeps} and {has}."
    elif not keeping:
        second = f"None of these keeps every predicted class; {chosen.name} {fewest}."
    elif len(keeping) == 1:
        second = f"Only {chosen.name} keeps every predicted class; it {has}."
    elif len(keeping) < len(kept):
        second = f"Of those that keep every predicted class, {chosen.name} {fewest}."
    else:
        second = f"All keep every predicted class; {chosen.name} {fewest}."
    return f"{first} {second}".strip()
