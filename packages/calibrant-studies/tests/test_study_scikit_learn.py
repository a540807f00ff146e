"""The study of `Calibrated` against scikit-learn's own wrapper, in small."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import calibrant as cb
import calibrant_studies as studies
from calibrant_studies.cells import Cell, Ran
from calibrant_studies.estimates import all_pairs
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds import kind_named
from calibrant_studies.kinds.scikit_learn import classifier, losses, rows_of
from calibrant_studies.results import StudyResult, tables

pytest.importorskip("sklearn")

METHODS = ("calibrated", "sigmoid", "isotonic", "temperature")


def test_a_better_one_wins_by_an_interval_and_an_equal_one_is_open():
    study = studies.run("scikit-learn", small=True, seeds=[], engine=cb.Engine(workers=1)).study
    rng, ran = np.random.default_rng(0), []
    for seed in range(4):
        base = rng.gamma(1.0, size=300)
        worse = {"sigmoid": 0.3 + 0.1 * rng.normal(size=300), "temperature": -0.3 + 0 * base}
        worse["isotonic"] = 0.1 * rng.normal(size=300)
        rows = rng.integers(300, size=(200, 300))
        for method in METHODS:
            loss = base + worse.get(method, 0)
            result = {
                "values": {name: {"value": loss.mean()} for name in ("log-loss", "brier")},
                "replicates": {name: loss[rows].mean(1).tolist() for name in ("log-loss", "brier")},
                "pairing": str(seed),
            }
            at = {"set": "moons", "classifier": "tree", "method": method}
            ran.append(Ran(Cell("scikit-learn", "wrappers", at, seed), result, False))
    found = StudyResult(study, ran, [], [])
    counted = dict(tables(found))["How often"]
    assert [row[:1] + row[2:] for row in counted.rows[::2]] == [
        ["sigmoid - calibrated", "1", "0", "0"],
        ["isotonic - calibrated", "0", "1", "0"],
        ["temperature - calibrated", "0", "0", "1"],
    ]
    *_, last = all_pairs(found)
    assert last.words == "temperature - calibrated"
    assert next(iter(last.found.values())) == pytest.approx((-0.3, -0.3, -0.3))


def test_losses_are_those_of_scikit_learn():
    from sklearn.metrics import log_loss

    probs, truth = np.array([[0.7, 0.3], [1.0, 0.0], [0.2, 0.8]]), np.array([0, 1, 1])
    found = losses(probs, truth)
    assert found[0].mean() == pytest.approx(log_loss(truth, probs))
    np.testing.assert_allclose(found[1], [0.18, 2.0, 0.08])


@pytest.mark.parametrize("name", ["wine", "hastie", "six classes"])
def test_rows_to_measure_on_are_others_than_those_to_fit_on(name):
    seen, new = rows_of(name, 60, 1)
    assert len(seen[1]) == len(seen[0]) == 60
    assert not {row.tobytes() for row in seen[0]} & {row.tobytes() for row in new[0]}
    again, _ = rows_of(name, 60, 1)
    np.testing.assert_array_equal(seen[0], again[0])


@pytest.mark.filterwarnings("ignore")
def test_a_cell_is_the_wrapper_by_hand(tmp_path: Path) -> None:
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.metrics import log_loss

    at = {"set": "wine", "classifier": "naive Bayes", "method": "isotonic"}
    cell = Cell("mine", "wrappers", at, 1, {"rows": 60, "resamples": 50})
    found = kind_named("wrappers").run(cell, Inputs({}), tmp_path)
    (seen, truth), (new, new_truth) = rows_of("wine", 60, 1)
    model = CalibratedClassifierCV(classifier("naive Bayes"), method="isotonic").fit(seen, truth)
    value = found["values"]["log-loss"]
    assert value["value"] == pytest.approx(log_loss(new_truth, model.predict_proba(new)))
    assert value["low"] < value["value"] < value["high"]
    assert len(json.loads(json.dumps(found))["replicates"]["brier"]) == 50
