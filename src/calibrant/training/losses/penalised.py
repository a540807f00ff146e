"""A loss per row plus a weighted penalty that belongs to the batch as a whole."""

from __future__ import annotations

from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.training.losses.arguments import number
from calibrant.training.losses.base import (
    DEFAULT_IGNORE_INDEX,
    CalibrationLoss,
    Reduction,
    own_loss,
)
from calibrant.training.losses.collectives import sum_over_ranks
from calibrant.training.losses.likelihood import CrossEntropy
from calibrant.training.losses.rows import Rows


class PenalisedLoss(CalibrationLoss):
    """base + weight * penalty, the penalty a statistic of the whole batch.

    In distributed training the penalty is that of the global batch: its sums go over all processes,
    differentiably, so that averaged gradients are those of one process with all rows. Collectives
    happen in training mode only, so one process may evaluate alone. The penalty depends on the size
    of the batch: accumulating gradients over smaller batches is not the same, and no weight makes
    it so.

    Args:
        base: a loss per row, cross-entropy if None. Its own reduction isn't used.
        weight: weight of the penalty.
        synchronise: take statistics over all processes.
        reduction: see `CalibrationLoss`.
        ignore_index: see `CalibrationLoss`.

    Raises:
        InputError: `base` has a batch term of its own, needs more than logits and targets, weighs
            classes, or leaves out other rows than this loss.
    """

    per_sample = False

    def __init__(
        self,
        base: CalibrationLoss | None,
        weight: float,
        *,
        synchronise: bool = True,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
    ) -> None:
        super().__init__(reduction=reduction, ignore_index=ignore_index)
        self.base = CrossEntropy() if base is None else own_loss(base, type(self).__name__)
        if not self.base.per_sample or self.base.needs - {"epochs"}:
            raise InputError(
                f"{type(self).__name__} adds to a loss per row that needs logits and targets only, "
                f"not to {type(self.base).__name__}"
            )
        if self.base.class_weights is not None:
            raise InputError(
                f"{type(self).__name__} can't weigh classes: its penalty counts all rows alike; "
                "give it a base without class_weights"
            )
        if self.base.ignore_index not in (ignore_index, DEFAULT_IGNORE_INDEX):
            raise InputError(
                f"{type(self).__name__} leaves out targets of {ignore_index}, but its base those "
                f"of {self.base.ignore_index}; give it ignore_index={self.base.ignore_index}"
            )
        self.needs = self.base.needs
        self.weight = number("weight", weight, at_least=0)
        self.synchronise = synchronise

    def start_epoch(self, epoch: int) -> None:
        """Pass the epoch, counted from 0, on to the base loss."""
        self.base.start_epoch(epoch)

    def end_epoch(self) -> None:
        """Tell the base loss that an epoch of training is over."""
        self.base.end_epoch()

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
