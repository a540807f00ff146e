"""Heads under masks: the step against plain NumPy, the laws of masks, and retention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from calibrant.training.second_stages.maccal import next_retention, step_bound  # noqa: E402
from calibrant.training.second_stages.masked import MaskedDescent, MaskedHeads  # noqa: E402
from calibrant.training.second_stages.sources import SeededShuffle, epoch_order  # noqa: E402

WIDTHS = (5, 7, 3)
RATE = 0.3


def batches(count: int, rows: int = 16, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rng = np.random.default_rng(seed)
    return [
        (
            torch.from_numpy(rng.normal(size=(rows, WIDTHS[0]))),
            torch.from_numpy(rng.integers(0, WIDTHS[-1], size=rows)),
        )
        for _ in range(count)
    ]


def heads(descent: MaskedDescent, count: int = 1, widths: tuple[int, ...] = WIDTHS) -> MaskedHeads:
    return MaskedHeads(widths, count, 3, descent, dtype=torch.float64)


def numpy_gradients(weights, biases, features, labels):
    """Return the gradients of mean cross-entropy by hand for a two-layer head."""
    (first, second), (offset, offset2) = weights, biases
    before = features @ first.T + offset
    hidden = np.maximum(before, 0)
    logits = hidden @ second.T + offset2
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs /= probs.sum(axis=1, keepdims=True)
    error = (probs - np.eye(len(offset2))[labels]) / len(labels)
    back = (error @ second) * (before > 0)
    return [back.T @ features, error.T @ hidden], [back.sum(axis=0), error.sum(axis=0)]


@pytest.mark.parametrize("momentum", ["dropped", "kept"])
@pytest.mark.parametrize("mode", ["zeroing", "last_mask"])
@pytest.mark.parametrize(("restrict", "strict"), [(True, True), (True, False), (False, False)])
def test_steps_equal_the_equations_written_out_in_numpy(mode, restrict, strict, momentum):
    descent = MaskedDescent(mode, restrict, strict, 0.9, 0.01, momentum)
    model = heads(descent)
    weights = [weight[0].numpy().copy() for weight in model.weights]
    biases = [bias[0, 0].numpy().copy() for bias in model.biases]
    velocity = [np.zeros_like(value) for value in (*weights, *biases)]
    for epoch in range(3):
        model.draw_masks(np.array([0.6]), epoch)
        masks = [mask[0].numpy() for mask in model.masks]
        assert all(0 < mask.mean() < 1 for mask in masks)
        if mode == "zeroing":
            weights = [weight * mask for weight, mask in zip(weights, masks, strict=True)]
        if restrict and strict and momentum == "dropped":
            velocity[:2] = [v * mask for v, mask in zip(velocity, masks, strict=False)]
        for features, labels in batches(4, seed=epoch):
            model.step(features, labels, RATE)
            used = weights
            if mode != "zeroing":
                used = [weight * mask for weight, mask in zip(weights, masks, strict=True)]
            by_weight, by_bias = numpy_gradients(used, biases, features.numpy(), labels.numpy())
            for layer in range(2):
                mask, before = masks[layer], velocity[layer].copy()
                gradient = by_weight[layer] * (mask if restrict else 1)
                moved = 0.9 * velocity[layer] + gradient + 0.01 * weights[layer]
                if restrict and strict:
                    velocity[layer] = np.where(mask == 1, moved, before)
                    weights[layer] = np.where(
                        mask == 1, weights[layer] - RATE * moved, weights[layer]
                    )
                else:
                    velocity[layer] = moved
                    weights[layer] = weights[layer] - RATE * moved
                velocity[2 + layer] = 0.9 * velocity[2 + layer]
                velocity[2 + layer] += by_bias[layer] + 0.01 * biases[layer]
                biases[layer] = biases[layer] - RATE * velocity[2 + layer]
    for layer in range(2):
        np.testing.assert_allclose(model.weights[layer][0].numpy(), weights[layer], atol=1e-12)
        np.testing.assert_allclose(model.biases[layer][0, 0].numpy(), biases[layer], atol=1e-12)


@pytest.mark.parametrize("mode", ["zeroing", "last_mask", "expected", "full"])
def test_masked_weights_stay_bit_for_bit_within_an_epoch(mode):
    model = heads(MaskedDescent(mode, momentum=0.9, weight_decay=0.05))
    for features, labels in batches(5):  # so that there is momentum to hold back
        model.step(features, labels, RATE)
    model.draw_masks(np.array([0.5]), 1)
    before = [weight.clone() for weight in model.weights]
    masks = [mask.clone() for mask in model.masks]
    for features, labels in batches(5, seed=1):
        model.step(features, labels, RATE)
        assert all(torch.equal(a, b) for a, b in zip(masks, model.masks, strict=True))
    for weight, old, mask in zip(model.weights, before, masks, strict=True):
        assert torch.equal(weight[mask == 0], old[mask == 0])
        assert not torch.isclose(weight[mask == 1], old[mask == 1]).any()


def test_revived_weights_start_from_rest_unless_momentum_is_kept():
    moved = {}
    for momentum in ("dropped", "kept"):
        model = heads(MaskedDescent(weight_decay=0.0, masked_momentum=momentum))
        for features, labels in batches(5):  # all weights gain speed
            model.step(features, labels, RATE)
        model.draw_masks(np.array([0.5]), 1)
        masked = model.masks[0] == 0
        for features, labels in batches(2, seed=1):
            model.step(features, labels, RATE)
        model.draw_masks(np.array([1.0]), 2)
        before = model.weights[0].clone()
        # All weights are zero that were masked, and there is nothing to learn from such rows.
        model.step(torch.zeros(4, WIDTHS[0], dtype=torch.float64), torch.tensor([0, 1, 2, 0]), RATE)
        moved[momentum] = (model.weights[0] - before)[masked].abs()
    assert bool((moved["dropped"] == 0).all())
    assert bool((moved["kept"] > 1e-4).all())


def test_without_strict_freezing_momentum_and_decay_move_masked_weights():
    model = heads(MaskedDescent("last_mask", strict=False, weight_decay=0.05))
    for features, labels in batches(5):
        model.step(features, labels, RATE)
    model.draw_masks(np.array([0.5]), 1)
    before = model.weights[0].clone()
    model.step(*batches(1, seed=1)[0], RATE)
    masked = model.masks[0] == 0
    assert not torch.isclose(model.weights[0][masked], before[masked]).any()


def test_unmasked_head_is_trained_as_torch_trains_it():
    model = heads(MaskedDescent(weight_decay=0.01))
    plain = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)).double()
    with torch.no_grad():
        for layer, weight, bias in zip(plain[::2], model.weights, model.biases, strict=True):
            layer.weight.copy_(weight[0])
            layer.bias.copy_(bias[0, 0])
    optimizer = torch.optim.SGD(plain.parameters(), lr=RATE, momentum=0.9, weight_decay=0.01)
    for features, labels in batches(20):
        model.step(features, labels, RATE)
        optimizer.zero_grad()
        functional.cross_entropy(plain(features), labels).backward()
        optimizer.step()
    for kept, expected in zip(model.module(0).parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(kept, expected, atol=1e-12, rtol=1e-12)


def test_heads_side_by_side_are_the_heads_alone():
    kappas = [0.9, 0.5, 0.2]
    together = heads(MaskedDescent(), count=3)
    for epoch in range(2):
        together.draw_masks(np.array(kappas), epoch)
        for features, labels in batches(5, seed=epoch):
            together.step(features, labels, RATE)
    for place, retention in enumerate(kappas):
        alone = heads(MaskedDescent())
        for epoch in range(2):
            alone.draw_masks(np.array([retention]), epoch)
            for features, labels in batches(5, seed=epoch):
                alone.step(features, labels, RATE)
        for layer in range(2):
            torch.testing.assert_close(together.weights[layer][place], alone.weights[layer][0])


def test_masks_depend_on_seed_epoch_and_layer_only():
    wide = (40, 50, 40)
    first, second = (heads(MaskedDescent(), 2, wide) for _ in range(2))
    second.draw_masks(np.array([0.1, 0.1]), 0)  # an epoch that the first never saw
    for model in (first, second):
        model.draw_masks(np.array([0.7, 0.3]), 4)
    for one, other in zip(first.masks, second.masks, strict=True):
        assert torch.equal(one, other)
        assert one[0].mean() == pytest.approx(0.7, abs=0.05)
        assert one[1].mean() == pytest.approx(0.3, abs=0.05)
        assert bool((one[1] <= one[0]).all())  # fewer connections are a subset of more
    shapes_alike = first.masks[0][0].T
    assert not torch.equal(shapes_alike, first.masks[1][0].T.T[:40, :50])
    before = first.masks[0].clone()
    first.draw_masks(np.array([0.7, 0.3]), 5)
    assert not torch.equal(before, first.masks[0])
    first.draw_masks(np.array([1.0, 0.0]), 6)
    assert bool((first.masks[0][0] == 1).all())
    assert bool((first.masks[0][1] == 0).all())


def test_weights_for_use_by_mode():
    results = {}
    for mode in ("zeroing", "last_mask", "expected", "full"):
        model = heads(replace(MaskedDescent(), mode=mode))
        stored = model.weights[0][0].clone()
        model.draw_masks(np.array([0.4]), 0)
        results[mode] = model.module(0)[0].weight
        mask = model.masks[0][0]
    torch.testing.assert_close(results["zeroing"], stored * mask)
    torch.testing.assert_close(results["last_mask"], stored * mask)
    torch.testing.assert_close(results["expected"], stored * 0.4)
    torch.testing.assert_close(results["full"], stored)


fractions = st.floats(0, 1)


@given(fractions, fractions, fractions, st.floats(0.01, 1), st.floats(0, 0.5), st.floats(0.05, 0.5))
def test_retention_falls_with_overconfidence_and_stays_in_bounds(
    retention, accuracy, confidence, kappa, bound, lowest
):
    retention = max(retention, lowest)
    arrays = [np.array([value]) for value in (retention, accuracy, confidence, kappa)]
    found = float(next_retention(*arrays, bound, lowest)[0])
    assert lowest <= found <= 1
    assert abs(found - retention) <= bound + 1e-12
    gap = confidence - kappa * accuracy
    if gap > 0:
        assert found <= retention
        if gap <= bound and retention - gap >= lowest:
            assert found == pytest.approx(retention - gap)
    else:
        assert found >= retention


def test_bound_of_the_step_decays_from_largest_to_smallest():
    bounds = [step_bound(epoch, 40, 0.1, 0.01, "decaying") for epoch in range(41)]
    assert bounds[0] == pytest.approx(0.1)
    assert bounds[40] == pytest.approx(0.01)
    np.testing.assert_allclose(np.diff(np.log(bounds)), -np.log(10) / 40)
    assert {step_bound(epoch, 40, 0.1, 0.01, "static") for epoch in range(40)} == {0.1}
    assert {step_bound(epoch, 40, 0.1, 0.01, "none") for epoch in range(40)} == {0.0}


def test_shuffle_for_loaders_is_that_of_cached_rows():
    shuffle = SeededShuffle(10, seed=4)
    assert [list(shuffle) for _ in range(2)] == [epoch_order(10, 4, e).tolist() for e in range(2)]
    shuffle.set_epoch(7)
    assert list(shuffle) == epoch_order(10, 4, 7).tolist()
    assert len(shuffle) == 10
