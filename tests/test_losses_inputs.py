"""What losses say of inputs that don't fit, and what odd ones do to them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.training import MIT, Mixup, RegMixup, for_trainer
from calibrant.training.losses import (
    CRL,
    LOSSES,
    MMCE,
    AdaFocal,
    CalibrationLoss,
    CrossEntropy,
    FeDLaS,
    GateRecorder,
    make_loss,
)

CLASSES = 5


def make(name: str) -> CalibrationLoss:
    torch.manual_seed(1)
    return make_loss(name, CLASSES, **({"samples": 6} if name == "crl" else {}))


def call(loss: CalibrationLoss, logits: Tensor, target: Tensor, features: Tensor) -> Tensor:
    extra: dict[str, Any] = {}
    if "index" in loss.needs:
        extra["index"] = torch.arange(6)
    if "mixed" in loss.needs:
        extra = {"mixed_logits": logits[None], "mixed_target": logits[None].float().softmax(2)}
    return loss(logits, target, features if "features" in loss.needs else None, **extra)


@pytest.fixture
def batch() -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    logits, features = torch.randn(6, CLASSES, generator=draw), torch.rand(6, 8, generator=draw)
    return 3 * logits, torch.tensor([0, 1, 2, 3, 4, 0]), features


@pytest.mark.parametrize("wrong", [-1, CLASSES, 255])
@pytest.mark.parametrize("name", LOSSES)
def test_classes_out_of_range_are_named(name, wrong, batch):
    logits, target, features = batch
    loss = make(name)
    before = {key: value.clone() for key, value in loss.state_dict().items()}
    target[4] = wrong
    with pytest.raises(InputError, match=f"0 to 4, but one is {wrong}; .* ignore_index.* -100"):
        call(loss, logits, target, features)
    for key, value in loss.state_dict().items():
        assert torch.equal(value, before[key])


@pytest.mark.parametrize(
    ("logits", "target", "remedy"),
    [
        ((4, 3), (4, 3), r"target\.argmax\(1\)"),
        ((2, 7, 3), (2, 7), r"logits\.movedim\(-1, 1\)"),
        ((4, 3), (4, 1), r"target\.squeeze\(1\)"),
        ((4, 3), (5,), r"not \(4, 3\) and \(5,\)$"),
    ],
)
def test_shapes_come_with_a_remedy(logits, target, remedy):
    with pytest.raises(InputError, match=remedy):
        CrossEntropy()(torch.zeros(logits), torch.zeros(target, dtype=torch.long))


@pytest.mark.parametrize("name", LOSSES)
def test_a_single_logit_is_no_silent_zero(name):
    loss = make_loss(name, 2, **({"samples": 6} if name == "crl" else {}))
    column, target = torch.randn(6, 1), torch.zeros(6, dtype=torch.long)
    with pytest.raises(InputError, match=r"at least two classes.*ManyLabels"):
        call(loss, column, target, torch.rand(6, 8))


def test_losses_of_others_are_refused_by_name():
    other, rows = torch.nn.CrossEntropyLoss(), (torch.randn(4, 3), torch.tensor([0, 1, 2, 0]))
    network = torch.nn.Linear(3, 3)
    for take in (
        lambda: MMCE(base=other),
        lambda: for_trainer(other),
        lambda: Mixup()(*rows).loss(other, rows[0]),
        lambda: MIT()(network, *rows, other),
        lambda: RegMixup()(network, *rows, other),
    ):
        with pytest.raises(InputError, match=r"such as CrossEntropy\(\), not CrossEntropyLoss"):
            take()


def test_gradients_of_each_row_by_vmap(batch):
    logits, target, _ = batch
    loss = CrossEntropy()
    each = torch.func.vmap(torch.func.grad(lambda row, label: loss(row[None], label[None])))
    expected = logits.softmax(1) - torch.nn.functional.one_hot(target, CLASSES)
    torch.testing.assert_close(each(logits, target), expected)


def test_the_recorder_names_what_it_can_not_keep(batch):
    logits, target, features = batch
    loss = FeDLaS(CLASSES)
    loss(logits, target, features)
    with pytest.raises(InputError, match="0 to 4, but one is 5; samples="):
        GateRecorder(5).record(loss, torch.arange(6), logits, target)
    with pytest.raises(InputError, match=r"must be \(N, K\), not \(1, 5, 6\)"):
        GateRecorder(6).record(loss, torch.arange(6), logits.T[None], target[None])


def test_types_come_with_a_remedy():
    with pytest.raises(InputError, match=r"not torch.float32; target.long\(\)"):
        CrossEntropy()(torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(InputError, match=r"floating point, not torch\.int64"):
        CrossEntropy()(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, dtype=torch.long))


def test_positions_out_of_range_are_named(batch):
    logits, target, _ = batch
    with pytest.raises(InputError, match="0 to 3, but one is 5; samples="):
        CRL(samples=4)(logits, target, index=torch.arange(6))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_logits_are_worked_on_in_float32(name, dtype, batch):
    logits, target, features = batch
    half = logits.to(dtype).requires_grad_()
    value = call(make(name), half, target, features.to(dtype))
    value.backward()
    expected = call(make(name), half.detach().float(), target, features.to(dtype).float())
    assert value.dtype == torch.float32
    assert value == expected
    assert half.grad.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_state_stays_in_float32_when_a_network_is_cast(dtype):
    network = torch.nn.Linear(4, CLASSES)
    network.loss, network.bins = FeDLaS(CLASSES), AdaFocal()
    network.loss.running_mean.fill_(1 / 3)
    network.to(dtype)
    assert network.weight.dtype == dtype
    assert {value.dtype for value in network.loss.state_dict().values()} == {torch.float32}
    assert network.bins.edges.dtype == torch.float32
    assert network.loss.running_mean == torch.tensor(1 / 3)
    assert network.loss.double().running_mean.dtype == torch.float64
    assert network.loss.to("meta").running_mean.is_meta


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_batch_that_overflowed_leaves_no_trace_in_fedlas(bad, batch):
    logits, target, features = batch
    loss = FeDLaS(CLASSES)
    features[2, 3] = bad
    loss(logits, target, features)
    assert (loss.running_mean, loss.running_std) == (20, 100)


def test_adafocal_refuses_validation_logits_that_are_no_numbers(batch):
    logits, target, _ = batch
    loss = AdaFocal()
    logits[1, 2] = float("nan")
    with pytest.raises(InputError, match="some are NaN"):
        loss.update_from_validation(logits, target)
    assert torch.equal(loss.gammas, torch.ones(15))


@pytest.mark.parametrize(("classes", "hidden"), [(2, 1), (3, 1), (7, 3)])
@pytest.mark.parametrize("base", ["ls", "mbls"])
def test_gates_of_few_and_odd_numbers_of_classes(classes, hidden, base):
    loss = FeDLaS(classes, base)
    shapes = [tuple(parameter.shape) for parameter in loss.parameters()]
    assert shapes == [(hidden, classes), (hidden,), (2, hidden), (2,)]
    logits = torch.randn(4, classes, requires_grad=True)
    loss(logits, torch.tensor([0, 1, 1, 0]), torch.rand(4, 3)).backward()
    assert (logits.grad != 0).any()
    assert all(torch.isfinite(parameter.grad).all() for parameter in loss.parameters())
