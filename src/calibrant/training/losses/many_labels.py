"""Any loss of rows where each of many labels is a yes or no with one logit."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.training.losses.base import CalibrationLoss, Rows, own_loss
from calibrant.training.losses.likelihood import CrossEntropy


@dataclass(eq=False, repr=False)
class ManyLabels(CalibrationLoss):
    """Every label of every row as a classification of its own, into no and yes.

    A label with logit z has the two logits (0, z), so its probability is sigmoid(z), and the loss
    is that of `base` with K = 2: of `CrossEntropy` binary cross-entropy, of `Focal` the focal loss
    of object detectors. "mean" is over all labels of all rows. Logits (N,) are those of a binary
    classifier with a single logit.

    Args:
        base: a loss of rows, cross-entropy by default; `FeDLaS` with ``n_classes=2``. Its own
            reduction, ignore_index and class weights aren't used.
        reduction, ignore_index: see `CalibrationLoss`.
        class_weights: what a no and a yes count; ``(1, w)`` is torch's ``pos_weight=w`` but for the
            mean, which divides by the sum of the weights.

    Raises:
        InputError: `base` compares rows, such as `MMCE`.

    Examples:
        >>> import torch
        >>> from calibrant.training.losses import ManyLabels
        >>> logits, target = torch.tensor([[0.0, 9.0]]), torch.tensor([[1, -100]])
        >>> ManyLabels()(logits, target)  # log 2, and a label that nobody knows
        tensor(0.6931)
    """

    takes_soft = True
    _: KW_ONLY
    # By factory, since nothing of a module's name may lie on the class.
    base: CalibrationLoss = field(default_factory=CrossEntropy)

    def __post_init__(self) -> None:
        super().__post_init__()
        base = own_loss(self.base, "ManyLabels")
        if not base.per_sample:
            raise InputError(
                f"{type(base).__name__} compares rows; ManyLabels takes a loss of single rows"
            )
        self.needs, self.accumulation_steps = base.needs, base.accumulation_steps

    def forward(self, logits: Tensor, target: Tensor, features: Tensor | None = None) -> Tensor:
        """Return the loss.

        Args:
            logits: (N, L), (N, L, ...) or (N,), one for each label.
            target: of that shape: 0, 1 or `ignore_index` in whole numbers, or probabilities.
            features: (N, D), for a base whose `needs` has "features".

        Raises:
            InputError: shapes that don't fit, or targets that are neither.
        """
        if logits.ndim == 2 and logits.shape[1] == 1 and target.ndim == 1:
            logits = logits[:, 0]
        if logits.shape != target.shape or logits.ndim == 0:
            raise InputError(
                "logits and target of many labels must both be (N, L), (N, L, ...) or (N,), not "
                f"{tuple(logits.shape)} and {tuple(target.shape)}"
            )
        if features is not None and features.ndim == 2:
            labels = logits.shape[1:]
            features = features.reshape(*features.shape, *(1 for _ in labels))
            features = features.expand(-1, -1, *labels)
        return super().forward(_no_and_yes(logits), _of_both(target), features)

    def start_epoch(self, epoch: int) -> None:
        """Pass the epoch, counted from 0, on to the base loss."""
        self.base.start_epoch(epoch)

    def end_epoch(self) -> None:
        """Tell the base loss that an epoch of training is over."""
        self.base.end_epoch()

    def update_from_validation(self, logits: Tensor, target: Tensor) -> None:
        """Tell the base loss what the network says of held-out rows, shaped as in `forward`."""
        self.base.update_from_validation(_no_and_yes(logits), target.round().long())

    def _row_losses(self, rows: Rows) -> Tensor:
        return self.base._over_labels(rows)


def _no_and_yes(logits: Tensor) -> Tensor:
    return torch.stack([torch.zeros_like(logits), logits], 1)


def _of_both(target: Tensor) -> Tensor:
    """Return classes as they are, and probabilities of yes as those of no and yes."""
    if target.is_floating_point():
        return torch.stack([1 - target, target], 1)
    return target.long() if target.dtype == torch.bool else target
