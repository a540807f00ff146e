"""The decision that costs least in expectation, by calibrated probabilities.

With C[y, d] the cost of deciding d where y is true, row p gets the d of least sum_y p_y C[y, d]
(Elkan, "The foundations of cost-sensitive learning", 2001). Handing over is one more decision, of
the same cost whatever is true. No number is fitted, so what it saves is an average over rows that
had no say in the rule, with a paired interval.

Net benefit: what acting on an event's probability is worth, at each ratio of the costs.

Who acts from a probability of t on holds a false alarm to cost t / (1 - t) times what a hit is
worth. In units of a hit, and per row, that comes to

    benefit(t) = TP / n - FP / n * t / (1 - t)

over the rows with p >= t (Vickers & Elkin, "Decision curve analysis", 2006). To act on every row is
worth prevalence - (1 - prevalence) t / (1 - t), to act on none 0: a model is of use at the t where
it is worth more than both. The event is a class, or that the predicted class is the true one, where
acting is answering.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from calibrant.core import numpy_namespace as xnp
from calibrant.core.arrays import Array, FloatArray, IntArray, as_array, to_numpy
from calibrant.core.errors import InputError
from calibrant.core.result import Table
from calibrant.core.threads import mapped
from calibrant.decision.base import DecidedRows, Decision, Share, mean_of
from calibrant.evaluation.bootstrap import Draws, joined
from calibrant.evaluation.formatting import interval_of, percent
from calibrant.evaluation.uncertainty import default_resamples, interval
from calibrant.metrics.resampling import Clusters, cluster_stretch
from calibrant.predictions.predictions import Predictions
from calibrant.scale.shards import Shards

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
        seed: for the resamples.
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
    drawn = joined(mapped(lambda part: worth(sums @ draws.of(part)), draws.batches()))
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


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class CostDecision(Decision):
    """For each row the decision of least expected cost.

    Attributes:
        costs: (K, D) cost of each decision for each true class. The decisions are the K classes to
            answer with and, if D is K + 1, handing over. If rows have one number each, the classes
            are "wrong" and "right", and the decisions are to answer and to hand over.
        cost: mean cost of a row, with its interval; expected: the mean cost by the probabilities.
        before: mean cost of answering every row with the predicted class.
        saved: that minus the cost, with the interval of the paired difference.
        answered: share of rows that are answered.
        level: coverage of the intervals.
        miscalibration: how much more the same rule costs with the uncalibrated probabilities,
            paired; None if the model gives scores that aren't probabilities.
        benefit: columns of the net benefit over thresholds, with the calibrated and the
            uncalibrated probabilities; see `calibrant.decision.cost`.
        of: the class of the net benefit; None if the event is that the predicted class is right.

    Examples:
        >>> import calibrant as cb
        >>> scaling = cb.TemperatureScaling().fit_predictions(cb.load_sample("validation"))
        >>> found = cb.decide(scaling, cb.load_sample("test"), error_cost=10, hand_over_cost=1)
        >>> round(found.cost.value, 1), found.saved.low > 0
        (0.6, True)
    """

    costs: NDArray[np.float64]
    cost: Share
    expected: float
    before: Share
    saved: Share
    answered: Share
    level: float
    miscalibration: Share | None = None
    benefit: dict[str, FloatArray] = field(default_factory=dict[str, FloatArray])
    of: int | None = None

    rule: ClassVar[str] = "cost"

    def fault(self) -> str | None:
        """Return why the numbers of a file make no decision, as a clause, or None."""
        top_only = self.calibrator.form_ == "toplabel"
        classes = 2 if top_only else self.calibrator.n_classes_
        widths = (2,) if top_only else (classes, classes + 1)
        if self.costs.ndim != 2 or self.costs.shape[0] != classes:
            return f"costs of shape {self.costs.shape}"
        sizes = {column.shape for column in self.benefit.values()}
        known = ({*BENEFIT}, {*BENEFIT, *GAIN})
        if self.benefit and (set(self.benefit) not in known or len(sizes) != 1):
            return f"a net benefit without the columns {', '.join(BENEFIT)}"
        if not 0 <= (self.of or 0) < classes:
            return f"the net benefit of class {self.of}"
        return None if self.costs.shape[1] in widths else f"costs of shape {self.costs.shape}"

    @property
    def event(self) -> str:
        """What the net benefit acts on: a class, or that the predicted class is right."""
        if self.of is None:
            return "being right"
        names = self.calibrator.class_names_
        return f"class {self.of}" if names is None else f"'{names[self.of]}'"

    @property
    def benefit_shown(self) -> tuple[float, float]:
        """The lowest and the highest net benefit that a picture shows."""
        most = max(float(self.benefit["high"].max()), float(self.benefit["all"].max()), 0.01)
        return -0.2 * most, 1.05 * most

    def headline(self) -> str:
        """Return what a row costs, and what is saved."""
        sure = "" if self.saved.low <= 0 <= self.saved.high else ", beyond noise"
        verb, gain = "saves", self.saved
        if gain.value < 0:
            verb, gain = "loses", Share(-gain.value, -gain.high, -gain.low)
        return (
            f"Deciding by expected cost answers {percent(self.answered.value)} % of rows and costs "
            f"{_number(self.cost)} a row; it {verb} {_number(gain)} "
            f"compared with answering all{sure}."
        )

    def promise(self) -> str:
        """Return what it promises of new rows, and under which conditions."""
        return (
            "The promise: if the calibrated probabilities are right, no rule that sees only them "
            "costs less on average. Nothing is promised for a single row. A difference between "
            "expected and measured cost shows that the probabilities are wrong. The costs are "
            "taken as given."
        )

    def outputs(self, xp: Any, probs: Array, confidence: Array) -> dict[str, Array]:
        """Return `decision`, its number, with K to hand over; `answer`, whether; `cost`, expected.

        Rows with one number each have no `decision`.
        """
        expected = probs @ xp.asarray(
            self.costs, dtype=probs.dtype, device=getattr(probs, "device", None)
        )
        chosen = xp.argmin(expected, axis=1)
        top_only = self.calibrator.form_ == "toplabel"
        found = {"decision": chosen, "answer": chosen < (1 if top_only else len(self.costs))}
        if top_only:
            del found["decision"]
        return found | {"cost": xp.min(expected, axis=1)}

    def columns(
        self, calibrated: Predictions, groups: Array | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return `decision`, the class or "" to hand over; `answer`, whether; `cost`, expected."""
        probs = vectors_of(calibrated)
        found = self.outputs(xnp, probs, probs.max(axis=1))
        if "decision" in found:
            names = calibrated.class_names or [str(k) for k in range(len(self.costs))]
            found["decision"] = np.array([*names, ""])[found["decision"]]
        return found

    def as_table(self) -> Table:
        """Return the costs of both rules and their difference."""
        lines = [
            ["answering all", *_cells(self.before)],
            ["by expected cost", *_cells(self.cost)],
            ["saved", *_cells(self.saved)],
        ]
        notes = (
            f"Mean cost of a row with its {interval_of(self.level)}; that of saved is paired. "
            f"Expected from the probabilities: {self.expected:.4g}."
        )
        if self.miscalibration is not None:
            lines.append(["miscalibration costs", *_cells(self.miscalibration)])
            notes += (
                " Miscalibration costs: how much more the same rule costs with the uncalibrated "
                "probabilities."
            )
        if self.benefit:
            notes += f" {self.benefit_in_words()}"
        return Table(["rule", "cost", "low", "high"], lines, notes=notes)

    def benefit_in_words(self) -> str:
        """Return at which thresholds the model beats acting on all rows and on none."""
        rule, others = "answering only rows", "answering all rows and answering none"
        if self.of is not None:
            rule, others = f"calling {self.event} only rows", "calling all rows so and calling none"
        rule = f"{rule} with a probability of at least t"
        useful = useful_range(self.benefit)
        if useful is None:
            return f"Net benefit: no threshold t is known at which {rule} beats both {others}."
        words = f"Net benefit: {rule} beats both {others} if t is {_range(useful)}."
        if "gain" not in self.benefit:
            return words
        gain = useful_range(self.benefit, "gain_low")
        if gain is None:
            return f"{words} No t is known at which it beats the uncalibrated probabilities."
        most = int(np.argmax(self.benefit["gain"]))
        value, low, high = (float(self.benefit[n][most]) for n in GAIN[1:])
        return (
            f"{words} It beats the uncalibrated probabilities if t is {_range(gain)}, by at most "
            f"{value:.3g} ({low:.3g} to {high:.3g}) a row, at t = {AT[most]:g}."
        )

    def records(self) -> list[dict[str, Any]]:
        """Return a row for each rule and their difference."""
        named = {"all": self.before, "by cost": self.cost, "saved": self.saved}
        if self.miscalibration is not None:
            named["miscalibration"] = self.miscalibration
        return [{"rule": name, **share.as_dict()} for name, share in named.items()]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        shares = ("cost", "before", "saved", "answered")
        return {
            "rule": self.rule,
            "costs": self.costs.tolist(),
            "expected": self.expected,
            **{name: getattr(self, name).as_dict() for name in shares},
            "miscalibration": self.miscalibration and self.miscalibration.as_dict(),
            "net_benefit": {"of": self.of, **{k: v.tolist() for k, v in self.benefit.items()}},
            **self.facts(),
        }


def cost_matrix(
    rows: Predictions | Shards,
    costs: Array | None,
    error_cost: float | None,
    hand_over_cost: float | None,
) -> FloatArray:
    """Return the (K, D) costs that are meant; see `CostDecision`.

    Raises:
        InputError: a cost that is negative or not finite, another shape, or nothing to decide.
    """
    if costs is not None and error_cost is not None:
        raise InputError("give the costs of all confusions, or error_cost, one for all; not both")
    for name, value in (("error_cost", error_cost), ("hand_over_cost", hand_over_cost)):
        if value is not None and not 0 <= value < math.inf:
            raise InputError(f"{name} must be finite and not negative, not {value:g}")
    if rows.n_classes is None:
        if costs is not None:
            raise InputError(
                "costs of confusions need a probability for every class; if rows hold only "
                "the confidence of the predicted class, give error_cost and hand_over_cost"
            )
        matrix = np.array([[1.0 if error_cost is None else error_cost], [0.0]])
    else:
        classes = rows.n_classes
        each = 1.0 if error_cost is None else error_cost
        matrix = each * (1 - np.eye(classes))
        if costs is not None:
            matrix = np.asarray(to_numpy(as_array(costs)), dtype=np.float64)
            if matrix.shape != (classes, classes):
                raise InputError(
                    f"costs must have shape ({classes}, {classes}), a row for each true class and "
                    f"a column for each answer, not {matrix.shape}"
                )
            if not np.isfinite(matrix).all():
                raise InputError("costs must be finite")
    if hand_over_cost is not None:
        return np.column_stack([matrix, np.full(len(matrix), float(hand_over_cost))])
    if costs is None:
        raise InputError(
            "with one cost for every error the predicted class is best; give hand_over_cost as "
            "well, or the costs of confusions (on the command line --hand-over-cost 1, or --costs "
            "'0,1;5,0')"
        )
    return matrix


# Parameters: the rows, calibrated and not, the costs, and how intervals are made.
def by_cost(
    rows: DecidedRows,
    costs: FloatArray,
    said: FloatArray | None = None,
    *,
    of: int | None = None,
    level: float,
    seed: int,
    common: dict[str, Any],
) -> CostDecision:
    """Return the decision by expected cost, and what it is worth on rows with labels.

    Args:
        rows: calibrated, with labels.
        costs: (K, D), see `CostDecision`.
        said: (N, K) probabilities as the model said them; None where it said none.
        of: the class of the net benefit; None for that of being right.
        level: coverage of intervals; seed: of the resamples.
        common: the fields of every decision.
    """
    after = rows.calibrated
    probs = vectors_of(after)
    expected = probs @ costs
    chosen = expected.argmin(axis=1)
    truth: IntArray = rows.correct.astype(np.int64) if after.top_only else after.labels
    today = np.zeros_like(chosen) if after.top_only else probs.argmax(axis=1)
    now, before = costs[truth, chosen], costs[truth, today]
    answered = chosen < _answers(costs, after)
    weights, wasted = rows.weight, None
    ends = float(costs.min()), float(costs.max())
    apart = ends[0] - ends[1], ends[1] - ends[0]
    if said is not None:
        raw = costs[truth, (said @ costs).argmin(axis=1)]
        # Where the calibrator changes nothing, no row can ever cost more.
        possible = (0.0, 0.0) if np.array_equal(said, probs) else apart
        wasted = mean_of(rows, raw - now, level, ends=possible)

    def event(known: FloatArray) -> Said:
        """Return the event's probabilities, and whether it happened."""
        if of is not None:
            return known[:, of], truth == of
        if after.top_only:
            return known[:, 1], rows.correct
        return known.max(axis=1), known.argmax(axis=1) == truth

    return CostDecision(
        costs=costs,
        cost=mean_of(rows, now, level, ends=ends),
        expected=float(np.average(expected.min(axis=1), weights=weights)),
        before=mean_of(rows, before, level, ends=ends),
        saved=mean_of(rows, before - now, level, ends=apart),
        answered=rows.share(answered, level),
        level=level,
        miscalibration=wasted,
        benefit=net_benefit(
            rows, *event(probs), None if said is None else event(said), level=level, seed=seed
        ),
        of=of,
        **common,
    )


def vectors_of(rows: Predictions) -> FloatArray:
    """Return (N, K) probabilities, of one number a row those of being wrong and right."""
    if rows.top_only:
        confidence = to_numpy(rows.scores).astype(np.float64)
        return np.stack([1 - confidence, confidence], axis=1)
    return to_numpy(rows.probs).astype(np.float64)


def said_vectors(rows: Predictions | Shards) -> FloatArray | None:
    """Return (N, K) probabilities of rows that count, as the model said them; None of scores."""
    if isinstance(rows, Predictions):
        counting = rows.counted
        if counting.kind == "score":
            return None
        return vectors_of(counting)
    parts = [said_vectors(batch) for batch in rows.batches()]
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if len(known) == len(parts) else None


def _answers(costs: FloatArray, calibrated: Predictions) -> int:
    """Return how many of the decisions are answers; one beyond these hands over."""
    return 1 if calibrated.top_only else len(costs)


def _range(ends: tuple[float, float]) -> str:
    return f"{ends[0]:g} to {ends[1]:g}" if ends[0] < ends[1] else f"{ends[0]:g}"


def _number(share: Share) -> str:
    return f"{share.value:.4g} ({share.low:.4g} to {share.high:.4g})"


def _cells(share: Share) -> list[str]:
    return [f"{number:.4g}" for number in (share.value, share.low, share.high)]
