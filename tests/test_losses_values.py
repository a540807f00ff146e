"""Losses against reference values, computed by the authors' code or from the stated formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from calibrant.training.losses import (
    CPC,
    CRL,
    MDCA,
    MMCE,
    AdaFocal,
    CalibrationLoss,
    CrossEntropy,
    FeDLaS,
    Focal,
    MbLS,
    make_loss,
)
from calibrant.training.mixing import decouple

ROWS, CLASSES = np.arange(4)[:, None], np.arange(5)
LOGITS = torch.tensor(8 * np.sin(5 * ROWS + CLASSES))
TARGET = torch.tensor([1, 3, 0, 0])
FEATURES = torch.tensor(5 * (ROWS + 1) * np.abs(np.cos(3 * ROWS + np.arange(6))))
CLOSE = {"rel": 0, "abs": 1e-9}


def value_and_gradient(loss: CalibrationLoss, **arguments: object) -> tuple[float, float]:
    """Return the loss and the norm of its gradient in the logits."""
    logits = LOGITS.clone().requires_grad_()
    value = loss.double()(logits, TARGET, FEATURES, **arguments)
    value.backward()
    return value.item(), logits.grad.norm().item()


@pytest.mark.parametrize(
    ("name", "arguments", "value", "gradient"),
    [
        ("cross-entropy", {}, 3.3463901919, 0.4175292633),
        ("cross-entropy", {"reduction": "sum"}, 13.3855607674, 1.6701170534),
        ("label-smoothing", {"alpha": 0.05}, 3.5383942553, 0.4050258155),
        ("label-smoothing", {"alpha": 0.1}, 3.7303983187, 0.3933969199),
        ("brier", {}, 0.6973227430, 0.2077014683),
        ("focal", {"gamma": 1.0}, 3.2320291936, 0.4168936486),
        ("focal", {"gamma": 3.0}, 3.1354154187, 0.3846611617),
        ("flsd", {}, 3.1353871003, 0.3846946348),
        ("dual-focal", {"gamma": 5.0}, 3.0975470352, 0.3630438883),
        ("mmce", {}, 3.9946627606, 0.5502029885),
        ("cpc", {"discrimination": 0.1, "exclusion": 1.0}, 5.3965175292, 0.4730317360),
        ("confidence-penalty", {"beta": 0.1}, 3.3185230214, 0.4202823201),
        (
            "confidence-penalty",
            {"beta": 0.1, "legacy_class_mean": True},
            3.3408167578,
            0.4180677109,
        ),
        ("mbls", {"margin": 6.0, "alpha": 0.1}, 3.6389577483, 0.4353426956),
        ("mbls", {"margin": 10.0, "alpha": 0.05}, 3.4053606501, 0.4242785204),
        ("acls", {"margin": 3.0}, 5.6809793543, 0.7344945298),
        ("acls", {"margin": 6.0}, 3.8325165934, 0.5153532954),
        ("acls", {"margin": 10.0}, 3.4072348929, 0.4194113797),
    ],
)
def test_value_and_gradient(name, arguments, value, gradient):
    found = value_and_gradient(make_loss(name, 5, **arguments))
    assert found == pytest.approx((value, gradient), **CLOSE)


class _Nothing(CalibrationLoss):
    """A base that adds nothing, so that a penalty stands alone."""

    def _row_losses(self, rows):
        return rows.logits.sum(1) * 0


@pytest.mark.parametrize(
    ("name", "arguments", "value", "gradient"),
    [
        ("mmce", {"form": "unweighted"}, 0.1050645934, 0.0651434654),
        ("mmce", {"norm": "published", "weight": 1.0}, 0.3241362844, 0.1004875198),
        ("mmce", {"norm": "paper", "weight": 1.0}, 0.6482733788, None),
        ("mdca", {}, 0.1712866163, 0.0342097236),
        ("soft-ece", {}, 0.4110956260, 0.1056523405),
        ("soft-avuc", {}, 0.5404829812, 0.1387868994),
    ],
)
def test_penalty_alone(name, arguments, value, gradient):
    found = value_and_gradient(make_loss(name, 5, base=_Nothing(), **arguments))
    assert found[0] == pytest.approx(value, **CLOSE)
    if gradient is not None:
        assert found[1] == pytest.approx(gradient, **CLOSE)


def test_both_terms_of_cpc():
    plain = CrossEntropy()(LOGITS, TARGET)
    for weights, value in (((1.0, 0.0), 1.3651231997), ((0.0, 1.0), 1.9136150174)):
        term = CPC(*weights)(LOGITS, TARGET) - plain
        assert term.item() == pytest.approx(value, **CLOSE)


def test_sum_over_classes_is_the_mean_times_their_number():
    total = MbLS(alpha=1.0, class_reduction="sum")(LOGITS, TARGET) - CrossEntropy()(LOGITS, TARGET)
    assert total.item() == pytest.approx(14.6283778243, **CLOSE)


def test_adafocal_with_given_bins():
    loss = AdaFocal(n_bins=3).double()
    loss.edges.copy_(torch.tensor([0, 0.3, 0.6, 1]))
    loss.gammas.copy_(torch.tensor([2.5, 0.7, -0.4], dtype=torch.float64))
    assert value_and_gradient(loss) == pytest.approx((3.2849405680, 0.4206603458), **CLOSE)


def test_ranking_by_given_standings():
    loss = CRL(samples=5).eval()
    # Ten past epochs and one sample never right make kappa the count over ten.
    loss.epochs.fill_(10)
    loss.times_right.copy_(torch.tensor([2, 9, 5, 5, 0]))
    whole = value_and_gradient(loss, index=torch.arange(4))
    logits = LOGITS.clone().requires_grad_()
    term = loss(logits, TARGET, index=torch.arange(4)) - CrossEntropy()(logits, TARGET)
    term.backward()
    assert (term.item(), logits.grad.norm().item()) == pytest.approx(
        (0.2172480306, 0.0940535736), **CLOSE
    )
    assert whole[0] == pytest.approx(3.3463901919 + 0.2172480306, **CLOSE)


def test_decoupled_mixtures():
    logits = LOGITS.clone().requires_grad_()
    partner = [1, 2, 3, 0]
    ours, theirs = decouple(lambda x: x + 0.1 * x.sin(), logits, logits[partner], 0.8, 0.3)
    plain = CrossEntropy()
    loss = (plain(ours, TARGET) + plain(theirs, TARGET[partner])) / 2
    loss.backward()
    assert (loss.item(), logits.grad.norm().item()) == pytest.approx(
        (3.3837033244, 0.4386183418), **CLOSE
    )


def known_gate(loss: FeDLaS) -> FeDLaS:
    """Give the gate of five classes the weights that the reference values belong to."""
    hidden, classes = np.arange(2)[:, None], np.arange(5)
    weights = [
        0.5 * np.sin(5 * hidden + classes + 1),
        [0.1, 0.2],
        np.cos(2 * hidden + np.arange(2)),
        [-2.0, 2.5],
    ]
    loss = loss.double()
    with torch.no_grad():
        for parameter, weight in zip(loss.parameters(), weights, strict=True):
            parameter.copy_(torch.tensor(np.array(weight)))
    return loss


GATE_CASES = [
    (
        {"base": "ls", "beta": 4.0, "alpha": 0.05, "theta": 0.95},
        (3.6979539610, 0.3964645052, 0.2369873244, 44.7840170279, 26.6716894003),
        (3.7112688932, 0.3963280454, 0.2572831186, 46.0232178793, 23.0052738704),
    ),
    (
        {"base": "ls", "beta": 4.0, "alpha": 0.05, "theta": 0.5},
        (3.6032746675, 0.3990316423, 0.1949487123, 33.0442194884, 61.4061523160),
        (3.6478101423, 0.3975043887, 0.1371391597, 39.5663292326, 42.1092284739),
    ),
    (
        {"base": "mbls", "beta": 0.5, "alpha": 0.1, "margin": 6.0, "theta": 0.95},
        (3.3131824233, 0.3909740722, 0.1022250328, 44.7840170279, 26.6716894003),
        (3.3173200476, 0.3907107016, 0.1142345856, 46.0232178793, 23.0052738704),
    ),
    (
        {"base": "mbls", "beta": 0.5, "alpha": 0.05, "margin": 10.0, "theta": 0.5},
        (3.2281909878, 0.4023843390, 0.0094251547, 33.0442194884, 61.4061523160),
        (3.2285680023, 0.4020579965, 0.0112259072, 39.5663292326, 42.1092284739),
    ),
]


@pytest.mark.parametrize(("arguments", "first", "second"), GATE_CASES)
def test_fedlas_twice_and_in_eval_mode(arguments, first, second):
    loss = known_gate(FeDLaS(5, **arguments))
    for mode, expected in ((True, first), (True, second), (False, second)):
        loss.train(mode).zero_grad()
        value, gradient = value_and_gradient(loss)
        gate = torch.cat([p.grad.flatten() for p in loss.parameters()]).norm().item()
        found = (value, gradient, gate, loss.running_mean.item(), loss.running_std.item())
        assert found == pytest.approx(expected, **CLOSE)


def test_fedlas_shows_what_it_decided():
    loss = known_gate(FeDLaS(5, alpha=0.05, beta=4.0, theta=0.95))
    value_and_gradient(loss)
    state = loss.last
    assert state.psi.tolist() == [-1, -1, 1, 1]
    assert state.alpha.tolist() == pytest.approx(
        [0.09782027, 0.07382827, 0.08044005, 0.09853628], abs=5e-9
    )
    assert state.indicator.tolist() == pytest.approx(
        [-0.950983, -0.259266, 0.353507, 1.052361], abs=5e-7
    )
    assert state.share(1).item() == state.share(-1).item() == 0.5


def test_the_gate_learns_by_the_loss_alone():
    # dL/dpsi_i = 2 alpha beta g_i s (1 - s) (R_i - CE_i) / N, passed on to the decision unchanged.
    loss = known_gate(FeDLaS(5, alpha=0.05, beta=4.0, theta=0.95))
    value_and_gradient(loss)
    state, log_probs = loss.last, LOGITS.log_softmax(1)
    s = state.alpha / 0.1
    difference = -log_probs.mean(1) + log_probs[range(4), TARGET]
    by_psi = 2 * 0.05 * 4 * state.indicator * s * (1 - s) * difference / 4
    outputs = loss.gate_network(LOGITS)
    decision = outputs.softmax(1)[:, 1] - outputs.softmax(1)[:, 0]
    expected = torch.autograd.grad(decision @ by_psi, list(loss.parameters()))
    for parameter, gradient in zip(loss.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-12, atol=1e-14)


def test_the_papers_gate_is_the_same_with_columns_swapped():
    code = known_gate(FeDLaS(5, alpha=0.05, theta=0.95))
    paper = known_gate(FeDLaS(5, alpha=0.05, theta=0.95, convention="paper"))
    with torch.no_grad():
        for parameter in paper.gate_network[2].parameters():
            parameter.copy_(parameter.flip(0))
    assert value_and_gradient(code) == pytest.approx(value_and_gradient(paper), **CLOSE)
    undecided = torch.zeros(4, 5, dtype=torch.float64)
    for loss, psi in ((code, 0), (paper, -1)):
        torch.nn.init.zeros_(loss.gate_network[2].weight)
        torch.nn.init.zeros_(loss.gate_network[2].bias)
        loss(undecided, TARGET, FEATURES)
        assert loss.last.psi.tolist() == [psi] * 4


def test_gate_has_the_published_size():
    shapes = [tuple(p.shape) for p in FeDLaS(10).parameters()]
    assert shapes == [(5, 10), (5,), (2, 5), (2,)]
    sizes = [sum(p.numel() for p in FeDLaS(k).parameters()) for k in (10, 100, 200)]
    assert sizes == [67, 5152, 20302]


def test_double_softmax_slip_by_name():
    slip = MDCA(legacy_double_softmax=True, weight=0.0)
    smoothed = torch.nn.functional.cross_entropy(LOGITS.softmax(1), TARGET, label_smoothing=0.1)
    assert slip(LOGITS, TARGET).item() == pytest.approx(smoothed.item(), abs=1e-12)


def test_unweighted_mmce_as_a_root():
    square = MMCE("unweighted", base=_Nothing())(LOGITS, TARGET)
    root = MMCE("unweighted", squared=False, base=_Nothing())(LOGITS, TARGET)
    assert root.item() == pytest.approx(square.sqrt().item(), abs=1e-9)


def test_scheduled_focal_follows_its_epochs():
    loss = make_loss("scheduled-focal", 5)
    for epoch, gamma in ((0, 5), (99, 5), (100, 3), (249, 3), (250, 1), (349, 1)):
        loss.start_epoch(epoch)
        assert value_and_gradient(loss) == value_and_gradient(Focal(float(gamma)))
