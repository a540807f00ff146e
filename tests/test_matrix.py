"""Matrix scaling and Dirichlet calibration against optima and derivatives worked out apart."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax

import calibrant as cb
from calibrant.comparison.compare import compare
from calibrant.core.errors import (
    BoundaryWarning,
    CalibrationWarning,
    ConvergenceWarning,
    InputError,
    NotApplicableError,
    NotIdentifiedWarning,
)
from calibrant.posthoc.fitting.cross_validation import fold_numbers
from calibrant.posthoc.linear.likelihood import LinearLikelihood
from calibrant.posthoc.linear.optimum import fit_linear
from calibrant.posthoc.linear.pulls import PULLS, Strengths, cross_validate
from calibrant.posthoc.registry import make_calibrator
from calibrant.posthoc.temperature.scaling import TemperatureScaling
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import summarize

both = pytest.mark.parametrize("method", ["matrix", "dirichlet"])


def fitted(method: str, logits, labels, **arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        return make_calibrator(method, **arguments).fit(logits, labels)


def inputs_of(method: str, logits):
    if method == "dirichlet":
        return log_softmax(logits, axis=1)
    return logits - logits.mean(axis=1, keepdims=True)


def drawn(method: str, rows: int, weight, bias, seed: int = 0):
    """Logits, labels and true log probabilities of softmax(W x + b)."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=2.0, size=(rows, len(bias)))
    scores = inputs_of(method, logits) @ np.asarray(weight).T + bias
    return logits, (scores + rng.gumbel(size=scores.shape)).argmax(axis=1), log_softmax(scores, 1)


CONFUSED = np.eye(3) + np.array([[0, 0.4, 0], [0, 0.2, 0], [-0.3, 0, -0.2]])


@both
@pytest.mark.parametrize("penalty", [0.01, 1.0, 100.0])
def test_optimum_is_that_of_the_objective_written_out(method, penalty):
    rows, k = 60, 3
    logits, labels, _ = drawn(method, rows, CONFUSED, np.array([0.5, 0, 0]), seed=1)
    calibrator = fitted(method, logits, labels, penalty=penalty, bias_penalty=0.3)
    beta = TemperatureScaling().fit(logits, labels).beta_
    x = beta * inputs_of(method, logits)
    off = ~np.eye(k, dtype=bool)

    def objective(vector):
        change, bias = vector[:9].reshape(k, k), vector[9:]
        scores = x + x @ change.T + bias
        nll = -log_softmax(scores, 1)[np.arange(rows), labels].mean()
        nll += penalty / (k * (k - 1)) * (change[off] ** 2).sum() + 0.3 / k * (bias @ bias)
        return nll + (np.diag(change) ** 2).sum() / rows

    brute = minimize(objective, np.zeros(12), method="BFGS", options={"gtol": 1e-9})
    change = calibrator.weight_ / beta - np.eye(k)
    ours = np.concatenate([change.ravel(), calibrator.bias_])
    np.testing.assert_allclose(ours, brute.x, atol=2e-3)
    assert objective(ours) <= brute.fun + 1e-8
    np.testing.assert_allclose(calibrator.fit_report_.value, objective(ours), rtol=1e-9)
    np.testing.assert_array_equal(calibrator.penalties_, [penalty, 0.3])
    probs = np.exp(log_softmax(x + x @ change.T + calibrator.bias_, 1))
    np.testing.assert_allclose(calibrator.predict_proba(logits), probs, atol=1e-12)


@both
def test_strengths_are_those_of_plain_cross_validation(method):
    logits, labels, _ = drawn(method, 80, CONFUSED, np.array([0.5, 0, 0]), seed=2)
    calibrator = fitted(method, logits, labels, guard=False)
    beta = TemperatureScaling().fit(logits, labels).beta_
    x = beta * inputs_of(method, logits)
    fold = fold_numbers(summarize(logits, labels), 5, seed=0)
    scores = []
    for pull in PULLS:
        penalties = np.full((3, 3), pull / 80)
        np.fill_diagonal(penalties, 1 / 80 / (1 - 1 / 5))
        penalties = np.append(penalties, np.full(3, pull / 80))
        held_out = 0.0
        for i in range(5):
            seen = LinearLikelihood(x[fold != i], labels[fold != i], 1.0, True, inputs="given")
            fit = fit_linear(seen, penalties, 500)
            left = x[fold == i] + x[fold == i] @ fit.change.T + fit.bias
            held_out -= log_softmax(left, 1)[np.arange(len(left)), labels[fold == i]].sum()
        scores.append(held_out)
    best = PULLS[int(np.argmin(scores))]
    np.testing.assert_allclose(calibrator.penalties_, [best * 6 / 80, best * 3 / 80])


def test_log_probabilities_that_are_nearly_alike_take_one_temperature(labelled_logits):
    logits, labels = labelled_logits(200, 150, seed=4)
    fitted = make_calibrator("dirichlet").fit(1e-6 * logits, labels)  # the search took 2 minutes
    assert fitted.n_parameters == 1
    assert "differ too little to fit a matrix" in str(fitted.fit_report_.notes)
    usual = make_calibrator("dirichlet").fit(0.01 * logits[:, :20], labels % 20)
    assert "differ too little" not in str(usual.fit_report_.notes)


def test_one_row_takes_the_strongest_penalty():
    path = [Strengths(1e6, 1e6), Strengths(1.0, 1.0)]
    row = LinearLikelihood(np.zeros((1, 4)), np.zeros(1, dtype=np.int64), 1.0, True)
    strengths, start, losses = cross_validate(row, np.zeros(1, dtype=np.int64), path, 10)
    assert (strengths, start, losses.tolist()) == (path[0], None, [np.inf])


@both
def test_a_known_map_is_recovered(method):
    logits, labels, truth = drawn(method, 10_000, CONFUSED, np.array([0.5, 0, 0]))
    probs = fitted(method, logits, labels, penalty=1e-4).predict_proba(logits)
    base = fitted("temperature", logits, labels).predict_proba(logits)
    assert np.abs(base - np.exp(truth)).mean() > 0.02
    assert np.abs(probs - np.exp(truth)).mean() < 0.01


@both
def test_strong_penalties_leave_the_diagonal(method):
    logits, labels, _ = drawn(method, 400, CONFUSED, np.array([0.5, 0, 0]))
    calibrator = fitted(method, logits, labels, penalty=1e9, bias_penalty=1e9)
    off = calibrator.weight_[~np.eye(3, dtype=bool)]
    np.testing.assert_allclose(off, 0, atol=1e-6)
    np.testing.assert_allclose(calibrator.bias_, 0, atol=1e-6)
    assert np.ptp(np.diag(calibrator.weight_)) > 0.02


def test_a_class_that_is_no_label_keeps_its_column():
    logits, labels, _ = drawn("matrix", 300, CONFUSED, np.zeros(3))
    some = labels != 1
    for method in ("matrix", "dirichlet"):
        calibrator = fitted(method, logits[some], labels[some])
        probs = calibrator.predict_proba(logits)
        assert probs.shape == logits.shape
        assert 0 < probs[:, 1].mean() < 0.05


@both
def test_scale_and_origin_do_not_matter(method):
    logits, labels, _ = drawn("matrix", 150, CONFUSED, np.array([0.5, 0, 0]))
    plain = fitted(method, logits, labels).predict_proba(logits)
    moved = logits + np.linspace(-30, 30, 150)[:, None]
    np.testing.assert_allclose(fitted(method, moved, labels).predict_proba(moved), plain, atol=1e-6)
    if method == "matrix":
        scaled = fitted(method, 50 * logits, labels).predict_proba(50 * logits)
        np.testing.assert_allclose(scaled, plain, atol=1e-5)


@both
def test_masked_classes_leave_the_others_their_map(method):
    logits, labels, _ = drawn("matrix", 300, CONFUSED, np.zeros(3))
    calibrator = fitted(method, logits, labels)
    probs = calibrator.predict_proba(np.array([[1.0, 3.0, -np.inf]]))
    x = np.array([-1.0, 1.0, 0.0])
    if method == "dirichlet":  # the mean ln p of the others stands in for the masked class
        x = x - np.log(np.exp(-1) + np.exp(1))
    scores = calibrator.weight_ @ x + calibrator.bias_
    np.testing.assert_allclose(probs[0], [*np.exp(log_softmax(scores[:2])), 0.0], rtol=1e-12)


@both
def test_degenerate_rows_are_named(method, labelled_logits):
    logits, labels = labelled_logits(60, 4)
    with pytest.warns(BoundaryWarning):
        sure = make_calibrator(method).fit(logits, logits.argmax(axis=1))
    base = fitted("temperature", logits, logits.argmax(axis=1)).predict_proba(logits)
    np.testing.assert_allclose(sure.predict_proba(logits), base, atol=1e-12)
    with pytest.warns(NotIdentifiedWarning):
        make_calibrator(method).fit(np.zeros_like(logits), labels)
    with pytest.warns(ConvergenceWarning, match="stopped after 1 steps"):
        make_calibrator(method, max_iterations=1, penalty=1e-3).fit(logits, labels)


@both
def test_too_many_classes_are_refused(method):
    logits = np.random.default_rng(0).normal(size=(3, 201))
    with pytest.raises(InputError, match="201 x 201 numbers many times over; beyond most_classes"):
        make_calibrator(method).fit(logits, [0, 1, 2])
    assert fitted(method, logits, [0, 1, 2], most_classes=300, penalty=1e3).n_classes_ == 201
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = Predictions.from_logits(logits, np.array([0, 1, 2]))
        found = compare(["none", method], fit=rows, test=rows, resamples=10)
    assert "take 'svs'" in found.skipped[method]


@pytest.mark.parametrize("arguments", [{"penalty": -1.0}, {"bias_penalty": -1.0}])
@both
def test_arguments_out_of_range(method, arguments, overconfident):
    with pytest.raises(InputError, match=next(iter(arguments))):
        make_calibrator(method, **arguments).fit(*overconfident)


@both
def test_number_of_parameters(method, overconfident):
    assert fitted(method, *overconfident, penalty=1.0).n_parameters == 30


@both
def test_better_than_one_temperature_on_a_published_network(method, real_predictions):
    val, test = (
        real_predictions(f"cifar10-resnet50-cross-entropy-{part}.npz") for part in ("val", "test")
    )

    def nll(name):
        probs = fitted(name, val.logits, val.labels).predict_proba(test.logits)
        return -np.log(probs[np.arange(test.n), test.labels]).mean()

    assert nll(method) < nll("temperature") - 0.005


# A map of log-probabilities can say whatever one of centred logits can, only with more and larger
# numbers, so noise chooses them now and then: in 3 of 24 draws.
@pytest.mark.parametrize(("inputs", "least"), [("centred", 11), ("log-probabilities", 16)])
def test_before_a_contest_a_ridge_is_given_its_pull_and_the_inputs_that_suit_the_rows(
    inputs, least
):
    suits = 0
    for seed in range(16):
        rng = np.random.default_rng(seed)
        said = 2 * rng.normal(size=(600, 3))
        said -= said.mean(axis=1, keepdims=True)
        if inputs == "log-probabilities":
            said -= np.log(np.exp(said).sum(axis=1, keepdims=True))
        truth = said * np.array([1.8, 1.0, 0.3])
        labels = (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)
        rows = Predictions.from_logits(said, labels)
        settled = make_calibrator("ridge").settled(rows)
        assert settled.ridge in PULLS[1:]
        assert settled.settled(rows) is settled
        suits += settled.inputs == inputs
    assert suits >= least


def test_the_evidence_for_a_matrix_is_that_of_a_general_computation():
    # Laplace's approximation at 0, written out: one Newton step of the whole curvature.
    rng = np.random.default_rng(3)
    said = rng.normal(size=(4000, 3))
    truth = said @ (np.eye(3) + np.array([[0, 0.3, 0], [0, 0, 0], [-0.3, 0, 0]]))
    labels = (truth + rng.gumbel(size=said.shape)).argmax(axis=1)
    rows = LinearLikelihood(said, labels, 1.0, square=True, inputs="given")
    inputs = np.column_stack([said, np.ones(len(said))])
    probs = np.exp(said) / np.exp(said).sum(axis=1, keepdims=True)
    gradient = ((probs - np.eye(3)[labels]).T @ inputs).ravel()
    spread = np.einsum("nk,kl->nkl", probs, np.eye(3)) - np.einsum("nk,nl->nkl", probs, probs)
    bend = np.einsum("nkl,na,nb->kalb", spread, inputs, inputs).reshape(12, 12)
    wanted = []
    for pull in (1000.0, 100.0, 10.0):
        whole = bend + 2 * pull * np.eye(12)
        size = np.linalg.slogdet(np.eye(12) + bend / (2 * pull))[1]
        wanted.append((gradient @ np.linalg.solve(whole, gradient) - size) / 2)
    # Curvatures are taken for a product of one of classes and one of inputs.
    np.testing.assert_allclose(rows.evidence([1000.0, 100.0, 10.0]), wanted, rtol=0.05)


def test_a_ridge_that_gains_nothing_doesn_t_take_part():
    refused = 0
    for seed in range(4):
        rows = cb.synthetic.tempered(400, 4, seed=seed).predictions
        try:
            make_calibrator("ridge").settled(rows)
        except NotApplicableError:
            refused += 1
    assert refused >= 2  # of rows that one temperature puts right, a standard error lets few by
    right = Predictions.from_logits(rows.logits, rows.logits.argmax(axis=1))
    with pytest.raises(NotApplicableError, match="no lasting confusion"):
        make_calibrator("ridge").settled(right)
