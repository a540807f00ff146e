"""Whether the gate of a loss is trained as it should be: said once where it isn't."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from calibrant.core.errors import TrainingWarning, warn_caller
from calibrant.training.losses.collectives import differs_between_ranks

# Steps of the optimiser after which a gate that has gradients must have moved.
PATIENCE = 50
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
