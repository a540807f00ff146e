"""Studies of networks on a part of the images, what they cost, and unknown images in pairs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibrant as cb
import calibrant_studies as studies
from calibrant.core.errors import InputError
from calibrant.metrics.detection import auroc, fpr_at_tpr
from calibrant_studies.cells import cells_of
from calibrant_studies.estimates import all_pairs
from calibrant_studies.inputs import inputs_of
from calibrant_studies.kinds.networks import detected
from calibrant_studies.networks.plans import Plan, plan_of
from calibrant_studies.networks.sources import source_of
from calibrant_studies.networks.trained import Spent, measured
from calibrant_studies.significance import paired

torch = pytest.importorskip("torch")
pytest.importorskip("lightning")
ONE = cb.Engine(workers=1)
RESULTS = Path(__file__).parents[3] / "docs/results/losses.json"
TRAINED: dict[str, Any] = {"training_rows": 96, "epochs": 1, "batch_size": 32}
QUICK = TRAINED | {"resamples": 40}


def a_plan(**settings: Any) -> Plan:
    """Return a plan for the network of FeDLaS's Table 1 that numbers were kept of."""
    study = studies.study_named("fedlas-table-1")
    study = replace(study, settings={**study.settings, **settings})
    at = {"input": "cifar10", "network": "resnet8", "method": "cross-entropy"}
    return next(plan_of(c) for c in cells_of(study) if dict(c.at) == at and c.seed == 0)


def test_a_network_learns_from_so_many_images_and_is_another_one(tmp_path: Path) -> None:
    found = {
        rows: studies.run(
            "maccal-table-1",
            small=True,
            only={"method": ["cross-entropy", "maccal-linear"]},
            settings=QUICK | {"stage_epochs": 1, "training_rows": rows},
            out=tmp_path,
            engine=ONE,
        )
        for rows in (96, 0)
    }
    assert all(each.failed == [] for each in found.values())
    configurations = [json.loads(p.read_text()) for p in tmp_path.glob("work/run-*/config.json")]
    assert sorted(c["training_rows"] or 0 for c in configurations) == [0, 96]
    # The head learns from the same images as the network, and it alone sees no others.
    files = tmp_path.glob("work/train-*.npz")
    assert sorted(len(np.load(file)["labels"]) for file in files) == [96, 288]


def test_a_part_of_the_images_changes_no_digest_of_whole_ones() -> None:
    whole, part = a_plan(), a_plan(training_rows=5000)
    assert "training_rows" not in whole.run
    assert part.run["training_rows"] == 5000
    assert whole.digest("x") != part.digest("x")
    # A run from before knows nothing of parts: it saw all images.
    before = {**whole.run, "seed": 0}
    assert (whole.is_of(before), part.is_of(before)) == (True, False)
    assert part.is_of({**before, "training_rows": 5000})
    assert not whole.is_of({**before, "training_rows": 5000})
    assert part.apart(before) == {"training_rows": (None, 5000)}
    # A file has lists where a declaration may have tuples; that tells no two runs apart.
    listed = {**before, "loss_arguments": {"boundaries": [0.2, 0.5]}}
    tuples = replace(whole, run={**whole.run, "loss_arguments": {"boundaries": (0.2, 0.5)}})
    assert tuples.apart(listed) == {}
    assert tuples.is_of(listed)
    assert whole.apart({**before, "seed": 7}) == {}
    assert not whole.is_of({**before, "seed": 7})


def test_numbers_are_kept_of_a_network_by_all_that_it_learnt_from(tmp_path: Path) -> None:
    document = json.loads(RESULTS.read_text())
    plans = [a_plan(), a_plan(training_rows=5000), a_plan(plain_share=0.5)]
    for told, plan in zip(({}, {"training_rows": 5000}, {"plain_share": 0.5}), plans, strict=True):
        file = tmp_path / f"{len(told)}{next(iter(told), '')}.json"
        file.write_text(json.dumps({**document, "settings": {**document["settings"], **told}}))
        kept = inputs_of([str(file)])[0]
        found = [each for each in plans if source_of(each, kept, recorded=True) is not None]
        assert found == [plan]


def test_a_record_of_losses_says_how_many_images(tmp_path: Path) -> None:
    options: dict[str, Any] = {"small": True, "only": {"method": ["cross-entropy"]}, "seeds": [0]}
    options |= {"out": tmp_path, "engine": ONE}
    for rows in (96, 0):
        found = studies.run("losses-compared", settings=QUICK | {"training_rows": rows}, **options)
        assert found.as_dict()["settings"].get("training_rows", 0) == rows


def test_more_images_than_there_are_is_an_error(tmp_path: Path) -> None:
    found = studies.run(
        "maccal-table-1",
        small=True,
        only={"method": ["cross-entropy"]},
        settings=QUICK | {"training_rows": 1000},
        out=tmp_path,
        engine=ONE,
    )
    ((_, error),) = found.failed
    assert "has 288 images to train on, and 1000 are asked for" in error


def test_costs_are_those_of_the_clock_and_of_the_processor(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "small": True,
        "only": {"method": ["cross-entropy", "maccal-linear"]},
        "settings": TRAINED | {"stage_epochs": 1},
        "out": tmp_path,
        "engine": ONE,
    }
    assert studies.run("maccal-table-4", **options).failed == []
    cells = [json.loads(path.read_text()) for path in (tmp_path / "cells").glob("*.json")]
    by_stage = {cell["configuration"]["stage"]: cell["result"]["values"] for cell in cells}
    plain, stage = ({k: v["value"] for k, v in by_stage[name].items()} for name in ("", "maccal"))
    for clock, ratio in (("seconds", "ratio"), ("processor-seconds", "processor-ratio")):
        assert plain[ratio] == 1 < stage[ratio] == stage[clock] / plain[clock]
    # Runs that were trained elsewhere have no time of the processor.
    (file,) = (tmp_path / "work").glob("run-*/seconds.json")
    file.write_text('{"clock": 2.5, "processor": null}')
    assert Spent.read(file.parent) == Spent(2.5, None)
    for cell in (tmp_path / "cells").glob("*.json"):
        cell.unlink()
    found = studies.run("maccal-table-4", **options)
    assert {r["metric"] for r in found.records()} == {"ratio", "seconds"}
    file.write_text("nobody knows")
    for cell in (tmp_path / "cells").glob("*.json"):
        cell.unlink()
    assert len(studies.run("maccal-table-4", **options).failed) == 2


def test_the_processor_counts_where_it_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    with measured() as spent:
        sum(range(100_000))
    assert spent.processor is not None
    assert spent.processor > 0
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for accelerator, known in (("auto", False), ("cuda", False), ("cpu", True)):
        with measured(accelerator) as spent:
            pass
        assert (spent.processor is not None) == known
        assert spent.clock > 0
    assert Spent(1, 2) + Spent(3, 4) == Spent(4, 6)
    assert Spent(1, 2) + Spent(3, None) == Spent(4, None)


def scores(shift: float, seed: int, rows: int = 300) -> dict[str, Any]:
    drawn = np.random.default_rng(seed).normal(shift, 1, rows)
    # Ties, too, as largest probabilities of sure networks have them.
    return {"auroc": drawn.round(1), "auroc-entropy": drawn}


def test_resamples_of_unknown_images_are_those_of_their_measures() -> None:
    known, unknown = scores(1, 0), [scores(0, 1), scores(0.5, 2, 200)]
    found = detected(known, unknown, 200)
    for name in ("auroc", "auroc-entropy"):
        each = [auroc(known[name], others[name]) for others in unknown]
        assert found[name][0] == pytest.approx(np.mean(each))
    rng = np.random.default_rng(0)
    rows = [np.sort(rng.integers(n, size=n)) for n in (300, 300, 200)]
    first, others = (
        known["auroc"][rows[0]],
        [each["auroc"][drawn] for each, drawn in zip(unknown, rows[1:], strict=True)],
    )
    assert found["auroc"][1][0] == pytest.approx(np.mean([auroc(first, each) for each in others]))
    assert found["fpr95"][1][0] == np.mean([fpr_at_tpr(first, each) for each in others])
    # DeLong's variance of one AUROC: each row's share of wins varies.
    single = detected(known, unknown[:1], 1000)["auroc-entropy"]
    a, b = known["auroc-entropy"], unknown[0]["auroc-entropy"]
    wins = (a[:, None] > b).astype(float)
    error = np.sqrt(wins.mean(1).var() / len(a) + wins.mean(0).var() / len(b))
    assert single[1].std() == pytest.approx(error, rel=0.1)


def test_two_methods_on_the_same_images_differ_by_what_they_say() -> None:
    known, unknown = scores(1, 0), [scores(0, 1)]

    def result(shift: float) -> dict[str, Any]:
        more = [{name: values + shift for name, values in each.items()} for each in unknown]
        found = detected(known, more, 400)
        return {
            "values": {name: {"value": value} for name, (value, _) in found.items()},
            "replicates": {name: drawn.tolist() for name, (_, drawn) in found.items()},
            "pairing": "the same images",
        }

    same = paired([result(0)], [result(0)], "auroc")
    assert same is not None
    assert tuple(same) == (0, 0, 0)
    apart = paired([result(0.2)], [result(0)], "auroc")
    assert apart is not None
    assert apart.high < 0  # while the two intervals by themselves overlap
    spread = np.ptp(np.quantile(result(0)["replicates"]["auroc"], [0.025, 0.975]))
    assert apart.high - apart.low < spread / 2


def test_the_table_of_unknown_images_has_paired_differences(tmp_path: Path) -> None:
    found = studies.run(
        "fedlas-table-3",
        small=True,
        only={"method": ["cross-entropy", "fedlas-ls"]},
        settings=QUICK,
        seeds=[0, 1],
        out=tmp_path,
        engine=ONE,
    )
    assert found.failed == []
    (pair,) = all_pairs(found)
    assert pair.words == "fedlas-ls - cross-entropy"
    assert all(difference is not None for difference in pair.found.values())
    for record in found.records():
        assert record["low"] <= record["value"] <= record["high"]


def test_no_images_is_no_number_of_images() -> None:
    from calibrant.training.run import RunSettings

    with pytest.raises(InputError, match="training_rows must be a whole number above 0, not -1"):
        RunSettings("x", training_rows=-1)
    with pytest.raises(InputError, match="training_rows must be a whole number"):
        RunSettings("x", training_rows=0.5)  # type: ignore[arg-type]
