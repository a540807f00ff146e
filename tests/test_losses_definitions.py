"""Losses with state, pairs or bins against plain loops over their definitions."""

from __future__ import annotations

from math import log2
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from calibrant.core.errors import InputError
from calibrant.training.losses import (
    CPC,
    CRL,
    MMCE,
    AdaFocal,
    CalibrationLoss,
    CrossEntropy,
    RankMixup,
    SoftECE,
    margins,
)
from calibrant.training.losses.margins import pair_sum

CLASSES = 4


@pytest.fixture
def batch():
    draw = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(40, CLASSES, generator=draw, dtype=torch.float64)
    target = torch.randint(CLASSES, (40,), generator=draw)
    target[::2] = logits.argmax(1)[::2]
    return logits, target


def test_adafocal_moves_its_bins(batch):
    logits, target = batch
    loss = AdaFocal(n_bins=5, rate=3.0, gamma_min=-0.9, gamma_max=2.0, switch=0.4).double()
    gammas = np.array([1.0, 0.41, -0.41, -0.8, 1.9])
    loss.gammas.copy_(torch.tensor(gammas))
    probs = logits.softmax(1).numpy()
    confidence, right = probs.max(1), probs.argmax(1) == target.numpy()
    edges = np.interp(np.linspace(0, 40, 6), np.arange(40), np.sort(confidence))
    expected = []
    for gamma, low, high in zip(gammas, edges[:-1], edges[1:], strict=True):
        inside = (confidence > low) & (confidence <= high)
        gap = (confidence - right)[inside].mean()
        moved = gamma * np.exp((3.0 if gamma > 0 else -3.0) * gap)
        if abs(moved) < 0.4:
            moved = -0.4 if moved > 0 else 0.4
        expected.append(min(max(moved, -0.9), 2.0))
    loss.update_from_validation(logits, target)
    np.testing.assert_allclose(loss.edges, edges, rtol=1e-12)
    np.testing.assert_allclose(loss.gammas, expected, rtol=1e-12)
    # Some jumped and some were clipped, or the test shows little.
    assert {-0.4, 0.4} & set(expected)
    assert {-0.9, 2.0} & set(expected)
    with pytest.raises(InputError, match="no row that counts"):
        loss.update_from_validation(logits, torch.full_like(target, -100))


def test_adafocal_looks_up_bins_with_the_lower_edge():
    loss = AdaFocal(n_bins=2).double()
    loss.edges.copy_(torch.tensor([0.3, 0.5, 0.9]))
    loss.gammas.copy_(torch.tensor([2.0, -1.0]))
    # p_y below the first edge, inside, at the middle edge, above the last.
    probs = torch.tensor([[0.1, 0.9], [0.4, 0.6], [0.5, 0.5], [0.95, 0.05]], dtype=torch.float64)
    loss.reduction = "none"
    found = loss(probs.log(), torch.zeros(4, dtype=torch.long))
    p = probs[:, 0].numpy()
    base = np.where(p < 0.5, (1 - p) ** 2, 1 + p)
    np.testing.assert_allclose(found, -base * np.log(p), rtol=1e-12)


@pytest.mark.parametrize("confidence", ["max-probability", "entropy", "margin"])
def test_crl_over_epochs(batch, confidence):
    logits, target = batch
    loss = CRL(samples=40, weight=0.7, confidence=confidence).double()
    counts = np.zeros(40)
    draw = np.random.default_rng(0)
    for epoch in range(4):
        order = draw.permutation(40)
        for start in (0, 20):
            index = order[start : start + 20]
            # Other logits each epoch, so that samples differ in standing.
            z = logits[index] + epoch * torch.sin(7 * logits[index])
            y = target[index]
            probs = z.softmax(1).numpy()
            ranked = np.sort(probs, 1)
            score = {
                "max-probability": ranked[:, -1],
                "margin": ranked[:, -1] - ranked[:, -2],
                "entropy": (probs * np.log(probs)).sum(1) / np.log(CLASSES),
            }[confidence]
            span = max(1, epoch) - counts.min()
            kappa = (counts[index] - counts.min()) / span if span > 0 else np.zeros(20)
            hinges = []
            for i in range(20):
                j = (i + 1) % 20
                s = np.sign(kappa[i] - kappa[j])
                gap = abs(kappa[i] - kappa[j])
                hinges.append(max(0, -s * (score[i] - score[j]) + gap))
            expected = CrossEntropy()(z, y).item() + 0.7 * np.mean(hinges)
            found = loss(z, y, index=torch.tensor(index))
            assert found.item() == pytest.approx(expected, rel=1e-12)
            counts[index] += probs.argmax(1) == y.numpy()
        loss.end_epoch()
    np.testing.assert_array_equal(loss.times_right, counts)
    assert np.mean(hinges) > 0.01


def test_crl_where_all_were_always_right():
    logits, target = torch.eye(3).double(), torch.arange(3)
    loss = CRL(samples=3)
    for _ in range(3):
        found = loss(logits, target, index=target)
        loss.end_epoch()
    assert found == CrossEntropy()(logits, target)


def mixtures() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(3, 40, CLASSES, generator=draw, dtype=torch.float64)
    first, second = torch.randint(CLASSES, (2, 3, 40), generator=draw)
    share = torch.rand(3, 40, generator=draw, dtype=torch.float64)[..., None]
    one, other = (torch.nn.functional.one_hot(which, CLASSES) for which in (first, second))
    return logits, share * one + (1 - share) * other


@pytest.mark.parametrize("legacy", [False, True])
def test_rankmixup_by_margin(batch, legacy):
    (logits, target), (mixed_logits, mixed_target) = batch, mixtures()
    loss = RankMixup(weight=0.3, margin=1.5, legacy_broadcast=legacy)
    found = loss(logits, target, mixed_logits=mixed_logits, mixed_target=mixed_target)
    hinges, counts = [], []
    for v in range(3):
        for i in range(40):
            hinges.append(max(0.0, (mixed_logits[v, i].max() - logits[i].max() + 1.5).item()))
            counts.append(mixed_target[v, i].max().item() < 1)
    assert 0 < sum(counts) < 120
    kept = np.mean(counts) if legacy else np.array(counts)
    term = np.mean(np.array(hinges) * kept)
    expected = CrossEntropy()(logits, target).item() + 0.3 * term
    assert found.item() == pytest.approx(expected, rel=1e-12)


def test_rankmixup_by_ndcg(batch):
    (logits, target), (mixed_logits, mixed_target) = batch, mixtures()
    loss = RankMixup("m-ndcg", weight=0.3)
    found = loss(logits, target, mixed_logits=mixed_logits, mixed_target=mixed_target)
    losses = []
    for i in range(40):
        pairs = zip(mixed_target[:, i], mixed_logits[:, i].softmax(1), strict=True)
        mixes = [(labels.max().item(), probs.max().item()) for labels, probs in pairs]
        # Stable: mixtures that are equally one-sided stay in order.
        mixes.sort(key=lambda mix: -mix[0])
        scores = [logits[i].softmax(0).max().item()] + [score for _, score in mixes]
        gains = [1.0] + [gain for gain, _ in mixes]
        gained = sum(s / log2(r + 2) for r, s in enumerate(scores))
        ideal = sum(g / log2(r + 2) for r, g in enumerate(gains))
        losses.append(1 - min(gained / ideal, ideal / gained))
    expected = CrossEntropy()(logits, target).item() + 0.3 * np.mean(losses)
    assert found.item() == pytest.approx(expected, rel=1e-12)


def test_rankmixup_shapes(batch):
    (logits, target), (mixed_logits, mixed_target) = batch, mixtures()
    with pytest.raises(InputError, match=r"must be \(V, N, K\)"):
        RankMixup()(logits, target, mixed_logits=mixed_logits[0], mixed_target=mixed_target[0])


def test_cpc_by_pairs(batch):
    logits, target = batch
    z = logits.clone().requires_grad_()
    found = CPC(0.3, 0.7)(z, target)
    losses = []
    for row, y in zip(z, target, strict=True):
        others = [j for j in range(CLASSES) if j != y]
        apart = sum((row[j] - row[y]).exp().log1p() for j in others) / len(others)
        pairs = [(row[k] - row[j]).exp().log1p() / 2 for j in others for k in others]
        losses.append(0.3 * apart + 0.7 * sum(pairs) / (len(others) * (len(others) - 1)))
    expected = CrossEntropy()(z, target) + torch.stack(losses).mean()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    left, right = (torch.autograd.grad(value, z)[0] for value in (found, expected))
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-12)


def sum_over_all_pairs(logits: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.softplus(logits[:, None, :] - logits[:, :, None]).sum((1, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_classes", [2, 3, 10, 101])
@pytest.mark.parametrize("scale", [0.01, 3.0, 15.0, 200.0])
def test_the_sum_over_pairs_and_its_gradient_are_those_of_all_pairs(dtype, n_classes, scale):
    logits = scale * torch.randn(6, n_classes, dtype=dtype) + 40
    logits[0] = logits[0, 0]  # all alike
    logits[1, n_classes // 2 :] = logits[1, -1]  # ties
    found, exact = logits.clone().requires_grad_(), logits.double().requires_grad_()
    ours, expected = pair_sum(found), sum_over_all_pairs(exact)
    weights = torch.rand(6, dtype=dtype)
    (ours @ weights).backward()
    (expected @ weights.double()).backward()
    assert found.grad is not None
    assert exact.grad is not None
    torch.testing.assert_close(ours.double(), expected, rtol=1e-6, atol=0)
    # As CPC does, but for a factor of 2.
    pairs = n_classes**2
    torch.testing.assert_close(
        found.grad.double() / pairs, exact.grad / pairs, rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("n_classes", [3, 33, 100, 500])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.0, 1.0), (1.0, 0.0), (1.0, 0.01)])
def test_cpc_is_the_same_by_pairs_by_a_grid_and_by_decays(monkeypatch, n_classes, wide, weights):
    # Of float32, sums of a row that wide are rounded by 1e-4.
    dtype = torch.float64 if wide else torch.float32
    logits, target = 3 * torch.randn(64, n_classes, dtype=dtype), torch.randint(n_classes, (64,))
    if wide:
        logits[5, 0] = 1000.0
    grid = Mock(wraps=margins._by_grid)
    monkeypatch.setattr(margins, "_by_grid", grid)
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    for by_decays in (False, True):
        if by_decays:
            monkeypatch.setattr(margins, "_FEW_CLASSES", 0)
            monkeypatch.setattr(margins, "_grid_of", lambda _: None)
        z = logits.clone().requires_grad_()
        value = CPC(*weights, reduction="none")(z, target)
        value.sum().backward()
        assert z.grad is not None
        found.append((value.detach() - CrossEntropy(reduction="none")(logits, target), z.grad))
    # Ranges that are too wide for a grid go the other way by themselves.
    assert grid.called is (n_classes > 32 and not wide)
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-6, atol=1e-6)


class CountsWritten(TorchDispatchMode):
    """Adds up how many numbers all operations write."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and not func.is_view:
            self.numbers += out.numel()
        return out


def test_the_work_of_cpc_grows_as_the_classes_and_not_as_their_pairs():
    written = {}
    for n_classes in (100, 400):
        logits = torch.randn(8, n_classes, requires_grad=True)
        target = torch.randint(n_classes, (8,))
        with CountsWritten() as count:
            CPC()(logits, target).backward()
        written[n_classes] = count.numbers / (8 * n_classes)
    assert written[400] < 1.2 * written[100]
    # A float for each pair, forward and backward, would be at least 2 K per class.
    assert written[400] < 400


def test_cpc_of_two_classes_has_no_pairs(batch):
    logits, target = batch[0][:, :2], batch[1] % 2
    expected = torch.nn.functional.softplus(
        logits.gather(1, 1 - target[:, None]) - logits.gather(1, target[:, None])
    ).mean()
    torch.testing.assert_close(CPC(1.0, 5.0)(logits, target), 2 * expected)


def test_label_binned_error(batch):
    logits, target = batch
    loss = SoftECE(weight=2.0, n_bins=6, temperature=0.02, form="label-binned")
    probs = logits.softmax(1).numpy()
    confidence, right = probs.max(1), probs.argmax(1) == target.numpy()
    middles = 1 / CLASSES + (1 - 1 / CLASSES) * (np.arange(6) + 0.5) / 6
    member = np.exp(-((confidence[:, None] - middles) ** 2) / 0.02)
    member /= member.sum(1, keepdims=True)
    member = (1 - 1e-5) * member + 1e-5 / 6
    accuracy = (member * right[:, None]).sum(0) / member.sum(0)
    penalty = (member * (accuracy - confidence[:, None]) ** 2).sum() / 40
    expected = CrossEntropy()(logits, target).item() + 2 * penalty
    assert loss(logits, target).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("form", ["weighted", "unweighted"])
def test_mmce_by_pairs(batch, form):
    logits, target = batch
    target = target.clone()
    target[5] = -100
    probs, kept = logits.softmax(1).numpy(), target.numpy() >= 0
    confidence, right = probs.max(1)[kept], (probs.argmax(1) == target.numpy())[kept]
    sums = dict.fromkeys(("right", "wrong", "mixed", "all"), 0.0)
    for c, a in zip(confidence, right, strict=True):
        for d, b in zip(confidence, right, strict=True):
            kernel = np.exp(-abs(c - d) / 0.4)
            sums["all"] += (a - c) * (b - d) * kernel
            sums["right"] += a * b * (1 - c) * (1 - d) * kernel
            sums["wrong"] += (not a) * (not b) * c * d * kernel
            sums["mixed"] += a * (not b) * (1 - c) * d * kernel
    m, n = right.sum(), (~right).sum()
    square = sums["right"] / m**2 + sums["wrong"] / n**2 - 2 * sums["mixed"] / (m * n)
    penalty = 2 * np.sqrt(square) if form == "weighted" else sums["all"] / (m + n) ** 2
    expected = CrossEntropy()(logits, target).item() + penalty
    loss = MMCE(form, weight=2.0 if form == "weighted" else None, norm="paper")
    assert loss(logits, target).item() == pytest.approx(expected, rel=1e-8)


def test_the_weight_of_mmce_that_is_published_goes_with_the_norm_of_its_code():
    """A published weight of 2 nudges cross-entropy; with the paper's norm it would rule it."""
    torch.manual_seed(0)
    logits = (2 * torch.randn(128, 10, dtype=torch.float64)).requires_grad_()
    target = torch.distributions.Categorical(logits=logits.detach() / 2).sample()

    def gradient(loss: CalibrationLoss) -> float:
        (found,) = torch.autograd.grad(loss(logits, target), logits)
        return (found - plain).norm().item()

    (plain,) = torch.autograd.grad(CrossEntropy()(logits, target), logits)
    losses = (MMCE(), MMCE(weight=2, norm="paper"))
    shares = [gradient(loss) / plain.norm().item() for loss in losses]
    assert shares[0] < 0.2
    assert shares[1] > 10 * shares[0]
    assert MMCE().weight == 2
    with pytest.raises(InputError, match="needs a weight: the published 2 belongs to norm='publ"):
        MMCE(norm="paper")
    assert MMCE("unweighted", norm="paper").weight == 1


def test_mmce_of_a_large_batch_takes_some_rows_that_count(batch):
    logits, target = batch
    copies, labels = logits[:1].repeat(300, 1), target[:1].repeat(300)
    labels[:250] = -100
    # All rows that count are alike, so any 50 or fewer of them give the same.
    found = MMCE("unweighted", max_rows=40)(copies, labels)
    expected = MMCE("unweighted")(copies[250:], labels[250:])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("right", [True, False])
def test_mmce_without_both_kinds_of_rows_is_zero(batch, right):
    logits, _ = batch
    target = logits.argmax(1) if right else logits.argmin(1)
    z = logits.clone().requires_grad_()
    term = MMCE()(z, target) - CrossEntropy()(z, target)
    term.backward()
    assert term.item() == pytest.approx(0, abs=1e-12)
    assert torch.isfinite(z.grad).all()
    assert z.grad.abs().max() < 1e-12
