"""TST, V-TST, BalCAL, PLP and masks at inference, each against an independent computation."""

from __future__ import annotations

import numpy as np
import pytest
from memorised_features import memorised_features

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.distributions import Normal, kl_divergence  # noqa: E402
from torch.nn import functional  # noqa: E402

from calibrant.core.errors import InputError  # noqa: E402
from calibrant.training.second_stages import (  # noqa: E402
    PAPER_CUTS,
    BalancedHead,
    BalCAL,
    ProgressiveFreezing,
    ProgressiveLayerPeeling,
    TwoStageTraining,
    VariationalHead,
    VariationalTwoStageTraining,
    mask_at_inference,
    parameter_cuts,
    simplex_frame,
)
from calibrant.training.second_stages.balcal import class_factors, find_balance  # noqa: E402
from calibrant.training.second_stages.heads import (  # noqa: E402
    divergence_from_standard_normal,
)


@pytest.fixture(scope="module")
def rows():
    return memorised_features(600, 500, 5, 12, seed=3)


# --- TST and V-TST -----------------------------------------------------------------------------


def test_tst_head_has_the_layers_of_the_paper(rows):
    stage = TwoStageTraining(epochs=1, latent=4).fit(*rows[0])
    shapes = [tuple(parameter.shape) for parameter in stage.head_.parameters()]
    assert shapes == [(12, 12), (12,), (4, 12), (4,), (5, 4), (5,)]
    kinds = [type(layer).__name__ for layer in stage.head_]
    assert kinds == ["Linear", "ReLU", "Linear", "Linear"]


def test_tst_keeps_the_epoch_of_the_best_held_out_likelihood(rows):
    train, val, _ = rows
    settings = {"learning_rate": 0.05, "seed": 1}
    held = torch.from_numpy(val.features), torch.from_numpy(val.labels)

    def nll(stage) -> float:
        return float(functional.cross_entropy(stage.head_(held[0]), held[1]).detach())

    alone = [nll(TwoStageTraining(epochs=count, **settings).fit(*train)) for count in range(1, 9)]
    assert np.argmin(alone) < 7  # it overfits, so there is something to choose
    kept = TwoStageTraining(epochs=8, **settings).fit(*train, val)
    assert nll(kept) == pytest.approx(min(alone), rel=1e-9)
    assert kept.notes_ == [f"kept epoch {np.argmin(alone) + 1}, the best held-out likelihood"]


def test_divergence_is_that_of_torch():
    torch.manual_seed(0)
    mean, log_variance = torch.randn(6, 3), -torch.rand(6, 3)
    standard = Normal(torch.zeros(3), torch.ones(3))
    expected = kl_divergence(Normal(mean, (log_variance / 2).exp()), standard).sum(1)
    torch.testing.assert_close(divergence_from_standard_normal(mean, log_variance), expected)


def test_variational_head_averages_probabilities_over_its_samples():
    torch.manual_seed(0)
    head = VariationalHead(6, 3, 4, samples=7)
    head.noise.copy_(torch.randn(7, 3))
    features = torch.randn(5, 6)
    mean, log_variance = head.encode(features)
    assert bool((log_variance < 0).all())
    probs = [
        functional.softmax(head.classifier(mean + torch.exp(log_variance / 2) * noise), dim=1)
        for noise in head.noise
    ]
    torch.testing.assert_close(head(features).exp(), torch.stack(probs).mean(0))


def test_variational_stage_learns_and_draws_noise_once(rows):
    stage = VariationalTwoStageTraining(epochs=15, learning_rate=0.01, samples=20).fit(*rows[0])
    probs = stage.predict_proba(rows[2].features)
    assert (probs.argmax(axis=1) == rows[2].labels).mean() > 0.6
    noise = stage.head_.noise
    assert noise.shape == (20, 10)
    assert float(noise.std()) == pytest.approx(1, abs=0.2)


# --- BalCAL ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("features", "classes"), [(5, 5), (12, 4), (3, 2)])
def test_simplex_frame_has_unit_columns_at_equal_angles(features, classes):
    frame = simplex_frame(features, classes, seed=0)
    gram = frame.T @ frame
    expected = torch.full((classes, classes), -1 / (classes - 1), dtype=torch.float64)
    expected.fill_diagonal_(1)
    torch.testing.assert_close(gram, expected)
    with pytest.raises(InputError, match="at least as many features as classes"):
        simplex_frame(classes - 1, classes, seed=0)


def test_class_factors_written_out():
    labels = torch.tensor([0, 0, 0, 2, 2, 5])
    expected = [np.sqrt(2 / 3), 1, np.sqrt(2 / 2), 1, 1, np.sqrt(2 / 1)]
    np.testing.assert_allclose(class_factors(labels, 6).numpy(), expected)


def test_balance_makes_confidence_meet_accuracy():
    rng = np.random.default_rng(0)
    linear = torch.from_numpy(rng.normal(size=(400, 4)) * 8)
    simplex = torch.from_numpy(rng.normal(size=(400, 4)) / 3)
    labels = linear.argmax(1).clone()
    labels[:100] = (labels[:100] + 1) % 4

    def confidence(share: float) -> float:
        return float(functional.softmax(share * linear + (1 - share) * simplex, 1).amax(1).mean())

    share = find_balance(linear, simplex, labels, 0.9, "linear")
    assert confidence(share) == pytest.approx(0.9 * 0.75, abs=1e-3)
    grid = np.linspace(0, 1, 10_001)
    nearest = grid[np.argmin([abs(confidence(s) - 0.9 * 0.75) for s in grid[::10]]) * 10]
    assert share == pytest.approx(nearest, abs=2e-3)
    # Not confident enough on its own: the linear head alone.
    assert find_balance(linear / 100, simplex, labels, 1.0, "linear") == 1.0
    assert find_balance(linear / 100, simplex, labels, 1.0) == 1.0


def test_balance_follows_the_accuracy_of_the_mixture():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 4, 2000)
    truth = np.eye(4)[labels]
    linear = 4 * truth + rng.normal(size=(2000, 4)) * 3
    simplex = 1.2 * truth + rng.normal(size=(2000, 4)) / 3  # less sure, and right more often
    tensors = torch.from_numpy(linear), torch.from_numpy(simplex), torch.from_numpy(labels)

    def gap(share: float, accuracy_of: float) -> float:
        """Return wanted minus actual confidence."""

        def right(part: float) -> float:
            return float((mixed(part).argmax(axis=1) == labels).mean())

        probs = np.exp(mixed(share))
        probs /= probs.sum(axis=1, keepdims=True)
        return 0.9 * right(accuracy_of) - float(probs.max(axis=1).mean())

    def mixed(share: float) -> np.ndarray:
        return share * linear + (1 - share) * simplex

    share = find_balance(*tensors, 0.9)
    assert gap(share, share) == pytest.approx(0, abs=2e-3)
    other = find_balance(*tensors, 0.9, "linear")
    assert gap(other, 1.0) == pytest.approx(0, abs=2e-3)
    assert share - other > 0.01  # the mixture is right more often, and may be surer


def test_batch_norm_of_balcal_moves_as_the_authors_have_it(rows):
    norms = [m for m in BalancedHead(6, 3).modules() if isinstance(m, nn.BatchNorm2d)]
    assert [norm.momentum for norm in norms] == [0.01] * 3
    stage = BalCAL(epochs=1, norm_momentum=0.1).fit(*rows[0])
    norms = [m for m in stage.head_.modules() if isinstance(m, nn.BatchNorm2d)]
    assert [norm.momentum for norm in norms] == [0.1] * 3


def test_balanced_head_mixes_its_two_heads():
    torch.manual_seed(0)
    head = BalancedHead(6, 3, kernel_size=3).eval()
    maps = torch.randn(4, 6, 5, 5)
    linear, simplex = head.both(maps)
    torch.testing.assert_close(linear, head.linear(maps.mean(dim=(2, 3))))
    assert float(simplex.detach().abs().max()) <= 1 + 1e-6  # cosines
    head.balance.fill_(0.3)
    torch.testing.assert_close(head(maps), 0.3 * linear + 0.7 * simplex)
    assert "frame" in head.state_dict()
    assert "balance" in head.state_dict()


def test_balcal_moves_its_balance_and_keeps_it(rows):
    features, labels = rows[0]
    # A last batch of a single row, which batch norm can't learn from.
    stage = BalCAL(epochs=10, learning_rate=0.01, batch_size=46).fit(features[:599], labels[:599])
    assert 0 < stage.balance_ <= 1
    assert stage.balance_ != pytest.approx(0.8)
    probs = stage.predict_proba(rows[2].features)
    assert (probs.argmax(axis=1) == rows[2].labels).mean() > 0.6


def test_balcal_trains_a_backbone_on_its_maps():
    torch.manual_seed(0)
    images = torch.randn(96, 1, 6, 6)
    labels = (images[:, 0, :3].mean(dim=(1, 2)) > images[:, 0, 3:].mean(dim=(1, 2))).long()
    backbone = nn.Sequential(nn.Conv2d(1, 8, 6, padding=1), nn.BatchNorm2d(8))
    before = backbone[0].weight.detach().clone()
    loader = list(zip(images.split(32), labels.split(32), strict=True))
    stage = BalCAL(epochs=30, learning_rate=0.01)
    network = stage.train_with_backbone(backbone, 8, 2, loader)
    assert not torch.equal(backbone[0].weight, before)
    assert not network.training
    assert stage.history_[-1].accuracy > 0.9
    with torch.no_grad():
        torch.testing.assert_close(network(images), stage.head_(backbone(images)))


# --- PLP ---------------------------------------------------------------------------------------


def small_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6), nn.BatchNorm1d(6),
        nn.ReLU(), nn.Linear(6, 3),
    )  # fmt: skip


def test_freezing_starts_at_the_epochs_of_the_paper():
    eleven = nn.ParameterList([nn.Parameter(torch.zeros(1)) for _ in range(62)])
    freezing = ProgressiveFreezing(eleven, 350, PAPER_CUTS["resnet18"])
    starts = (0, 31, 63, 95, 127, 159, 190, 222, 254, 286, 318)
    assert freezing.starts == starts
    assert freezing.trained(0) == freezing.trained(30) == 62
    assert freezing.trained(31) == 60
    assert freezing.trained(349) == 3
    trained = [freezing.trained(start) for start in starts]
    assert trained == list(PAPER_CUTS["resnet18"])[::-1]


def test_cuts_lie_in_front_of_matrices():
    network = small_network()
    assert parameter_cuts(network) == (4, 8, 10)
    assert parameter_cuts(network, 2) == (4, 10)
    assert parameter_cuts(network, 1) == (10,)
    for cuts in ((), (4, 9), (4, 4, 10), (0, 10)):
        with pytest.raises(InputError, match="cuts must increase"):
            ProgressiveFreezing(network, 10, cuts)


def test_frozen_tensors_stand_still_while_gradients_and_statistics_flow():
    network = small_network()
    freezing = ProgressiveFreezing(network, 2, (4, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    features, labels = torch.randn(16, 4), torch.randint(0, 3, (16,))

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(network(features), labels).backward()
        optimizer.step()

    freezing.begin_epoch(0)
    for _ in range(3):
        step()
    freezing.begin_epoch(1)
    top, bottom = list(network.parameters())[4:], list(network.parameters())[:4]
    before = [parameter.detach().clone() for parameter in (*top, *bottom)]
    momentum = [optimizer.state[parameter]["momentum_buffer"].clone() for parameter in top]
    means = network[4].running_mean.clone()
    for _ in range(3):
        step()
    for parameter, old, velocity in zip(top, before, momentum, strict=False):
        assert torch.equal(parameter, old)
        assert torch.equal(optimizer.state[parameter]["momentum_buffer"], velocity)
    for parameter, old in zip(bottom, before[len(top) :], strict=True):
        assert not torch.equal(parameter, old)
    assert not torch.equal(network[4].running_mean, means)


def test_plp_trains_a_network_and_leaves_it_free():
    rng = np.random.default_rng(0)
    features = torch.from_numpy(rng.normal(size=(200, 4))).float()
    labels = features[:, :3].argmax(1)
    network = small_network()
    loader = list(zip(features.split(50), labels.split(50), strict=True))
    stage = ProgressiveLayerPeeling(epochs=20)
    assert stage.train(network, loader) is network
    assert stage.history_[-1].accuracy > 0.8
    assert all(parameter.requires_grad for parameter in network.parameters())
    assert not network.training


# --- masks at inference ------------------------------------------------------------------------


def test_masks_at_inference_against_all_masks_of_a_tiny_head():
    weight, bias = np.array([[1.0, -2.0], [0.5, 1.5]]), np.array([0.2, -0.1])
    features, labels = np.array([[1.0, 2.0]]), np.array([1])
    expected = 0.0
    for kept in np.ndindex(2, 2, 2, 2):
        mask = np.array(kept).reshape(2, 2)
        logits = (weight * mask) @ features[0] + bias
        probs = np.exp(logits) / np.exp(logits).sum()
        expected += probs.max() * 0.3 ** mask.sum() * 0.7 ** (4 - mask.sum())
    (found,) = mask_at_inference(weight, bias, features, labels, [0.3], repeats=3000)
    assert found.confidence == pytest.approx(expected, abs=0.01)


def test_masks_at_inference_cost_confidence_and_accuracy(rows):
    train, _, test = rows
    stage_logits = np.random.default_rng(0)
    weight = stage_logits.normal(size=(5, 12))
    for label in range(5):
        weight[label] = train.features[train.labels == label].mean(axis=0)
    bias = -0.5 * (weight**2).sum(axis=1)
    found = mask_at_inference(weight, bias, *test, [1.0, 0.7, 0.3, 0.0])
    logits = test.features @ weight.T + bias
    assert found[0].accuracy == pytest.approx((logits.argmax(axis=1) == test.labels).mean())
    assert found[0].accuracy > found[1].accuracy > found[2].accuracy
    only_bias = np.exp(bias - bias.max())
    assert found[3].confidence == pytest.approx((only_bias / only_bias.sum()).max())
    with pytest.raises(InputError, match="retention must lie"):
        mask_at_inference(weight, bias, *test, [1.5])
    with pytest.raises(InputError, match="the head must have weights"):
        mask_at_inference(weight[:, :3], bias, *test)
    for name, value in (("repeats", 0), ("batch_size", 0), ("seed", -1)):
        with pytest.raises(InputError, match=f"{name} must be a whole number of at least"):
            mask_at_inference(weight, bias, *test, **{name: value})


def test_what_cannot_learn_before_peeling_never_does():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    network[0].requires_grad_(False)
    before = [parameter.clone() for parameter in network.parameters()]
    batches = [(torch.randn(9, 4), torch.arange(9) % 3)]
    ProgressiveLayerPeeling(epochs=4).train(network, batches)
    moved = [not torch.equal(*pair) for pair in zip(before, network.parameters(), strict=True)]
    assert moved == [False, False, True, True, True, True]
    assert [parameter.requires_grad for parameter in network.parameters()] == moved
    network.requires_grad_(False)
    with pytest.raises(InputError, match="no parameters that can learn"):
        ProgressiveLayerPeeling(epochs=4).train(network, batches)
