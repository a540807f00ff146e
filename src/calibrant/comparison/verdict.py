"""The verdict of a comparison: one method to use, why, and what its alternatives cost.

People compare methods to decide. The rule:

1. A proper score decides: the NLL, of top labels that of being right (`top_nll`), or the Brier
   score where that alone was measured. It can't be improved by throwing information away, and has
   far less noise than a calibration error, which decides nothing alone.
2. `auto` is recommended if it was compared and may be the best in that score (95 % set, multiple
   comparisons with the best); else the method of the lowest score. So a comparison recommends what
   `fit` would do, whatever else is on the menu.
3. Alternatives are named with their price, the paired difference in the score: the best method that
   keeps every predicted class; the simplest one within a margin that matters; the one of the lowest
   calibration error among those that may be the best in the score.
4. If the recommended confidences are off by more than noise, the first sentence says so, and which
   method helps.

Who may be the best in a mean is computed from the rows, not from resamples
(`calibrant.evaluation.best_set`), so the seed has no say in the verdict. What the rule costs and
gives is simulated in `docs/appendix/verdict.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.core.errors import InputError
from calibrant.core.text import counted
from calibrant.evaluation.best_set import covariance_of_means, may_be_best, may_have_best_mean
from calibrant.evaluation.formatting import (
    all_digits,
    compared,
    percent,
    sentence,
    with_unit,
)
from calibrant.evaluation.results import Evaluation, MetricResult, finding, state_of
from calibrant.evaluation.sample import RowSample
from calibrant.evaluation.uncertainty import (
    ROUNDING,
    PairedDifference,
    difference_of,
    holm,
    paired_difference,
)
from calibrant.metrics.metric_types import MeanMetric
from calibrant.metrics.proper import TOP_NLL
from calibrant.posthoc.auto import AutoCalibrator
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.fitting.cross_validation import NO_CLEAR_GAIN
from calibrant.posthoc.temperature.scaling import MarginTemperature, Uncalibrated

# The method that leaves the network's own confidences as they are, and the one that `fit` takes.
UNCALIBRATED, AUTO = Uncalibrated.method, AutoCalibrator.method
# The first of these that was measured decides.
PROPER_SCORES = ("nll", "brier", TOP_NLL.name)
CALIBRATION = "ece"
# What a verdict rests on; `compare` measures them whatever else is asked for.
DECIDING = ("nll", CALIBRATION, "accuracy")
# The same of top labels, which have no NLL.
DECIDING_OF_TOP = (TOP_NLL.name, CALIBRATION, "accuracy")
# Differences in the score that matter to nobody, in nats.
MARGIN = 1e-3
Reason = Literal["keeps classes", "simplest", "lowest ece", "helps"]


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
        losses: of each mean metric its (N,) numbers of the test rows; a comparison keeps none.
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

    @property
    def said(self) -> tuple[str, ...]:
        """What the fit warned of, and that it took one temperature where it did."""
        notes = self.calibrator.fit_report_.notes
        return (*self.warnings, *(note for note in notes if note == NO_CLEAR_GAIN))

    def place(self, metric: str) -> tuple[float, int, int]:
        """Return what methods are ordered by: the cost, and of equal ones the simpler method.

        Costs that differ by rounding are equal, as those of maps are that took one temperature.
        """
        cost = ROUNDING * round(self.evaluation[metric].cost / ROUNDING)
        return cost, self.calibrator.n_parameters, len(self.calibrator.fit_report_.notes)

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
        pair_p_values(
            difference_of(values[i], values[i + 1 :]), difference_of(drawn[i], drawn[i + 1 :])
        )
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
    p_values[np.abs(replicates).max(axis=1, initial=0.0) <= ROUNDING] = 1.0
    spread = np.sqrt((noise**2).mean(axis=1))
    for i in np.flatnonzero((beyond == 0) & (p_values < 1) & (spread > 0)).tolist():
        p_values[i] = min(p_values[i], math.erfc(size[i] / (spread[i] * math.sqrt(2))))
    return p_values


@dataclass(frozen=True)
class Alternative:
    """A method to use instead of the recommended one.

    Attributes:
        name: the method.
        reason: why one might.
        price: its score minus that of the recommended method, on the same rows; above 0 is worse.
    """

    name: str
    reason: Reason
    price: PairedDifference


@dataclass(frozen=True)
class Verdict:
    """Which method to use.

    Attributes:
        recommended: its name.
        caution: what is still wrong with its confidences and what helps, as a clause; "" if
            nothing is.
        why: sentences: its score, whether its confidences are honest, what becomes of predictions.
        or_else: sentences of the alternatives; "" if there are none.
        alternatives: other methods with their prices.
        score: the metric that decided.
        may_be_best: metric to the names of the methods that may be the best in it, best first.
    """

    recommended: str
    caution: str
    why: str
    or_else: str
    alternatives: Sequence[Alternative]
    score: str
    may_be_best: Mapping[str, Sequence[str]]

    @property
    def lead(self) -> str:
        """The method to use, and the reasons."""
        return f"Use {self.recommended}{f', {self.caution}' if self.caution else ''}. {self.why}"

    @property
    def reasons(self) -> str:
        """All sentences but the one that names the method."""
        parts = (self.caution and sentence(self.caution), self.why, self.or_else)
        return " ".join(part for part in parts if part)

    def __str__(self) -> str:
        return f"{self.lead} {self.or_else}".strip()

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        return {
            "recommended": self.recommended,
            "why": str(self),
            "decided_by": self.score,
            "alternatives": [
                {"method": each.name, "reason": each.reason, "price": vars(each.price)}
                for each in self.alternatives
            ],
            "may_be_best": {metric: list(names) for metric, names in self.may_be_best.items()},
        }


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
    kept = [method for method, best in zip(methods, may, strict=True) if best]
    return [method.name for method in sorted(kept, key=lambda method: method.place(metric))]


def decide(methods: Sequence[ComparedMethod], level: float, margin: float = MARGIN) -> Verdict:
    """Return the method to use, by the rule of this module.

    Args:
        methods: at least one, with evaluations on the same resamples.
        level: probability that each set of best methods contains the truly best one.
        margin: difference in the score that doesn't matter, in its unit.

    Raises:
        InputError: no proper score was measured.
    """
    sets = best_sets(methods, level)
    score = next((name for name in PROPER_SCORES if name in sets), None)
    if score is None:
        raise InputError("a verdict takes nll, brier or top_nll, and none of them was measured")
    by_score = sorted(methods, key=lambda method: method.place(score))
    ours = next((m for m in by_score if m.calibrator.method == AUTO), by_score[0])
    chosen = ours if ours.name in sets[score] else by_score[0]

    def price(method: ComparedMethod) -> PairedDifference:
        return _difference(method, chosen, score, level)

    others = [method for method in by_score if method is not chosen]
    found: list[Alternative] = []

    def offer(method: ComparedMethod | None, reason: Reason) -> None:
        if method is not None:
            found.append(Alternative(method.name, reason, price(method)))

    if state_of(chosen.evaluation) not in ("honest", "unknown"):
        offer(next((m for m in others if state_of(m.evaluation) == "honest"), None), "helps")
    if not chosen.keeps_accuracy:
        offer(next((m for m in others if m.keeps_accuracy), None), "keeps classes")
    offer(_simplest(chosen, others, score, margin), "simplest")
    offer(_calibrated(chosen, others, sets[score], level), "lowest ece")
    own = next((m for m in methods if m.name == UNCALIBRATED and m is not chosen), None)
    caution = _caution(chosen, found, score)
    return Verdict(
        chosen.name,
        caution,
        _why(chosen, by_score[0], own, score, level, chosen.name if caution else "It"),
        _or_else(found, {method.name: method for method in methods}, score, margin),
        tuple(found),
        score,
        sets,
    )


def _difference(
    first: ComparedMethod, second: ComparedMethod, metric: str, level: float
) -> PairedDifference:
    one, other = first.evaluation[metric], second.evaluation[metric]
    values = one.value, other.value
    return paired_difference(one.replicates, other.replicates, values, level)


def _simplest(
    chosen: ComparedMethod, others: Sequence[ComparedMethod], score: str, margin: float
) -> ComparedMethod | None:
    """Return the method of the fewest parameters that costs no more than the margin."""
    most = chosen.evaluation[score].cost + margin
    simpler = [
        method
        for method in others
        if method.calibrator.n_parameters < chosen.calibrator.n_parameters
        and method.evaluation[score].cost <= most
    ]
    return min(simpler, key=lambda method: method.calibrator.n_parameters, default=None)


def _calibrated(
    chosen: ComparedMethod,
    others: Sequence[ComparedMethod],
    may_be_best: Sequence[str],
    level: float,
) -> ComparedMethod | None:
    """Return the method of the lowest calibration error that the score doesn't mind.

    None if it is no lower than that of the chosen method by more than noise.
    """
    able = [m for m in others if m.name in may_be_best and CALIBRATION in m.evaluation.results]
    if not able or CALIBRATION not in chosen.evaluation.results:
        return None
    best = min(able, key=lambda method: method.evaluation[CALIBRATION].value)
    return best if _difference(best, chosen, CALIBRATION, level).high < 0 else None


def _caution(chosen: ComparedMethod, found: Sequence[Alternative], score: str) -> str:
    """Return what is still wrong with the chosen confidences, and what helps."""
    if state_of(chosen.evaluation) in ("honest", "unknown"):
        return ""
    text = f"but its confidences are still {finding(chosen.evaluation)}"
    helper = next((each for each in found if each.reason == "helps"), None)
    if helper is None:
        return f"{text}; none of these methods corrects that; more rows to fit on may"
    return f"{text}; {helper.name} corrects that, {_price(helper.price, chosen.evaluation[score])}"


def _price(price: PairedDifference, result: MetricResult) -> str:
    """Return a price as in "NLL +0.0031 (0.0011 to 0.0051)"."""
    value, low, high = (all_digits(result.metric, end) for end in price.ends)
    sign = "+" if price.value > 0 else ""
    return f"{result.metric.title} {sign}{value} ({low} to {high})"


def _why(
    chosen: ComparedMethod,
    lowest: ComparedMethod,
    own: ComparedMethod | None,
    score: str,
    level: float,
    subject: str,
) -> str:
    """Return the sentences that give the reasons; the first has `subject` for the method."""
    result = chosen.evaluation[score]
    metric, value = result.metric, with_unit(result.metric, result.value)
    if chosen is lowest:
        text = f"{subject} has the lowest {metric.title}: {value}"
    else:
        best = with_unit(metric, lowest.evaluation[score].value)
        text = f"{subject} may have the lowest {metric.title}: {value} ({lowest.name} has {best})"
    if own is not None:
        difference = _difference(chosen, own, score, level)
        text += f"; that is {compared(metric, difference.ends)} than {own.name}"
    said = [f"{text}."]
    if state_of(chosen.evaluation) == "honest":
        said.append("Its confidences can't be told from perfectly calibrated ones.")
    if chosen.keeps_accuracy:
        said.append("It keeps every predicted class.")
    elif own is not None and "accuracy" in chosen.evaluation.results:
        accuracy = chosen.evaluation["accuracy"].metric
        change = compared(accuracy, _difference(chosen, own, "accuracy", level).ends)
        said.append(
            "It changes some predicted classes: its accuracy, "
            f"{percent(chosen.evaluation.accuracy)} %, is {change} than {own.name}'s."
        )
    else:
        said.append("It changes some predicted classes.")
    return " ".join(said)


def _or_else(
    found: Sequence[Alternative], methods: Mapping[str, ComparedMethod], score: str, margin: float
) -> str:
    """Return the sentences of the alternatives, one a method, each with its price."""
    said: dict[str, str] = {}
    for each in found:
        method, name = methods[each.name], each.name
        result = method.evaluation[score]
        if each.reason == "keeps classes":
            first, more = f"To keep every predicted class, use {name}", "keeps every class"
        elif each.reason == "simplest":
            own = f"({counted(method.calibrator.n_parameters, 'parameter')})"
            what = f"the simplest with {result.metric.title} at most {margin:g} higher"
            first, more = f"{sentence(what)[:-1]} is {name} {own}", f"{what} {own}"
        elif each.reason == "lowest ece":
            ece = method.evaluation[CALIBRATION]
            lower = f"a lower {ece.metric.title}, {with_unit(ece.metric, ece.value)}"
            first, more = f"{name} has {lower}", f"with {lower}"
        else:
            continue
        said[name] = f"{said[name]}, {more}" if name in said else first
    prices = {each.name: _price(each.price, methods[each.name].evaluation[score]) for each in found}
    return " ".join(f"{text}: {prices[name]}." for name, text in said.items())
