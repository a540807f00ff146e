"""FeDLaS beyond its reference values: ablations, accumulation, single rows, and what it records."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from calibrant.core.errors import InputError
from calibrant.training.losses import FeDLaS, GateRecorder

CLASSES = 6


def batch(rows: int = 10, seed: int = 0):
    draw = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, CLASSES, generator=draw, dtype=torch.float64)
    target = torch.randint(CLASSES, (rows,), generator=draw)
    target[::2] = logits.argmax(1)[::2]
    return logits, target, torch.randn(rows, 7, generator=draw, dtype=torch.float64)


@pytest.mark.parametrize("norm", [1.0, 2.0, 3.0, float("inf")])
@pytest.mark.parametrize("indicator", ["feature-norm", "max-probability", "max-logit"])
def test_indicators(indicator, norm):
    logits, target, features = batch()
    loss = FeDLaS(CLASSES, theta=0.3, indicator=indicator, norm=norm).double()
    loss(logits, target, features)
    raw = {
        "feature-norm": np.linalg.norm(features.numpy(), norm, axis=1),
        "max-probability": logits.softmax(1).numpy().max(1),
        "max-logit": logits.numpy().max(1),
    }[indicator]
    mean = 0.3 * raw.mean() + 0.7 * 20
    std = 0.3 * raw.std(ddof=1) + 0.7 * 100
    np.testing.assert_allclose(loss.last.indicator, (raw - mean) / (std + 1e-3), rtol=1e-10)


@pytest.mark.parametrize(("gate", "psi"), [("positive", 1), ("negative", -1)])
def test_fixed_gates_and_constant_indicator(gate, psi):
    loss = FeDLaS(CLASSES, alpha=0.1, beta=2.0, gate=gate, indicator="constant").double()
    assert list(loss.parameters()) == []
    loss(*batch())
    expected = 0.2 / (1 + math.exp(-2 * psi))
    assert loss.last.alpha.tolist() == pytest.approx([expected] * 10)
    assert loss.last.share(psi) == 1


def test_random_ablations_have_their_distributions():
    torch.manual_seed(0)
    loss = FeDLaS(CLASSES, gate="random", indicator="random").double()
    loss(*batch(4000))
    state = loss.last
    assert set(state.psi.tolist()) == {-1, 1}
    # Four standard errors of each.
    assert state.share(1).item() == pytest.approx(0.5, abs=4 * 0.5 / 4000**0.5)
    assert state.indicator.mean().item() == pytest.approx(0, abs=4 / 4000**0.5)
    assert state.indicator.std().item() == pytest.approx(1, abs=4 / 8000**0.5)
    assert loss.running_mean == 20


def test_one_row_moves_the_mean_only():
    logits, target, features = batch(1)
    loss = FeDLaS(CLASSES, theta=0.5).double()
    assert torch.isfinite(loss(logits, target, features))
    assert loss.running_mean.item() == pytest.approx(10 + features.abs().sum().item() / 2)
    assert loss.running_std == 100


@pytest.mark.parametrize("steps", [2, 4])
def test_accumulated_updates_are_as_strong_as_one(steps):
    whole = FeDLaS(CLASSES, theta=0.95).double()
    parts = FeDLaS(CLASSES, theta=0.95, accumulation_steps=steps).double()
    whole(*batch())
    for _ in range(steps):
        parts(*batch())
    for left, right in zip(parts.buffers(), whole.buffers(), strict=True):
        torch.testing.assert_close(left, right)


def test_bounds_of_alpha_and_gradient_of_features():
    logits, target, features = batch(200)
    features.requires_grad_()
    loss = FeDLaS(CLASSES, alpha=0.1, beta=50.0, theta=1.0).double()
    loss(logits.requires_grad_(), target, features).backward()
    assert features.grad is None
    assert 0 < loss.last.alpha.min() < 0.01
    assert 0.19 < loss.last.alpha.max() < 0.2 + 1e-12


def test_no_state_before_the_first_call():
    with pytest.raises(InputError, match="before its first call"):
        _ = FeDLaS(CLASSES).last


def test_recorder_over_epochs():
    """Against a plain loop over samples."""
    draw = np.random.default_rng(0)
    torch.manual_seed(4)
    loss, recorder = FeDLaS(CLASSES, theta=0.5).double(), GateRecorder(60)
    # Without its bias the gate is divided over these rows.
    torch.nn.init.zeros_(loss.gate_network[2].bias)
    previous: dict[int, float] = {}
    for epoch in range(3):
        current: dict[int, tuple[float, float, float, bool]] = {}
        for step in range(4):
            logits, target, features = batch(10, seed=10 * epoch + step)
            index = torch.tensor(draw.choice(60, 10, replace=False))
            target[0] = -100
            loss(logits, target, features)
            recorder.record(loss, index, logits, target)
            state = loss.last
            right = logits.argmax(1) == target
            for row in range(1, 10):
                current[int(index[row])] = tuple(
                    float(values[row])
                    for values in (state.psi, state.alpha, state.indicator, right)
                )
        found = recorder.end_epoch()
        table = np.array(list(current.values()))
        assert found.seen == len(current)
        assert found.positive == pytest.approx((table[:, 0] == 1).mean())
        assert found.negative == pytest.approx((table[:, 0] == -1).mean())
        assert 0 < found.positive < 1
        assert found.mean_alpha == pytest.approx(table[:, 1].mean(), rel=1e-6)
        correlation = np.corrcoef(table[:, 2], table[:, 3])[0, 1]
        assert found.correlation == pytest.approx(correlation, rel=1e-5)
        common = previous.keys() & current.keys()
        flips = [previous[sample] != current[sample][0] for sample in common]
        expected = np.mean(flips) if flips else float("nan")
        assert found.flip_rate == pytest.approx(expected, nan_ok=True)
        for sample, values in current.items():
            assert recorder.alpha[sample].item() == pytest.approx(values[1], rel=1e-6)
        previous = {sample: values[0] for sample, values in current.items()}
    assert recorder.history[-1] == found
    assert math.isnan(recorder.history[0].flip_rate)


def test_recorder_refuses_what_does_not_belong_together():
    loss, recorder = FeDLaS(CLASSES).double(), GateRecorder(20)
    logits, target, features = batch()
    loss(logits, target, features)
    with pytest.raises(InputError, match="10 rows of the last call"):
        recorder.record(loss, torch.arange(9), logits, target)
    with pytest.raises(InputError, match="no sample was recorded"):
        recorder.end_epoch()
