"""Deep ensembles: several networks that differ by their seeds, whose probabilities are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError
from calibrant.predictions.predictions import Predictions


class Ensemble(nn.Module):
    """Networks as one: the logarithm of the mean of their probabilities.

    Lakshminarayanan, Pritzel & Blundell, Simple and Scalable Predictive Uncertainty Estimation
    using Deep Ensembles, NeurIPS 2017.

    Args:
        members: each gives (B, K) logits of the same inputs.

    Examples:
        >>> import torch
        >>> from calibrant.training.run.ensemble import Ensemble
        >>> sure = torch.nn.Identity()
        >>> Ensemble([sure, sure])(torch.tensor([[3.0, 0.0]])).softmax(1).round(decimals=3)
        tensor([[0.9530, 0.0470]])
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, inputs: Any) -> Tensor:
        """Return (B, K) logarithms of probabilities."""
        said = [cast(Any, member)(inputs).log_softmax(1) for member in self.members]
        return torch.stack(said).logsumexp(0) - log(len(said))


def ensemble_of(said: Sequence[Predictions], source: str = "ensemble") -> Predictions:
    """Return what an ensemble says of rows of which each member has said its own.

    Args:
        said: logits or probabilities of the same N rows, in the same order.
        source: what error messages call the rows.

    Raises:
        InputError: the members' rows aren't the same.

    Examples:
        >>> import calibrant as cb
        >>> from calibrant.training.run.ensemble import ensemble_of
        >>> sure = cb.Predictions.from_probs([[1.0, 0.0]], [0])
        >>> half = cb.Predictions.from_probs([[0.5, 0.5]], [0])
        >>> ensemble_of([sure, half]).probs.tolist()
        [[0.75, 0.25]]
    """
    first = said[0]
    for other in said[1:]:
        if not np.array_equal(other.labels, first.labels):
            raise InputError(f"{other.source}: its rows aren't those of {first.source}")
    mean = np.mean([np.asarray(each.probs, np.float64) for each in said], axis=0)
    return Predictions.from_probs(mean, first.labels, source=source)
