"""What all losses share: inputs of any shape, ignored targets, precision, reductions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, Literal, Self, cast

import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError, TrainingWarning, warn_caller
from calibrant.training.losses.arguments import choice
from calibrant.training.losses.inputs import (
    as_table,
    check_batch,
    check_features,
    check_range,
    weights_of_classes,
    weights_of_rows,
)
from calibrant.training.losses.recorder import Recorder
from calibrant.training.losses.rows import Rows

Reduction = Literal["mean", "sum", "none"]
ClassWeights = Sequence[float] | Tensor | None
DEFAULT_IGNORE_INDEX = -100  # as in torch


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which autocast is off; where it is anyway, one that costs nothing."""
    on = torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else nullcontext()


class CalibrationLoss(nn.Module):
    """Root of all losses: ``loss(logits, target, features=None)``.

    Logits are (N, K), or dense with the classes second: (N, K, H, W) and target (N, H, W); features
    then are (N, D) or (N, D, H, W). Rows whose target is `ignore_index` count nowhere, whatever
    their logits. Computed in float32 (float64 for float64 logits) inside autocast too, without
    waiting for the device.

    Classes masked by logits of minus infinity suit the losses that see probabilities only. Label
    smoothing, FeDLaS and penalties on gaps between logits are infinite or undefined there.

    Subclasses give a loss per row, and may add a term that belongs to the batch as a whole. With
    "mean" the rows are averaged and the term added; "sum" is that times the number of rows that
    count; "none" gives each row its loss plus the term, 0 where ignored, in the target's shape.

    Args:
        reduction: "mean", "sum" or "none".
        ignore_index: target of rows to leave out.
        class_weights: (K,) what a row counts by its target, in losses of rows; as in torch, "mean"
            divides by the sum of these weights.

    Raises:
        InputError: class weights that aren't finite, below 0, or all 0.

    Attributes:
        per_sample: the loss of a row depends on no other row and no identity of the sample, so it
            can be weighted between two targets (mixup).
        needs: what `forward` or the training loop must supply in training: "features", "index"
            (positions in the data set), "mixed" (logits and targets of mixed inputs), "validation"
            (`update_from_validation` after each epoch), "epochs" (`start_epoch` before and
            `end_epoch` after each), "optimiser" (parameters of its own that must be learnt).
        accumulation_steps: batches that make one step of the optimiser; most losses don't care.
        mixtures: how many mixtures of each input a loss that needs "mixed" is to be given.
        mixture_arguments: those of `Mixup` that make them, unless the caller says otherwise.

    Examples:
        >>> import torch
        >>> from calibrant.training.losses import CrossEntropy
        >>> logits, target = torch.tensor([[0.0, 0.0], [5.0, 0.0]]), torch.tensor([1, -100])
        >>> CrossEntropy(reduction="none")(logits, target)  # log 2, and a row that is left out
        tensor([0.6931, 0.0000])
        >>> CrossEntropy()(logits, target)  # the mean of what is left
        tensor(0.6931)
    """

    per_sample: ClassVar[bool] = True
    mixture_arguments: ClassVar[Mapping[str, Any]] = {}
    needs: frozenset[str] = frozenset()
    accumulation_steps: int = 1
    mixtures: int = 0

    class_weights: Tensor | None

    def __init__(
        self,
        *,
        reduction: Reduction = "mean",
        ignore_index: int = DEFAULT_IGNORE_INDEX,
        class_weights: ClassWeights = None,
    ) -> None:
        super().__init__()
        self.reduction: Reduction = choice("reduction", reduction, ("mean", "sum", "none"))
        self.ignore_index = ignore_index
        self.register_buffer("class_weights", weights_of_classes(class_weights))
        self._held = False
        self._said: set[str] = set()

    def forward(self, logits: Tensor, target: Tensor, features: Tensor | None = None) -> Tensor:
        """Return the loss.

        Args:
            logits: (N, K) or (N, K, ...).
            target: (N,) or (N, ...) whole numbers: a class, or `ignore_index`.
            features: (N, D) or (N, D, ...), for losses whose `needs` has "features".

        Raises:
            InputError: shapes that don't fit, or targets that aren't classes. Whether they lie in
                range is looked up on the CPU only.
        """
        with full_precision(logits.device):
            rows = self._rows(logits, target, features)
            return self._reduce(rows, self._row_losses(rows), target.shape)

    def start_epoch(self, epoch: int) -> None:
        """Tell the loss that epoch `epoch`, counted from 0, begins; most don't care."""

    def end_epoch(self) -> None:
        """Tell the loss that an epoch of training is over; most don't care."""

    def update_from_validation(self, logits: Tensor, target: Tensor) -> None:
        """Tell the loss what the network says of held-out rows after an epoch; most don't care.

        Args:
            logits: (N, K) or (N, K, ...) of the validation set, network in eval mode.
            target: (N,) or (N, ...).
        """

    def make_recorder(self, samples: int) -> Recorder | None:
        """Return what records the loss's dealings with each of so many training samples, if any."""
        return None

    @contextmanager
    def frozen(self) -> Generator[None]:
        """Within the context the loss keeps its state as it is, also in training mode.

        So do losses within it, such as the base of a penalised one.
        """
        losses = [part for part in self.modules() if isinstance(part, CalibrationLoss)]
        held = [loss._held for loss in losses]
        for loss in losses:
            loss._held = True
        try:
            yield
        finally:
            for loss, before in zip(losses, held, strict=True):
                loss._held = before

    @property
    def learning(self) -> bool:
        """Whether a call updates the loss's own statistics."""
        return self.training and not self._held

    def _may_learn(self) -> bool:
        """Whether this call is to move state; says once where training mode was left on by mistake.

        Without gradients nothing is trained: statistics of such a batch aren't those of training.
        """
        if not self.learning or torch.is_grad_enabled():
            return self.learning
        self._warn_once(
            "is in training mode where no gradients are computed, as in validation; its statistics "
            "stay as they are there, but call loss.eval() and loss.train() with the network's"
        )
        return False

    def _warn_once(self, sentence: str) -> None:
        """Warn about a misuse, with the name of the loss in front; not within torch.compile."""
        if torch.compiler.is_compiling() or sentence in self._said:
            return
        self._said.add(sentence)
        warn_caller(TrainingWarning(f"{type(self).__name__} {sentence}"))

    def extra_repr(self) -> str:
        """Name the arguments, for printing."""
        names = inspect.signature(type(self).__init__).parameters
        words = ((name, getattr(self, name, None)) for name in names)
        plain = (bool, int, float, str, tuple)
        return ", ".join(f"{name}={word!r}" for name, word in words if isinstance(word, plain))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move as `nn.Module` does, but keep float32 where a network is cast to half precision.

        A running mean would lose its small updates there, and the norms of wide features overflow.
        """

        def keeping_precision(values: Tensor) -> Tensor:
            moved = fn(values)
            narrower = moved.is_floating_point() and moved.itemsize < min(values.itemsize, 4)
            return values.to(moved.device) if narrower else moved

        return cast(Any, super())._apply(keeping_precision, recurse)

    def _rows(self, logits: Tensor, target: Tensor, features: Tensor | None) -> Rows:
        check_batch(logits, target)
        flat = target.reshape(-1).long()
        valid = flat != self.ignore_index
        classes = flat.masked_fill(~valid, 0)
        check_range(
            "the classes in target",
            classes,
            logits.shape[1],
            f"rows to leave out must hold ignore_index, which is {self.ignore_index}",
        )
        # Zeros instead of the ignored logits: infinities there would reach the gradient as 0 * inf.
        table = as_table(logits).masked_fill(~valid[:, None], 0)
        kept = None
        if features is not None and "features" in self.needs:
            check_features(features, target)
            kept = as_table(features.detach()).masked_fill(~valid[:, None], 0)
        return Rows(table, classes, valid, kept)

    def _row_losses(self, rows: Rows) -> Tensor:
        raise NotImplementedError

    def _batch_term(self, rows: Rows) -> Tensor | None:
        """Return what the batch adds as a whole, () and differentiable, or None."""
        return None

    def _reduce(self, rows: Rows, values: Tensor, shape: torch.Size) -> Tensor:
        if self.class_weights is not None:
            share = weights_of_rows(self.class_weights, rows.target, rows.logits) * rows.weight
            rows.count = share.sum()
            values = values * share
        values = values.masked_fill(~rows.valid, 0)
        term = self._batch_term(rows)
        if self.reduction == "none":
            shared = values if term is None else values + term * rows.weight
            return shared.reshape(shape)
        total = values.sum() if term is None else values.sum() + term * rows.count
        # No row, or none with a weight, gives 0.
        return (
            total if self.reduction == "sum" else total / rows.count.masked_fill(rows.count == 0, 1)
        )


def own_loss(loss: object, purpose: str) -> CalibrationLoss:
    """Return `loss`, which must be one of this package's.

    Raises:
        InputError: it is another, such as torch's; the message says what it was meant for.
    """
    if not isinstance(loss, CalibrationLoss):
        raise InputError(
            f"{purpose} takes a loss of calibrant.training.losses, such as CrossEntropy(), not "
            f"{type(loss).__name__}"
        )
    return loss
