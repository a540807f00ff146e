"""How MaC-Cal's kappa is chosen on held-out rows, without a user's help and without collapse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.metrics.binned import ece_of_curves
from calibrant.metrics.top_label import TopLabel
from calibrant.predictions import Predictions
from calibrant.scoring import score_rows
from calibrant.training.heads.scaling import READ_ROWS
from calibrant.training.heads.sources import FeatureRows
from calibrant.training.heads.stage import head_logits

# Denser towards 1, where networks that generalise well have their kappa.
KAPPAS = (1.0, 0.97, 0.94, 0.91, 0.88, 0.85, 0.82, 0.79, 0.75, 0.7, 0.6)


@dataclass(frozen=True)
class KappaPoint:
    """What one kappa led to, measured on held-out rows.

    Attributes:
        kappa: the factor on training accuracy.
        retention: of the last epoch.
        accuracy: fraction right.
        confidence: mean confidence.
        ece: expected calibration error, 15 bins.
        nll: mean negative log-likelihood.
    """

    kappa: float
    retention: float
    accuracy: float
    confidence: float
    ece: float
    nll: float

    def as_dict(self) -> dict[str, float]:
        """Return the numbers as JSON takes them."""
        return asdict(self)


@dataclass(frozen=True)
class Held:
    """How a head does on held-out rows; all are fractions or nats."""

    accuracy: float
    confidence: float
    ece: float
    nll: float


def measure_head(head: nn.Module, rows: FeatureRows) -> Held:
    """Measure a head that takes features as they come on held-out rows."""
    parts = [head_logits(head, features) for features, _ in rows.passes(READ_ROWS)]
    return measure_logits(torch.cat(parts), rows)


def measure_logits(logits: Tensor, rows: FeatureRows) -> Held:
    """Measure (N, K) logits of rows."""
    scores = score_rows(Predictions.from_logits(logits.cpu().numpy(), rows.labels.cpu().numpy()))
    curves = TopLabel.sort(scores.confidence, scores.correct).curves()
    return Held(
        float(scores.correct.mean()),
        float(scores.confidence.mean()),
        float(ece_of_curves(curves)[0]),
        float(scores.nll.mean()),
    )


@dataclass(frozen=True)
class KappaChoice:
    """Which of several kappas to take.

    Attributes:
        index: its place among the points; None if no kappa keeps the accuracy.
        note: what there is to say about it, or None.
    """

    index: int | None
    note: str | None


def choose_kappa(
    points: Sequence[KappaPoint], reference_accuracy: float, tolerance: float
) -> KappaChoice:
    """Return the kappa whose held-out confidence is nearest to accuracy, if it keeps the accuracy.

    That is what kappa is there for, and the gap varies less from sample to sample than a binned
    error. A kappa keeps the accuracy if its held-out accuracy is at most `tolerance`
    below the reference.
    """
    gaps = [abs(point.confidence - point.accuracy) for point in points]
    best = min(range(len(points)), key=lambda index: gaps[index])
    keeps = [point.accuracy >= reference_accuracy - tolerance for point in points]
    if keeps[best]:
        return KappaChoice(best, None)
    loss = reference_accuracy - points[best].accuracy
    if len(points) == 1:
        return KappaChoice(
            None,
            f"kappa {points[0].kappa:g} loses {100 * loss:.2f} points of held-out accuracy, more "
            f"than the tolerance of {100 * tolerance:g}",
        )
    if not any(keeps):
        return KappaChoice(
            None,
            f"no kappa keeps held-out accuracy within {100 * tolerance:g} points of the plain "
            f"head's {100 * reference_accuracy:.2f} %; backed off to plain retraining",
        )
    admissible = [index for index, kept in enumerate(keeps) if kept]
    chosen = min(admissible, key=lambda index: gaps[index])
    return KappaChoice(
        chosen,
        f"kappa {points[best].kappa:g} brings held-out confidence nearest to accuracy but loses "
        f"{100 * loss:.2f} points of it; backed off to {points[chosen].kappa:g}",
    )


def as_table(points: Sequence[KappaPoint]) -> list[dict[str, Any]]:
    """Return the sensitivity curve as JSON takes it."""
    return [point.as_dict() for point in points]
