"""Decisions by groups of rows, under one promise for all groups at once.

What is promised of all rows together may fail in a group. So each group has a threshold, or a
quantile, of its own, and all of them are to hold together: with a confidence of `sure` no group
breaks its promise. Each of G groups is given a part of what may go wrong, (1 - sure) / G
(Bonferroni): groups share no rows, so that little is lost by it.

How many groups are counted hangs on their sizes alone, never on labels: groups so small that they
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
from typing import Any, cast

import numpy as np

from calibrant.core.arguments import within
from calibrant.core.arrays import Array
from calibrant.core.errors import (
    InputError,
)
from calibrant.decision.base import DecidedRows, check_sure
from calibrant.decision.decide import calibrated_rows, prepared
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
from calibrant.predictions.predictions import Predictions
from calibrant.scale.shards import Shards

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
        calibrator: fitted, to other rows than these, or what is to be fitted to one half of them.
        rows: with labels.
        groups: (N,) values, a group for each, or ``"predicted"``, ``"confidence"``, ``"margin"``.
        risk: error rate among answered rows of each group, a fraction.
        loss: (N,) loss of each row, whose mean is promised in place of errors; see `decide`.
        precision, recall: of a class in each group, in place of it; of: that class.
        cover: in place of these, the share of sets of each group that are to hold the true class.
        score: by which sets are made.
        sure: how often, over sets of rows like these, the promise is to hold for all groups.
        by: the name of the column that values are of, which new rows need as well.
        level: coverage of intervals.
        seed: of bets and halves.

    Raises:
        InputError: no rule or several, a number out of range, groups by true label, rows of the
            fit, or no group that is large enough.
        PredictionsError: rows that the calibrator doesn't take.

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
            f"{on.source}: no group is large enough; at {percent_asked(rate)} % and "
            f"{percent(sure)} % sure it takes {needed} rows (clusters, where there are some), and "
            f"the largest has {max(sizes.values())}"
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
