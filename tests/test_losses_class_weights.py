"""Class weights count a row by its target, in every loss of rows."""

from __future__ import annotations

import pytest
import torch

from calibrant.core.errors import InputError
from calibrant.training import make_loss
from calibrant.training.losses import LOSSES, MMCE, CrossEntropy, LabelSmoothing

CLASSES = 4
WEIGHTS = [0.5, 2.0, 0.0, 1.5]
OF_ROWS = [
    name
    for name in LOSSES
    if name not in ("mmce", "mdca", "soft-ece", "soft-avuc", "crl", "rankmixup")
]


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(9, CLASSES, generator=generator, dtype=torch.float64)
    target = torch.tensor([0, 1, 2, 3, -100, 1, 0, 2, 3])
    return logits, target, torch.rand(9, 6, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("name", OF_ROWS)
def test_each_row_counts_by_the_weight_of_its_class(name, batch):
    logits, target, features = batch
    arguments = {"gate": "positive"} if name.startswith("fedlas") else {}
    rows = make_loss(name, CLASSES, reduction="none", **arguments).eval()(logits, target, features)
    weights = torch.tensor([*WEIGHTS, 0.0], dtype=torch.float64)[target.clamp_min(-1)]
    expected = {
        "none": weights * rows,
        "sum": (weights * rows).sum(),
        "mean": (weights * rows).sum() / weights.sum(),
    }
    for reduction, value in expected.items():
        settings = {"reduction": reduction, "class_weights": WEIGHTS, **arguments}
        loss = make_loss(name, CLASSES, **settings).eval()
        torch.testing.assert_close(loss(logits, target, features), value)


@pytest.mark.parametrize("alpha", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_weighs_classes_as_torch_does(batch, reduction, alpha):
    logits, target, _ = batch
    expected = torch.nn.CrossEntropyLoss(torch.tensor(WEIGHTS).double(), reduction=reduction)
    ours = CrossEntropy(class_weights=torch.tensor(WEIGHTS), reduction=reduction)
    torch.testing.assert_close(ours(logits, target), expected(logits, target))
    smoothed = LabelSmoothing(alpha, class_weights=[1.0] * CLASSES, reduction=reduction)
    plain = LabelSmoothing(alpha, reduction=reduction)
    torch.testing.assert_close(smoothed(logits, target), plain(logits, target))


def test_weights_go_into_the_checkpoint_and_rows_without_weight_give_zero(batch):
    logits, _, _ = batch
    loss = CrossEntropy(class_weights=WEIGHTS)
    assert torch.equal(loss.state_dict()["class_weights"], torch.tensor(WEIGHTS))
    assert not CrossEntropy().state_dict()
    assert loss(logits, torch.full((9,), 2)) == 0


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1.0, -1.0], "from 0, and not all 0"),
        ([0.0, 0.0], "from 0, and not all 0"),
        ([1.0, float("nan")], "must be finite"),
        ([1.0], "one number for each class"),
        ([[1.0, 2.0]], "one number for each class"),
        (["high", "low"], "one number for each class"),
        ("balanced", "one number for each class"),
    ],
)
def test_weights_that_cannot_be_are_refused(weights, words):
    with pytest.raises(InputError, match=words):
        CrossEntropy(class_weights=weights)


def test_a_wrong_number_of_weights_is_named(batch):
    with pytest.raises(InputError, match="class_weights are 2, but logits have 4 classes"):
        CrossEntropy(class_weights=[1.0, 2.0])(*batch[:2])


def test_losses_with_a_term_of_the_batch_take_none():
    with pytest.raises(InputError, match="no argument 'class_weights'"):
        make_loss("mdca", CLASSES, class_weights=WEIGHTS)


def test_losses_with_a_term_of_the_batch_refuse_a_base_that_weighs_classes_or_leaves_out_others():
    with pytest.raises(InputError, match="MMCE can't weigh classes"):
        MMCE(base=CrossEntropy(class_weights=WEIGHTS))
    with pytest.raises(InputError, match="give it ignore_index=255"):
        MMCE(base=CrossEntropy(ignore_index=255))
    assert MMCE(base=CrossEntropy(ignore_index=255), ignore_index=255).ignore_index == 255
    assert MMCE(ignore_index=255).ignore_index == 255
