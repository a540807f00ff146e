"""Calibrators stand where scikit-learn wants a classifier: its data are logits."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.validation import check_is_fitted

import calibrant as cb
from calibrant.core.errors import InputError, NotFittedError, PredictionsError
from calibrant.posthoc.registry import METHODS, make_calibrator
from calibrant.posthoc.temperature.scaling import TemperatureScaling

ROWS = cb.load_sample("validation").take(slice(400))
LOGITS, LABELS = np.asarray(ROWS.logits), ROWS.labels


def test_a_pipeline_may_end_in_a_calibrator():
    pipeline = make_pipeline(FunctionTransformer(lambda x: 2 * x), TemperatureScaling())
    pipeline.fit(LOGITS, LABELS)
    alone = TemperatureScaling().fit(2 * LOGITS, LABELS)
    np.testing.assert_array_equal(pipeline.predict_proba(LOGITS), alone.predict_proba(2 * LOGITS))
    np.testing.assert_array_equal(pipeline.predict(LOGITS), LOGITS.argmax(axis=1))
    np.testing.assert_array_equal(pipeline.classes_, np.arange(10))
    assert pipeline.score(LOGITS, LABELS) == np.mean(LOGITS.argmax(axis=1) == LABELS)


def test_a_search_finds_the_argument_that_predicts_rows_held_out_best():
    search = GridSearchCV(
        make_pipeline(cb.posthoc.HistogramBinning()),
        {"histogrambinning__prior_strength": [0.0, 2.0, 500.0]},
        scoring="neg_log_loss",
        cv=3,
    ).fit(LOGITS, LABELS)
    found = search.cv_results_["mean_test_score"]
    assert found.argmax() == 1
    assert np.ptp(found) > 0


def test_cross_validation_scores_by_accuracy_and_by_likelihood():
    splits = 4
    accuracy = cross_val_score(TemperatureScaling(), LOGITS, LABELS, cv=splits)
    assert accuracy.mean() == pytest.approx(np.mean(LOGITS.argmax(axis=1) == LABELS))
    probs = cross_val_predict(
        TemperatureScaling(), LOGITS, LABELS, cv=splits, method="predict_proba"
    )
    scored = cross_val_score(
        TemperatureScaling(), LOGITS, LABELS, cv=splits, scoring="neg_log_loss"
    )
    assert scored.mean() == pytest.approx(-log_loss(LABELS, probs), rel=1e-6)
    plain = cross_val_score(
        cb.posthoc.Uncalibrated(), LOGITS, LABELS, cv=splits, scoring="neg_log_loss"
    )
    assert scored.mean() > plain.mean()


@pytest.mark.parametrize("method", [*METHODS, "svs+top-rest"])
def test_every_method_is_cloned_as_it_was_made(method):
    calibrator = make_calibrator(method)
    twin = clone(calibrator)
    assert type(twin) is type(calibrator)
    assert twin.get_params() == calibrator.get_params()
    assert is_classifier(calibrator)
    assert not hasattr(twin, "classes_")


def test_scikit_learn_sees_whether_a_calibrator_is_fitted():
    calibrator = TemperatureScaling()
    with pytest.raises(NotFittedError, match="call fit first"):
        _ = calibrator.classes_
    with pytest.raises(Exception, match="is not fitted yet"):
        check_is_fitted(calibrator)
    check_is_fitted(calibrator.fit(LOGITS, LABELS))


def test_scores_are_weighted_by_row():
    calibrator = TemperatureScaling().fit(LOGITS, LABELS)
    right = LOGITS.argmax(axis=1) == LABELS
    assert calibrator.score(LOGITS, LABELS, sample_weight=right) == 1
    weights = np.where(right, 1.0, 3.0)
    assert calibrator.score(LOGITS, LABELS, weights) == pytest.approx(
        right.sum() / (right.sum() + 3 * (~right).sum())
    )
    wrong = {
        "above 0 for at least one row, but all 400 are 0": np.zeros(len(right)),
        "finite and not negative, but row 0 holds": -weights,
        "399": weights[1:],
    }
    for why, bad in wrong.items():
        with pytest.raises(PredictionsError, match=why):
            calibrator.score(LOGITS, LABELS, bad)


def test_an_argument_that_does_not_exist_is_named():
    with pytest.raises(InputError, match="method 'temperature' has no argument 'bins'"):
        TemperatureScaling().set_params(bins=3)
