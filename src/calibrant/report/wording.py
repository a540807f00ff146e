"""What the charts say, in words: headlines, and how numbers are written."""

from __future__ import annotations

import re

from calibrant.comparison.comparison import Comparison
from calibrant.evaluation.evaluate import Evaluation, MetricResult, show
from calibrant.evaluation.verdict import judge, state_of
from calibrant.metrics.registry import Metric
from calibrant.posthoc.base import Calibrator
from calibrant.report.series import Gap

# A sentence names no more methods than this.
NAMED = 5
AT_THIS_SIZE = "not distinguishable from perfect at this sample size"


def finding(evaluation: Evaluation, preferred: str | None = None) -> str:
    """Return how far the confidences are off, with an interval, in lower case."""
    state, gap = state_of(evaluation, preferred), Gap.of(evaluation.rows, evaluation.level)
    result = judge(evaluation, preferred)
    interval = f"{100 * evaluation.level:g} % interval"
    if state == "honest":
        return AT_THIS_SIZE
    if state == "unknown":
        return (
            f"mean confidence and accuracy agree within noise ({signed_points(gap.value)} points, "
            f"{interval} {signed_points(gap.low)} to {signed_points(gap.high)})"
        )
    if state == "both ways":
        assert result is not None
        return (
            f"overconfident here and underconfident there "
            f"({result.metric.title} {with_interval(result, interval)})"
        )
    low, high = sorted((gap.low, gap.high)) if gap.value > 0 else sorted((-gap.low, -gap.high))
    return (
        f"{state} by {100 * abs(gap.value):.1f} points ({interval} {signed_points(low)} to "
        f"{signed_points(high)})"
    )


def evaluation_headline(evaluation: Evaluation) -> str:
    """Return the finding about one set of predictions as a sentence."""
    return _sentence(finding(evaluation))


def comparison_headline(comparison: Comparison, before: Evaluation, titles: dict[str, str]) -> str:
    """Return the finding about the network and the best method as a sentence.

    Args:
        comparison: what was compared.
        before: the network's own confidences on the test rows.
        titles: of the methods.
    """
    rank_by, best = comparison.rank_by, comparison.methods[0]
    after, title = best.evaluation, titles[best.name]
    if best.name == "none":
        return _sentence(f"{finding(before, rank_by)}; no method does better")
    start = finding(before, rank_by)
    if state_of(after, rank_by) == "honest":
        if state_of(before, rank_by) == "honest":
            return _sentence(f"{AT_THIS_SIZE}, before and after {title}")
        return _sentence(f"{start}; after {title} {AT_THIS_SIZE}")
    return _sentence(
        f"{start}; after {title}, the best of these methods, {finding(after, rank_by)}"
    )


def comparison_deck(comparison: Comparison, titles: dict[str, str]) -> str:
    """Return the sentence below the headline: who is best, and who can't be told apart from it."""
    best = comparison.methods[0].evaluation[comparison.rank_by]
    text = f"{best.metric.superlative}: {titles[comparison.best]}, {with_interval(best)}"
    if best.floor_95 is not None:
        text += f"; noise alone would give up to {amount(best.metric, best.floor_95)}"
    tied = [titles[name] for name in comparison.tied_with_best]
    if not tied:
        return text + ". No other method ties with it."
    if len(tied) > NAMED:
        tied = [*tied[: NAMED - 1], f"{len(tied) - NAMED + 1} others"]
    return text + f". Can't be told apart from it on these rows: {join_words(tied)}."


def evaluation_deck(evaluation: Evaluation) -> str:
    """Return the sentence below the headline of one evaluation."""
    confidence = 100 * float(evaluation.rows.confidence.mean())
    accuracy = 100 * float(evaluation.rows.correct.mean())
    text = f"On average {confidence:.1f} % confident and {accuracy:.1f} % right"
    result = judge(evaluation)
    if result is None or result.floor_95 is None:
        return text + "."
    limit = amount(result.metric, result.floor_95)
    return (
        f"{text}. {result.metric.title} {with_interval(result)}; perfectly honest confidences "
        f"would show up to {limit} on as many rows."
    )


# Names of people, and words that belong together.
NAMES = {
    "bayesian": "Bayesian",
    "laplace": "Laplace",
    "venn abers": "Venn-Abers",
    "top rest": "top-rest",
    "scaling binning": "scaling-binning",
    "predicted class": "predicted-class",
}


def method_title(calibrator: Calibrator) -> str:
    """Return the class name as words: ``TemperatureScaling`` becomes "temperature scaling"."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*|[a-z0-9]+", type(calibrator).__name__)
    title = " ".join(word if len(word) > 1 and word.isupper() else word.lower() for word in words)
    for plain, written in NAMES.items():
        title = title.replace(plain, written)
    return title


def amount(metric: Metric, value: float | None) -> str:
    """Return a value with its unit."""
    return (
        f"{show(metric, value)} %" if metric.percent and value is not None else show(metric, value)
    )


def with_interval(result: MetricResult, name: str = "") -> str:
    """Return a value with its interval."""
    low, high = show(result.metric, result.low), amount(result.metric, result.high)
    lead = f"{name} " if name else ""
    return f"{amount(result.metric, result.value)} ({lead}{low} to {high})"


def signed_points(fraction: float) -> str:
    """Return a difference of shares in percentage points, with a real minus sign."""
    return f"{100 * fraction:.1f}".replace("-", "\N{MINUS SIGN}")


def join_words(words: list[str]) -> str:
    """Return "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."
