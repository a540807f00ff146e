"""A loss that isn't given in training what it needs says so, once, by its name."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from calibrant.core.errors import TrainingWarning
from calibrant.training.losses import CRL, AdaFocal, CalibrationLoss, FeDLaS, Focal, fedlas
from calibrant.training.losses.base import PATIENCE

CLASSES = 4


def batch(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(8, 5, generator=draw)
    return inputs, torch.randint(CLASSES, (8,), generator=draw), inputs


def learn(
    loss: FeDLaS,
    parameters: list[nn.Parameter],
    batches: int,
    accumulate: int = 1,
    optimiser: type[torch.optim.Optimizer] = torch.optim.SGD,
    to_none: bool = True,
) -> list[str]:
    """Train for some batches and return what was said."""
    network = nn.Linear(5, CLASSES)
    chosen = optimiser([*network.parameters(), *parameters], lr=0.1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for number in range(batches):
            inputs, target, features = batch(number)
            loss(network(inputs), target, features).backward()
            if (number + 1) % accumulate == 0:
                chosen.step()
                chosen.zero_grad(set_to_none=to_none)
    assert all(issubclass(warning.category, TrainingWarning) for warning in said)
    return [str(warning.message) for warning in said]


def test_a_gate_that_no_optimiser_has_is_named_once():
    (said,) = learn(FeDLaS(CLASSES), [], 3 * fedlas.PATIENCE)
    assert said.startswith("the gate of FeDLaS has gradients but hasn't moved in 50 batches")
    assert "model.calibration_loss = loss" in said


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize(
    "optimiser", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop]
)
def test_nothing_is_said_of_a_gate_that_learns(optimiser, accumulate, to_none):
    loss = FeDLaS(CLASSES, accumulation_steps=accumulate)
    parameters = list(loss.parameters())
    assert learn(loss, parameters, 160, accumulate, optimiser, to_none) == []


def test_nothing_is_said_of_a_gate_that_has_nothing_to_learn():
    assert learn(FeDLaS(CLASSES, alpha=0.0), [], 60) == []
    assert learn(FeDLaS(CLASSES, gate="positive"), [], 60) == []


def test_a_gate_that_was_frozen_with_a_network_is_named_once():
    loss = FeDLaS(CLASSES)
    loss.requires_grad_(False)
    (said,) = learn(loss, [], 3 * fedlas.PATIENCE)
    assert said.startswith("the gate of FeDLaS is frozen and hasn't learnt in 50 batches")
    assert "loss.let_learn()" in said
    loss.let_learn()
    assert learn(loss, list(loss.parameters()), 60) == []


def test_a_loss_that_was_cast_on_the_way_is_not_judged():
    loss = FeDLaS(CLASSES)
    assert learn(loss, [], 10) == []
    assert learn(loss.double(), [], 60) == []


@pytest.mark.parametrize(("real", "told"), [(4, 1), (1, 4), (2, 3)])
def test_another_number_of_batches_a_step_than_told_is_named_once(real, told):
    loss = FeDLaS(CLASSES, accumulation_steps=told)
    (said,) = learn(loss, list(loss.parameters()), 60, real)
    words = f"FeDLaS sees {real} batches for each step of the optimiser, but its accumulation_steps"
    assert said.startswith(f"{words} is {told}: ")
    assert said.endswith(f"set accumulation_steps={real}")


def test_short_last_steps_of_an_epoch_are_no_other_number():
    loss = FeDLaS(CLASSES, accumulation_steps=4)
    network = nn.Linear(5, CLASSES)
    chosen = torch.optim.SGD([*network.parameters(), *loss.parameters()], lr=0.1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for number in range(120):
            inputs, target, features = batch(number)
            loss(network(inputs), target, features).backward()
            # Ten batches an epoch: 4, 4, 2.
            if (number % 10 + 1) % 4 == 0 or number % 10 == 9:
                chosen.step()
                chosen.zero_grad()
    assert said == []


def test_validation_in_training_mode_leaves_the_statistics_alone_and_is_named_once():
    loss = FeDLaS(CLASSES)
    logits, target, features = batch()
    loss(logits[:, :CLASSES], target, features)
    before = [buffer.clone() for buffer in loss.buffers()]
    with torch.no_grad():
        with pytest.warns(TrainingWarning, match=r"^FeDLaS is in training mode .* loss\.eval"):
            loss(logits[:, :CLASSES], target, 100 * features)
        loss(logits[:, :CLASSES], target, 100 * features)  # once is enough
    for left, right in zip(loss.buffers(), before, strict=True):
        assert torch.equal(left, right)
    with torch.no_grad():
        loss.eval()(logits[:, :CLASSES], target, features)
        ranking = CRL(8)
        with pytest.warns(TrainingWarning, match=r"^CRL is in training mode"):
            ranking(logits[:, :CLASSES], target, index=torch.arange(8))
    assert not ranking.times_right.any()


def test_a_schedule_that_is_told_of_no_epoch_is_named_once():
    logits, target, _ = batch()
    told, untold = Focal({0: 5.0, 2: 1.0}), Focal({0: 5.0, 2: 1.0})
    told.start_epoch(0)
    for loss in (told, untold, Focal(3.0), Focal({0: 5.0, 2: 1.0}).eval()):
        for _ in range(PATIENCE - 1):
            loss(logits, target)
    with pytest.warns(
        TrainingWarning, match=r"^Focal had no epoch in 50 batches: .* it stays at gamma 5$"
    ):
        untold(logits, target)
    untold(logits, target)
    told(logits, target)


def untold(loss: CalibrationLoss, batches: int) -> list[str]:
    """Train in a loop that tells the loss nothing of epochs; return what was said."""
    logits, target, _ = batch()
    index = {"index": torch.arange(8)} if "index" in loss.needs else {}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(batches):
            loss(logits[:, :CLASSES], target, **index)
    return [str(warning.message) for warning in said]


@pytest.mark.parametrize(
    ("make", "call"),
    [
        (AdaFocal, r"loss.update_from_validation(logits, target)"),
        (lambda: CRL(8), "loss.end_epoch()"),
    ],
)
def test_a_loss_that_no_loop_lets_learn_says_what_to_call(make, call):
    (said,) = untold(make(), 1600)
    assert "in 50 batches" in said
    assert f"loss.start_epoch(epoch) before each epoch and {call} after it" in said
    loss = make()
    for _ in range(3):
        loss.start_epoch(0)
    (said,) = untold(loss, 1)
    assert f"no call of {call} in two epochs" in said


@pytest.mark.parametrize("make", [AdaFocal, lambda: CRL(8)])
def test_nothing_is_said_of_a_loss_that_is_told_of_epochs(make):
    loss = make()
    logits, target, _ = batch()
    for epoch in range(4):
        loss.start_epoch(epoch)
        assert untold(loss, 60) == []
        loss.end_epoch()
        loss.update_from_validation(logits[:, :CLASSES], target)
    assert untold(make().eval(), 60) == []
