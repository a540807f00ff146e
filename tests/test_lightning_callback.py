"""The callback for Lightning does what a module that looks after its loss itself would do."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tiny_networks import CLASSES, Reader, images, tiny_cnn
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("lightning")

from lightning.pytorch import LightningModule, Trainer

from calibrant.core.errors import InputError
from calibrant.training import CalibrationCallback, NetworkWithLoss, PenultimateFeatures
from calibrant.training.losses import CRL, AdaFocal, CalibrationLoss, FeDLaS, Focal

# Lightning has much to say about few workers and few batches.
pytestmark = pytest.mark.filterwarnings("ignore")


class Plain(LightningModule):
    """A module that knows nothing of this package but the name of its loss."""

    def __init__(self, loss: nn.Module, network: nn.Module) -> None:
        super().__init__()
        self.network, self.loss = network, loss
        self.validated: list[tuple[Tensor, Tensor]] = []
        self.gammas: list[float] = []

    def logits(self, inputs: Tensor) -> Tensor:
        out = self.network(inputs)
        return out["logits"] if isinstance(out, dict) else out

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        self.gammas.append(getattr(self.loss, "gamma", 0.0))
        return self.loss(self.logits(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], number: int) -> None:
        logits = self.logits(batch[0])
        self.validated.append((logits, batch[1]))
        self.loss(logits, target=batch[1])

    test_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.3)


class Careful(Plain):
    """A module that hands over the features itself."""

    def __init__(self, loss: nn.Module, network: nn.Module) -> None:
        super().__init__(loss, network)
        self.tap = PenultimateFeatures(network)

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        return self.loss(self.logits(batch[0]), batch[1], self.tap.features)

    def validation_step(self, batch: list[Tensor], number: int) -> None:
        self.loss(self.logits(batch[0]), batch[1], self.tap.features)


class TakesPositions(Plain):
    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        return self.loss(self.logits(batch[0]), batch[1], index=batch[2])


def trainer(*callbacks: Any, epochs: int = 2, **arguments: Any) -> Trainer:
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    return Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=list(callbacks),
        **dict.fromkeys(quiet, False),
        **arguments,
    )


def batches(kind: str = "cnn") -> DataLoader[Any]:
    inputs, target = images(48)
    if kind == "transformer":
        inputs = torch.randint(20, (48, 5), generator=torch.Generator().manual_seed(4))
    return DataLoader(TensorDataset(inputs, target, torch.arange(48)), batch_size=16)


def a_loss(**arguments: Any) -> FeDLaS:
    torch.manual_seed(7)
    return FeDLaS(CLASSES, theta=0.7, **arguments)


def network(kind: str) -> nn.Module:
    return tiny_cnn() if kind == "cnn" else Reader()


@pytest.mark.parametrize("layer", ["last", None])
@pytest.mark.parametrize("kind", ["cnn", "transformer"])
def test_features_reach_fedlas_as_if_handed_over(kind, layer):
    careful, plain = Careful(a_loss(), network(kind)), Plain(a_loss(), network(kind))
    last = {"cnn": "network.4", "transformer": "network.classifier"}[kind]
    trainer().fit(careful, batches(kind), batches(kind))
    callback = CalibrationCallback(last if layer else None)
    ours = trainer(callback)
    ours.fit(plain, batches(kind), batches(kind))
    for name, value in careful.state_dict().items():
        assert torch.equal(plain.state_dict()[name], value), name
    assert plain.loss.running_mean != 20
    # Alone, validation and test need features, too, and leave the state as it is.
    before = copy.deepcopy(plain.loss.state_dict())
    ours.validate(plain, batches(kind), verbose=False)
    ours.test(plain, batches(kind), verbose=False)
    assert all(torch.equal(value, before[name]) for name, value in plain.loss.state_dict().items())
    # Nothing is left behind.
    with pytest.raises(InputError, match="needs features="):
        plain.loss(torch.zeros(2, CLASSES), torch.zeros(2, dtype=torch.long))


def test_accumulated_batches_are_told_to_fedlas():
    careful, plain = (
        Careful(a_loss(accumulation_steps=3), tiny_cnn()),
        Plain(a_loss(), tiny_cnn()),
    )
    trainer(accumulate_grad_batches=3).fit(careful, batches())
    trainer(CalibrationCallback(), accumulate_grad_batches=3).fit(plain, batches())
    assert torch.equal(plain.loss.running_mean, careful.loss.running_mean)
    assert plain.loss.accumulation_steps == 1
    chosen = Plain(a_loss(accumulation_steps=2), tiny_cnn())
    trainer(CalibrationCallback(), accumulate_grad_batches=3, epochs=1).fit(chosen, batches())
    assert chosen.loss.accumulation_steps == 2


def test_adafocal_follows_the_validation_rows():
    module = Plain(AdaFocal(n_bins=4, rate=5.0), tiny_cnn())
    ours = trainer(CalibrationCallback(), epochs=3, num_sanity_val_steps=2)
    ours.fit(module, batches(), batches())
    expected = AdaFocal(n_bins=4, rate=5.0)
    # Two batches of the sanity check, then three an epoch.
    for start in (2, 5, 8):
        epoch = zip(*module.validated[start : start + 3], strict=True)
        logits, target = (torch.cat(part) for part in epoch)
        expected.update_from_validation(logits, target)
    assert len(module.validated) == 11
    assert (expected.gammas != 1).any()
    torch.testing.assert_close(module.loss.gammas, expected.gammas)
    torch.testing.assert_close(module.loss.edges, expected.edges)
    ours.validate(module, batches(), verbose=False)
    torch.testing.assert_close(module.loss.gammas, expected.gammas)


def test_schedules_and_counters_learn_of_epochs():
    module = Plain(Focal({0: 5.0, 1: 3.0, 3: 1.0}), tiny_cnn())
    trainer(CalibrationCallback(), epochs=4).fit(module, batches())
    assert module.gammas == [5.0] * 3 + [3.0] * 6 + [1.0] * 3
    module = TakesPositions(CRL(samples=48), tiny_cnn())
    trainer(CalibrationCallback(), epochs=3).fit(module, batches())
    assert module.loss.epochs == 3


def test_a_loss_that_a_module_holds_twice_is_told_once():
    module = TakesPositions(CRL(samples=48), tiny_cnn())
    module.together = NetworkWithLoss(module.network, module.loss)
    trainer(CalibrationCallback(), epochs=2).fit(module, batches())
    assert module.loss.epochs == 2


class Forgetful(Plain):
    def validation_step(self, batch: list[Tensor], number: int) -> None:
        self.logits(batch[0])


class HalfLearnt(Plain):
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.network.parameters(), lr=0.3)


@pytest.mark.parametrize(
    ("kind", "loss", "validate", "words"),
    [
        (Plain, nn.CrossEntropyLoss(), True, "Plain has no loss of calibrant.*self.loss ="),
        (Plain, AdaFocal(), False, "give the trainer validation data"),
        (Forgetful, AdaFocal(), True, "call it in validation_step"),
        (HalfLearnt, FeDLaS(CLASSES), True, "parameters of FeDLaS; .*self.parameters()"),
    ],
)
def test_what_is_missing_is_named(kind: type[Plain], loss: Any, validate: bool, words: str):
    module = kind(loss, tiny_cnn())
    with pytest.raises(InputError, match=words):
        trainer(CalibrationCallback()).fit(module, batches(), batches() if validate else None)
    if isinstance(loss, CalibrationLoss):
        assert not loss._forward_hooks
        assert not loss._forward_pre_hooks


def test_a_gate_that_was_frozen_along_with_the_network_learns():
    module = Plain(a_loss(), tiny_cnn())
    module.requires_grad_(False)
    module.network[4].requires_grad_(True)
    before = [parameter.clone() for parameter in module.loss.parameters()]
    trainer(CalibrationCallback(), epochs=1).fit(module, batches())
    assert all(
        (now != was).any() for now, was in zip(module.loss.parameters(), before, strict=True)
    )


def test_features_of_tokens_are_pooled_for_a_module_of_lightning():
    class Tokens(Plain):
        def logits(self, inputs: Tensor) -> Tensor:
            return self.network(inputs.flatten(2)).mean(1)

    module = Tokens(FeDLaS(CLASSES, theta=1.0), nn.Linear(images(48)[0][0, 0].numel(), CLASSES))
    data = DataLoader(batches().dataset, batch_size=48)
    with pytest.raises(InputError, match="rows of tokens"):
        trainer(CalibrationCallback(), epochs=1).fit(module, data)
    trainer(CalibrationCallback(features="mean"), epochs=1).fit(module, data)
    norms = images(48)[0].flatten(2).mean(1).abs().sum(1)
    torch.testing.assert_close(module.loss.running_mean, norms.mean()[None])
