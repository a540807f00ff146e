"""Methods of other packages: taken in from their metadata, and left out with a word if broken."""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import calibrant as cb
from calibrant.cli import main
from calibrant.core.errors import CalibratorFileError, PlugInWarning, UnknownMethodError
from calibrant.files import write_predictions
from calibrant.posthoc.loading import load
from calibrant.posthoc.methods import BUILT_IN
from calibrant.posthoc.plug_ins import GROUP, plugged_in
from calibrant.posthoc.registry import METHODS, make_calibrator, parse_arguments
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax

EXAMPLE = Path(__file__).parent / "plug_in_example"
Install = Callable[..., None]


ROWS = """
title = "A method of one's own"
kind = "posthoc"
metrics = ["nll"]
[axes]
input = ["sample"]
method = ["none"]
"""


@pytest.fixture
def install(tmp_path, monkeypatch) -> Iterator[Install]:
    """Return a function that installs the example under entry points of one's choice."""
    site = tmp_path / "site"

    def installed(**points: str) -> None:
        shutil.copytree(EXAMPLE, site, dirs_exist_ok=True)
        info = site / "shrink_towards_uniform-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shrinking\nVersion: 1.0\n")
        lines = [f"{name.replace('_', '-')} = {value}" for name, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))
        monkeypatch.syspath_prepend(site)
        plugged_in.cache_clear()

    before = set(sys.modules)
    yield installed
    plugged_in.cache_clear()
    for name in set(sys.modules) - before:
        if name.startswith("shrink"):
            del sys.modules[name]


GOOD = "shrink_towards_uniform:ShrinkTowardsUniform"


def test_the_example_fits_saves_and_loads(install, tmp_path, overconfident):
    install(shrink_uniform=GOOD)
    assert list(METHODS) == [*BUILT_IN, "auto", "shrink-uniform"]
    assert len(METHODS) == len(BUILT_IN) + 2
    logits, labels = overconfident
    calibrator = make_calibrator("shrink-uniform", **parse_arguments("shrink-uniform", []))
    probs = calibrator.fit(logits, labels).predict_proba(logits)
    # The law of its docstring: the weight makes the mean confidence the accuracy.
    accuracy = (logits.argmax(axis=1) == labels).mean()
    np.testing.assert_allclose(probs.max(axis=1).mean(), accuracy)
    weight = calibrator.state()["weight_"]
    np.testing.assert_allclose(probs, (1 - weight) * softmax(logits) + weight / 5)
    calibrator.save(tmp_path / "a.safetensors")
    back = load(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(back.predict_proba(logits), probs)


def test_on_the_command_line_and_as_a_candidate(install, tmp_path, overconfident, monkeypatch):
    install(shrink_uniform=GOOD)
    write_predictions(Predictions.from_logits(*overconfident), tmp_path / "val.npz")
    for arguments in (
        ["--method", "shrink-uniform"],
        ["--set", "candidates=shrink-uniform", "--set", "folds=2"],
    ):
        command = ["calibrant", "fit", tmp_path / "val.npz", "--out", tmp_path / "a.safetensors"]
        monkeypatch.setattr(sys, "argv", [str(word) for word in [*command, *arguments]])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
    assert "shrink-uniform" in " ".join(load(tmp_path / "a.safetensors").fit_report_.notes)


def test_without_the_package_its_file_is_refused(install, tmp_path, overconfident, monkeypatch):
    install(shrink_uniform=GOOD)
    make_calibrator("shrink-uniform").fit(*overconfident).save(tmp_path / "a.safetensors")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not p.startswith(str(tmp_path))])
    plugged_in.cache_clear()
    with pytest.raises(CalibratorFileError, match="unknown method 'shrink-uniform'"):
        load(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("temperature", GOOD, "another method is called 'temperature' already"),
        ("other-name", GOOD, "calls itself 'shrink-uniform'; the two names must be the same"),
        ("gone", "shrink_no_such_module:X", "No module named 'shrink_no_such_module'"),
        ("gone", "shrink_towards_uniform:Missing", "Missing"),
        ("function", "shrink_towards_uniform:dataclass", "not a class derived from"),
        ("a-class", "pathlib:Path", "it is not a class derived from calibrant.Calibrator"),
        (
            "abstract",
            "calibrant.posthoc.base:Calibrator",
            "Calibrator lacks _fit, n_parameters, transform",
        ),
        ("crash", "shrink_crash:X", "no such luck"),
        ("greedy", "shrink_greedy:Greedy", "required"),
        ("nameless", "shrink_greedy:Nameless", "no class attribute 'method'"),
    ],
)
def test_what_does_not_work_is_left_out_with_a_word(install, tmp_path, name, value, reason):
    install(**{name: value, "shrink-uniform": GOOD})
    (tmp_path / "site/shrink_crash.py").write_text("raise OSError('no such luck')\n")
    (tmp_path / "site/shrink_greedy.py").write_text(
        "from dataclasses import dataclass\n"
        "from calibrant.posthoc.base import Calibrator\n"
        "from calibrant.posthoc.temperature.uncalibrated import Uncalibrated\n"
        "@dataclass(eq=False)\n"
        "class Greedy(Uncalibrated):\n"
        "    method = 'greedy'\n"
        "    def __init__(self, required): ...\n"
        "class Nameless(Calibrator):\n"
        "    keeps_prediction = True\n"
        "    n_parameters = 0\n"
        "    def _fit(self, predictions): ...\n"
        "    def transform(self, xp, logits, features, learnt, *, masks=True): ...\n"
    )
    with pytest.warns(PlugInWarning) as caught:
        names = list(METHODS)
    assert names == [*BUILT_IN, "auto", "shrink-uniform"]
    (warning,) = [w for w in caught if issubclass(w.category, PlugInWarning)]
    text = str(warning.message)
    assert text.startswith(f"left out plug-in '{name}' of package 'shrinking' ({value}): ")
    assert reason in text
    # Said once, not at every look.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert METHODS["shrink-uniform"].method == "shrink-uniform"
        assert METHODS["temperature"] is BUILT_IN["temperature"]


def test_on_the_command_line_it_is_said_in_one_line(install, monkeypatch, capsys):
    install(gone="shrink_no_such_module:X")
    command = ["calibrant", "fit", "val.npz", "--method", "magic", "--out", "a.safetensors"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit):
        main()
    first, second = capsys.readouterr().err.strip().splitlines()
    assert first.startswith("warning: left out plug-in 'gone' of package 'shrinking'")
    assert second.startswith("error: no method is called 'magic'")


def test_built_in_methods_load_no_plug_in(install):
    install(crash="shrink_no_such_module:X")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_calibrator("smart")
    with pytest.warns(PlugInWarning), pytest.raises(UnknownMethodError, match="'no-such'"):
        make_calibrator("no-such")


def test_the_documentation_shows_the_example():
    source = (EXAMPLE / "shrink_towards_uniform.py").read_text()
    assert len(source.splitlines()) <= 30
    page = (Path(__file__).parents[1] / "docs/plug-ins.md").read_text()
    assert source in page


def test_a_plug_in_enters_a_study_by_name(install, tmp_path):
    install(shrink_uniform=GOOD)
    (tmp_path / "mine.toml").write_text(ROWS, encoding="utf-8")
    found = cb.studies.run(
        str(tmp_path / "mine.toml"),
        methods=["none", "shrink-uniform"],
        settings={"resamples": 10},
        out=tmp_path / "out",
        engine=cb.Engine(workers=1),
    )
    assert not found.failed
    values = {record["method"]: record["value"] for record in found.records()}
    assert values["shrink-uniform"] != values["none"]
