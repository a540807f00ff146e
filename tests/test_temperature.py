"""Temperature scaling: the right optimum, and an answer for data that have none."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from calibrant.core.errors import (
    BoundaryWarning,
    CalibrationWarning,
    InputError,
    NotIdentifiedWarning,
    PredictionsError,
)
from calibrant.posthoc.temperature.scaling import TemperatureScaling
from calibrant.predictions.rows import RowSummary, summarize
from calibrant.predictions.temperature import fit_temperature


def nll_at(logits: np.ndarray, labels: np.ndarray, beta: float) -> float:
    scaled = beta * (logits - logits.max(axis=1, keepdims=True)).astype(np.float64)
    return float(np.mean(logsumexp(scaled, axis=1) - scaled[np.arange(len(labels)), labels]))


def temperature(logits, labels) -> float:
    return TemperatureScaling().fit(logits, labels).temperature_


# --- the optimum


@settings(max_examples=60)
@given(
    st.integers(2, 60), st.integers(2, 8), st.integers(0, 10_000), st.floats(-3, 3), st.booleans()
)
def test_the_minimum_is_that_of_a_brute_search(rows, classes, seed, log_scale, table):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, classes)) * 10**log_scale
    labels = rng.integers(classes, size=rows)
    right = rng.random(rows) < 0.6
    labels[right] = logits.argmax(axis=1)[right]
    assume((labels != logits.argmax(axis=1)).any())
    centred = logits - logits.mean(axis=1, keepdims=True)
    assume(centred[np.arange(rows), labels].mean() > 1e-2 * 10**log_scale)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotIdentifiedWarning)
        if table:
            summary = summarize(logits, labels, curve="table", reference=10**-log_scale)
            beta = fit_temperature(summary).beta
        else:
            beta = 1 / temperature(logits, labels)
    brute = minimize_scalar(
        lambda u: nll_at(logits, labels, np.exp(u) * 10**-log_scale),
        bounds=(-12, 12),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert nll_at(logits, labels, beta) <= brute.fun + (1e-6 if table else 1e-10)
    np.testing.assert_allclose(beta, np.exp(brute.x) * 10**-log_scale, rtol=5e-3 if table else 1e-4)


@pytest.mark.parametrize("classes", [2, 10, 200])
@pytest.mark.parametrize("truth", [0.5, 2.0, 7.0])
def test_the_temperature_of_synthetic_data_is_recovered(labelled_logits, classes, truth):
    logits, labels = labelled_logits(20_000 if classes < 100 else 4000, classes, truth, seed=1)
    # The information about beta is N times the mean variance of the logits under the softmax.
    information = summarize(logits, labels, curve="dense").curve.evaluate(1 / truth).curvature.sum()
    error = 1 / np.sqrt(information)
    fitted = TemperatureScaling().fit(logits, labels)
    assert abs(fitted.beta_ - 1 / truth) < 4 * error
    assert error * truth < 0.05


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.floats(-6, 6))
def test_scaled_logits_have_a_scaled_temperature_and_the_same_probabilities(seed, log_scale):
    from conftest import draw_labelled_logits

    logits, labels = draw_labelled_logits(200, 4, seed=seed)
    scale = 10.0**log_scale
    plain, scaled = TemperatureScaling().fit(logits, labels), TemperatureScaling()
    scaled.fit(scale * logits, labels)
    np.testing.assert_allclose(scaled.temperature_, scale * plain.temperature_, rtol=1e-7)
    np.testing.assert_allclose(
        scaled.predict_proba(scale * logits), plain.predict_proba(logits), rtol=1e-6, atol=1e-12
    )


def test_the_report_says_what_the_fit_did(overconfident):
    logits, labels = overconfident
    fitted = TemperatureScaling().fit(logits, labels)
    report = fitted.fit_report_
    assert (report.n, report.objective, report.converged, report.notes) == (
        2000,
        "nll",
        True,
        (),
    )
    assert 0 < report.iterations < 40
    np.testing.assert_allclose(report.value, nll_at(logits, labels, fitted.beta_), rtol=1e-12)
    assert fitted.n_parameters == 1
    np.testing.assert_array_equal(fitted.temperatures(logits), fitted.temperature_)


def test_fit_on_shards_is_fit_on_the_whole(overconfident):
    logits, labels = overconfident
    whole, sharded = TemperatureScaling().fit(logits, labels), TemperatureScaling()
    parts = [summarize(logits[i::3], labels[i::3]) for i in range(3)]
    sharded.fit_rows(RowSummary.concatenate(parts))
    np.testing.assert_allclose(sharded.beta_, whole.beta_, rtol=1e-10)


def test_the_temperature_of_a_table_is_that_of_the_rows(labelled_logits):
    logits, labels = labelled_logits(3000, 100)
    tabulated = summarize(logits, labels, curve="table")
    np.testing.assert_allclose(
        1 / fit_temperature(tabulated).beta, temperature(logits, labels), rtol=1e-4
    )


@pytest.mark.parametrize("scale", [50.0, 1 / 100])
def test_a_table_that_does_not_reach_the_optimum_is_refused(labelled_logits, scale):
    logits, labels = labelled_logits(500, 100)
    with pytest.raises(InputError, match="reference"):
        fit_temperature(summarize(scale * logits, labels, curve="table"))
    near = summarize(scale * logits, labels, curve="table", reference=0.5 / scale)
    np.testing.assert_allclose(
        fit_temperature(near).beta, 1 / temperature(scale * logits, labels), rtol=1e-4
    )


# --- the trap table: inputs on which other libraries return something else

TRUTH = 2.007


@pytest.fixture(scope="module")
def trap(labelled_logits):
    return labelled_logits(5000, 20, seed=3)


def test_trap_scales(trap):
    logits, labels = trap
    plain = temperature(logits, labels)
    assert 1.9 < plain < 2.1
    for scale in (50, 1 / 50):
        np.testing.assert_allclose(temperature(scale * logits, labels), scale * plain, rtol=1e-8)


@pytest.mark.parametrize("kind", [np.asarray, torch.asarray], ids=["numpy", "torch"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-5), ("float16", 3e-3), ("float64", 1e-9)]
)
def test_trap_dtypes(trap, kind, dtype, tolerance):
    logits, labels = trap
    found = temperature(kind(logits.astype(dtype)), labels)
    np.testing.assert_allclose(found, temperature(logits, labels), rtol=tolerance)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32"])
def test_trap_types_of_labels(trap, dtype):
    logits, labels = trap
    assert temperature(logits, labels.astype(dtype)) == temperature(logits, labels)
    assert temperature(logits, torch.tensor(labels.astype(dtype))) == temperature(logits, labels)


def test_trap_a_class_absent_from_the_labels(trap):
    logits, labels = trap
    rows = labels != 19
    fitted = TemperatureScaling().fit(logits[rows], labels[rows])
    assert 1.9 < fitted.temperature_ < 2.1
    assert fitted.n_classes_ == 20
    assert fitted.predict_proba(logits).shape == logits.shape


@pytest.mark.parametrize("fill", [-1e4, -1e9, -1e30])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_trap_a_class_masked_with_a_large_number(labelled_logits, fill, dtype):
    for classes in (20, 100):
        logits, labels = labelled_logits(2000, classes, seed=4)
        masked = np.insert(logits, 3, fill, axis=1).astype(dtype)
        shifted = labels + (labels >= 3)
        np.testing.assert_allclose(
            temperature(masked, shifted), temperature(logits.astype(dtype), labels), rtol=1e-4
        )


def test_trap_one_enormous_row(trap):
    # Its logits say nothing about the temperature of the others.
    logits, labels = trap
    wide = np.vstack([logits / 20, np.zeros((1, 20))])
    wide[-1, 7] = 1e7
    found = temperature(wide, np.append(labels, 7))
    np.testing.assert_allclose(found, temperature(logits / 20, labels), rtol=1e-6)


def test_trap_all_right_is_bounded_and_said_aloud(trap):
    logits, _ = trap
    with pytest.warns(BoundaryWarning, match="all 5000 calibration rows") as caught:
        fitted = TemperatureScaling().fit(logits, logits.argmax(axis=1))
    # Labels that are the predictions are told by another warning.
    assert [one.category for one in caught].count(BoundaryWarning) == 1
    assert {one.filename for one in caught} == {__file__}
    # Half an error is expected in N + 1 rows.
    errors = 1 - fitted.predict_proba(logits).max(axis=1)
    np.testing.assert_allclose(errors.mean(), 0.5 / 5001, rtol=1e-4)
    assert fitted.fit_report_.notes[0].startswith("BoundaryWarning: ")


def test_trap_all_right_with_ties_and_masks_is_bounded():
    logits = np.array([[1.0, 1.0, 0.0], [2.0, 0.0, 0.0]])
    for extra in (np.zeros((2, 0)), np.full((2, 1), -1e9)):
        with pytest.warns(BoundaryWarning):
            found = temperature(np.hstack([logits, extra]), [0, 0])
        assert 1e-6 < found < 1e6


@pytest.mark.parametrize("seed", range(8))
def test_trap_random_labels_do_not_identify_a_temperature(seed):
    rng = np.random.default_rng(seed)
    logits, labels = rng.normal(size=(5000, 20)), rng.integers(20, size=5000)
    with pytest.warns(NotIdentifiedWarning, match="chance"):
        found = temperature(logits, labels)
    assert 10 < found < 1e4


def test_trap_worse_than_chance_is_bounded_and_said_aloud(trap):
    logits, _ = trap
    with pytest.warns(
        NotIdentifiedWarning, match="predict the labels better than chance"
    ) as caught:
        fitted = TemperatureScaling().fit(logits, logits.argmin(axis=1))
    assert caught[0].filename == __file__
    assert 100 < fitted.temperature_ < 1e5
    np.testing.assert_allclose(fitted.predict_proba(logits), 1 / 20, atol=1e-3)


def test_good_data_give_no_warning(labelled_logits):
    for rows in (20, 50, 500):
        for seed in range(10):
            logits, labels = labelled_logits(rows, 10, seed=seed)
            with warnings.catch_warnings():
                warnings.simplefilter("error", CalibrationWarning)
                temperature(logits, labels)


@pytest.mark.parametrize("constant", [0.0, 3.5, -1e5])
def test_constant_logits(constant):
    with pytest.warns(NotIdentifiedWarning, match="constant"):
        fitted = TemperatureScaling().fit(np.full((5, 3), constant), [0, 1, 2, 0, 1])
    assert fitted.temperature_ == 1.0
    np.testing.assert_allclose(fitted.fit_report_.value, np.log(3))


@pytest.mark.parametrize(
    ("label", "warning"), [(0, BoundaryWarning), (1, CalibrationWarning), (2, NotIdentifiedWarning)]
)
def test_one_row(label, warning):
    with pytest.warns(warning):
        fitted = TemperatureScaling().fit([[2.0, 1.0, 0.0]], [label])
    assert 1e-5 < fitted.temperature_ < 1e5
    probs = fitted.predict_proba(np.array([[2.0, 1.0, 0.0]]))
    assert probs.argmax() == 0
    np.testing.assert_allclose(probs.sum(), 1)


@given(
    st.integers(1, 6).flatmap(
        lambda n: st.tuples(
            arrays(np.float64, (n, 3), elements=st.floats(-1e6, 1e6)),
            arrays(np.int64, n, elements=st.integers(0, 2)),
        )
    )
)
def test_any_small_set_gives_a_finite_positive_temperature(case):
    logits, labels = case
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        fitted = TemperatureScaling().fit(logits, labels)
    assert 0 < fitted.beta_ < np.inf
    probs = fitted.predict_proba(logits)
    np.testing.assert_allclose(probs.sum(axis=1), 1)
    # Never worse than the two extremes that it may choose from.
    if not fitted.fit_report_.notes:
        assert fitted.fit_report_.value <= np.log(3) + 1e-9


def test_what_is_not_finite_is_refused_by_row():
    logits = np.zeros((5, 3))
    for value in (np.nan, np.inf):
        logits[3, 1] = value
        with pytest.raises(PredictionsError, match="row 3, column 1"):
            TemperatureScaling().fit(logits, [0, 1, 2, 0, 1])
