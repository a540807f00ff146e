"""What a person should know of a metric: its formula, what it costs, when it misleads.

The formula, the arguments and the source stand in the docstring of the function that computes it;
N is the number of rows, K of classes, R of resamples.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from calibrant.core.docstrings import Argument, Docstring, as_json
from calibrant.metrics import (
    binned,
    canonical,
    classwise,
    cox,
    cumulative,
    debiased,
    decomposition,
    density,
    gaps,
    kernel,
    mmce,
    proper,
    refit,
    selective,
    smooth,
    sweep,
)
from calibrant.metrics.metric_types import Metric
from calibrant.metrics.registry import METRICS, POSITIVE_METRICS, metrics_named


class Facts(NamedTuple):
    """What a docstring doesn't say in one line.

    Attributes:
        function: that computes it in Python.
        cost: of a value and its resamples.
        fails: when it misleads.
    """

    function: Callable[..., Any]
    cost: str
    fails: str


BINS = "a sort; then passes over N numbers"
SQUARE = "a sort; then grids of cells"
BIASED = "few rows: noise alone shows as much as the floor says"

FACTS: dict[str, Facts] = {
    "ece": Facts(
        binned.expected_calibration_error,
        BINS,
        f"{BIASED}; errors that cancel within a bin aren't seen, and it jumps at the bins' edges",
    ),
    "adaece": Facts(
        binned.adaptive_calibration_error,
        BINS,
        f"{BIASED}; a wide bin where rows are few hides what happens there",
    ),
    "smce": Facts(
        smooth.smooth_calibration_error,
        "a sweep over N confidences; 64 cells for resamples",
        "errors that change sign within a short stretch count little, by design",
    ),
    "smece": Facts(
        kernel.smooth_ece, SQUARE, f"{BIASED}; its bandwidth shrinks with the error that it finds"
    ),
    "nll": Facts(
        proper.negative_log_likelihood,
        "one pass over N x K",
        "it also measures how sharp the network is, and one row with p_y near 0 can decide it",
    ),
    "brier": Facts(
        proper.brier_score, "one pass over N x K", "it also measures how sharp the network is"
    ),
    "accuracy": Facts(proper.accuracy, "one pass over N x K", "it says nothing of confidence"),
    "mce": Facts(
        gaps.maximum_calibration_error,
        BINS,
        "bins of few rows: it is mostly noise, and its interval is too narrow",
    ),
    "average_ce": Facts(
        gaps.average_calibration_error, BINS, "bins of few rows count as much as all others"
    ),
    "rmsce": Facts(gaps.rms_calibration_error, BINS, f"{BIASED}; not to be held against an ECE"),
    "debiased_rmsce": Facts(
        debiased.debiased_rms_calibration_error, BINS, "it is 0 for much that is a little off"
    ),
    "sweep": Facts(
        sweep.ece_sweep,
        "a sort; then as many binnings as it takes",
        f"{BIASED}; it chooses its bins",
    ),
    "overconfidence": Facts(
        gaps.overconfidence_error, BINS, "small for a model that errs the other way"
    ),
    "underconfidence": Facts(
        gaps.underconfidence_error, BINS, "small for a model that errs the other way"
    ),
    "ks": Facts(
        cumulative.ks_error, "a sort; then one pass", "errors that take turns in sign cancel"
    ),
    "kde_ece": Facts(
        density.kde_ece, SQUARE, f"{BIASED}; its bandwidth blurs the crowd of confidences near 1"
    ),
    "mmce": Facts(mmce.mmce, SQUARE, "its size means nothing by itself; compare like with like"),
    "slope": Facts(
        cox.calibration_slope_intercept, "a few passes over N numbers", "errors that aren't a tilt"
    ),
    "intercept": Facts(
        cox.calibration_slope_intercept, "a few passes over N numbers", "read it with the slope"
    ),
    "brier_calibration": Facts(
        decomposition.corp_decomposition,
        "a sort; then isotonic regression",
        f"{BIASED}; of the top label only",
    ),
    "brier_refinement": Facts(
        decomposition.corp_decomposition,
        "a sort; then isotonic regression",
        "it says how well confidence ranks, not whether it is honest",
    ),
    "aurc": Facts(
        selective.aurc, "a sort; then one pass", "it ranks: no map that keeps the order changes it"
    ),
    "eaurc": Facts(
        selective.eaurc, "a sort; then one pass", "it ranks: no map that keeps the order changes it"
    ),
    "classwise_ece": Facts(
        classwise.classwise_expected_calibration_error,
        "K sorts of N numbers",
        "many classes: most rows say nearly 0 of a class, and are right",
    ),
    "classwise_adaece": Facts(
        classwise.classwise_adaptive_calibration_error,
        "K sorts of N numbers",
        "many classes: most rows say nearly 0 of a class, and are right",
    ),
    "skce": Facts(
        canonical.skce,
        "N^2 x K numbers, in blocks",
        "it may be negative, and is slow for many rows",
    ),
    "nll_calibration": Facts(
        refit.refinement_split,
        "a fit of one temperature",
        "it sees what one temperature mends only",
    ),
    "nll_refinement": Facts(
        refit.refinement_split, "a fit of one temperature", "it measures sharpness, not honesty"
    ),
}
# Those of the positive class are the same of another probability.
OF_POSITIVE: dict[str, Facts] = {
    f"{name}_positive": FACTS[name]
    for name in ("ece", "adaece", "smce", "slope", "intercept", "brier")
} | {
    "large_positive": Facts(
        cox.calibration_in_the_large,
        "a few passes over N numbers",
        "errors that cancel between high and low probabilities aren't seen",
    ),
    "log_loss": FACTS["nll"],
}


@dataclass(frozen=True)
class Described:
    """What there is to know of one metric.

    Attributes:
        metric: its name, title and convention.
        formula: what it computes, in one line.
        text: the rest of its description, paragraphs.
        arguments: of the function: name to default and meaning.
        facts: function, cost and failures; None for metrics that the package doesn't know.
        sources: papers.
    """

    metric: Metric
    formula: str
    text: tuple[str, ...]
    arguments: dict[str, Argument]
    facts: Facts | None
    sources: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        return {
            "name": self.metric.name,
            "title": self.metric.title,
            "convention": self.metric.definition,
            "formula": self.formula,
            "function": f"calibrant.{self.facts.function.__name__}" if self.facts else None,
            "cost": self.facts.cost if self.facts else None,
            "fails": self.facts.fails if self.facts else None,
            "lower_is_better": self.metric.lower_is_better,
            "percent": self.metric.percent,
            "arguments": as_json(self.arguments),
            "sources": list(self.sources),
        }


def described(name: str) -> Described:
    """Return what there is to know of a metric, by name.

    Raises:
        UnknownMethodError: no such metric.

    Examples:
        >>> from calibrant.metrics.catalogue import described
        >>> described("nll").formula
        'Return the mean of -log p_y, in nats.'
    """
    (metric,) = metrics_named([name])
    facts = (FACTS | OF_POSITIVE).get(name)
    if facts is None:
        return Described(metric, "", (), {}, None, ())
    text = Docstring.of(facts.function)
    meanings = text.items("Args")
    parameters = inspect.signature(facts.function).parameters.values()
    given = {p.name: Argument(p.default, meanings.get(p.name, "")) for p in parameters}
    options = {n: v for n, v in given.items() if v.default is not inspect.Parameter.empty}
    return Described(
        metric, text.summary, text.paragraphs, options, facts, tuple(text.sentences("References"))
    )


def all_described() -> list[Described]:
    """Return what there is to know of every metric."""
    return [described(name) for name in METRICS | POSITIVE_METRICS]
