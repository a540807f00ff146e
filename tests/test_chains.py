"""SVS with top-rest scaling behind it: against its steps put together, and what it is for."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from calibrant.core.errors import InputError
from calibrant.posthoc.chain import Chain
from calibrant.posthoc.confidence.top_rest import TopRestScaling
from calibrant.posthoc.fitting.cross_validation import fold_numbers
from calibrant.posthoc.linear.vector import StructuredVectorScaling
from calibrant.posthoc.loading import load
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.rows import softmax, summarize
from calibrant.sample import load_sample


def drawn(rows: int, seed: int, classes: int = 6):
    """Logits that favour some classes and are too sure at middling margins, labels, the truth."""
    rng = np.random.default_rng(seed)
    honest = rng.normal(scale=2.0, size=(rows, classes))
    truth, index, top = softmax(honest), np.arange(rows), honest.argmax(axis=1)
    second, first = np.sort(honest, axis=1)[:, -2:].T
    bump = np.exp(-(((np.log(first - second + 1e-3) - 0.3) / 0.6) ** 2))
    confidence = truth[index, top]
    new = 1 / (1 + np.exp(1.2 * bump - np.log(confidence / (1 - confidence))))
    truth[index, top] = 0
    truth *= ((1 - new) / truth.sum(axis=1))[:, None]
    truth[index, top] = new
    labels = (truth.cumsum(axis=1) > rng.random((rows, 1))).argmax(axis=1)
    return 1.5 * honest + np.linspace(-1.5, 1.5, classes), labels, truth


@pytest.mark.parametrize("folds", [1, 3])
def test_is_its_steps_put_together(folds):
    logits, labels, _ = drawn(400, 0)
    found = make_calibrator(
        "svs-top-rest", svs__ridge=2.0, folds=folds, top_rest__knots=5, seed=7
    ).fit(logits, labels)
    whole = StructuredVectorScaling(ridge=2.0).fit(logits, labels)
    scores = np.log(whole.predict_proba(logits))
    if folds > 1:
        fold = fold_numbers(summarize(logits, labels), folds, 7)
        for part in range(folds):
            seen = fold != part
            vector = StructuredVectorScaling(ridge=2.0).fit(logits[seen], labels[seen])
            scores[~seen] = np.log(vector.predict_proba(logits[~seen]))
    second = TopRestScaling(knots=5).fit(scores, labels)
    new, *_ = drawn(50, 1)
    wanted = second.predict_proba(np.log(whole.predict_proba(new)))
    np.testing.assert_allclose(found.predict_proba(new), wanted, atol=1e-12)
    assert found.n_parameters == whole.n_parameters + second.n_parameters
    assert found.fit_report_.value == pytest.approx(second.fit_report_.value)


def test_better_than_either_step_where_both_have_something_to_do():
    new, answers, truth = drawn(20_000, 99)
    gains = []
    for seed in range(5):
        logits, labels, _ = drawn(2000, seed)
        loss, away = {}, {}
        for method in ("svs", "top-rest", "svs-top-rest"):
            probs = make_calibrator(method).fit(logits, labels).predict_proba(new)
            loss[method] = -np.log(probs[np.arange(len(new)), answers]).mean()
            away[method] = np.abs(probs - truth).sum(axis=1).mean()
        assert away["svs-top-rest"] < min(away["svs"], away["top-rest"])
        gains.append(min(loss["svs"], loss["top-rest"]) - loss["svs-top-rest"])
    assert np.mean(gains) > 4 * np.std(gains, ddof=1) / np.sqrt(5)


def test_held_out_rows_keep_the_second_step_from_undoing_the_first():
    # Many classes, few rows: SVS is too sure of the rows that it was fitted to.
    rng = np.random.default_rng(0)
    lost = {1: [], 5: []}
    for _ in range(6):
        logits = 1.5 * rng.normal(size=(4200, 40))
        labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        new, answers = logits[200:], labels[200:]
        for folds, losses in lost.items():
            fitted = make_calibrator("svs-top-rest", svs__ridge=0.05, folds=folds)
            probs = fitted.fit(logits[:200], labels[:200]).predict_proba(new)
            losses.append(-np.log(probs[np.arange(4000), answers]).mean())
    assert np.mean(lost[5]) < np.mean(lost[1])


def test_masked_classes_stay_masked_and_files_come_back(tmp_path):
    logits, labels, _ = drawn(500, 2)
    calibrator = make_calibrator("svs-top-rest").fit(logits, labels)
    masked = logits[:3].copy()
    masked[0, 2] = -np.inf
    masked[1, np.arange(6) != masked[1].argmax()] = -np.inf
    probs = calibrator.predict_proba(masked)
    np.testing.assert_array_equal(probs[~np.isfinite(masked)], 0)
    np.testing.assert_allclose(probs.sum(axis=1), 1)
    calibrator.save(tmp_path / "a.safetensors")
    back = load(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(back.predict_proba(masked), probs)
    assert {name: part.method for name, part in back.parts().items()} == {
        "svs_": "svs",
        "top_rest_": "top-rest",
    }


@pytest.mark.parametrize(
    "arguments", [{"folds": 0}, {"svs__ridge": 0}, {"top_rest__penalty": -1.0}]
)
def test_arguments_out_of_range(arguments, overconfident):
    with pytest.raises(InputError, match=next(iter(arguments)).rpartition("__")[2]):
        make_calibrator("svs-top-rest", **arguments).fit(*overconfident)


def test_probit_top_rest_is_a_chain_whose_first_step_is_chosen():
    rows = load_sample("validation")
    fitted = make_calibrator("probit-top-rest").fit_predictions(rows)
    assert isinstance(fitted, Chain)
    named = make_calibrator(f"{fitted.first_.method}+top-rest").fit_predictions(rows)
    logits = rows.logits[:500]
    np.testing.assert_allclose(
        fitted.predict_proba(logits), named.predict_proba(logits), atol=1e-12
    )


@pytest.mark.parametrize("method", ["temperature+svs-top-rest", "svs-top-rest", "probit-top-rest"])
def test_a_chain_goes_to_other_processes_and_comes_back_the_same(method):
    rows = load_sample("validation").take(slice(300))
    chain = make_calibrator(method)
    again = pickle.loads(pickle.dumps(chain))
    assert type(again) is type(chain)
    assert again.get_params() == chain.get_params()
    chain.fit_predictions(rows)
    again = pickle.loads(pickle.dumps(chain))
    np.testing.assert_array_equal(
        again.predict_proba(rows.logits), chain.predict_proba(rows.logits)
    )
