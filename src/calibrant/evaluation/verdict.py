"""What a measurement says in words: honest as far as can be seen, or off, and in which way.

Only a metric that counts every row and both directions may say that confidences can't be told from
perfect ones (`Metric.judges`). A one-sided one is small for a model that errs the other way, and
the largest gap of a few bins is mostly noise: such a metric speaks for itself, by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from calibrant.core.text import counted

if TYPE_CHECKING:
    from calibrant.evaluation.evaluate import Evaluation, MetricResult

# Where honest confidences show as much as this, that nothing was found says little.
MUCH_NOISE = 0.05

State = Literal["honest", "overconfident", "underconfident", "both ways", "unknown"]


def judge(evaluation: Evaluation, preferred: str | None = None) -> MetricResult | None:
    """Return the result that decides on perfection: the preferred metric if it may, or the first.

    Returns:
        None if no metric that may decide was measured.
    """
    judges = {n: r for n, r in evaluation.results.items() if r.metric.judges}
    return judges.get(preferred or "", next(iter(judges.values()), None))


def state_of(evaluation: Evaluation, preferred: str | None = None) -> State:
    """Return in which way the confidences are off.

    Without a metric that may decide, the mean gap is all that is known: it can show that
    something is wrong, but not that nothing is.
    """
    result, (gap, low, high) = judge(evaluation, preferred), evaluation.gap
    if result is not None:
        if result.at_floor:
            return "honest"
        if abs(gap) < result.value / 3:
            return "both ways"
    elif low <= 0 <= high:
        return "unknown"
    return "overconfident" if gap > 0 else "underconfident"


def headline(evaluation: Evaluation) -> str:
    """Return the finding in one sentence, or two."""
    confidence, accuracy = evaluation.rows.confidence.mean(), evaluation.rows.correct.mean()
    means = f"mean confidence {100 * confidence:.1f} %, accuracy {100 * accuracy:.1f} %"
    result, state = judge(evaluation), state_of(evaluation)
    if state == "honest":
        assert result is not None
        return (
            f"Not distinguishable from perfectly calibrated with {counted(evaluation.n, 'row')} "
            f"({result.metric.title} {100 * result.value:.2f} %, noise alone gives up to "
            f"{100 * (result.floor_95 or 0):.2f} %); {means}.{_of_few_rows(evaluation, result)}"
        )
    gap, low, high = evaluation.gap
    level = f"{100 * evaluation.level:g} % interval"
    if state == "both ways":
        text = "Overconfident here and underconfident there"
    elif state == "unknown":
        text = (
            f"Mean confidence and accuracy agree within noise (difference {100 * gap:.1f} points, "
            f"{level} {100 * low:.1f} to {100 * high:.1f})"
        )
    else:
        ends = sorted((low, high) if gap > 0 else (-low, -high))
        text = (
            f"{state.capitalize()} by {100 * abs(gap):.1f} points ({level} {100 * ends[0]:.1f} to "
            f"{100 * ends[1]:.1f})"
        )
    return f"{text}: {means}.{'' if result else _of_others(evaluation)}"


def _of_few_rows(evaluation: Evaluation, result: MetricResult) -> str:
    """Return what could have been seen, where noise alone gives as much as is bad."""
    if (result.floor_95 or 0) < MUCH_NOISE:
        return ""
    from calibrant.evaluation.power import smallest_visible_error

    seen = smallest_visible_error(evaluation.rows.confidence, evaluation.n)
    if seen is None:
        return " So few can't tell: not even a model that is never right would stand out."
    return f" So few can't tell: an ECE below {100 * seen:.0f} % would mostly pass unseen."


def _of_others(evaluation: Evaluation) -> str:
    """Return what the metrics that may not decide say, each by its name and for itself."""
    quiet = [r.metric.title for r in evaluation.results.values() if r.at_floor]
    if not quiet:
        return ""
    names = " and ".join(quiet) if len(quiet) < 3 else f"{len(quiet)} of the metrics below"
    return (
        f" {names} {'shows' if len(quiet) == 1 else 'show'} no more than noise would, which alone "
        "does not make confidences honest; measure ece as well."
    )
