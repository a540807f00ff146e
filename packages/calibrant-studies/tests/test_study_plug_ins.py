"""What other packages add to studies, by entry points."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import calibrant as cb
import calibrant_studies as studies
from calibrant.core.errors import PlugInWarning, UnknownMethodError
from calibrant_studies.kinds import kind_named

EXAMPLE = Path(__file__).parents[3] / "tests/plug_in_example"
OWN = Path(__file__).parent / "plug_in_example"
GOOD = "shrink_towards_uniform:ShrinkTowardsUniform"
ROWS = """
title = "A method of one's own"
kind = "posthoc"
metrics = ["nll"]
[axes]
input = ["sample"]
method = ["none"]
"""


def test_a_method_enters_a_study_by_name(
    install_plug_ins: Callable[..., None], tmp_path: Path
) -> None:
    install_plug_ins(EXAMPLE, "calibrant.methods", shrink_uniform=GOOD)
    (tmp_path / "mine.toml").write_text(ROWS, encoding="utf-8")
    found = studies.run(
        str(tmp_path / "mine.toml"),
        methods=["none", "shrink-uniform"],
        settings={"resamples": 10},
        out=tmp_path / "out",
        engine=cb.Engine(workers=1),
    )
    assert not found.failed
    values = {record["method"]: record["value"] for record in found.records()}
    assert values["shrink-uniform"] != values["none"]


def run(text: str, place: Path, **options: Any) -> studies.StudyResult:
    (place / "mine.toml").write_text(text, encoding="utf-8")
    found = studies.run(
        str(place / "mine.toml"), out=place / "out", engine=cb.Engine(workers=1), **options
    )
    assert not found.failed
    return found


def test_a_metric_enters_studies_and_evaluations_by_name(
    install_plug_ins: Callable[..., None], tmp_path: Path
) -> None:
    install_plug_ins(OWN, "calibrant.metrics", surprise="cubic:SURPRISE")
    found = run(ROWS.replace('"nll"', '"nll", "surprise"'), tmp_path, settings={"resamples": 10})
    values = {record["metric"]: record["value"] for record in found.records()}
    test = cb.load_sample("test")
    told = cb.evaluate(test, metrics=["surprise"], resamples=10)["surprise"]
    assert values["surprise"] == pytest.approx(100 * told.value, rel=1e-8)
    assert 0 < told.low < told.value < told.high < 1


def test_a_loss_and_a_network_are_trained_by_name(
    install_plug_ins: Callable[..., None], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    install_plug_ins(OWN, "calibrant.losses", cubic="cubic:CubicLoss")
    install_plug_ins(OWN, "calibrant.networks", narrow="cubic:narrow")
    text = """
title = "Networks of one's own"
kind = "training"
metrics = ["accuracy"]
[axes]
input = ["synthetic-images"]
network = ["narrow"]
method = ["cross-entropy", "cubic"]
[settings]
epochs = 1
batch_size = 64
resamples = 10
accelerator = "cpu"
"""
    found = run(text, tmp_path)
    assert {record["method"] for record in found.records()} == {"cross-entropy", "cubic"}
    assert {ran.result["test_rows"] for ran in found.ran} == {160}


def test_a_kind_of_cells_is_declared_by_name(
    install_plug_ins: Callable[..., None], tmp_path: Path
) -> None:
    install_plug_ins(OWN, "calibrant.study_kinds", coins="cubic:Coins", posthoc="cubic:Coins")
    text = """
title = "Coins"
kind = "coins"
seeds = [0, 1, 2]
metrics = ["heads"]
[axes]
throws = [1000]
"""
    with pytest.warns(PlugInWarning, match="there is already a kind of cell called 'posthoc'"):
        found = run(text, tmp_path, settings={"bias": 0.9})
    (record,) = found.records()
    assert record["value"] == pytest.approx(90, abs=2)
    assert record["seeds"] == 3


def test_what_is_no_kind_is_left_out(install_plug_ins: Callable[..., None]) -> None:
    install_plug_ins(OWN, "calibrant.study_kinds", odd="cubic:SURPRISE")
    with (
        pytest.warns(PlugInWarning, match="not a class derived from calibrant_studies.Kind"),
        pytest.raises(UnknownMethodError, match="'odd'"),
    ):
        kind_named("odd")


@pytest.mark.parametrize(
    ("group", "value", "words"),
    [
        ("metrics", "cubic:Coins", "is no CurveMetric, MeanMetric or RowsMetric"),
        ("metrics", "cubic:SURPRISE", "a metric called 'surprise' can't go by the name 'odd'"),
        ("losses", "cubic:Coins", "not a class derived from calibrant.training.CalibrationLoss"),
        ("losses", "cubic:CubicLoss", r"names holds no LossName\('odd'"),
        ("networks", "cubic:SURPRISE", "not a function that takes the number of classes"),
    ],
)
def test_what_does_not_work_is_left_out_with_a_word(
    group: str, value: str, words: str, install_plug_ins: Callable[..., None]
) -> None:
    pytest.importorskip("torch")
    from calibrant.metrics.registry import all_metrics
    from calibrant.training import LOSSES
    from calibrant.training.nets import NETS

    install_plug_ins(OWN, f"calibrant.{group}", odd=value)
    tables = {"metrics": all_metrics, "losses": lambda: LOSSES, "networks": lambda: NETS}
    with pytest.warns(PlugInWarning, match=words):
        assert "odd" not in tables[group]()
