"""Numbers within sentences, held to the settings and values that they are said of."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import calibrant as cb
from calibrant.comparison.multi_dataset import compare_over
from calibrant.evaluation import results
from calibrant.evaluation.formatting import interval_of
from calibrant.monitor.page import gap_chart, monitor_page
from calibrant.posthoc.fitting.cross_validation import Trial
from calibrant.posthoc.model_selection import sentence_of_weights


@pytest.fixture(scope="module")
def drifted() -> cb.Monitor:
    """A monitor of odd settings, whose rows are 15 points too sure from row 1 500 on."""
    monitor = cb.Monitor(tolerance=0.03, alpha=0.02, average_run_length=20_000, window=500)
    rng = np.random.default_rng(0)
    said = rng.uniform(0.6, 0.95, 4000)
    right = rng.random(4000) < said - 0.15 * (np.arange(4000) >= 1500)
    monitor.update(said, right, groups=np.where(np.arange(4000) % 2, "odd", "even"))
    return monitor


def test_a_monitor_names_its_own_tolerance_level_and_run_length(drifted: cb.Monitor) -> None:
    quiet = cb.Monitor(tolerance=0.03)
    quiet.update([0.5, 0.5], [True, False])
    assert quiet.findings().headline().endswith("is more than 3 points from its confidence.")
    level, change = (
        drifted.findings().alarm_sentence(drifted.alarms[name]) for name in ("level", "change")
    )
    assert "some confidences are wrong by more than 3 points" in level
    assert "a probability of at most 2 %" in level
    assert "some confidences are wrong by more than 3 points" in change
    assert "comes after at least 20 000 rows on average" in change
    # -ln .02, and ln 20 000.
    said = drifted.findings().evidence_sentence
    assert "alarm at 3.91" in said
    assert "alarm at 9.90" in said
    assert "at 2 % for all groups together" in str(drifted)


def test_the_page_of_a_monitor_says_the_same(drifted: cb.Monitor) -> None:
    page = monitor_page(drifted.findings())
    assert "tolerance 3 points." in page
    assert "within 3 points of p" in page
    assert "A false alarm with probability 2 % at most" in page
    assert "at 2 % for all groups together" in page


def test_the_axis_of_gaps_is_in_points(drifted: cb.Monitor) -> None:
    windows = drifted.windows()
    chart = gap_chart(windows, drifted.tolerance, None, None)
    texts = re.findall(r'y="([\d.]+)" text-anchor="end">([^<]+)</text>', chart)
    scale = {label.removesuffix("\u202f%"): float(y) for y, label in texts}
    high, point = scale["0"], (scale["0"] - scale["20"]) / 20
    dots = re.search(r'<g class="before">(.*?)</g>', chart)
    assert dots is not None
    drawn = [float(y) for y in re.findall(r'cy="([\d.]+)"', dots[1])]
    gaps = [100 * window.gap for window in windows]
    # A label stands 4 pixels below its line.
    assert [(high - 4 - y) / point for y in drawn] == pytest.approx(gaps, abs=0.1)
    assert max(gaps) > 13


def test_a_second_stage_names_its_tolerance_and_what_was_lost() -> None:
    pytest.importorskip("torch")
    from calibrant.training.second_stages import MaCCal
    from calibrant.training.second_stages.maccal import Candidate, KappaPoint, choose, warning_of

    held: dict[str, Any] = {"accuracy": 0.7, "confidence": 0.7, "ece": 0.1, "nll": 1.0}
    lost = held | {"loss": 0.0315, "loss_error": 0.004}
    point, plain = KappaPoint(kappa=0.9, retention=0.5, **lost), Candidate(**lost)
    said = warning_of(point, 0.02)
    assert said is not None
    assert said.startswith("kappa 0.9 loses 3.15 ± 0.40 points of held-out accuracy")
    assert said.endswith("more than the tolerance of 2")
    note = choose([point], Candidate(**(lost | {"confidence": 0.9})), 0.02).note
    assert note is not None
    assert "no kappa keeps held-out accuracy within 2 points" in note
    assert plain.loss == point.loss
    stage = MaCCal()
    stage.history_ = [  # pyright: ignore[reportAttributeAccessIssue]
        SimpleNamespace(accuracy=0.875, retention=0.5),
        SimpleNamespace(accuracy=0.25, retention=stage.least_retention),
    ]
    stage.notes_ = []
    with pytest.warns(cb.CalibrationWarning, match=r"fell from 87\.5 to 25\.0 %; raise kappa"):
        stage._warn_of_collapse()


def test_the_level_that_was_asked_for_is_the_one_that_is_said(tmp_path: Path) -> None:
    test = cb.load_sample("test").take(np.arange(400))
    fit = cb.load_sample("validation").take(np.arange(300))
    found = cb.compare(["none", "temperature"], fit=fit, test=test, resamples=20, level=0.9)
    assert "in 90 % of cases the truly best method has a +" in " ".join(str(found).split())

    found.to_html(tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    top = np.asarray(fit.probs).max(axis=1).mean()
    right = (np.asarray(fit.logits).argmax(axis=1) == fit.labels).mean()
    assert f"accuracy is {100 * right:.1f} % at a mean confidence of {100 * top:.1f} %" in page
    sets = {"a": test, "b": fit, "c": cb.load_sample("test").take(np.arange(400, 800))}
    many = compare_over(sets, ["none", "temperature"], resamples=10, level=0.9)
    assert "90 % t interval" in " ".join(str(many).split())
    assert interval_of(0.975) == "97.5 % interval"


def test_what_would_pass_unseen_is_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "smallest_visible_error", lambda *_, **__: 0.37)
    rng = np.random.default_rng(0)
    honest = cb.Predictions.from_logits(logits := rng.normal(size=(60, 3)), logits.argmax(axis=1))
    right = rng.random(60) < np.asarray(honest.probs).max(axis=1)
    labels = np.where(right, honest.labels, (honest.labels + 1) % 3)
    said = str(cb.evaluate(cb.Predictions.from_logits(logits, labels), resamples=50))
    assert "they mostly miss an ECE below 37 %" in " ".join(said.split())


def test_weights_are_said_in_percent_and_scores_as_they_are() -> None:
    trials = {
        "temperature": Trial(np.array([0.5, 0.7]), 1, True),
        "svs": Trial(np.array([0.3, 0.5]), 7, False),
    }
    said = sentence_of_weights(
        {"temperature": 0.38, "svs": 0.62}, trials, "nll", "five", "temperature"
    )
    assert said.startswith("averages svs 62 %, temperature 38 %; weights by five, ")
    # .62 x .4 + .38 x .6
    assert said.endswith("held-out NLL of at most 0.4760 (temperature alone: 0.6000)")
