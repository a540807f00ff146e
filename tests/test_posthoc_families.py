"""The contract of a calibrator, and each family's optimum against a brute-force one.

Laws that hold for all are in `test_laws_of_methods.py`.
"""

from __future__ import annotations

import inspect
from dataclasses import fields
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from feature_rows import fit_on, fitted
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression, minimize

from calibrant.core.arrays import namespace
from calibrant.core.errors import (
    InputError,
    NotFittedError,
    PredictionsError,
    UnknownMethodError,
)
from calibrant.posthoc import auto, model_selection
from calibrant.posthoc.array_ops import parted
from calibrant.posthoc.confidence.base import ConfidenceMap, rebuilt
from calibrant.posthoc.confidence.binning import HistogramBinning
from calibrant.posthoc.confidence.isotonic import IsotonicRegression
from calibrant.posthoc.linear.vector import VectorScaling
from calibrant.posthoc.registry import METHODS, make_calibrator, parse_arguments
from calibrant.posthoc.temperature.mixtures import EnsembleTemperatureScaling
from calibrant.posthoc.temperature.scaling import TemperatureScaling
from calibrant.predictions.rows import softmax

KEEPING = [name for name, method in METHODS.items() if method.keeps_prediction]
# Maps that may change the predicted class.
CHANGING = [
    "vector",
    "svs",
    "sms",
    "ridge",
    "svs-top-rest",
    "auto",
    "matrix",
    "dirichlet",
    "cts",
    "cts-gradient",
    "logit-clipping",
    "feature-clipping",
    # With two classes; with more they keep it.
    *("platt", "affine", "quadratic", "beta", "natural-spline", "given-groups"),
]
CONFIDENCE_MAPS = [name for name, kind in METHODS.items() if issubclass(kind, ConfidenceMap)]
every_method = pytest.mark.parametrize("method", METHODS)


@pytest.fixture(autouse=True)
def _quick_choices(monkeypatch):
    """What every calibrator promises doesn't rest on how often `auto` divides the rows."""
    monkeypatch.setattr(auto, "MOST_REPEATS", 1)
    monkeypatch.setattr(model_selection, "FEWEST_ROWS", 300)


@pytest.fixture(scope="module")
def fitted_once(overconfident):
    """A function that fits a method to `overconfident`; what was fitted is kept."""
    return cache(lambda method: fitted(method, *overconfident))


# --- the contract


def another(value):
    """Return an equal value that is another object, where its type has more than one."""
    if value is None or isinstance(value, bool | tuple):
        return value
    return type("Another", (type(value),), {})(value)


@every_method
def test_constructor_only_checks_and_stores_and_parameters_can_be_read_and_set(method):
    kind = METHODS[method]
    signature = inspect.signature(kind)
    calibrator = kind()
    assert vars(calibrator) == {n: p.default for n, p in signature.parameters.items()}
    assert calibrator.get_params() == vars(calibrator)
    assert calibrator.get_params(deep=False) == vars(calibrator)
    # A clone in scikit-learn's way: the very objects that were given come back.
    given_objects = {n: another(p.default) for n, p in signature.parameters.items()}
    clone = kind(**given_objects)
    assert all(clone.get_params()[name] is value for name, value in given_objects.items())
    assert calibrator.set_params(**given_objects) is calibrator
    assert calibrator.get_params() == given_objects
    with pytest.raises(InputError, match="has no argument 'nonsense'"):
        calibrator.set_params(nonsense=1)


@every_method
def test_learnt_attributes_end_in_an_underscore(method, fitted_once):
    calibrator = fitted_once(method)
    learnt = set(vars(calibrator)) - set(calibrator.get_params())
    assert learnt == {
        *calibrator.state_names(),
        *calibrator.part_names,
        "n_classes_",
        "called_",
        "class_names_",
        "fit_report_",
        "form_",
        "kind_",
        "placing_",
        "fitted_to_",
    }
    assert all(name.endswith("_") and not name.startswith("_") for name in learnt)
    assert all(not name.endswith("_") for name in calibrator.get_params())
    assert calibrator.n_classes_ == 5
    assert calibrator.fit_report_.n == 2000


@every_method
def test_class_attributes(method):
    kind = METHODS[method]
    assert kind.method == method
    assert kind.keeps_prediction is (method not in CHANGING)
    features = ("group", "given-groups", "procal-dr", "procal-bms", "dac")
    wanted = ("features", "head") if method == "feature-clipping" else ("features",)
    assert kind.needs == (wanted if method in (*features, "feature-clipping") else ())
    assert "method" not in {f.name for f in fields(kind)}


@every_method
def test_before_fit(method, tmp_path):
    calibrator = make_calibrator(method)
    for call in (calibrator.predict_proba, calibrator.predict_confidence):
        with pytest.raises(NotFittedError, match="call fit first"):
            call(np.zeros((1, 3)))
    with pytest.raises(NotFittedError):
        calibrator.save(tmp_path / "x.safetensors")
    # scikit-learn's own error of this name has the same parents.
    assert issubclass(NotFittedError, (ValueError, AttributeError))


@every_method
def test_number_of_parameters(method, overconfident, fitted_once):
    # Those that may fall back to one temperature are made not to.
    own = {name: {"guard": False} for name in ("vector", "ridge", "matrix", "dirichlet", "pts")}
    own["cts"] = {"criterion": "ece"}
    calibrator = (
        fitted(method, *overconfident, **own[method]) if method in own else fitted_once(method)
    )
    wanted = {"none": 0, "temperature": 1, "ets": 4, "vector": 10, "histogram": 15, "smart": 49}
    wanted |= {"temperature-laplace": 1, "predicted-class": 5, "matrix": 30, "dirichlet": 30}
    wanted |= {"cts": 5, "cts-gradient": 5, "pts": 66, "logit-clipping": 2, "consistency": 1}
    wanted |= {"probit": 1, "tva": 1}
    if method == "auto":  # all that it averages, and the weights, which sum to 1
        parts = sum(part.n_parameters for part in calibrator.parts().values())
        wanted[method] = parts + int((calibrator.weights_ > 0).sum()) - 1
    if method in wanted:
        assert calibrator.n_parameters == wanted[method]
    else:
        assert 2 <= calibrator.n_parameters <= 2000


@every_method
def test_wrong_shapes_are_refused(method, fitted_once):
    calibrator = fitted_once(method)
    for wrong in (np.zeros((3, 4)), np.zeros((3, 6)), np.zeros(4), np.zeros((1, 3, 5))):
        with pytest.raises(PredictionsError, match=r"needs logits of shape \(N, 5\)"):
            calibrator.predict_proba(wrong)
    with pytest.raises(PredictionsError):
        calibrator.fit(None, [0])
    for labels in ([0, 1], [0, 1, 5], [0, -1, 2], [0.5, 1, 2]):
        with pytest.raises(PredictionsError):
            calibrator.fit(np.zeros((3, 5)), labels)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("ets", {"loss": "hinge"}),
        ("vector", {"ridge": -1}),
        ("vector", {"ridge": float("nan")}),
        ("vector", {"max_iterations": 0}),
        ("histogram", {"n_bins": 0}),
        ("histogram", {"strategy": "fair"}),
        ("bbq", {"prior_strength": 0}),
        ("bbq", {"elbow": -1}),
        ("scaling-binning", {"n_bins": 0}),
        ("scaling-binning", {"split": "halves"}),
        ("spline", {"knots": 1}),
        ("predicted-class", {"shrinkage": 0}),
        ("matrix", {"penalty": -1}),
        ("dirichlet", {"bias_penalty": -1}),
        ("cts", {"span": 1}),
        ("cts-gradient", {"shrinkage": 0}),
        ("pts", {"inputs": 0}),
        ("logit-clipping", {"criterion": "brier"}),
        ("consistency", {"criterion": "brier"}),
        ("smart", {"objective": "ece"}),
        ("smart", {"indicator": "luck"}),
        ("smart", {"shrinkage": -1}),
        ("smart", {"likelihood_weight": float("nan")}),
        ("smart", {"width": 0}),
        ("smart", {"hidden": 0}),
        ("smart", {"n_bins": -1}),
        ("smart", {"max_iterations": 0}),
        ("smart", {"seed": -1}),
        ("group", {"partitions": 0}),
        ("group", {"groups": 1}),
        ("group", {"penalty": -1}),
        ("procal-dr", {"neighbours": 0}),
        ("procal-dr", {"reference_rows": 1}),
        ("procal-dr", {"convention": "code"}),
        ("procal-bms", {"proximity_bins": 0}),
        ("procal-bms", {"strength": 1.5}),
        ("feature-clipping", {"scaling": "vector"}),
        ("feature-clipping", {"accuracy": 1.5}),
        ("dac", {"layers": "2,2"}),
        ("dac", {"layers": "5,0"}),
        ("dac", {"layers": "all"}),
        ("dac", {"loss": "ece"}),
    ],
)
def test_arguments_out_of_range_are_refused_at_fit(method, arguments, overconfident):
    calibrator = make_calibrator(method, **arguments)
    with pytest.raises(InputError, match=next(iter(arguments))):
        fit_on(calibrator, *overconfident)


def test_methods_by_name():
    assert METHODS.named("smart") is METHODS["smart"]
    with pytest.raises(UnknownMethodError, match="did you mean 'temperature'"):
        METHODS.named("temprature")
    for spelt in ("SMART", "Predicted_Class"):
        right = spelt.lower().replace("_", "-")
        with pytest.raises(UnknownMethodError, match=f"did you mean '{right}'"):
            METHODS.named(spelt)
    with pytest.raises(UnknownMethodError, match="there are: none, temperature"):
        METHODS.named("???")
    with pytest.raises(InputError, match="has no argument 'depth'"):
        make_calibrator("histogram", depth=3)


def test_settings_as_text():
    assert parse_arguments("histogram", ["n_bins=7", "strategy=uniform"]) == {
        "n_bins": 7,
        "strategy": "uniform",
    }
    assert parse_arguments("vector", ["ridge=1e-3"]) == {"ridge": 1e-3}
    for text, value in (("true", True), ("True", True), ("false", False), ("FALSE", False)):
        found = parse_arguments("auto", [f"same_prediction={text}", "candidates=a,b"])
        assert found == {"same_prediction": value, "candidates": "a,b"}
    for text in ("", "1", "no", "truee"):
        with pytest.raises(InputError, match=f"must be true or false, not '{text}'"):
            parse_arguments("auto", [f"same_prediction={text}"])
    for bad in ("n_bins", "n_bins=many", "n_bins=2.5", "depth=3", "=3"):
        with pytest.raises(InputError):
            parse_arguments("histogram", [bad])
    with pytest.raises(InputError, match="'n_bins' of method 'histogram' must be a whole number"):
        parse_arguments("histogram", ["n_bins=2.5"])
    with pytest.raises(InputError, match="'ridge' of method 'vector' must be a number"):
        parse_arguments("vector", ["ridge=much"])


# --- ensemble temperature scaling


def mixture_parts(calibrator: EnsembleTemperatureScaling, logits: np.ndarray) -> np.ndarray:
    uniform = np.full(logits.shape, 1 / logits.shape[1])
    return np.stack([softmax(logits, calibrator.beta_), softmax(logits), uniform])


def mixture_loss(loss: str, parts: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> float:
    probs = np.tensordot(weights, parts, 1)
    if loss == "nll":
        return float(-np.log(probs[np.arange(len(labels)), labels]).mean())
    return float(((probs - np.eye(probs.shape[1])[labels]) ** 2).sum(axis=1).mean())


@pytest.mark.parametrize("loss", ["mse", "nll", "mixed"])
@pytest.mark.parametrize("classes", [2, 5, 90])
@pytest.mark.parametrize("noise", [0.0, 0.15])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_mixture_weights_are_those_of_a_constrained_optimiser(
    loss, classes, noise, dtype, labelled_logits
):
    logits, labels = labelled_logits(800, classes, seed=8)
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(800) < noise, rng.integers(classes, size=800), labels)
    calibrator = fitted("ets", logits.astype(dtype), labels, loss=loss)
    weights = calibrator.weights_
    assert weights.min() >= 0
    np.testing.assert_allclose(weights.sum(), 1, rtol=1e-12)
    loss = "mse" if loss == "mixed" else loss
    parts = mixture_parts(calibrator, logits)
    brute = min(
        (
            minimize(
                lambda w: mixture_loss(loss, parts, labels, w),
                start,
                method="SLSQP",
                bounds=[(0, 1)] * 3,
                constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
                options={"ftol": 1e-15, "maxiter": 500},
            )
            for start in ([1, 0, 0], [1 / 3, 1 / 3, 1 / 3], [0.1, 0.1, 0.8])
        ),
        key=lambda found: found.fun,
    )
    ours = mixture_loss(loss, parts, labels, weights)
    assert ours <= brute.fun + (1e-6 if loss == "mse" else 1e-9)
    assert ours <= mixture_loss(loss, parts, labels, np.array([1.0, 0, 0])) + 1e-7
    np.testing.assert_allclose(
        calibrator.predict_proba(logits), np.tensordot(weights, parts, 1), rtol=1e-9, atol=1e-12
    )
    if noise:
        assert weights[2] > 0.02  # labels at random ask for a uniform share


@pytest.mark.parametrize("loss", ["mse", "nll", "mixed"])
@pytest.mark.parametrize("classes", [2, 5, 90])
def test_the_temperature_of_the_mixture_is_of_the_loss_that_is_named(
    loss, classes, labelled_logits
):
    logits, labels = labelled_logits(500, classes, temperature=3.0, seed=8)
    labels = np.where(np.random.default_rng(0).random(500) < 0.1, 0, labels)
    beta = fitted("ets", logits, labels, loss=loss).beta_
    by = "mse" if loss == "mse" else "nll"
    found = [
        mixture_loss(by, np.stack([softmax(logits, b)]), labels, np.ones(1))
        for b in beta * np.array([1.0, *np.geomspace(0.1, 10, 201), 0.999, 1.001])
    ]
    assert found[0] == min(found)
    single = TemperatureScaling().fit(logits, labels).beta_
    assert (abs(beta / single - 1) > 1e-3) == (loss == "mse")


@pytest.mark.parametrize("seed", range(5))
def test_mixture_by_likelihood_never_fits_its_rows_worse_than_temperature(seed, labelled_logits):
    logits, labels = labelled_logits(100, 5, seed=seed)
    index = np.arange(100)
    fits = [fitted(name, logits, labels) for name in ("ets", "temperature")]
    own, single = (-np.log(f.predict_proba(logits)[index, labels]).mean() for f in fits)
    assert own <= single + 1e-12


@pytest.mark.parametrize("loss", ["mixed", "nll"])
def test_mixture_of_equal_parts(loss):
    # T = 1: both temperatures are one and the same part.
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(4000, 4)) * 2
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    logits = logits * TemperatureScaling().fit(logits, labels).beta_
    calibrator = fitted("ets", logits, labels, loss=loss)
    np.testing.assert_allclose(calibrator.beta_, 1, rtol=1e-6)
    assert calibrator.weights_[2] < 0.05
    np.testing.assert_allclose(calibrator.predict_proba(logits), softmax(logits), atol=0.02)


# --- vector scaling


def vector_objective(x: np.ndarray, labels: np.ndarray, ridge: float, vector: np.ndarray) -> float:
    """The penalised objective, of w in units of beta and b, written out once more."""
    n, classes = x.shape
    probs = softmax(x * vector[:classes] + vector[classes:])
    penalty = ((vector[:classes] - 1) ** 2).sum() + (vector[classes:] ** 2).sum()
    return float(-np.log(probs[np.arange(n), labels]).mean() + ridge / n * penalty)


@pytest.mark.parametrize("inputs", ["log-probabilities", "centred"])
@pytest.mark.parametrize("classes", [2, 3, 6])
@pytest.mark.parametrize("ridge", [0.1, 1.0, 30.0])
def test_vector_scaling_finds_the_optimum(classes, ridge, inputs, labelled_logits):
    logits, labels = labelled_logits(120, classes, seed=9)
    logits = logits * np.linspace(0.5, 1.5, classes) + np.linspace(-1, 1, classes)
    calibrator = fitted("vector", logits, labels, ridge=ridge, inputs=inputs, guard=False)
    temperature = TemperatureScaling().fit(logits, labels)
    beta = temperature.beta_
    x = beta * (logits - logits.mean(axis=1, keepdims=True))
    if inputs == "log-probabilities":
        x = np.log(softmax(beta * logits))
    ours = np.concatenate([calibrator.weight_ / beta, calibrator.bias_])
    value = vector_objective(x, labels, ridge, ours)
    start = np.repeat([1.0, 0.0], classes)
    brute = minimize(
        lambda v: vector_objective(x, labels, ridge, v),
        start,
        method="BFGS",
        options={"gtol": 1e-9},
    )
    np.testing.assert_allclose(value, brute.fun, atol=1e-9)
    np.testing.assert_allclose(ours, brute.x, atol=2e-3)
    np.testing.assert_allclose(calibrator.fit_report_.value, value, rtol=1e-9)
    assert calibrator.fit_report_.converged
    assert value <= vector_objective(x, labels, ridge, start)
    assert value <= temperature.fit_report_.value + 1e-12


@pytest.mark.parametrize("classes", [10, 100])
def test_vector_scaling_of_float32_converges(classes, labelled_logits):
    logits, labels = labelled_logits(3000, classes, seed=10)
    for scale in (1.0, 100.0):
        narrow = (scale * logits).astype(np.float32)
        # A warning that it did not would be an error here.
        assert VectorScaling().fit(narrow, labels).fit_report_.converged


def test_a_strong_ridge_is_temperature_scaling(overconfident):
    logits, labels = overconfident
    strong = fitted("vector", logits, labels, ridge=1e9)
    np.testing.assert_allclose(
        strong.predict_proba(logits),
        TemperatureScaling().fit(logits, labels).predict_proba(logits),
        atol=1e-6,
    )


def test_vector_scaling_does_not_depend_on_the_scale(labelled_logits):
    logits, labels = labelled_logits(300, 4, seed=11)
    plain = fitted("vector", logits, labels).predict_proba(logits)
    for scale in (1e-3, 50.0):
        scaled = fitted("vector", scale * logits, labels).predict_proba(scale * logits)
        np.testing.assert_allclose(scaled, plain, atol=1e-5)


def test_vector_scaling_undoes_a_bias(labelled_logits):
    logits, labels = labelled_logits(5000, 3, temperature=1.0, seed=12)
    skewed = logits + np.array([2.0, 0.0, -1.0])
    calibrator = fitted("vector", skewed, labels)
    bias = calibrator.bias_ - calibrator.bias_.mean()
    np.testing.assert_allclose(bias, -(np.array([2.0, 0, -1]) - 1 / 3), atol=0.35)
    before = (skewed.argmax(axis=1) == labels).mean()
    after = (calibrator.predict_proba(skewed).argmax(axis=1) == labels).mean()
    assert after > before + 0.02


# --- maps of the confidence


def pool_adjacent_violators(values: list[float], weights: list[float]) -> list[float]:
    """Isotonic regression from its minimax formula."""
    n = len(values)

    def mean(i: int, j: int) -> float:
        return float(np.average(values[i : j + 1], weights=weights[i : j + 1]))

    return [max(min(mean(i, j) for j in range(k, n)) for i in range(k + 1)) for k in range(n)]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(5, 20), st.booleans()), min_size=1, max_size=25))
def test_isotonic_regression_is_the_least_squares_one(pairs):
    pairs = sorted(pairs)
    confidence = np.array([c / 20 for c, _ in pairs])
    correct = np.array([float(a) for _, a in pairs])
    calibrator = IsotonicRegression()
    calibrator.n_classes_ = 4
    calibrator._fit_map(confidence, correct)
    # Ties are one point with the mean outcome of all of them.
    points = np.unique(confidence)
    count = np.array([(confidence == p).sum() for p in points], dtype=float)
    mean = np.array([correct[confidence == p].mean() for p in points])
    pooled = np.array(pool_adjacent_violators(mean.tolist(), count.tolist()))
    np.testing.assert_allclose(isotonic_regression(mean, weights=count).x, pooled, atol=1e-12)
    # Two more rows in each block, of which the same share is right, and pooled again.
    rows = np.array([count[np.isclose(pooled, level)].sum() for level in pooled])
    _, first = np.unique(pooled.round(9), return_index=True)
    share = rows[first] / (rows[first] + 2)
    centre = share @ pooled[first] / share.sum()
    drawn = (rows * pooled + 2 * centre) / (rows + 2)
    drawn = (len(pairs) * drawn + 1 / 4) / (len(pairs) + 1)
    expected = pool_adjacent_violators(drawn.tolist(), count.tolist())
    found = calibrator.map_confidence(points)
    np.testing.assert_allclose(found, expected, atol=1e-9)
    everywhere = calibrator.map_confidence(np.linspace(0, 1, 301))
    assert (np.diff(everywhere) >= -1e-15).all()
    assert everywhere.min() == found[0]
    assert everywhere.max() == found[-1]
    assert everywhere.min() > 0
    assert everywhere.max() < 1


def test_blocks_that_shrinking_tilts_are_pooled_by_their_rows():
    # Nothing right of 10 rows, 90 of 100, then one right row: with two more rows in each block at
    # the common centre, the single row falls below the others.
    calibrator = IsotonicRegression()
    calibrator.n_classes_ = 4
    confidence = np.repeat([0.3, 0.5, 0.9], [10, 100, 1])
    calibrator._fit_map(confidence, np.repeat([0.0, 0, 1, 1], [10, 10, 90, 1]))
    weight = np.array([10 / 12, 100 / 102, 1 / 3])
    centre = weight @ [0, 0.9, 1] / weight.sum()
    drawn = weight * [0, 0.9, 1] + (1 - weight) * centre
    none, many, one = (111 * drawn + 1 / 4) / 112  # at last mixed with 1 / K, as all maps are
    assert one < many
    both = (100 * many + one) / 101
    np.testing.assert_allclose(
        calibrator.map_confidence(np.array([0.3, 0.5, 0.9])), [none, both, both]
    )


@pytest.mark.parametrize(
    "kind", [HistogramBinning, lambda: HistogramBinning(strategy="uniform"), IsotonicRegression]
)
@pytest.mark.parametrize("strength", [0.3, 2.0, 50.0])
def test_shrinking_leaves_the_mean_confidence_at_the_accuracy(kind, strength):
    rng = np.random.default_rng(3)
    confidence = np.sort(1 - 0.6 * rng.beta(0.4, 2.0, 300))
    correct = (rng.random(300) < confidence - 0.05).astype(float)
    calibrator = kind().set_params(prior_strength=strength)
    calibrator.n_classes_ = 10
    calibrator._fit_map(confidence, correct)
    found = calibrator.map_confidence(confidence)
    np.testing.assert_allclose(found.mean(), (correct.sum() + 1 / 10) / 301, atol=1e-12)
    assert found.std() > 0.02


def test_no_shrinking_is_the_published_map():
    confidence, correct = np.repeat([0.3, 0.5, 0.9], 4), np.repeat([0.0, 1, 0, 1], [4, 3, 1, 4])
    for kind in (HistogramBinning, IsotonicRegression):
        calibrator = kind(prior_strength=0)
        calibrator.n_classes_ = 3
        calibrator._fit_map(confidence, correct)
        np.testing.assert_allclose(calibrator.map_confidence(confidence[::4]), [0, 0.75, 1])


def test_few_rows_do_not_bias_the_confidence(labelled_logits):
    # 200 rows and 15 bins leave 13 rows a bin.
    gaps = {method: [] for method in ("histogram", "isotonic")}
    for seed in range(40):
        logits, labels = labelled_logits(200 + 5000, 10, seed=seed, spread=4.0)
        for method, gap in gaps.items():
            calibrator = fitted(method, logits[:200], labels[:200])
            probs = calibrator.predict_proba(logits[200:])
            gap.append(probs.max(axis=1).mean() - (probs.argmax(axis=1) == labels[200:]).mean())
    for gap in gaps.values():
        error = np.std(gap) / np.sqrt(len(gap))
        assert error < 0.006
        assert abs(np.mean(gap)) < 0.01


def test_a_confidence_on_an_edge_belongs_to_the_lower_bin():
    calibrator = HistogramBinning(n_bins=4, strategy="uniform")
    calibrator.n_classes_ = 2
    calibrator._fit_map(np.array([0.3, 0.5, 0.6, 0.75, 0.8]), np.array([0, 0, 1.0, 1, 1]))
    # (1/4, 1/2] holds two wrong rows, (1/2, 3/4] two right ones, (3/4, 1] one right one. With two
    # more rows in each bin, 1/2 of two and 1/3 of one are their own.
    centre = (1 / 2 + 1 / 3) / (1 / 2 + 1 / 2 + 1 / 3)
    drawn = np.array([centre / 2, (1 + centre) / 2, (1 + 2 * centre) / 3])
    low, middle, high = (5 * drawn + 1 / 2) / 6
    np.testing.assert_allclose(
        calibrator.map_confidence(np.array([0.3, 0.5, 0.6, 0.75, 0.8])),
        [low, low, middle, middle, high],
    )
    np.testing.assert_allclose(calibrator.map_confidence(np.array([0.0, 0.25])), 0.125)


def test_isotonic_regression_does_not_fall(labelled_logits):
    logits, labels = labelled_logits(3000, 10, seed=13)
    calibrator = fitted("isotonic", logits, labels)
    assert (np.diff(calibrator.knots_) > 0).all()
    assert (np.diff(calibrator.values_) >= 0).all()
    _, confidence = calibrator.predict_confidence(logits)
    hits = logits.argmax(axis=1) == labels
    np.testing.assert_allclose(confidence.mean(), hits.mean(), atol=0.01)


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
@pytest.mark.parametrize("n_bins", [1, 4, 15])
def test_histogram_values_are_the_accuracies_of_the_bins(strategy, n_bins, labelled_logits):
    logits, labels = labelled_logits(1000, 3, seed=14)
    calibrator = fitted("histogram", logits, labels, n_bins=n_bins, strategy=strategy)
    confidence, hits = softmax(logits).max(axis=1), logits.argmax(axis=1) == labels
    edges = calibrator.edges_
    assert (edges[0], edges[-1]) == (0.0, 1.0)
    assert len(edges) == n_bins + 1
    of_bin = [(confidence > low) & (confidence <= high) for low, high in pairwise(edges)]
    # Each bin has two more rows, of which the same share is right, such that the mean stays.
    used = [(inside.sum(), hits[inside].sum()) for inside in of_bin if inside.any()]
    centre = sum(h / (n + 2) for n, h in used) / sum(n / (n + 2) for n, _ in used)
    sizes = []
    for b, inside in enumerate(of_bin):
        sizes.append(inside.sum())
        if inside.any():
            drawn = (hits[inside].sum() + 2 * centre) / (inside.sum() + 2)
            expected = (1000 * drawn + 1 / 3) / 1001
            np.testing.assert_allclose(calibrator.map_confidence(confidence[inside]), expected)
        else:
            assert calibrator.values_[b] == (edges[b] + edges[b + 1]) / 2
    assert sum(sizes) == 1000
    if strategy == "quantile":
        assert max(sizes) - min(sizes) <= 1
    else:
        np.testing.assert_allclose(edges, np.linspace(0, 1, n_bins + 1))


def test_equal_mass_bins_do_not_part_ties():
    logits = np.log([[0.5, 0.5 - 1e-9, 1e-9]] * 30 + [[0.9, 0.05, 0.05]] * 3)
    labels = [0] * 15 + [1] * 15 + [0] * 3
    calibrator = fitted("histogram", logits, labels, n_bins=10)
    assert calibrator.n_parameters == 2
    _, confidence = calibrator.predict_confidence(logits)
    centre = (15 / 32 + 3 / 5) / (30 / 32 + 3 / 5)
    drawn = np.repeat([(15 + 2 * centre) / 32, (3 + 2 * centre) / 5], [30, 3])
    np.testing.assert_allclose(confidence, (33 * drawn + 1 / 3) / 34)


def test_more_bins_than_rows():
    for strategy in ("quantile", "uniform"):
        calibrator = fitted("histogram", [[1.0, 0.0], [0.0, 2.0]], [0, 1], strategy=strategy)
        probs = calibrator.predict_proba(np.array([[1.0, 0.0], [0.0, 9.0]]))
        np.testing.assert_allclose(probs.sum(axis=1), 1)


@pytest.mark.parametrize("method", CONFIDENCE_MAPS)
@pytest.mark.parametrize("classes", [2, 3, 50])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_and_pairs_say_the_same(method, classes, dtype, labelled_logits):
    logits, labels = labelled_logits(600, classes, temperature=5.0, seed=15)
    logits = logits.astype(dtype)
    calibrator = fitted(method, logits, labels)
    label, confidence = calibrator.predict_confidence(logits)
    probs = calibrator.predict_proba(logits)
    floor = (1 + 2e-6) / classes
    np.testing.assert_allclose(probs.max(axis=1), np.maximum(confidence, floor), rtol=5e-6)
    np.testing.assert_array_equal(probs.argmax(axis=1), label)
    np.testing.assert_array_equal(label, logits.argmax(axis=1))


def rebuilt_by(logits, confidence):
    """Return rows rebuilt around a new confidence, as NumPy."""
    xp = namespace(logits)
    with np.errstate(all="ignore"):
        return np.asarray(rebuilt(xp, logits, parted(xp, logits), confidence, masks=False))


@settings(max_examples=100)
@given(
    st.integers(2, 8),
    st.integers(0, 10_000),
    st.floats(0, 1),
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from([0.0, 1.0, 20.0, 1e3]),
)
def test_rebuilt_rows_keep_the_label_on_top(classes, seed, confidence, dtype, spread):
    rng = np.random.default_rng(seed)
    logits = (spread * rng.normal(size=(6, classes))).astype(dtype)
    logits[0, :2] = logits[0].max() + 1  # an exact tie
    label = logits.argmax(axis=1)
    for library in (np.asarray, torch.asarray):
        rows = rebuilt_by(library(logits), library(np.full(6, confidence)))
        assert rows.dtype == dtype
        np.testing.assert_allclose(rows.sum(axis=1), 1, atol=1e-6)
        assert (rows >= 0).all()
        np.testing.assert_array_equal(rows.argmax(axis=1), label)
        np.testing.assert_allclose(
            rows.max(axis=1), max(confidence, (1 + 2e-6) / classes), rtol=1e-6
        )
        # Strictly on top: no tie that another library might break the other way.
        others = np.where(np.eye(classes, dtype=bool)[label], -1, rows).max(axis=1)
        assert (others < rows.max(axis=1)).all()


def test_others_share_the_rest_in_their_old_proportions():
    logits = np.array([[np.log(0.6), np.log(0.3), np.log(0.1)], [1e4, 0.0, 0.0]])
    rows = rebuilt_by(logits, np.array([0.8, 0.8]))
    # A row that was certain has no proportions: its rest is spread evenly.
    np.testing.assert_allclose(rows, [[0.8, 0.15, 0.05], [0.8, 0.1, 0.1]])


def test_a_confidence_of_exactly_one(fitted_once):
    certain = np.zeros((4, 5))
    certain[:, 1] = 1e4
    assert (softmax(certain).max(axis=1) == 1).all()
    for method in CONFIDENCE_MAPS:
        probs = fitted_once(method).predict_proba(certain)
        assert (probs.max(axis=1) < 1).all()
        np.testing.assert_allclose(probs.sum(axis=1), 1)
        np.testing.assert_array_equal(probs.argmax(axis=1), 1)
        # and as calibration rows
        again = fitted(method, certain, [1, 1, 0, 1])
        if method in ("isotonic", "histogram"):
            np.testing.assert_allclose(again.predict_proba(certain)[:, 1], (3 + 1 / 5) / 5)
        else:
            assert (np.abs(again.predict_proba(certain)[:, 1] - 3 / 4) < 0.2).all()


def test_binning_defaults_differ_from_no_calibration(overconfident, fitted_once):
    # Elsewhere these two methods were found to change nothing at all.
    logits, labels = overconfident
    for method in CONFIDENCE_MAPS:
        probs = fitted_once(method).predict_proba(logits)
        assert np.abs(probs - softmax(logits)).max() > 0.05
        hits = logits.argmax(axis=1) == labels
        assert abs(probs.max(axis=1).mean() - hits.mean()) < 0.01
