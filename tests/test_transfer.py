"""What a map fitted on one set is worth on another; classes that are positions of choices."""

from __future__ import annotations

import sys
from functools import cache

import numpy as np
import pytest
from made_logs import choices_of, harness_rows, letter_rows, write_lines

import calibrant as cb
from calibrant.cli import main
from calibrant.comparison.transfer import OTHERS, RAW, Transfer, transfer
from calibrant.core.errors import InputError
from calibrant.posthoc.registry import METHODS
from calibrant.posthoc.state import learns_each_class


@cache
def three() -> tuple[dict[str, cb.Predictions], Transfer]:
    """Two sets that are off alike, and one that is off the other way."""
    draw = cb.synthetic.tempered
    sets = {
        name: draw(1200, 4, temperature=temperature, seed=seed).predictions
        for seed, (name, temperature) in enumerate([("a", 2.0), ("b", 2.0), ("c", 0.5)])
    }
    return sets, transfer(sets, resamples=100)


def test_maps_help_sets_that_are_off_alike_and_harm_others():
    _, found = three()
    assert found.counts("a") == (1, 1, 0)
    assert found.differences["a", "b"][2] < 0 < found.differences["a", "c"][1]
    assert found.differences["c", "c"][2] < 0


def test_a_cell_is_the_metric_of_a_fit_to_one_half_on_the_other_half():
    sets, found = three()
    fit, _ = sets["a"].split(0.5, 0)
    _, test = sets["c"].split(0.5, 0)
    after = cb.TemperatureScaling().fit_predictions(fit).apply_predictions(test)
    value = cb.metrics.negative_log_likelihood(after.probs, after.labels)
    assert found.cells["a", "c"].value == pytest.approx(value)
    raw = cb.metrics.negative_log_likelihood(test.probs, test.labels)
    assert found.cells[RAW, "c"].value == pytest.approx(raw)


def test_the_matrix_and_the_json_hold_every_cell():
    _, found = three()
    table = found.as_table()
    assert [row[0] for row in table.rows] == [RAW, "a", "b", "c", OTHERS]
    assert len(found.as_dict()["cells"]) == 3 + 9 + 3
    assert "4 of 6 pairs" not in found.headline()
    assert "2 of 6 pairs" in found.headline()


def test_sets_too_small_are_left_out_and_one_alone_is_refused():
    sets, _ = three()
    small = {**sets, "small": sets["a"].take(slice(10))}
    assert "small" in transfer(small, resamples=20).left_out
    with pytest.raises(InputError, match="at least two sets"):
        transfer({"a": sets["a"]})
    with pytest.raises(InputError, match="lower is better"):
        transfer(sets, metric="accuracy")


def test_the_command_takes_groups_or_files(tmp_path, capsys, monkeypatch):
    one = write_lines(tmp_path / "one.jsonl", letter_rows(200))
    two = write_lines(tmp_path / "two.jsonl", letter_rows(200, seed=1))
    for words, names in (
        ([one, "--by", "subject"], ("law", "physics")),
        ([one, two], ("one", "two")),
    ):
        command = ["calibrant", "compare", "--transfer", *words, "--resamples", 50]
        monkeypatch.setattr(sys, "argv", [str(word) for word in command])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        out = capsys.readouterr().out
        assert all(name in out for name in names)


def test_methods_with_a_number_a_class_are_known():
    found = {name for name in METHODS if learns_each_class(METHODS[name])}
    assert {"vector", "svs", "sms", "matrix", "dirichlet", "cts", "svs-top-rest"} <= found
    assert found.isdisjoint({"none", "temperature", "smart", "top-rest", "platt", "probit", "auto"})


def test_where_classes_are_positions_such_methods_take_part_only_by_name(tmp_path):
    rows = harness_rows(choices_of(120))
    file = write_lines(tmp_path / "samples_a_2026.jsonl", rows)
    fit, test = cb.read_predictions(file).split(60, 0)
    every = [*METHODS]  # as the command line names them
    found = cb.compare(every, fit=fit, test=test, metrics=["nll"], resamples=20)
    assert "position of a choice" in found.skipped["svs"]
    assert "vector" not in [entry.name for entry in found.methods]
    named = cb.compare(["vector"], fit=fit, test=test, metrics=["nll"], resamples=20)
    assert [entry.name for entry in named.methods] == ["vector"]


def test_auto_has_no_candidate_with_a_number_a_class_there(tmp_path):
    file = write_lines(tmp_path / "rows.jsonl", letter_rows(400))
    rows = cb.read_predictions(file)
    auto = cb.AutoCalibrator().fit_predictions(rows)
    assert not any("svs" in name for name in auto.steps_)
    notes = " ".join(auto.fit_report_.notes)
    assert "left out svs" in notes
    assert np.isfinite(np.asarray(auto.apply_predictions(rows).probs)).all()
