"""Who may say that confidences can't be told from perfect ones, and in which words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from calibrant.comparison.compare import compare
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.results import Evaluation, heading, judge, state_of
from calibrant.metrics.registry import METRICS
from calibrant.predictions.predictions import Predictions
from calibrant.report.document import comparison_words

JUDGES = {"ece", "adaece", "smce", "smece", "ks"}
SHOWS_NO_MORE = (
    "no more than noise would, which alone doesn't prove the confidences calibrated; measure ece "
    "as well."
)


def measured(metrics: Any, shift: float, rows: int = 4000, spread: float = 0.0) -> Evaluation:
    """Measure confidences in [0.5, 0.9] that are right with c - shift, a tenth more or less."""
    rng = np.random.default_rng(5)
    c = rng.uniform(0.5, 0.9, rows)
    chance = c - shift + spread * np.where(np.arange(rows) % 2 == 0, 1, -1)
    wrong = (rng.random(rows) >= chance).astype(int)
    predictions = Predictions.from_confidence(c, np.zeros(rows, int), wrong)
    return evaluate(predictions, metrics=metrics, resamples=100)


def test_only_metrics_of_all_rows_and_both_directions_decide():
    assert {name for name, metric in METRICS.items() if metric.omnibus} == JUDGES


@pytest.mark.parametrize(
    "metric", sorted(name for name, m in METRICS.items() if not m.needs_classes and not m.omnibus)
)
def test_no_other_metric_calls_an_overconfident_model_perfect(metric: str):
    found = measured([metric], shift=0.14)
    assert judge(found) is None
    assert state_of(found) == "overconfident"
    gap, low, high = found.gap
    for text in (found.headline(), heading(found), str(found)):
        assert "istinguishable" not in text
        assert f"Overconfident by {100 * gap:.1f} points" in " ".join(text.split())
    assert f"{100 * low:.1f} to {100 * high:.1f}" in found.headline()


def test_a_metric_that_does_not_decide_is_named():
    over = measured(["underconfidence"], shift=0.14)
    assert over["underconfidence"].at_floor
    assert over.headline().endswith(f". ECE, under shows {SHOWS_NO_MORE}")
    both = measured(["underconfidence", "mce"], shift=0)
    assert both["mce"].at_floor
    assert both["underconfidence"].at_floor
    assert both.headline().startswith("Mean confidence and accuracy agree within noise (")
    assert both.headline().endswith(f". ECE, under and MCE show {SHOWS_NO_MORE}")
    many = measured(["underconfidence", "overconfidence", "mce"], shift=0)
    assert many.headline().endswith(f". 3 of the metrics below show {SHOWS_NO_MORE}")
    assert measured(["slope"], shift=0.14).headline().endswith(" %.")


def test_the_first_that_may_decide_does_or_the_preferred_one():
    found = measured(["underconfidence", "mce", "ks", "ece"], shift=0)
    assert found.headline().startswith(
        "Not distinguishable from perfectly calibrated with 4000 rows (KS error "
    )
    deciding = [judge(found, name) for name in ("ece", "mce", None)]
    assert [result and result.metric.name for result in deciding] == ["ece", "ks", "ks"]


def test_errors_in_both_directions_are_called_so():
    rng = np.random.default_rng(0)
    c = rng.uniform(0.2, 0.9, 4000)
    labels = (rng.random(4000) >= 0.55).astype(int)
    rows = Predictions.from_confidence(c, np.zeros(4000, int), labels)
    found = evaluate(rows, metrics=["mce", "ece"], resamples=50)
    low, high = 100 * found["ece"].low, 100 * found["ece"].high
    assert found.headline().startswith(
        "Overconfident in some places and underconfident in others "
        f"(ECE {100 * found['ece'].value:.2f} %, 95 % interval {low:.2f} to {high:.2f}): mean conf"
    )


def test_no_direction_is_claimed_where_the_interval_of_the_gap_reaches_0():
    states: set[str] = set()
    for seed in range(30):
        rng = np.random.default_rng(seed)
        c = rng.uniform(0.4, 0.95, 400)
        chance = np.where(c > 0.85, c - 0.2, c + 0.02)
        rows = Predictions.from_confidence(c, np.zeros(400, int), (rng.random(400) >= chance) * 1)
        found = evaluate(rows, metrics=["ece"], resamples=50)
        state, reaches = found.as_dict()["state"], found.gap.low <= 0 <= found.gap.high
        states.add(state)
        assert (state == "overconfident") <= (not reaches)
        assert (state == "no direction") <= reaches
        if state == "no direction":
            start = "Miscalibrated, although mean confidence and accuracy agree within noise (ECE "
            assert found.headline().startswith(start)
    assert {"overconfident", "no direction"} <= states


def test_a_comparison_ranked_by_one_direction_calls_nothing_perfect(labelled_logits):
    sets = {
        name: Predictions.from_logits(*labelled_logits(1000, 4, seed=seed))
        for seed, name in enumerate(("fit", "test"))
    }
    options: Any = {"metrics": ["underconfidence"], "resamples": 50} | sets
    found = compare(["none"], rank_by="underconfidence", **options)
    assert found["none"].evaluation["underconfidence"].at_floor
    assert found.ranking().endswith(", no more than noise gives.")
    page, _ = comparison_words(found)
    assert page.startswith("Overconfident by ")
    by_ece = compare(["temperature"], rank_by="ece", **options)
    assert by_ece["temperature"].evaluation["ece"].at_floor
    assert by_ece.ranking().endswith(", not distinguishable from perfect.")
