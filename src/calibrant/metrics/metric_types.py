"""The shapes a metric may have: what `evaluate` asks of it for a value, an interval and a floor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.core.weights import are_counts, mean
from calibrant.metrics.top_label import ResidualCurves, TopLabel
from calibrant.predictions.predictions import NO_PROBABILITY, Predictions
from calibrant.predictions.scoring import RowScores

T = TypeVar("T")


@dataclass(frozen=True)
class Part(Generic[T]):
    """A function that returns one of the numbers of another.

    Attributes:
        whole: returns an object that holds all of them.
        name: the attribute to return. A whole whose attributes are cached properties computes none
            that isn't asked for.
    """

    whole: Callable[..., Any]
    name: str

    def __call__(self, *arguments: Any) -> T:
        """Return the part; the arguments are those of the whole."""
        return getattr(self.whole(*arguments), self.name)


def each_once(functions: Mapping[str, Callable[..., T]], *arguments: Any) -> dict[str, T]:
    """Return what each function makes of the arguments, by name; a whole is called but once.

    Args:
        functions: by name; any of them may be a `Part`.
        arguments: of all of them.
    """
    wholes: dict[Callable[..., Any], Any] = {}
    found: dict[str, T] = {}
    for name, function in functions.items():
        if not isinstance(function, Part):
            found[name] = function(*arguments)
            continue
        if function.whole not in wholes:
            wholes[function.whole] = function.whole(*arguments)
        found[name] = getattr(wholes[function.whole], function.name)
    return found


NOT_BINARY = (
    "it is about the positive class of binary predictions, which have to be declared "
    "(Predictions.from_binary, --kind binary)"
)
# What costs and failures of several metrics are called.
BINS_COST = "a sort; then passes over N numbers"
CELLS_COST = "a sort; then grids of cells"
BIASED = "few rows: noise alone gives the value of the floor"
ONLY_COUNTS = "it takes weights that count rows, whole numbers, only"
NO_CLASSES = "it needs a score for every class"


class Measured(NamedTuple):
    """A metric of whole rows with what its uncertainty needs.

    Attributes:
        value: on all rows.
        replicates: (R,) values on bootstrap resamples.
        honest: (D,) values on labels drawn from the probabilities; None if that means nothing.
        biased: whether noise drives the value upwards, and that of a resample twice.
    """

    value: float
    replicates: FloatArray
    honest: FloatArray | None
    biased: bool

    def scattered(self, factor: float) -> Measured:
        """Return the same with replicates that lie so much farther from their mean."""
        middle = self.replicates.mean()
        return self._replace(replicates=middle + factor * (self.replicates - middle))


class Facts(NamedTuple):
    """What decides which metrics can be computed of some rows.

    Attributes:
        n: how many they are.
        binary: whether they are about one event.
        classes: whether there is a score for every class.
        weighted: whether they have weights.
        counts: whether these, if there are any, are whole numbers.
        clustered: whether they are in clusters.
        ranks: whether they have scores that are no probabilities, and only rank the rows.
    """

    n: int
    binary: bool
    classes: bool
    weighted: bool
    counts: bool
    clustered: bool
    ranks: bool = False

    @classmethod
    def of(cls, predictions: Predictions) -> Self:
        """Return what decides for predictions."""
        return cls(
            predictions.n,
            predictions.binary,
            not predictions.top_only,
            predictions.weights is not None,
            are_counts(predictions.weights),
            predictions.clusters is not None,
            predictions.kind == "score",
        )


@dataclass(frozen=True, kw_only=True)
class Metric:
    """What is measured, and how to say it.

    Attributes:
        name: key in results, JSON and on the command line.
        title: heading in tables.
        definition: the convention in one line.
        function: computes it of arrays; its docstring has the formula, the arguments, the source.
        effort: of computing a value and its resamples; N is the number of rows, K of classes.
        fails: when it misleads.
        percent: whether people read it in percent (values are fractions all the same).
        lower_is_better: the direction of improvement.
        needs_classes: whether it needs a score for every class.
        ideal: the best value where that is no end of the range, as for a slope; else None.
        fewest_rows: with fewer it can't be computed.
        weighs: which weights it takes: ``"any"``; ``"counts"``, whole numbers of rows that were
            observed apart; or ``"none"``.
        takes_clusters: whether rows may be clustered.
        omnibus: whether a value at its floor means that confidences can't be told from perfect
            ones. It counts every row and both directions, and a few rows can't decide it.
        of_positive: whether it is about the probability of the positive class of binary
            predictions, not about the predicted label.
        by_rank: whether it depends on the ranks of the confidences alone, so that any score will do
            in their place.
    """

    name: str
    title: str
    definition: str
    function: Callable[..., Any] | None = None
    effort: str = ""
    fails: str = ""
    percent: bool = True
    lower_is_better: bool = True
    needs_classes: bool = False
    ideal: float | None = None
    fewest_rows: int = 1
    weighs: Literal["any", "counts", "none"] = "any"
    takes_clusters: bool = True
    omnibus: bool = False
    of_positive: bool = False
    by_rank: bool = False

    @property
    def superlative(self) -> str:
        """What the best value is called, such as "Lowest ECE"."""
        if self.ideal is not None:
            return f"{self.title.capitalize()} nearest to {self.ideal:g}"
        return f"{'Lowest' if self.lower_is_better else 'Highest'} {self.title}"

    def refusal(self, facts: Facts) -> str | None:
        """Return why it can't be computed of rows of which these are the facts, as a clause."""
        if facts.ranks and not self.by_rank:
            return f"it {NO_PROBABILITY}"
        if self.of_positive and not facts.binary:
            return NOT_BINARY
        if self.needs_classes and not facts.classes:
            return NO_CLASSES
        if facts.n < self.fewest_rows:
            return f"it needs at least {self.fewest_rows} rows"
        if self.weighs == "none" and facts.weighted:
            return "it takes no weights; where these count rows, measure `repeated()` ones"
        if self.weighs == "counts" and not facts.counts:
            return ONLY_COUNTS
        if not self.takes_clusters and facts.clustered:
            return "it compares rows in pairs as if they were independent, and takes no clusters"
        return None

    def for_positive(self, definition: str, **other: Any) -> Self:
        """Return it of the positive class's probability, with whatever else is different of it."""
        called = {"name": f"{self.name}_positive", "title": f"{self.title}, positive"}
        own: dict[str, Any] = {**called, "of_positive": True, "omnibus": False, **other}
        return replace(self, definition=definition, **own)

    def cost(self, value: float) -> float:
        """Return a number to rank values by, lower for better."""
        if self.ideal is not None:
            return abs(value - self.ideal)
        return value if self.lower_is_better else -value

    def costs(self, values: FloatArray) -> FloatArray:
        """Return the costs of (R,) values."""
        if self.ideal is not None:
            return np.abs(values - self.ideal)
        return values if self.lower_is_better else -values


@dataclass(frozen=True, kw_only=True)
class MeanMetric(Metric):
    """The mean of one number a row: unbiased, so it has no floor.

    Attributes:
        per_row: returns the (N,) numbers.
    """

    per_row: Callable[[RowScores], FloatArray]


@dataclass(frozen=True, kw_only=True)
class CurveMetric(Metric):
    """A function of the residual curve.

    Attributes:
        of_curves: returns the (R,) values of R curves; may be coarser than `exact`.
        exact: returns the value of one curve; `of_curves` of it if None.
        has_floor: whether calibrated confidences make it zero, in the limit and only there. It is
            then biased upwards, and has a floor.
        sums_gaps: whether it is made of the sizes of many bins' gaps. Its resamples scatter around
            gaps drawn towards 0 (`calibrant.metrics.shrinkage`); what weighs all rows together
            knows its one gap better than bins know theirs.
        at_breakpoints: whether `of_curves` reads curves at breakpoints only
            (`calibrant.metrics.top_label`), so that resamples needn't be summed row by row.
    """

    of_curves: Callable[[ResidualCurves], FloatArray]
    exact: Callable[[ResidualCurves], float] | None = None
    has_floor: bool = True
    sums_gaps: bool = False
    at_breakpoints: bool = False

    def value(self, rows: TopLabel) -> float:
        """Return the value on sorted rows."""
        return self.of_curve(rows.curves())

    def of_curve(self, curve: ResidualCurves) -> float:
        """Return the value of one curve, say that of streamed sums (`ResidualCurves`)."""
        return values_of_curve([self], curve)[self.name]


@dataclass(frozen=True, kw_only=True)
class RowsMetric(Metric):
    """A function of whole probability vectors.

    Attributes:
        measure: takes predictions, how many resamples, and a seed; returns the value with its
            replicates, and with its values on calibrated labels if it has a floor.
        sums: what many files leave behind for it; None if no sums carry it.
        most_classes: with more classes these sums would be too large.
        not_summed: why no sums carry it, as a clause.
    """

    measure: Callable[[Predictions, int, int], Measured]
    sums: type[RowsSums] | None = None
    most_classes: int | None = None
    not_summed: str = "it can't be computed from sums over files; measure a sample as one file"


class RowsSums(Protocol):
    """Whole numbers that add up over parts of the rows, and carry a metric of whole rows."""

    @classmethod
    def of(cls, predictions: Predictions, place: int, seed: int) -> Self:
        """Sum rows, of which the first stands at `place` among all of them."""
        ...

    def __add__(self, other: Self, /) -> Self:
        """Return the sums of both sets of rows together."""
        ...

    def measured(self, name: str, resamples: int, seed: int) -> Measured:
        """Return a metric that they carry with its replicates, and its calibrated values if any."""
        ...


@dataclass(frozen=True, eq=False)
class AddedFields:
    """Sums of which every field adds up."""

    def __add__(self, other: Self) -> Self:
        """Return the sums of both sets of rows together."""
        both = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return replace(self, **both)


def values_of_curve(metrics: Iterable[Metric], curve: ResidualCurves) -> dict[str, float]:
    """Return the values of all curve metrics on one curve, by name."""
    wanted = [metric for metric in metrics if isinstance(metric, CurveMetric)]
    functions = {metric.name: metric.exact or metric.of_curves for metric in wanted}
    return {name: np.ravel(found).item() for name, found in each_once(functions, curve).items()}


def values_of_curves(metrics: Iterable[Metric], curves: ResidualCurves) -> dict[str, FloatArray]:
    """Return the (R,) values of all curve metrics on R curves, by name."""
    wanted = [metric for metric in metrics if isinstance(metric, CurveMetric)]
    return each_once({metric.name: metric.of_curves for metric in wanted}, curves)


def values_of_rows(
    metrics: Iterable[Metric], scores: RowScores, rows: TopLabel
) -> dict[str, float]:
    """Return the values of all metrics but those of whole probability vectors, by name.

    Args:
        metrics: what to compute.
        scores: N scored rows.
        rows: the same, sorted by confidence.
    """
    wanted = list(metrics)
    means = {m.name: m.per_row(scores) for m in wanted if isinstance(m, MeanMetric)}
    values = {name: mean(each, scores.weights) for name, each in means.items()}
    return values | values_of_curve(wanted, rows.curves())
