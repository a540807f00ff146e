"""What all losses share: the batch as rows, checks of it, precision, reductions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field, fields
from numbers import Real
from typing import Any, ClassVar, Literal, Self, cast, get_args

import torch
from torch import Tensor, nn

from calibrant.core.arguments import argument, check_arguments
from calibrant.core.errors import InputError, TrainingWarning, warn_caller


@dataclass
class Rows:
    """A batch as rows, ignored ones kept in place so that no shape depends on values.

    Attributes:
        logits: (M, K) float32 or float64; zeros where ignored.
        target: (M,) int64 classes; 0 where ignored.
        valid: (M,) bool, False where ignored.
        features: (M, D) as float32 or float64, or None; zeros where ignored.
        index: (M,) positions of the rows in the data set, or None.
        log_probs: (M, K) log softmax.
        true_log_prob: (M,) log probability of the target.
        weight: (M,) 1 where valid, else 0.
        count: () number of valid rows.
    """

    logits: Tensor
    target: Tensor
    valid: Tensor
    features: Tensor | None = None
    index: Tensor | None = None
    log_probs: Tensor = field(init=False)
    true_log_prob: Tensor = field(init=False)
    weight: Tensor = field(init=False)
    count: Tensor = field(init=False)

    # Not lazily: a cached property would end torch.compile's graph, and all losses use these.
    def __post_init__(self) -> None:
        self.log_probs = self.logits.log_softmax(1)
        self.true_log_prob = pick(self.log_probs, self.target)
        self.weight = self.valid.to(self.logits.dtype)
        self.count = self.weight.sum()

    @property
    def cross_entropy(self) -> Tensor:
        """(M,) minus the log probability of the target."""
        return -self.true_log_prob

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
        """End the epoch and return what the run's history says of it, by column."""
        raise NotImplementedError


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_batch(logits: Tensor, target: Tensor) -> None:
    """Check shapes and types of logits (N, K, ...) and target (N, ...).

    Raises:
        InputError: they don't belong together.
    """
    shape = (logits.shape[0], *logits.shape[2:]) if logits.ndim >= 2 else None
    if shape is None or target.shape != shape:
        raise InputError(
            "logits must be (N, K) or (N, K, ...) and target (N,) or (N, ...), "
            f"not {tuple(logits.shape)} and {tuple(target.shape)}{_remedy(logits, target)}"
        )
    if logits.shape[1] < 2:
        raise InputError(
            "logits must have at least two classes, not one; for a single logit z of a binary "
            "classifier pass torch.stack([torch.zeros_like(z), z], 1)"
        )
    if not logits.is_floating_point():
        raise InputError(f"logits must be floating point, not {logits.dtype}")
    if target.dtype not in _INTEGERS:
        raise InputError(
            f"target must be whole numbers, not {target.dtype}; target.long() makes them so"
        )


def _remedy(logits: Tensor, target: Tensor) -> str:
    if logits.shape == target.shape:
        return (
            "; soft or one-hot labels aren't taken: pass classes, as target.argmax(1), or let "
            "calibrant.training.Mixup mix the labels"
        )
    if logits.ndim > 2 and target.shape == logits.shape[:-1]:
        return "; the classes come second: logits.movedim(-1, 1)"
    if logits.ndim == 2 and target.shape == (len(logits), 1):
        return "; target.squeeze(1) fits"
    return ""


def check_features(features: Tensor, target: Tensor) -> None:
    """Check that features are (N, D) or (N, D, ...) beside target (N,) or (N, ...).

    Raises:
        InputError: they are not.
    """
    if features.ndim < 2 or (features.shape[0], *features.shape[2:]) != target.shape:
        tokens = features.ndim == 3 and target.shape == features.shape[:1]
        remedy = (
            "; these are rows of tokens: PenultimateFeatures takes pool='last', 'first' or 'mean', "
            "or a function, and NetworkWithLoss, CalibrationCallback and TrainerCalibration take "
            "the same as features="
        )
        raise InputError(
            f"features must be (N, D) or (N, D, ...) beside target {tuple(target.shape)}, "
            f"not {tuple(features.shape)}{remedy if tokens else ''}"
        )


def check_range(what: str, values: Tensor, size: int, advice: str) -> None:
    """Check that whole numbers lie in 0 to size - 1, where looking is free: on the host.

    On an accelerator this would wait for it; there the device itself refuses such a number, in
    words of its own. Within torch.compile a look at values would end the graph, and within vmap
    there are none.

    Args:
        what: the values' name and of what they are numbers.
        values: (M,) whole numbers.
        size: how many there are to choose from.
        advice: ends the sentence.

    Raises:
        InputError: one lies outside.
    """
    if values.device.type != "cpu" or torch.compiler.is_compiling() or not values.numel():
        return
    try:
        low, high = (int(end) for end in values.aminmax())
    except RuntimeError:
        return
    if low < 0 or high >= size:
        wrong = low if low < 0 else high
        raise InputError(f"{what} must lie in 0 to {size - 1}, but one is {wrong}; {advice}")


def weights_of_classes(weights: Sequence[float] | Tensor | None) -> Tensor | None:
    """Return class weights as a float32 tensor of their own, checked; None stays None.

    Raises:
        InputError: they aren't at least two finite numbers from 0, one of them above.
    """
    if weights is None:
        return None
    try:
        table = torch.as_tensor(weights).detach().float().clone()
    # What torch says of words, or of rows of several lengths.
    except (TypeError, ValueError, RuntimeError):
        table = torch.empty(0)
    if table.ndim != 1 or len(table) < 2:
        raise InputError(f"class_weights must be one number for each class, not {weights!r}")
    if not table.isfinite().all() or table.min() < 0 or table.max() == 0:
        raise InputError(
            "class_weights must be finite, from 0, and not all 0, but lie "
            f"between {float(table.min())} and {float(table.max())}"
        )
    return table


def weights_of_rows(weights: Tensor, target: Tensor, logits: Tensor) -> Tensor:
    """Return (M,) the class weight of each row's target (M,), as precise as logits (M, K).

    Raises:
        InputError: there are other than K weights.
    """
    if len(weights) != logits.shape[1]:
        raise InputError(
            f"class_weights are {len(weights)}, but logits have {logits.shape[1]} classes"
        )
    return weights.to(logits.dtype)[target]


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
# Batches after which it is said that nobody tells a loss of epochs.
PATIENCE = 50


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which autocast is off; where it is anyway, one that costs nothing."""
    on = torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else nullcontext()


@dataclass(frozen=True)
class LossName:
    """A name by which `make_loss` makes a loss, and what the list of losses says of it.

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
    then are (N, D) or (N, D, H, W). Rows whose target is `ignore_index` count nowhere, whatever
    their logits. Computed in float32 (float64 for float64 logits) inside autocast too, without
    waiting for the device.

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
        state: what it remembers from batch to batch, in words; empty if nothing.
        distributed: what its value belongs to where batches are shared between processes or
            accumulated, in words.
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

    names: ClassVar[tuple[LossName, ...]] = ()
    state: ClassVar[str] = ""
    distributed: ClassVar[str] = "row"
    per_sample: ClassVar[bool] = True
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
        self._begun += 1

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

    def let_learn(self) -> None:
        """Let the loss's own parameters learn again if all of them were frozen with a network's.

        As wrappers do that train a few weights of a large network, such as those of PEFT.
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
            "is in training mode where no gradients are computed, as in validation; its statistics "
            "stay as they are there, but call loss.eval() and loss.train() with the network's"
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
                f"was told of no epoch in {PATIENCE} batches: call {calls}; without, {consequence}"
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
            share = (
                weights_of_rows(cast(Tensor, self.class_weights), rows.target, rows.logits)
                * rows.weight
            )
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
