"""How a head does on rows that it was not trained on."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calibrant.metrics.binned import ece_of_curves
from calibrant.metrics.top_label import TopLabel
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import score_rows
from calibrant.training.second_stages.scaling import READ_ROWS
from calibrant.training.second_stages.sources import FeatureRows
from calibrant.training.second_stages.tensors import head_logits


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
