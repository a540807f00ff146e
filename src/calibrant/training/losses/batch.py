"""Statistics of a batch as a penalty: the kernel error MMCE, the class frequencies of MDCA."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from calibrant.core.errors import InputError
from calibrant.training.losses.arguments import choice, number, whole
from calibrant.training.losses.base import CalibrationLoss, Reduction
from calibrant.training.losses.collectives import gather_rows
from calibrant.training.losses.focal import Focal
from calibrant.training.losses.likelihood import LabelSmoothing
from calibrant.training.losses.penalised import PenalisedLoss
from calibrant.training.losses.rows import Rows

Norm = Literal["published", "paper"]

# Keeps the gradient of a square root finite at 0, as in the authors' code.
_UNDER_ROOT = 1e-10


class MMCE(PenalisedLoss):
    """Cross-entropy plus the maximum mean calibration error of the batch (Kumar et al. 2018).

    With confidence c, correctness a (a constant) and kernel k = exp(-|c_i - c_j| / width):

    - unweighted: mean over all pairs of (a_i - c_i)(a_j - c_j) k_ij;
    - weighted: sqrt(A + B - 2 X), A the mean over pairs of right rows of (1 - c_i)(1 - c_j) k_ij, B
      that over pairs of wrong rows of c_i c_j k_ij, X that over mixed pairs of (1 - c_i) c_j k_ij;
      0 where all rows are right or all wrong.

    Args:
        form: "weighted" or "unweighted".
        weight: of the penalty. None takes the published 2 for the weighted, 1 for the unweighted.
            The weighted form with ``norm="paper"`` has no published weight and must be given one.
        width: of the kernel.
        squared: whether the unweighted form is left squared, as in the code whose weight of 1 is
            published; False takes the paper's square root. The weighted form is always a root.
        norm: of the weighted form. "published": A, B and X are divided by their numbers of pairs
            twice, as in the code whose weights are published; the penalty then fades as the batch
            grows. "paper": once, as the formula says, which at 128 rows makes the penalty twenty
            to fifty times as large. So a weight belongs to its norm.
        max_rows: larger batches (pixels) are represented by that many rows at random, since memory
            grows with the square.
        base: loss per row to add to, cross-entropy if None.
        synchronise: take pairs over all processes in training.
        reduction: see `CalibrationLoss`.
        ignore_index: see `CalibrationLoss`.
    """

    def __init__(
        self,
        form: Literal["weighted", "unweighted"] = "weighted",
        weight: float | None = None,
        width: float = 0.4,
        squared: bool = True,
        norm: Norm = "published",
        max_rows: int = 4096,
        *,
        base: CalibrationLoss | None = None,
        synchronise: bool = True,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
    ) -> None:
        form_ = choice("form", form, ("weighted", "unweighted"))
        if weight is None and form_ == "weighted" and norm == "paper":
            raise InputError(
                "MMCE(norm='paper') needs a weight: the published 2 belongs to norm='published', "
                "whose penalty is many times smaller"
            )
        usual_weight = 2.0 if form_ == "weighted" else 1.0
        super().__init__(
            base,
            usual_weight if weight is None else weight,
            synchronise=synchronise,
            reduction=reduction,
            ignore_index=ignore_index,
        )
        self.form = form_
        self.width = number("width", width, above=0)
        self.squared = squared
        self.norm: Norm = choice("norm", norm, Norm.__args__)
        self.max_rows = whole("max_rows", max_rows, at_least=2)

    def penalty(self, rows: Rows) -> Tensor:
        """Return the () MMCE of the batch, squared or not as asked for."""
        columns = torch.stack([rows.confidence, rows.correct, rows.weight], 1)
        if len(columns) > self.max_rows:
            order = torch.rand(len(columns), device=columns.device)
            order = order.masked_fill(~rows.valid, 2.0)
            columns = columns[order.topk(self.max_rows, largest=False).indices]
        if self.spans_ranks:
            columns = gather_rows(columns)
        confidence, correct, weight = columns.unbind(1)
        kernel = torch.exp(-(confidence[:, None] - confidence).abs() / self.width)
        if self.form == "unweighted":
            residual = (correct - confidence) * weight
            square = residual @ kernel @ residual / weight.sum().clamp_min(1).square()
            return square if self.squared else (square.clamp_min(0) + _UNDER_ROOT).sqrt()
        is_right, is_wrong = correct * weight, (1 - correct) * weight
        right, wrong = is_right * (1 - confidence), is_wrong * confidence
        n_right, n_wrong = is_right.sum(), is_wrong.sum()
        square = (
            self._mean(right @ kernel @ right, n_right * n_right)
            + self._mean(wrong @ kernel @ wrong, n_wrong * n_wrong)
            - 2 * self._mean(right @ kernel @ wrong, n_right * n_wrong)
        )
        root = (square.clamp_min(0) + _UNDER_ROOT).sqrt()
        return root.where((n_right > 0) & (n_wrong > 0), root * 0)

    def _mean(self, total: Tensor, pairs: Tensor) -> Tensor:
        mean = total / pairs.clamp_min(1)
        return mean / (pairs + 1e-5) if self.norm == "published" else mean


class MDCA(PenalisedLoss):
    """Mean difference between confidence and frequency, class by class (Hebbalaguppe et al. 2022).

    base + weight / K * sum_k |mean_i p_ik - mean_i 1[y_i = k]|. With many more classes than rows
    most classes are absent and the penalty is about the mean probability.

    Args:
        base: loss per row to add to; None is focal loss with gamma 1, which the authors run
            beside gamma 3.
        weight: of the penalty, beta in the paper; 1 in the authors' scripts.
        legacy_double_softmax: replace the base by label smoothing (0.1) of the probabilities
            instead of the logits, a slip in the code behind some published tables of this method.
        synchronise: take class means over all processes in training.
        reduction: see `CalibrationLoss`.
        ignore_index: see `CalibrationLoss`.
    """

    def __init__(
        self,
        base: CalibrationLoss | None = None,
        weight: float = 1.0,
        legacy_double_softmax: bool = False,
        *,
        synchronise: bool = True,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
    ) -> None:
        super().__init__(
            Focal(1.0) if base is None else base,
            weight,
            synchronise=synchronise,
            reduction=reduction,
            ignore_index=ignore_index,
        )
        self.legacy_double_softmax = legacy_double_softmax
        if legacy_double_softmax:
            self.base = LabelSmoothing(0.1)

    def _row_losses(self, rows: Rows) -> Tensor:
        if self.legacy_double_softmax:
            rows = replace(rows, logits=rows.log_probs.exp())
        return super()._row_losses(rows)

    def penalty(self, rows: Rows) -> Tensor:
        """Return the () mean absolute difference of class means."""
        surplus = rows.log_probs.exp() - one_hot(rows.target, rows.logits.shape[1])
        sums = self._total(torch.cat([rows.weight @ surplus, rows.count[None]]))
        return (sums[:-1] / sums[-1].clamp_min(1)).abs().mean()
