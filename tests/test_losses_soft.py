"""Soft targets and many labels: what a row costs on average over its labels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.core.errors import InputError
from calibrant.training.adapters import HeldOutRows
from calibrant.training.losses import LOSSES, AdaFocal, CrossEntropy, FeDLaS, ManyLabels, make_loss

CLASSES, ROWS = 4, 6
COMPARING = ["mmce", "mdca", "soft-ece", "soft-avuc", "crl", "rankmixup"]
OF_ROWS = [name for name in LOSSES if name not in COMPARING]


def batch(seed: int, *, scale: float = 3.0):
    """Return logits (N, K), soft targets with some zeros (N, K), and features (N, D)."""
    draw = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(ROWS, CLASSES, generator=draw, dtype=torch.float64)
    soft = torch.rand(ROWS, CLASSES, generator=draw, dtype=torch.float64)
    soft = soft * (torch.rand(ROWS, CLASSES, generator=draw) > 0.4) + 1e-3
    soft[0] = torch.eye(CLASSES)[1]
    return logits, soft / soft.sum(1, keepdim=True), torch.rand(ROWS, 3, generator=draw)


def made(name: str, **arguments):
    """Return a loss of rows in eval mode: nothing moves between calls."""
    torch.manual_seed(0)
    return make_loss(name, CLASSES, **arguments).eval()


def of_each_label(loss, logits, features):
    """Return (N, K) the loss of each row for each label."""
    labels = (torch.full((len(logits),), k) for k in range(logits.shape[1]))
    return torch.stack([loss(logits, label, features) for label in labels], 1)


@pytest.mark.parametrize("name", OF_ROWS)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.1, 3.0, 30.0]))
def test_a_soft_target_costs_the_mean_over_its_labels(name, seed, scale):
    logits, soft, features = batch(seed, scale=scale)
    loss = made(name, reduction="none")
    expected = (soft * of_each_label(loss, logits, features)).sum(1)
    torch.testing.assert_close(loss(logits, soft, features), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", OF_ROWS)
def test_so_does_its_gradient(name):
    logits, soft, features = batch(1)
    loss, tables = made(name), []
    for target in (soft, None):
        z = logits.clone().requires_grad_()
        if target is None:
            each = of_each_label(made(name, reduction="none"), z, features)
            value = (soft * each).sum(1).mean()
        else:
            value = loss(z, target, features)
        value.backward()
        tables.append(z.grad)
    torch.testing.assert_close(*tables, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", OF_ROWS)
def test_class_weights_weigh_each_label_of_a_soft_target(name):
    logits, soft, features = batch(2)
    weights = torch.tensor([0.0, 1.0, 2.0, 0.5])
    loss = made(name, class_weights=weights)
    each = of_each_label(made(name, reduction="none"), logits, features)
    shares = soft * weights
    expected = (shares * each).sum() / shares.sum()
    torch.testing.assert_close(loss(logits, soft, features), expected, rtol=1e-9, atol=1e-9)


def test_cross_entropy_of_a_soft_target_is_that_of_torch():
    logits, soft, _ = batch(3)
    expected = torch.nn.functional.cross_entropy(logits, soft)
    torch.testing.assert_close(CrossEntropy()(logits, soft), expected)
    dense = logits.T.reshape(1, CLASSES, 2, 3), soft.T.reshape(1, CLASSES, 2, 3)
    assert CrossEntropy(reduction="none")(*dense).shape == (1, 2, 3)
    torch.testing.assert_close(CrossEntropy()(*dense), expected)


def test_a_class_that_is_masked_and_can_not_be_the_label_does_no_harm():
    logits, soft, _ = batch(4)
    logits[:, 3], soft = -torch.inf, soft * torch.tensor([1, 1, 1, 0])
    soft = soft / soft.sum(1, keepdim=True)
    logits.requires_grad_()
    value = CrossEntropy()(logits, soft)
    value.backward()
    assert value.isfinite()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("name", COMPARING)
def test_losses_that_compare_rows_refuse_soft_targets(name):
    logits, soft, _ = batch(5)
    extra = {}
    if name == "rankmixup":
        extra = {"mixed_logits": logits[None], "mixed_target": soft[None]}
    if name == "crl":
        extra = {"index": torch.arange(ROWS)}
    loss = make_loss(name, CLASSES, **({"samples": ROWS} if name == "crl" else {}))
    with pytest.raises(InputError, match="compares rows"):
        loss(logits, soft, **extra)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q: 2 * q, "sum 2"),
        (lambda q: q - 0.5, "the least of row 0"),
        (lambda q: q * torch.nan, "nan"),
        (lambda q: (q > 0.5).long(), "one-hot labels"),
    ],
)
def test_soft_targets_that_are_no_probabilities_are_refused(change, message):
    logits, soft, _ = batch(6)
    with pytest.raises(InputError, match=message):
        CrossEntropy()(logits, change(soft))


def test_many_labels_cost_binary_cross_entropy():
    logits, soft, _ = batch(7)
    yes = (soft > 0.3).long()
    reference = torch.nn.functional.binary_cross_entropy_with_logits
    for target in (yes, yes.bool(), yes.double(), soft):
        expected = reference(logits, target.double())
        torch.testing.assert_close(ManyLabels()(logits, target), expected)
    unknown = yes.clone()
    unknown[:, 2] = -100
    kept = [0, 1, 3]
    expected = reference(logits[:, kept], yes[:, kept].double())
    torch.testing.assert_close(ManyLabels()(logits, unknown), expected)
    assert ManyLabels(reduction="none")(logits, yes).shape == logits.shape


def test_a_single_logit_is_many_labels_of_one():
    logits, soft, _ = batch(8)
    z, yes = logits[:, 0], (soft[:, 0] > 0.3).long()
    expected = torch.nn.functional.binary_cross_entropy_with_logits(z, yes.double())
    for shaped in (z, z[:, None]):
        torch.testing.assert_close(ManyLabels()(shaped, yes), expected)
    focal = ManyLabels(base=make_loss("focal", 2, gamma=2.0))(z, yes)
    p = torch.where(yes == 1, z.sigmoid(), (-z).sigmoid())
    torch.testing.assert_close(focal, ((1 - p) ** 2 * -p.log()).mean())


def test_many_labels_take_what_needs_features_and_refuse_what_compares_rows():
    logits, soft, features = batch(9)
    loss = ManyLabels(base=FeDLaS(2))
    assert loss.needs == FeDLaS(2).needs
    loss(logits, (soft > 0.3).long(), features).backward()
    assert all(p.grad is not None for p in loss.parameters())
    with pytest.raises(InputError, match="compares rows"):
        ManyLabels(base=make_loss("mmce", 2))
    with pytest.raises(InputError, match=r"must both be \(N, L\)"):
        ManyLabels()(logits, torch.zeros(ROWS).long())


def test_the_gate_of_many_classes_stays_small():
    assert FeDLaS(10).gate_width == 5
    assert FeDLaS(1_000).gate_width == 500
    assert FeDLaS(2_000).gate_width == 250
    loss = FeDLaS(50_000)
    assert sum(p.numel() for p in loss.parameters()) < 1_000_000
    value = loss(torch.randn(2, 50_000), torch.tensor([1, 49_999]), torch.rand(2, 8))
    value.backward()
    assert value.isfinite()


@pytest.mark.parametrize(
    ("shape", "labels"), [((6, 3), (6, 3)), ((6,), (6,)), ((6, 1), (6,)), ((6, 3, 2), (6, 3, 2))]
)
def test_many_labels_learn_from_held_out_rows_that_come_in_batches(shape, labels):
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(shape, generator=draw)
    target = torch.randint(2, labels, generator=draw).float()
    ours, theirs = (ManyLabels(base=AdaFocal(n_bins=3)) for _ in range(2))
    seen = HeldOutRows()
    for at in (slice(4), slice(4, None)):
        seen.add(logits[at], target[at])
    seen.teach(ours, "")
    expected = torch.stack([torch.zeros(logits.numel()), logits.flatten()], 1)
    theirs.base.update_from_validation(expected, target.flatten().long())
    for name in ("edges", "gammas"):
        torch.testing.assert_close(getattr(ours.base, name), getattr(theirs.base, name))
    assert (ours.base.gammas != 1).any()
