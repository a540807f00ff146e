"""FeDLaS: label smoothing whose strength follows each sample's feature norm, in two directions."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, cast, get_args

import torch
from torch import Tensor, nn

from calibrant.core.arguments import argument, within
from calibrant.core.errors import InputError, TrainingWarning, warn_caller
from calibrant.training.losses.base import (
    DATA_SETS,
    PATIENCE,
    CalibrationLoss,
    LossName,
    Recorder,
    Rows,
    check_range,
)
from calibrant.training.losses.collectives import (
    differs_between_ranks,
    moments_over_ranks,
    sum_over_ranks,
)
from calibrant.training.losses.margins import ClassReduction, margin_excess

# Equal numbers of batches between two steps, one after another, that can't be chance.
EQUAL_INTERVALS = 5
# Batches after which the processes of a distributed run compare their gates.
COMPARED = (2, 10, 100)


class GateWatch:
    """Follows one parameter of a loss from batch to batch.

    A loss can't see the optimiser. But tensors count their changes in place, on the host, so that
    nothing here waits for the device, save for one look after `PATIENCE` steps and, in a
    distributed run, at the batches in `COMPARED`. Within torch.compile nothing is followed.
    """

    def __init__(self) -> None:
        self._calls = 0
        self._start: Tensor | None = None
        self._version = -1
        # Batches since the parameter last changed, between its last two changes, and how often
        # that number came in a row.
        self._since, self._interval, self._times = 0, 0, 0
        self._said_steps = self._looked = False

    def follow(self, name: str, weight: Tensor, accumulation_steps: int, spans_ranks: bool) -> None:
        """Look at the parameter at the start of a batch in training.

        Args:
            name: of the loss, for the warnings.
            weight: a small parameter that every step of the optimiser changes.
            accumulation_steps: batches that are said to make a step.
            spans_ranks: whether all processes of a distributed run make this call.
        """
        if torch.compiler.is_compiling():
            return
        # Sharded parameters are of another class, and hold a part of the values only.
        if type(weight) is not nn.Parameter:
            return
        self._calls += 1
        if not weight.requires_grad:
            self._say_frozen(name)
            return
        if self._start is None:
            self._start, self._version = weight.detach().clone(), weight._version
        self._count_steps(name, weight._version, accumulation_steps)
        self._look(name, weight, accumulation_steps)
        differs = spans_ranks and self._calls in COMPARED and differs_between_ranks(weight)
        if differs:
            warn_caller(
                TrainingWarning(
                    f"the gate of {name} differs between the processes of this run: wrap the loss "
                    "in DistributedDataParallel, or train one module that holds network and loss"
                )
            )

    def _say_frozen(self, name: str) -> None:
        if self._looked or self._calls <= PATIENCE:
            return
        self._looked = True
        warn_caller(
            TrainingWarning(
                f"the gate of {name} is frozen and hasn't learnt in {self._calls - 1} batches: if "
                "a wrapper such as PEFT's get_peft_model froze it along with the network, call "
                "loss.let_learn() before the optimiser is made, and give the optimiser "
                "loss.parameters()"
            )
        )

    def _count_steps(self, name: str, version: int, accumulation_steps: int) -> None:
        if version != self._version:
            self._times = self._times + 1 if self._since == self._interval else 1
            self._version, self._interval, self._since = version, self._since, 0
            wrong = self._times >= EQUAL_INTERVALS and self._interval != accumulation_steps
            if wrong and not self._said_steps:
                self._said_steps = True
                warn_caller(
                    TrainingWarning(
                        f"{name} sees {self._interval} batches for each step of the optimiser, but "
                        f"its accumulation_steps is {accumulation_steps}: its running mean and "
                        f"deviation move at another rate; set accumulation_steps={self._interval}"
                    )
                )
        self._since += 1

    def _look(self, name: str, weight: Tensor, accumulation_steps: int) -> None:
        if self._looked or self._calls <= PATIENCE * accumulation_steps:
            return
        self._looked = True
        start, self._start = self._start, weight.detach()[:0]
        if start is None or weight.grad is None:
            return
        # A loss that was cast or moved to another device since its first batch tells nothing.
        alike = (start.shape, start.dtype, start.device)
        if alike != (weight.shape, weight.dtype, weight.device):
            return
        if torch.equal(start, weight) and bool(weight.grad.any()):
            warn_caller(
                TrainingWarning(
                    f"the gate of {name} has gradients but hasn't moved in {self._calls - 1} "
                    "batches: give its parameters to the optimiser, as in SGD("
                    "[*network.parameters(), *loss.parameters()], ...), or with the Hugging Face "
                    "Trainer set model.calibration_loss = loss"
                )
            )


class GateState(NamedTuple):
    """What FeDLaS decided for each row of its last call; all (M,), without gradient.

    Attributes:
        alpha: smoothing of the row, in (0, 2 alpha).
        psi: 1 where smoothing grows with the indicator ("against overconfidence"), -1 where it
            falls with it, 0 where the gate is exactly undecided.
        indicator: normalised confidence indicator (NCI).
        valid: False where the target was ignored; the rest means nothing there.
    """

    alpha: Tensor
    psi: Tensor
    indicator: Tensor
    valid: Tensor

    def share(self, mode: int) -> Tensor:
        """Return the () share of valid rows whose psi is `mode` (1 or -1), left on the device."""
        chosen = (self.psi == mode) & self.valid
        return chosen.sum() / self.valid.sum().clamp_min(1)


class Gated(Protocol):
    """A loss that tells what its gate decided."""

    @property
    def last(self) -> GateState:
        """What it decided in its last call."""
        ...


@dataclass(frozen=True)
class GateEpoch:
    """One epoch of a training run under FeDLaS.

    Attributes:
        seen: samples recorded in the epoch.
        positive: share of them whose psi was 1 ("against overconfidence").
        negative: share whose psi was -1.
        flip_rate: share of the samples seen in this and the last recorded epoch whose psi changed;
            NaN in the first epoch.
        mean_alpha: mean smoothing.
        correlation: Pearson correlation of the indicator (NCI) with correctness; NaN where either
            doesn't vary.
    """

    seen: int
    positive: float
    negative: float
    flip_rate: float
    mean_alpha: float
    correlation: float


class GateRecorder(Recorder):
    """Keeps mode, smoothing, indicator and correctness of each training sample, by its index.

    ``recorder.record(loss, index, logits, target)`` after each batch, without waiting for the
    device; ``recorder.end_epoch()`` gives a `GateEpoch` and appends it to `history`. A sample seen
    twice in an epoch counts with its last values. In a distributed run all processes call both, and
    `end_epoch` joins what they saw.

    It is a module without parameters, so that a checkpoint keeps what the flip rate needs of the
    epochs before: put it beside the network and the loss, or save its `state_dict`.

    Args:
        samples: size of the training set.
        device: where to keep the values; the network's.

    Attributes:
        alpha: (samples,) smoothing at the last sight. psi: (samples,) mode. indicator: (samples,).
            correct: (samples,) 1 or 0. seen: (samples,) bool, in the current epoch.
        history: the epochs that this object has ended; not in the `state_dict`.
    """

    _values: Tensor
    seen: Tensor
    _previous_psi: Tensor
    _previous_seen: Tensor

    def __init__(self, samples: int, device: torch.device | str = "cpu") -> None:
        super().__init__()
        size = within("samples", samples, whole=True, at_least=1)
        unseen = torch.zeros(size, dtype=torch.bool, device=device)
        self.register_buffer("_values", torch.zeros(4, size, device=device))
        self.register_buffer("seen", unseen)
        self.register_buffer("_previous_psi", torch.zeros(size, device=device))
        self.register_buffer("_previous_seen", unseen.clone())
        self.history: list[GateEpoch] = []

    @property
    def alpha(self) -> Tensor:
        """(samples,) smoothing at the last sight."""
        return self._values[0]

    @property
    def psi(self) -> Tensor:
        """(samples,) mode at the last sight."""
        return self._values[1]

    @property
    def indicator(self) -> Tensor:
        """(samples,) indicator at the last sight."""
        return self._values[2]

    @property
    def correct(self) -> Tensor:
        """(samples,) whether the sample was right at the last sight."""
        return self._values[3]

    @torch.no_grad()
    def record(self, loss: Gated, index: Tensor, logits: Tensor, target: Tensor) -> None:
        """Keep what `loss` decided in its last call, of rows with finite values.

        Args:
            loss: just called with these logits and target.
            index: (N,) positions in the training set.
            logits: (N, K).
            target: (N,).

        Raises:
            InputError: `index` doesn't belong to the last call or to the training set.
        """
        state = loss.last
        if logits.ndim != 2:
            shape = tuple(logits.shape)
            raise InputError(f"the recorder keeps samples: logits must be (N, K), not {shape}")
        if index.shape != state.alpha.shape:
            raise InputError(
                f"index must name the {len(state.alpha)} rows of the last call, "
                f"not have shape {tuple(index.shape)}"
            )
        advice = "samples= is the size of the training set"
        check_range("the positions in index", index, len(self.seen), advice)
        correct = (logits.argmax(1) == target).to(state.alpha.dtype)
        fresh = torch.stack([state.alpha, state.psi, state.indicator, correct])
        # Neither does a step count that overflowed in half precision and that its scaler skipped:
        # the values would stay until the next sight, and a checkpoint takes numbers only.
        known = state.valid & fresh.isfinite().all(0)
        # Rows that don't count write back what was there.
        kept = torch.where(known, fresh.to(self._values.dtype), self._values[:, index])
        self._values[:, index] = kept
        self.seen[index] = self.seen[index] | known

    @torch.no_grad()
    def end_epoch(self) -> GateEpoch:
        """Return what happened since the last call and start afresh.

        Raises:
            InputError: nothing was recorded.
        """
        self.join_ranks()
        seen = self.seen
        count = int(seen.sum())
        if not count:
            raise InputError("no sample was recorded in this epoch")
        alpha, psi, indicator, correct = self._values[:, seen].double()
        both = seen & self._previous_seen
        flips = (self.psi != self._previous_psi)[both].double()
        nci, right = indicator - indicator.mean(), correct - correct.mean()
        spread = (nci.square().sum() * right.square().sum()).sqrt()
        epoch = GateEpoch(
            seen=count,
            positive=float((psi == 1).double().mean()),
            negative=float((psi == -1).double().mean()),
            flip_rate=float(flips.mean()) if len(flips) else float("nan"),
            mean_alpha=float(alpha.mean()),
            correlation=float((nci * right).sum() / spread),
        )
        self.history.append(epoch)
        self._previous_psi.copy_(self.psi)
        self._previous_seen.copy_(seen)
        self.seen.zero_()
        return epoch

    def columns(self) -> dict[str, float]:
        """End the epoch and return its row of the history, all names beginning with "gate"."""
        epoch = self.end_epoch()
        return {
            "gate_positive": epoch.positive,
            "gate_negative": epoch.negative,
            "gate_flip_rate": epoch.flip_rate,
            "gate_alpha": epoch.mean_alpha,
            "gate_correlation": epoch.correlation,
        }

    @torch.no_grad()
    def join_ranks(self) -> None:
        """Give each process of a distributed run what all have seen in this epoch so far.

        Before a checkpoint within an epoch, of which one process writes its own state. All must
        call it; to join twice changes nothing.
        """
        times = sum_over_ranks(self.seen.to(self._values.dtype))
        # Samplers repeat a few rows to even out the ranks; the mean of the copies will do.
        joint = sum_over_ranks(self._values * self.seen) / times.clamp_min(1)
        joint[1] = joint[1].sign()
        self._values.copy_(torch.where(times > 0, joint, self._values))
        self.seen.copy_(times > 0)


Indicator = Literal["feature-norm", "max-probability", "max-logit", "constant", "random"]
Gate = Literal["learnt", "positive", "negative", "random"]
# A gate of K // 2 hidden units has K^2 / 2 weights, 1.25e9 of 50 000 classes. By default it has as
# many as that of 1 000 classes at most, unless this leaves it fewer units than the second number.
MOST_GATE_WEIGHTS, _LEAST_WIDTH = 500_000, 16
_PUBLISHED = {"ls": (0.05, 4.0), "mbls": (0.1, 0.5)}


@dataclass(eq=False, repr=False)
class FeDLaS(CalibrationLoss):
    """Feature-modulated bidirectional label smoothing (Bahavan et al. 2026).

    A row's loss is (1 - alpha_i) CE + alpha_i R, R = -mean_k log p_k ("ls") or the mean over
    classes of max(0, max z - z_k - margin) ("mbls"), and

        alpha_i = 2 alpha sigmoid(beta psi_i g_i).

    g_i = (n_i - mu) / (sd + epsilon) is the indicator, n_i the L1 norm of the features. In training
    mu and sd move first: theta times the batch's mean and unbiased standard deviation plus
    1 - theta times the old value; theta weighs the new batch. One row alone leaves sd as it is, and
    a batch with infinite or undefined norms leaves both.
    psi_i = 1 or -1 is the gate, a small network on the logits, trained through a straight-through
    estimator. Features and the gate's input carry no gradient to the network.

    The gate is trained by the loss itself, which has no calibration signal: it learns to shrink
    alpha_i where R exceeds CE. psi names a mode, not a measured over- or underconfidence.

    Its parameters belong in the optimiser beside the network's, though not in the clipping of the
    network's gradient, and its `state_dict` in the checkpoint. In distributed training mean and
    deviation are those of the global batch; wrap the loss in `DistributedDataParallel` as well (or
    train one module that holds network and loss) so that the gate's gradients are averaged. When
    gradients are accumulated over k batches, `accumulation_steps=k` makes k small updates of mu and
    sd as strong as one.

    What isn't so is said once, as a `TrainingWarning`: a gate that has gradients but doesn't move,
    or differs between processes; another number of batches for each step of the optimiser than
    `accumulation_steps`; training mode without gradients, in which mu and sd stay as they are.

    Where paper and code differ, the code behind the published numbers is the default.

    Args:
        n_classes: K, at least 2.
        base: "ls" or "mbls".
        alpha: base smoothing (lambda for "mbls"). None takes 0.05 for "ls", 0.1 for "mbls". The
            paper has 0.1 for "ls" on CIFAR-100 and 0.05 for "mbls" outside CIFAR.
        beta: how strongly the indicator acts; 0 is the base loss. None takes 4 for "ls", 0.5 for
            "mbls" (1 on CIFAR-100).
        theta: weight of the new batch in mu and sd, in (0, 1]: 0.95 on CIFAR-10, 0.5 elsewhere.
        margin: of "mbls": 6 on CIFAR, 10 elsewhere.
        class_reduction: "mean" over classes as in the code, "sum" as in the paper's formula.
        indicator: "feature-norm", or for ablations "max-probability" or "max-logit" in its place,
            "constant" (g = 1) or "random" (standard normal g).
        norm: p of the L_p norm, infinity included.
        gate: "learnt", or for ablations "positive", "negative" or "random" (1 or -1 at even odds).
        convention: "code": psi is the sign of softmax_1 - softmax_0 of the gate's two outputs,
            0 at 0. "paper": that of softmax_0 - softmax_1, -1 at 0. Both train alike; only loaded
            weights and exact ties tell.
        gate_width: hidden units of the gate. None takes the published K // 2 up to 1 000 classes
            and 500 000 / K beyond, at least 16: half a million weights, 2 MB, instead of K^2 / 2;
            0.8 million, 3.2 MB, of 50 000 classes.
        epsilon: 1e-3 in the code, 0 in the paper.
        initial_mean: mu before the first batch, in the code; the paper is silent.
        initial_std: sd before the first batch, likewise.
        accumulation_steps: batches that make one step of the optimiser.
        synchronise: take mean and deviation over all processes in training.
        reduction, ignore_index, class_weights: see `CalibrationLoss`.

    Attributes:
        gate_network: Linear(K, gate_width), LeakyReLU(0.01), Linear(gate_width, 2); None if not
            learnt.
        running_mean: (1,) buffer, mu. running_std: (1,) buffer, sd.
    """

    takes_soft = True
    fails = (
        "its gate is trained by the loss itself, which has no signal of calibration; it needs "
        "the features of every row"
    )
    names = (
        LossName(
            "fedlas-ls",
            "label smoothing whose strength follows the feature norm, in two directions",
            "Bahavan et al. 2026",
            {"base": "ls"},
            {
                "cifar100": {"alpha": 0.1, "theta": 0.5},
                # The paper uses those of Tiny-ImageNet on CUB and Aircraft; its code has theta =
                # 0.001 there, under which the starting values of mean and deviation last for
                # thousands of steps. The paper is followed.
                **{key: {"theta": 0.5} for key in DATA_SETS[2:]},
            },
        ),
        LossName(
            "fedlas-mbls",
            "MbLS whose strength follows the feature norm, in two directions",
            "Bahavan et al. 2026",
            {"base": "mbls"},
            {
                "cifar100": {"beta": 1.0, "theta": 0.5},
                **{key: {"alpha": 0.05, "theta": 0.5, "margin": 10.0} for key in DATA_SETS[2:]},
            },
        ),
    )
    state = "gate, mean and deviation of norms"
    distributed = "row; mean and deviation of the global batch; `accumulation_steps`"

    n_classes: int = argument(whole=True, at_least=2)
    base: Literal["ls", "mbls"] = argument("ls", choices=tuple(_PUBLISHED))
    # None is replaced by what was published for the base.
    alpha: float = argument(None, at_least=0, at_most=0.5)
    beta: float = argument(None, at_least=0)
    theta: float = argument(0.95, above=0, at_most=1)
    margin: float = argument(6.0, at_least=0)
    class_reduction: ClassReduction = argument("mean", choices=get_args(ClassReduction))
    _: KW_ONLY
    indicator: Indicator = argument("feature-norm", choices=get_args(Indicator))
    norm: float = 1.0
    gate: Gate = argument("learnt", choices=get_args(Gate))
    convention: Literal["code", "paper"] = argument("code", choices=("code", "paper"))
    gate_width: int = argument(None, whole=True, at_least=1)
    epsilon: float = argument(1e-3, at_least=0)
    initial_mean: float = argument(20.0)
    initial_std: float = argument(100.0, at_least=0)
    accumulation_steps: int = argument(1, at_least=1)
    synchronise: bool = True

    running_mean: Tensor = field(init=False)
    running_std: Tensor = field(init=False)

    def __post_init__(self) -> None:
        if self.norm != float("inf"):
            within("norm", self.norm, above=0)
        super().__post_init__()
        usual_alpha, usual_beta = _PUBLISHED[self.base]
        self.alpha = float(usual_alpha if cast(Any, self.alpha) is None else self.alpha)
        self.beta = float(usual_beta if cast(Any, self.beta) is None else self.beta)
        classes = self.n_classes
        if cast(Any, self.gate_width) is None:
            self.gate_width = min(classes // 2, max(_LEAST_WIDTH, MOST_GATE_WEIGHTS // classes))
        self.gate_network = (
            nn.Sequential(
                nn.Linear(classes, self.gate_width),
                nn.LeakyReLU(0.01),
                nn.Linear(self.gate_width, 2),
            )
            if self.gate == "learnt"
            else None
        )
        # Shape (1,), not (): torch.compile loses updates of a float64 scalar on the CPU.
        self.register_buffer("running_mean", torch.tensor([self.initial_mean]))
        self.register_buffer("running_std", torch.tensor([self.initial_std]))
        learnt = {"optimiser"} if self.gate_network is not None else set[str]()
        self.needs = frozenset({"features"} | learnt)
        self._watch = GateWatch()
        self._last: GateState | None = None

    def make_recorder(self, samples: int) -> GateRecorder:
        """Return a recorder of what the gate does to each of so many training samples."""
        return GateRecorder(samples)

    @property
    def last(self) -> GateState:
        """Alpha, psi and indicator of each row of the last call, rows in (N, H, W) order.

        Raises:
            InputError: the loss wasn't called yet.
        """
        if self._last is None:
            raise InputError("FeDLaS has no state of a batch before its first call")
        return self._last

    def _row_losses(self, rows: Rows) -> Tensor:
        if rows.logits.shape[1] != self.n_classes:
            raise InputError(
                f"FeDLaS was made for {self.n_classes} classes, but logits have "
                f"{rows.logits.shape[1]}; its first argument must be that number"
            )
        learn = self._may_learn()
        if learn and self.gate_network is not None:
            last: Tensor = self.gate_network[2].weight  # pyright: ignore
            spans_ranks = self.synchronise and last.shape == (2, self.gate_width)
            self._watch.follow("FeDLaS", last, self.accumulation_steps, spans_ranks)
        psi = self._psi(rows.logits.detach())
        indicator = self._indicator(rows, learn)
        alpha = 2 * self.alpha * torch.sigmoid(self.beta * psi * indicator)
        self._last = GateState(alpha.detach(), psi.detach(), indicator, rows.valid)
        if self.base == "ls":
            regulariser = -rows.log_probs.mean(1)
        else:
            regulariser = margin_excess(rows.logits, self.margin, self.class_reduction)
        return (1 - alpha) * rows.cross_entropy + alpha * regulariser

    def _psi(self, logits: Tensor) -> Tensor:
        """Return (M,) the mode of each row, differentiable in the gate's parameters."""
        if self.gate_network is None:
            if self.gate == "random":
                return torch.where(torch.rand_like(logits[:, 0]) < 0.5, -1.0, 1.0)
            return torch.full_like(logits[:, 0], 1.0 if self.gate == "positive" else -1.0)
        weights: Tensor = self.gate_network[0].weight  # pyright: ignore
        outputs = self.gate_network(logits.to(weights.dtype)).to(logits.dtype)
        decision = torch.tanh((outputs[:, 1] - outputs[:, 0]) / 2)
        if self.convention == "paper":
            decision = -decision
            sign = torch.where(decision > 0, 1.0, -1.0).to(decision.dtype)
        else:
            sign = decision.detach().sign()
        # Exactly the sign in value, the identity onto the decision in gradient.
        return sign + (decision - decision.detach())

    @torch.no_grad()
    def _indicator(self, rows: Rows, learn: bool) -> Tensor:
        """Return (M,) the normalised confidence indicator, updating its statistics if asked to."""
        if self.indicator == "constant":
            return torch.ones_like(rows.weight)
        if self.indicator == "random":
            return torch.randn_like(rows.weight)
        if self.indicator == "max-probability":
            raw = rows.confidence
        elif self.indicator == "max-logit":
            raw = rows.logits.amax(1)
        elif rows.features is None:
            raise InputError(
                "FeDLaS needs features=, the input of the network's last layer; "
                "calibrant.training.NetworkWithLoss(network, loss) passes it on"
            )
        else:
            linalg: Any = torch.linalg
            norm = cast(Tensor, linalg.vector_norm(rows.features, self.norm, dim=1))
            raw = norm.to(rows.logits.dtype)
        if learn:
            self._update_statistics(raw, rows)
        return (raw - self.running_mean) / (self.running_std + self.epsilon)

    def _update_statistics(self, raw: Tensor, rows: Rows) -> None:
        count = rows.count
        mean = (raw * rows.weight).sum() / count.clamp_min(1)
        squares = ((raw - mean).square() * rows.weight).sum()
        if self.synchronise:
            count, mean, squares = moments_over_ranks(count, mean, squares)
        theta = 1 - (1 - self.theta) ** (1 / self.accumulation_steps)
        std = (squares / (count - 1).clamp_min(1)).sqrt()
        new_mean = theta * mean + (1 - theta) * self.running_mean
        new_std = theta * std + (1 - theta) * self.running_std
        # A step that overflowed in half precision is skipped by its scaler; it mustn't last here.
        sound = new_mean.isfinite() & new_std.isfinite()
        self.running_mean.copy_(torch.where((count > 0) & sound, new_mean, self.running_mean))
        self.running_std.copy_(torch.where((count > 1) & sound, new_std, self.running_std))
