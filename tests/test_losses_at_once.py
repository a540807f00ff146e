"""Losses whose gradient is made along with the value, against their formulas by autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from calibrant.core.errors import InputError  # noqa: E402
from calibrant.training.losses import (  # noqa: E402
    ACLS,
    MMCE,
    LabelSmoothing,
    MbLS,
    base,
    margins,
)

CLASSES = 7


def mbls(z: Tensor, ce: Tensor, loss: Any) -> Tensor:
    excess = (z.max(1, keepdim=True).values - z - loss.margin).relu()
    found = excess.mean(1) if loss.class_reduction == "mean" else excess.sum(1)
    return ce + loss.alpha * found


def acls(z: Tensor, ce: Tensor, loss: Any) -> Tensor:
    top = z.max(1, keepdim=True).values
    floor = z.detach().min(1, keepdim=True).values if loss.reference == "min" else 0
    peaks = ((z - floor - loss.margin).relu().square() * (z == top)).sum(1)
    others = (top.detach() - z - loss.margin).relu().square() * (z != top)
    penalty = loss.positive * peaks + loss.negative * others.sum(1) / (z.shape[1] - 1)
    return ce + loss.alpha * penalty


def smoothing(z: Tensor, ce: Tensor, loss: Any) -> Tensor:
    return (1 - loss.alpha) * ce - loss.alpha * z.log_softmax(1).mean(1)


CASES: list[tuple[Callable[[], Any], Callable[[Tensor, Tensor, Any], Tensor]]] = [
    (lambda: MbLS(margin=2.0, reduction="none"), mbls),
    (lambda: MbLS(margin=0.0, class_reduction="sum", alpha=0.3, reduction="none"), mbls),
    (lambda: ACLS(margin=2.0, reduction="none"), acls),
    (lambda: ACLS(margin=1.0, reference="min", positive=0.7, reduction="none"), acls),
    (lambda: LabelSmoothing(alpha=0.2, reduction="none"), smoothing),
]


@pytest.mark.parametrize("at_once", [1 << 20, 3 * CLASSES])  # all rows, or three at a time
@pytest.mark.parametrize("many", [CLASSES + 1, CLASSES])  # probabilities step by step, or torch's
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize(("make", "formula"), CASES)
def test_values_and_gradients_are_those_of_the_formula(
    make: Any, formula: Any, soft: bool, many: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "MANY_CLASSES", many)
    monkeypatch.setattr(margins, "MANY_CLASSES", many)
    monkeypatch.setattr(margins.MadeAtOnce, "at_once", at_once)
    draw = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(9, CLASSES, generator=draw, dtype=torch.float64)
    weights = torch.rand(9, generator=draw, dtype=torch.float64)
    labels = torch.randint(CLASSES, (9,), generator=draw)
    shares = torch.rand(9, CLASSES, generator=draw, dtype=torch.float64).softmax(1)
    q = shares if soft else torch.nn.functional.one_hot(labels, CLASSES).double()
    ours, theirs = (logits.clone().requires_grad_() for _ in range(2))
    loss = make()
    found = loss(ours, q if soft else labels)
    expected = formula(theirs, -(q * theirs.log_softmax(1)).sum(1), loss)
    torch.testing.assert_close(found, expected)
    (weights * found).sum().backward()
    (weights * expected).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("make", [lambda **_: MbLS(**_), lambda **_: ACLS(**_)])
def test_rows_that_are_left_out_and_those_that_are_not_agree(make: Any) -> None:
    logits = torch.randn(4, CLASSES, requires_grad=True)
    whole = make()(logits[:3], torch.tensor([0, 1, 2]))
    (gradient,) = torch.autograd.grad(whole, logits)
    part = make()(logits, torch.tensor([0, 1, 2, -100]))
    torch.testing.assert_close(part, whole)
    torch.testing.assert_close(torch.autograd.grad(part, logits)[0], gradient)


def test_a_penalty_behind_a_base_without_a_graph_still_has_its_gradient() -> None:
    logits = torch.tensor([[3.0, 0.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.5, 0.2]], requires_grad=True)
    target = torch.tensor([0, 1, 1])
    both = MMCE(base=MbLS(margin=1.0), weight=5.0)(logits, target)
    alone = MbLS(margin=1.0)(logits, target)
    penalty = MMCE(weight=5.0)(logits, target) - torch.nn.functional.cross_entropy(logits, target)
    (ours,) = torch.autograd.grad(both, logits, retain_graph=True)
    parts = [torch.autograd.grad(each, logits, retain_graph=True)[0] for each in (alone, penalty)]
    torch.testing.assert_close(ours, sum(parts))


def test_a_gradient_of_the_gradient_is_refused_and_not_wrong() -> None:
    logits = torch.randn(3, CLASSES, requires_grad=True)
    value = MbLS()(logits, torch.arange(3))
    (gradient,) = torch.autograd.grad(value, logits, create_graph=True)
    with pytest.raises(InputError, match="can't be differentiated again"):
        gradient.square().sum().backward()
    smooth = LabelSmoothing()(logits, torch.arange(3))  # which can
    (gradient,) = torch.autograd.grad(smooth, logits, create_graph=True)
    gradient.square().sum().backward()
    assert logits.grad.isfinite().all()


def test_targets_out_of_range_are_still_refused() -> None:
    with pytest.raises(InputError, match="must lie in 0 to 6, but one is 7"):
        LabelSmoothing()(torch.randn(1, CLASSES), torch.tensor([7]))
