"""What a single temperature on the network's own head would have done.

A second stage is worth its epochs only if it does better than that: one number, fitted in a moment,
that leaves every prediction as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from calibrant.core.text import listed
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.formatting import difference_with_interval, with_interval
from calibrant.evaluation.results import MetricResult
from calibrant.evaluation.uncertainty import PairedDifference, paired_difference
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax

# What both are measured by; lower is better for the second and the third.
MEASURED = ("accuracy", "ece", "nll")


@dataclass(frozen=True, kw_only=True, eq=False)
class BesideTemperature:
    """A new head beside the network's own head with one temperature, on the same rows.

    Attributes:
        temperature: T, by which the network's logits are divided; fitted by likelihood.
        scaled: accuracy, ECE and NLL of the network's head with it, with intervals.
        head: the same of the new head.
        differences: new head less the other, paired row by row, with intervals.
        notes: what the fit of the temperature had to say.
    """

    temperature: float
    scaled: Mapping[str, MetricResult]
    head: Mapping[str, MetricResult]
    differences: Mapping[str, PairedDifference]
    notes: tuple[str, ...] = ()

    @property
    def better(self) -> list[str]:
        """Titles of the metrics in which the new head is surely better (95 % intervals)."""
        return self._surely(1)

    @property
    def worse(self) -> list[str]:
        """Titles of the metrics in which the new head is surely worse."""
        return self._surely(-1)

    def _surely(self, sign: int) -> list[str]:
        found: list[str] = []
        for name, difference in self.differences.items():
            metric = self.head[name].metric
            gain = sign * (metric.cost(0.0) - metric.cost(difference.value))
            if gain > 0 and not difference.low <= 0 <= difference.high:
                found.append(metric.title)
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it; fractions and nats."""
        return {
            "temperature": self.temperature,
            "metrics": {name: result.as_dict() for name, result in self.scaled.items()},
            "differences": {name: asdict(found) for name, found in self.differences.items()},
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        said = [
            f"{result.metric.title} {with_interval(result.metric, result.ends)}"
            for result in self.scaled.values()
        ]
        apart = [
            f"{metric.title} {difference_with_interval(metric, found.ends)}"
            for name, found in self.differences.items()
            for metric in [self.head[name].metric]
        ]
        verdict = "They can't be told apart."
        if self.better or self.worse:
            parts = [
                f"{how} in {listed(titles)}"
                for how, titles in (("better", self.better), ("worse", self.worse))
                if titles
            ]
            verdict = f"The new head is {' and '.join(parts)}; the rest can't be told apart."
            if len(self.better) + len(self.worse) == len(self.differences):
                verdict = f"The new head is {' and '.join(parts)}."
        noted = "".join(f"; {note}" for note in self.notes)
        return (
            f"One temperature on the network's head (T = {self.temperature:.3g}{noted}) would have "
            f"given {', '.join(said)}. New head less that, row by row: {', '.join(apart)}. "
            f"{verdict}"
        )


def beside_temperature(
    fitted_on: Predictions,
    old: Predictions,
    new: Predictions,
    *,
    resamples: int | None = None,
    seed: int = 0,
) -> BesideTemperature:
    """Fit one temperature to held-out rows and measure it beside a new head.

    Args:
        fitted_on: what the network's own head says of held-out rows.
        old: what it says of the rows to measure on.
        new: what the new head says of the same rows, in the same order.
        resamples: of the bootstrap; None as for `evaluate`.
        seed: of the bootstrap.
    """
    # What the fit would warn of belongs to what is said of the comparison.
    fit = fitted_on.temperature
    probs = softmax(old.logits, fit.beta)
    scaled, head = (
        evaluate(rows, metrics=MEASURED, resamples=resamples, seed=seed)
        for rows in (Predictions.from_probs(probs, old.labels), new)
    )
    return BesideTemperature(
        temperature=fit.temperature,
        notes=fit.notes,
        scaled=scaled.results,
        head=head.results,
        differences={
            name: paired_difference(
                head[name].replicates,
                scaled[name].replicates,
                (head[name].value, scaled[name].value),
            )
            for name in MEASURED
        },
    )
