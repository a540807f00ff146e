"""Comparisons over data sets and seeds: statistics held to SciPy, tables, and the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import calibrant as cb
from calibrant.cli import main
from calibrant.cli.compare import seeds_in
from calibrant.comparison.multi_dataset import ManyComparisons, compare_over
from calibrant.core.errors import CalibrantError, InputError
from calibrant.core.result import Table
from calibrant.evaluation.best_set import (
    critical_difference,
    friedman_p,
    ranks_within,
    signed_rank_p,
    t_interval,
)

METHODS = ["none", "temperature", "histogram"]


@pytest.fixture(scope="module")
def datasets() -> dict[str, cb.Predictions]:
    sample = cb.load_sample("test")
    return {f"part-{i}": sample.take(np.arange(i, 10_000, 25)) for i in range(6)}


@pytest.fixture(scope="module")
def found(datasets: dict[str, cb.Predictions]) -> ManyComparisons:
    return compare_over(datasets, METHODS, seeds=[0, 1], resamples=10)


def test_ranks_share_ties_and_the_critical_difference_is_demsars() -> None:
    assert ranks_within(np.array([[3.0, 1.0, 2.0], [1.0, 1.0, 0.0]])).tolist() == [
        [3, 1, 2],
        [2.5, 2.5, 1],
    ]
    # Demsar (2006), section 3.2.4: four classifiers on 14 data sets, q = 2.569.
    assert critical_difference(4, 14, 0.95) == pytest.approx(2.569 * np.sqrt(20 / 84), rel=1e-3)
    assert critical_difference(1, 14, 0.95) is None


def test_friedmans_test_is_scipys_in_iman_and_davenports_form() -> None:
    from scipy.stats import f, friedmanchisquare

    rng = np.random.default_rng(0)
    costs = rng.normal(size=(12, 5)) + np.arange(5) * 0.4
    costs[3, :2] = 0.5  # a tie
    chi = friedmanchisquare(*costs.T).statistic
    wanted = f.sf(11 * chi / (12 * 4 - chi), 4, 44)
    assert friedman_p(ranks_within(costs)) == pytest.approx(wanted, rel=1e-9)
    # All in the same order: by chance in one of 3!^3 cases, where F is infinite.
    assert friedman_p(np.tile([1.0, 2.0, 3.0], (4, 1))) == pytest.approx(1 / 216)
    assert friedman_p(np.full((4, 3), 2.0)) == 1
    assert friedman_p(np.array([[1.0, 2.0]])) is None


def test_paired_statistics_are_scipys() -> None:
    from scipy.stats import t, wilcoxon

    d = np.array([0.3, -0.1, 0.25, 0.4, 0.05, 0.6, 0.11])
    low, high = t_interval(d, 0.9)
    wanted = t.interval(0.9, 6, d.mean(), d.std(ddof=1) / np.sqrt(7))
    assert (low, high) == pytest.approx(wanted)
    assert signed_rank_p(d) == pytest.approx(wilcoxon(d).pvalue)
    assert t_interval(d[:1], 0.9) == (None, None)
    assert signed_rank_p(d[:1]) is None
    assert signed_rank_p(np.zeros(5)) == 1


def test_values_are_those_of_single_comparisons(found, datasets) -> None:
    fit, test = datasets["part-2"].split(0.5, 1)
    alone = cb.compare(METHODS, fit=fit, test=test, resamples=10, seed=1, rank_by="nll")
    for method in METHODS:
        for metric in ("nll", "ece"):
            value = found.values(metric, method)["part-2"][1]
            assert value == alone[method].evaluation[metric].value


def test_the_best_rank_comes_first_and_what_is_worse_is_told(found) -> None:
    costs = found.costs("nll")
    assert costs.shape == (6, 3)
    assert list(found.ranks.values()) == sorted(found.ranks.values())
    assert found.best == "temperature"
    raw = found.to_best["none"]
    assert raw.wins == int((costs[:, found.methods.index("none")] < costs[:, 0]).sum())
    assert raw.difference == pytest.approx(
        (costs[:, found.methods.index("none")] - costs[:, 0]).mean()
    )
    assert raw.low < raw.difference < raw.high
    assert "over 6 data sets: temperature" in found.headline()


def test_a_pair_is_measured_once_and_methods_that_fail_somewhere_are_left_out(datasets) -> None:
    rows = datasets["part-0"]
    pair = cb.Predictions.from_logits(rows.logits, rows.labels).split(0.5, 0)
    found = compare_over(
        {"pair": pair}, ["none", "temperature", "feature-clipping"], seeds=[0, 1], resamples=5
    )
    assert found.as_dict()["seeds"] == {"pair": 1}
    assert set(found.methods) == {"none", "temperature"}
    assert "features" in found.left_out["feature-clipping"]
    assert "can't show which of two methods is better" in " ".join(str(found).split())
    with pytest.raises(CalibrantError, match="no method could be fitted"):
        compare_over({"pair": pair}, ["feature-clipping"], resamples=5)
    for wrong in ({"datasets": {}}, {"datasets": {"a": pair}, "seeds": []}):
        with pytest.raises(InputError, match="needs at least one"):
            compare_over(**wrong)


def test_what_few_data_sets_can_tell_is_one_sentence_with_friedmans_test(datasets) -> None:
    three = {name: datasets[name] for name in list(datasets)[:3]}
    alike = compare_over(three, ["none", "temperature"], resamples=5)
    assert alike.friedman_p == pytest.approx(0.25)  # 1 / 2!^2: the same order thrice
    assert (
        "3 data sets can't show which of two methods is better; use 6 or more." in alike.headline()
    )
    methods = ["none", "temperature", "histogram", "svs", "ets"]
    differ = compare_over(three, methods, resamples=5)
    assert differ.friedman_p < 0.05
    assert "The methods don't all rank alike (Friedman's test, p = " in differ.headline()
    assert (
        "but 3 data sets can't show which of two methods is better; use 6 or more."
        in differ.headline()
    )


def test_two_data_sets_that_agree_prove_no_more_than_chance_would() -> None:
    assert friedman_p(np.array([[1.0, 2.0], [1.0, 2.0]])) == pytest.approx(1 / 2)
    assert friedman_p(np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])) == pytest.approx(1 / 6)


def test_tables_are_written_for_papers_and_programs(found) -> None:
    table = found.table("ece")
    latex = table.to_latex()
    assert latex.count(r" \\") == 4
    assert r"\toprule" in latex
    assert r" $\pm$ " in latex
    assert latex.count(r"\textbf{") == 6  # the best of each data set
    lines = table.to_csv().splitlines()
    assert lines[0] == "method,part-0,part-1,part-2,part-3,part-4,part-5,rank"
    assert len(lines) == 4
    best = int(np.argmin(found.costs("ece")[0]))
    assert table.to_markdown().splitlines()[2 + best].split("|")[2].strip().startswith("**")


def test_what_latex_reads_as_a_command_is_escaped() -> None:
    table = Table(["a_b", "50 %"], [["x & y", "1 +- 2"]], {(0, 1)}, "note")
    assert r"a\_b & 50 \% \\" in table.to_latex()
    assert r"x \& y & \textbf{1 $\pm$ 2} \\" in table.to_latex()
    assert table.to_latex().startswith("% note\n")
    with pytest.raises(InputError, match=r"table\.txt: tables are written as \.tex, \.md, \.csv"):
        table.written_for("table.txt")


class Said(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def call(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["calibrant", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return Said(int(ended.value.code or 0), *capsys.readouterr())

    return call


def test_the_command_compares_files_runs_and_folders(tmp_path: Path, datasets, run) -> None:
    for name, rows in list(datasets.items())[:2]:
        cb.write_predictions(rows, tmp_path / f"{name}.npz")
    for seed in (0, 1):
        run_folder = tmp_path / "runs" / f"ce-{seed}"
        run_folder.mkdir(parents=True)
        fit, test = datasets["part-3"].split(0.5, seed)
        cb.write_predictions(fit, run_folder / "val.npz")
        cb.write_predictions(test, run_folder / "test.npz")
    common = ("--methods", "none,temperature", "--resamples", 5, "--json", "-")
    files = [tmp_path / "part-0.npz", tmp_path / "part-1.npz"]
    (tmp_path / "tables").mkdir()
    tables = [tmp_path / "tables" / f"table.{ending}" for ending in ("tex", "md", "csv")]
    asked = [word for table in tables for word in ("--table", table)]
    said = run("compare", *files, "--seeds", "0-2", *common, *asked)
    assert said.code == 0, said.err
    document = json.loads(said.out)
    assert document["seeds"] == {"part-0": 3, "part-1": 3}
    assert document["rank_by"] == "nll"
    for table in tables:
        assert "temperature" in table.read_text()
    of_runs = json.loads(run("compare", tmp_path / "runs", *common).out)
    assert of_runs["seeds"] == {"ce-0": 1, "ce-1": 1}
    of_folder = json.loads(run("compare", tmp_path, *common).out)
    assert of_folder["datasets"] == ["part-0", "part-1"]
    one_file = json.loads(run("compare", files[0], "--seeds", "0,4", *common).out)
    assert one_file["seeds"] == {"part-0": 2}


def test_a_run_that_one_stands_in_is_called_as_its_folder_is(
    tmp_path: Path, datasets, run, monkeypatch
) -> None:
    folder = tmp_path / "first-run"
    folder.mkdir()
    for name in ("val", "test"):
        cb.write_predictions(datasets["part-0"], folder / f"{name}.npz")
    monkeypatch.chdir(folder)
    said = run("compare", ".", "--methods", "none", "--resamples", 5, "--json", "-")
    assert json.loads(said.out)["datasets"] == ["first-run"]


def test_wrong_words_are_one_sentence(tmp_path: Path, datasets, run) -> None:
    file = tmp_path / "a.npz"
    cb.write_predictions(datasets["part-0"], file)
    (tmp_path / "empty").mkdir()
    for words, sentence in {
        (file, "--seeds", "x"): "--seeds takes numbers and ranges, as 0-4 or 0,1,2, not 'x'",
        (file, "--seeds", "0,0"): "names no seed, or one more than once",
        (tmp_path / "empty",): "holds neither runs",
        (file, file): "two data sets are called",
        (
            file,
            "--seeds",
            "0-1",
            "--report",
            tmp_path / "p.html",
        ): "are for a single data set",
        (file, "--table", tmp_path / "t.md"): "--table is for several data sets",
    }.items():
        said = run("compare", *words, "--methods", "none", "--resamples", 5)
        assert (said.code, said.out) == (2, "")
        assert sentence in said.err
    assert seeds_in("3,0-1") == [3, 0, 1]


def test_latex_takes_signs_of_numbers_and_comparisons_for_what_they_are() -> None:
    rows = [["[1, 2)", "-4.03 (-3.1)"], ["* x-5", "1 .. -0.3"], ["10-20", "a < 2 > 1"]]
    lines = Table(["of", "value"], rows, notes="one\n\ntwo").to_latex().splitlines()
    assert lines[:3] == ["% one", "%", "% two"]
    assert lines[7:10] == [
        r"{}[1, 2) & $-$4.03 ($-$3.1) \\",  # a bracket behind \\ would be its argument
        r"{}* x-5 & 1 .. $-$0.3 \\",
        r"10-20 & a \textless{} 2 \textgreater{} 1 \\",
    ]
