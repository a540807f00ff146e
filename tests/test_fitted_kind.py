"""A calibrator takes what it was fitted to: logits or probabilities, of classes or of one event."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from feature_rows import QUICK

import calibrant as cb
from calibrant.core.errors import InputError, PredictionsError

METHODS = ["temperature", "smart", "svs-top-rest", "auto", "isotonic", "vector", "platt"]
OF_ONE_SCORE = ["temperature", "platt", "beta", "isotonic", "auto", "venn-abers"]


def quick(method: str) -> cb.Calibrator:
    return cb.make_calibrator(method, **QUICK.get(method, {}))


@pytest.fixture(scope="module")
def rows() -> cb.Predictions:
    return cb.load_sample("validation").take(slice(600))


@pytest.fixture(scope="module")
def probs(rows: cb.Predictions) -> np.ndarray:
    found = np.asarray(rows.probs, dtype=np.float64)
    return found / found.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def of_event() -> cb.Predictions:
    rng = np.random.default_rng(0)
    truth = rng.random(800)
    return cb.Predictions.from_binary(truth**2, (rng.random(800) < truth).astype(int))


@pytest.mark.parametrize("method", METHODS)
def test_probabilities_are_read_as_what_it_was_fitted_to(
    rows: cb.Predictions, probs: np.ndarray, method: str, tmp_path: Path
) -> None:
    given = cb.Predictions.from_probs(probs, rows.labels)
    calibrator = quick(method).fit_predictions(given)
    expected = calibrator.apply_predictions(given).scores
    np.testing.assert_array_equal(calibrator.predict_proba(probs), expected)
    np.testing.assert_array_equal(calibrator.predict_proba(given.logits, kind="logits"), expected)
    assert calibrator.predict_confidence(probs)[1].mean() > 0.7
    single = calibrator.predict_proba(probs[0])
    np.testing.assert_allclose(single, np.asarray(expected)[0], rtol=1e-12)
    calibrator.save(tmp_path / "a.safetensors")
    again = cb.load(tmp_path / "a.safetensors")
    assert again.kind_ == "probs"
    np.testing.assert_array_equal(again.predict_proba(probs), expected)
    other = quick(method).fit(probs, rows.labels, kind="probs")
    np.testing.assert_array_equal(other.predict_proba(probs), expected)


@pytest.mark.parametrize("kind", ["probs", "logits"])
@pytest.mark.parametrize("method", OF_ONE_SCORE)
def test_one_score_a_row_is_taken_as_it_was_fitted(
    of_event: cb.Predictions, method: str, kind: str, tmp_path: Path
) -> None:
    probs = np.asarray(of_event.one_score)
    scores = probs if kind == "probs" else np.log(probs) - np.log1p(-probs)
    name = "prob" if kind == "probs" else "logit"
    given = cb.Predictions.from_binary(scores, of_event.labels, kind=name)
    calibrator = quick(method).fit_predictions(given)
    expected = np.asarray(calibrator.apply_predictions(given).scores)
    for shape in ((-1,), (-1, 1)):
        np.testing.assert_array_equal(calibrator.predict_proba(scores.reshape(shape)), expected)
    np.testing.assert_array_equal(calibrator.predict_proba(given.scores), expected)
    assert set(calibrator.predict(scores).tolist()) <= {0, 1}
    again = quick(method).fit(scores, of_event.labels, kind=kind)
    np.testing.assert_array_equal(again.predict_proba(scores), expected)
    calibrator.save(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(
        cb.load(tmp_path / "a.safetensors").predict_proba(scores), expected
    )


def test_a_part_of_an_average_takes_what_the_average_takes(
    rows: cb.Predictions, probs: np.ndarray
) -> None:
    auto = quick("auto").fit(probs, rows.labels, kind="probs")
    assert auto.chain().predict_confidence(probs)[1].mean() > 0.7


def test_torch_and_onnx_take_the_same(
    rows: cb.Predictions, probs: np.ndarray, of_event: cb.Predictions
) -> None:
    torch = pytest.importorskip("torch")
    calibrator = cb.SMART().fit(probs, rows.labels, kind="probs")
    expected = calibrator.predict_proba(probs)
    found = calibrator.to_torch()(torch.tensor(probs))
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)
    logits = torch.tensor(np.log(probs))
    np.testing.assert_allclose(
        calibrator.to_torch(kind="logits")(logits).numpy(), expected, atol=1e-12
    )
    one = cb.make_calibrator("beta").fit_predictions(of_event)
    scores = np.asarray(of_event.one_score)
    np.testing.assert_allclose(
        one.to_torch()(torch.tensor(scores)).numpy(), one.predict_proba(scores), atol=1e-12
    )
    pytest.importorskip("onnx")
    assert [value.name for value in calibrator.to_onnx().graph.input] == ["probs_in"]
    assert [value.name for value in calibrator.to_onnx(kind="logits").graph.input] == ["logits"]


def test_rows_that_look_like_probabilities_are_refused_unless_the_caller_says_what_they_are(
    rows: cb.Predictions, probs: np.ndarray
) -> None:
    scaling = cb.TemperatureScaling().fit(rows.logits, rows.labels)
    said = 'say what they are, kind="probs" or kind="logits"'
    halves = rows.logits.astype(np.float16)
    halves = np.exp(halves - halves.max(axis=1, keepdims=True))
    halves /= halves.sum(axis=1, keepdims=True)  # each step rounded to 16 bits, as networks do it
    rounded = (np.round(probs, 3), np.round(100 * probs, 1), halves, halves.astype(np.float64))
    for scores in (probs, *rounded):
        with pytest.raises(PredictionsError, match=f"predict_proba: every row of .*{said}"):
            scaling.predict_proba(scores)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaling.predict_proba(rows.logits)
        scaling.predict_proba(probs, kind="logits")  # the caller says so


def test_other_scores_are_refused(rows: cb.Predictions, probs: np.ndarray) -> None:
    scaling = cb.TemperatureScaling().fit(probs, rows.labels, kind="probs")
    with pytest.raises(
        PredictionsError, match=r"'probs'.*; if these are logits, say so: kind="
    ) as no:
        scaling.predict_proba(rows.logits)
    assert no.value.__suppress_context__
    with pytest.raises(PredictionsError) as no:
        cb.Predictions.from_probs(rows.logits, rows.labels)
    assert no.value.__context__ is None  # one reason, once
    one = cb.Predictions.from_binary([0.2, 0.9, 0.6], [0, 1, 0])
    with pytest.raises(PredictionsError, match='; if these are logits, say so: kind="logits"'):
        cb.posthoc.PlattScaling().fit_predictions(one).predict_proba(np.array([-1.0, 2.0]))
    with pytest.raises(InputError, match="kind must be one of logits, probs"):
        scaling.predict_proba(probs, kind="percent")  # type: ignore[arg-type]
    with pytest.raises(PredictionsError, match=r"probs of shape \(N, 10\), not \(600,\)"):
        scaling.predict_proba(probs[:, 0])
