"""Tables of pandas, polars and pyarrow go wherever arrays go, with the names of their columns."""

from __future__ import annotations

import inspect
from dataclasses import replace

import numpy as np
import pytest

import calibrant as cb
from calibrant.core.arrays import as_array
from calibrant.core.errors import PredictionsError
from calibrant.posthoc.temperature.scaling import TemperatureScaling

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")
pyarrow = pytest.importorskip("pyarrow")

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(scale=2, size=(60, 3))
LABELS = np.where(np.arange(60) % 3 == 0, LOGITS.argmin(axis=1), LOGITS.argmax(axis=1))
PROBS = np.asarray(cb.predictions.softmax(LOGITS))
NAMES = ("cat", "dog", "emu")
WORDS = np.array(NAMES)[LABELS]


def tables(rows, names):
    columns = {name: rows[:, i] for i, name in enumerate(names)}
    return {
        "pandas": pandas.DataFrame(columns, index=range(7, 7 + len(rows))),
        "polars": polars.DataFrame(columns),
        "pyarrow": pyarrow.table(columns),
        "batch": pyarrow.RecordBatch.from_pydict(columns),
        "nullable": pandas.DataFrame(columns).convert_dtypes(),
    }


def columns(values):
    return {
        "pandas": pandas.Series(values, index=range(7, 7 + len(values))),
        "polars": polars.Series(values),
        "pyarrow": pyarrow.chunked_array([values[:20], values[20:]]),
        "batch": pyarrow.array(values),
        "nullable": pandas.Series(values).convert_dtypes(),
    }


KINDS = ["pandas", "polars", "pyarrow", "batch", "nullable"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_scores_named_after_classes_goes_with_labels_that_are_names(kind):
    table, words = tables(LOGITS, NAMES)[kind], columns(WORDS)[kind]
    rows = cb.Predictions.from_logits(table, words)
    assert rows.class_names == NAMES
    np.testing.assert_array_equal(rows.labels, LABELS)
    np.testing.assert_allclose(rows.scores, LOGITS)
    calibrator = TemperatureScaling().fit(table, words)
    plain = TemperatureScaling().fit(LOGITS, LABELS)
    assert calibrator.beta_ == pytest.approx(plain.beta_)
    assert calibrator.classes_.tolist() == list(NAMES)
    assert set(calibrator.predict(table).tolist()) <= set(NAMES)
    assert calibrator.score(table, words) == plain.score(LOGITS, LABELS)
    # Fitted anew with numbers, it speaks of numbers.
    assert calibrator.fit(LOGITS, LABELS).classes_.tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_every_public_function_of_scores_and_labels_takes_them(kind, monkeypatch):
    monkeypatch.setattr("calibrant.evaluation.power.SIMULATIONS", 200)  # the same for both
    probs, labels = tables(PROBS, ["prob_0", "prob_1", "prob_2"])[kind], columns(LABELS)[kind]
    assert cb.Predictions.from_probs(probs, labels).class_names is None
    found = 0
    for name in (*cb.metrics.__all__, *cb.predictions.__all__):
        function = getattr(cb.metrics if name in cb.metrics.__all__ else cb.predictions, name)
        if inspect.isclass(function) or not callable(function):
            continue
        given = inspect.signature(function).parameters
        wanted = [key for key, one in given.items() if one.default is inspect.Parameter.empty]
        if wanted in (["probs", "labels"], ["scores", "labels"], ["logits", "labels"]):
            ours, plain = function(probs, labels), function(PROBS, LABELS)
            assert repr(ours) == repr(plain), name
            found += 1
    assert found > 25
    assert repr(cb.evaluate(probs, labels, resamples=20)) == repr(
        cb.evaluate(PROBS, LABELS, resamples=20)
    )
    top = PROBS.max(axis=1)
    confidence = columns(top)[kind]
    assert cb.rows_needed(confidence, 0.3) == cb.rows_needed(top, 0.3)
    assert cb.metrics.auroc(confidence, confidence) == 0.5
    np.testing.assert_array_equal(cb.predictions.softmax(tables(LOGITS, NAMES)[kind]), PROBS)
    np.testing.assert_array_equal(
        cb.metrics.ood_scores(tables(LOGITS, NAMES)[kind], "energy"),
        cb.metrics.ood_scores(LOGITS, "energy"),
    )
    assert cb.metrics.risk_at_coverage(probs, labels, 0.5) == cb.metrics.risk_at_coverage(
        PROBS, LABELS, 0.5
    )


@pytest.mark.parametrize("kind", KINDS)
def test_columns_weigh_group_and_cluster_rows(kind):
    weights = columns(np.arange(60.0) + 1)[kind]
    groups = columns(np.array(["x", "y"])[np.arange(60) % 2])[kind]
    rows = cb.Predictions.from_probs(PROBS, LABELS, sample_weight=weights, clusters=groups)
    np.testing.assert_array_equal(rows.weights, np.arange(60) + 1)
    assert len(np.unique(rows.clusters)) == 2
    found = cb.evaluate_by(replace(rows, weights=None, clusters=None), groups, resamples=20)
    assert list(found.groups) == ["x", "y"]


def test_groups_by_class_go_by_name():
    rows = cb.Predictions.from_probs(PROBS, WORDS, class_names=NAMES)
    for by in ("predicted", "label"):
        assert set(cb.evaluate_by(rows, by, resamples=20, min_rows=5).groups) == set(NAMES)


def test_lists_in_a_column_are_rows():
    listed = pandas.Series(list(PROBS))
    np.testing.assert_array_equal(as_array(listed), PROBS)
    np.testing.assert_array_equal(as_array(pyarrow.array(PROBS.tolist())), PROBS)


@pytest.mark.parametrize(
    ("scores", "labels", "more", "message"),
    [
        (LOGITS, WORDS, {}, "not names such as 'cat', 'dog', 'emu', unless class_names"),
        (LOGITS, WORDS, {"class_names": ["cat", "dog"]}, "class_names must be 3 different names"),
        (LOGITS, WORDS, {"class_names": ["cat", "dog", "dog"]}, "must be 3 different names"),
        (LOGITS, WORDS, {"class_names": ["cat", "dog", "eel"]}, "holds 'emu' in row .*none of the"),
        (tables(LOGITS, ["1", "0", "2"])["pandas"], LABELS, {}, "numbered '1', '0', '2', which"),
        (tables(LOGITS, ["3", "5", "7"])["polars"], LABELS, {}, "could be the numbers of the clas"),
        (
            pandas.DataFrame({"a": list("xy"), "b": [1, 2]}),
            [0, 1],
            {},
            "column 'a' of a pandas",
        ),
        (
            pandas.DataFrame({"a": [1.0, None], "b": [1, 2]}),
            [0, 1],
            {},
            "row 1, column 0 hol",
        ),
        (LOGITS, pandas.Series([0] * 59 + [None]), {}, "row 59 holds nan"),
        (LOGITS, np.array([{}] * 60), {}, "'labels' must"),
    ],
)
def test_what_could_be_read_in_two_ways_or_none_is_one_sentence(scores, labels, more, message):
    with pytest.raises(PredictionsError, match=message):
        cb.Predictions.from_logits(scores, labels, **more)


def test_the_page_calls_classes_by_name(tmp_path):

    rows = cb.Predictions.from_probs(pandas.DataFrame(PROBS, columns=NAMES), WORDS)
    page = tmp_path / "page.html"
    cb.evaluate(rows, metrics=["ece"], resamples=20).to_html(page)
    assert '"class_labels":[0,1,2],"class_names":["cat","dog","emu"]' in page.read_text()
