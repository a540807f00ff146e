"""What was found, in words: the sentences that print, page and JSON share.

Only a metric that counts every row and both directions may say that confidences can't be told from
perfect ones (`Metric.judges`). A one-sided one is small for a model that errs the other way, and
the largest gap of a few bins is mostly noise: such a metric speaks for itself, by name.

How numbers are written is in `calibrant.evaluation.numbers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from calibrant.core.text import counted, listed
from calibrant.evaluation.numbers import interval_of, percent, with_interval, with_unit
from calibrant.evaluation.power import smallest_visible_error

if TYPE_CHECKING:
    from calibrant.evaluation.evaluate import Evaluation, MetricResult

State = Literal["honest", "overconfident", "underconfident", "both ways", "unknown"]

# Where honest confidences show as much as this, that nothing was found says little.
MUCH_NOISE = 0.05
# A sentence names no more methods than this.
NAMED = 5
FLOOR = (
    "Floor: what perfectly honest confidences would show on as many rows, on average; "
    "floor 95 %: what they would stay below in 95 % of cases. A value up to that may be nothing "
    "but noise."
)


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


def _claim(evaluation: Evaluation, state: State) -> str:
    """Return how far the confidences are off, in lower case."""
    if state == "honest":
        return f"not distinguishable from perfectly calibrated with {counted(evaluation.n, 'row')}"
    if state == "both ways":
        return "overconfident here and underconfident there"
    if state == "unknown":
        return "mean confidence and accuracy agree within noise"
    return f"{state} by {percent(abs(evaluation.gap.value))} points"


def _grounds(evaluation: Evaluation, state: State, result: MetricResult | None) -> str:
    """Return the numbers that the claim rests on."""
    gap, low, high = evaluation.gap
    interval = interval_of(evaluation.level)
    if state == "honest":
        assert result is not None
        assert result.floor_95 is not None
        metric = result.metric
        return (
            f"{metric.title} {with_unit(metric, result.value)}, noise alone gives up to "
            f"{with_unit(metric, result.floor_95)}"
        )
    if state == "both ways":
        assert result is not None
        found = with_interval(result.metric, result.ends, evaluation.level)
        return f"{result.metric.title} {found}".replace(" (", ", ").removesuffix(")")
    if state == "unknown":
        return f"difference {percent(gap)} points, {interval} {percent(low)} to {percent(high)}"
    ends = sorted((low, high) if gap > 0 else (-low, -high))
    return f"{interval} {percent(ends[0])} to {percent(ends[1])}"


def finding(evaluation: Evaluation, preferred: str | None = None) -> str:
    """Return how far the confidences are off, with an interval, as a clause in lower case."""
    state = state_of(evaluation, preferred)
    claim = _claim(evaluation, state)
    if state == "honest":
        return claim
    return f"{claim} ({_grounds(evaluation, state, judge(evaluation, preferred))})"


def means(evaluation: Evaluation) -> str:
    """Return mean confidence and accuracy as a clause."""
    confidence, accuracy = evaluation.mean_confidence, evaluation.accuracy
    return f"mean confidence {percent(confidence)} %, accuracy {percent(accuracy)} %"


def headline(evaluation: Evaluation) -> str:
    """Return the finding about one set of predictions in one sentence, or two."""
    result, state = judge(evaluation), state_of(evaluation)
    claim, grounds = _claim(evaluation, state), _grounds(evaluation, state, result)
    text = f"{claim} ({grounds}){';' if state == 'honest' else ':'} {means(evaluation)}"
    rest = _of_few_rows(evaluation) if result else _of_others(evaluation)
    return " ".join(part for part in (sentence(text) + rest, of_positive(evaluation)) if part)


def of_positive(evaluation: Evaluation) -> str:
    """Return what binary predictions say of the positive class, as a sentence, or nothing."""
    mean, share, gap = (
        evaluation.mean_probability,
        evaluation.positive_share,
        evaluation.positive_gap,
    )
    if mean is None or share is None or gap is None:
        return ""
    interval = f"{interval_of(evaluation.level)} {percent(gap.low)} to {percent(gap.high)}"
    text = (
        f"the positive class has a mean probability of {percent(mean)} % and a share of "
        f"{percent(share)} % (difference {percent(gap.value)} points, {interval})"
    )
    result = evaluation.results.get("ece_positive")
    if result is None:
        return sentence(text)
    side = "no more" if result.at_floor else "more"
    return sentence(
        f"{text}; {result.metric.title} {with_unit(result.metric, result.value)}, {side} than "
        "noise gives"
    )


def positive_numbers(evaluation: Evaluation) -> dict[str, float | str] | None:
    """Return the numbers of that sentence as JSON takes them, and the sentence."""
    mean, share, gap = (
        evaluation.mean_probability,
        evaluation.positive_share,
        evaluation.positive_gap,
    )
    if mean is None or share is None or gap is None:
        return None
    return {
        "mean_probability": mean,
        "share": share,
        "gap": gap.value,
        "gap_low": gap.low,
        "gap_high": gap.high,
        "finding": of_positive(evaluation),
    }


def _of_few_rows(evaluation: Evaluation) -> str:
    """Return what could have been seen, where noise alone gives as much as is bad."""
    result = judge(evaluation)
    if result is None or not result.at_floor or (result.floor_95 or 0) < MUCH_NOISE:
        return ""
    rows = evaluation.top
    worth = max(round(evaluation.effective_rows), 1)
    seen = smallest_visible_error(rows.confidence, worth, weights=rows.weight)
    if seen is None:
        return " So few can't tell: not even a model that is never right would stand out."
    return f" So few can't tell: an ECE below {100 * seen:.0f} % would mostly pass unseen."


def _of_others(evaluation: Evaluation) -> str:
    """Return what the metrics that may not decide say, each by its name and for itself."""
    quiet = [r.metric.title for r in evaluation.results.values() if r.at_floor]
    if not quiet:
        return ""
    names = listed(quiet) if len(quiet) < 3 else f"{len(quiet)} of the metrics below"
    return (
        f" {names} {'shows' if len(quiet) == 1 else 'show'} no more than noise would, which alone "
        "does not make confidences honest; measure ece as well."
    )


def heading(evaluation: Evaluation) -> str:
    """Return the finding alone, for a page on which `standing` comes next."""
    return sentence(finding(evaluation))


def standing(evaluation: Evaluation) -> str:
    """Return mean confidence and accuracy, and the metric that decides with its floor."""
    text, result = sentence(means(evaluation)), judge(evaluation)
    if result is None:
        return text
    value = with_interval(result.metric, result.ends, evaluation.level)
    text = f"{text} {result.metric.title} {value}. {honest_would_show(result)}"
    text += _of_few_rows(evaluation)
    return " ".join(part for part in (text, of_positive(evaluation)) if part)


def change(
    before: Evaluation,
    after: Evaluation,
    method: str | None,
    rank_by: str,
    rank: str = "the best of these methods",
) -> str:
    """Return what a method of a comparison makes of a network's own confidences.

    Args:
        before: the network's own confidences.
        after: those of the method, on the same rows.
        method: its name; None if no method does better than the network's own confidences.
        rank_by: the metric that ranks.
        rank: what to call the method where its confidences aren't honest.
    """
    start, states = finding(before, rank_by), [state_of(e, rank_by) for e in (before, after)]
    if method is None:
        return sentence(f"{start}; no method does better")
    if states == ["honest", "honest"]:
        return sentence(f"{start}, before and after {method}")
    which = method if states[1] == "honest" else f"{method}, {rank},"
    return sentence(f"{start}; after {which} {finding(after, rank_by)}")


def ranking(best: MetricResult, method: str, level: float, tied: Sequence[str] | None) -> str:
    """Return who is best, and who can't be told apart from it, in one or two sentences.

    Args:
        best: what the best method has of the metric that ranks.
        method: its name.
        level: nominal coverage of the intervals.
        tied: names of the others that can't be told apart from it; None if there are no others.
    """
    text = f"{best.metric.superlative}: {method}, {with_interval(best.metric, best.ends, level)}"
    if best.at_floor:
        judges = best.metric.judges
        text += ", not distinguishable from perfect" if judges else ", no more than noise gives"
    if tied is None:
        return f"{text}."
    if not tied:
        return f"{text}. No other method ties with it."
    names = list(tied)
    if len(names) > NAMED:
        names = [*names[: NAMED - 1], f"{len(names) - NAMED + 1} others"]
    return f"{text}. Can't be told apart from it: {listed(names)}."


def honest_would_show(result: MetricResult, like: str = "these") -> str:
    """Return what honest confidences would show of a metric that has a floor, as a sentence.

    Args:
        result: of the metric.
        like: whose confidences.
    """
    assert result.floor is not None
    assert result.floor_95 is not None
    floor, floor_95 = (with_unit(result.metric, v) for v in (result.floor, result.floor_95))
    return (
        f"Honest confidences like {like} would show {floor} on average, and up to {floor_95} in "
        "95 % of cases."
    )


def against_floor(result: MetricResult) -> str:
    """Return on which side of its floor a value lies; nothing where there is none."""
    if result.floor is None:
        return ""
    if result.at_floor:
        return "at the floor: no more than noise gives"
    return "above the floor: more than noise gives"


def marks(
    result: MetricResult, *, best: bool, significant: bool, may_be_best: bool = False
) -> list[str]:
    """Return the marks of a method's rank by a metric.

    Args:
        result: its value.
        best: whether it is the best.
        significant: whether it can be told apart from the best.
        may_be_best: whether it is in the set that holds the truly best one.
    """
    rank = "best" if best else "" if significant else "tied"
    said = {
        rank: rank,
        "may be the best": may_be_best and not best,
        "at the floor": result.at_floor,
    }
    return [mark for mark, holds in said.items() if holds]


def sentence(text: str) -> str:
    """Return a clause as a sentence."""
    return f"{text[0].upper()}{text[1:]}."
