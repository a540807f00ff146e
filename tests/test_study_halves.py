"""Kappa and the temperature see different validation rows, and the table says so by seeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibrant as cb
from calibrant.studies.second_stages import halves
from calibrant.studies.second_stages.runs import Run

pytest.importorskip("torch")


def a_run() -> Run:
    rows = cb.load_sample("validation")
    parts = [rows.take(np.arange(low, low + 300)) for low in (0, 300, 600)]
    return Run(Path("nowhere"), "cross-entropy", 0, *parts)


def test_no_row_chooses_a_head_and_scales_it(monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run()
    chose: list[Any] = []
    scaled: list[Any] = []
    real_fit, real_make = halves.fit, halves.make_calibrator

    def fit(stage: Any, run: Run) -> float:
        chose.append(run.val)
        return real_fit(stage, run)

    class Calibrator:
        def __init__(self, name: str) -> None:
            self.inner = real_make(name)

        def fit(self, logits: Any, labels: Any) -> Any:
            scaled.append(labels)
            return self.inner.fit(logits, labels)

    monkeypatch.setattr(halves, "fit", fit)
    monkeypatch.setattr(halves, "make_calibrator", Calibrator)
    monkeypatch.setattr(halves, "RESAMPLES", 20)
    monkeypatch.setattr(halves, "HEADS", halves.HEADS[:2])
    found = halves.measure(run, 3, epochs=1)
    one, other = run.val.split(150, 3)
    assert [part.n for part in (one, other)] == [150, 150]
    np.testing.assert_array_equal(chose[0].logits, one.logits)
    assert all(np.array_equal(labels, other.labels) for labels in scaled)
    assert not (np.asarray(one.logits)[:, None] == np.asarray(other.logits)).all(-1).any()
    assert found["network's head"]["differences"]["nll"]["value"] == 0
    apart = found["retrain"]["temperature"]["nll"] - found["network's head"]["temperature"]["nll"]
    assert found["retrain"]["differences"]["nll"]["value"] == pytest.approx(apart)


def test_the_table_has_means_and_the_widest_interval() -> None:
    def heads(shift: float) -> dict[str, Any]:
        values = {"accuracy": 0.8, "ece": 0.02 + shift, "nll": 0.5 + shift}
        zero = {metric: {"value": 0.0, "low": 0.0, "high": 0.0} for metric in halves.METRICS}
        apart = {"value": 0.01, "low": -shift, "high": 0.02 + shift}
        own = {"none": values, "temperature": values, "differences": zero}
        return dict.fromkeys(
            halves.HEADS, own | {"differences": dict.fromkeys(halves.METRICS, apart)}
        ) | {halves.HEADS[0]: own}

    results = {str(i): {"run": "net-0", "heads": heads(i / 100)} for i in (1, 2)}
    lines = halves.table(json.loads(json.dumps(results))).splitlines()
    assert lines[2].startswith("| net-0 | network's head | 2 | 80.00 ± 0.00 | 3.50 ± 0.71 |")
    assert lines[2].endswith("| - | - |")
    assert lines[4].endswith("| +0.0100 (-0.0200 to +0.0400) | +1.00 (-2.00 to +4.00) |")
