"""What all losses share: the batch as rows, checks of it, precision, reductions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from numbers import Real
from typing import Any, ClassVar, Literal, Self, cast, get_args

import torch
from torch import Tensor, nn

from calibrant.core.arguments import argument, check_arguments
from calibrant.core.errors import InputError, TrainingWarning, warn_caller
from calibrant.training.losses.checks import (
    check_batch,
    check_features,
    check_range,
    check_soft,
    known_ends,
    weights_of_classes,
)


@dataclass
class Rows:
    """A batch as rows, ignored ones kept in place so that no shape depends on values.

    Attributes:
        logits: (M, K) float32 or float64; zeros where ignored.
        target: (M,) int64 classes; 0 where ignored.
        ignored: (M,) bool, or None where all rows are known to count.
        features: (M, D) as float32 or float64, or None; zeros where ignored.
        soft: (M, K) probabilities of the label, with `target` the largest; None: it is `target`.
        share: (M,) what a soft row counts by its labels' class weights, or None.
        index: (M,) positions of the rows in the data set, or None.
    """

    logits: Tensor
    target: Tensor
    ignored: Tensor | None = None
    features: Tensor | None = None
    index: Tensor | None = None
    soft: Tensor | None = None
    share: Tensor | None = None
    # Not by cached properties, which would end torch.compile's graph.
    _log_probs: Tensor | None = field(init=False, default=None)
    _with_gradient: bool = field(init=False, default_factory=torch.is_grad_enabled)

    @property
    def valid(self) -> Tensor:
        """(M,) bool, False where ignored."""
        if self.ignored is None:
            return torch.ones_like(self.target, dtype=torch.bool)
        return ~self.ignored

    @property
    def weight(self) -> Tensor:
        """(M,) 1 where valid, else 0."""
        return self.valid.to(self.logits.dtype)

    @property
    def count(self) -> Tensor:
        """() number of rows that count."""
        return self.weight.sum()

    @property
    def log_probs(self) -> Tensor:
        """(M, K) log softmax."""
        if self._log_probs is None:
            # Who asks first may need no gradient, and the next one does.
            with torch.set_grad_enabled(self._with_gradient):
                self._log_probs = self.logits.log_softmax(1)
        return self._log_probs

    @property
    def true_log_prob(self) -> Tensor:
        """(M,) log probability of the target."""
        return pick(self.log_probs, self.target)

    def part(self, at: slice) -> Rows:
        """Return some of the rows, without features and positions."""
        ignored, soft = (each if each is None else each[at] for each in (self.ignored, self.soft))
        return Rows(self.logits[at], self.target[at], ignored, soft=soft)

    def likelihood(
        self, known: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return cross-entropy, its gradient, and the logits below their top; without gradients.

        Args:
            known: (M, 1) the largest logit and its class, if they are.

        Returns:
            (M, 1) losses, their (M, K) gradient by the logits, (M, K) z_k - max z, (M, 1) max z.
        """
        logits, column = self.logits, self.target.unsqueeze(1)
        top = logits.amax(1, keepdim=True) if known is None else known[0]
        gaps = logits - top
        # torch's softmax takes twice as long where classes are few, and half where many.
        if logits.shape[1] < MANY_CLASSES:
            gradient = gaps.exp()
            total = gradient.sum(1, keepdim=True)
            gradient.div_(total)
        else:
            gradient = logits.softmax(1)
            most = gradient.amax(1, keepdim=True) if known is None else gradient.gather(1, known[1])
            total = most.reciprocal_()
        if self.soft is not None:
            gradient.mul_(self.soft.sum(1, keepdim=True)).sub_(self.soft)
            return self.cross_entropy.detach().unsqueeze(1), gradient, gaps, top
        gradient.scatter_add_(1, column, torch.full_like(total, -1))
        return total.log_().sub_(gaps.gather(1, column)), gradient, gaps, top

    @property
    def cross_entropy(self) -> Tensor:
        """(M,) minus the log probability of the target."""
        return self.expected(torch.neg)

    def expected(self, loss: Callable[[Tensor], Tensor]) -> Tensor:
        """Return (M,) the mean over labels of a loss that is a function of the label's log p."""
        if self.soft is None:
            return loss(self.true_log_prob)
        # A label that can't be counts nowhere, not even where its log probability is infinite.
        logs = self.log_probs.masked_fill(self.soft == 0, 0)
        return (self.soft * loss(logs)).sum(1)

    @property
    def confidence(self) -> Tensor:
        """(M,) largest probability."""
        return self.log_probs.amax(1).exp()

    @property
    def correct(self) -> Tensor:
        """(M,) 1 where the largest logit is the target's, else 0; no gradient."""
        return (self.logits.detach().argmax(1) == self.target).to(self.logits.dtype)


def pick(table: Tensor, columns: Tensor) -> Tensor:
    """Return (M,) the entry of each row of `table` (M, K) in its column."""
    return table.gather(1, columns[:, None])[:, 0]


class Recorder(nn.Module):
    """Keeps what a loss did to each sample; a module, so that checkpoints hold what it has seen.

    In a distributed run all processes call all of it.
    """

    def record(self, loss: Any, index: Tensor, logits: Tensor, target: Tensor) -> None:
        """Keep what `loss` did in its last call, with these (N, K) logits and (N,) targets.

        Args:
            loss: the one that made this recorder.
            index: (N,) positions in the training set.
            logits: (N, K).
            target: (N,).
        """
        raise NotImplementedError

    def join_ranks(self) -> None:
        """Give each process what all have seen so far: before a checkpoint within an epoch."""
        raise NotImplementedError

    def columns(self) -> dict[str, float]:
        """End the epoch and return its entries for the run's history, by column."""
        raise NotImplementedError


def as_table(values: Tensor) -> Tensor:
    """Return (M, K) rows of (N, K, ...), in at least float32."""
    if values.ndim > 2:
        values = values.movedim(1, -1).reshape(-1, values.shape[1])
    return values if values.dtype == torch.float64 else values.float()


Reduction = Literal["mean", "sum", "none"]
ClassWeights = Sequence[float] | Tensor | None
DEFAULT_IGNORE_INDEX = -100  # as in torch
# Whose published settings losses know.
DATA_SETS = ("cifar10", "cifar100", "tiny-imagenet", "cub", "aircraft")
# From which on torch's softmax is quicker than its steps one by one, and its search for the largest
# logit slower than NumPy's.
MANY_CLASSES = 64
# Batches after which it is said that nobody tells a loss of epochs, and steps of the optimiser
# after which a gate that has gradients must have moved.
PATIENCE = 50


_AS_IT_IS = nullcontext()


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which autocast is off; where it is anyway, one that costs nothing."""
    kind = device.type
    known = kind == "cpu" or torch.amp.is_autocast_available(kind)
    on = known and torch.is_autocast_enabled(kind)
    return torch.autocast(device.type, enabled=False) if on else _AS_IT_IS


@dataclass(frozen=True)
class LossName:
    """A name by which `make_loss` makes a loss, and its entry in the list of losses.

    Attributes:
        name: on the command line.
        words: what the loss is, for the list.
        paper: where it comes from.
        arguments: those that differ from the defaults of the class.
        published: by data set, one of `DATA_SETS`, the arguments that papers give for it.
    """

    name: str
    words: str
    paper: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    published: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, dict[str, Any]])


@dataclass(eq=False, repr=False)
class CalibrationLoss(nn.Module):
    """Root of all losses: ``loss(logits, target, features=None)``.

    Logits are (N, K), or dense with the classes second: (N, K, H, W) and target (N, H, W); features
    then are (N, D) or (N, D, H, W). Rows whose target is `ignore_index` are left out, whatever
    their logits.

    A target of the logits' shape in floating point is soft: probabilities q of the label, as mixup,
    cutmix and distillation make them. A row then costs what it costs on average over labels drawn
    from q, sum_k q_k loss(k); of cross-entropy that is -sum_k q_k log p_k. Losses of single rows
    take soft targets (`per_sample`); losses that compare rows refuse them.

    Computed in float32 (float64 for float64 logits) inside autocast too, without waiting for the
    device.

    Classes masked by logits of minus infinity suit the losses that see probabilities only. Label
    smoothing, FeDLaS and penalties on gaps between logits are infinite or undefined there.

    A loss is a dataclass of its arguments, each with its limits (`argument`). Subclasses give a
    loss per row, and may add a term that belongs to the batch as a whole. With "mean" the rows are
    averaged and the term added; "sum" is that times the number of rows that count; "none" gives
    each row its loss plus the term, 0 where ignored, in the target's shape.

    Args:
        reduction: "mean", "sum" or "none".
        ignore_index: target of rows to leave out.
        class_weights: (K,) what a row counts by its target, in losses of rows; as in torch, "mean"
            divides by the sum of these weights.

    Raises:
        InputError: an argument outside its limits; class weights that aren't finite, below 0, or
            all 0.

    Attributes:
        names: by which `make_loss` makes it.
        fails: where it does little good, or harm, in words.
        state: what it remembers from batch to batch, in words; empty if nothing.
        distributed: what its value belongs to where batches are shared between processes or
            accumulated, in words.
        per_sample: the loss of a row depends on no other row and no identity of the sample, so it
            can be weighted between targets (mixup, soft targets).
        takes_soft: `_row_losses` reads `Rows.soft`; others are called once for each class.
        needs: what `forward` or the training loop must supply in training: "features", "index"
            (positions in the data set), "mixed" (logits and targets of mixed inputs), "validation"
            (`update_from_validation` after each epoch), "epochs" (`start_epoch` before and
            `end_epoch` after each), "optimiser" (parameters of its own that must be learnt).
        accumulation_steps: batches that make one step of the optimiser; most losses don't care.
        mixtures: how many mixtures of each input a loss that needs "mixed" is to be given.
        mixture_arguments: arguments of `Mixup` for these mixtures, unless the caller gives others.

    Examples:
        >>> import torch
        >>> from calibrant.training.losses import CrossEntropy
        >>> logits, target = torch.tensor([[0.0, 0.0], [5.0, 0.0]]), torch.tensor([1, -100])
        >>> CrossEntropy(reduction="none")(logits, target)  # log 2, and a row that is left out
        tensor([0.6931, 0.0000])
        >>> CrossEntropy()(logits, target)  # the mean of what is left
        tensor(0.6931)
    """

    names: ClassVar[tuple[LossName, ...]] = ()
    fails: ClassVar[str] = ""
    state: ClassVar[str] = ""
    distributed: ClassVar[str] = "row"
    per_sample: ClassVar[bool] = True
    takes_soft: ClassVar[bool] = False
    mixture_arguments: ClassVar[Mapping[str, Any]] = {}
    # Without types, since fields of the dataclass are arguments and these are not.
    needs = frozenset[str]()
    accumulation_steps = 1
    mixtures = 0

    _: KW_ONLY
    reduction: Reduction = argument("mean", choices=get_args(Reduction))
    ignore_index: int = DEFAULT_IGNORE_INDEX
    # Nothing of that name may lie on the class, which would hide the buffer.
    class_weights: ClassWeights = field(default_factory=lambda: None)

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Make a module first: arguments, some of them modules, are set on it."""
        loss = super().__new__(cls)
        nn.Module.__init__(loss)
        return loss

    def __post_init__(self) -> None:
        check_arguments(self)
        for item in fields(self):
            # Whole numbers and NumPy's become those that a loss reckons and prints with.
            value = getattr(self, item.name, None)
            if isinstance(item.default, float) and isinstance(value, Real):
                setattr(self, item.name, float(value))
        weights = weights_of_classes(self.__dict__.pop("class_weights"))
        self.register_buffer("class_weights", weights)
        self._held = False
        self._said: set[str] = set()
        # Batches that taught the loss something, calls of `start_epoch`, and whether an epoch has
        # ended, as far as the loss cares.
        self._batches, self._begun, self._ended = 0, 0, False

    def forward(self, logits: Tensor, target: Tensor, features: Tensor | None = None) -> Tensor:
        """Return the loss.

        Args:
            logits: (N, K) or (N, K, ...).
            target: (N,) or (N, ...) whole numbers: a class, or `ignore_index`; or soft, (N, K) or
                (N, K, ...) probabilities.
            features: (N, D) or (N, D, ...), for losses whose `needs` has "features".

        Raises:
            InputError: shapes that don't fit, targets that aren't classes or probabilities, or a
                soft target where the loss compares rows. Values are checked on the CPU only.
        """
        with full_precision(logits.device):
            rows = self._rows(logits, target, features)
            return self._of_rows(
                rows, logits[:, 0].shape if rows.soft is not None else target.shape
            )

    def start_epoch(self, epoch: int) -> None:
        """Tell the loss, and its base if it has one, that epoch `epoch`, counted from 0, begins."""
        self._begun += 1
        for part in self._parts():
            part.start_epoch(epoch)

    def end_epoch(self) -> None:
        """Tell the loss, and its base if it has one, that an epoch of training is over."""
        for part in self._parts():
            part.end_epoch()

    def _parts(self) -> list[CalibrationLoss]:
        return [part for part in self.children() if isinstance(part, CalibrationLoss)]

    def update_from_validation(self, logits: Tensor, target: Tensor) -> None:
        """Give the loss the network's outputs for held-out rows after an epoch; most ignore them.

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

    def let_learn(self) -> None:
        """Let the loss's own parameters learn again if all of them were frozen with a network's.

        Wrappers that train a few weights of a large network, such as PEFT, freeze them.
        """
        if not any(parameter.requires_grad for parameter in self.parameters()):
            self.requires_grad_(True)

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
            "is in training mode where no gradients are computed, as in validation; its "
            "statistics don't change then, but call loss.eval() and loss.train() together "
            "with the network's"
        )
        return False

    def _expect_epochs(self, after: str, consequence: str) -> None:
        """Say so once where nobody tells the loss of epochs; call this at each batch.

        Args:
            after: the call that is due after each epoch; empty if the loss has no use for one.
            consequence: what happens without, to end the sentence.
        """
        if not self.learning or self._ended or torch.compiler.is_compiling():
            return
        self._batches += 1
        if self._begun == 0 and self._batches == PATIENCE:
            calls = "loss.start_epoch(epoch) before each epoch"
            if after:
                calls += f" and {after} after it"
            self._warn_once(
                f"had no epoch in {PATIENCE} batches: call {calls}; without, {consequence}"
            )
        # A loop may validate after every second epoch only.
        if after and self._begun > 2:
            self._warn_once(f"was given no call of {after} in two epochs; without, {consequence}")

    def _warn_once(self, sentence: str) -> None:
        """Warn about a misuse, with the name of the loss in front; not within torch.compile."""
        if torch.compiler.is_compiling() or sentence in self._said:
            return
        self._said.add(sentence)
        warn_caller(TrainingWarning(f"{type(self).__name__} {sentence}"))

    def extra_repr(self) -> str:
        """Name the arguments, for printing."""
        names = inspect.signature(type(self)).parameters
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
        if check_batch(logits, target):
            return self._soft_rows(logits, target, features)
        classes, table = target.flatten().long(), as_table(logits)
        kept = None
        if features is not None and "features" in self.needs:
            check_features(features, target)
            kept = as_table(features.detach())
        low, high = known_ends(classes) or (-1, 0)
        if low >= 0 and high < logits.shape[1] and not low <= self.ignore_index <= high:
            return Rows(table, classes, None, kept)
        ignored = classes == self.ignore_index
        classes = classes.masked_fill(ignored, 0)
        check_range(
            "the classes in target",
            classes,
            logits.shape[1],
            f"rows to leave out must hold ignore_index, which is {self.ignore_index}",
        )
        # Zeros instead of the ignored logits: infinities there would reach the gradient as 0 * inf.
        table = table.masked_fill(ignored[:, None], 0)
        if kept is not None:
            kept = kept.masked_fill(ignored[:, None], 0)
        return Rows(table, classes, ignored, kept)

    def _soft_rows(self, logits: Tensor, target: Tensor, features: Tensor | None) -> Rows:
        if not self.per_sample:
            raise InputError(
                f"{type(self).__name__} compares rows, which has no meaning for a soft target; "
                "pass classes, as target.argmax(1), or take a loss of single rows"
            )
        table = as_table(logits)
        soft = as_table(target.detach()).to(table.dtype)
        check_soft(soft)
        kept = None
        if features is not None and "features" in self.needs:
            check_features(features, target[:, 0])
            kept = as_table(features.detach())
        share = None
        if self.class_weights is not None:
            # sum_k w_k q_k loss(k), as a row that counts sum_k w_k q_k and is drawn accordingly.
            soft = soft * self._weights_of_classes(table)
            share = soft.sum(1)
            soft = soft / share.masked_fill(share == 0, 1)[:, None]
        return Rows(table, soft.argmax(1), None, kept, soft=soft, share=share)

    def _weights_of_classes(self, logits: Tensor) -> Tensor:
        """Return (K,) class weights, as precise as logits (M, K).

        Raises:
            InputError: there are other than K weights.
        """
        weights = cast(Tensor, self.class_weights)
        if len(weights) != logits.shape[1]:
            raise InputError(
                f"class_weights are {len(weights)}, but logits have {logits.shape[1]} classes"
            )
        return weights.to(logits.dtype)

    def _of_rows(self, rows: Rows, shape: torch.Size) -> Tensor:
        """Return the loss of rows whose targets have a shape, reduced."""
        return self._reduce(rows, self._over_labels(rows), shape)

    def _over_labels(self, rows: Rows) -> Tensor:
        """Return (M,) losses, of soft rows the mean over labels, one at a time if need be."""
        if rows.soft is None or self.takes_soft:
            return self._row_losses(rows)
        total = torch.zeros_like(rows.weight)
        known = rows.soft.device.type == "cpu" and not torch.compiler.is_compiling()
        with ExitStack() as once:
            for k in range(rows.soft.shape[1]):
                share = rows.soft[:, k]
                if known and not share.any():
                    continue
                one = replace(rows, target=torch.full_like(rows.target, k), soft=None)
                total = total + share * self._row_losses(one).masked_fill(share == 0, 0)
                once.enter_context(self.frozen())  # what it remembers, it learns once
        return total

    def _row_losses(self, rows: Rows) -> Tensor:
        raise NotImplementedError

    def _batch_term(self, rows: Rows) -> Tensor | None:
        """Return what the batch adds as a whole, () and differentiable, or None."""
        return None

    def _reduce(self, rows: Rows, values: Tensor, shape: torch.Size) -> Tensor:
        share = rows.share
        if self.class_weights is not None:
            if share is None:
                share = self._weights_of_classes(rows.logits)[rows.target] * rows.weight
            values = values * share
        if rows.ignored is not None:
            values = values.masked_fill(rows.ignored, 0)
        term = self._batch_term(rows)
        if self.reduction == "none":
            shared = values if term is None else values + term * rows.weight
            return shared.reshape(shape)
        if rows.ignored is None and share is None and self.reduction == "mean":
            return values.mean() if term is None else values.mean() + term
        count = rows.count if share is None else share.sum()
        total = values.sum() if term is None else values.sum() + term * count
        # No row, or none with a weight, gives 0.
        return total if self.reduction == "sum" else total / count.masked_fill(count == 0, 1)


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
