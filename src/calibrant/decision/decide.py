"""`decide`: from a calibrator and rows with labels to a decision with a promise.

Decisions by groups of rows, under one promise for all groups at once.

What is promised of all rows together may fail in a group. So each group has a threshold, or a
quantile, of its own, and all of them are to hold together: with a confidence of `sure` no group
breaks its promise. Each of G groups is given a part of what may go wrong, (1 - sure) / G
(Bonferroni): groups share no rows, so that little is lost by it.

How many groups are counted depends on their sizes alone, never on labels: groups so small that they
couldn't pass with no error at all are left out, named, and nothing of theirs is answered.

- At a risk: fixed-sequence testing in each group (`calibrant.decision.risk`).
- As sets: of n rows of a group, the coverage of the quantile at place k is Beta(k, n + 1 - k)
  (without ties); the smallest place is taken that is above `cover` with the sureness of the group.

References:
    Angelopoulos et al., "Learn then test", arXiv 2110.01052. Vovk: Conditional validity of
    inductive conformal predictors. ACML 2012.
"""

from __future__ import annotations

import math
from typing import Any, cast, overload

import numpy as np

from calibrant.core.arguments import within
from calibrant.core.arrays import Array
from calibrant.core.errors import InputError
from calibrant.core.text import counted
from calibrant.decision.base import DecidedRows, check_sure
from calibrant.decision.cost import CostDecision, by_cost, cost_matrix, said_vectors
from calibrant.decision.grouped import GroupedDecision, as_column, cuts_of, groups_of
from calibrant.decision.risk import (
    Loss,
    Measure,
    RiskDecision,
    as_event,
    by_risk,
    checked_loss,
    class_numbered,
)
from calibrant.decision.sets import SetDecision, by_set
from calibrant.evaluation.formatting import percent, percent_asked
from calibrant.evaluation.uncertainty import DEFAULT_LEVEL, check_drawing
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.fitted_rows import share_among, were_fitted
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.predictions import Predictions, rows_of_first_part
from calibrant.predictions.scoring import said_of_top
from calibrant.scale.shards import Shards

FIT_SHARE = 0.5


@overload
def decide(
    calibrator: Calibrator | str,
    rows: Predictions | Shards,
    *,
    risk: float,
    loss: Loss | None = None,
    sure: float = 0.95,
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
) -> RiskDecision: ...


@overload
def decide(
    calibrator: Calibrator | str,
    rows: Predictions | Shards,
    *,
    precision: float,
    of: int | str | None = None,
    sure: float = 0.95,
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
) -> RiskDecision: ...


@overload
def decide(
    calibrator: Calibrator | str,
    rows: Predictions | Shards,
    *,
    recall: float,
    of: int | str | None = None,
    sure: float = 0.95,
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
) -> RiskDecision: ...


@overload
def decide(
    calibrator: Calibrator | str,
    rows: Predictions | Shards,
    *,
    cover: float,
    score: str = "lac",
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
) -> SetDecision: ...


# Parameters: those of `decide` that go with costs.
@overload
def decide(
    calibrator: Calibrator | str,
    rows: Predictions | Shards,
    *,
    costs: Array | None = None,
    error_cost: float | None = None,
    hand_over_cost: float | None = None,
    of: int | str | None = None,
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
) -> CostDecision: ...


# Parameters: the calibrator before the decision, one of the rules with its numbers, and the draws.
def decide(
    calibrator: Calibrator | str,
    rows: Predictions | Shards,
    *,
    risk: float | None = None,
    loss: Loss | None = None,
    precision: float | None = None,
    recall: float | None = None,
    of: int | str | None = None,
    sure: float = 0.95,
    costs: Array | None = None,
    error_cost: float | None = None,
    hand_over_cost: float | None = None,
    cover: float | None = None,
    score: str = "lac",
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
) -> RiskDecision | CostDecision | SetDecision:
    """Find what to do with calibrated rows, by one rule, and what can be promised.

    - ``risk``: answer the rows above the lowest confidence at which at most this share of the
      answers is wrong, with probability `sure` (learn-then-test by fixed sequence over a fixed grid
      of thresholds: exact binomial tests; bets on the units of rows with weights or in clusters).
      With ``loss``, the promise is about the mean loss of the answered rows instead of their
      errors.
    - ``precision`` or ``recall``: assign rows to one class if its probability reaches a threshold,
      with a precision or recall that is promised in the same way. Precision takes the lowest such
      threshold, recall the highest.
    - costs: choose the class, or handing over, with the least expected cost.
    - ``cover``: give each row a set of classes; this share of the sets contains the true class
      (split conformal).

    The rows must not be the rows that the calibrator was fitted to. An unfitted calibrator, or the
    name of a method, is fitted to one half of the rows, and the threshold is found on the other
    half; clusters stay whole. For many files, a risk, a precision or a recall keeps one number for
    each row in memory, and the other rules keep all probabilities.

    Args:
        calibrator: a fitted calibrator, or an unfitted one or the name of a method.
        rows: labelled rows of the kind that the calibrator takes.
        risk: error rate among answered rows, a fraction.
        loss: (N,) loss of each row, from 0 to 1, or a function that computes it from calibrated
            rows.
        precision: share of the rows assigned to the class that belong to it; recall: share of the
            rows of the class that are assigned to it; fractions.
        of: that class, by number or name; by default the second of two. With costs, the class of
            the net benefit; with more than two classes, by default the event that the predicted
            class is right.
        sure: probability that the promise holds, over sets of rows like these; a fraction.
        costs: (K, K) cost of answering with a class (column) if another one (row) is true.
        error_cost: one cost for every error, instead of `costs`; 1 if neither is given.
        hand_over_cost: cost of not answering; None if every row is answered.
        cover: share of the sets that should contain the true class, a fraction.
        score: the score that makes the sets: ``"lac"``, ``"aps"`` or ``"raps"``.
        level: coverage of intervals.
        seed: for the halves, and for the order of bets.

    Raises:
        InputError: no rule or several, a number out of range, or rows that the calibrator was
            fitted to.
        PredictionsError: the calibrator can't take these rows.

    References:
        Geifman & El-Yaniv, NeurIPS 2017; Angelopoulos et al., arXiv 2110.01052.

    Examples:
        >>> import calibrant as cb
        >>> found = cb.decide("temperature", cb.load_sample("test"), risk=0.05)
        >>> found.n, found.error.value < 0.05
        (5000, True)
    """
    by_costs = any(each is not None for each in (costs, error_cost, hand_over_cost))
    bounded: dict[Measure, float | None] = {
        "error": risk,
        "precision": precision,
        "recall": recall,
    }
    wanted: list[tuple[Measure, float]] = [
        (name, value) for name, value in bounded.items() if value is not None
    ]
    if len(wanted) + by_costs + (cover is not None) != 1:
        raise InputError(
            "decide takes one rule: risk=0.05, the error rate among answered rows (--risk); "
            "precision=0.9 or recall=0.9 of a class (--precision, --recall); "
            "hand_over_cost=1, beside costs or error_cost (--hand-over-cost, --costs, "
            "--error-cost); or cover=0.9, the share of sets that hold the true class (--cover)"
        )
    check_drawing(2, level, seed)
    check_sure(sure)
    for name, value in (*wanted, ("cover", cover)):
        if value is not None:
            within("risk" if name == "error" else name, value, above=0, below=1)
    if loss is not None and risk is None:
        raise InputError("loss needs risk, the highest mean loss allowed (--risk)")
    event = precision is not None or recall is not None
    if of is not None and not (event or by_costs):
        raise InputError(
            "of names the class for precision or recall (--precision, --recall), or for the "
            "net benefit of a decision by cost"
        )
    matrix = cost_matrix(rows, costs, error_cost, hand_over_cost) if by_costs else None
    fitted, on, chosen, notes = prepared(calibrator, rows, seed)
    acts_on_class = event or (by_costs and (of is not None or rows.n_classes == 2))
    number = class_numbered(of, rows, fitted.class_names_) if acts_on_class else None
    after, counts = calibrated_rows(
        fitted, on, risk is not None and not callable(loss), number if event else None
    )
    losses = None
    if loss is not None:
        given = loss(after) if callable(loss) else loss
        every = rows.n if isinstance(rows, Predictions) else rows.rows
        losses = checked_loss(given, after.n if callable(loss) else every, rows.source)
        if not callable(loss):
            losses = losses[chosen][counts]
    decided = DecidedRows.of_calibrated(after)
    common: dict[str, Any] = {
        "calibrator": fitted,
        "source": on.source,
        "n": after.n,
        "clusters": decided.clusters,
        "notes": notes,
    }
    if matrix is not None:
        said = said_vectors(on)
        return by_cost(decided, matrix, said, of=number, level=level, seed=seed, common=common)
    if cover is not None:
        return by_set(decided, cover, score, level=level, seed=seed, common=common)
    ((name, value),) = wanted
    return by_risk(
        decided,
        value if name == "error" else 1 - value,
        sure,
        measure=name if losses is None else "loss",
        of=number,
        loss=losses,
        level=level,
        seed=seed,
        common=common,
    )


def calibrated_rows(
    calibrator: Calibrator, rows: Predictions | Shards, top: bool, of: int | None
) -> tuple[Predictions, Any]:
    """Return rows that count, calibrated, and which of those that were given they are.

    Args:
        calibrator: the fitted one; rows: labelled rows.
        top: whether the confidence of the predicted class is all that is needed of many files.
        of: the class whose probability is all that is needed; None for another rule.
    """

    def kept(after: Predictions) -> Predictions:
        if of is not None:
            return as_event(after, of)
        if not top or after.top_only or isinstance(rows, Predictions):
            return after
        said, predicted = said_of_top(after)
        return Predictions.from_confidence(
            said, predicted, after.labels, after.source, sample_weight=after.weights
        )

    if isinstance(rows, Predictions):
        counts = slice(None) if rows.weights is None else rows.weights > 0
        return kept(calibrator.apply_predictions(rows.counted)), counts
    rows.refuse_clusters()
    parts = [kept(calibrator.apply_predictions(batch)) for batch in rows.batches()]
    whole = Predictions.concatenate(parts, source=rows.source)
    return whole.counted, slice(None) if whole.weights is None else whole.weights > 0


def prepared(
    calibrator: Calibrator | str, rows: Predictions | Shards, seed: int
) -> tuple[Calibrator, Predictions | Shards, Any, tuple[str, ...]]:
    """Return a fitted calibrator, rows that it wasn't fitted to, which they are, and a note.

    Raises:
        InputError: it was fitted to these rows, or is to be fitted to half of many files.
    """
    whole = slice(None)
    if isinstance(rows, Predictions):
        _ = rows.labels  # which say that there are none, where there are none
    if isinstance(calibrator, str):
        calibrator = make_calibrator(calibrator)
    if not hasattr(calibrator, "fit_report_"):
        if not isinstance(rows, Predictions):
            raise InputError(
                f"{rows.source}: many files aren't split into halves; fit to some of them, and "
                f"decide on the others: calibrant fit FILES --method {calibrator.method} --out "
                "calibrator.safetensors"
            )
        first = rows_of_first_part(rows.n, FIT_SHARE, seed, None, rows.source, rows.clusters)
        fit, rest = rows.take(np.flatnonzero(first)), rows.take(np.flatnonzero(~first))
        fitted = type(calibrator)(**calibrator.get_params()).fit_predictions(fit)
        note = (
            f"{fitted.method} was fitted to {counted(fit.n, 'row')} of {rows.source}, and the "
            f"decision found on the other {rest.n}."
        )
        return fitted, rest, ~first, (note,)
    batches = rows if isinstance(rows, Predictions) else rows.batches()
    share = share_among(calibrator.fitted_to_, batches)
    if share is None:
        why = "its file doesn't say"
        if calibrator.fitted_to_:
            why = "numbers as rounded as theirs agree by chance (it wasn't fitted to exactly these)"
        unchecked = (
            f"Calibrant can't check whether {calibrator.method} was fitted to some of these rows: "
            f"{why}. On rows of the fit the promise is void."
        )
        return calibrator, rows, whole, (unchecked,)
    if were_fitted(share, rows):
        raise InputError(
            f"{rows.source}: about {percent(share)} % of the rows that '{calibrator.method}' was "
            "fitted to are among these, and a promise needs rows that it hasn't seen; give other "
            f"rows, or have these split in two: decide('{calibrator.method}', rows), or "
            f"calibrant decide {calibrator.method} FILE"
        )
    return calibrator, rows, whole, ()


COLUMN = "group"


# Parameters: those of `decide` but for costs, and the groups.
def decide_by(
    calibrator: Calibrator | str,
    rows: Predictions | Shards,
    groups: Array | str,
    *,
    risk: float | None = None,
    loss: Loss | None = None,
    precision: float | None = None,
    recall: float | None = None,
    of: int | str | None = None,
    cover: float | None = None,
    score: str = "lac",
    sure: float = 0.95,
    by: str = COLUMN,
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
) -> GroupedDecision:
    """Decide in each group of rows, under one promise that holds for all groups at once.

    Args:
        calibrator: a calibrator fitted to other rows, or an unfitted one or the name of a method.
        rows: labelled rows.
        groups: (N,) values, where each distinct value is a group, or ``"predicted"``,
            ``"confidence"``, ``"margin"``.
        risk: error rate among answered rows of each group, a fraction.
        loss: (N,) loss of each row; the promise is about its mean instead of errors, see `decide`.
        precision, recall: of one class in each group, instead of a risk; of: that class.
        cover: instead of these, the share of the sets in each group that should contain the true
            class.
        score: by which sets are made.
        sure: probability that the promise holds for all groups, over sets of rows like these.
        by: the name of the groups' column; new rows need this column too.
        level: coverage of intervals.
        seed: for bets and halves.

    Raises:
        InputError: no rule or several, a number out of range, groups by true label, rows of the
            fit, or no group that is large enough.
        PredictionsError: the calibrator can't take these rows.

    Examples:
        >>> import calibrant as cb
        >>> scaling = cb.TemperatureScaling().fit_predictions(cb.load_sample("validation"))
        >>> from calibrant.decision import decide_by
        >>> found = decide_by(scaling, cb.load_sample("test"), "predicted", cover=0.9)
        >>> min(each.coverage.value for each in found.groups.values()) > 0.9
        True
    """
    bounded = {"error": risk, "precision": precision, "recall": recall, "cover": cover}
    rules = [(name, value) for name, value in bounded.items() if value is not None]
    if len(rules) != 1:
        raise InputError(
            "decisions by groups take one rule: risk=0.05 (--risk), precision=0.9 or recall=0.9 "
            "of a class (--precision, --recall), or cover=0.9 (--cover)"
        )
    ((name, wanted),) = rules
    check_drawing(2, level, seed)
    within("risk" if name == "error" else name, wanted, above=0, below=1)
    check_sure(sure)
    event = name in ("precision", "recall")
    if loss is not None and risk is None:
        raise InputError("loss needs risk, the highest mean loss allowed (--risk)")
    if of is not None and not event:
        raise InputError("of names the class of precision or recall (--precision, --recall)")
    fitted, on, chosen, notes = prepared(calibrator, rows, seed)
    after, counts = calibrated_rows(fitted, on, False, None)
    number = class_numbered(of, rows, fitted.class_names_) if event else None
    count = rows.n if isinstance(rows, Predictions) else rows.rows

    def of_counted(values: Any) -> Any:
        """Return what belongs to the rows that are decided on."""
        return values[chosen][counts]

    if not isinstance(groups, str):
        groups = of_counted(as_column(groups, count, rows.source))
    losses = None
    if loss is not None:
        given = loss(after) if callable(loss) else loss
        losses = checked_loss(given, after.n if callable(loss) else count, rows.source)
        losses = losses if callable(loss) else of_counted(losses)
    names, member = groups_of(after, groups)
    acted = as_event(after, number) if number is not None else after
    places = [np.flatnonzero(member == number) for number in range(len(names))]
    decided = {
        n: DecidedRows.of_calibrated(acted.take(at)) for n, at in zip(names, places, strict=True)
    }
    sizes = {name: each.units for name, each in decided.items()}
    if name == "recall":  # it is among the rows of the class, whose number no score shows
        sizes = {
            n: len(np.unique(each.unit[each.calibrated.labels == 1])) for n, each in decided.items()
        }
    rate = wanted if name == "error" else 1 - wanted
    large, needed = large_enough(sizes, rate, sure, spare=1 if name == "cover" else 0)
    if not large:
        raise InputError(
            f"{on.source}: no group is large enough; for {percent_asked(rate)} % at "
            f"{percent(sure)} % sure a group needs {needed} rows (or clusters, if there are "
            f"some), and the largest has {max(sizes.values())}"
        )
    each_sure = 1 - (1 - sure) / len(large)
    found: dict[str, RiskDecision | SetDecision] = {}
    for group in large:
        part = decided[group]
        common: dict[str, Any] = {
            "calibrator": fitted,
            "source": f"{on.source}, {group}",
            "n": len(part.confidence),
            "clusters": part.clusters,
            "notes": (),
        }
        if name == "cover":
            place = place_of(sizes[group], wanted, each_sure)
            asked = place / (sizes[group] + 1)
            found[group] = by_set(part, asked, score, level=level, seed=seed, common=common)
            continue
        found[group] = by_risk(
            part,
            rate,
            each_sure,
            measure=cast(Measure, name) if losses is None else "loss",
            of=number,
            loss=None if losses is None else losses[places[names.index(group)]],
            level=level,
            seed=seed,
            common=common,
        )
    kind = groups if isinstance(groups, str) else "column"
    return GroupedDecision(
        calibrator=fitted,
        source=on.source,
        n=after.n,
        clusters=DecidedRows.of_calibrated(after).clusters,
        notes=notes,
        by=by if kind == "column" else {"predicted": "predicted class"}.get(kind, kind),
        kind=kind,
        groups=found,
        cuts=cuts_of(after, kind),
        too_small={name: size for name, size in sizes.items() if name not in found},
        needed=needed,
        wanted=wanted if name == "cover" else rate,
        sure=sure,
        level=level,
    )


def large_enough(
    sizes: dict[str, int], rate: float, sure: float, spare: int = 0
) -> tuple[list[str], int]:
    """Return the groups that could keep a promise, and how many rows that takes.

    Args:
        sizes: number of rows, or clusters, of each group.
        rate: of errors, or of sets without the true class.
        sure: of all groups together.
        spare: errors that must be possible; sets measure themselves on halves.
    """

    def needed(groups: int) -> int:
        fewest = math.ceil(math.log((1 - sure) / groups) / math.log(1 - rate))
        if spare:
            part = 1 - (1 - sure) / groups
            while place_of(fewest, 1 - rate, part) > fewest - spare:
                fewest += 1
        return fewest

    order = sorted(sizes, key=lambda name: -sizes[name])
    count = len(order)
    while count and sizes[order[count - 1]] < needed(count):
        count -= 1
    kept = set(order[:count])
    return [name for name in sizes if name in kept], needed(max(count, 1))


def place_of(rows: int, cover: float, sure: float) -> int:
    """Return the smallest place k of n for which Beta(k, n + 1 - k) is above `cover` so surely."""
    from scipy.special import betainc

    places = np.arange(1, rows + 1)
    passed = np.flatnonzero(betainc(places, rows + 1 - places, cover) <= 1 - sure)
    return int(places[passed[0]]) if len(passed) else rows + 1
