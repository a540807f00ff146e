"""SMART: its network, its objectives and their gradients, its start, its limits."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.core.errors import (
    BoundaryWarning,
    CalibrationWarning,
    ImproperObjectiveWarning,
    InputError,
)
from calibrant.evaluation.evaluate import evaluate
from calibrant.metrics.binned import expected_calibration_error
from calibrant.posthoc.temperature.scaling import TemperatureScaling
from calibrant.posthoc.temperature.smart import calibrator as smart_module
from calibrant.posthoc.temperature.smart.calibrator import (
    INDICATORS,
    SMART,
    indicator_values,
)
from calibrant.posthoc.temperature.smart.fitting import (
    LARGEST_RELATIVE_TEMPERATURE,
    SoftBinnedCalibration,
    SoftBins,
    Tempered,
    charbonnier_eq6,
    make_objective,
    objective_names,
)
from calibrant.posthoc.temperature.smart.network import TEMPERATURE_FLOOR, TemperatureNetwork
from calibrant.predictions.rows import softmax, summarize

OBJECTIVES = objective_names()


def fitted(logits, labels, **arguments) -> SMART:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        return SMART(**arguments).fit(logits, labels)


def curve_objective(name: str):
    return at_its_curves(make_objective(name, bins=SoftBins(15, 0.05), delta=1e-3, smoothing=0.05))


def at_its_curves(objective):
    """Return an objective as a function of rows and beta alone."""
    return lambda rows, beta: objective(Tempered(rows, beta))


@pytest.fixture
def training_losses(monkeypatch) -> list:
    """Every (network, inputs, loss) that a fit begins with, and the fit's own outcome."""
    seen = []
    genuine = smart_module.fit_damped

    def spy(network, inputs, loss, *rest, **named):
        outcome = genuine(network, inputs, loss, *rest, **named)
        seen.append((network, inputs, loss, outcome))
        return outcome

    monkeypatch.setattr(smart_module, "fit_damped", spy)
    return seen


# --- objectives


def naive_objective(name: str, logits, labels, beta) -> float:
    """Each objective from its definition, on whole rows of probabilities."""
    n, classes = logits.shape
    probs = softmax(logits.astype(np.float64), beta)
    onehot = np.eye(classes)[labels]
    if name == "nll":
        return float(-np.log(probs[np.arange(n), labels]).mean())
    if name == "label-smoothing":
        return float(-((0.95 * onehot + 0.05 / classes) * np.log(probs)).sum(axis=1).mean())
    if name in ("brier", "mse"):
        value = float(((probs - onehot) ** 2).sum(axis=1).mean())
        return value / classes if name == "mse" else value
    confidence, hit = probs.max(axis=1), (logits.argmax(axis=1) == labels).astype(float)
    centres = (np.arange(15) + 0.5) / 15
    weights = softmax(-((confidence[:, None] - centres) ** 2) / (2 * 0.05**2))
    if name == "charbonnier-eq6":
        penalty = np.sqrt((hit[:, None] - centres) ** 2 + 1e-6)
        return float((weights * penalty).sum(axis=1).mean())
    delta = 1e-3 if name == "charbonnier" else 0.0
    total = 0.0
    for b in range(15):
        mass = weights[:, b].sum()
        residual = (weights[:, b] * (confidence - hit)).sum() / mass
        total += mass / n * (np.sqrt(residual**2 + delta**2) - delta)
    return total


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("classes", [2, 6])
def test_objectives_are_what_they_are_defined_to_be(name, classes, labelled_logits):
    logits, labels = labelled_logits(300, classes, seed=1)
    beta = np.random.default_rng(0).uniform(0.2, 1.5, size=300)
    value, _ = curve_objective(name)(summarize(logits, labels), beta)
    np.testing.assert_allclose(value, naive_objective(name, logits, labels, beta), rtol=1e-10)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("classes", [2, 6])
def test_gradients_of_objectives(name, classes, labelled_logits):
    logits, labels = labelled_logits(40, classes, seed=2)
    rows, objective = summarize(logits, labels), curve_objective(name)
    beta = np.random.default_rng(1).uniform(0.2, 1.5, size=40)
    _, gradient = objective(rows, beta)
    for i in range(40):
        step = np.zeros(40)
        step[i] = 1e-5
        change = (objective(rows, beta + step)[0] - objective(rows, beta - step)[0]) / 2e-5
        np.testing.assert_allclose(gradient[i], change, rtol=1e-4, atol=2e-8, err_msg=f"row {i}")


@given(st.integers(1, 30), st.floats(1e-3, 1.0))
def test_soft_memberships_sum_to_one(n_bins, width):
    confidence = np.linspace(0, 1, 50)
    found = SoftBins(n_bins, width).memberships(confidence)
    assert found.weights.shape == (50, n_bins)
    np.testing.assert_allclose(found.weights.sum(axis=1), 1)
    np.testing.assert_allclose(found.times(np.ones((1, n_bins)))[1], 0, atol=1e-6 / width)


@pytest.mark.parametrize("n_bins", [1, 15, 40])
@pytest.mark.parametrize("width", [0.005, 0.0317, 0.05, 3.0])
def test_soft_memberships_are_gaussian(n_bins, width):
    confidence = np.append(np.random.default_rng(0).random(500), [0.0, 1.0])
    bins = SoftBins(n_bins, width)
    logs = -((confidence[:, None] - bins.centres) ** 2) / (2 * width**2)
    wanted = np.exp(logs - logs.max(axis=1, keepdims=True))
    wanted /= wanted.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(bins.memberships(confidence).weights, wanted, atol=1e-13)


@pytest.mark.parametrize("width", [0.05, 0.3])
def test_slope_of_soft_memberships(width):
    bins, confidence = SoftBins(15, width), np.linspace(0, 1, 50)
    values = np.random.default_rng(0).normal(size=15)
    up, down = (bins.memberships(confidence + s).weights @ values for s in (1e-6, -1e-6))
    found = bins.memberships(confidence).times(values[None])[1][0]
    np.testing.assert_allclose(found, (up - down) / 2e-6, rtol=1e-5, atol=1e-6)


def test_soft_bins_that_stay_empty_do_no_harm():
    rows = summarize(np.array([[9.0, 0.0], [8.0, 0.0], [0.0, 9.0]]), [0, 1, 1])
    for width in (1e-3, 1e-2):
        for delta in (0.0, 1e-3):
            value, gradient = at_its_curves(SoftBinnedCalibration(SoftBins(15, width), delta))(
                rows, np.ones(3)
            )
            assert np.isfinite(value)
            assert np.isfinite(gradient).all()


def test_a_perfectly_calibrated_soft_bin_costs_nothing():
    # Two rows of confidence 1/2, one of them right.
    rows = summarize(np.zeros((2, 2)), [0, 1])
    value, gradient = at_its_curves(SoftBinnedCalibration(SoftBins(15, 0.05), 1e-3))(
        rows, np.ones(2)
    )
    assert abs(value) < 1e-12
    np.testing.assert_allclose(gradient, 0, atol=1e-12)


def test_equation_6_to_the_letter_wants_certainty():
    # Not a proper score: with P(right) = 0.7 it falls as confidence rises beyond 0.7.
    logits = np.tile([1.0, 0.0], (10, 1))
    rows = summarize(logits, [0] * 7 + [1] * 3)
    objective = at_its_curves(charbonnier_eq6(SoftBins(15, 0.05), 1e-3))
    at = {c: objective(rows, np.full(10, np.log(c / (1 - c))))[0] for c in (0.7, 0.9, 0.99)}
    assert at[0.7] > at[0.9] > at[0.99]


# --- the network


@pytest.mark.parametrize(("width", "parameters"), [(1, 49), (10, 16 * 10 + 33)])
def test_number_of_parameters(width, parameters):
    network = TemperatureNetwork.constant(1.0, np.random.default_rng(0).normal(size=(9, width)), 0)
    assert network.size == len(network.flat()) == parameters
    moved = network.with_flat(np.arange(float(parameters)))
    np.testing.assert_array_equal(moved.flat(), np.arange(parameters))


@pytest.mark.parametrize("width", [1, 3])
def test_gradient_of_the_network(width):
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=(30, width))
    network = TemperatureNetwork.constant(1.0, inputs, 0, hidden=5)
    network = network.with_flat(network.flat() + 0.3 * rng.normal(size=network.size))
    weights = rng.normal(size=30)  # a linear loss
    temperatures, tape = network.forward(inputs)
    assert temperatures.min() > TEMPERATURE_FLOOR
    gradient, start = network.backward(tape, weights), network.flat()
    for i in range(network.size):
        step = np.zeros(network.size)
        step[i] = 1e-6
        up, down = (
            network.with_flat(start + s).forward(inputs)[0] @ weights for s in (step, -step)
        )
        np.testing.assert_allclose(gradient[i], (up - down) / 2e-6, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("width", [1, 4])
def test_no_hidden_unit_is_dead_at_the_start(width):
    inputs = np.random.default_rng(4).normal(size=(200, width))
    for seed in range(5):
        network = TemperatureNetwork.constant(2.5, inputs, seed)
        temperatures, tape = network.forward(inputs)
        np.testing.assert_allclose(temperatures, 2.5)
        active = tape.active.mean(axis=0)
        assert active.max() > 0.5
        assert (active > 0).mean() >= 15 / 16


def test_extreme_weights_overflow_nowhere():
    network = TemperatureNetwork.constant(1.0, np.zeros((1, 1)), 0)
    for scale in (1e5, -1e5):
        moved = network.with_flat(np.full(network.size, scale))
        temperatures, tape = moved.forward(np.array([[3.0], [-3.0]]))
        assert (temperatures >= TEMPERATURE_FLOOR).all()
        assert np.isfinite(moved.backward(tape, np.ones(2))).all()


# --- the fit


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradient_of_the_whole_training_loss(name, labelled_logits, training_losses):
    logits, labels = labelled_logits(60, 4, seed=5)
    fitted(logits, labels, objective=name)
    network, inputs, loss, _ = training_losses[-1]
    start = network.flat() + 0.2 * np.random.default_rng(0).normal(size=network.size)

    def value_and_gradient(vector):
        candidate = network.with_flat(vector)
        temperatures, tape = candidate.forward(inputs)
        value, by_temperature = loss(temperatures)
        return value, candidate.backward(tape, by_temperature)

    _, gradient = value_and_gradient(start)
    assert np.abs(gradient).max() > 1e-5
    for i in range(network.size):
        step = np.zeros(network.size)
        step[i] = 1e-6
        change = (value_and_gradient(start + step)[0] - value_and_gradient(start - step)[0]) / 2e-6
        np.testing.assert_allclose(gradient[i], change, rtol=2e-4, atol=1e-7, err_msg=str(i))


def test_the_start_is_temperature_scaling_exactly(overconfident, training_losses):
    logits, labels = overconfident
    calibrator = fitted(logits, labels)
    network, inputs, _, _ = training_losses[-1]
    np.testing.assert_allclose(network.forward(inputs)[0], 1.0, rtol=1e-15)
    assert calibrator.reference_ == TemperatureScaling().fit(logits, labels).beta_


def test_the_best_state_is_kept(overconfident, training_losses, monkeypatch):
    logits, labels = overconfident
    seen = []
    genuine = smart_module.Penalised.__call__

    def spy(self, temperatures, *tempered):
        value, gradient = genuine(self, temperatures, *tempered)
        seen.append((value, temperatures.copy()))
        return value, gradient

    monkeypatch.setattr(smart_module.Penalised, "__call__", spy)
    for objective in ("charbonnier", "charbonnier-eq6", "soft-ece"):
        seen.clear()
        calibrator = fitted(logits, labels, objective=objective)
        lowest, temperatures = min(seen, key=lambda pair: pair[0])
        assert len(seen) > 5
        assert calibrator.fit_report_.value == lowest
        assert calibrator.fit_report_.value <= seen[0][0]
        # The weights are those of the best state, not of the last one.
        relative = calibrator.temperatures(logits) * calibrator.reference_
        np.testing.assert_allclose(
            relative, np.minimum(temperatures, LARGEST_RELATIVE_TEMPERATURE), rtol=1e-12
        )


def test_an_optimiser_that_ends_badly_does_not_spoil_the_fit(overconfident, monkeypatch):
    # Whatever the last state is, the best one seen is returned.
    from scipy import optimize

    genuine, called = optimize.minimize, []

    def ends_badly(function, start, **options):
        called.append(len(start))
        found = genuine(function, start, **options)
        found.x = np.full_like(found.x, 7.0)
        function(found.x)
        return found

    # So many weights are left to SciPy.
    large = {"indicator": "logits", "hidden": 64}
    expected = fitted(*overconfident, **large).predict_proba(overconfident[0])
    monkeypatch.setattr(optimize, "minimize", ends_badly)
    found = fitted(*overconfident, **large).predict_proba(overconfident[0])
    np.testing.assert_array_equal(found, expected)
    assert called == [449]


def test_the_same_seed_gives_the_same_fit(overconfident):
    logits, labels = overconfident
    first, second, other = (fitted(logits, labels, seed=s) for s in (3, 3, 4))
    for name in first.state_names():
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    assert not np.array_equal(first.w2_, other.w2_)
    np.testing.assert_allclose(first.predict_proba(logits), other.predict_proba(logits), atol=0.1)


@pytest.mark.parametrize("scale", [2.0**-10, 4.0, 2.0**20])
def test_the_scale_of_the_logits_does_not_matter(scale, overconfident):
    # Powers of two are exact, so the steps of the fit are the same ones.
    logits, labels = overconfident
    plain, scaled = fitted(logits, labels), fitted(scale * logits, labels)
    np.testing.assert_allclose(
        scaled.predict_proba(scale * logits), plain.predict_proba(logits), atol=1e-5
    )
    np.testing.assert_allclose(
        scaled.temperatures(scale * logits), scale * plain.temperatures(logits), rtol=1e-3
    )


@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_rounding_of_scaled_logits_does_not_matter(scale, overconfident):
    logits, labels = overconfident
    plain = fitted(logits, labels).predict_proba(logits)
    scaled = fitted(scale * logits, labels).predict_proba(scale * logits)
    np.testing.assert_allclose(scaled, plain, atol=1e-5)


@pytest.mark.parametrize("indicator", [i for i in INDICATORS if i != "logits"])
def test_outside_the_range_seen_the_temperature_stays(indicator, labelled_logits):
    logits, labels = labelled_logits(400, 5, seed=6)
    calibrator = fitted(logits, labels, indicator=indicator)
    values = indicator_values(indicator, logits)[:, 0]
    far = np.array([[1e6, 0, 0, 0, 0.0], [1e9, 0, 0, 0, 0]])
    near = np.full((2, 5), 0.0)
    for rows in (far, near):
        assert np.ptp(calibrator.temperatures(rows)) < 1e-9 * calibrator.temperatures(rows)[0]
    if indicator == "margin":
        top = logits[values.argmax()][None]
        np.testing.assert_allclose(calibrator.temperatures(far)[0], calibrator.temperatures(top))
        bottom = logits[values.argmin()][None]
        np.testing.assert_allclose(
            calibrator.temperatures(near)[0], calibrator.temperatures(bottom)
        )


@pytest.mark.parametrize("indicator", INDICATORS)
@pytest.mark.parametrize("classes", [2, 7, 90])
def test_every_indicator_fits_and_keeps_the_predicted_class(indicator, classes, labelled_logits):
    logits, labels = labelled_logits(500, classes, seed=7)
    calibrator = fitted(logits, labels, indicator=indicator)
    assert calibrator.n_parameters == (49 if indicator != "logits" else 16 * classes + 33)
    probs = calibrator.predict_proba(logits)
    np.testing.assert_array_equal(probs.argmax(axis=1), logits.argmax(axis=1))
    np.testing.assert_allclose(probs.sum(axis=1), 1)
    report = calibrator.fit_report_
    assert report.iterations >= 1
    assert report.objective == "charbonnier"
    tensor = torch.tensor(logits)
    np.testing.assert_allclose(calibrator.predict_proba(tensor).numpy(), probs, atol=1e-6)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("classes", [2, 7, 90])
def test_every_objective_fits_and_keeps_the_predicted_class(objective, classes, labelled_logits):
    logits, labels = labelled_logits(500, classes, seed=8)
    calibrator = fitted(logits, labels, objective=objective)
    probs = calibrator.predict_proba(logits)
    np.testing.assert_array_equal(probs.argmax(axis=1), logits.argmax(axis=1))
    relative = calibrator.temperatures(logits) * calibrator.reference_
    assert relative.min() >= TEMPERATURE_FLOOR
    assert relative.max() <= LARGEST_RELATIVE_TEMPERATURE * (1 + 1e-12)
    assert calibrator.fit_report_.objective == objective


def test_equation_6_warns_and_the_others_do_not(overconfident):
    logits, labels = overconfident
    with pytest.warns(ImproperObjectiveWarning, match="not a proper score") as caught:
        SMART(objective="charbonnier-eq6").fit(logits, labels)
    assert len(caught) == 1
    for objective in OBJECTIVES[:-1]:
        SMART(objective=objective).fit(logits, labels)  # a warning would be an error


def test_the_literal_equation_6_damages_calibration(labelled_logits):
    logits, labels = labelled_logits(3000, 5, seed=9)
    alone = {"likelihood_weight": 0.0, "shrinkage": 0.0, "max_iterations": 200}
    error = {
        objective: expected_calibration_error(
            fitted(logits, labels, objective=objective, **alone).predict_proba(logits), labels
        )
        for objective in ("charbonnier", "charbonnier-eq6")
    }
    before = expected_calibration_error(softmax(logits), labels)
    assert error["charbonnier"] < 0.02 < before < error["charbonnier-eq6"] + 0.1
    assert error["charbonnier-eq6"] > 2 * error["charbonnier"]


def test_a_margin_dependent_miscalibration_is_undone(labelled_logits):
    # Rows of large margin are overconfident, the others are not: one temperature can't do it.
    logits, labels = labelled_logits(20_000, 5, temperature=1.0, seed=10)
    margin = np.diff(np.sort(logits, axis=1)[:, -2:], axis=1)
    bent = logits * np.where(margin > 1.5, 3.0, 1.0)
    fit, test = slice(0, 10_000), slice(10_000, None)
    error = {
        name: expected_calibration_error(
            c.fit(bent[fit], labels[fit]).predict_proba(bent[test]), labels[test]
        )
        for name, c in (("temperature", TemperatureScaling()), ("smart", SMART()))
    }
    assert error["temperature"] > 0.03
    assert error["smart"] < 0.6 * error["temperature"]


def test_a_strong_shrinkage_is_temperature_scaling(overconfident):
    logits, labels = overconfident
    held = fitted(logits, labels, shrinkage=1e9)
    np.testing.assert_allclose(
        held.temperatures(logits), TemperatureScaling().fit(logits, labels).temperature_, rtol=1e-4
    )


@pytest.mark.parametrize("objective", ["charbonnier", "nll", "brier"])
def test_a_table_and_the_rows_fit_alike(objective, labelled_logits):
    logits, labels = labelled_logits(3000, 100, seed=11)
    exact = summarize(logits, labels, curve="dense")
    reference = TemperatureScaling().fit(logits, labels).beta_
    found = []
    for rows in (exact, exact.tabulated(reference)):
        calibrator = SMART(objective=objective)
        calibrator.n_classes_ = 100
        calibrator.fit_rows(rows)
        probs = calibrator.predict_proba(logits)
        found.append((expected_calibration_error(probs, labels), calibrator.fit_report_.value))
    assert abs(found[0][0] - found[1][0]) < 0.003
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=2e-2)


def test_many_classes_measure_as_the_exact_fit_does(labelled_logits):
    """Within a tenth of the bootstrap interval of ECE and NLL.

    Twenty steps on a broken line may part two fits that begin 1e-6 apart, so it is the median of
    five data sets that has to hold.
    """
    apart = []
    for seed in range(5):
        logits, labels = labelled_logits(8000, 200, seed=seed, spread=3.0)
        logits = logits.astype(np.float32)
        fit, test = slice(4000), slice(4000, None)
        exact = summarize(logits[fit].astype(np.float64), labels[fit], curve="dense")
        ours, wanted = (
            evaluate(
                calibrator.predict_proba(logits[test]),
                labels[test],
                metrics=["ece", "nll"],
                resamples=100,
            )
            for calibrator in (fitted(logits[fit], labels[fit]), SMART().fit_rows(exact))
        )
        apart.append(
            [
                abs(ours[name].value - wanted[name].value) / (wanted[name].high - wanted[name].low)
                for name in ("ece", "nll")
            ]
        )
    assert (np.median(apart, axis=0) < 0.1).all(), apart


def test_shards_fit_as_the_whole_does(overconfident):
    logits, labels = overconfident
    whole, sharded = fitted(logits, labels), SMART()
    parts = [summarize(z, y) for z, y in zip(np.split(logits, 4), np.split(labels, 4), strict=True)]
    sharded.fit_rows(parts[0].concatenate(parts))
    np.testing.assert_array_equal(sharded.predict_proba(logits), whole.predict_proba(logits))
    with pytest.raises(InputError, match="margin only"):
        SMART(indicator="entropy").fit_rows(parts[0])


# --- small and degenerate sets


@settings(max_examples=40)
@given(
    st.integers(1, 6),
    st.integers(2, 5),
    st.integers(0, 10_000),
    st.sampled_from(OBJECTIVES),
    st.sampled_from(list(INDICATORS)),
    st.sampled_from([0.0, 1e-3, 1.0, 1e4]),
)
def test_small_sets_give_bounded_temperatures(rows, classes, seed, objective, indicator, scale):
    rng = np.random.default_rng(seed)
    logits, labels = scale * rng.normal(size=(rows, classes)), rng.integers(classes, size=rows)
    calibrator = fitted(logits, labels, objective=objective, indicator=indicator)
    new = np.vstack([logits, 1e3 * rng.normal(size=(20, classes)), np.zeros((1, classes))])
    relative = calibrator.temperatures(new) * calibrator.reference_
    assert (relative >= TEMPERATURE_FLOOR * (1 - 1e-12)).all()
    assert (relative <= LARGEST_RELATIVE_TEMPERATURE * (1 + 1e-12)).all()
    probs = calibrator.predict_proba(new)
    np.testing.assert_allclose(probs.sum(axis=1), 1)
    assert np.isfinite(calibrator.fit_report_.value)


def test_all_right_warns_once_and_is_bounded(labelled_logits):
    logits, _ = labelled_logits(500, 5, seed=12)
    with pytest.warns(BoundaryWarning) as caught:
        calibrator = SMART().fit(logits, logits.argmax(axis=1))
    # Labels that are the predictions are told by another warning.
    assert [one.category for one in caught].count(BoundaryWarning) == 1
    assert calibrator.fit_report_.notes
    probs = calibrator.predict_proba(logits)
    assert 0.9 < probs.max(axis=1).mean() <= 1
