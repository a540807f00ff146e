"""Sentences and numbers are written in one place, and print, page and JSON have them from there."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.comparison.compare import compare
from calibrant.comparison.comparison import Comparison, change, marks, ranking
from calibrant.evaluation import results as findings
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.formatting import (
    difference_with_interval,
    interval_of,
    percent,
    sentence,
    show,
    with_interval,
    with_unit,
)
from calibrant.evaluation.groups import evaluate_by
from calibrant.evaluation.results import Evaluation, MetricResult
from calibrant.evaluation.uncertainty import Gap
from calibrant.metrics.registry import METRICS
from calibrant.posthoc.registry import title_of
from calibrant.predictions.predictions import Predictions
from calibrant.report.engine import typeset

ECE, NLL = METRICS["ece"], METRICS["nll"]


def result(value: float, floor_95: float | None, metric: str = "ece") -> MetricResult:
    floor = None if floor_95 is None else floor_95 / 2
    return MetricResult(METRICS[metric], value, 0.9 * value, 1.1 * value, floor, floor_95)


def measured(shift: float, metrics: Any = None, level: float = 0.95) -> Evaluation:
    """Measure 3 000 confidences that are right with c - shift."""
    rng = np.random.default_rng(8)
    c = rng.uniform(0.5, 0.9, 3000)
    wrong = (rng.random(3000) >= c - shift).astype(int)
    rows = Predictions.from_confidence(c, np.zeros(3000, int), wrong)
    return evaluate(rows, metrics=metrics, resamples=60, level=level)


@pytest.fixture(scope="module")
def sets(labelled_logits: Any) -> dict[str, Predictions]:
    return {
        name: Predictions.from_logits(*labelled_logits(900, 4, seed=seed), source=name)
        for seed, name in enumerate(("fit", "test"))
    }


@pytest.fixture(scope="module")
def comparison(sets: dict[str, Predictions]) -> Comparison:
    names = ["none", "ets", "top-rest", "svs-top-rest", "temperature"]
    return compare(names, resamples=60, metrics=["ece", "nll", "skce"], **sets)


@pytest.fixture(scope="module")
def page(comparison: Comparison, sets: dict[str, Predictions], tmp_path_factory: Any) -> str:
    path: Path = tmp_path_factory.mktemp("page") / "r.html"
    comparison.to_html(path)
    return path.read_text(encoding="utf-8")


# Numbers.


def test_numbers_have_the_digits_and_the_unit_of_their_metric() -> None:
    assert [show(ECE, v) for v in (0.01234, -0.00001, None)] == ["1.23", "0.00", ""]
    assert [show(NLL, v) for v in (0.5, 0.00031, -0.0)] == ["0.5000", "3.1e-04", "0.0000"]
    assert [with_unit(m, 0.5) for m in (ECE, NLL)] == ["50.00 %", "0.5000"]
    assert [percent(v) for v in (0.1234, -0.0001, -0.02)] == ["12.3", "0.0", "-2.0"]


def test_intervals_name_their_level_and_the_unit_once() -> None:
    ends = (0.02, 0.01, 0.03)
    assert with_interval(ECE, ends, 0.9) == "2.00 % (90 % interval 1.00 to 3.00)"
    assert with_interval(NLL, ends) == "0.0200 (0.0100 to 0.0300)"
    assert difference_with_interval(ECE, ends) == "+2.00 points (1.00 to 3.00)"
    assert difference_with_interval(NLL, (-0.02, -0.03, -0.01)) == "-0.0200 (-0.0300 to -0.0100)"
    assert [interval_of(level) for level in (0.95, 0.995)] == ["95 % interval", "99.5 % interval"]


def test_every_level_is_written_in_full_in_headline_and_table() -> None:
    found = measured(0.1, ["ece"], level=0.995)
    text = str(found)
    assert text.count("99.5 % interval") == 2
    assert "100 % interval" not in text


# Sentences.


def test_the_gap_is_the_one_that_the_headline_gives() -> None:
    found = measured(0.1)
    assert found.gap == Gap.of(found.top, found.level)
    points = f"{percent(found.gap.value)} points (95 % interval {percent(found.gap.low)} to"
    for text in (found.headline(), findings.heading(found), findings.finding(found)):
        assert points in text


def test_a_change_says_what_the_best_method_made_of_the_network() -> None:
    off, honest = measured(0.1), measured(0)
    perfect = "not distinguishable from perfectly calibrated with 3000 rows"
    assert change(off, honest, "ets", "ece").endswith(f"); after ets {perfect}.")
    both = change(honest, honest, "ets", "ece")
    assert both == f"{perfect.capitalize()}, before and after ets."
    better = change(off, measured(0.05), "ets", "ece")
    assert "; after ets, the best of these methods, overconfident by " in better
    assert change(off, off, None, "ece").endswith("); no method does better.")


def test_a_ranking_names_five_at_most() -> None:
    start = "Lowest ECE: a, 2.00 % (95 % interval 1.80 to 2.20)"
    best = result(0.02, 0.01)
    assert ranking(best, "a", 0.95, None) == f"{start}."
    assert ranking(best, "a", 0.95, []) == f"{start}. No other method ties with it."
    apart = f"{start}. Can't be told apart from it: "
    assert ranking(best, "a", 0.95, list("bcdef")) == f"{apart}b, c, d, e and f."
    assert ranking(best, "a", 0.95, list("bcdefgh")) == f"{apart}b, c, d, e and 3 others."
    at_floor = ranking(result(0.02, 0.03), "a", 0.95, None)
    assert at_floor == f"{start}, not distinguishable from perfect."


def test_the_floor_is_said_where_there_is_one() -> None:
    below, above, without = result(0.01, 0.02), result(0.03, 0.02), result(0.5, None, "nll")
    said = [findings.against_floor(each).partition(":")[0] for each in (below, above, without)]
    assert said == ["at the floor", "above the floor", ""]
    assert findings.honest_would_show(above, "those of ets") == (
        "Perfectly calibrated confidences like those of ets would have 1.00 % on average, and up "
        "to 2.00 % in 95 % of cases."
    )
    one_sided = measured(0.1, ["underconfidence"])
    assert findings.standing(one_sided) == sentence(findings.means(one_sided))


def test_marks_say_rank_and_floor() -> None:
    below, above = result(0.01, 0.02), result(0.03, 0.02)
    assert marks(below, best=True, significant=False) == ["best", "at the floor"]
    assert marks(above, best=False, significant=False) == ["tied"]
    assert marks(above, best=False, significant=True) == []


# Who reads them.


def test_json_holds_the_sentences_that_are_printed(comparison: Comparison) -> None:
    for shift in (0, 0.1):
        found = measured(shift)
        assert found.as_dict()["finding"] == findings.heading(found)
        assert found.headline().startswith(findings.heading(found).removesuffix("."))
    assert comparison.as_dict()["headline"] == comparison.ranking()
    said = " ".join(str(comparison).split())
    assert said.startswith(f"{comparison.verdict} {comparison.ranking()}")
    assert [measured(s).as_dict()["state"] for s in (0, 0.1)] == ["honest", "overconfident"]


def test_the_page_of_an_evaluation_says_what_is_printed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = Predictions.from_confidence(
        rng.uniform(0.5, 1, 500), np.zeros(500, int), rng.integers(2, size=500)
    )
    found = evaluate(rows, resamples=20)
    found.to_html(tmp_path / "r.html")
    text = unescape((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert f"<h1>{typeset(findings.heading(found))}</h1>" in text
    assert f'<p class="deck">{typeset(findings.standing(found))}</p>' in text
    table = text[text.index('<table id="metrics-table">') :]
    for each in found.results.values():
        for value in (each.value, each.low, each.floor_95):
            assert value is None or typeset(show(each.metric, value)) in table
        assert findings.against_floor(each) in table


def test_a_method_goes_by_one_name_everywhere(comparison: Comparison, page: str) -> None:
    text = unescape(page)
    printed = str(comparison)
    data = json.loads(re.search(r'id="data"[^>]*>(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    for method in comparison.methods:
        assert f'<option value="{method.name}"' in text
        assert f">{method.name}</option>" in text
        assert f">{method.name}</th>" in text
        assert f"\n{method.name}" in printed
        assert title_of(type(method.calibrator)) in text
    assert [m["name"] for m in data["methods"]] == [m.name for m in comparison.methods]
    assert "title" not in data["methods"][0]
    assert typeset(comparison.ranking()) in text


def test_the_page_writes_numbers_as_the_printed_table_does(
    comparison: Comparison, page: str
) -> None:
    data = json.loads(re.search(r'id="data"[^>]*>(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    exponents = 0
    for entry, method in zip(data["methods"], comparison.methods, strict=True):
        for name, each in method.evaluation.results.items():
            words = entry["words"][name]
            assert words["value"] == typeset(show(each.metric, each.value))
            assert (words["floor"] == "") == (each.floor is None)
            exponents += "e" in words["value"]
            best = comparison.best_by(name) == method.name
            assert ("best" in words["marks"]) == best
            assert ("tied" in words["marks"]) == (
                not best and not comparison.differences_by(name)[method.name].significant
            )
    assert exponents > 0  # a value below a thousandth, which four digits would not show


def test_the_network_itself_is_told_from_the_methods(comparison: Comparison) -> None:
    assert comparison.uncalibrated is comparison["none"]
    best = comparison.best_calibrated
    assert best is not None
    assert best.name == next(m.name for m in comparison.methods if m.name != "none")
    alone = replace(comparison, methods=[comparison["none"]])
    assert alone.best_calibrated is None
    others = replace(comparison, methods=[best])
    assert others.uncalibrated is None


def test_groups_and_pages_take_the_margin_from_the_same_place(sets: dict[str, Predictions]) -> None:
    rows = sets["test"]
    two = np.sort(rows.scores, axis=1)[:, -2:]
    np.testing.assert_allclose(rows.margins, two[:, 1] - two[:, 0])
    assert rows.margins is rows.margins
    names = list(evaluate_by(rows, "margin", metrics=["ece"], resamples=5).groups)
    assert names[0].startswith(f"1: {rows.margins.min():.4g} to ")
    assert names[-1].endswith(f"to {rows.margins.max():.4g}")
