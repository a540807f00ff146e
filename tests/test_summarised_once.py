"""The rows of a fit are summarised, and their temperature found, once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions import predictions as predictions_module
from calibrant.predictions.predictions import Predictions


@pytest.fixture
def rows(labelled_logits: Any) -> Predictions:
    return Predictions.from_logits(*labelled_logits(400, 4, seed=11), source="rows")


@pytest.mark.parametrize(
    "method",
    ["temperature", "temperature-laplace", "ets", "vector", "svs", "cts", "top-rest", "smart"],
)
def test_methods_share_the_summary_of_their_rows(
    method: str, rows: Predictions, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_calibrator("temperature").fit_predictions(rows)
    # A guard fits to parts of the rows, which have summaries of their own.
    arguments = {"guard": False} if method == "vector" else {}
    fitted_alone = make_calibrator(method, **arguments).fit(rows.scores, rows.labels)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the rows were summarised again")

    monkeypatch.setattr(predictions_module, "summarize", refuse)
    fitted = make_calibrator(method, **arguments).fit_predictions(rows)
    np.testing.assert_array_equal(
        fitted.predict_proba(rows.scores), fitted_alone.predict_proba(rows.scores)
    )


def test_rows_of_logits_alone_keep_their_summary_or_take_other_logits(rows: Predictions) -> None:
    assert rows.only_logits() is rows
    features = np.ones((rows.n, 2))
    more = Predictions.from_logits(rows.scores, rows.labels, features, source="more")
    alone = more.only_logits()
    assert alone.features is None
    assert alone.source == "more"
    np.testing.assert_array_equal(alone.scores, rows.scores)
    doubled = rows.only_logits(2 * rows.scores)
    np.testing.assert_array_equal(doubled.labels, rows.labels)
    assert doubled.temperature.temperature == pytest.approx(
        2 * rows.temperature.temperature, rel=1e-4
    )
    probs = Predictions.from_probs(rows.probs, rows.labels).only_logits()
    assert probs.kind == "logits"


def test_each_part_of_the_rows_has_its_own_summary(rows: Predictions) -> None:
    half = rows.take(np.arange(200))
    assert half.summary.n == 200
    assert rows.summary.n == 400
    assert half.margins.shape == (200,)
