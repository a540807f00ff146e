"""Metrics that are parts of one computation share it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from calibrant.evaluation.evaluate import evaluate
from calibrant.metrics import cox, decomposition, refit
from calibrant.metrics.metric_types import Part, each_once
from calibrant.predictions.predictions import Predictions


def test_a_whole_is_called_once_for_all_its_parts() -> None:
    calls: list[int] = []

    def whole(number: int) -> complex:
        calls.append(number)
        return complex(number, 2 * number)

    parts: dict[str, Any] = {"re": Part(whole, "real"), "im": Part(whole, "imag"), "id": int}
    assert each_once(parts, 3) == {"re": 3, "im": 6, "id": 3}
    assert calls == [3]
    assert parts["im"](4) == 8


@pytest.mark.parametrize(
    ("module", "function", "names"),
    [
        (cox, "_fit", ["slope", "intercept"]),
        (decomposition, "_isotonic_score", ["brier_calibration", "brier_refinement"]),
        (refit, "_resampled_losses", ["nll_calibration", "nll_refinement"]),
    ],
)
def test_two_parts_cost_no_more_than_the_dearer_one(
    module: Any,
    function: str,
    names: list[str],
    labelled_logits: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = Predictions.from_logits(*labelled_logits(300, 4, seed=3))
    real, calls = getattr(module, function), []

    def counting(*arguments: Any, **more: Any) -> Any:
        calls.append(1)
        return real(*arguments, **more)

    monkeypatch.setattr(module, function, counting)

    def measured(metrics: list[str]) -> tuple[dict[str, Any], int]:
        calls.clear()
        found = evaluate(rows, metrics=metrics, resamples=20)
        return {name: result.as_dict() for name, result in found.results.items()}, len(calls)

    together, needed = measured(names)
    alone = [measured([name]) for name in names]
    assert together == alone[0][0] | alone[1][0]
    assert 0 < needed == max(count for _, count in alone)
    assert np.isfinite([together[name]["value"] for name in names]).all()
