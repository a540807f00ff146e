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

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.core.text import counted, listed
from calibrant.evaluation.best_set import covariance_of_means, may_be_best, may_have_best_mean
from calibrant.evaluation.results import Evaluation, MetricResult
from calibrant.evaluation.sample import RowSample
from calibrant.evaluation.uncertainty import PairedDifference, holm, paired_difference
from calibrant.metrics.metric_types import MeanMetric
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.temperature.by_margin import MarginTemperature

# The first of these that was measured decides before the calibration error does.
PROPER_SCORES = ("nll", "brier")
CALIBRATION = "ece"
# What a verdict rests on; `compare` measures them whatever else is asked for.
DECIDING = (PROPER_SCORES[0], CALIBRATION)
NAMED = 4


@dataclass(frozen=True, eq=False)
class ComparedMethod:
    """One calibrator's part in a comparison.

    Attributes:
        name: as it was asked for.
        calibrator: fitted.
        evaluation: of its probabilities on the test rows.
        fit_seconds: time of `fit`: by the clock on the wall, or of the processor where several
            methods were worked on at a time.
        apply_seconds: the same of `predict_proba` on the test rows.
        keeps_accuracy: whether every test row kept its predicted class.
        warnings: what the fit warned of.
        by_margin: of a method that gives each row a temperature, that over the margin.
        losses: of each mean metric its (N,) numbers of the test rows.
    """

    name: str
    calibrator: Calibrator
    evaluation: Evaluation
    fit_seconds: float
    apply_seconds: float
    keeps_accuracy: bool
    warnings: tuple[str, ...]
    by_margin: MarginTemperature | None = None
    losses: Mapping[str, FloatArray] = field(default_factory=dict[str, FloatArray])

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        return {
            "method": self.name,
            "fit_seconds": self.fit_seconds,
            "apply_seconds": self.apply_seconds,
            "parameters": self.calibrator.n_parameters,
            "keeps_accuracy": self.keeps_accuracy,
            "warnings": list(self.warnings),
            "notes": list(self.calibrator.fit_report_.notes),
            "metrics": {n: r.as_dict() for n, r in self.evaluation.results.items()},
        }


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
    of = results[0].metric
    if isinstance(of, MeanMetric):
        first = methods[0].evaluation
        assert isinstance(first.sample, RowSample)
        losses = [method.losses[metric] for method in methods]
        covariance = covariance_of_means(losses, first.sample, first.level)
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
