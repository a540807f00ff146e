"""SMART's optimiser: the curvature that it steps by, and what its steps do."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from calibrant.posthoc.temperature.smart.damped import (
    OfRows,
    OfSoftBins,
    Position,
    derivatives,
    fit_damped,
    in_parts,
    make_curvature,
    of_brier,
    of_likelihood,
)
from calibrant.posthoc.temperature.smart.fitting import (
    Penalised,
    SoftBins,
    Tempered,
    fit_network,
    make_objective,
)
from calibrant.posthoc.temperature.smart.network import Ascending, TemperatureNetwork
from calibrant.predictions.rows import softmax, summarize
from calibrant.predictions.temperature import fit_temperature

BINS = SoftBins(15, 0.05)


@pytest.fixture
def rows(labelled_logits):
    logits, labels = labelled_logits(300, 4, seed=3)
    return summarize(logits, labels, curve="dense")


def start_of(rows, name: str, **more) -> tuple:
    """Return network, inputs, loss and curvature of a fit to `rows`."""
    reference = fit_temperature(rows).beta
    inputs = rows.margin[:, None] * reference
    inputs = (inputs - inputs.mean()) / inputs.std()
    objective = make_objective(name, bins=BINS, delta=1e-3, smoothing=0.05)
    terms = {"likelihood_weight": 0.0, "shrinkage": 0.0} | more
    loss = Penalised(rows, reference, objective, **terms)
    network = TemperatureNetwork.constant(1.0, inputs, 0)
    return network, inputs, loss, make_curvature(name, bins=BINS, delta=1e-3)


def slope_by_log_beta(function, beta) -> np.ndarray:
    return (function(beta * np.exp(1e-6)) - function(beta * np.exp(-1e-6))) / 2e-6


def moved_network(inputs, units: int = 5) -> TemperatureNetwork:
    network = TemperatureNetwork.constant(1.0, inputs, 0, hidden=units)
    more = np.random.default_rng(1).normal(size=network.size)
    return network.with_flat(network.flat() + 0.3 * more)


@pytest.mark.parametrize("width", [1, 3])
def test_slopes_of_the_network(width):
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(30, width))
    network = moved_network(inputs)
    _, tape = network.forward(inputs)
    slopes = tape.slopes(network)
    weights = rng.normal(size=(5, 30))
    wanted = np.stack([network.backward(tape, each) for each in weights])
    found = slopes.sums((weights * slopes.factor).T).T
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)
    single = np.stack([network.backward(tape, each) for each in np.eye(30)])
    share = rng.random(30)
    wanted = single.T @ (share[:, None] * single)
    np.testing.assert_allclose(slopes.squares(share * slopes.factor**2), wanted, atol=1e-12)


@pytest.mark.parametrize("kind", ["plain", "tied", "at the bends", "one row"])
def test_a_network_of_one_input_is_as_good_as_its_stretches(kind):
    rng = np.random.default_rng(2)
    inputs = {
        "plain": rng.normal(size=200),
        "tied": rng.integers(3, size=200).astype(float),
        "at the bends": rng.permutation(np.repeat(np.arange(10.0), 20)),
        "one row": np.array([0.7]),
    }[kind]
    network = moved_network(inputs[:, None], 8)
    w1, b1 = network.w1.copy(), network.b1.copy()
    w1[:2], b1[:2] = 0.0, [0.5, -0.5]  # one unit that is always active, and one that never is
    w1[2], b1[2] = 2.0, 40.0  # bends beyond all rows, on either side
    w1[3], b1[3] = -2.0, -40.0
    if kind == "at the bends":
        w1[4:7, 0], b1[4:7] = [1.0, -1.0, 2.0], [-3.0, 3.0, -18.0]
    network = TemperatureNetwork(w1, b1, network.w2, network.b2)
    temperatures, tape = network.forward(inputs[:, None])
    sorted_temperatures, stretches = network.forward(Ascending.of(inputs))
    np.testing.assert_allclose(sorted_temperatures, temperatures, rtol=1e-13)
    found, wanted = stretches.slopes(network), tape.slopes(network)
    np.testing.assert_allclose(found.factor, wanted.factor, rtol=1e-12)
    columns = rng.normal(size=(len(inputs), 3))
    np.testing.assert_allclose(found.sums(columns), wanted.sums(columns), atol=1e-11)
    weights = rng.random(len(inputs))
    np.testing.assert_allclose(found.squares(weights), wanted.squares(weights), atol=1e-11)


def test_curvatures_are_the_squares_of_what_the_objectives_are_made_of(rows, labelled_logits):
    logits, labels = labelled_logits(300, 4, seed=3)
    beta = np.random.default_rng(0).uniform(0.3, 1.2, size=300)
    at = Tempered(rows, beta)
    # The variance of z_k under softmax(beta z), and the squared slopes of all probabilities.
    probs = softmax(logits, beta)
    spread = (probs * logits**2).sum(axis=1) - (probs * logits).sum(axis=1) ** 2
    np.testing.assert_allclose(of_likelihood(at), beta**2 * spread, rtol=1e-9)
    moved = slope_by_log_beta(lambda b: softmax(logits, b), beta)
    wanted = 2 * (moved**2).sum(axis=1)
    np.testing.assert_allclose(of_brier(at), wanted, rtol=1e-5)
    # Of the soft bins: the slopes of s_b R_b, over N s_b phi_b.
    curvature = OfSoftBins(BINS, 1e-3)
    by_row, columns, sums = curvature(at)
    assert not by_row.any()
    correct = logits.argmax(axis=1) == labels

    def parts(b) -> np.ndarray:
        confidence = softmax(logits, b).max(axis=1)
        return BINS.memberships(confidence).weights * (confidence - correct)[:, None]

    mass = BINS.memberships(probs.max(axis=1)).weights.sum(axis=0)
    penalty = np.hypot(parts(beta).sum(axis=0) / mass, 1e-3)
    np.testing.assert_allclose(columns, slope_by_log_beta(parts, beta), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(curvature.weights(sums, 300), 1 / (300 * mass * penalty))


def test_the_curvature_of_the_likelihood_is_its_second_derivative_where_rows_are_honest(rows):
    """In the level of all temperatures alone, at their optimum, nothing is left out."""
    network, inputs, loss, _ = start_of(rows, "nll", shrinkage=30.0)
    parts = in_parts(inputs)
    at = Position.of(network, parts, loss)
    _, matrix = derivatives(at, parts, loss, OfRows(of_likelihood))
    last = np.eye(network.size)[-1]

    def slope(size: float) -> float:
        moved = network.with_flat(network.flat() + size * last)
        found, its_tape = moved.forward(inputs)
        return moved.backward(its_tape, loss(found)[1])[-1]

    wanted = (slope(1e-5) - slope(-1e-5)) / 2e-5
    np.testing.assert_allclose(matrix[-1, -1], wanted, rtol=1e-3)


@pytest.mark.parametrize("name", ["charbonnier", "soft-ece", "nll", "brier", "mse"])
def test_every_step_lowers_the_loss_and_a_few_do_as_much_as_many_of_lbfgs(rows, name):
    network, inputs, loss, curvature = start_of(rows, name, shrinkage=30.0)
    fit = partial(fit_damped, network, inputs, loss, curvature)
    values = [loss(network.forward(inputs)[0])[0], *(fit(steps).value for steps in range(1, 9))]
    # Where there is no more to gain, no step is taken.
    assert (np.diff(values) <= 0).all()
    assert values[1] < values[0]
    few = fit_network(network, inputs, loss, 6)
    assert values[6] < few.value
    assert fit(6).iterations <= 6


def test_a_start_without_slope_is_the_end(rows):
    """Held by a penalty at the optimum of one temperature, nothing moves."""
    network, inputs, loss, curvature = start_of(rows, "nll", shrinkage=1e12)
    found = fit_damped(network, inputs, loss, curvature, 20)
    assert found.converged
    np.testing.assert_allclose(found.network.forward(inputs)[0], 1.0, atol=1e-6)


@pytest.mark.parametrize("name", ["charbonnier", "brier"])
def test_parts_of_the_rows_add_up_to_all_of_them(rows, name, monkeypatch):
    more = {"likelihood_weight": 0.3, "shrinkage": 30.0}
    network, inputs, loss, curvature = start_of(rows, name, **more)
    network = fit_damped(network, inputs, loss, curvature, 3).network
    slopes = np.random.default_rng(0).normal(size=300)
    whole = derivatives_at(network, inputs, loss, curvature, slopes)
    np.testing.assert_allclose(whole[0], network.backward(network.forward(inputs)[1], slopes))
    monkeypatch.setattr("calibrant.posthoc.temperature.smart.fitting.PART_ROWS", 70)
    for kept in (1 << 16, 100):  # of many rows, nothing is kept from value to curvature
        monkeypatch.setattr("calibrant.posthoc.temperature.smart.fitting.KEPT_ROWS", kept)
        monkeypatch.setattr("calibrant.posthoc.temperature.smart.damped.KEPT_ROWS", kept)
        _, _, again, _ = start_of(rows, name, **more)
        assert len(again.parts) == 5
        found = derivatives_at(network, inputs, again, curvature, slopes)
        for one, wanted in zip(found, whole, strict=True):
            np.testing.assert_allclose(one, wanted, rtol=1e-9, atol=1e-14)


def derivatives_at(network, inputs, loss, curvature, by_temperature) -> tuple:
    parts = in_parts(inputs)
    at = Position.of(network, parts, loss)._replace(by_temperature=by_temperature)
    return derivatives(at, parts, loss, curvature)
