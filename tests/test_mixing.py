"""Mixup, RegMixup and MIT against their definitions, and the losses that they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from calibrant.core.errors import InputError
from calibrant.training import LOSSES, MIT, Mixup, PenultimateFeatures, RegMixup, make_loss
from calibrant.training.losses import BrierLoss, CrossEntropy, FeDLaS, LabelSmoothing
from calibrant.training.mixing import MixedBatch, _chance_apart

CLASSES = 4


class Chain(nn.Module):
    """A network of stages."""

    def __init__(self, *stages: nn.Module) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def forward(self, inputs):
        for stage in self.stages:
            inputs = stage(inputs)
        return inputs


@pytest.fixture
def batch():
    torch.manual_seed(0)
    return torch.randn(8, 3, dtype=torch.float64), torch.arange(8) % CLASSES


def linear() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(3, CLASSES).double()


@pytest.mark.parametrize("larger", [False, True])
def test_mixup_mixes_inputs_and_labels(batch, larger):
    inputs, target = batch
    mixup = Mixup(alpha=0.4, larger_share=larger, seed=3)
    shares = []
    for _ in range(50):
        mixed = mixup(inputs, target)
        shares.append(mixed.share)
        # Each mixture lies between its input and another one of the partner's class.
        other = (mixed.inputs - mixed.share * inputs) / (1 - mixed.share)
        if 0.01 < mixed.share < 0.99:
            which = torch.cdist(other, inputs).argmin(1)
            torch.testing.assert_close(other, inputs[which], rtol=1e-6, atol=1e-8)
            assert torch.equal(mixed.partner_target, target[which])
            assert sorted(which.tolist()) == list(range(8))
    assert (min(shares) >= 0.5) == larger
    again = Mixup(alpha=0.4, larger_share=larger, seed=3)
    assert [again(inputs, target).share for _ in range(50)] == shares


def test_mixup_loss_is_cross_entropy_with_soft_labels(batch):
    inputs, target = batch
    mixed = Mixup(seed=1)(inputs, target)
    logits = linear()(mixed.inputs)
    soft = mixed.soft_target(CLASSES)
    torch.testing.assert_close(soft.sum(1), torch.ones(8))
    expected = -(soft * logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(mixed.loss(CrossEntropy(), logits), expected)


def test_mixup_moves_the_state_of_a_loss_once(batch):
    inputs, target = batch
    mixed, logits, features = Mixup(seed=1)(inputs, target), linear()(inputs), inputs
    once, twice = FeDLaS(CLASSES).double(), FeDLaS(CLASSES).double()
    once.load_state_dict(twice.state_dict())
    once(logits, target, features)
    mixed.loss(twice, logits, features)
    for left, right in zip(once.buffers(), twice.buffers(), strict=True):
        assert torch.equal(left, right)


def test_regmixup_is_both_halves(batch):
    inputs, target = batch
    network, loss = linear(), BrierLoss()
    found = {
        total: RegMixup(20.0, 0.7, total, seed=5)(network, inputs, target, loss)
        for total in ("mean", "sum")
    }
    mixed = Mixup(alpha=20.0, seed=5)(inputs, target)
    both = loss(network(inputs), target) + 0.7 * mixed.loss(loss, network(mixed.inputs))
    torch.testing.assert_close(found["sum"], both)
    torch.testing.assert_close(found["mean"], both / 1.7)
    with pytest.raises(InputError, match="total must be one of mean, sum"):
        RegMixup(total="product")


def test_regmixup_is_one_mean_over_all_rows_as_in_the_official_code(batch):
    inputs, target = batch
    network, mixed = linear(), Mixup(alpha=20.0, seed=5)(*batch)
    logits = network(torch.cat([inputs, mixed.inputs]))
    ours, theirs = torch.cat([target, target]), torch.cat([target, mixed.partner_target])
    entropy = torch.nn.functional.cross_entropy
    # The first half goes with itself, whatever the share.
    official = mixed.share * entropy(logits, ours) + (1 - mixed.share) * entropy(logits, theirs)
    found, raw = RegMixup(seed=5).with_logits(network, inputs, target, CrossEntropy())
    torch.testing.assert_close(found, official)
    torch.testing.assert_close(raw, network(inputs))


def test_regmixup_with_features(batch):
    inputs, target = batch
    torch.manual_seed(2)
    network = Chain(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, CLASSES)).double()
    ours, theirs = FeDLaS(CLASSES, theta=0.5).double(), FeDLaS(CLASSES, theta=0.5).double()
    theirs.load_state_dict(ours.state_dict())
    mixup = RegMixup(alpha=20.0, weight=0.7, seed=5)
    with PenultimateFeatures(network) as tap:
        found = mixup(network, inputs, target, ours, tap)
        mixed = Mixup(alpha=20.0, seed=5)(inputs, target)
        # The state moves by the unmixed half, and both halves are weighed by it.
        expected = theirs(network(inputs), target, tap.features)
        blended = mixed.loss(theirs.eval(), network(mixed.inputs), tap.features)
    torch.testing.assert_close(found, (expected + 0.7 * blended) / 1.7)
    for left, right in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize("variant", ["logits", "activations"])
@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_a_linear_network_does_not_notice_mit(batch, variant, margin):
    inputs, target = batch
    network = Chain(nn.Linear(3, 6), nn.Linear(6, CLASSES)).double()
    mit = MIT(variant, margin=margin)
    for _ in range(5):
        found = mit(network, inputs, target, LabelSmoothing())
        torch.testing.assert_close(
            found, LabelSmoothing()(network(inputs), target), rtol=1e-6, atol=1e-9
        )


def test_mit_between_stages_differs_from_mit_at_the_end(batch):
    inputs, target = batch
    torch.manual_seed(2)
    network = Chain(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, CLASSES)).double()
    plain = CrossEntropy()(network(3 * inputs), target)
    found = {
        variant: MIT(variant)(network, 3 * inputs, target, CrossEntropy())
        for variant in ("logits", "activations")
    }
    assert not torch.isclose(found["logits"], found["activations"])
    assert not torch.isclose(found["logits"], plain)
    found["activations"].backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize("margin", [0.0, 0.5, 0.9])
def test_shares_of_mit(margin):
    mit = MIT(margin=margin)
    for _ in range(100):
        larger, smaller = mit._shares()
        assert larger >= 0.5 >= smaller
        assert larger - smaller >= margin


BY_ROW = {
    *("cross-entropy", "brier", "label-smoothing", "confidence-penalty", "focal"),
    *("scheduled-focal", "flsd", "adafocal", "dual-focal", "mbls", "acls", "cpc"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_that_compare_rows_are_refused(name, batch):
    inputs, target = batch
    loss = make_loss(name, CLASSES, **({"samples": 8} if name == "crl" else {})).double()
    network = linear()
    mixed = Mixup()(inputs, target)
    if name in BY_ROW:
        for mixing in (MIT(), RegMixup()):
            assert torch.isfinite(mixing(network, inputs, target, loss))
        assert torch.isfinite(mixed.loss(loss, network(mixed.inputs)))
        return
    for mixing in (MIT(), RegMixup()):
        with pytest.raises(InputError, match=type(loss).__name__):
            mixing(network, inputs, target, loss)
    if name.startswith("fedlas"):
        assert torch.isfinite(mixed.loss(loss, network(mixed.inputs), mixed.inputs))
    else:
        with pytest.raises(InputError, match="compares the rows"):
            mixed.loss(loss, network(mixed.inputs))


def test_mit_between_stages_needs_stages(batch):
    with pytest.raises(InputError, match="Linear lacks"):
        MIT("activations")(linear(), *batch, CrossEntropy())
    with pytest.raises(InputError, match="margin must be"):
        MIT(margin=1.0)
    with pytest.raises(InputError, match="alpha must be"):
        Mixup(alpha=0.0)


def test_mit_refuses_shares_that_hardly_ever_lie_so_far_apart():
    # Of 400 000 pairs two lay half apart: a batch would wait for as many draws.
    with pytest.raises(InputError, match=r"with alpha 20 shares are hardly ever 0\.5 apart"):
        MIT(alpha=20.0)
    assert MIT(alpha=20.0, margin=0.2).margin == 0.2


@pytest.mark.parametrize(("alpha", "margin"), [(0.3, 0.9), (1.0, 0.5), (5.0, 0.5), (5.0, 0.0)])
def test_how_often_shares_lie_so_far_apart_is_known(alpha, margin):
    u, v = np.random.default_rng(0).beta(alpha, alpha, (2, 200_000))
    drawn = (np.maximum(u, 1 - u) - np.minimum(v, 1 - v) >= margin).mean()
    assert _chance_apart(alpha, margin) == pytest.approx(drawn, abs=0.005)


def test_a_mixture_with_a_row_that_is_left_out_is_of_all_classes_by_that_rows_share():
    target = torch.tensor([0, 255, 2])
    mixed = MixedBatch(torch.zeros(3, 1), target, target[[1, 2, 0]], share=0.75)
    third = 1 / 3
    wanted = torch.tensor(
        [
            [0.75 + 0.25 * third, 0.25 * third, 0.25 * third],
            [0.75 * third, 0.75 * third, 0.75 * third + 0.25],
            [0.25, 0.0, 0.75],
        ]
    )
    torch.testing.assert_close(mixed.soft_target(3, ignore_index=255), wanted)
