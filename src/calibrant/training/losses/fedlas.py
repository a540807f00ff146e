"""FeDLaS: label smoothing whose strength follows each sample's feature norm, in two directions."""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError
from calibrant.training.losses.arguments import choice, number, whole
from calibrant.training.losses.base import CalibrationLoss, ClassWeights, Reduction
from calibrant.training.losses.collectives import moments_over_ranks
from calibrant.training.losses.gate_recorder import GateRecorder
from calibrant.training.losses.gate_state import GateState
from calibrant.training.losses.margins import ClassReduction, margin_excess
from calibrant.training.losses.rows import Rows
from calibrant.training.losses.watch import GateWatch

Indicator = Literal["feature-norm", "max-probability", "max-logit", "constant", "random"]
Gate = Literal["learnt", "positive", "negative", "random"]
_PUBLISHED = {"ls": (0.05, 4.0), "mbls": (0.1, 0.5)}


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
        epsilon: 1e-3 in the code, 0 in the paper.
        initial_mean: mu before the first batch, in the code; the paper is silent.
        initial_std: sd before the first batch, likewise.
        accumulation_steps: batches that make one step of the optimiser.
        synchronise: take mean and deviation over all processes in training.
        reduction: see `CalibrationLoss`.
        ignore_index: see `CalibrationLoss`.
        class_weights: see `CalibrationLoss`.

    Attributes:
        gate_network: Linear(K, K // 2), LeakyReLU(0.01), Linear(K // 2, 2); None if not learnt.
        running_mean: (1,) buffer, mu. running_std: (1,) buffer, sd.
    """

    running_mean: Tensor
    running_std: Tensor

    def __init__(
        self,
        n_classes: int,
        base: Literal["ls", "mbls"] = "ls",
        alpha: float | None = None,
        beta: float | None = None,
        theta: float = 0.95,
        margin: float = 6.0,
        class_reduction: ClassReduction = "mean",
        *,
        indicator: Indicator = "feature-norm",
        norm: float = 1.0,
        gate: Gate = "learnt",
        convention: Literal["code", "paper"] = "code",
        epsilon: float = 1e-3,
        initial_mean: float = 20.0,
        initial_std: float = 100.0,
        accumulation_steps: int = 1,
        synchronise: bool = True,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        class_weights: ClassWeights = None,
    ) -> None:
        super().__init__(
            reduction=reduction, ignore_index=ignore_index, class_weights=class_weights
        )
        self.n_classes = whole("n_classes", n_classes, at_least=2)
        self.base: Literal["ls", "mbls"] = choice("base", base, tuple(_PUBLISHED))
        usual_alpha, usual_beta = _PUBLISHED[base]
        # alpha_i stays below 2 alpha, and 1 - alpha_i must not turn negative.
        self.alpha = number("alpha", usual_alpha if alpha is None else alpha, at_least=0)
        number("alpha", self.alpha, at_most=0.5)
        self.beta = number("beta", usual_beta if beta is None else beta, at_least=0)
        self.theta = number("theta", theta, above=0, at_most=1)
        self.margin = number("margin", margin, at_least=0)
        self.class_reduction: ClassReduction = choice(
            "class_reduction", class_reduction, ("mean", "sum")
        )
        self.indicator: Indicator = choice("indicator", indicator, Indicator.__args__)
        self.norm = norm if norm == float("inf") else number("norm", norm, above=0)
        self.gate: Gate = choice("gate", gate, Gate.__args__)
        self.convention = choice("convention", convention, ("code", "paper"))
        self.epsilon = number("epsilon", epsilon, at_least=0)
        self.accumulation_steps = whole("accumulation_steps", accumulation_steps, at_least=1)
        self.synchronise = synchronise
        hidden = n_classes // 2
        self.gate_network = (
            nn.Sequential(nn.Linear(n_classes, hidden), nn.LeakyReLU(0.01), nn.Linear(hidden, 2))
            if gate == "learnt"
            else None
        )
        mean, std = number("mean", initial_mean), number("std", initial_std, at_least=0)
        # Shape (1,), not (): torch.compile loses updates of a float64 scalar on the CPU.
        self.register_buffer("running_mean", torch.tensor([mean]))
        self.register_buffer("running_std", torch.tensor([std]))
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
            spans_ranks = self.synchronise and last.shape == (2, self.n_classes // 2)
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
                "calibrant.training.PenultimateFeatures(network) catches it"
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
