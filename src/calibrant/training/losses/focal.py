"""The focal family: cross-entropy weighted down where the target is already likely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.training.losses.arguments import number, whole
from calibrant.training.losses.base import CalibrationLoss, ClassWeights, Reduction
from calibrant.training.losses.rows import Rows

# Below this 1 - p the derivative of (1 - p)^gamma with gamma < 1 would overflow.
_SMALLEST_REST = 1e-12
# After so many the first call of `start_epoch`, due before the first of them, was forgotten.
BATCHES_WITHOUT_EPOCH = 1000


def rest(rows: Rows) -> Tensor:
    """Return (M,) 1 - p_y, exact where p_y is close to 1."""
    return -torch.expm1(rows.true_log_prob)


class Focal(CalibrationLoss):
    """(1 - p_y)^gamma times cross-entropy (Lin et al. 2017; Mukhoti et al. 2020).

    The gradient flows through the weight too.

    Args:
        gamma: exponent, 0 is cross-entropy; or a schedule {epoch: gamma}, each holding from its
            epoch, counted from 0, on. The published one on CIFAR is {0: 5, 100: 3, 250: 1}. A
            schedule needs `start_epoch` to be called.
        reduction: see `CalibrationLoss`.
        ignore_index: see `CalibrationLoss`.
        class_weights: see `CalibrationLoss`.

    Attributes:
        gamma: the exponent in use.
    """

    def __init__(
        self,
        gamma: float | Mapping[int, float] = 3.0,
        *,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        class_weights: ClassWeights = None,
    ) -> None:
        super().__init__(
            reduction=reduction, ignore_index=ignore_index, class_weights=class_weights
        )
        steps = gamma if isinstance(gamma, Mapping) else {0: gamma}
        if 0 not in steps:
            raise InputError("a schedule of gamma must say what holds from epoch 0")
        self.schedule = {
            whole("epoch of gamma", epoch, at_least=0): number("gamma", steps[epoch], at_least=0)
            for epoch in sorted(steps)
        }
        self.gamma = self.schedule[0]
        self._calls_without_epoch = 0
        if len(self.schedule) > 1:
            self.needs = frozenset({"epochs"})

    def start_epoch(self, epoch: int) -> None:
        """Take the gamma of the schedule that holds in `epoch`, counted from 0."""
        self._calls_without_epoch = -1
        self.gamma = [gamma for start, gamma in self.schedule.items() if start <= epoch][-1]

    def _row_losses(self, rows: Rows) -> Tensor:
        if self.needs and self.learning and not torch.compiler.is_compiling():
            self._expect_epochs()
        return rest(rows).clamp_min(_SMALLEST_REST) ** self.gamma * rows.cross_entropy

    def _expect_epochs(self) -> None:
        """Say so where nobody tells the schedule of epochs."""
        if self._calls_without_epoch < 0:
            return
        self._calls_without_epoch += 1
        if self._calls_without_epoch > BATCHES_WITHOUT_EPOCH:
            self._warn_once(
                f"has a schedule, but no call of start_epoch(epoch) came in "
                f"{BATCHES_WITHOUT_EPOCH} batches: it stays at gamma {self.gamma:g}"
            )


class FLSD(CalibrationLoss):
    """Focal loss whose gamma depends on the row's p_y (Mukhoti et al. 2020; "FLSD-53").

    gamma is a constant to the gradient.

    Args:
        boundaries: increasing p_y at which the next gamma begins.
        gammas: one more than boundaries. FLSD-53 is the default; FLSD-52 is (5, 3, 2).
        reduction: see `CalibrationLoss`.
        ignore_index: see `CalibrationLoss`.
        class_weights: see `CalibrationLoss`.
    """

    def __init__(
        self,
        boundaries: Sequence[float] = (0.2, 0.5),
        gammas: Sequence[float] = (5.0, 3.0, 3.0),
        *,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        class_weights: ClassWeights = None,
    ) -> None:
        super().__init__(
            reduction=reduction, ignore_index=ignore_index, class_weights=class_weights
        )
        for name, values in (("boundaries", boundaries), ("gammas", gammas)):
            if not isinstance(values, (list, tuple)):
                raise InputError(f"{name} must be several numbers, not {values!r}")
        self.boundaries = tuple(number("boundary", edge, above=0, at_most=1) for edge in boundaries)
        self.gammas = tuple(number("gamma", gamma, at_least=0) for gamma in gammas)
        if len(gammas) != len(boundaries) + 1 or sorted(boundaries) != list(boundaries):
            raise InputError(
                "boundaries must increase and gammas must be one more, "
                f"not {self.boundaries} and {self.gammas}"
            )

    def _row_losses(self, rows: Rows) -> Tensor:
        likely = rows.true_log_prob.detach().exp()
        gamma = torch.full_like(likely, self.gammas[0])
        for edge, exponent in zip(self.boundaries, self.gammas[1:], strict=True):
            gamma = gamma.masked_fill(likely >= edge, exponent)
        return rest(rows).clamp_min(_SMALLEST_REST) ** gamma * rows.cross_entropy


class DualFocal(CalibrationLoss):
    """(1 - p_y + p_j)^gamma times cross-entropy, p_j the next below p_y (Tao et al. 2023).

    p_j is the largest probability strictly below p_y, 0 if none is. Gradients flow through both.

    Args:
        gamma: exponent, 0 is cross-entropy. The authors take 5 on CIFAR-10 and 3 on 20 Newsgroups
            and cross-validate elsewhere; the 0 that their code starts from is never meant.
        reduction: see `CalibrationLoss`.
        ignore_index: see `CalibrationLoss`.
        class_weights: see `CalibrationLoss`.
    """

    def __init__(
        self,
        gamma: float = 5.0,
        *,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        class_weights: ClassWeights = None,
    ) -> None:
        super().__init__(
            reduction=reduction, ignore_index=ignore_index, class_weights=class_weights
        )
        self.gamma = number("gamma", gamma, at_least=0)

    def _row_losses(self, rows: Rows) -> Tensor:
        below = rows.log_probs < rows.true_log_prob[:, None]
        next_smaller = rows.log_probs.exp().masked_fill(~below, 0).max(1).values
        base = (rest(rows) + next_smaller).clamp_min(_SMALLEST_REST)
        return base**self.gamma * rows.cross_entropy


def focal_gamma(probability: float) -> float:
    """Return the gamma at which focal loss pulls a row of that p_y as hard as cross-entropy does.

    Solves (1 - p)^gamma - gamma p (1 - p)^(gamma - 1) log p = 1 for gamma > 0 by Lambert's W; rows
    less likely are pulled harder, the others less (Mukhoti et al. 2020). There is none
    from p = 1/2 on.

    Raises:
        InputError: `probability` isn't between 0 and 1/2.
    """
    from math import exp, log, log1p

    from scipy.special import lambertw

    p = number("probability", probability, above=0)
    if p >= 0.5:
        raise InputError(f"probability must lie below 1/2, where a gamma exists, not {p}")
    # exp(a g) (1 + b g) = 1; besides g = 0 the other real branch of W solves it.
    a, b = log1p(-p), -p * log(p) / (1 - p)
    other = lambertw(a / b * exp(a / b), k=-1)
    return float(other.real / a - 1 / b)
