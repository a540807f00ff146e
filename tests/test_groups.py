"""Evaluation within groups of rows."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from calibrant.core.errors import InputError, PredictionsError, UnknownMethodError
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.groups import evaluate_by
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax

Labelled = tuple[NDArray[np.float64], NDArray[np.int64]]


@pytest.fixture(scope="module")
def predictions(overconfident: Labelled) -> Predictions:
    return Predictions.from_logits(*overconfident, source="test rows")


def test_a_group_is_evaluated_on_its_own_rows(predictions: Predictions):
    column = np.array(["left", "right"])[np.arange(predictions.n) % 2]
    found = evaluate_by(predictions, column, metrics=["ece", "nll"], resamples=20)
    assert list(found.groups) == ["left", "right"]
    for start, name in enumerate(found.groups):
        alone = evaluate(
            predictions.take(np.arange(start, predictions.n, 2)),
            metrics=["ece", "nll"],
            resamples=20,
        )
        assert found[name].as_dict() == alone.as_dict()
    assert found.metric == "ece"
    assert found.results("nll")["left"].metric.name == "nll"


def test_groups_by_class(predictions: Predictions):
    said = predictions.scores.argmax(axis=1)
    for by, member in (("predicted", said), ("label", predictions.labels)):
        found = evaluate_by(predictions, by, metrics=["ece"], resamples=10)
        assert list(found.groups) == [str(k) for k in range(5)]
        assert [group.n for group in found.groups.values()] == np.bincount(member).tolist()
        assert found.by == by
    assert found.miscalibrated == []
    assert "floor 95 %" not in str(found)


@pytest.mark.parametrize("by", ["margin", "confidence"])
def test_groups_by_quantile(predictions: Predictions, by: str):
    found = evaluate_by(predictions, by, metrics=["accuracy"], quantiles=4, resamples=10)
    assert [group.n for group in found.groups.values()] == [500] * 4
    values = [group["accuracy"].value for group in found.groups.values()]
    assert values == sorted(values)
    ends = [
        (group.top.confidence.min(), group.top.confidence.max()) for group in found.groups.values()
    ]
    if by == "confidence":
        assert all(a[1] < b[0] for a, b in pairwise(ends))


def test_equal_values_stay_together():
    c = np.repeat([0.5, 0.9, 1.0], [10, 50, 140])
    predictions = Predictions.from_confidence(c, np.zeros(200, int), np.arange(200) % 2)
    found = evaluate_by(predictions, "confidence", quantiles=5, min_rows=1, resamples=10)
    assert [group.n for group in found.groups.values()] == [10, 50, 140]
    constant = Predictions.from_confidence(np.full(30, 0.7), np.zeros(30, int), np.arange(30) % 2)
    assert len(evaluate_by(constant, "confidence", resamples=10).groups) == 1
    few = constant.take(np.arange(3))
    assert len(evaluate_by(few, "confidence", min_rows=1, resamples=10).groups) == 1


def test_probabilities_with_labels(overconfident: Labelled):
    z, y = overconfident
    from_probs = evaluate_by(softmax(z), "margin", y, metrics=["ece"], resamples=10)
    from_logits = evaluate_by(
        Predictions.from_logits(z, y), "margin", metrics=["ece"], resamples=10
    )
    for a, b in zip(from_probs.groups.values(), from_logits.groups.values(), strict=True):
        assert a["ece"].value == pytest.approx(b["ece"].value)
    with pytest.raises(InputError, match="labels"):
        evaluate_by(softmax(z), "margin")


def test_small_groups_are_left_out_and_said_to_be(predictions: Predictions):
    column = np.zeros(predictions.n, int)
    column[:5] = 7
    found = evaluate_by(predictions, column, metrics=["ece"], resamples=10)
    assert list(found.groups) == ["0"]
    assert "fewer than 20" in found.skipped["7"]
    assert "7 left out" in str(found)
    with pytest.raises(InputError, match="min_rows"):
        evaluate_by(predictions, column, min_rows=10_000)


def test_the_worst_group_is_found():
    rng = np.random.default_rng(0)
    c = np.full(2000, 0.8)
    column = np.arange(2000) % 2
    right = rng.random(2000) < np.where(column == 1, 0.5, 0.8)
    predictions = Predictions.from_confidence(c, np.zeros(2000, int), 1 - right.astype(int))
    found = evaluate_by(predictions, column, resamples=200)
    assert found.worst == "1"
    assert found.miscalibrated == ["1"]
    text = str(found)
    assert "*" in text
    assert "Holm" in text
    saved = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert saved["miscalibrated"] == ["1"]
    assert set(saved["groups"]) == {"0", "1"}


def test_many_groups_are_printed_worst_first(predictions: Predictions):
    found = evaluate_by(predictions, np.arange(predictions.n) % 40, metrics=["ece"], resamples=5)
    text = str(found)
    assert "and 15 more groups" in text
    first = text.splitlines()[4].split()[0]
    assert first == found.worst


def test_bad_groups_are_refused(predictions: Predictions):
    with pytest.raises(InputError, match="'colour'"):
        evaluate_by(predictions, "colour")
    with pytest.raises(PredictionsError, match="shape"):
        evaluate_by(predictions, np.zeros(3))
    with pytest.raises(UnknownMethodError):
        evaluate_by(predictions, "label", metrics=["no"])
    with pytest.raises(InputError, match="n_bins"):
        evaluate_by(predictions, "margin", quantiles=0)
    top = Predictions.from_confidence(np.full(30, 0.5), np.zeros(30, int), np.zeros(30, int))
    with pytest.raises(PredictionsError, match="score for every class"):
        evaluate_by(top, "margin")
