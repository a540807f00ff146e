"""The studies of the monitor: alarms on streams whose truth is known, and on images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import calibrant as cb
import calibrant_studies as studies
from calibrant.core.errors import InputError
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds import kind_named
from calibrant_studies.kinds.monitoring import CHANGE, STREAMS, alarm_values, draw


def test_an_alarm_before_the_change_is_a_false_one() -> None:
    found = alarm_values([None, 99, 5100, 5300, 5700], 5000, [True, True, False])
    assert found["false"]["value"] == pytest.approx(0.2)
    assert found["found"]["value"] == pytest.approx(0.6)
    assert found["delay"] == {"value": 300, "low": 200, "high": 500}
    assert found["held"]["value"] == pytest.approx(2 / 3)
    honest = alarm_values([None, 40], None, [])
    assert honest.keys() == {"false"}
    assert alarm_values([None, 40], 0, []).keys() == {"found", "delay"}


@pytest.mark.parametrize("test", ["level-0.02", "change-0.02", "ece"])
def test_a_cell_is_a_monitor_by_hand(test: str, tmp_path: Path) -> None:
    at, streams = {"stream": "shifted-later", "test": test}, 3
    cell = Cell("mine", "alarms", at, 2, {"streams": streams})
    found = kind_named("alarms").run(cell, Inputs({}), tmp_path)["values"]
    rows = []
    for i in range(streams):
        said, right = draw(STREAMS["shifted-later"], 2 * streams + i)
        if test == "ece":
            rows.append(_first_high_ece(said, right))
            continue
        monitor = cb.Monitor(tolerance=0.02, average_run_length=20_000)
        monitor.update(said, right)
        alarm = monitor.alarms.get(test.partition("-")[0])
        rows.append(None if alarm is None else alarm.row)
    true = [row - CHANGE for row in rows if row is not None and row >= CHANGE]
    assert found["found"]["value"] == len(true) / streams
    assert found["delay"]["value"] == np.median(true)
    assert ("held" in found) == (test == "change-0.02")


def _first_high_ece(said: np.ndarray, right: np.ndarray) -> int | None:
    for end in range(1000, len(said) + 1, 100):
        rows = cb.Predictions.from_confidence(
            said[end - 1000 : end], np.zeros(1000, int), 1 - right[end - 1000 : end]
        )
        if cb.evaluate(rows, metrics=["ece"], resamples=2)["ece"].value > 0.05:
            return end - 1
    return None


def test_a_test_that_nobody_knows_is_a_sentence(tmp_path: Path) -> None:
    for test in ("cusum", "level-wide"):
        cell = Cell("mine", "alarms", {"stream": "honest", "test": test}, 0, {"streams": 1})
        with pytest.raises(InputError, match=f"no test '{test}'; there are z, chi-square, ece"):
            kind_named("alarms").run(cell, Inputs({}), tmp_path)


def test_images_that_get_worse_are_told_with_their_gaps(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    found = studies.run("monitoring-images", small=True, out=tmp_path, engine=cb.Engine(workers=1))
    by_name = {(e.at["corruption"], e.measure.name): e for e in found.estimates}
    for name in ("none", "contrast"):
        for severity in range(1, 6):
            gap = by_name[name, f"gap-{severity}"]
            assert gap.low is not None
            assert gap.high is not None
            assert gap.low < gap.value < gap.high
    assert by_name["none", "gap-5"].value != by_name["contrast", "gap-5"].value
    fewer = studies.run(
        "monitoring-images",
        small=True,
        settings={"each": 40},
        out=tmp_path,
        engine=cb.Engine(workers=1),
    )
    assert {failed.error.partition(";")[0] for failed in fewer.failed} == {
        "synthetic-images-resnet8-cross-entropy-0: has 160 test images, not 100 clean ones and 40 "
        "for each of 5 severities"
    }
