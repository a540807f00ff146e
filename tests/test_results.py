"""Results are values: they say what was found, pickle small, and travel to other processes."""

from __future__ import annotations

import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import joblib
import numpy as np
import pytest

import calibrant as cb
from calibrant.core.result import Drawn, Result
from calibrant.evaluation.best_set import may_be_best
from calibrant.evaluation.evaluate import sharing
from calibrant.evaluation.history import History
from calibrant.evaluation.uncertainty import paired_difference
from calibrant.metrics.registry import METRICS, POSITIVE_METRICS
from calibrant.monitor.planning import plan

VAL, TEST = cb.load_sample("validation"), cb.load_sample("test")
LONGEST_REPR = 700
SEVEN = ["ece", "adaece", "mce", "nll", "brier", "top_nll", "accuracy"]


SCALING = cb.TemperatureScaling().fit_predictions(VAL)


def watched() -> cb.Monitor:
    monitor = cb.Monitor(window=200)
    monitor.update(np.full(400, 0.9), np.arange(400) % 2 == 0)
    return monitor


def results() -> dict[str, Any]:
    options: dict[str, Any] = {"resamples": 60}
    few, some = VAL.take(slice(700)), TEST.take(slice(700))
    sets = {"one": few, "two": some}
    return {
        "evaluation": cb.evaluate(some, **options),
        "metric": cb.evaluate(some, metrics=["ece"], **options)["ece"],
        "groups": cb.evaluate_by(some, "predicted", metrics=["ece", "nll"], **options),
        "comparison": cb.compare(["none", "temperature", "smart"], fit=few, test=some, **options),
        "many": cb.compare_over(sets, ["none", "temperature"], **options),
        "models": cb.compare_models({"a": few, "b": few}, methods="temperature", **options),
        "rows": cb.rows_needed(np.full(100, 0.9), ece=0.05),
        "split": cb.metrics.refinement_split(some.probs, some.labels),
        "monitor": watched().findings(),
        "plan": plan(np.linspace(0.6, 0.99, 500), 0.2),
        "worth": cb.posthoc.cross_validated("temperature", few, **options),
        "prior": cb.posthoc.estimate_prior(SCALING, some, few, resamples=20),
        "accuracy": cb.posthoc.expected_accuracy(SCALING, some, few, resamples=20),
        "history": History({name: cb.evaluate(rows, **options) for name, rows in sets.items()}),
    }


FOUND = results()
WITH_PAGE = {name: found for name, found in FOUND.items() if isinstance(found, Result)}
EVERY = pytest.mark.parametrize("name", FOUND)


def text_of(result: Any) -> tuple[str, str]:
    return repr(result), str(result)


@EVERY
def test_a_result_comes_back_from_a_pickle_as_it_was(name: str) -> None:
    found = FOUND[name]
    again = pickle.loads(pickle.dumps(found))
    assert text_of(again) == text_of(found)
    if hasattr(found, "as_dict"):
        assert again.as_dict() == found.as_dict()


@pytest.mark.parametrize("name", WITH_PAGE)
def test_every_result_has_a_page_with_its_finding_and_its_table(name: str, tmp_path: Path) -> None:
    found = WITH_PAGE[name]
    found.to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    first, *_ = found.as_table().rows
    assert first[0].removesuffix("*").replace("> ", "&gt; ") in page.partition("<table")[2]
    if name in ("groups", "many", "worth", "prior", "accuracy"):
        assert found.headline()[:12] in page.partition("<h1")[2].partition("</h1>")[0]


def test_results_of_metrics_have_a_picture_and_others_no_plot() -> None:
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib.figure import Figure

    drawn = [name for name, found in WITH_PAGE.items() if isinstance(found, Drawn)]
    assert drawn == ["evaluation", "groups", "comparison", "models", "worth", "history"]
    assert not hasattr(WITH_PAGE["prior"], "plot")
    for name, rows in {"models": 4, "worth": 2, "history": 2}.items():
        ax = WITH_PAGE[name].plot(ax=Figure().subplots())
        assert len(ax.get_yticklabels()) == rows
        assert ax.get_xlabel().startswith({"history": "ECE"}.get(name, "NLL"))


def test_a_pickle_holds_only_what_was_found() -> None:
    confidence = np.linspace(0.01, 0.99, 4_000)
    rows = cb.Predictions.from_binary(confidence, np.arange(4_000) % 2)
    found = cb.evaluate(rows, metrics=["ece_positive"], resamples=20)
    before = len(pickle.dumps(found))
    str(found), found.as_dict(), found.positive
    assert len(pickle.dumps(found)) == before


def test_only_arrays_of_one_type_and_shape_are_shared() -> None:
    held = [np.zeros(4), np.zeros((2, 2)), np.zeros(4, np.int64), np.zeros(4)]
    found: Any = sharing(SimpleNamespace(array=array) for array in held)
    assert [each.array.shape for each in found] == [array.shape for array in held]
    assert [each.array.dtype for each in found] == [array.dtype for array in held]
    assert found[0].array is found[3].array


def test_results_of_ten_thousand_rows_pickle_small() -> None:
    few, more = (cb.evaluate(TEST, metrics=SEVEN, resamples=n) for n in (100, 200))
    by = cb.evaluate_by(TEST, np.arange(TEST.n) % 5, metrics=SEVEN[:5], resamples=100)
    of_few, of_more, of_groups = (len(pickle.dumps(found)) for found in (few, more, by))
    # A thousand resamples, as many as 10 000 rows have, take the rest at four bytes each.
    assert of_more - of_few == 4 * 100 * len(SEVEN)
    assert of_few + 4 * 900 * len(SEVEN) < 200_000
    assert of_groups + 4 * 900 * 5 * 5 < 300_000


def test_what_methods_have_in_common_is_kept_once() -> None:
    one, two = (
        cb.compare(names, fit=VAL, test=TEST, resamples=100)
        for names in (["none"], ["none", "temperature"])
    )
    # Confidences and replicates are a method's own; labels, predicted classes, margins are not.
    assert len(pickle.dumps(two)) - len(pickle.dumps(one)) < 8 * TEST.n + 15_000
    first, second = (method.evaluation.scores for method in two.methods)
    assert first.correct is second.correct


def test_replicates_that_pickles_round_alike_make_no_difference() -> None:
    drawn = np.random.default_rng(0).uniform(0.4, 0.5, 1_000)
    kept = [(drawn + shift).astype(np.float32).astype(np.float64) for shift in (0.0, 1e-10)]
    assert (kept[0] != kept[1]).any()
    assert paired_difference(*kept, (0.45, 0.45 + 1e-10)).p_value == 1
    costs = np.array([0.45, 0.45 + 1e-10])
    assert may_be_best(costs, np.stack(kept), 0.95).tolist() == [True, True]


def test_a_comparison_pickles_to_little_more_than_its_evaluations() -> None:
    found = FOUND["comparison"]
    evaluations = len(pickle.dumps([method.evaluation for method in found.methods]))
    assert len(pickle.dumps(found)) < evaluations + 10_000


def test_results_cross_process_pools_and_joblib() -> None:
    found = [FOUND[name] for name in ("evaluation", "groups", "comparison")]
    wanted = [text_of(each) for each in found]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert list(pool.map(text_of, found)) == wanted
    assert joblib.hash(found[0]) == joblib.hash(pickle.loads(pickle.dumps(found[0])))


@EVERY
def test_a_repr_is_the_finding_in_a_few_lines(name: str) -> None:
    text = repr(FOUND[name])
    assert len(text) <= LONGEST_REPR
    assert "\n" not in text
    if hasattr(FOUND[name], "headline"):
        assert FOUND[name].headline() in text


@pytest.mark.parametrize("name", [*METRICS, *POSITIVE_METRICS])
def test_a_metric_pickles_by_its_name(name: str) -> None:
    metric = (METRICS | POSITIVE_METRICS)[name]
    data = pickle.dumps(metric)
    assert pickle.loads(data) is metric
    assert len(data) < 200


def test_a_monitor_shows_what_it_found() -> None:
    monitor = watched()
    assert monitor.findings().headline() in repr(monitor)
    assert monitor._repr_html_() == monitor.findings()._repr_html_()
    again = pickle.loads(pickle.dumps(monitor))
    assert text_of(again) == text_of(monitor)


def test_notebooks_show_predictions_and_calibrators() -> None:
    rows = cb.Predictions.from_probs(TEST.probs, TEST.labels, source="<b>x</b>")
    assert "&lt;b&gt;x&lt;/b&gt;" in rows._repr_html_()
    assert ">10000<" in rows._repr_html_()
    scaling = cb.TemperatureScaling()
    assert "parameters" not in scaling._repr_html_()
    shown = scaling.fit_predictions(VAL)._repr_html_()
    assert f">{scaling.beta_:.4g}<" in shown
    assert "5000 rows of 10 classes" in shown
