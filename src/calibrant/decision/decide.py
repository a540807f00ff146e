"""`decide`: from a calibrator and rows with labels to a decision with a promise."""

from __future__ import annotations

from typing import Any, overload

from calibrant.core.arguments import within
from calibrant.core.arrays import Array
from calibrant.core.errors import InputError
from calibrant.core.text import counted
from calibrant.decision.base import DecidedRows, check_sure
from calibrant.decision.cost import CostDecision, by_cost, cost_matrix
from calibrant.decision.risk import RiskDecision, by_risk
from calibrant.decision.sets import SetDecision, by_set
from calibrant.evaluation.formatting import percent
from calibrant.evaluation.uncertainty import DEFAULT_LEVEL, check_drawing
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.fitted_rows import share_among, were_fitted
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.predictions import Predictions

FIT_SHARE = 0.5


@overload
def decide(
    calibrator: Calibrator | str,
    rows: Predictions,
    *,
    risk: float,
    sure: float = 0.95,
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
) -> RiskDecision: ...


@overload
def decide(
    calibrator: Calibrator | str,
    rows: Predictions,
    *,
    cover: float,
    score: str = "lac",
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
) -> SetDecision: ...


@overload
def decide(
    calibrator: Calibrator | str,
    rows: Predictions,
    *,
    costs: Array | None = None,
    error_cost: float | None = None,
    hand_over_cost: float | None = None,
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
) -> CostDecision: ...


# Parameters: what stands behind the decision, one of three rules with its numbers, and the draws.
def decide(
    calibrator: Calibrator | str,
    rows: Predictions,
    *,
    risk: float | None = None,
    sure: float = 0.95,
    costs: Array | None = None,
    error_cost: float | None = None,
    hand_over_cost: float | None = None,
    cover: float | None = None,
    score: str = "lac",
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
) -> RiskDecision | CostDecision | SetDecision:
    """Find what is done with calibrated rows, by one of three rules, and what is promised of it.

    - ``risk``: answer the rows above the lowest confidence at which at most so many answers are
      wrong, with a confidence of `sure` (learn-then-test by fixed sequence over a fixed grid of
      thresholds: exact binomial tests; bets on the units of rows with weights or in clusters).
    - costs: make the decision of least expected cost, of classes and perhaps handing over.
    - ``cover``: name a set of classes that holds the true one so often (split conformal).

    The rows must be others than those that the calibrator was fitted to. A calibrator that isn't
    fitted, or the name of a method, is fitted to one half of the rows, and the threshold found on
    the other; clusters stay whole.

    Args:
        calibrator: fitted, or what is to be fitted.
        rows: with labels, of the kind that the calibrator takes.
        risk: error rate among answered rows, a fraction.
        sure: how often, over sets of rows like these, the promise of `risk` is to hold; a fraction.
        costs: (K, K) what it costs to answer with a class (columns) where another is true (rows).
        error_cost: the same for every error, in place of that; 1 if neither is given.
        hand_over_cost: what it costs not to answer; None where every row is answered.
        cover: share of sets that are to hold the true class, a fraction.
        score: by which sets are made: ``"lac"``, ``"aps"`` or ``"raps"``.
        level: coverage of intervals.
        seed: of the halves, and of the order of bets.

    Raises:
        InputError: no rule or several, a number out of range, or rows that the calibrator was
            fitted to.
        PredictionsError: rows that the calibrator doesn't take.

    References:
        Geifman & El-Yaniv, NeurIPS 2017; Angelopoulos et al., arXiv 2110.01052.

    Examples:
        >>> import calibrant as cb
        >>> found = cb.decide("temperature", cb.load_sample("test"), risk=0.05)
        >>> found.n, found.error.value < 0.05
        (5000, True)
    """
    by_costs = any(each is not None for each in (costs, error_cost, hand_over_cost))
    if (risk is not None) + by_costs + (cover is not None) != 1:
        raise InputError(
            "decide takes one rule: risk=0.05, the error rate among answered rows (--risk); "
            "hand_over_cost=1, beside costs or error_cost (--hand-over-cost, --costs, "
            "--error-cost); or cover=0.9, the share of sets that hold the true class (--cover)"
        )
    check_drawing(2, level, seed)
    if risk is not None:
        within("risk", risk, above=0, below=1)
        check_sure(sure)
    if cover is not None:
        within("cover", cover, above=0, below=1)
    matrix = cost_matrix(rows, costs, error_cost, hand_over_cost) if by_costs else None
    fitted, on, notes = prepared(calibrator, rows, seed)
    decided = DecidedRows.of(fitted, on)
    common: dict[str, Any] = {
        "calibrator": fitted,
        "source": on.source,
        "n": len(decided.confidence),
        "clusters": decided.clusters,
        "notes": notes,
    }
    if matrix is not None:
        return by_cost(decided, matrix, level=level, common=common)
    if cover is not None:
        return by_set(decided, cover, score, level=level, seed=seed, common=common)
    assert risk is not None
    return by_risk(decided, risk, sure, level=level, seed=seed, common=common)


def prepared(
    calibrator: Calibrator | str, rows: Predictions, seed: int
) -> tuple[Calibrator, Predictions, tuple[str, ...]]:
    """Return a fitted calibrator, rows that it wasn't fitted to, and what there is to say of it.

    Raises:
        InputError: it was fitted to these rows.
    """
    _ = rows.labels  # which say that there are none, where there are none
    if isinstance(calibrator, str):
        calibrator = make_calibrator(calibrator)
    if not hasattr(calibrator, "fit_report_"):
        first, second = rows.split(FIT_SHARE, seed)
        fitted = type(calibrator)(**calibrator.get_params()).fit_predictions(first)
        note = (
            f"{fitted.method} was fitted to {counted(first.n, 'row')} of {rows.source}, and the "
            f"decision found on the other {second.n}."
        )
        return fitted, second, (note,)
    share = share_among(calibrator.fitted_to_, rows)
    if share is None:
        unchecked = (
            f"Whether {calibrator.method} was fitted to these rows can't be checked: it keeps no "
            "trace of them. On such rows the promise would be worth nothing."
        )
        return calibrator, rows, (unchecked,)
    if were_fitted(share, rows):
        raise InputError(
            f"{rows.source}: about {percent(share)} % of the rows that '{calibrator.method}' was "
            "fitted to are among these, and a promise needs rows that it hasn't seen; give others, "
            f"or let both halves be made: decide('{calibrator.method}', rows), on the command line "
            f"calibrant decide {calibrator.method} FILE"
        )
    return calibrator, rows, ()
