"""What `calibrant methods` and `calibrant metrics` say: of everything, and what the code says."""

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
from calibrant.core.docstrings import Docstring
from calibrant.core.errors import UnknownMethodError
from calibrant.metrics import registry as of_metrics
from calibrant.metrics.registry import METRICS, POSITIVE_METRICS
from calibrant.posthoc import registry as of_methods
from calibrant.posthoc.registry import BUILT_IN, METHODS


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_says_what_a_person_should_know(name: str) -> None:
    found = of_methods.described(name)
    assert found.facts is not None, f"the class of {name} has no facts"
    assert found.formula.endswith("."), "its first paragraph is cut off in the list of methods"
    assert found.sources, f"the docstring of {name} has no References"
    assert found.arguments.keys() == METHODS[name]().get_params().keys()
    for key, (default, meaning) in found.arguments.items():
        assert default == METHODS[name]().get_params()[key]
        assert meaning, f"the docstring of {name} doesn't say what {key} is"


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_class_calls_itself_what_the_registry_calls_it(name: str) -> None:
    assert METHODS[name].method == name


@pytest.mark.parametrize("name", [*METRICS, *POSITIVE_METRICS])
def test_every_metric_says_what_a_person_should_know(name: str) -> None:
    found = of_metrics.described(name)
    assert found.sources, f"the docstring behind {name} has no References"
    function = found.metric.function
    assert function is not None
    assert found.metric.effort
    assert found.metric.fails
    assert found.formula
    assert getattr(cb.metrics, function.__name__) is function


def test_a_metric_is_the_function_that_its_entry_names() -> None:
    sample = cb.load_sample("test").take(np.arange(400))
    probs, labels = np.asarray(sample.probs), sample.labels
    measured = cb.evaluate(sample, metrics="all", resamples=5)
    odd = {"slope", "intercept", "brier_calibration", "brier_refinement"}
    odd |= {"nll_calibration", "nll_refinement"}  # parts of what their function returns
    for name, metric in METRICS.items():
        if name not in odd:
            assert metric.function is not None
            assert metric.function(probs, labels) == pytest.approx(measured[name].value, abs=2e-6)


class Said(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def call(*words: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["calibrant", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return Said(int(ended.value.code or 0), *capsys.readouterr())

    return call


def test_the_command_lists_and_explains(run: Callable[..., Said]) -> None:
    said = run("methods")
    assert said.code == 0
    for name in METHODS:
        assert f"\n  {name} " in said.out
    document = json.loads(run("methods", "--json", "-").out)
    assert [entry["name"] for entry in document["methods"]] == list(METHODS)
    smart = run("methods", "smart").out
    for word in (
        "49",
        "charbonnier",
        "cost of a fit",
        "when it fails",
        "source",
        "likelihood_weight",
    ):
        assert word in smart
    assert max(map(len, smart.splitlines())) <= 80
    metrics = run("metrics")
    for name in METRICS:
        assert f"  {name} " in metrics.out
    assert "calibrant.metrics.expected_calibration_error" in run("metrics", "ece").out
    wrong = run("methods", "smrt")
    assert (wrong.code, wrong.out) == (2, "")
    assert "did you mean 'smart'?" in wrong.err
    assert run("metrics", "ecee").code == 2


def test_a_chain_and_an_unknown_name() -> None:
    chain = of_methods.described("svs+top-rest")
    assert "svs__ridge" in chain.arguments
    assert chain.formula.startswith("svs, then top-rest: ")
    steps = [of_methods.described(step).sources for step in ("svs", "top-rest")]
    assert chain.sources == steps[0] + steps[1]
    with pytest.raises(UnknownMethodError, match="did you mean 'smart'"):
        of_methods.described("smrt")


def test_a_docstring_in_parts() -> None:
    def thing() -> None:
        """Do this
        and that.

        More of it.

            =  =
            a  b

        Args:
            one, two: numbers
                of rows.
            three: another.

        References:
            Somebody,
            2020.
        """

    text = Docstring.of(thing)
    assert text.summary == "Do this and that."
    assert text.paragraphs == ("More of it.", "    =  =\n    a  b")
    assert text.items("Args") == {
        "one": "numbers of rows.",
        "two": "numbers of rows.",
        "three": "another.",
    }
    assert text.sentences("References") == ["Somebody, 2020."]
    assert text.sentences("Raises") == []


def test_the_help_of_what_takes_names_lists_them(run: Callable[..., Said]) -> None:
    for verb in ("fit", "compare"):
        said = " ".join(run(verb, "--help-all").out.split())
        for name in METHODS:
            assert f" {name}," in said or f" {name};" in said
    said = " ".join(run("measure", "--help-all").out.split())
    for name in METRICS:
        assert f" {name}," in said or f" {name}." in said


def test_shells_complete_names(monkeypatch: pytest.MonkeyPatch, run: Callable[..., Said]) -> None:
    def offered(*words: str) -> list[str]:
        monkeypatch.setenv("_CALIBRANT_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(["calibrant", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        return run().out.split()

    assert offered("fit", "--method", "sm") == ["sms", "smart"]
    assert offered("compare", "--methods", "none,smar") == ["none,smart"]
    assert offered("measure", "--metrics", "smc") == ["smce"]
    assert offered("metrics", "ad") == ["adaece"]
    assert "measure" in offered("mea")


def test_a_method_of_a_comparison_takes_arguments(tmp_path: Path, run: Callable[..., Said]) -> None:
    sample = cb.load_sample("test").take(np.arange(300))
    cb.write_predictions(sample, tmp_path / "rows.npz")
    common = ("compare", str(tmp_path / "rows.npz"), "--methods", "none,histogram,svs+top-rest")
    small = ("--resamples", "5", "--json", "-")
    said = run(*common, *small, "--set", "histogram.n_bins=3", "--set", "svs+top-rest.svs__ridge=9")
    assert said.code == 0
    found = {m["method"]: m for m in json.loads(said.out)["methods"]}
    assert found["histogram"]["parameters"] == 3
    for wrong, sentence in {
        "n_bins=3": "--set 'n_bins=3' is not of the form METHOD.KEY=VALUE",
        "smart.n_bins=3": "smart is not compared here; --methods has none, histogram, svs+top-rest",
        "histogram.bins=3": "method 'histogram' has no argument 'bins'",
    }.items():
        said = run(*common, *small, "--set", wrong)
        assert (said.code, said.out) == (2, "")
        assert sentence in said.err
