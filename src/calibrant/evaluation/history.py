"""Several sets of rows side by side, such as runs or dates: what changed from one to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from calibrant.core.errors import InputError
from calibrant.core.result import Drawn, Table
from calibrant.evaluation.formatting import compared, in_percent_are, percent, show, with_interval
from calibrant.evaluation.results import Evaluation, MetricResult
from calibrant.evaluation.uncertainty import PairedDifference, paired_difference


@dataclass(frozen=True, eq=False, repr=False)
class History(Drawn):
    """Evaluations in an order that means something; prints as a table, a set of rows a line.

    Attributes:
        evaluations: name of the set, such as a date, to what was measured of it. All were measured
            by the same metrics, at the same level.

    Raises:
        InputError: fewer than two evaluations, or such as have no metric in common.

    Examples:
        >>> import calibrant as cb
        >>> from calibrant.evaluation.history import History
        >>> rows = cb.load_sample("test")
        >>> parts = {"monday": rows.take(slice(0, 5000)), "tuesday": rows.take(slice(5000, None))}
        >>> found = {day: cb.evaluate(part, resamples=100) for day, part in parts.items()}
        >>> change = History(found).change("nll")  # from monday to tuesday
        >>> change.low < 0 < change.high
        True
    """

    evaluations: Mapping[str, Evaluation]

    def __post_init__(self) -> None:
        if len(self.evaluations) < 2:
            raise InputError("a history needs at least two evaluations")
        if not self.metrics:
            raise InputError("these evaluations have no metric in common")

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics that all sets have; the first leads."""
        first, *others = self.evaluations.values()
        return [name for name in first.results if all(name in each.results for each in others)]

    def results(self, metric: str | None = None) -> dict[str, MetricResult]:
        """Return one metric's result in every set, of the leading metric if None."""
        return {name: each[metric or self.metrics[0]] for name, each in self.evaluations.items()}

    def change(self, metric: str | None = None) -> PairedDifference:
        """Return the last set's value minus the first's, with the interval of that difference.

        Resamples of two sets of rows are independent, so that their differences are those of
        independent sets. Where both hold the same rows in the same order they are paired.
        """
        first, *_, last = self.results(metric).values()
        size = min(len(first.replicates), len(last.replicates))
        level = next(iter(self.evaluations.values())).level
        values = last.value, first.value
        return paired_difference(last.replicates[:size], first.replicates[:size], values, level)

    def headline(self) -> str:
        """Return where the leading metric stands, and how it changed."""
        found = self.results()
        (first, _), *_, (last, result) = found.items()
        change = self.change()
        text = f"{result.metric.title} is {with_interval(result.metric, result.ends)} in {last}"
        ends = change.value, change.low, change.high
        if change.low <= 0 <= change.high:
            return f"{text}, and can't be told from that in {first}."
        return f"{text}, {compared(result.metric, ends)} than in {first}."

    def as_table(self) -> Table:
        """Return the table that it prints."""
        leading = [result.metric for result in self._of_last()]
        head = ["set", "rows", "confidence", "accuracy"]
        for metric in leading:
            head += [metric.title, "interval"] + ["floor 95 %"] * (metric is leading[0])
        rows = list[list[str]]()
        for name, each in self.evaluations.items():
            row = [name, str(each.n), percent(each.mean_confidence), percent(each.accuracy)]
            for metric in leading:
                result = each[metric.name]
                row += [show(metric, result.value)]
                row += [f"{show(metric, result.low)} .. {show(metric, result.high)}"]
                row += [show(metric, result.floor_95)] * (metric is leading[0])
            rows.append(row)
        titles = ["confidence", "accuracy", *(m.title for m in leading if m.percent)]
        notes = in_percent_are(titles, [m.title for m in leading if not m.percent])
        if leading[0].percent:
            notes += " Floor 95 %: perfectly calibrated confidences stay below it in 95 % of cases."
        return Table(head, rows, notes=notes)

    def _of_last(self) -> list[MetricResult]:
        last = list(self.evaluations.values())[-1]
        few = [name for name in ("ece", "nll") if name in self.metrics]
        return [last[name] for name in few or self.metrics[:2]]

    def records(self) -> list[dict[str, Any]]:
        """Return a row for each set and metric."""
        return [
            {"rows_of": name, "n": each.n, "metric": metric} | each[metric].as_dict()
            for name, each in self.evaluations.items()
            for metric in self.metrics
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it; fractions, not percent."""
        return {name: each.as_dict() for name, each in self.evaluations.items()}
