"""How a head does on rows: epoch by epoch, held out, and beside a single temperature."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calibrant.core.text import listed
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.formatting import difference_with_interval, with_interval
from calibrant.evaluation.results import MetricResult
from calibrant.evaluation.uncertainty import PairedDifference, paired_difference
from calibrant.metrics.binned import ece_of_curves
from calibrant.metrics.top_label import TopLabel
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax
from calibrant.predictions.scoring import score_rows
from calibrant.training.second_stages.sources import READ_ROWS, FeatureRows, head_logits

Progress = Callable[[str], None]


@dataclass(frozen=True)
class EpochRecord:
    """What an epoch showed on its training rows, seen while it trained.

    Attributes:
        epoch: counted from 1.
        retention: share of connections kept; 1 where nothing is masked.
        accuracy: share of rows whose label was predicted.
        confidence: mean probability of the predicted label.
    """

    epoch: int
    retention: float
    accuracy: float
    confidence: float

    def as_dict(self) -> dict[str, float]:
        """Return the numbers as JSON takes them."""
        return asdict(self)


def silent(_: str) -> None:
    """Show no progress."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """How a head does on held-out rows.

    Attributes:
        accuracy: fraction right.
        confidence: mean confidence.
        ece: expected calibration error, 15 bins, a fraction.
        nll: mean negative log-likelihood in nats.
    """

    accuracy: float
    confidence: float
    ece: float
    nll: float

    def as_dict(self) -> dict[str, float]:
        """Return the numbers as JSON takes them."""
        return asdict(self)


def logits_of(head: nn.Module, rows: FeatureRows) -> Tensor:
    """Return the (N, K) logits of a head that takes features as they come."""
    return torch.cat([head_logits(head, features) for features, _ in rows.passes(READ_ROWS)])


def measure_logits(logits: Tensor, rows: FeatureRows) -> tuple[Held, NDArray[np.bool_]]:
    """Measure (N, K) logits of N rows; also return for each row whether it is predicted right."""
    scores = score_rows(Predictions.from_logits(logits.cpu().numpy(), rows.labels.cpu().numpy()))
    curves = TopLabel.sort(scores.confidence, scores.correct).curves()
    held = Held(
        accuracy=float(scores.correct.mean()),
        confidence=float(scores.confidence.mean()),
        ece=float(ece_of_curves(curves)[0]),
        nll=float(scores.nll.mean()),
    )
    return held, np.asarray(scores.correct, dtype=bool)


# What both are measured by; lower is better for the second and the third.
MEASURED = ("accuracy", "ece", "nll")


@dataclass(frozen=True, kw_only=True, eq=False)
class BesideTemperature:
    """A new head beside the network's own head with one temperature, on the same rows.

    Attributes:
        temperature: T, by which the network's logits are divided; fitted by likelihood.
        scaled: accuracy, ECE and NLL of the network's head with it, with intervals.
        head: the same of the new head.
        differences: new head minus the other, paired row by row, with intervals.
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
            f"given {', '.join(said)}. The new head minus the temperature, on the same rows: "
            f"{', '.join(apart)}. {verdict}"
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
        fitted_on: predictions of the network's own head for held-out rows.
        old: its predictions for the rows to measure on.
        new: predictions of the new head for the same rows, in the same order.
        resamples: of the bootstrap; None as for `evaluate`.
        seed: for the bootstrap.
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
