"""What the command line says, read as somebody does who has never seen it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import calibrant as cb
from calibrant.cli import main
from calibrant.core.errors import InputError
from calibrant.core.text import wrap
from calibrant.evaluation.formatting import in_percent
from calibrant.evaluation.groups import evaluate_by
from calibrant.evaluation.power import SampleSize, rows_needed
from calibrant.metrics.registry import METRICS, metrics_named
from calibrant.predictions.predictions import Predictions


class Said(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Said]


@pytest.fixture
def run(monkeypatch, capsys) -> Run:
    """Run the command line in this process; lines of what it says are joined."""

    def call(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["calibrant", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        out, err = capsys.readouterr()
        return Said(ended.value.code, " ".join(out.split()), " ".join(err.split()))

    return call


@pytest.fixture(scope="module")
def file(tmp_path_factory, labelled_logits) -> Path:
    logits, labels = labelled_logits(300, 3)
    path = tmp_path_factory.mktemp("words") / "rows.npz"
    np.savez(path, logits=logits, labels=labels, colour=np.array(["red", "blue"])[labels % 2])
    return path


def test_without_a_command_there_is_help_and_no_error(run):
    said = run()
    assert (said.code, said.err) == (0, "")
    for command in ("measure", "fit", "apply", "compare", "train", "head", "demo"):
        assert f" {command} " in said.out


def test_a_size_of_error_is_asked_for_as_a_fraction(run, file):
    for wrong in ("1", "0", "-0.1", "5"):
        said = run("measure", file, "--rows-for", wrong)
        assert (said.code, said.out) == (2, "")
        assert "takes an ECE as a fraction, such as 0.01 for 1 %, not" in said.err
    assert "a fraction, such as 0.01 for 1 %" in run("measure", "--help").out
    with pytest.raises(InputError, match="ece, a fraction, must lie between 0 and the mean"):
        rows_needed(np.array([0.5]), 0.6)
    text = str(SampleSize(436, 0.01, 0.8, 0.05))
    assert text == (
        "You need about 436 rows like these to tell an ECE of 1 % from noise in 80 % of cases."
    )


def test_how_many_rows_and_groups_are_not_asked_for_together(run, file):
    said = run("measure", file, "--rows-for", "0.01", "--by", "class")
    assert (said.code, said.out) == (2, "")
    assert "leave out either it or --by" in said.err


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["ece", "nll"], "In percent: ECE."),
        (["ece", "aurc", "mmce", "slope"], "In percent: ECE; AURC; MMCE."),
        (["nll"], "No value is in percent."),
        (["ece", "accuracy"], "All values in percent."),
    ],
)
def test_tables_name_what_is_in_percent(names: list[str], sentence: str, run, file):
    assert in_percent(metrics_named(names)) == sentence
    said = run("measure", file, "--metrics", ",".join(names), "--resamples", "5")
    assert sentence in said.out
    compared = run(
        *("compare", file, "--methods", "none", "--resamples", "5"),
        *("--metrics", ",".join(names), "--rank-by", names[0]),
    )
    # What decides is always shown, and so is the accuracy.
    assert in_percent(metrics_named(["ece", "nll", "accuracy"])) in compared.out


def test_of_many_metrics_the_few_that_are_not_in_percent_are_named():
    text = in_percent(metrics_named("all"))
    assert text.startswith("All values in percent but NLL; Brier; ")
    for metric in METRICS.values():
        assert (f" {metric.title};" in text.replace(".", ";")) == (not metric.percent)


def test_the_floor_is_explained_where_there_is_one(run, file):
    said = run("measure", file, "--resamples", "5").out
    assert "floor 95 %: they stay below it in 95 % of cases," in said
    assert "Floor" not in run("measure", file, "--resamples", "5", "--metrics", "nll").out


def test_groups_say_what_they_are_and_what_the_columns_mean(run, file):
    by_class = run("measure", file, "--by", "class", "--resamples", "20", "--metrics", "ece").out
    assert "3 groups by predicted class" in by_class
    assert (
        "All but the rows in percent. Interval: of ECE, 95 %. Floor 95 %: in one group" in by_class
    )
    by_colour = run("measure", file, "--by", "colour", "--resamples", "20").out
    assert "2 groups by colour" in by_colour
    assert " colour rows confidence accuracy ECE interval floor 95 %" in by_colour
    of_nll = run("measure", file, "--by", "margin", "--resamples", "5", "--metrics", "nll").out
    assert "5 groups by margin of logits" in of_nll
    assert "Confidence and accuracy in percent, NLL as it is." in of_nll


def test_groups_that_are_not_marked_are_spoken_of():
    rng = np.random.default_rng(1)
    c = np.full(400, 0.7)
    wrong = (rng.random(400) >= 0.7).astype(int)
    rows = Predictions.from_confidence(c, np.zeros(400, int), wrong)
    two = " ".join(str(evaluate_by(rows, np.arange(400) % 2, resamples=50)).split())
    assert two.endswith("No group shows more than noise, at 5 % for both groups together.")
    one = " ".join(str(evaluate_by(rows, np.zeros(400), resamples=50)).split())
    assert "1 group by group" in one
    assert one.endswith("No group shows more than noise, at 5 % for one group alone.")


def test_one_row_is_no_rows(run, tmp_path):
    np.savez(tmp_path / "one.npz", probs=[[0.9, 0.1]], labels=[0])
    said = run("measure", tmp_path / "one.npz", "--resamples", "20").out
    assert "1 row, 2 classes" in said
    assert "1 rows" not in said


def test_too_small_groups_are_counted(run, file):
    few = Predictions.from_confidence(np.full(9, 0.7), np.zeros(9, int), np.zeros(9, int))
    with pytest.raises(InputError, match=r"no group has 20 rows .*; the largest has 5"):
        evaluate_by(few, np.arange(9) % 2)


def test_intervals_of_a_comparison_say_their_level(run, file):
    said = run("compare", file, "--methods", "none", "--resamples", "20", "--level", "0.9").out
    assert " % (90 % interval " in said.partition("fit on")[0]


# What the glossary of CONTRIBUTING.md calls by another word.
OTHER_WORDS = {
    "bins": "n_bins",
    "num_bins": "n_bins",
    "nbins": "n_bins",
    "binning": "strategy",
    "spacing": "strategy",
    "edges": "strategy or convention",
    "weighting": "convention",
    "sign_convention": "convention",
    "classes": "n_classes",
    "num_classes": "n_classes",
    "val": "validation",
}


def arguments_of(thing: Any) -> set[str]:
    """The arguments of a function, or of a class and its public methods."""
    members = [thing]
    if inspect.isclass(thing):
        members += [value for name, value in inspect.getmembers(thing) if name[0] != "_"]
    found: set[str] = set()
    for member in members:
        if callable(member):
            try:
                found |= set(inspect.signature(member).parameters)
            except (TypeError, ValueError):  # what is written in C has no signature
                continue
    return found


def public_things() -> Iterator[tuple[str, Any]]:
    from calibrant.posthoc.registry import METHODS

    for place in (cb, cb.metrics, cb.posthoc, cb.predictions, cb.scale):
        for name in dir(place):
            thing = getattr(place, name)
            if callable(thing):
                yield name, thing
    for name in ("tempered", "margin_tempered", "top_label"):
        yield name, getattr(cb.synthetic, name)
    yield from ((name, METHODS[name]) for name in METHODS)


def other_words(arguments: set[str]) -> set[str]:
    return arguments & OTHER_WORDS.keys()


def test_no_public_argument_goes_by_another_word():
    wrong = {
        name: found
        for name, thing in public_things()
        if (found := other_words(arguments_of(thing)))
    }
    assert wrong == {}


def test_no_argument_of_what_trains_goes_by_another_word():
    pytest.importorskip("torch")
    from calibrant.training import LOSSES, nets, run, second_stages

    things = [*LOSSES.items(), *second_stages.SECOND_STAGES.items()]
    things += [
        (name, getattr(nets, name)) for name in nets.__all__ if callable(getattr(nets, name))
    ]
    things += [("RunSettings", run.RunSettings), ("run", second_stages.run_second_stage)]
    wrong = {name: found for name, thing in things if (found := other_words(arguments_of(thing)))}
    assert wrong == {}


def test_another_word_would_be_found():
    def measured(scores: Any, bins: int) -> int:
        return bins

    class Measure:
        def of(self, num_classes: int) -> int:
            return num_classes

    assert other_words(arguments_of(measured)) == {"bins"}
    assert other_words(arguments_of(Measure)) == {"num_classes"}


def test_the_glossary_has_every_word_that_stands_for_another():
    text = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    glossary = text.partition("## One word, one thing\n")[2].partition("\n## ")[0]
    for words in OTHER_WORDS.values():
        for word in words.split(" or "):
            assert f"| `{word}` |" in glossary


def test_no_option_goes_by_another_word():
    import typer.main

    from calibrant.cli.app import app

    group: Any = typer.main.get_command(app)
    commands = [group.get_command(None, name) for name in group.list_commands(None)]
    options = {
        word.lstrip("-").replace("-", "_")
        for command in commands
        for option in command.params
        for word in option.opts
    }
    assert {"n_classes", "validation"} <= options
    # Of files, `--classes` gives the names of the classes and not how many there are.
    assert other_words(options) == {"classes"}


def test_a_line_never_breaks_within_a_number_or_before_its_per_cent_sign():
    for before in range(60, 81):
        text = f"{'x' * before} 33.1 % of rows, {'y' * 70} 5 %, {'z' * 60} 1 200 000 rows, 3 of 10"
        lines = wrap(text).splitlines()
        assert " ".join(lines) == text
        assert not any(line.startswith(("%", "200", "000")) for line in lines)


# Options that mean something else in another command, and what.
OTHER_MEANINGS = {
    "--by": "what is done in groups; of compare what tells sets apart",
    "--data": "images to train on, training images of a run, or whatever a study reads",
    "--kind": "of rows; of an export what the map takes",
    "--loss": "of a training, or a column whose mean is promised",
    "--method": "of calibration, or of a second stage",
    "--methods": "of a comparison, or in place of a study's",
    "--of": "the class that a decision is about, or that a monitor watches",
    "--out": "each command writes another thing",
    "--precision": "of a decision, or of the numbers of a training",
    "--seed": "fit draws a sample and folds only; a method has a seed of its own",
    "--seeds": "of the splits of a comparison, or in place of a study's",
    "--set": "of a method, of one of several, of a loss or of a study",
    "--skip-broken": "files, or lines of a stream",
    "--table": "of several data sets, or of a study, which is written as HTML too",
    "--test": "predictions, or rows with features for a head",
}


def _helps() -> dict[str, set[str]]:
    """Return what the commands say of each option."""
    from typer.main import get_command

    from calibrant.cli.app import app

    found: dict[str, set[str]] = {}

    def visit(command: Any) -> None:
        if hasattr(command, "list_commands"):
            for name in command.list_commands(None):
                visit(command.get_command(None, name))
            return
        for parameter in command.params:
            for name in (name for name in parameter.opts if name.startswith("--")):
                found.setdefault(name, set()).add((parameter.help or "").strip())

    visit(get_command(app))
    return found


def test_an_option_says_the_same_in_every_command_unless_it_means_something_else():
    helps = _helps()
    assert all(text for texts in helps.values() for text in texts)
    several = {name for name, texts in helps.items() if len(texts) > 1}
    # Commands of another distribution may not be here.
    assert several <= set(OTHER_MEANINGS)
    assert set(OTHER_MEANINGS) - several <= {"--methods", "--seeds", "--table", "--data"}


def test_arrays_of_logits_are_told_how_to_say_so() -> None:
    rows = cb.load_sample("test").take(slice(50))
    with pytest.raises(InputError, match=r"Predictions\.from_logits\(logits, labels\)"):
        cb.evaluate(rows.logits, rows.labels)
