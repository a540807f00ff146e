"""The likelihood of linear maps: value and derivatives as written out, and its optimum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from calibrant.core.errors import ConvergenceWarning
from calibrant.posthoc.linear.likelihood import LinearLikelihood
from calibrant.posthoc.linear.optimum import fit_linear
from calibrant.posthoc.linear.vector import StructuredVectorScaling

BETA = 0.7
both_shapes = pytest.mark.parametrize("shape", [(4,), (4, 4)])


def drawn(shape, rows=50, seed=0):
    rng = np.random.default_rng(seed)
    logits, labels = rng.normal(size=(rows, 4)), rng.integers(4, size=rows)
    change, bias = rng.normal(scale=0.3, size=shape), rng.normal(size=4)
    return LinearLikelihood(logits, labels, BETA, square=len(shape) == 2), change, bias


def written_out(rows: LinearLikelihood, change, bias) -> float:
    centred = BETA * (rows.logits - rows.logits.mean(axis=1, keepdims=True))
    if rows.inputs == "log-probabilities":
        centred = log_softmax(BETA * rows.logits, axis=1)
    matrix = np.diag(change) if change.ndim == 1 else change
    scores = centred + centred @ matrix.T + bias
    return -log_softmax(scores, 1)[np.arange(len(scores)), rows.labels].sum()


def written_out_one(rows: LinearLikelihood, row: int, change, bias) -> float:
    index = slice(row, row + 1)
    one = replace(rows, logits=rows.logits[index], labels=rows.labels[index])
    return written_out(one, change, bias)


@both_shapes
@pytest.mark.parametrize("inputs", ["centred", "log-probabilities"])
def test_value_and_gradient(shape, inputs):
    rows, change, bias = drawn(shape)
    rows = replace(rows, inputs=inputs)
    value, by_change, by_bias = rows.nll(change, bias)
    np.testing.assert_allclose(value, written_out(rows, change, bias), rtol=1e-12)
    step = 1e-6
    for place in np.ndindex(shape):
        away = np.zeros(shape)
        away[place] = step
        up, down = (written_out(rows, change + s * away, bias) for s in (1, -1))
        np.testing.assert_allclose(by_change[place], (up - down) / (2 * step), atol=1e-6)
    for k in range(4):
        away = step * np.eye(4)[k]
        up, down = (written_out(rows, change, bias + s * away) for s in (1, -1))
        np.testing.assert_allclose(by_bias[k], (up - down) / (2 * step), atol=1e-6)


def test_curvature_is_the_slope_of_the_gradient():
    rows, change, bias = drawn((4,))
    by_change, by_bias, mixed = rows.curvature(change, bias)
    step = 1e-5
    for k in range(4):
        away = step * np.eye(4)[k]
        up, down = (rows.nll(change + s * away, bias) for s in (1, -1))
        np.testing.assert_allclose(by_change[k], (up[1] - down[1])[k] / (2 * step), rtol=1e-5)
        np.testing.assert_allclose(mixed[k], (up[2] - down[2])[k] / (2 * step), rtol=1e-5)
        up, down = (rows.nll(change, bias + s * away)[2][k] for s in (1, -1))
        np.testing.assert_allclose(by_bias[k], (up - down) / (2 * step), rtol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_curvature_of_a_matrix_is_the_slope_of_its_gradient(weighted):
    rows, change, bias = drawn((4, 4))
    rng = np.random.default_rng(1)
    if weighted:
        rows = replace(rows, weights=rng.uniform(0, 3, 50))
    probs = np.empty((50, 4), dtype=np.float32)
    rows.nll(change, bias, probs)
    bend, step = rows.bend(probs), 1e-5
    whole = np.empty((20, 20))
    for place in range(20):
        away = np.eye(20)[place].reshape(4, 5)
        up, down = (
            rows.nll(change + s * step * away[:, :-1], bias + s * step * away[:, -1])
            for s in (1, -1)
        )
        slope = np.column_stack([up[1] - down[1], up[2] - down[2]]) / (2 * step * rows.total)
        np.testing.assert_allclose(bend.times(away), slope, atol=1e-6)
        whole[place] = slope.ravel()
    diagonal = [5 * k + k for k in range(4)]
    np.testing.assert_allclose(bend.diagonal(), whole[np.ix_(diagonal, diagonal)], atol=1e-6)
    # The product of the factors has the curvature's trace, or it would be of another scale.
    by_class, by_input = bend.factors()
    np.testing.assert_allclose(np.trace(by_class) * np.trace(by_input), np.trace(whole), rtol=1e-5)


@pytest.mark.parametrize("free_diagonal", [False, True])
def test_a_matrix_has_the_optimum_that_lbfgs_finds_and_its_gap_bounds_what_is_missing(
    free_diagonal,
):
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(400, 6)) @ rng.normal(size=(6, 6))
    rows = LinearLikelihood(logits, rng.integers(6, size=400), BETA, square=True)
    pull = np.full((6, 6), 0.1)
    if free_diagonal:
        np.fill_diagonal(pull, 1 / 400)
    penalties = np.concatenate([pull.ravel(), np.full(6, 0.1)])

    def objective(vector):
        value, by_change, by_bias = rows.nll(vector[:36].reshape(6, 6), vector[36:])
        gradient = np.concatenate([by_change.ravel(), by_bias]) / 400 + 2 * penalties * vector
        return value / 400 + penalties @ vector**2, gradient

    options = {"gtol": 1e-10, "ftol": 1e-16, "maxiter": 5000}
    least = minimize(objective, np.zeros(42), jac=True, method="L-BFGS-B", options=options)
    found = fit_linear(rows, penalties, 100)
    assert found.converged
    assert found.gap <= 1e-9
    assert found.value <= least.fun + 1e-9
    np.testing.assert_allclose(np.append(found.change, found.bias), least.x, atol=1e-4)
    for steps in (1, 2, 3):
        early = fit_linear(rows, penalties, steps, near_enough=(1e-12, 0.0))
        assert 0 <= early.value - least.fun + 1e-12 <= early.gap + 2e-12


@both_shapes
def test_many_chunks_are_one(shape):
    rows, change, bias = drawn(shape, rows=40_000)
    np.testing.assert_allclose(
        rows.nll(change, bias)[0], written_out(rows, change, bias), rtol=1e-11
    )


@both_shapes
def test_gradient_is_zero_at_the_optimum_even_of_a_class_that_is_never_true(shape):
    rng = np.random.default_rng(3)
    logits = rng.normal(scale=2, size=(3000, 4)) + np.array([0, 0, 0, -12.0])
    labels = rng.integers(3, size=3000)
    rows = LinearLikelihood(logits, labels, BETA, square=len(shape) == 2)
    penalties = np.full(np.prod(shape) + 4, 1e-3)
    found = fit_linear(rows, penalties, 500)
    assert found.converged
    value, by_change, by_bias = rows.nll(found.change, found.bias)
    parameters = np.concatenate([found.change.ravel(), found.bias])
    gradient = np.concatenate([by_change.ravel(), by_bias]) / 3000 + 2e-3 * parameters
    assert np.abs(gradient).max() < 1e-5
    np.testing.assert_allclose(found.value, value / 3000 + 1e-3 * parameters @ parameters)


def test_too_few_steps_are_said():
    rows, _, _ = drawn((4,), rows=500)
    found = fit_linear(rows, np.full(8, 1e-4), 1)
    with pytest.warns(ConvergenceWarning, match="method 'vector' stopped after 1 steps.*nats"):
        assert not found.report("vector", 500, ()).converged


def test_a_fit_that_has_ended_says_nothing_of_its_optimiser():
    rows, _, _ = drawn((4, 4), rows=500)
    assert fit_linear(rows, np.full(20, 1e-2), 500).report("ridge", 500, ()).notes == ()


@both_shapes
def test_a_fit_that_begins_at_the_optimum_stays_there(shape):
    rows, _, _ = drawn(shape, rows=500)
    penalties = np.full(np.prod(shape) + 4, 1e-2)
    found = fit_linear(rows, penalties, 500)
    again = fit_linear(rows, penalties, 500, start=found)
    assert again.iterations <= 1 < found.iterations
    np.testing.assert_allclose(again.change, found.change, atol=1e-6)
    np.testing.assert_allclose(again.bias, found.bias, atol=1e-6)


@both_shapes
def test_losses_of_the_rows_add_up_and_those_of_unlikely_labels_stay_finite(shape):
    rows, change, bias = drawn(shape)
    losses = rows.losses(change, bias)
    for i in range(5):
        np.testing.assert_allclose(losses[i], written_out_one(rows, i, change, bias), rtol=1e-12)
    np.testing.assert_allclose(losses.sum(), rows.nll(change, bias)[0], rtol=1e-12)
    far = replace(rows, logits=1e4 * rows.logits)
    assert np.isfinite(far.losses(change, bias)).all()


@both_shapes
def test_inputs_as_they_are_and_some_rows(shape):
    rows, change, bias = drawn(shape)
    centred = rows.logits - rows.logits.mean(axis=1, keepdims=True)
    as_they_are = replace(rows, logits=centred, inputs="given")
    np.testing.assert_allclose(as_they_are.nll(change, bias)[1], rows.nll(change, bias)[1])
    moved = replace(rows, logits=rows.logits + 1, inputs="given")
    assert abs(moved.nll(change, bias)[0] - rows.nll(change, bias)[0]) > 0.1
    some = np.arange(50) % 3 == 0
    parts = [rows.take(some).nll(change, bias)[0], rows.take(~some).nll(change, bias)[0]]
    np.testing.assert_allclose(sum(parts), rows.nll(change, bias)[0])


@pytest.mark.parametrize(
    ("change", "bias", "parts"),
    [
        (0.3, 0.0, {"weight", "beta"}),
        (0.3, 2.0, {"weight", "beta", "small_bias"}),
        (0.3, 40.0, {"weight", "beta", "bias"}),  # e^40 would leave the others no digits
        (12.0, 0.0, {"weight", "beta", "bias"}),  # every score of some rows is below -15
        (-1.2, 0.0, {"weight", "beta", "bias"}),  # what is below 0 turns up above it
    ],
)
@pytest.mark.parametrize("scale", [1.0, 60.0])
def test_a_map_is_exact_with_and_without_its_largest_score_taken_off(change, bias, parts, scale):
    rng = np.random.default_rng(2)
    logits = (scale * rng.normal(size=(200, 4)) + 5).astype(np.float32)
    logits[0] = 5.0
    known = rng.normal(size=(200, 4))
    svs = StructuredVectorScaling().fit(known, (known + rng.gumbel(size=(200, 4))).argmax(axis=1))
    svs.beta_ = BETA
    svs.change_ = np.array([0.0, change, 0.1, change / 2])
    svs.bias_ = np.array([0.0, bias, -bias, 0.1 * (bias != 0)])
    assert set(svs.map_arrays()) == parts
    x = log_softmax(BETA * logits.astype(np.float64), axis=1)
    wanted = softmax(x * (1 + svs.change_) + svs.bias_, axis=1)
    np.testing.assert_allclose(
        svs.predict_proba(logits.astype(np.float64)), wanted, rtol=1e-11, atol=1e-300
    )
    found = svs.predict_proba(logits)
    # Rounding a score of 250 to float32 costs its exponential 1e-5 of itself.
    np.testing.assert_allclose(found, wanted, rtol=2e-4 if scale > 1 else 2e-5, atol=1e-31)
    hidden = logits.copy()
    hidden[:, 2] = -np.inf
    assert (svs.predict_proba(hidden)[:, 2] == 0).all()
