"""Calibration errors of a batch, differentiable by soft bins (Karandikar et al. 2021)."""

from __future__ import annotations

from math import log
from typing import Literal

import torch
from torch import Tensor

from calibrant.training.losses.arguments import choice, number, whole
from calibrant.training.losses.base import CalibrationLoss, Reduction
from calibrant.training.losses.penalised import PenalisedLoss
from calibrant.training.losses.rows import Rows

_SMALLEST_MASS = 1e-5
_UNDER_ROOT = 1e-10


class SoftECE(PenalisedLoss):
    """Cross-entropy plus a soft-binned calibration error of the batch.

    Row i belongs to bin j by w_ij = softmax_j(-(c_i - u_j)^2 / temperature), u_j the bin's middle.

    - "binned": sqrt(sum_j S_j / S (C_j - A_j)^2), with S_j the mass, C_j and A_j the mean
      confidence and accuracy of bin j;
    - "label-binned": (1/N) sum_ij w_ij (A_j - c_i)^2, bins on [1/K, 1].

    Correctness is a constant; the gradient flows through confidence and membership.

    Args:
        weight: of the penalty, beta in the paper, which tunes it by data set.
        n_bins: number of bins.
        temperature: of the membership.
        form: "binned" or "label-binned".
        base: loss per row to add to, cross-entropy if None.
        synchronise: take bins over all processes in training.
        reduction: see `CalibrationLoss`.
        ignore_index: see `CalibrationLoss`.
    """

    def __init__(
        self,
        weight: float = 1.0,
        n_bins: int = 15,
        temperature: float = 0.01,
        form: Literal["binned", "label-binned"] = "binned",
        *,
        base: CalibrationLoss | None = None,
        synchronise: bool = True,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
    ) -> None:
        super().__init__(
            base, weight, synchronise=synchronise, reduction=reduction, ignore_index=ignore_index
        )
        self.n_bins = whole("n_bins", n_bins, at_least=1)
        self.temperature = number("temperature", temperature, above=0)
        self.form = choice("form", form, ("binned", "label-binned"))

    def penalty(self, rows: Rows) -> Tensor:
        """Return the () soft-binned error, a root for "binned", squared for "label-binned"."""
        confidence = rows.confidence
        lowest = 0.0 if self.form == "binned" else 1 / rows.logits.shape[1]
        middle = torch.arange(self.n_bins, device=confidence.device, dtype=confidence.dtype) + 0.5
        middle = lowest + (1 - lowest) * middle / self.n_bins
        member = (-(confidence[:, None] - middle).square() / self.temperature).softmax(1)
        if self.form == "label-binned":
            # The paper's code keeps a trace of each row in each bin, so that none is empty.
            member = (1 - 1e-5) * member + 1e-5 / self.n_bins
        member = member * rows.weight[:, None]
        sums = torch.stack([member.sum(0), confidence @ member, rows.correct @ member])
        mass, confident, right = self._total(sums)
        share = mass.clamp_min(_SMALLEST_MASS)
        if self.form == "binned":
            gaps = (confident / share - right / share).square()
            return ((mass * gaps).sum() / mass.sum().clamp_min(_SMALLEST_MASS) + _UNDER_ROOT).sqrt()
        accuracy = right / mass.clamp_min(torch.finfo(mass.dtype).tiny)
        squares = (member * (accuracy - confidence[:, None]).square()).sum()
        total = self._total(torch.stack([squares, rows.count]))
        return total[0] / total[1].clamp_min(1)


class SoftAvUC(PenalisedLoss):
    """Cross-entropy plus soft accuracy versus uncertainty of the batch.

    With entropy h, e = h / log K and uncertainty u = sigmoid(log(e (1 - kappa) / ((1 - e) kappa)) /
    temperature), rows add to: accurate and certain (1 - u)(1 - tanh h), accurate and uncertain
    u tanh h, and so for inaccurate ones. The penalty is log(1 + (AU + IC) / (AC + IU)).

    Args:
        weight: of the penalty, beta in the paper, which tunes it by data set.
        threshold: kappa, the share of log K from which an entropy counts as uncertain, in (0, 1).
        temperature: of the decision.
        base: loss per row to add to, cross-entropy if None.
        synchronise: take sums over all processes in training.
        reduction: see `CalibrationLoss`.
        ignore_index: see `CalibrationLoss`.
    """

    def __init__(
        self,
        weight: float = 1.0,
        threshold: float = 0.5,
        temperature: float = 1.0,
        *,
        base: CalibrationLoss | None = None,
        synchronise: bool = True,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
    ) -> None:
        super().__init__(
            base, weight, synchronise=synchronise, reduction=reduction, ignore_index=ignore_index
        )
        self.threshold = number("threshold", threshold, above=0, at_most=1 - 1e-6)
        self.temperature = number("temperature", temperature, above=0)

    def penalty(self, rows: Rows) -> Tensor:
        """Return the () soft AvUC loss."""
        classes = rows.logits.shape[1]
        probs = (1 - 1e-5) * rows.log_probs.exp() + 1e-5 / classes
        entropy = -(probs * probs.log()).sum(1)
        # Uniform probabilities would give an infinite log odds, whose gradient is not a number.
        relative = (entropy / log(classes)).clamp(1e-6, 1 - 1e-6)
        odds = relative.logit() - log(self.threshold / (1 - self.threshold))
        uncertain = torch.sigmoid(odds / self.temperature)
        unsure = uncertain * entropy.tanh()
        sure = (1 - uncertain) * (1 - entropy.tanh())
        right, wrong = rows.correct * rows.weight, (1 - rows.correct) * rows.weight
        sums = torch.stack([right @ unsure + wrong @ sure, right @ sure + wrong @ unsure])
        bad, good = self._total(sums)
        return torch.log1p(bad / good.clamp_min(_SMALLEST_MASS))
