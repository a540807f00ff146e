"""Penalties on the distances between the logits of a row."""

from __future__ import annotations

from math import log
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from calibrant.training.losses.arguments import choice, number
from calibrant.training.losses.base import CalibrationLoss, ClassWeights, Reduction
from calibrant.training.losses.pairs import pair_sum_and_gradient, with_gradient
from calibrant.training.losses.rows import Rows

ClassReduction = Literal["mean", "sum"]


def margin_excess(logits: Tensor, margin: float, reduction: ClassReduction) -> Tensor:
    """Return (M,) mean or sum over classes of max(0, max z - z_k - margin)."""
    excess = (logits.amax(1, keepdim=True) - logits - margin).relu()
    return excess.mean(1) if reduction == "mean" else excess.sum(1)


class MbLS(CalibrationLoss):
    """Margin-based label smoothing: CE + alpha R, R the gaps to the top logit above a margin.

    R = mean over classes of max(0, max z - z_k - margin) (Liu et al. 2022); the gradient flows into
    the top logit too.

    Args:
        alpha: weight of R: 0.1 in the paper, 0.05 for Tiny-ImageNet in FeDLaS.
        margin: 6 on CIFAR, 10 on Tiny-ImageNet, ImageNet and fine-grained sets.
        class_reduction: "mean" over classes as in the authors' code, which the published alphas
            belong to, or "sum" as the formula is written elsewhere (divide alpha by K then).
        reduction: see `CalibrationLoss`.
        ignore_index: see `CalibrationLoss`.
        class_weights: see `CalibrationLoss`.
    """

    def __init__(
        self,
        alpha: float = 0.1,
        margin: float = 6.0,
        class_reduction: ClassReduction = "mean",
        *,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        class_weights: ClassWeights = None,
    ) -> None:
        super().__init__(
            reduction=reduction, ignore_index=ignore_index, class_weights=class_weights
        )
        self.alpha = number("alpha", alpha, at_least=0)
        self.margin = number("margin", margin, at_least=0)
        self.class_reduction: ClassReduction = choice(
            "class_reduction", class_reduction, ("mean", "sum")
        )

    def _row_losses(self, rows: Rows) -> Tensor:
        excess = margin_excess(rows.logits, self.margin, self.class_reduction)
        return rows.cross_entropy + self.alpha * excess


class ACLS(CalibrationLoss):
    """Adaptive and conditional label smoothing (Park et al. 2023).

    CE + alpha [positive * max(0, z_max - margin)^2
    + negative / (K - 1) * sum over other k of max(0, z_max - z_k - margin)^2].

    The first square moves the top logit only, the second the others only (its z_max is a constant).
    Logits that tie for the top count as top each.

    Args:
        alpha: weight of both squares.
        positive: weight of the square of the top logit.
        negative: weight of the squares of the others.
        margin: 6 on CIFAR, 10 on Tiny-ImageNet and ImageNet.
        reference: what the top logit is measured from. "raw" takes z_max itself, as the released
            code does that the published numbers come from; a constant added to all logits changes
            it. "min" takes z_max - min z with the smallest logit as a constant, which no shift
            changes.
        reduction: see `CalibrationLoss`.
        ignore_index: see `CalibrationLoss`.
        class_weights: see `CalibrationLoss`.
    """

    def __init__(
        self,
        alpha: float = 0.1,
        positive: float = 1.0,
        negative: float = 0.1,
        margin: float = 10.0,
        reference: Literal["raw", "min"] = "raw",
        *,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        class_weights: ClassWeights = None,
    ) -> None:
        super().__init__(
            reduction=reduction, ignore_index=ignore_index, class_weights=class_weights
        )
        self.alpha = number("alpha", alpha, at_least=0)
        self.positive = number("positive", positive, at_least=0)
        self.negative = number("negative", negative, at_least=0)
        self.margin = number("margin", margin, at_least=0)
        self.reference = choice("reference", reference, ("raw", "min"))

    def _row_losses(self, rows: Rows) -> Tensor:
        logits, fixed = rows.logits, rows.logits.detach()
        top = fixed.amax(1, keepdim=True)
        is_top = fixed == top
        floor = fixed.amin(1, keepdim=True) if self.reference == "min" else torch.zeros_like(top)
        above = (logits - floor - self.margin).relu().square()
        below = (top - logits - self.margin).relu().square()
        peaks = above.masked_fill(~is_top, 0).sum(1)
        others = below.masked_fill(is_top, 0).sum(1) / (logits.shape[1] - 1)
        penalty = self.positive * peaks + self.negative * others
        return rows.cross_entropy + self.alpha * penalty


class CPC(CalibrationLoss):
    """Pairwise constraints between logits (Cheng and Vasconcelos 2022).

    CE + discrimination * BDC + exclusion * BEC. BDC is the mean over j other than y of
    log(1 + exp(z_j - z_y)). BEC is 1 / ((K - 1)(K - 2)) times the sum over ordered pairs j, k other
    than y, j = k included, of log(1 + exp(z_k - z_j)) / 2: it pulls the wrong classes together.
    With two classes there is no BEC. The pairs aren't made one by one (`pairs.py`): work and memory
    grow with N K log K.

    Args:
        discrimination: weight of BDC. 1 in the paper's code; 0.1 in BalCAL's comparison.
        exclusion: weight of BEC; 1 in both.
        reduction: see `CalibrationLoss`.
        ignore_index: see `CalibrationLoss`.
        class_weights: see `CalibrationLoss`.
    """

    def __init__(
        self,
        discrimination: float = 1.0,
        exclusion: float = 1.0,
        *,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        class_weights: ClassWeights = None,
    ) -> None:
        super().__init__(
            reduction=reduction, ignore_index=ignore_index, class_weights=class_weights
        )
        self.discrimination = number("discrimination", discrimination, at_least=0)
        self.exclusion = number("exclusion", exclusion, at_least=0)

    def _row_losses(self, rows: Rows) -> Tensor:
        # By hand: a dozen small steps of automatic differentiation would take as long as the sums.
        return with_gradient(rows.logits, *self._with_cross_entropy(rows))

    @torch.no_grad()
    def _with_cross_entropy(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return (M,) cross-entropy with both penalties, and its (M, K) gradient."""
        logits, column = rows.logits.detach(), rows.target[:, None]
        classes = logits.shape[1]
        gaps = logits - logits.gather(1, column)
        apart, share = softplus(gaps).sum(1), gaps.sigmoid()
        weight, each = self.discrimination / (classes - 1), 0.0
        gradient, values = rows.log_probs.detach().exp(), -rows.true_log_prob.detach()
        if classes > 2:
            # All pairs but those with the true class, in both orders.
            each = self.exclusion / (2 * (classes - 1) * (classes - 2))
            weight -= 2 * each
            pairs, slopes = pair_sum_and_gradient(logits)
            gradient.add_(slopes.add_(1), alpha=each)
            values.add_(pairs.add_(gaps.sum(1)), alpha=each)
        gradient.add_(share, alpha=weight)
        # What the true class does to itself is no pair: log 2, and no force.
        values.add_(apart, alpha=weight).sub_((weight + each) * log(2))
        # A shift of all logits changes nothing: the forces of a row add up to 0.
        gradient.scatter_add_(1, column, gradient.sum(1, keepdim=True).neg_())
        return values, gradient
