"""`decide`: from a calibrator and rows with labels to a decision with a promise."""

from __future__ import annotations

from typing import Any

from calibrant.core.arguments import within
from calibrant.core.errors import InputError
from calibrant.core.text import counted
from calibrant.decision.base import DecidedRows, check_sure
from calibrant.decision.risk import RiskDecision, by_risk
from calibrant.evaluation.formatting import percent
from calibrant.evaluation.uncertainty import DEFAULT_LEVEL, check_drawing
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.fitted_rows import share_among, were_fitted
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.predictions import Predictions

FIT_SHARE = 0.5


# Parameters: what stands behind the decision, the rule with its numbers, and the draws.
def decide(
    calibrator: Calibrator | str,
    rows: Predictions,
    *,
    risk: float,
    sure: float = 0.95,
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
) -> RiskDecision:
    """Find the rows that may be answered, so that at most `risk` of the answers are wrong.

    The lowest threshold on the confidence is found whose risk is at most `risk` with a confidence
    of `sure`: learn-then-test by fixed sequence over a fixed grid of thresholds, with exact
    binomial tests; rows with weights or in clusters are tested by bets on the units.

    The rows must be others than those that the calibrator was fitted to. A calibrator that isn't
    fitted, or the name of a method, is fitted to one half of the rows, and the threshold found on
    the other; clusters stay whole.

    Args:
        calibrator: fitted, or what is to be fitted.
        rows: with labels, of the kind that the calibrator takes.
        risk: error rate among answered rows, a fraction.
        sure: how often, over sets of rows like these, the promise is to hold; a fraction.
        level: coverage of intervals.
        seed: of the halves, and of the order of bets.

    Raises:
        InputError: a number out of range, or rows that the calibrator was fitted to.
        PredictionsError: rows that the calibrator doesn't take.

    References:
        Geifman & El-Yaniv, NeurIPS 2017; Angelopoulos et al., arXiv 2110.01052.

    Examples:
        >>> import calibrant as cb
        >>> found = cb.decide("temperature", cb.load_sample("test"), risk=0.05)
        >>> found.n, found.error.value < 0.05
        (5000, True)
    """
    within("risk", risk, above=0, below=1)
    check_sure(sure)
    check_drawing(2, level, seed)
    fitted, on, notes = prepared(calibrator, rows, seed)
    decided = DecidedRows.of(fitted, on)
    common: dict[str, Any] = {
        "calibrator": fitted,
        "source": on.source,
        "n": len(decided.confidence),
        "clusters": decided.clusters,
        "notes": notes,
    }
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
