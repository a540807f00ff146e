"""Studies as `calibrant study` runs them: declared, computed once, resumed, laid out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibrant as cb
import calibrant_studies as studies
from calibrant import cli
from calibrant.core.errors import InputError
from calibrant_studies import command
from calibrant_studies import running as computing
from calibrant_studies.catalogue import names, needs_of, study_named
from calibrant_studies.cells import Ran, cells_of
from calibrant_studies.declaration import Published, Study, parse_published, read_study, study_from
from calibrant_studies.estimates import Estimate, marked
from calibrant_studies.figures import relative_to
from calibrant_studies.inputs import Inputs, inputs_of
from calibrant_studies.kinds import kind_named
from calibrant_studies.kinds.base import Measure
from calibrant_studies.requirements import runnable_in_words
from calibrant_studies.results import StudyResult
from calibrant_studies.running import prepared

DECLARED = """
title = "Two methods on two networks"
paper = "Calibrant"
kind = "posthoc"
seeds = [0, 1]
metrics = ["ece", "nll"]
rows = ["data"]
columns = ["method"]
footnotes = ["Made up."]
published = \"\"\"
input | temperature / ece | none / ece
one   | 1.5 +- 0.2        | -
two   | 99*               | 2
\"\"\"

[axes]
input = [{ name = "one", data = "One" }, { name = "two", data = "Two" }]
method = ["none", { name = "temperature", label = "TS" }]

[settings]
resamples = 40
"""
ONE = cb.Engine(workers=1)


def write_rows(path: Path, seed: int, rows: int = 400) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=3.0, size=(rows, 3))
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    np.savez(path, logits=logits, labels=labels)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a declaration, the pair `one`, and `two`, which is split."""
    (tmp_path / "mine.toml").write_text(DECLARED, encoding="utf-8")
    (tmp_path / "data").mkdir()
    for i, name in enumerate(("one-val", "one-test", "two")):
        write_rows(tmp_path / "data" / f"{name}.npz", i)
    return tmp_path


def run(place: Path, **options: object) -> studies.StudyResult:
    options = {"data": [str(place / "data")], "out": place / "out", "engine": ONE} | options
    return studies.run(str(place / "mine.toml"), **options)


def kept(place: Path) -> list[Path]:
    return sorted((place / "out" / "cells").iterdir())


def test_each_cell_is_computed_once_and_kept(place: Path) -> None:
    found = run(place)
    # A pair and a method without a seed: both seeds of the study are one cell. A split has two.
    assert [len(e.values) for e in found.estimates] == [1, 1, 2, 2] * 2
    assert found.computed == 2 * 2 + 4
    assert len(kept(place)) == 6
    times = [path.stat().st_mtime_ns for path in kept(place)]
    again = run(place)
    assert again.computed == 0
    assert [path.stat().st_mtime_ns for path in kept(place)] == times
    assert again.records() == found.records()


def test_values_are_those_of_compare(place: Path) -> None:
    found = run(place)
    fit, test = (cb.read_predictions(place / "data" / f"one-{p}.npz") for p in ("val", "test"))
    known = cb.compare(["none", "temperature"], fit=fit, test=test, resamples=40)
    for record in found.records()[:2]:
        result = known[record["method"]].evaluation["ece"]
        assert record["value"] == pytest.approx(100 * result.value)
        assert record["low"] == pytest.approx(100 * result.low)
        assert record["floor"] == pytest.approx(100 * result.floor)


def test_other_data_other_settings_and_another_version_are_other_cells(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(place)
    write_rows(place / "data" / "two.npz", 7)
    assert run(place).computed == 4
    text = DECLARED.replace("resamples = 40", "resamples = 41")
    (place / "mine.toml").write_text(text, encoding="utf-8")
    study_named.cache_clear()
    assert run(place).computed == 8
    monkeypatch.setattr("calibrant_studies.kinds.posthoc.PostHoc.version", "next")
    assert run(place).computed == 8


def test_a_damaged_result_is_computed_again(place: Path) -> None:
    found = run(place)
    kept(place)[0].write_text('{"result": {', encoding="utf-8")
    again = run(place)
    assert again.computed in (1, 2)  # one file, which may stand for two cells
    assert again.records() == found.records()


def test_a_failed_cell_is_told_and_the_rest_goes_on(place: Path) -> None:
    found = run(place, methods=["none", "scaling-binning", "matrix", "svs"], seeds=[0])
    assert not found.failed
    np.savez(place / "data" / "one-test.npz", logits=np.zeros((9, 4)), labels=np.zeros(9, int))
    again = run(place, methods=["none", "svs"], seeds=[0])
    assert [failed.cell.at["input"] for failed in again.failed] == ["one", "one"]
    assert {ran.cell.at["input"] for ran in again.ran} == {"two"}
    assert again.failed[0].error in str(again)


def without_times(place: Path) -> dict[str, object]:
    """Return what is kept of each cell, but for when and how fast it was made."""
    found = {path.name: json.loads(path.read_text()) for path in place.iterdir()}
    for document in found.values():
        for key in ("made", "seconds"):
            del document[key]
        for key in ("fit_seconds", "apply_seconds"):
            del document["result"][key]
        document["result"]["values"].pop("seconds", None)
    return found


def test_a_run_that_is_killed_at_any_step_loses_and_doubles_nothing(place: Path) -> None:
    words = [str(place / "mine.toml"), str(place / "data"), str(place / "out")]
    script = Path(__file__).parent / "killed_study.py"
    done = subprocess.run(
        [sys.executable, str(script), *words], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) >= 5
    # What lives left over is gone, and what they kept is what one life would have.
    folders = [place / "out" / name for name in ("cells", "failed")]
    assert not [path for folder in folders for path in folder.glob(".calibrant-*")]
    assert without_times(folders[0]) == without_times(place / "out-other" / "cells")
    assert not list(folders[1].iterdir())
    assert run(place).computed == 0


def killing(job: computing.Job, *words: object, **more: object) -> computing.Outcome:
    """Compute a cell as `compute` does, but be killed at one method."""
    if job.cell.method == "svs":
        kind = type(kind_named(job.cell.kind))
        kind.run = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    return real_compute(job, *words, **more)  # type: ignore[arg-type]


real_compute = computing.compute


def test_a_cell_whose_process_is_killed_fails_alone(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "data" / "two.npz").unlink()
    monkeypatch.setattr(computing, "compute", killing)
    methods = ["none", "svs", "temperature"]
    found = run(place, methods=methods, seeds=[0], engine=cb.Engine(workers=2))
    assert [failed.cell.method for failed in found.failed] == ["svs"]
    assert "was killed" in found.failed[0].error
    assert len(found.ran) == 2
    monkeypatch.undo()
    again = run(place, methods=methods, seeds=[0])
    assert (again.computed, again.failed) == (1, [])


def test_dask_computes_the_same(place: Path) -> None:
    pytest.importorskip("distributed")
    found = run(place, seeds=[0], engine=cb.Engine("dask", workers=1), out=place / "dask")
    assert found.records() == run(place, seeds=[0]).records()


def test_what_is_missing_is_told_first_and_the_rest_runs(place: Path) -> None:
    (place / "data" / "two.npz").unlink()
    found = run(place)
    assert [(m.input, m.cells) for m in found.missing] == [("two", 4)]
    assert str(found).index("two (4 cells)") < str(found).index("TS")
    assert {ran.cell.input for ran in found.ran} == {"one"}


def test_own_data_and_own_methods_enter_by_name(place: Path) -> None:
    write_rows(place / "other.npz", 5)
    data = [str(place / "data"), f"mine={place / 'other.npz'}"]
    found = run(place, data=data, methods=["temperature", "svs+top-rest"])
    assert {record["input"] for record in found.records()} == {"one", "two", "mine"}
    assert {record["method"] for record in found.records()} == {"temperature", "svs+top-rest"}
    pair = [place / "data" / f"one-{part}.npz" for part in ("val", "test")]
    named = run(place, data={"one": pair, "mine": place / "other.npz"}, methods=["temperature"])
    assert named.computed == 0
    assert {ran.cell.input for ran in named.ran} == {"one", "mine"}


def test_a_part_of_the_grid_runs_with_settings_of_ones_own(place: Path) -> None:
    found = run(place, only={"input": ["one"], "method": ["temperature"]})
    assert [record["method"] for record in found.records()] == ["temperature", "temperature"]
    again = run(place, only={"input": ["one"]}, settings={"resamples": 20})
    assert again.computed > 0
    assert {len(seed) for estimate in again.estimates for seed in estimate.replicates} == {20}
    with pytest.raises(InputError, match="setting"):
        run(place, settings={"resample": 20})
    with pytest.raises(InputError, match="has no axis network"):
        run(place, only={"network": ["a"]})


def test_published_numbers_stand_beside_own_ones(place: Path) -> None:
    records = {(r["input"], r["method"]): r for r in run(place).records() if r["metric"] == "ece"}
    temperature = records["one", "temperature"]
    assert temperature["published"] == 1.5
    assert temperature["difference"] == pytest.approx(temperature["value"] - 1.5)
    assert records["one", "none"]["verdict"] == ""
    low, high = (records["two", "temperature"][f"difference_{end}"] for end in ("low", "high"))
    assert not low <= 0 <= high
    known = records["two", "none"]
    assert (known["difference_low"] <= 0 <= known["difference_high"]) == (
        known["low"] - 0.5 <= 2 <= known["high"] + 0.5
    )


def test_the_best_is_marked_and_all_that_may_be_it(place: Path) -> None:
    for estimate in run(place).estimates:
        assert estimate.best <= bool(estimate.may_be_best)
    assert sum(estimate.best for estimate in run(place).estimates) == 4


def test_a_method_that_another_seed_would_favour_may_be_the_best() -> None:
    def estimate(name: str, values: tuple[float, ...]) -> Estimate:
        noise = np.random.default_rng(1).normal(scale=0.001, size=(len(values), 400))
        drawn = tuple(
            tuple((value + row).tolist()) for value, row in zip(values, noise, strict=True)
        )
        measure = Measure("ece", "ECE", 1.0, 2, "low", "")
        at = {"method": name}
        return Estimate(at, measure, values, None, None, None, None, drawn, ("rows",), None)

    def marks(*values: tuple[float, ...]) -> list[bool | None]:
        named = [estimate(str(i), of) for i, of in enumerate(values)]
        return [each.may_be_best for each in marked(named, "method")]

    # On every resample of the same seeds the first is better; the second wins on one of four seeds.
    assert marks((0.1, 0.1, 0.1, 0.5), (0.2, 0.2, 0.2, 0.3)) == [True, True]
    assert marks((0.1, 0.1, 0.1, 0.1), (0.2, 0.2, 0.2, 0.3)) == [True, False]
    # What hangs on no seed stands beside each of them; other numbers of seeds can't be paired.
    assert marks((0.1,), (0.2, 0.2, 0.2, 0.3)) == [True, False]
    assert marks((0.1, 0.1), (0.2, 0.2, 0.2)) == [None, None]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('title = "Two', 'titel = "Two', "no key of a study is called 'titel'"),
        ('kind = "posthoc"', 'kind = "postdoc"', "no kind of cell is called 'postdoc'"),
        ("seeds = [0, 1]", "seeds = [0, 0]", "seeds must be different whole numbers"),
        ('metrics = ["ece", "nll"]', 'metrics = ["ece", "nil"]', "no metric is called 'nil'"),
        ('rows = ["data"]', 'rows = ["date"]', "rows: no axis is called 'date'"),
        ("resamples = 40", "samples = 40", "no setting is called 'samples'"),
        ("| 1.5 +- 0.2 ", "| about 1.5 ", "row 1: 'about 1.5' is no number"),
        ("two   |", "three |", "row 2: 'three' is no value of the axis input"),
        ("none / ece", "none / ace", "names none of the metrics ece, nll"),
        ("[axes]", "[axes", "is no TOML"),
        ('label = "TS"', 'label = "none"', "'none' is there twice"),
        ("two   | 99*               | 2", "one | 9 | 9", "row 2: ece of this cell is there twice"),
        ("[axes]", 'skip = [{ inptu = "one" }]\n[axes]', "skip: no axis is called 'inptu'"),
        ("[axes]", 'skip = [{ input = "uno" }]\n[axes]', "'uno' is no value of the axis input"),
        ("[axes]", "skip = [{}]\n[axes]", "skip must be a list of tables"),
        (
            "[settings]",
            '[figure]\nx = "input"\nminus = "non"\n[settings]',
            "minus: 'non' is no value of any axis",
        ),
        ('method = ["none"', 'rank = [1]\nmethod = ["none"', "has no axis rank"),
    ],
)
def test_a_wrong_declaration_is_one_sentence(place: Path, old: str, new: str, words: str) -> None:
    assert old in DECLARED
    (place / "mine.toml").write_text(DECLARED.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        run(place)
    said = str(caught.value)
    assert words in said
    assert "mine" in said or "kind of cell" in said
    assert "\n" not in said


def test_published_blocks_may_name_metrics_or_values() -> None:
    axes, metrics = {"input": ["a"], "method": ["m", "n"]}, ["ece", "nll"]
    found = parse_published(
        "input | method | ece | nll\na | m | 1.25 | 3e-1", axes, metrics, "here"
    )
    assert [(p.metric, p.value, p.half_digit) for p in found] == [
        ("ece", 1.25, 0.005),
        ("nll", 0.3, pytest.approx(0.05)),
    ]
    (first, second) = parse_published("input | m | n\na | 1 ± 0.5 | 2*", axes, ["ece"], "here")
    assert (first.at, first.spread, second.doubtful) == ({"input": "a", "method": "m"}, 0.5, True)
    assert second.matches({"input": "a", "method": "n", "size": "9"})


@pytest.mark.parametrize("name", names())
def test_every_declared_study_is_sound(name: str) -> None:
    study = study_named(name)
    assert study.title[0].isupper()
    assert isinstance(study.reduced(), Study)


def test_the_command_line_lists_shows_and_runs(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["calibrant", "study", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    code, out, _ = call("list", "--json", "-")
    listed = json.loads(out)
    assert code == 0
    assert [each["name"] for each in listed] == names()
    assert set(listed[0]) == {"name", "title", "paper", "needs", "runnable"}
    mine, data = place / "mine.toml", place / "data"
    code, out, _ = call("show", mine, "--data", data, "--json", "-")
    assert (code, json.loads(out)["missing"]) == (0, [])
    code, out, err = call("run", mine, "--out", place / "out")
    assert (code, out) == (2, "")
    assert "nothing that it needs is there" in err
    tables = [place / f"table.{ending}" for ending in ("md", "tex", "csv")]
    words = [word for table in tables for word in ("--table", table)]
    code, out, _ = call(
        "run", mine, "--data", data, "--out", place / "out", "--workers", 1, *words, "--json", "-"
    )
    assert code == 0
    assert len(json.loads(out)["results"]) == 8
    part = ["run", mine, "--data", data, "--out", place / "out", "--only", "method=none"]
    code, out, _ = call(*part, "--set", "resamples=20", "--workers", 1, "--json", "-")
    assert (code, len(json.loads(out)["results"])) == (0, 4)
    code, _, err = call(*part, "--set", "resamples=many")
    assert (code, "must be a whole number" in err) == (2, True)
    assert "\\toprule" in tables[1].read_text()
    # Before anything is computed, not after.
    code, out, err = call("run", mine, "--data", data, "--out", place / "new", "--table", "t.txt")
    assert (code, (place / "new").exists()) == (2, False)
    code, out, err = call("run", "smart-tabel-1")
    assert code == 2
    assert "did you mean 'smart-table-1'" in err
    assert len(err) < 250
    code, _, err = call("run", mine, "--data", data, "--only", "input=onne")
    assert (code, "did you mean 'one'" in err) == (2, True)


def test_what_runs_is_told_of_each_study_and_what_is_always_there_isnt_asked_for(
    place: Path,
) -> None:
    study, some = read_study(place / "mine.toml"), inputs_of([f"one={place / 'data/two.npz'}"])[0]
    data = inputs_of([str(place / "data")])[0]
    said = [runnable_in_words(study, inputs) for inputs in (Inputs({}), some, data)]
    assert said == ["no", "in part", "yes"]
    assert [need.input for need in needs_of(study)] == ["one", "two"]
    assert not needs_of(study_named("interval-coverage"))  # draws its rows
    order = names()
    assert order.index("fedlas-figure-1c") < order.index("fedlas-figure-3")
    assert order.index("smart-table-2") < order.index("smart-table-10")


def test_a_study_says_how_many_of_its_cells_can_be_computed(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = command.SmallOptions(data=[f"one={place / 'data/two.npz'}"])
    command.show(str(place / "mine.toml"), options, command.OutputOptions())
    said = capsys.readouterr().out
    assert "8 cells of kind posthoc; 4 can be computed" in said
    assert max(map(len, said.splitlines())) <= 80


def test_a_study_of_a_document_is_that_of_its_file(place: Path) -> None:
    import tomllib

    path = place / "mine.toml"
    assert study_from(tomllib.loads(DECLARED), "mine", str(path)) == read_study(path)


@pytest.mark.parametrize(("published", "within"), [(3.4, True), (3.6, False)])
def test_few_seeds_know_their_noise_badly(published: float, within: bool) -> None:
    # The mean of 0, 1 and 2 is 1 with a standard error of 0.577: 4.3 of these by Student's t with
    # two degrees reach 2.48, where 1.96 of them would reach 1.13.
    number = Published({}, "ece", published, None, 0.005, doubtful=False)
    estimate = Estimate(
        {}, Measure("ece", "ECE"), (0.0, 1.0, 2.0), None, None, None, None, (), (), number
    )
    assert estimate.verdict == ("may be equal" if within else "differs")
    low, high = estimate.difference_ends or (0.0, 0.0)
    assert (low <= 0 <= high) is within
    # Two seeds know it too badly to say anything.
    assert replace(estimate, values=(0.0, 2.0)).verdict == "undecided"


@pytest.mark.parametrize(
    ("name", "asked", "words"),
    [
        # All columns would be one thing under several names.
        (
            "fedlas-table-1",
            {"settings": {"loss": "focal"}},
            "cross-entropy and .* of the axis method",
        ),
        ("second-stages", {"settings": {"second_stage": "tst"}}, "of the axis stage are the same"),
        ("losses-longer", {"settings": {"epochs": 5}}, "epochs is an axis of the study"),
        ("calibration-size", {"settings": {"size": 300}}, "size is an axis of the study"),
        ("calibration-size", {"settings": {"method": "smart"}}, "method is an axis"),
        # Nobody would read them.
        ("second-stages-masks", {"settings": {"level": 0.9}}, "doesn't read level"),
        ("second-stages-kappa", {"settings": {"after": "smart"}}, "doesn't read after"),
        ("smart-table-5", {"settings": {"resamples": 9}}, "doesn't read resamples"),
        ("smart-table-1", {"settings": {"arguments": {"smrt": {}}}}, "called 'smrt'"),
        ("smart-table-1", {"settings": {"arguments": "smart"}}, "must be arguments by method"),
        ("calarena-binary", {"settings": {"arguments": {"smrt": {}}}}, "called 'smrt'"),
        (
            "smart-table-1",
            {"methods": ["none"], "settings": {"arguments": {"smart": {"n_bins": 9}}}},
            "no method here is called 'smart'",
        ),
        # The network's own head would stand under the name of another.
        (
            "heads-halves",
            {"only": {"stage": ["macal"]}},
            "no value of the axis stage is called .macal",
        ),
        ("heads-halves", {"only": {"trained": ["7"]}}, "no value of the axis trained is called .7"),
    ],
)
def test_what_a_study_would_ignore_it_refuses(
    name: str, asked: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=words) as caught:
        studies.run(name, small="calarena" in name, out=tmp_path, engine=ONE, **asked)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("cells/*"))


def test_a_setting_may_say_what_only_one_value_is() -> None:
    asked = {"only": {"stage": ["maccal"]}, "settings": {"second_stage": "tst"}}
    study, _ = prepared("second-stages", **asked)
    assert {cell.settings["second_stage"] for cell in cells_of(study)} == {"tst"}
    arguments = {"arguments": {"smart": {"n_bins": 20}}}
    study, _ = prepared("smart-table-1", methods=["none", "smart"], settings=arguments)
    assert study.forced == arguments


def test_competitors_of_which_other_seeds_are_there_are_not_paired(place: Path) -> None:
    whole = run(place, only={"input": ["one"]}, seeds=[0, 1, 2], methods=["none", "temperature"])

    def of(kept: dict[str, set[int]]) -> StudyResult:
        ran = [
            # Each seed has numbers of its own, as of a network that is trained anew.
            Ran(r.cell, json.loads(json.dumps(r.result)), reused=False)
            for r in whole.ran
            if r.cell.seed in kept[r.cell.method]
        ]
        return StudyResult(whole.study, ran, [], [])

    both = of({"none": {0, 1}, "temperature": {0, 1}})
    assert {e.may_be_best is None for e in both.estimates} == {False}
    # As many, but of other seeds: 1 would stand beside 2.
    apart = of({"none": {0, 1}, "temperature": {0, 2}})
    assert {e.may_be_best for e in apart.estimates} == {None}
    (relative, *_) = relative_to(
        replace(apart, study=replace(apart.study, metrics=("ece",))), "none"
    )
    values = {
        r.cell.method: r.result["values"]["ece"]["value"] for r in whole.ran if r.cell.seed == 0
    }
    assert relative.values == (values["temperature"] - values["none"],)


def test_intervals_say_the_level_that_they_were_asked_for_at(place: Path) -> None:
    asked = {"only": {"input": ["one"]}, "methods": ["temperature"], "seeds": [0]}
    usual, narrow = run(place, **asked), run(place, settings={"level": 0.5}, **asked)
    assert "95 % interval" in str(usual)
    assert "50 % interval" in str(narrow)
    assert "95 % interval" not in str(narrow)
    # What a paper prints is held against 95 % intervals.
    told = [[r["difference_low"] for r in f.records() if r["published"]] for f in (usual, narrow)]
    assert told[0][0] is not None
    assert told[1] == [None]


def test_rows_that_differ_are_not_paired(place: Path) -> None:
    def pairing(**options: Any) -> str:
        (ran,) = run(place, seeds=[0], methods=["none"], **options).ran
        return ran.result["pairing"]

    two = {"only": {"input": ["two"]}}
    assert pairing(**two) == pairing(**two, settings={"resamples": 20})
    assert pairing(**two) == pairing(**two, settings={"size": 50})
    assert pairing(**two) != pairing(**two, settings={"fit_size": 0.4})
    drawn = {"only": {"input": ["synthetic"]}}
    assert pairing(**drawn) != pairing(**drawn, settings={"size": 50})
