"""Every declared study in its small form, on what ships with the package; cells are shared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibrant as cb
import calibrant_studies as studies
from calibrant_studies.catalogue import names
from calibrant_studies.kinds import kind_named
from calibrant_studies.kinds.network_parts import angles_between
from calibrant_studies.networks.plans import plan_of
from calibrant_studies.results import tables
from calibrant_studies.writing import written_for

pytest.importorskip("torch")
pytest.importorskip("lightning")

ONE = cb.Engine(workers=1)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all small forms keep their cells and networks: many share them."""
    return tmp_path_factory.mktemp("kept")


def runs_in(kept: Path) -> list[dict[str, Any]]:
    """The settings of all networks that were trained there."""
    return [json.loads(path.read_text()) for path in kept.glob("work/run-*/config.json")]


@pytest.mark.parametrize("name", names())
def test_every_study_runs_in_small_on_what_ships_with_the_package(name: str, kept: Path) -> None:
    found = studies.run(name, small=True, out=kept, engine=ONE)
    assert not found.failed
    assert not found.missing
    assert found.ran
    assert found.estimates
    assert all(table.rows if table.head else table.notes for _, table in tables(found))
    for form in ("md", "tex", "csv"):
        assert written_for(found, f"t.{form}").strip()


def test_no_network_is_trained_twice(kept: Path) -> None:
    """Table 4 is about networks of Table 1, and Table 5 of MaC-Cal about one of its Table 1."""
    for name in ("fedlas-table-1", "fedlas-table-4", "maccal-table-1", "maccal-table-5"):
        found = studies.run(name, small=True, out=kept, engine=ONE)
        assert (found.failed, found.missing) == ([], [])
    told = [json.dumps(each, sort_keys=True) for each in runs_in(kept)]
    assert len(set(told)) == len(told) > 4


def test_one_seed_is_undecided_and_an_ensemble_costs_what_its_members_do(kept: Path) -> None:
    result = studies.run("which-training", small=True, out=kept, engine=ONE)
    ((_, table),) = kind_named("trainings-beside").tables(result)
    rows = {row[1]: list(row) for row in table.rows}
    assert rows["mixup"][2] == "1"
    assert rows["mixup"][4].endswith(", undecided")
    assert rows["cross-entropy + T"][9] == "1.0"
    assert float(rows["three networks"][9]) > 2
    # Its members are networks of their own, of which cross-entropy's is one.
    (ensemble,) = [plan_of(ran.cell) for ran in result.ran if ran.cell.at["method"] == "ensemble"]
    runs = [run for run in runs_in(kept) if run.get("protocol") == ensemble.run["protocol"]]
    found = [[member.is_of(run) for run in runs].count(True) for member in ensemble.members]
    assert found == [1, 1, 1]
    assert not any("members" in run and run["members"] != 1 for run in runs)


def test_angles_are_those_of_the_plane() -> None:
    found = angles_between([[1.0, 0.0], [0.0, 3.0], [-2.0, 0.0], [1.0, 1.0]])
    expected = [[0, 90, 180, 45], [90, 0, 90, 45], [180, 90, 0, 135], [45, 45, 135, 0]]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_head_has_the_numbers_that_are_drawn_of_it(kept: Path) -> None:
    result = studies.run("maccal-figure-2", small=True, out=kept, engine=ONE)
    assert [ran.cell.at["method"] for ran in result.ran] == ["vanilla", "retrained"]
    for ran in result.ran:
        values = {name: found["value"] for name, found in ran.result["values"].items()}
        angles = np.array(ran.result["angles"])
        pairs = angles[np.triu_indices(len(angles), 1)]
        assert values["angle"] == pytest.approx(pairs.mean(), abs=1e-2)
        assert values["angle-spread"] == pytest.approx(pairs.std(), abs=1e-2)
        assert 0 < values["entropy"] < np.log(len(angles))
        rows = ran.result["rows"]
        logits = np.array(rows["logits"])
        probs = np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
        entropy = -(probs * np.log(probs)).sum(axis=1)
        np.testing.assert_allclose(rows["entropy"], entropy, atol=1e-3)
    first, second = (np.array(ran.result["angles"]) for ran in result.ran)
    assert np.abs(first - second).max() > 1  # another head
    figure = kind_named("prototypes").draw(result)
    assert figure is not None
    assert len([ax for ax in figure.axes if ax.get_label() != "<colorbar>"]) == 6
