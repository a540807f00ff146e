"""A loss per row plus a penalty that belongs to the batch: MMCE, MDCA, SoftECE, SoftAvUC."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from math import log
from typing import Literal, cast, get_args

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from calibrant.core.arguments import argument
from calibrant.core.errors import InputError
from calibrant.training.losses.base import (
    DEFAULT_IGNORE_INDEX,
    CalibrationLoss,
    ClassWeights,
    LossName,
    Rows,
    own_loss,
)
from calibrant.training.losses.collectives import gather_rows, sum_over_ranks
from calibrant.training.losses.likelihood import CrossEntropy, Focal, LabelSmoothing


@dataclass(eq=False, repr=False)
class PenalisedLoss(CalibrationLoss):
    """base + weight * penalty, the penalty a statistic of the whole batch.

    In distributed training the penalty is that of the global batch: its sums go over all processes,
    differentiably, so that averaged gradients are those of one process with all rows. Collectives
    happen in training mode only, so one process may evaluate alone. The penalty depends on the size
    of the batch: accumulating gradients over smaller batches is not the same, and no weight makes
    it so.

    Args:
        base: a loss per row, cross-entropy by default. Its own reduction isn't used.
        weight: weight of the penalty.
        synchronise: take statistics over all processes.
        reduction, ignore_index: see `CalibrationLoss`.

    Raises:
        InputError: `base` has a batch term of its own, needs more than logits and targets, weighs
            classes, or leaves out other rows than this loss.
    """

    per_sample = False
    distributed = "batch, sums"

    _: KW_ONLY
    # By factory, since nothing of a module's name may lie on the class.
    base: CalibrationLoss = field(default_factory=CrossEntropy)
    weight: float = argument(1.0, at_least=0)
    synchronise: bool = True
    # The penalty counts all rows alike.
    class_weights: ClassWeights = field(init=False, default_factory=lambda: None)

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        base = own_loss(self.base, name)
        if not base.per_sample or base.needs - {"epochs"}:
            raise InputError(
                f"{name} adds to a loss per row that needs logits and targets only, not to "
                f"{type(base).__name__}"
            )
        if base.class_weights is not None:
            raise InputError(
                f"{name} can't weigh classes: its penalty counts all rows alike; give it a base "
                "without class_weights"
            )
        if base.ignore_index not in (self.ignore_index, DEFAULT_IGNORE_INDEX):
            raise InputError(
                f"{name} leaves out targets of {self.ignore_index}, but its base those of "
                f"{base.ignore_index}; give it ignore_index={base.ignore_index}"
            )
        self.needs = base.needs

    @property
    def spans_ranks(self) -> bool:
        """Whether statistics go over all processes in this call."""
        return self.synchronise and self.training

    def _total(self, local: Tensor) -> Tensor:
        return sum_over_ranks(local) if self.spans_ranks else local

    def _row_losses(self, rows: Rows) -> Tensor:
        return self.base._row_losses(rows)

    def _batch_term(self, rows: Rows) -> Tensor:
        return self.weight * self.penalty(rows)

    def penalty(self, rows: Rows) -> Tensor:
        """Return the () penalty of a batch, before its weight."""
        raise NotImplementedError


Form = Literal["weighted", "unweighted"]
Norm = Literal["published", "paper"]

# Keeps the gradient of a square root finite at 0, as in the authors' code.
_UNDER_ROOT = 1e-10


@dataclass(eq=False, repr=False)
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
        base: loss per row to add to, cross-entropy by default.
        synchronise: take pairs over all processes in training.
        reduction, ignore_index: see `CalibrationLoss`.
    """

    fails = (
        "it is a statistic of the batch: noisy for small batches, and accumulated small "
        "batches aren't one large batch"
    )
    names = (
        LossName(
            "mmce",
            "cross-entropy plus kernel calibration error; memory N^2",
            "Kumar et al. 2018",
        ),
    )
    distributed = "batch, rows gathered"

    form: Form = argument("weighted", choices=get_args(Form))
    width: float = argument(0.4, above=0)
    squared: bool = True
    norm: Norm = argument("published", choices=get_args(Norm))
    max_rows: int = argument(4096, at_least=2)
    _: KW_ONLY
    weight: float = argument(None, at_least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        weight = cast(float | None, self.weight)
        if weight is None and self.form == "weighted" and self.norm == "paper":
            raise InputError(
                "MMCE(norm='paper') needs a weight: the published 2 belongs to norm='published', "
                "whose penalty is many times smaller"
            )
        if weight is None:
            self.weight = 2.0 if self.form == "weighted" else 1.0

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


@dataclass(eq=False, repr=False)
class MDCA(PenalisedLoss):
    """Mean difference between confidence and frequency, class by class (Hebbalaguppe et al. 2022).

    base + weight / K * sum_k |mean_i p_ik - mean_i 1[y_i = k]|. With many more classes than rows
    most classes are absent and the penalty is about the mean probability.

    Args:
        base: loss per row to add to; by default focal loss with gamma 1, which the authors run
            beside gamma 3.
        weight: of the penalty, beta in the paper; 1 in the authors' scripts.
        legacy_double_softmax: replace the base by label smoothing (0.1) of the probabilities
            instead of the logits, a slip in the code behind some published tables of this method.
        synchronise: take class means over all processes in training.
        reduction, ignore_index: see `CalibrationLoss`.
    """

    fails = "with many more classes than rows in a batch most classes are absent from it"
    names = (
        LossName(
            "mdca",
            "focal plus difference of mean probability and frequency, by class",
            "Hebbalaguppe et al. 2022",
        ),
    )

    legacy_double_softmax: bool = False
    _: KW_ONLY
    base: CalibrationLoss = field(default_factory=lambda: Focal(1.0))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.legacy_double_softmax:
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


_SMALLEST_MASS = 1e-5


@dataclass(eq=False, repr=False)
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
        base: loss per row to add to, cross-entropy by default.
        synchronise: take bins over all processes in training.
        reduction, ignore_index: see `CalibrationLoss`.
    """

    fails = (
        "it is a statistic of the batch: small batches leave most bins nearly empty, and "
        "accumulated ones aren't one large batch"
    )
    names = (
        LossName(
            "soft-ece",
            "cross-entropy plus soft-binned calibration error",
            "Karandikar et al. 2021",
        ),
    )

    n_bins: int = argument(15, at_least=1)
    temperature: float = argument(0.01, above=0)
    form: Literal["binned", "label-binned"] = argument("binned", choices=("binned", "label-binned"))

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


@dataclass(eq=False, repr=False)
class SoftAvUC(PenalisedLoss):
    """Cross-entropy plus soft accuracy versus uncertainty of the batch.

    With entropy h, e = h / log K and uncertainty u = sigmoid(log(e (1 - kappa) / ((1 - e) kappa)) /
    temperature), rows add to: accurate and certain (1 - u)(1 - tanh h), accurate and uncertain
    u tanh h, and so for inaccurate ones. The penalty is log(1 + (AU + IC) / (AC + IU)).

    Args:
        weight: of the penalty, beta in the paper, which tunes it by data set.
        threshold: kappa, the share of log K from which an entropy counts as uncertain, in (0, 1).
        temperature: of the decision.
        base: loss per row to add to, cross-entropy by default.
        synchronise: take sums over all processes in training.
        reduction, ignore_index: see `CalibrationLoss`.
    """

    fails = (
        "it asks for certainty on one side of a threshold and uncertainty on the other, not "
        "for a confidence that is the accuracy"
    )
    names = (
        LossName(
            "soft-avuc",
            "cross-entropy plus soft accuracy versus uncertainty",
            "Karandikar et al. 2021",
        ),
    )

    threshold: float = argument(0.5, above=0, below=1)
    temperature: float = argument(1.0, above=0)

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
