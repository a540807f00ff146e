"""The one-vs-rest form of maps of the confidence, against each class mapped by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import isotonic_regression

from calibrant.comparison.compare import compare
from calibrant.core.errors import InputError
from calibrant.posthoc.confidence.either_form import MapOfEitherForm
from calibrant.posthoc.loading import load
from calibrant.posthoc.registry import METHODS, make_calibrator
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax

EITHER = [name for name, kind in METHODS.items() if issubclass(kind, MapOfEitherForm)]
every_one = pytest.mark.parametrize("method", EITHER)


def fitted(method: str, logits, labels, **arguments):
    return make_calibrator(method, form="one-vs-rest", **arguments).fit(logits, labels)


def test_the_four_methods_have_both_forms():
    assert {"histogram", "isotonic", "bbq", "venn-abers"} <= set(EITHER)


def of_one_class(method: str):
    """Return the top-label form, drawn towards its centre as the map of a class is: a quarter."""
    alone = make_calibrator(method)
    shrunk = method in ("histogram", "isotonic")
    return alone.set_params(prior_strength=0.5) if shrunk else alone


@every_one
@pytest.mark.parametrize("classes", [2, 6])
def test_each_class_has_the_map_of_its_own_problem(method, classes, labelled_logits):
    logits, labels = labelled_logits(600, classes, seed=1)
    new, _ = labelled_logits(300, classes, seed=2)
    calibrator = fitted(method, logits, labels)
    assert len(calibrator.maps()) == classes
    mapped = np.empty(new.shape)
    for k in range(classes):
        # The two-class form of the same map, fitted on bare pairs.
        alone = of_one_class(method)
        alone.n_classes_ = classes
        p = softmax(logits)[:, k]
        order = np.argsort(p, kind="stable")
        alone._fit_map(p[order], (labels == k)[order].astype(float))
        mapped[:, k] = alone.map_confidence(softmax(new)[:, k])
    expected = mapped / mapped.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(calibrator.predict_proba(new), expected, rtol=1e-9)
    assert calibrator.n_parameters == sum(part.levels for part in calibrator.maps())


def test_isotonic_of_every_class_by_hand(labelled_logits):
    logits, labels = labelled_logits(500, 4, seed=3)
    calibrator = fitted("isotonic", logits, labels)
    probs, raw = softmax(logits), np.empty((500, 4))
    for k in range(4):
        _, index, count = np.unique(probs[:, k], return_inverse=True, return_counts=True)
        fit = isotonic_regression(np.bincount(index, labels == k) / count, weights=count)
        block = np.repeat(np.arange(len(fit.blocks) - 1), np.diff(fit.blocks))
        rows, level = np.bincount(block, count), fit.x[fit.blocks[:-1]]
        # Half a row more in each block: a quarter of the weight in the top-label form.
        centre = np.sum(rows * level / (rows + 0.5)) / np.sum(rows / (rows + 0.5))
        mixed = (500 * (level * rows + 0.5 * centre) / (rows + 0.5) + 1 / 4)[block] / 501
        raw[:, k] = isotonic_regression(mixed, weights=count).x[index]
    np.testing.assert_allclose(
        calibrator.predict_proba(logits), raw / raw.sum(axis=1, keepdims=True), rtol=1e-9
    )


@every_one
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_laws(method, dtype, labelled_logits, tmp_path):
    logits, labels = labelled_logits(700, 5, seed=4)
    logits = logits.astype(dtype)
    calibrator = fitted(method, logits, labels)
    probs = calibrator.predict_proba(logits)
    assert probs.dtype == dtype
    assert (probs > 0).all()
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-6)
    # Halves, another library, permuted classes and a file all give the same rows.
    np.testing.assert_array_equal(calibrator.predict_proba(logits[300:]), probs[300:])
    theirs = fitted(method, torch.tensor(logits), labels).predict_proba(torch.tensor(logits))
    assert isinstance(theirs, torch.Tensor)
    np.testing.assert_allclose(theirs.numpy(), probs, atol=1e-3 if dtype == np.float32 else 1e-9)
    order = np.array([3, 0, 4, 1, 2])
    moved = fitted(method, logits[:, order], np.argsort(order)[labels])
    np.testing.assert_allclose(
        moved.predict_proba(logits[:, order]),
        probs[:, order],
        atol=1e-3 if dtype == np.float32 else 1e-9,
    )
    calibrator.save(tmp_path / "a.safetensors")
    back = load(tmp_path / "a.safetensors")
    assert back.form == "one-vs-rest"
    np.testing.assert_array_equal(back.predict_proba(logits), probs)
    label, confidence = back.predict_confidence(logits)
    np.testing.assert_array_equal(label, probs.argmax(axis=1))
    np.testing.assert_array_equal(confidence, probs.max(axis=1).astype(np.float64))


@every_one
def test_a_biased_class_is_put_right_where_the_top_label_form_can_not(method, labelled_logits):
    logits, labels = labelled_logits(6000, 4, temperature=1.0, seed=5)
    biased = logits + np.array([3.0, 0, 0, 0])
    fit, test = slice(0, 3000), slice(3000, None)
    both = {
        form: make_calibrator(method, form=form).fit(biased[fit], labels[fit])
        for form in ("top-label", "one-vs-rest")
    }
    right = {
        form: (c.predict_proba(biased[test]).argmax(axis=1) == labels[test]).mean()
        for form, c in both.items()
    }
    assert right["one-vs-rest"] > right["top-label"] + 0.02
    assert both["top-label"].keeps_prediction is True
    assert both["one-vs-rest"].keeps_prediction is False
    assert METHODS[method].keeps_prediction is True
    for form, calibrator in both.items():
        assert calibrator.fit_report_.notes[-1].startswith(f"{form} form")


@every_one
def test_masked_classes_stay_out_of_their_map(method, labelled_logits):
    logits, labels = labelled_logits(500, 4, seed=6)
    masked = np.where(np.arange(500)[:, None] % 2 * (labels != 1)[:, None], logits, logits)
    hidden = (np.arange(500) % 2 == 0) & (labels != 1)
    masked[hidden, 1] = -np.inf
    calibrator = fitted(method, masked, labels)
    probs = calibrator.predict_proba(masked)
    np.testing.assert_array_equal(probs[hidden, 1], 0)
    np.testing.assert_allclose(probs.sum(axis=1), 1)
    # The map of the class is that of the rows that show it.
    alone = of_one_class(method)
    alone.n_classes_ = 4
    p, hit = softmax(masked)[~hidden, 1], (labels == 1)[~hidden]
    order = np.argsort(p, kind="stable")
    alone._fit_map(p[order], hit[order].astype(float))
    at = np.linspace(0, 1, 101)
    np.testing.assert_allclose(calibrator.maps()[1].map_confidence(at), alone.map_confidence(at))
    # A class that no row shows, and a row with one class.
    everywhere = np.insert(logits, 2, -np.inf, axis=1)
    shifted = labels + (labels >= 2)
    probs = fitted(method, everywhere, shifted).predict_proba(everywhere)
    np.testing.assert_array_equal(probs[:, 2], 0)
    lone = np.array([[-np.inf, 0.0, -np.inf, -np.inf]])
    np.testing.assert_array_equal(calibrator.predict_proba(lone), [[0, 1, 0, 0]])


@every_one
def test_classes_that_never_occur_keep_a_little(method, labelled_logits):
    logits, labels = labelled_logits(400, 5, seed=7)
    seen = labels < 3
    probs = fitted(method, logits[seen], labels[seen]).predict_proba(logits)
    assert (probs > 0).all()
    np.testing.assert_allclose(probs.sum(axis=1), 1)
    # Venn-Abers says how little it knows of a class beyond all rows that it saw.
    assert probs[:, 3:].mean() < (0.1 if method == "venn-abers" else 0.05)


def test_intervals_of_every_class(labelled_logits):
    logits, labels = labelled_logits(300, 3, seed=8)
    calibrator = fitted("venn-abers", logits, labels)
    low, high = calibrator.intervals(logits)
    assert low.shape == high.shape == (300, 3)
    assert (low <= high).all()
    merged = high / (1 - low + high)
    np.testing.assert_allclose(
        calibrator.predict_proba(logits), merged / merged.sum(axis=1, keepdims=True)
    )


def test_both_forms_in_a_comparison(labelled_logits):
    fit, test = (
        Predictions.from_logits(*labelled_logits(400, 3, seed=s), source=str(s)) for s in (9, 10)
    )
    forms = [make_calibrator("isotonic", form=form) for form in ("top-label", "one-vs-rest")]
    found = compare(forms, fit=fit, test=test, resamples=20)
    notes = {method["method"]: method["notes"] for method in (m.as_dict() for m in found.methods)}
    assert any("top-label form" in note for note in notes["isotonic-1"])
    assert any("one-vs-rest form" in note for note in notes["isotonic-2"])


def test_another_form_is_refused(overconfident):
    with pytest.raises(InputError, match="form must be one of top-label, one-vs-rest"):
        make_calibrator("isotonic", form="pairs").fit(*overconfident)
