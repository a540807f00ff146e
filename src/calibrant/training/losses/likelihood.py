"""Cross-entropy and its closest kin: label smoothing, the confidence penalty, the Brier score."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import one_hot

from calibrant.training.losses.arguments import number
from calibrant.training.losses.base import CalibrationLoss, ClassWeights, Reduction
from calibrant.training.losses.rows import Rows


class CrossEntropy(CalibrationLoss):
    """Minus the log probability of the target: -log p_y."""

    def _row_losses(self, rows: Rows) -> Tensor:
        return rows.cross_entropy


class BrierLoss(CalibrationLoss):
    """Sum over classes of (p_k - 1[k = y])^2, between 0 and 2 (Brier 1950).

    Its gradient is bounded and vanishes for rows that are wrong with certainty, so it trains slower
    than cross-entropy; published recipes give it more epochs.
    """

    def _row_losses(self, rows: Rows) -> Tensor:
        probs = rows.log_probs.exp()
        return (probs - one_hot(rows.target, probs.shape[1])).square().sum(1)


class LabelSmoothing(CalibrationLoss):
    """Cross-entropy with smoothed labels: (1 - alpha) CE + alpha E, E = -mean_k log p_k.

    Each class gets alpha / K, the true one too (Szegedy et al. 2016; Mueller et al. 2019). Some
    code gives alpha / (K - 1) to the other classes only: that is alpha K / (K - 1) here.

    Args:
        alpha: share of the label spread over the classes, in [0, 1]. 0.05 in most calibration
            papers, 0.1 for CIFAR-100 in FeDLaS.
        reduction: see `CalibrationLoss`.
        ignore_index: see `CalibrationLoss`.
        class_weights: see `CalibrationLoss`.
    """

    def __init__(
        self,
        alpha: float = 0.05,
        *,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        class_weights: ClassWeights = None,
    ) -> None:
        super().__init__(
            reduction=reduction, ignore_index=ignore_index, class_weights=class_weights
        )
        self.alpha = number("alpha", alpha, at_least=0, at_most=1)

    def _row_losses(self, rows: Rows) -> Tensor:
        uniform = -rows.log_probs.mean(1)
        return (1 - self.alpha) * rows.cross_entropy + self.alpha * uniform


class ConfidencePenalty(CalibrationLoss):
    """Cross-entropy minus beta times the entropy H(p) (Pereyra et al. 2017; "ECP").

    Args:
        beta: weight of the entropy; 0.1 in the paper and its descendants.
        legacy_class_mean: average -p_k log p_k over the classes instead of summing it, as widely
            copied code does: beta is K times weaker then. Off, since the paper sums.
        reduction: see `CalibrationLoss`.
        ignore_index: see `CalibrationLoss`.
        class_weights: see `CalibrationLoss`.
    """

    def __init__(
        self,
        beta: float = 0.1,
        legacy_class_mean: bool = False,
        *,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        class_weights: ClassWeights = None,
    ) -> None:
        super().__init__(
            reduction=reduction, ignore_index=ignore_index, class_weights=class_weights
        )
        self.beta = number("beta", beta, at_least=0)
        self.legacy_class_mean = legacy_class_mean

    def _row_losses(self, rows: Rows) -> Tensor:
        # A masked class has probability 0 and log probability -inf; its share of the entropy is 0.
        possible = rows.log_probs > -float("inf")
        logs = rows.log_probs.masked_fill(~possible, 0)
        terms = -(rows.log_probs.exp() * logs)
        entropy = terms.mean(1) if self.legacy_class_mean else terms.sum(1)
        return rows.cross_entropy - self.beta * entropy
