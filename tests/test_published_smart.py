"""SMART as its authors' code fits it: held to the same steps taken by torch, and to its numbers."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import calibrant as cb
from calibrant.posthoc.registry import METHODS
from calibrant.posthoc.temperature.parameterised import LayeredNetwork
from calibrant.posthoc.temperature.smart.fitting import objective_names
from calibrant.posthoc.temperature.smart.published import PublishedSMART


def steps_of_torch(
    rows: cb.Predictions, weights: np.ndarray, sizes: tuple[int, ...], epochs: int
) -> np.ndarray:
    """Return the weights after so many steps, written from the repository's description."""
    torch = pytest.importorskip("torch")
    logits = torch.tensor(np.asarray(rows.scores), dtype=torch.float64)
    labels = torch.tensor(np.asarray(rows.labels))
    top = torch.topk(logits, 2, dim=1).values
    margin = top[:, 0] - top[:, 1]
    inputs = ((margin - margin.mean()) / (margin.std() + 1e-8))[:, None]
    layers, start = [], 0
    for read, given in pairwise(sizes):
        layer = torch.nn.Linear(read, given, dtype=torch.float64)
        kernel = weights[start : start + read * given].reshape(given, read)
        start += read * given
        with torch.no_grad():
            layer.weight.copy_(torch.tensor(kernel))
            layer.bias.copy_(torch.tensor(weights[start : start + given]))
        start += given
        layers += [layer, torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers[:-1], torch.nn.Softplus())
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    centres = (torch.arange(15) + 0.5) / 15
    for _ in range(epochs):
        probs = torch.softmax(logits / (network(inputs) + 0.1), dim=1)
        confidence, predicted = probs.max(dim=1)
        right = (predicted == labels).double()
        kernel = torch.exp(-0.5 * (confidence[:, None] - centres) ** 2 / 0.05**2)
        kernel = kernel / (kernel.sum(dim=1, keepdim=True) + 1e-6)
        mass = kernel.sum(dim=0)
        gap = (kernel * (confidence - right)[:, None]).sum(dim=0) / (mass + 1e-6)
        loss = (((gap**2 + 1e-6).sqrt() - 1e-3) * mass / len(labels)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return np.concatenate([p.detach().numpy().ravel() for p in network.parameters()])


@pytest.fixture(scope="module")
def rows() -> cb.Predictions:
    """Overconfident rows of few and of many margins."""
    return cb.synthetic.margin_tempered(400, 5, seed=1).predictions


@pytest.mark.parametrize(("hidden_layers", "parameters"), [(1, 49), (2, 321)])
def test_the_steps_are_those_that_torch_takes(rows, hidden_layers, parameters):
    sizes = (1, *[16] * hidden_layers, 1)
    start = LayeredNetwork.drawn(sizes, np.random.default_rng(3))
    expected = steps_of_torch(rows, start.weights, sizes, epochs=60)
    fitted = PublishedSMART(hidden_layers=hidden_layers, max_epochs=60, seed=3)
    found = fitted.fit_predictions(rows).network_
    assert fitted.n_parameters == parameters
    # 1e-6 in the denominators of the repository's objective is left out of ours.
    np.testing.assert_allclose(found, expected, atol=2e-4)
    assert np.abs(found - start.weights).max() > 0.1


def test_patience_ends_the_fit_after_so_many_steps_without_a_lower_loss(rows):
    fitted = PublishedSMART(patience=7, min_delta=10.0).fit_predictions(rows)
    # The first loss is lower than infinity; the seven after it aren't lower by ten.
    assert fitted.fit_report_.iterations == 8
    assert fitted.fit_report_.converged


def test_the_same_seed_gives_the_same_fit_and_another_one_another(rows):
    one, same, other = (
        PublishedSMART(seed=seed, max_epochs=20).fit_predictions(rows).network_
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.allclose(one, other)


@pytest.mark.parametrize("objective", [n for n in objective_names() if n != "charbonnier-eq6"])
@pytest.mark.parametrize("indicator", ["margin", "entropy", "logits"])
def test_objectives_and_indicators_keep_the_predicted_class(rows, objective, indicator):
    fitted = PublishedSMART(objective=objective, indicator=indicator, max_epochs=3)
    probs = fitted.fit_predictions(rows).predict_proba(rows.scores)
    np.testing.assert_array_equal(probs.argmax(axis=1), np.argmax(rows.scores, axis=1))


def test_it_goes_by_name_and_is_not_among_all_methods(rows, tmp_path):
    assert METHODS.named("smart:published") is PublishedSMART
    assert "smart:published" not in list(METHODS)
    fitted = cb.make_calibrator("smart:published", max_epochs=5).fit_predictions(rows)
    fitted.save(tmp_path / "map.safetensors")
    again = cb.load(tmp_path / "map.safetensors")
    np.testing.assert_array_equal(
        again.predict_proba(rows.scores), fitted.predict_proba(rows.scores)
    )


def test_a_network_of_the_paper_has_the_papers_numbers():
    folder = Path(__file__).resolve().parents[2] / "shared/data/predictions"
    if not folder.is_dir():
        pytest.skip("the predictions of CIFAR-10's ResNet-50 are not here")
    fit, test = (
        cb.read_predictions(folder / f"cifar10-resnet50-cross-entropy-{part}.npz")
        for part in ("val", "test")
    )
    fitted = PublishedSMART().fit_predictions(fit)
    found = cb.evaluate(
        fitted.apply_predictions(test), metrics=["ece", "adaece", "nll"], resamples=20
    )
    # The repository's own runs: .76 +- .04 and .94 +- .07 percent, .1993; the paper: .76 +- .02.
    assert found["ece"].value < 0.0095
    assert found["adaece"].value < 0.012
    assert found["nll"].value == pytest.approx(0.200, abs=0.006)
