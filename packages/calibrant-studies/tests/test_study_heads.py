"""New heads beside one temperature, and results that stand in for networks that are gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibrant as cb
import calibrant_studies as studies
from calibrant_studies.cells import Cell, cells_of
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds import kind_named
from calibrant_studies.kinds import second_stages as heads
from calibrant_studies.networks import trained
from calibrant_studies.networks.plans import plan_of
from calibrant_studies.networks.sources import Source
from calibrant_studies.networks.trained import Network

pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]
ONE = cb.Engine(workers=1)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[cb.Predictions]:
    """Rows to train a head on, to choose it by, and to measure it on; networks are made of them."""
    rows = cb.load_sample("validation")
    found = [rows.take(np.arange(low, low + 300)) for low in (0, 300, 600)]
    monkeypatch.setattr(Network, "training_rows", lambda network: found[0])
    return found


def measured(parts: list[cb.Predictions], stage: str, **settings: Any) -> dict[str, Any]:
    """Return the result of a cell about a network that said `parts`, with a head of seed 3."""
    settings = {"second_stage": stage, "stage_epochs": 1, "resamples": 40, **settings}
    at = {"input": "synthetic-images", "network": "resnet8", "method": "cross-entropy"}
    cell = Cell("mine", "heads", at, 3, settings)
    of_network = heads._of_network(cell, 1)
    source, place = Source("synthetic"), Path("nowhere")
    network = Network(plan_of(of_network), source, place, *parts[1:], place, Inputs({}))
    assert network.plan.seed == 1
    return kind_named("heads").measure(of_network, network, Inputs({}))


def test_no_row_chooses_a_head_and_scales_it(
    parts: list[cb.Predictions], monkeypatch: pytest.MonkeyPatch
) -> None:
    chose: list[Any] = []
    scaled: list[Any] = []
    real_fit, real_make = trained.fitted_stage, heads.make_calibrator

    def fitted(plan: Any, training: Any, validation: Any, test: Any) -> Any:
        chose.append(validation)
        return real_fit(plan, training, validation, test)

    class Calibrator:
        def __init__(self, name: str) -> None:
            self.inner = real_make(name)

        def fit(self, logits: Any, labels: Any) -> Any:
            scaled.append(labels)
            return self.inner.fit(logits, labels)

    monkeypatch.setattr(trained, "fitted_stage", fitted)
    monkeypatch.setattr(heads, "make_calibrator", Calibrator)
    measured(parts, "retrain", halves=True)
    one, other = parts[1].split(150, 3)
    assert [part.n for part in (one, other)] == [150, 150]
    np.testing.assert_array_equal(chose[0].logits, one.logits)
    assert len(scaled) == 4
    assert all(np.array_equal(labels, other.labels) for labels in scaled)
    assert not (np.asarray(one.logits)[:, None] == np.asarray(other.logits)).all(-1).any()
    measured(parts, "retrain")
    np.testing.assert_array_equal(chose[1].logits, parts[1].logits)
    assert np.array_equal(scaled[-1], parts[1].labels)


def test_a_head_is_measured_as_by_hand(parts: list[cb.Predictions]) -> None:
    from calibrant.training.second_stages import beside_temperature, make_second_stage

    training, validation, test = parts
    stage = make_second_stage("retrain", seed=3, epochs=1)
    stage.fit(
        training.features,
        training.labels,
        (validation.features, validation.labels),
        n_classes=training.n_classes,
        reference_logits=validation.logits,
    )
    new = cb.Predictions.from_logits(stage.logits(test.features), test.labels)
    beside = beside_temperature(validation, test, new, resamples=40)
    found = measured(parts, "retrain")["values"]
    own = measured(parts, "")["values"]
    for metric in heads.HEAD_METRICS:
        assert found[metric]["value"] == pytest.approx(beside.head[metric].value, abs=1e-6)
    for metric, apart in (("ece", "ece-apart"), ("nll", "nll-apart")):
        told = beside.differences[metric]
        for end in ("value", "low", "high"):
            assert found[apart][end] == pytest.approx(getattr(told, end), abs=1e-6)
        of_own = own[f"{metric}-temperature"]["value"]
        assert of_own == pytest.approx(beside.scaled[metric].value, abs=1e-6)
        scaled_apart = found[f"{metric}-temperature"]["value"] - of_own
        assert found[f"{metric}-scaled-apart"]["value"] == pytest.approx(scaled_apart)
        assert own[f"{metric}-scaled-apart"]["value"] == 0
    assert found["ece-share"]["value"] == pytest.approx(found["ece"]["value"] / own["ece"]["value"])
    assert own["ece-share"]["value"] == 1


def test_results_of_an_earlier_run_stand_in_for_what_is_gone(tmp_path: Path) -> None:
    rows = cb.load_sample("validation")
    whole = [tmp_path / f"resnet50-{part}.npz" for part in ("val", "test")]
    for index, path in enumerate(whole):
        part = rows.take(np.arange(index * 300, index * 300 + 300))
        np.savez(path, logits=part.logits, labels=part.labels)
    asked: dict[str, Any] = {
        "only": {"input": ["resnet50"]},
        "methods": ["none", "temperature"],
        "settings": {"resamples": 20},
        "engine": ONE,
        "out": tmp_path / "out",
    }
    (tmp_path / "mine.toml").write_text(
        'title = "Mine"\nkind = "posthoc"\nmetrics = ["ece"]\n[axes]\ninput = ["resnet50"]\n'
        'method = ["none"]\n'
    )
    study = str(tmp_path / "mine.toml")
    data = f"resnet50={whole[0]},{whole[1]}"
    first = studies.run(study, data=data, **asked)
    record = tmp_path / "mine.json"
    record.write_text(json.dumps(first.as_dict()))
    gone = studies.run(study, data=record, **asked)
    # Resamples are too long to be kept, and with them the marks of what may be the best.
    marks = [{**record, "may_be_best": None} for record in first.records()]
    assert [record["may_be_best"] for record in first.records()] != [None, None]
    assert gone.records() == marks
    assert (gone.computed, gone.missing) == (0, [])
    # What isn't in the record is missing; what is there is computed, whatever the record says.
    more = studies.run(study, data=record, **{**asked, "methods": ["none", "smart"]})
    assert [missing.cells for missing in more.missing] == [1]
    document = json.loads(record.read_text())
    for entry in document["kept"]:
        entry["result"]["values"]["ece"]["value"] = 0.5
    record.write_text(json.dumps(document))
    both = studies.run(study, data=[data, str(record)], **asked)
    assert both.records() == first.records()
    # Another version computed something else.
    for entry in document["kept"]:
        entry["version"] = "0"
    record.write_text(json.dumps(document))
    assert studies.run(study, data=record, **asked).records() == []


def test_what_was_kept_is_of_the_settings_that_are_asked_for(tmp_path: Path) -> None:
    rows = cb.load_sample("validation").take(np.arange(600))
    np.savez(tmp_path / "mine.npz", logits=rows.logits, labels=rows.labels)
    (tmp_path / "mine.toml").write_text(
        'title = "Mine"\nkind = "posthoc"\nmetrics = ["ece"]\nseeds = [0, 1]\n[axes]\n'
        'input = ["mine"]\nmethod = ["none"]\n[settings]\nresamples = 20\n'
    )
    asked: dict[str, Any] = {"engine": ONE, "out": tmp_path / "out"}
    study, record = str(tmp_path / "mine.toml"), tmp_path / "earlier.json"
    few = studies.run(
        study, data=f"mine={tmp_path / 'mine.npz'}", settings={"fit_size": 100}, **asked
    )
    document = few.as_dict()
    record.write_text(json.dumps(document))
    assert len(studies.run(study, data=record, settings={"fit_size": 100}, **asked).ran) == 2
    other = studies.run(study, data=record, **asked)
    assert (other.records(), [missing.cells for missing in other.missing]) == ([], [2])
    # A record from before settings were written is of those that the study declares.
    for entry in document["kept"]:
        del entry["settings"]
    record.write_text(json.dumps(document))
    assert len(studies.run(study, data=record, **asked).ran) == 2
    assert studies.run(study, data=record, settings={"fit_size": 200}, **asked).ran == []


def test_seeds_that_change_nothing_are_one_in_a_record_as_well(tmp_path: Path) -> None:
    rows = cb.load_sample("validation")
    for i, part in enumerate(("val", "test")):
        some = rows.take(np.arange(i * 300, i * 300 + 300))
        np.savez(tmp_path / f"mine-{part}.npz", logits=some.logits, labels=some.labels)
    (tmp_path / "mine.toml").write_text(
        'title = "Mine"\nkind = "posthoc"\nmetrics = ["ece"]\nseeds = [0, 1, 2]\n'
        'published = """\nmethod | ece\nnone | 0.1\n"""\n[axes]\n'
        'input = ["mine"]\nmethod = ["none"]\n[settings]\nresamples = 20\n'
    )
    asked: dict[str, Any] = {"engine": ONE, "out": tmp_path / "out"}
    study, record = str(tmp_path / "mine.toml"), tmp_path / "earlier.json"
    first = studies.run(
        study, data=f"mine={tmp_path / 'mine-val.npz'},{tmp_path / 'mine-test.npz'}", **asked
    )
    assert [(r["seeds"], r["spread"]) for r in first.records()] == [(1, None)]
    record.write_text(json.dumps(first.as_dict()))
    again = studies.run(study, data=record, **asked)
    assert [(r["seeds"], r["spread"]) for r in again.records()] == [(1, None)]
    # And in the record of the record.
    record.write_text(json.dumps(again.as_dict()))
    again = studies.run(study, data=record, **asked)
    assert [r["seeds"] for r in again.records()] == [1]


@pytest.mark.parametrize(
    ("study", "file", "cells"),
    [
        ("second-stages", "second-stages.json", 360),
        ("second-stages-halved", "second-stages.json", 36),
        ("second-stages-steps", "second-stages.json", 21),
        ("second-stages-kappa", "second-stages.json", 33),
        ("second-stages-masks", "second-stages.json", 30),
        ("second-stages-corrupted", "second-stages.json", 63),
        ("second-stages-unknown", "second-stages.json", 42),
        ("heads-beside-temperature", "second-stage-seeds.json", 15),
        ("heads-halves", "second-stage-halves.json", 27),
    ],
)
def test_published_numbers_come_from_their_records(
    study: str, file: str, cells: int, tmp_path: Path
) -> None:
    found = studies.run(study, data=ROOT / "docs/results" / file, out=tmp_path, engine=ONE)
    assert len(found.ran) == cells
    assert found.computed == 0
    assert len(cells_of(found.study)) >= cells
    assert {estimate.measure.name for estimate in found.estimates} == set(found.study.metrics)


def test_the_page_of_second_stages_has_what_the_records_say(tmp_path: Path) -> None:
    from calibrant_studies.writing import filled, read_page

    page = ROOT / "docs/appendix/second-stages-compared.md"
    for study, file in (
        ("second-stages-halved", "second-stages.json"),
        ("heads-halves", "second-stage-halves.json"),
    ):
        found = studies.run(study, data=ROOT / "docs/results" / file, out=tmp_path, engine=ONE)
        text = read_page(page, study)
        assert filled(text, found, page) == text
